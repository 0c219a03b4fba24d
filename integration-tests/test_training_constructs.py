"""Training constructs through `compile()`: regions, checkpointing, custom functions, hooks, randomness, errors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from reports import captured
from torch import nn
from torch.utils.checkpoint import checkpoint

import compile_api

EAGER_RANDOM = {"fallback_random": True}


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def no_grad_region(x, y):
    with torch.no_grad():
        scale = x.abs().mean()
    return x * scale + y


def detached(x, y):
    return x.detach() * y + (x * 2).detach().sin()


def autocast_region(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y.t()
    return z.float() * 2


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x + 0.125


def custom_function(x, y):
    return Cube.apply(x) * y


def part(x, y):
    return F.gelu(x @ y).exp()


def checkpointed(x, y):
    return checkpoint(part, x, y, use_reentrant=False) * 2


def written_input(x, y):
    z = x * 2
    z[1:].mul_(y[1:])
    return z.sin(), z.t()


def same_twice(x, y):
    z = x * y
    return z, z, x, z.view(-1)


CONSTRUCTS = [no_grad_region, detached, autocast_region, custom_function, checkpointed, written_input, same_twice]


@pytest.mark.parametrize("function", CONSTRUCTS, ids=lambda f: f.__name__)
def test_construct(function):
    torch.manual_seed(0)
    ours, theirs = [leaf(4, 4), leaf(4, 4)], []
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    compiled = compile_api.compile(function)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if function is autocast_region else {"rtol": 1e-5, "atol": 1e-6}
    for _ in range(2):
        got, expected = compiled(*ours), function(*theirs)
        got = got if isinstance(got, tuple) else (got,)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for one, other in zip(got, expected, strict=True):
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, **tolerance)
        for results in (got, expected):
            sum((r * r).sum() for r in results if r.requires_grad and not r.is_leaf).backward()
        for one, other in zip(ours, theirs, strict=True):
            assert (one.grad is None) == (other.grad is None)
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, **tolerance)
    report = compiled.report()
    assert not report.fallbacks and not report.breaks, (report.fallbacks, report.breaks)


def test_same_tensor_and_views_in_results():
    x, y = leaf(4, 4), leaf(4, 4)
    first, second, given, view = compile_api.compile(same_twice)(x, y)
    assert first is second and given is x
    assert view.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()


def test_hooks():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    seen = {}
    for name, one in (("ours", model), ("theirs", twin)):
        events = seen[name] = []
        one[0].weight.register_hook(lambda g: g * 2)
        one[2].bias.register_post_accumulate_grad_hook(lambda p, events=events: events.append(p.grad.clone()))
        one[1].register_forward_hook(lambda module, args, result: result * 3)
    compiled = compile_api.compile(model)
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    twin(x).sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(seen["ours"], seen["theirs"])


def test_dropout_with_eagers_random_numbers():
    def net(x, w):
        return F.dropout(F.relu(F.dropout(x, 0.2) @ w), 0.5)

    x, w = torch.randn(16, 8), leaf(8, 8)
    twin = w.detach().clone().requires_grad_()
    compiled = compile_api.compile(net, options=EAGER_RANDOM)
    for seed in range(3):
        torch.manual_seed(seed)
        got = compiled(x, w)
        torch.manual_seed(seed)
        expected = net(x, twin)
        torch.testing.assert_close(got, expected)
        got.sum().backward(), expected.sum().backward()
    torch.testing.assert_close(w.grad, twin.grad)


def test_dropout_is_generated_and_consistent():
    compiled = compile_api.compile(lambda x: F.dropout(x, 0.25))
    x = torch.ones(4000).requires_grad_()
    result = compiled(x)
    result.sum().backward()
    torch.testing.assert_close(x.grad, result.detach())
    assert 0.2 < float((result == 0).float().mean()) < 0.3
    report = compiled.report()
    assert not report.externs and not report.fallbacks


def outcome(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error)
    return None


def test_errors_are_eagers():
    def write(x):
        return x.mul_(2)

    assert outcome(compile_api.compile(write), leaf(3)) == outcome(write, leaf(3)) is not None

    x = leaf(3)
    compiled = compile_api.compile(torch.nn.functional.silu)

    def twice(function):
        loss = function(x).sum()
        loss.backward()
        loss.backward()

    assert outcome(twice, compiled) == outcome(twice, F.silu) is not None

    def misshapen(function):
        function(x).backward(torch.ones(4))

    ours, theirs = outcome(misshapen, compiled), outcome(misshapen, F.silu)
    assert ours is not None and theirs is not None and ours[0] is theirs[0]
    assert "Mismatch in shape: grad_output[0] has a shape of torch.Size([4])" in ours[1]


def test_gradient_of_one_input_and_unused_results():
    def two(x, y):
        return x.sin() * y, x.cos()

    x, y = leaf(3), leaf(3)
    compiled = compile_api.compile(two)
    compiled(x, y)[1].sum().backward()
    assert y.grad is None
    torch.testing.assert_close(x.grad, -x.detach().sin())
    (gradient,) = torch.autograd.grad(compiled(x, y)[0].sum(), [y])
    torch.testing.assert_close(gradient, x.detach().sin())


@pytest.mark.parametrize("budget, share", [(1.0, 0.6), (0.3, 0.3)])
def test_memory_budget(budget, share):
    """What a compiled step keeps for the backward pass, as autograd sees it, against eager."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, activation="gelu", batch_first=True)
    x = torch.randn(4, 32, 64)

    def kept(module):
        outside = {p.untyped_storage()._cdata for p in layer.parameters()} | {x.untyped_storage()._cdata}
        found = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in outside:
                found[storage._cdata] = (storage.nbytes(), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(x)
        return sum(size for size, _ in found.values())

    eager = kept(layer)
    compiled = compile_api.compile(layer, options={"memory_budget": budget})
    compiled(x).sum().backward()
    assert kept(compiled) <= share * eager
    assert not compiled.report().fallbacks


def product_in_float32(x, w):
    with torch.autocast("cpu", enabled=False):
        exact = x.float() @ w.float()
    return exact * 2, x @ w


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("backward_inside", [False, True])
def test_regions_without_autocast_inside_one_with_it(backend, backward_inside):
    """A graph's casts are in it: its operators run outside autocast, which would cast their operands again."""
    compiled = compile_api.compile(product_in_float32, backend=backend, fullgraph=True)
    for enabled in (False, True, False, True):
        grads = []
        for function in (compiled, product_in_float32):
            torch.manual_seed(1)
            x, w = torch.randn(33, 65, requires_grad=True), torch.randn(65, 17, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                exact, rough = function(x, w)
                if backward_inside:
                    (exact.sum() + rough.float().sum()).backward()
            if not backward_inside:
                (exact.sum() + rough.float().sum()).backward()
            grads.append((exact.detach(), rough.detach(), x.grad, w.grad))
        (ours, *rest), (theirs, *others) = grads
        torch.testing.assert_close(ours, theirs)  # in float32, though the region around it is not
        torch.testing.assert_close(rest, others, rtol=2e-2, atol=0.1)
        assert ours.dtype == torch.float32
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("enabled", [True, False])
def test_an_inner_step_of_meta_learning(enabled):
    """Gradients with a history, also inside of ``no_grad``."""

    def adapted_loss(weight, x):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad((x @ weight).tanh().sum(), [weight], create_graph=True)
        return (x @ (weight - 0.1 * slope)).square().sum()

    compiled = compile_api.compile(adapted_loss)
    weight, x = torch.randn(3, 2, requires_grad=True), torch.randn(4, 3)
    with torch.set_grad_enabled(enabled):
        ours, theirs = compiled(weight, x), adapted_loss(weight, x)
    torch.testing.assert_close(ours, theirs)
    if enabled:
        torch.testing.assert_close(torch.autograd.grad(ours, weight), torch.autograd.grad(theirs, weight))
    assert not compiled.report().fallbacks
    assert len(captured(compiled.report())) == 1
