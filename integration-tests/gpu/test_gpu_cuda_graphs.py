"""``mode="reduce-overhead"``: replays that are safe to hold, see new weights, draw new numbers, and backward too."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from on_gpu import DEVICE, gpu_case, without_dropout
from torch import nn
from zoo import tensors

import compile_api


def graphed(fn, **kw):
    return compile_api.compile(fn, mode="reduce-overhead", **kw)


def replays(monkeypatch):
    """A list that grows by one with every replay."""
    found = []
    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (found.append(self), plain(self))[1])
    return found


def small_model():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(DEVICE)


def test_results_may_be_held(monkeypatch):
    seen = replays(monkeypatch)
    compiled = graphed(lambda x: (x.sin() + 1, x * 2), fullgraph=True)
    held = []
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(100, device=DEVICE)
            held.append((x, compiled(x)))
    for x, (a, b) in held:
        torch.testing.assert_close(a, x.sin() + 1)
        torch.testing.assert_close(b, x * 2)
    assert len(seen) >= 6 and not compiled.report().fallbacks


def test_results_as_inputs_of_the_next_call(monkeypatch):
    seen = replays(monkeypatch)
    compiled = graphed(lambda x: x * 1.5 + 1, fullgraph=True)
    ours = theirs = torch.ones(10, device=DEVICE)
    with torch.no_grad():
        for _ in range(8):
            ours, theirs = compiled(ours), theirs * 1.5 + 1
    torch.testing.assert_close(ours, theirs)
    assert len(seen) >= 6


def test_parameters_updated_in_place_and_replaced(monkeypatch):
    seen = replays(monkeypatch)
    model = small_model()
    compiled = graphed(model, fullgraph=True)
    x = torch.randn(8, 16, device=DEVICE)
    with torch.no_grad():
        for step in range(10):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            if step == 6:
                model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
            else:
                model[0].weight.mul_(1.1)
            model.load_state_dict(model.state_dict())
    assert len(seen) >= 6 and not compiled.report().fallbacks


def test_input_storage_may_be_reused_and_inputs_stay():
    compiled = graphed(lambda x: x.exp())
    x = torch.zeros(50, device=DEVICE)
    with torch.no_grad():
        for step in range(6):
            x.fill_(float(step))
            torch.testing.assert_close(compiled(x), torch.full_like(x, step).exp())
            assert bool((x == step).all())


def test_random_numbers_advance(monkeypatch):
    seen = replays(monkeypatch)
    compiled = graphed(lambda x: nn.functional.dropout(x, 0.5), fullgraph=True)
    x = torch.ones(4096, device=DEVICE)
    with torch.no_grad():
        found = [compiled(x) for _ in range(6)]
    for k, one in enumerate(found):
        assert abs(float((one == 0).float().mean()) - 0.5) < 0.05
        assert not any(torch.equal(one, other) for other in found[:k])
    assert len(seen) >= 4


def test_training_steps_with_an_optimizer(monkeypatch):
    seen = replays(monkeypatch)
    model = small_model()
    twin = copy.deepcopy(model)
    compiled = graphed(model, fullgraph=True)
    for net, call in ((model, compiled), (twin, twin)):
        torch.manual_seed(1)
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(8):
            opt.zero_grad()
            x, y = torch.randn(8, 16, device=DEVICE), torch.randint(0, 4, (8,), device=DEVICE)
            nn.functional.cross_entropy(call(x), y).backward()
            opt.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(seen) >= 12 and not compiled.report().fallbacks


def test_gradients_may_be_held_and_accumulate():
    model = small_model()
    twin = copy.deepcopy(model)
    compiled = graphed(model)
    held = []
    for _ in range(6):
        x = torch.randn(8, 16, device=DEVICE)
        ours, theirs = compiled(x).square().mean(), twin(x).square().mean()
        held.append((torch.autograd.grad(ours, list(model.parameters()), retain_graph=True),
                     torch.autograd.grad(theirs, list(twin.parameters()), retain_graph=True)))  # fmt: skip
        ours.backward(), theirs.backward()
    for ours, theirs in held:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_two_forwards_before_their_backwards():
    model = small_model()
    twin = copy.deepcopy(model)
    compiled = graphed(model)
    for _ in range(5):
        x, y = torch.randn(8, 16, device=DEVICE), torch.randn(8, 16, device=DEVICE)
        for net, call in ((model, compiled), (twin, twin)):
            net.zero_grad()
            first, second = call(x).square().sum(), call(y).sin().sum()
            first.backward()
            second.backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_several_graphs_in_a_call(monkeypatch):
    seen = replays(monkeypatch)

    def function(x):
        y = x.sin() * 2
        if y.sum() > 1e9:
            return y
        z = y.cos() + x
        print(end="")
        return z * y

    compiled = graphed(function)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(64, device=DEVICE)
            torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.report().breaks) >= 1 and len(seen) >= 8


def test_sizes_that_change(monkeypatch):
    seen = replays(monkeypatch)
    compiled = graphed(lambda x: x.softmax(-1) + 1)
    with torch.no_grad():
        for _ in range(4):
            for size in (8, 16, 24, 8):
                x = torch.randn(4, size, device=DEVICE)
                torch.testing.assert_close(compiled(x), x.softmax(-1) + 1)
    assert len(seen) >= 8 and not compiled.report().fallbacks


def test_mutated_inputs_and_buffers():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(DEVICE).train()
    twin = copy.deepcopy(model)
    compiled = graphed(model)
    for _ in range(6):
        x = torch.randn(4, 3, 16, 16, device=DEVICE)
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)

    def bump(x, total):
        total.add_(x)
        return total * 2

    compiled = graphed(bump)
    total = torch.zeros(10, device=DEVICE)
    with torch.no_grad():
        for step in range(1, 7):
            torch.testing.assert_close(
                compiled(torch.ones(10, device=DEVICE), total), torch.full_like(total, 2.0 * step)
            )
            assert float(total[0]) == step


def test_views_of_inputs_and_results():
    compiled = graphed(lambda x: (x.view(-1), x.t(), (x + 1).t()[1:]))
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(6, 4, device=DEVICE)
            a, b, c = compiled(x)
            assert a.data_ptr() == x.data_ptr() and b.stride() == x.t().stride()
            torch.testing.assert_close(c, (x + 1).t()[1:])


def test_two_threads():
    compiled = graphed(lambda x: (x.sin() + x).softmax(-1))
    failures = []

    def work(seed):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        try:
            with torch.no_grad():
                for _ in range(50):
                    x = torch.randn(32, 64, device=DEVICE, generator=generator)
                    torch.testing.assert_close(compiled(x), (x.sin() + x).softmax(-1))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_two_streams():
    compiled = graphed(lambda x: x.sin() * 2)
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    x = torch.randn(1000, device=DEVICE)
                    torch.testing.assert_close(compiled(x), x.sin() * 2)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("name", ["transformer", "convnet"])
def test_training_models(name, mode):
    case = gpu_case(name, small=True)
    without_dropout(case.model).train()
    twin = copy.deepcopy(case.model)
    compiled = compile_api.compile(case.model, mode=mode, fullgraph=True)
    opts = [torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9) for net in (case.model, twin)]
    for _ in range(5):
        for call, opt in zip((compiled, twin), opts, strict=True):
            opt.zero_grad()
            tensors(call(*case.args))[0].float().square().mean().backward()
            opt.step()
    for ours, theirs in zip(case.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert not compiled.report().fallbacks
