"""``torch.func``, ``torch.autograd.grad`` and dual numbers in compiled programs: one graph, no break, no fallback, kernels
generated for the work; alone, nested, on sizes that change, and differentiated from outside."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from reports import captured
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)  # fmt: skip
from torch.utils._pytree import tree_leaves

import compile_api
from prims.errors import Unsupported

DOUBLE = torch.float64


def _scalar(v, w):
    return (torch.tanh(v @ w) * v.sin()).pow(2).sum()


def _vector(v, w):
    return torch.tanh(v @ w) * v


def _gradient(x, w):
    return grad(_scalar)(x[0], w), grad(_scalar, argnums=(1, 0))(x[1], w)


def _value_and_auxiliary(x, w):
    gradient, (value, auxiliary) = grad_and_value(lambda v: (_scalar(v, w), {"v": v * 2}), has_aux=True)(x)
    return gradient, value, auxiliary["v"]


def _third_derivative(x, w):
    inner = lambda v: grad(lambda u: _scalar(u, w))(v).pow(3).sum()
    return grad(lambda v: grad(inner)(v).sin().sum())(x)


def _pullback(x, w):
    results, pull = vjp(lambda v, u: {"a": _vector(v, u), "b": (v * 2,)}, x, w)
    return results["a"], pull({"a": x.cos(), "b": (x,)}), pull({"a": x, "b": (x.exp(),)})


def _pushforward(x, w):
    value, tangent = jvp(lambda v, u: (_vector(v, u), v.sum()), (x, w), (x.cos(), w * 2))
    return value[0] * tangent[1], tangent[0], value[1]


def _duals(x, w):
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(_vector(forward_ad.make_dual(x, x + 1), w))
        return found.primal, found.tangent


def _forward_over_reverse(x, w):
    return jvp(grad(lambda v: _scalar(v, w)), (x,), (x.cos(),))


def _reverse_over_forward(x, w):
    return grad(lambda v: jvp(lambda u: _scalar(u, w), (v,), (v.sin(),))[1])(x)


def _jacobians(x, w):
    v = x[0]
    return (
        jacrev(_vector)(v, w),
        jacfwd(_vector, argnums=(0, 1))(v, w),
        jacrev(lambda u: (u.sin(), u @ w), chunk_size=2)(v),
    )


def _hessians(x, w):
    second = (hessian(_scalar), jacrev(jacrev(_scalar)), jacfwd(jacfwd(_scalar)), jacrev(jacfwd(_scalar)))
    return [derivative(x[0], w) for derivative in second]


def _batched(x, w):
    total = vmap(_scalar, in_dims=(0, None))(x, w)
    turned = vmap(lambda d, k: {"a": d["x"] * k, "b": [d["x"].sum()]}, in_dims=({"x": 1}, None), out_dims=-1)(
        {"x": x}, 3
    )
    shared = vmap(lambda v: (v * 2, w.sum()), out_dims=(1, None))(x)
    return total, turned["a"], turned["b"][0], shared


def _batched_in_chunks(x, w):
    return vmap(lambda v: _vector(v, w), chunk_size=2)(x)


def _batches_in_batches(x, w):
    return vmap(lambda v: vmap(lambda u: (u * v).sum() * 2 + u[0])(x))(x), vmap(vmap(lambda a: a.sin() * 2))(x)


def _gradients_of_examples(x, w):
    return vmap(grad(_scalar, argnums=(0, 1)), in_dims=(0, None))(x, w)


def _derivatives_in_batches(x, w):
    return vmap(hessian(_scalar), in_dims=(0, None))(x, w), vmap(jacfwd(_vector), in_dims=(0, None))(x, w)


def _laplacian_of_batches(x, w):
    return vmap(lambda v: torch.trace(hessian(lambda u: _scalar(u, w))(v)))(x)


def _batches_in_derivatives(x, w):
    def loss(u):
        return vmap(lambda v: _scalar(v, u))(x).sum() + vmap(grad(lambda v: _scalar(v, u)))(x).pow(2).sum()

    return grad(loss)(w)


def _places_in_examples(x, w):
    index = x.argmax(1)
    values, places = vmap(lambda v: v.sort())(x)
    return vmap(lambda v, i: v[i] * 2)(x, index), values * 2, places, vmap(lambda v: torch.where(v > 0, v, v.exp()))(x)


def _examples_written_in_place(x, w):
    return vmap(lambda v: v.clone().mul_(2).add_(v @ w))(x)


def _by_autograd(x, w):
    inputs = x.detach().clone().requires_grad_()
    u = torch.tanh(inputs @ w).pow(2).sum(1)
    (slope,) = torch.autograd.grad(u.sum(), inputs, create_graph=True)
    curvature = [torch.autograd.grad(slope[:, k].sum(), inputs, create_graph=True)[0][:, k] for k in range(2)]
    return sum(curvature) + slope.sum(1)


def _by_autograd_of_several(x, w):
    a, b = x * 2, x.sin()
    found = torch.autograd.grad(((a * b).sum(), b @ w), (a, b, w), (None, torch.ones_like(x)), create_graph=True)
    spare = torch.autograd.grad(a.sum(), (a, w), allow_unused=True, retain_graph=True)
    assert spare[1] is None
    return *found, spare[0] * 2


PROGRAMS = [
    _gradient, _value_and_auxiliary, _third_derivative, _pullback, _pushforward, _duals, _forward_over_reverse,
    _reverse_over_forward, _jacobians, _hessians, _batched, _batched_in_chunks, _batches_in_batches,
    _gradients_of_examples, _derivatives_in_batches, _laplacian_of_batches, _batches_in_derivatives, _places_in_examples,
    _examples_written_in_place, _by_autograd, _by_autograd_of_several,
]  # fmt: skip
#: Programs in which gradients are asked for a tensor that has none in inference.
NEED_GRADIENTS = (_by_autograd, _by_autograd_of_several)


def _only_scalars(program):
    """A loss can be given to ``grad``; the first argument of some is a batch."""
    return program in (_value_and_auxiliary, _third_derivative, _reverse_over_forward)


def _inputs(rows, requires_grad):
    generator = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, 4, generator=generator), torch.randn(4, 4, generator=generator) * 0.5
    return [value.to(DOUBLE).requires_grad_(requires_grad) for value in (x, w)]


def _check(found, expected):
    found, expected = tree_leaves(found), tree_leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
        assert (a.requires_grad, a.stride()) == (b.requires_grad, b.stride())


def _check_report(report, graphs):
    assert report.verdict == "compiled", str(report)
    assert not report.breaks and not report.fallbacks and report.kernels
    assert len(captured(report)) == graphs


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_programs(program, training):
    if program in NEED_GRADIENTS and not training:
        pytest.skip("asks for a gradient of what has none")
    compiled = compile_api.compile(program, fullgraph=True)
    sizes = (5, 6, 9) if program is not _batched_in_chunks else (5, 6)
    for rows in sizes:  # the second one makes the size symbolic
        given, plain = _inputs(rows, training), _inputs(rows, training)
        found, expected = compiled(*given), program(*plain)
        _check(found, expected)
        if training:
            for results in (found, expected):
                leaves = [leaf for leaf in tree_leaves(results) if leaf.requires_grad]
                sum(
                    (leaf * torch.arange(1.0, leaf.numel() + 1).view(leaf.shape).cos()).sum() for leaf in leaves
                ).backward()
                assert leaves
            for a, b in zip(given, plain, strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-7, atol=1e-9)
    _check_report(compiled.report(), 2)


def _classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(DOUBLE)


class _Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.linear(self.convolution(x.view(-1, 1, 4, 4)).relu().flatten(1))


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("images", [False, True], ids=["linear", "convolution"])
def test_gradients_of_examples_of_a_model(images, rows):
    torch.manual_seed(0)
    model = _Images().to(DOUBLE) if images else _classifier()
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    x, y = torch.randn(rows, 16 if images else 4, dtype=DOUBLE), torch.randint(0, 3, (rows,))

    def loss(state, x, y):
        return F.cross_entropy(functional_call(model, state, (x.unsqueeze(0),)), y.unsqueeze(0))

    def clipped(state, x, y):
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(state, x, y)
        norm = sum(g.view(rows, -1).pow(2).sum(1) for g in gradients.values()).sqrt()
        scale = (1 / norm).clamp(max=1)
        return {name: torch.einsum("n,n...->...", scale, g) for name, g in gradients.items()}

    compiled = compile_api.compile(clipped, fullgraph=True)
    _check(compiled(state, x, y), clipped(state, x, y))
    _check_report(compiled.report(), 1)


@pytest.mark.parametrize("own_inputs", [False, True])
def test_ensembles(own_inputs):
    models = [_classifier() for _ in range(3)]
    for seed, model in enumerate(models):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    state = stack_module_state(models)
    x = torch.randn(3, 5, 4, dtype=DOUBLE) if own_inputs else torch.randn(5, 4, dtype=DOUBLE)

    def answers(parameters, buffers, x):
        call = lambda p, b, v: functional_call(models[0], (p, b), (v,))
        return vmap(call, in_dims=(0, 0, 0 if own_inputs else None))(parameters, buffers, x)

    compiled = compile_api.compile(answers, fullgraph=True)
    found, expected = compiled(*state, x), answers(*state, x)
    _check(found, expected)
    slopes = [torch.autograd.grad(r.pow(3).sum(), list(state[0].values())) for r in (found, expected)]
    for a, b in zip(*slopes, strict=True):
        torch.testing.assert_close(a, b)
    _check_report(compiled.report(), 1)


class _HeatEquation(nn.Module):
    """The residual of ``u_t = u_xx`` of a network, by ``torch.func`` or by ``torch.autograd``."""

    def __init__(self, functional):
        super().__init__()
        self.functional = functional
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)).to(DOUBLE)

    def forward(self, x, t):
        if self.functional:
            u = lambda a, b: self.net(torch.stack([a, b])).squeeze(-1)
            u_t, u_xx = vmap(grad(u, 1))(x, t), vmap(grad(grad(u)))(x, t)
        else:
            x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
            u = self.net(torch.stack([x, t], 1)).sum()
            u_x, u_t = torch.autograd.grad(u, (x, t), create_graph=True)
            (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        return (u_t - u_xx).pow(2).mean()


@pytest.mark.parametrize("functional", [False, True], ids=["autograd", "func"])
def test_physics_informed_training(functional):
    torch.manual_seed(0)
    x, t = torch.rand(20, dtype=DOUBLE), torch.rand(20, dtype=DOUBLE)
    histories = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = _HeatEquation(functional)
        call = compile_api.compile(model, fullgraph=True) if compiles else model
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = call(x, t)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        histories.append(losses)
    assert histories[0] == pytest.approx(histories[1], rel=1e-8)
    _check_report(call.report(), 1)


def test_random_numbers_in_batches():
    x = torch.ones(64, 50)
    same = compile_api.compile(lambda x: vmap(lambda v: F.dropout(v), randomness="same")(x), fullgraph=True)(x)
    different = compile_api.compile(lambda x: vmap(lambda v: F.dropout(v), randomness="different")(x), fullgraph=True)(
        x
    )
    assert set(same.unique().tolist()) == set(different.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(same, same[:1].expand_as(same))
    assert not torch.equal(different, different[:1].expand_as(different))
    assert 0.45 < different.eq(0).double().mean() < 0.55
    with pytest.raises(RuntimeError, match="randomness"):
        compile_api.compile(lambda x: vmap(lambda v: F.dropout(v))(x))(x)


def test_gradient_modes():
    def modes(x, w):
        with torch.no_grad():
            outer = grad(_scalar)(x[0], w), jvp(lambda v: _vector(v, w), (x,), (x,)), w.sum()

        def inner(v):
            with torch.no_grad():
                fixed = v**2
            return (v * fixed + v.detach() * v).sum()

        return outer, grad(inner)(x), grad(lambda v: grad(inner)(v).sum())(x)

    for training in (False, True):
        compiled = compile_api.compile(modes, fullgraph=True)
        _check(compiled(*_inputs(4, training)), modes(*_inputs(4, training)))
        _check_report(compiled.report(), 1)


def test_a_history_that_has_been_freed():
    def step(w, x):
        loss = torch.tanh(x @ w).pow(2).sum()
        return loss, torch.autograd.grad(loss, w)[0]

    compiled = compile_api.compile(step, fullgraph=True)
    x, w = _inputs(5, True)
    found, expected = compiled(w, x.detach()), step(w, x.detach())
    _check(found, expected)
    for loss, _ in (found, expected):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert not any("backward" in graph.name for graph in compiled.report().graphs)
    _check_report(compiled.report(), 1)


def test_gradients_that_come_from_before_the_region():
    def slope(w, h):
        return torch.autograd.grad((h * w).sum(), w)[0] + 1

    compiled = compile_api.compile(slope)
    w = torch.ones(3, requires_grad=True)
    assert torch.equal(compiled(w, w * 3), slope(w, w * 3))
    hooked = compile_api.compile(lambda w: torch.autograd.grad((w * 2).sum(), w)[0])
    assert torch.equal(hooked(w), torch.full((3,), 2.0))
    w.register_hook(lambda gradient: gradient * 10)
    assert torch.equal(hooked(w), torch.full((3,), 20.0))


def test_what_a_vmapped_function_does_outside():
    class Counter:
        calls = 0

    def count(v):
        Counter.calls += 1
        seen.append(v.shape)
        return v * Counter.calls

    compiled = compile_api.compile(lambda x: vmap(count)(x) + Counter.calls)
    for calls in (1, 2, 3):
        seen: list = []
        assert torch.equal(compiled(torch.ones(2, 3)), torch.full((2, 3), 2.0 * calls))
        assert Counter.calls == calls and seen == [torch.Size([3])]


def _keeps_an_example(x):
    kept = []
    vmap(lambda v: (kept.append(v * 2), v)[1])(x)
    return len(kept)


def _writes_to_its_argument(x):
    y = x + 1
    return vmap(lambda v: v.mul_(2))(y) + y


def _branches_in_an_example(x):
    return vmap(lambda v: v * 2 if v.sum() > 0 else v)(x)


def _prints(x):
    return grad(lambda v: (torch.compiler.is_compiling(), v.sum().item(), (v * v).sum())[2])(x[0])


def _raises_in_an_example(x):
    return vmap(lambda v: v @ torch.ones(7))(x)


def _wrong_in_dims(x):
    return vmap(lambda v: v, in_dims=5)(x)


def _not_a_scalar(x):
    return grad(lambda v: v * 2)(x)


def _no_gradient(x):
    return torch.autograd.grad(x.sum(), x)


def _writes_to_what_it_reads(x):
    total = torch.zeros(3)
    return grad(lambda v: total.add_(v).sum())(x[0])


def _keeps_statistics(x):
    norm = nn.BatchNorm1d(3)
    return grad(lambda v: norm(v).pow(3).sum())(x)


def _raises_an_error_of_its_own(x):
    def raises(v):
        raise ValueError(f"of shape {tuple(v.shape)}")

    try:
        return vmap(raises)(x)
    except ValueError as error:
        return x + len(str(error))


@pytest.mark.parametrize("program", [
    _keeps_an_example, _writes_to_its_argument, _branches_in_an_example, _prints, _raises_in_an_example, _wrong_in_dims,
    _not_a_scalar, _no_gradient, _writes_to_what_it_reads, _keeps_statistics, _raises_an_error_of_its_own,
], ids=lambda f: f.__name__.strip("_"))  # fmt: skip
def test_what_is_left_to_eager(program):
    """Equal results or errors, by whatever graphs."""

    def run(fn):
        try:
            return fn(torch.linspace(0.0, 1.0, 12).view(4, 3))
        except Exception as error:
            return type(error), str(error).partition("\n")[0]

    found, expected = run(compile_api.compile(program)), run(program)
    assert type(found) is type(expected)
    assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected


def test_a_reason_names_the_function_and_the_line():
    with pytest.raises(Unsupported) as caught:
        compile_api.compile(_writes_to_its_argument, fullgraph=True)(torch.ones(2, 3))
    assert "vmap" in str(caught.value) and __file__ in str(caught.value)


def test_operators_without_a_batching_rule():
    distances = lambda x: vmap(lambda v: F.kl_div(v.log_softmax(-1), v.softmax(-1), reduction="sum"))(x)
    few, many = torch.randn(4, 3), torch.randn(100, 3)
    compiled = compile_api.compile(distances, fullgraph=True)
    torch.testing.assert_close(compiled(few), distances(few))
    _check_report(compiled.report(), 1)
    compiled = compile_api.compile(distances)
    torch.testing.assert_close(compiled(many), distances(many))
    assert "no batching rule for aten::kl_div" in str(compiled.report())
