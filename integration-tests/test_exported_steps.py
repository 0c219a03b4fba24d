"""``export(step, ..., training=True)``: forward, backward and optimizer as one program that goes on from its own state."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_api
from prims.errors import StoredGraphError, UserError

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
}


def batches(count: int, rows: int = 6) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        yield torch.randn(rows, 8, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def begun(
    make: Callable[[Any], torch.optim.Optimizer], model: nn.Module | None = None
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[..., torch.Tensor]]:
    """A model and its optimizer after a step, and the step."""
    model = model if model is not None else network()
    optimizer = make(model.parameters())
    step = trained(model, optimizer)
    step(*next(batches(1)))
    return model, optimizer, step


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return copy.deepcopy({
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
    })  # fmt: skip


def assert_same(now: Any, before: Any) -> None:
    if isinstance(before, torch.Tensor):
        assert torch.equal(now, before)
    elif isinstance(before, dict):
        assert now.keys() == before.keys()
        for key, value in before.items():
            assert_same(now[key], value)
    elif isinstance(before, (list, tuple)):
        assert len(now) == len(before)
        for a, b in zip(now, before, strict=True):
            assert_same(a, b)
    else:
        assert now == before


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_eagers(name: str, tmp_path: Path) -> None:
    model, optimizer, step = begun(OPTIMIZERS[name])
    before = held(model, optimizer)
    program = compile_api.export(step, next(batches(1)), training=True)
    assert_same(held(model, optimizer), before)
    program.save(tmp_path)
    loaded = compile_api.load_exported(tmp_path)
    for x, y in batches(6):
        expected = step(x, y)
        torch.testing.assert_close(program(x, y), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loaded(x, y), expected, rtol=1e-4, atol=1e-5)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(program.weights[key], value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loaded.weights[key], value, rtol=1e-4, atol=1e-5)
    for one in (program, loaded):
        assert one.report().kernels and not one.report().fallbacks
        assert one.report().verdict == "compiled"


def test_a_process_without_the_models_code_goes_on_training(tmp_path: Path) -> None:
    model, _, step = begun(OPTIMIZERS["adamw"])
    compile_api.export(step, next(batches(1)), training=True).save(tmp_path / "step")
    data = list(batches(5))
    torch.save(data, tmp_path / "data.pt")
    text = (
        "import sys, torch, compile_api\n"
        "program = compile_api.load_exported(sys.argv[1] + '/step')\n"
        "for x, y in torch.load(sys.argv[1] + '/data.pt'):\n"
        "    program(x, y)\n"
        "program.save(sys.argv[1] + '/after')\n"
        "torch.save(program.weights, sys.argv[1] + '/weights.pt')\n"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True)
    for x, y in data:
        step(x, y)
    after = compile_api.load_exported(tmp_path / "after")
    for weights in (torch.load(tmp_path / "weights.pt"), after.weights):
        for key, value in model.state_dict().items():
            torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=1e-5)
    x, y = data[0]
    torch.testing.assert_close(after(x, y), step(x, y), rtol=1e-4, atol=1e-5)


def test_learning_rates_are_weights() -> None:
    model, optimizer, step = begun(OPTIMIZERS["adamw"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    program = compile_api.export(step, next(batches(1)), training=True)
    assert program.weights["optimizer.param_groups.0.lr"].item() == 0.01
    for x, y in batches(8):
        program.weights["optimizer.param_groups.0.lr"].fill_(optimizer.param_groups[0]["lr"])
        torch.testing.assert_close(program(x, y), step(x, y), rtol=1e-4, atol=1e-5)
        schedule.step()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(program.weights[key], value, rtol=1e-4, atol=1e-5)


def test_batches_of_any_size() -> None:
    _, _, step = begun(OPTIMIZERS["momentum"])
    sizes = {"x": {0: "batch"}, "y": {0: "batch"}}
    program = compile_api.export(step, next(batches(1)), training=True, dynamic_shapes=sizes)
    for rows in (6, 9, 2, 33):
        x, y = next(batches(1, rows))
        torch.testing.assert_close(program(x, y), step(x, y), rtol=1e-4, atol=1e-5)
    assert not program.report().fallbacks


def test_buffers_and_random_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    _, _, step = begun(OPTIMIZERS["adamw"], model)
    program = compile_api.export(step, next(batches(1)), training=True)
    count, x, y = model[1].num_batches_tracked.item(), *next(batches(1))
    losses = {program(x, y).item() for _ in range(4)}
    assert len(losses) == 4
    assert model[1].num_batches_tracked.item() == count and program.weights["1.num_batches_tracked"].item() == count + 4
    assert not torch.equal(program.weights["1.running_mean"], model[1].running_mean)


def test_clipping_and_several_batches_in_a_step() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in parts:
            loss = F.cross_entropy(model(x), y) / len(parts)
            loss.backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return total, norm

    given = list(batches(2))
    step(given)
    program = compile_api.export(step, (given,), training=True)
    for k in range(4):
        more = list(batches(2, 6 + 0 * k))
        for ours, eager in zip(program(more), step(more), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


def test_two_models_with_an_optimizer_each() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    first, second = torch.optim.Adam(maker.parameters(), lr=0.01), torch.optim.SGD(judge.parameters(), lr=0.1)

    def step(noise: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
        second.zero_grad()
        made = maker(noise)
        judged = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(real)).mean()
        judged.backward()
        second.step()
        first.zero_grad()
        fooled = F.softplus(-judge(made)).mean()
        fooled.backward()
        first.step()
        judge.zero_grad()
        return {"judged": judged.detach(), "fooled": fooled.detach()}

    given = torch.randn(5, 4), torch.randn(5, 8)
    step(*given)
    program = compile_api.export(step, given, training=True)
    assert {"maker.weight", "judge.weight", "first.param_groups.0.lr"} <= program.weights.keys()
    for _ in range(4):
        ours, eager = program(*given), step(*given)
        for key, value in eager.items():
            torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-5)


class Trainer:
    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def test_a_method_that_takes_gradients_away_at_its_end() -> None:
    trainer = Trainer()
    trainer.step(*next(batches(1)))
    program = compile_api.export(trainer.step, next(batches(1)), training=True)
    for x, y in batches(4):
        torch.testing.assert_close(program(x, y), trainer.step(x, y), rtol=1e-4, atol=1e-5)
    assert {"0.weight", "optimizer.param_groups.0.lr", "optimizer.state.0.weight.exp_avg"} <= program.weights.keys()
    assert all(p.grad is None for p in trainer.model.parameters())


def test_tied_weights_have_one_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(ids: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:-1]), ids[1:])
        loss.backward()
        optimizer.step()
        return loss.detach()

    ids = torch.arange(9) % 7
    step(ids)
    program = compile_api.export(step, (ids,), training=True)
    for _ in range(4):
        torch.testing.assert_close(program(ids), step(ids), rtol=1e-4, atol=1e-5)
    assert "2.weight" not in program.weights
    missing = model.load_state_dict(program.weights, strict=False).missing_keys
    assert missing == ["2.weight"] and model[2].weight is model[0].weight


def test_an_object_that_holds_all() -> None:
    trainer = Trainer()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return trainer.step(x, y)

    step(*next(batches(1)))
    for p in trainer.model.parameters():
        p.grad = torch.ones_like(p)
    before = held(trainer.model, trainer.optimizer)
    program = compile_api.export(step, next(batches(1)), training=True)
    assert_same(held(trainer.model, trainer.optimizer), before)
    trainer.optimizer.zero_grad()
    for x, y in batches(3):
        torch.testing.assert_close(program(x, y), step(x, y), rtol=1e-4, atol=1e-5)
    assert {"0.weight", "trainer.optimizer.param_groups.0.lr"} <= program.weights.keys()


def test_parameters_that_are_out_of_reach_are_refused() -> None:
    weight = torch.zeros(8, 3).requires_grad_()
    far = [[[[[[weight]]]]]]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        w = far[0][0][0][0][0][0]
        loss = F.cross_entropy(x @ w, y)
        loss.backward()
        with torch.no_grad():
            w.sub_(0.1 * w.grad)
        w.grad = None
        return loss.detach()

    with pytest.raises(UserError, match="is not found from the function"):
        compile_api.export(step, next(batches(1)), training=True)
    assert weight.grad is None and not weight.any()


class Hidden:
    """Parameters that no name of a step's leads to."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = {"first": torch.zeros(8, 3).requires_grad_(), "second": torch.zeros(8, 3).requires_grad_()}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.parts["first"] + (x * 2).tanh() @ self.parts["second"]


