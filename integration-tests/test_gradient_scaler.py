"""Gradient scaling inside a compiled step: what is checked for infinities is written by operators that return nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import compile_api


def step(model, optimizer, scaler, x, y, factor):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss * factor).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def test_a_whole_step():
    """A step with an infinite gradient is skipped and shrinks the scale, steps without one make it grow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(step)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9) for m in (model, twin)]
    scales = []
    for number in range(8):
        x, y, factor = torch.randn(8, 16), torch.randint(0, 4, (8,)), float("inf") if number == 3 else 1.0
        before = copy.deepcopy(model.state_dict())
        compiled(model, optimizers[0], scalers[0], x, y, factor)
        step(twin, optimizers[1], scalers[1], x, y, factor)
        assert scalers[0].get_scale() == scalers[1].get_scale(), number
        scales.append(scalers[0].get_scale())
        unchanged = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))
        assert unchanged == (number == 3)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3)
    assert len(set(scales)) > 2
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_unscale(bad, dtype, backend):
    def f(gradients, found, inverse):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found + 1

    def given():
        torch.manual_seed(0)
        gradients = [torch.randn(5).to(dtype), torch.randn(2, 3).to(dtype)]
        if bad is not None:
            gradients[1][1, 2] = bad
        return gradients, torch.zeros(()), torch.tensor(0.25)

    ours, theirs = given(), given()
    compiled = compile_api.compile(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(*ours), f(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 1])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_update_scale(scale, tracker, found):
    def f(scale, tracker, found):
        return torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2) + 0

    given = lambda: (torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]))
    ours, theirs = given(), given()
    compiled = compile_api.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(*ours), f(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert not compiled.report().fallbacks


# ---- steps that are taken or not, in the graph -----------------------------------------------------------------------


def clipped(model, optimizers, scaler, x, y, factor):
    for optimizer in optimizers:
        optimizer.zero_grad()
    scaler.scale(nn.functional.mse_loss(model(x), y) * factor).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def not_clipped(model, optimizers, scaler, x, y, factor):
    scaler.scale(nn.functional.mse_loss(model(x), y) * factor).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()


class Counting(torch.optim.Optimizer):
    """Counts its steps in an int of its own, which is more than writing tensors."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad / self.count)


class Noisy(torch.optim.Optimizer):
    """Draws random numbers, which a step that is skipped does not."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * 0.01 + torch.randn_like(p) * 0.01)


def _of(name, **options):
    return lambda params: getattr(torch.optim, name)(params, lr=0.01, **options)


STEPPED = {
    "SGD": _of("SGD"), "momentum": _of("SGD", momentum=0.9, nesterov=True), "AdamW": _of("AdamW"),
    "foreach": _of("AdamW", foreach=True, amsgrad=True), "fused": _of("AdamW", fused=True), "NAdam": _of("NAdam"),
    "RMSprop": _of("RMSprop", momentum=0.5), "Adagrad": _of("Adagrad"), "ASGD": _of("ASGD", foreach=True),
    "Adafactor": _of("Adafactor"), "Rprop": _of("Rprop"), "Adadelta": _of("Adadelta", foreach=True),
}  # fmt: skip
#: Those that decide by numbers that the first steps change.
DECIDES = ("ASGD", "Adafactor")


def trained(program, make, wrap, scheduled, bad, steps=9):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizers = [make(part.parameters()) for part in (model[0], model[2])]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    call = wrap(program)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)) for o in optimizers if scheduled]
    torch.manual_seed(1)
    for n in range(steps):
        x, y = torch.randn(5, 6).double(), torch.randn(5, 3).double()
        call(model, optimizers, scaler, x, y, torch.tensor(float("inf") if n in bad else 1.0))
        for schedule in schedules:
            schedule.step()
    states = [optimizer.state_dict() for optimizer in optimizers]
    return call, (list(model.parameters()), states, scaler.state_dict(), torch.rand(1))


def assert_as_eager(program, make, scheduled, bad):
    """The compiled program's report."""
    compiled, ours = trained(program, make, compile_api.compile, scheduled, bad)
    _, theirs = trained(program, make, lambda fn: fn, scheduled, bad)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
    return compiled.report()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # which is what a step that is skipped does
@pytest.mark.parametrize("program, scheduled", [(clipped, False), (not_clipped, True)])
@pytest.mark.parametrize("name", STEPPED)
def test_steps_that_may_be_skipped(name, program, scheduled):
    report = assert_as_eager(program, STEPPED[name], scheduled, bad=(3, 4, 7))
    assert not report.fallbacks and report.kernels
    allowed = 0 if name == "fused" or (name == "SGD" and not scheduled) else 2
    assert len(report.breaks) <= allowed, str(report)  # the first step of either optimizer
    last = [graph for graph in report.graphs if graph.name == program.__name__ and graph.dialect == "torch"][-1]
    assert len([op for op in last.ops if op == "where"]) >= 4 or name == "fused", last.ops
    assert len(report.recompiles) <= (6 if name in DECIDES else 3), str(report)


@pytest.mark.parametrize("name", ["SGD", "momentum", "AdamW"])
def test_first_steps_that_are_skipped(name):
    """An optimizer whose step is skipped has no state, as in eager."""
    assert_as_eager(not_clipped, STEPPED[name], False, bad=(0, 1, 4))


def test_steps_that_do_more_than_write_tensors():
    report = assert_as_eager(clipped, Counting, False, bad=(2, 3))
    assert any("GradScaler" in brk.reason for brk in report.breaks), str(report)
    compiled, _ = trained(clipped, Noisy, compile_api.compile, False, bad=())
    assert any("draws random numbers" in brk.reason for brk in compiled.report().breaks), str(compiled.report())


def test_hooks_of_skipped_steps_are_not_called():
    calls = []

    def make(params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.register_step_post_hook(lambda *_: calls.append(1))
        return optimizer

    assert_as_eager(clipped, make, False, bad=(2, 3))
    assert len(calls) == 2 * 2 * 7
