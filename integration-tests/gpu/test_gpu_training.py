"""Whole training loops on a GPU: optimizers, autocast with a gradient scaler, sizes that change, dropout, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from judge import error, to_float64
from on_gpu import DEVICE, gpu_case
from reports import captured
from torch import nn
from torch.utils.checkpoint import checkpoint

import compile_api

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(DEVICE)


def batches(count):
    return [(torch.randn(8, 16, device=DEVICE), torch.randint(0, 4, (8,), device=DEVICE)) for _ in range(count)]


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_whole_step_as_one_function(optimizer, mode):
    def train(model, opt, scheduler, x, y):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        scheduler.step()
        return loss

    models = [network(), network()]
    data = batches(5)
    compiled = compile_api.compile(train, mode=mode)
    for model, function in zip(models, (compiled, train), strict=True):
        opt = OPTIMIZERS[optimizer](model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
        for x, y in data:
            function(model, opt, scheduler, x, y)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert compiled.report().kernels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("what", ["model", "step"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_gradient_scaler(what, mode, dtype):
    """Scale, unscale, clip, step and update as eager does, a step with an infinite gradient skipped."""

    def step(model, opt, scaler, x, y, factor):
        opt.zero_grad()
        with torch.autocast("cuda", dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * factor).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()

    def exact_step(model, opt, x, y, factor):
        opt.zero_grad()
        (nn.functional.cross_entropy(model(x.double()), y) * factor).backward()
        if factor == 1.0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

    ours, theirs, exact = network(), network(), to_float64(network())
    called = ours if what == "step" else compile_api.compile(ours, mode=mode)
    stepped = compile_api.compile(step, mode=mode) if what == "step" else step
    opts = [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9) for m in (ours, theirs, exact)]
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2) for _ in range(2)]
    for number, (x, y) in enumerate(batches(8)):
        factor = float("inf") if number == 3 else 1.0
        stepped(called, opts[0], scalers[0], x, y, factor)
        step(theirs, opts[1], scalers[1], x, y, factor)
        exact_step(exact, opts[2], x, y, factor)
        assert scalers[0].get_scale() == scalers[1].get_scale(), number
    assert scalers[0].get_scale() != 2.0**10
    for a, b, c in zip(ours.parameters(), theirs.parameters(), exact.parameters(), strict=True):
        assert error(a, c) <= 3 * error(b, c) + 1e-4 * float(c.abs().max())
    report = (stepped if what == "step" else called).report()
    assert report.kernels
    assert what == "step" or not report.fallbacks, report.fallbacks


def test_train_and_eval_on_one_module():
    case = gpu_case("convnet", small=True)
    twin = copy.deepcopy(case.model)
    compiled = compile_api.compile(case.model)
    x = case.args[0]
    for _ in range(2):
        for training in (True, False):
            compiled.train(training), twin.train(training)
            with torch.set_grad_enabled(training):
                torch.testing.assert_close(compiled(x), twin(x), rtol=1e-3, atol=1e-3)
    assert len(captured(compiled.report())) == 2 and not compiled.report().fallbacks


def test_ten_sizes_compile_at_most_twice():
    case = gpu_case("transformer", small=True)
    twin = copy.deepcopy(case.model)
    compiled = compile_api.compile(case.model, fullgraph=True)
    for length in (16, 24, 32, 40, 48, 64, 80, 96, 33, 17):
        ids = torch.randint(0, 1000, (2, length), device=DEVICE)
        for model in (compiled, twin):
            model.zero_grad(set_to_none=True)
            model(ids).square().mean().backward()
        for ours, theirs in zip(case.model.parameters(), twin.parameters(), strict=True):
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    assert len(captured(compiled.report())) <= 2 and not compiled.report().fallbacks


def test_dropout_forward_and_backward_agree():
    def function(x):
        return nn.functional.dropout(x, 0.3) * 2

    compiled = compile_api.compile(function, fullgraph=True)
    for _ in range(3):
        x = torch.ones(1 << 14, device=DEVICE, requires_grad=True)
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, y.detach())
        assert abs(float((y == 0).float().mean()) - 0.3) < 0.03


@pytest.mark.parametrize("reentrant", [False])
def test_checkpointed_block(reentrant):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

        def forward(self, x):
            return x + checkpoint(self.inner, x, use_reentrant=reentrant)

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(DEVICE)
    same_gradients(model, torch.randn(8, 16, device=DEVICE))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.factor * torch.where(x > 0, 1.0, 0.5), None


class WithScaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return Scaled.apply(self.linear(x).sin(), 3.0) + 1


def test_custom_function():
    same_gradients(WithScaled().to(DEVICE), torch.randn(8, 16, device=DEVICE))


def test_frozen_parameters_and_hooks():
    model = network()
    model[0].weight.requires_grad_(False)
    called = []
    model[3].weight.register_hook(lambda g: called.append(None) or g * 2)
    same_gradients(model, torch.randn(8, 16, device=DEVICE), twin_hook=lambda g: g * 2)
    assert called


def same_gradients(model, x, twin_hook=None):
    twin = copy.deepcopy(model)
    if twin_hook is not None:
        twin[3].weight._backward_hooks = None
        twin[3].weight.register_hook(twin_hook)
    compiled = compile_api.compile(model)
    for _ in range(2):
        for net, call in ((model, compiled), (twin, twin)):
            net.zero_grad()
            call(x).square().mean().backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("name", ["bert", "transformer"])
def test_peak_memory_of_training_is_at_most_eagers(name):
    case = gpu_case(name, torch.bfloat16, batch=8, length=256)
    case.model.train()

    def peak(call):
        for _ in range(2):
            case.model.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            out = call(*case.args, **case.kwargs)
            (out if isinstance(out, torch.Tensor) else out[0]).float().square().mean().backward()
        return torch.cuda.max_memory_allocated()

    eager = peak(case.model)
    assert peak(compile_api.compile(case.model)) <= eager


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell], ids=lambda cell: cell.__name__)
def test_recurrent_cells(cell, bias):
    """PyTorch's own kernels of a cell, forward and backward, in one graph over several steps."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = cell(8, 12, bias=bias), nn.Linear(12, 4)

        def forward(self, xs):
            state = None
            for x in xs:
                state = self.cell(x.tanh(), state)
            return self.out(state[0] if isinstance(state, tuple) else state).square().mean()

    torch.manual_seed(0)
    theirs = Steps().to(DEVICE)
    ours = copy.deepcopy(theirs)
    xs = torch.randn(3, 5, 8, device=DEVICE)
    compiled = compile_api.compile(ours, fullgraph=True)
    losses = compiled(xs), theirs(xs)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert not compiled.report().fallbacks and compiled.report().kernels