def test_parameters_without_names_are_told_apart() -> None:
    model, itself = Hidden(), []
    itself.append(itself)
    optimizer = torch.optim.Adam(model.parts.values(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert itself
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(*next(batches(1)))
    program = compile_api.export(step, next(batches(1)), training=True)
    for x, y in batches(4):
        torch.testing.assert_close(program(x, y), step(x, y), rtol=1e-4, atol=1e-5)
    for k, value in enumerate(model.parts.values()):
        torch.testing.assert_close(program.weights[f"optimizer.param_groups.0.params.{k}"], value.detach(), rtol=1e-4, atol=1e-5)


def test_frozen_parameters_and_autocast() -> None:
    model = network()
    for p in model[0].parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(*next(batches(1)))
    frozen = model[0].weight.detach().clone()
    program = compile_api.export(step, next(batches(1)), training=True)
    for x, y in batches(3):
        torch.testing.assert_close(program(x, y), step(x, y), rtol=3e-2, atol=1e-2)
    assert torch.equal(program.weights["0.weight"], frozen)


# ---- what is refused, with everything left as it was ----------------------------------------------------------------


def refused(step: Callable[..., Any], model: nn.Module, optimizer: torch.optim.Optimizer, words: str) -> None:
    before = held(model, optimizer)
    with pytest.raises(UserError, match=words):
        compile_api.export(step, next(batches(1)), training=True)
    assert_same(held(model, optimizer), before)


def test_a_module_is_no_step() -> None:
    with pytest.raises(UserError, match="a module computes its results only"):
        compile_api.export(network(), (torch.randn(2, 8),), training=True)


def test_state_that_is_not_there_yet() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    refused(trained(model, optimizer), model, optimizer, "(?s)makes its state in its first step.*Run the step once before")


def test_gradients_that_are_never_taken_away() -> None:
    model, optimizer, _ = begun(OPTIMIZERS["adamw"])

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    refused(step, model, optimizer, "(?s)goes on from the gradient of 0.weight.*zero_grad")
    for p in model.parameters():
        p.grad = None
    refused(step, model, optimizer, "goes on from the gradient of 0.weight")


def test_a_schedule_inside() -> None:
    model, optimizer, plain = begun(OPTIMIZERS["adamw"])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = plain(x, y)
        schedule.step()
        return loss

    plain(*next(batches(1)))
    refused(step, model, optimizer, "cannot be exported")


COUNTED = 0


@pytest.mark.parametrize("what", ["count", "losses", "trainer.steps", "COUNTED", "model.history", "log.model.count"])
def test_what_a_step_counts_is_refused_and_not_counted(what: str) -> None:
    model, optimizer, plain = begun(OPTIMIZERS["adamw"])
    count, losses, trainer, log = 0, [1.0], Trainer(), Trainer()
    trainer.steps = 0
    model.history = [1.0]
    log.model = Trainer()  # named as the model is, and none
    log.model.count = 0

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal count
        global COUNTED
        if what == "count":
            count += 1
        elif what == "losses":
            losses.append(2.0)
        elif what == "trainer.steps":
            trainer.steps += 1
        elif what == "model.history":
            model.history.append(2.0)
        elif what == "log.model.count":
            log.model.count += 1
        else:
            COUNTED += 1
        return plain(x, y)

    refused(step, model, optimizer, f"running it changes {what}")
    assert (count, losses, trainer.steps, COUNTED) == (0, [1.0], 0, 0)
    assert (model.history, log.model.count) == ([1.0], 0)


def test_numbers_in_tensors_are_state() -> None:
    """Of an average of the weights, and a count."""
    model, _, plain = begun(OPTIMIZERS["adamw"])
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    count = torch.zeros((), dtype=torch.int64)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = plain(x, y)
        with torch.no_grad():
            count.add_(1)
            for name, p in model.named_parameters():
                average[name].lerp_(p, 0.1)
        return loss

    program = compile_api.export(step, next(batches(1)), training=True)
    for x, y in batches(4):
        torch.testing.assert_close(program(x, y), step(x, y), rtol=1e-4, atol=1e-5)
    assert program.weights["count"].item() == count.item() == 4
    torch.testing.assert_close(program.weights["average.0.weight"], average["0.weight"], rtol=1e-4, atol=1e-5)


def test_a_break_names_its_line() -> None:
    model, optimizer, _ = begun(OPTIMIZERS["adamw"])

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
        return loss.item() + 1

    refused(step, model, optimizer, "test_exported_steps.py")


def test_numbers_that_leave_what_the_program_was_made_for() -> None:
    """RAdam computes otherwise from its sixth step on."""
    _, _, step = begun(lambda p: torch.optim.RAdam(p, lr=0.01))
    program = compile_api.export(step, next(batches(1)), training=True)
    with pytest.raises(UserError, match=r"(?s)it needs .*optimizer\.state.*Export the step again"):
        for x, y in batches(8):
            program(x, y)


def test_other_forms_refuse_numbers_by_name(tmp_path: Path) -> None:
    _, _, step = begun(OPTIMIZERS["adamw"])
    program = compile_api.export(step, next(batches(1)), training=True)
    for write in (
        lambda: compile_api.package(program, tmp_path / "p"), lambda: compile_api.to_onnx(program, tmp_path / "p.onnx"),
        lambda: compile_api.to_stablehlo(program),
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"(?s)computes with numbers that change.*optimizer\.param_groups.*Exported\.save"):
            write()


@pytest.mark.parametrize("damage", ["no weight", "no expression", "another symbol", "a matrix"])
def test_damaged_contracts_are_labelled(damage: str, tmp_path: Path) -> None:
    _, _, step = begun(OPTIMIZERS["adam"])
    program = compile_api.export(step, next(batches(1)), training=True)
    program.save(tmp_path)
    path = tmp_path / "contract.json"
    text = path.read_text()
    needed = program.contract.needs[0][0]
    if damage == "no weight":
        text = text.replace('"optimizer.param_groups.0.lr"', '"optimizer.param_groups.0.rate"')
    elif damage == "a matrix":
        text = text.replace('"optimizer.param_groups.0.lr"', '"0.weight"')
    else:
        bad = "__import__('os')" if damage == "no expression" else "fbits(s99) < 1.0"
        text = text.replace(needed, bad)
    assert text != path.read_text()
    path.write_text(text)
    with pytest.raises(StoredGraphError):
        compile_api.load_exported(tmp_path)
