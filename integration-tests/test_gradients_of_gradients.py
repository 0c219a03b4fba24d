"""Gradients, and gradients of gradients, of compiled regions with respect to their inputs and their results: eager's.

Every program is called in every situation, eagerly and compiled, in float64. A result may be a view, an input, used again
inside; the caller may hook it, drop it, write to it. Where a situation cannot be had, the error says so; which those are,
is written here.
"""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

import compile_api
from aot_autograd.runtime.inference import new_seed
from aot_autograd.runtime.redraw import Redraw


class Cubed(torch.autograd.Function):
    """Not the derivative of what it computes, so that a derivative of the computation shows; saves its result too."""

    @staticmethod
    def forward(ctx, x):
        result = x * x * x
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, result = ctx.saved_tensors
        return gradient * (2 * x + result.sin())


def used_inside(x, y):
    h = (x * y).tanh()
    return h, (h * x).sin().sum(0)


def two_levels(x, y):
    h = (x * 0.5).exp()
    r = (h * y).sigmoid()
    return h, r, r.softmax(-1) * h


def detached_in_part(x, y):
    with torch.no_grad():
        scale = x.abs().amax()
    h = (x * scale).tanh()
    return h, (h.detach() * y).sin() * h


def written_inside(x, y):
    h = x.sin()
    h[0] = y.tanh()
    h.mul_(y)
    return h, h.exp()


def normed(x, y):
    return F.batch_norm(x * y, None, None, y, y.sin(), training=True).tanh()


def dropped(x, y):
    h = F.dropout(x.tanh(), 0.4)
    return h, (h * y).sigmoid()


PROGRAMS = {
    "tanh": lambda x, y: (x * 0.5).tanh(),
    "sine": lambda x, y: (x * y).sin(),
    "relu": lambda x, y: (x * y).relu() * y,
    "softmax": lambda x, y: (x * y).softmax(-1),
    "log_softmax": lambda x, y: (x @ y.diag()).log_softmax(-1),
    "power": lambda x, y: (x.abs() + 1) ** (y.abs() + 0.5),
    "norm": lambda x, y: (x * y).norm(dim=-1, keepdim=True) * x,
    "std": lambda x, y: (x * y).std(0),
    "amax": lambda x, y: (x * y).amax(-1),
    "prod": lambda x, y: (x * y).prod(-1),
    "logsumexp": lambda x, y: (x * y).logsumexp(0),
    "layer norm": lambda x, y: F.layer_norm(x, (3,), y, y.cos()),
    "gelu": lambda x, y: F.gelu(x * y),
    "silu": lambda x, y: F.silu(x * y),
    "convolution": lambda x, y: F.conv1d(x[None], y.expand(2, 4, 3), padding=1).sigmoid(),
    "batch norm": normed,
    "dropout": dropped,
    "custom": lambda x, y: Cubed.apply(x * y),
    "custom and more": lambda x, y: (lambda h: (h, h.tanh()))(Cubed.apply(x * y)),
    "used inside": used_inside,
    "two levels": two_levels,
    "detached in part": detached_in_part,
    "written inside": written_inside,
    "chunks": lambda x, y: (x * y).tanh().chunk(2),
    "a view of a result": lambda x, y: (lambda h: (h, h.t()))((x * y).tanh()),
    "a part of a result": lambda x, y: (lambda h: (h[1:], h[:3] * y))((x * y).sigmoid()),
    "two views": lambda x, y: (lambda h: (h.t(), h[1:]))((x * y).tanh()),
    "an input": lambda x, y: (x, (x * y).tanh()),
    "a view of an input": lambda x, y: (x.t(), (x * y).tanh()),
    "one result twice": lambda x, y: (lambda h: (h, h))((x * y).tanh()),
    "a result without gradient": lambda x, y: ((x * y).tanh(), x.detach().sin()),
}


def of(results):
    """The results, and a loss that uses them all with different weights and is not linear in them."""
    results = results if isinstance(results, (tuple, list)) else (results,)
    loss = sum(
        (result * result * torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view(result.shape)).sum()
        for result in results
    )
    return results, loss


def seeds(results):
    return [result for result in results if result.requires_grad]


def grad(gradients, wanted, **keywords):
    total = sum((gradient.sin() * (1 + k)).sum() for k, gradient in enumerate(gradients) if gradient is not None)
    return torch.autograd.grad(total, wanted, allow_unused=True, **keywords)


def once(function, x, y):
    """First gradients alone, also of each result with respect to all of them."""
    results, loss = of(function(x, y))
    found = list(torch.autograd.grad(loss, (x, y, *seeds(results)), retain_graph=True, allow_unused=True))
    for result in seeds(results):
        alone = torch.autograd.grad(result.sin().sum(), seeds(results), retain_graph=True, allow_unused=True)
        found += [*alone, *torch.autograd.grad(result.cos().sum(), (x, y), retain_graph=True, allow_unused=True)]
    return found


def once_watched(function, x, y):
    """First gradients through results with hooks, some of which retain theirs; and again without."""
    results, loss = of(function(x, y))
    handles = [result.register_hook(clipped) for result in seeds(results)[:-1]]
    for result in seeds(results)[1:]:
        result.retain_grad()
    loss.backward(retain_graph=True)
    found = [x.grad.clone(), None if y.grad is None else y.grad.clone()]
    found += [result.grad.clone() for result in seeds(results)[1:]]
    for handle in handles:
        handle.remove()
    loss.backward()
    return *found, x.grad, y.grad


def once_gone(function, x, y):
    results, loss = of(function(x, y))
    for result in seeds(results):
        result.register_hook(clipped)
    del results, result
    loss.backward()
    return x.grad, y.grad


def wrt_results(function, x, y):
    results, loss = of(function(x, y))
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, seeds(results))


def wrt_all(function, x, y):
    results, loss = of(function(x, y))
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, y, *seeds(results)))


def again_and_again(function, x, y):
    results, loss = of(function(x, y))
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    kept = grad(first, (x, *seeds(results)), retain_graph=True)
    more = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *kept, *grad(first, seeds(results), retain_graph=True), *grad([*first, *more], (x, y, *seeds(results)))


def third(function, x, y):
    results, loss = of(function(x, y))
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    second = grad(first, (x, *seeds(results)), create_graph=True)
    return *second, *grad(second, (x, y, *seeds(results)))


def of_one_result(function, x, y):
    """The loss uses the last result alone; the others are differentiated with respect to."""
    results, _ = of(function(x, y))
    used = seeds(results)[-1]
    first = torch.autograd.grad((used * used).sum(), (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, *seeds(results)))


def linear_loss(function, x, y):
    """Whose tangents do not depend on the results."""
    results, _ = of(function(x, y))
    first = torch.autograd.grad(sum(r.sum() for r in seeds(results)), (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, *seeds(results)))


def backward(function, x, y):
    results, loss = of(function(x, y))
    for result in results:
        if not result.is_leaf:
            result.retain_grad()
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    (loss + sum(g.square().sum() for g in first if g is not None)).backward()
    return x.grad, y.grad, *(result.grad for result in seeds(results))


def clipped(gradient):
    return gradient.clamp(-0.3, 0.3)


def hooked(function, x, y):
    results, loss = of(function(x, y))
    for result in seeds(results):
        result.register_hook(clipped)
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, y, *seeds(results)))


def hooked_between(function, x, y):
    results, loss = of(function(x, y))
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    handles = [result.register_hook(clipped) for result in seeds(results)]
    kept = grad(first, (x, y, *seeds(results)), retain_graph=True)
    for handle in handles:
        handle.remove()
    return *kept, *grad(first, (x, y))


def gone(function, x, y):
    results, loss = of(function(x, y))
    for result in seeds(results):
        result.register_hook(clipped)
    del results, result
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, y))


def gone_unwatched(function, x, y):
    loss = of(function(x, y))[1]
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, y))


def written_after(function, x, y):
    """An error in eager where the result was saved."""
    results, _ = of(function(x, y))
    result = seeds(results)[-1]
    loss = result.sum()
    result.mul_(2)
    first = torch.autograd.grad(loss + (result * result).sum(), (x, y), create_graph=True, allow_unused=True)
    return *first, *grad(first, (x, y, result))


def written_between(function, x, y):
    """Results are written; not those that are a part of what eager saves, of which compiled ones may have no base."""
    results, loss = of(function(x, y))
    wanted = [result.view_as(result) for result in seeds(results)]
    first = torch.autograd.grad(loss, (x, y), create_graph=True, allow_unused=True)
    for result in seeds(results):
        whole = result.untyped_storage().nbytes() == result.numel() * result.element_size()
        if not result.is_leaf and result._base is None and whole:
            with torch.no_grad():
                result.mul_(2)
    return *first, *grad(first, (x, y, *wanted))


def inner_leaf(function, x, y):
    """The inputs are no leaves, and differentiated with respect to."""
    x, y = x * 1.5, y.sin()
    return wrt_all(function, x, y)


def one_input(function, x, y):
    """A second input without a gradient."""
    y = y.detach()
    results, loss = of(function(x, y))
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    return first, *grad([first], (x, *seeds(results)))


def twice_in_a_chain(function, x, y):
    """A region's result is the next one's input."""
    middle = seeds(of(function(x, y))[0])[-1]
    middle = middle.sum() + x
    results, loss = of(function(middle, y))
    first = torch.autograd.grad(loss, (x, middle), create_graph=True)
    return *first, *grad(first, (x, y, middle, *seeds(results)))


SITUATIONS = [once, once_watched, once_gone, wrt_results, wrt_all, again_and_again, third, of_one_result, linear_loss, backward, hooked, hooked_between, gone,
              gone_unwatched, written_after, written_between, inner_leaf, one_input, twice_in_a_chain]  # fmt: skip


@functools.cache
def compiled(name):
    return compile_api.compile(PROGRAMS[name])


def outcome(situation, function):
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    y = (torch.rand(3, dtype=torch.double) + 0.5).requires_grad_()
    try:
        return situation(function, x, y), None
    except RuntimeError as error:
        return None, str(error)


def drawn(program):
    """The program with the random numbers that a compiled call draws."""

    def run(x, y):
        with Redraw({torch.device("cpu"): new_seed(torch.device("cpu"))}):
            return program(x, y)

    return run


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name, situation):
    program = PROGRAMS[name]
    wanted, error = outcome(situation, drawn(program) if "dropout" in name else program)
    for _ in range(2):
        found, refused = outcome(situation, compiled(name))
        if error is None:
            assert refused is None, refused
            assert [v is None for v in found] == [v is None for v in wanted]
            torch.testing.assert_close(found, wanted)
        else:
            assert refused is not None
    report = compiled(name).report()
    assert report.kernels and not report.fallbacks and not report.breaks


def test_hooks_of_what_a_gradient_does_not_depend_on_are_not_called():
    """A parameter that the first gradients are linear in, or not made of, has no second gradient, and no hook of it runs."""

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
            self.free = torch.nn.Parameter(torch.linspace(1, 2, 4))

        def forward(self, x):
            return (x * self.weight).sin() + self.free

    def seen(compiled: bool) -> tuple[list[torch.Tensor | None], torch.Tensor | None]:
        net = Two()
        called: list[torch.Tensor | None] = []
        net.free.register_hook(lambda gradient: called.append(gradient) or gradient * 0.5)
        call = compile_api.compile(net) if compiled else net
        out = call(torch.linspace(0, 1, 4))
        gradients = torch.autograd.grad((out * out.detach()).sum(), [net.weight], create_graph=True)
        sum((g * g).sum() for g in gradients).backward()
        return called, net.weight.grad

    (called, gradient), (want, expected) = seen(True), seen(False)
    assert called == want == []
    torch.testing.assert_close(gradient, expected)


MASK = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.double)
ONE_RESULT = {
    **{name: PROGRAMS[name] for name in list(PROGRAMS)[:15]},
    "sum": lambda x, y: x + y,
    "input itself": lambda x, y: x * 1,
    "dense the other way": lambda x, y: (x * y).t().contiguous().t(),
    "masked": lambda x, y: x * MASK * y,
    "masked, then more": lambda x, y: ((x * MASK).tanh() * y).flip(1),
    "zeros": lambda x, y: x * (y * 0) - x * x * 0,
    "chosen": lambda x, y: torch.where(MASK > 0, x * x, x * y) * x,
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], (x * y)[None], x[None])[0] - x,
}
LOSSES = {
    "sum": torch.sum,
    "exp": lambda out: out.exp().mean(),
    "norm": lambda out: (out + 0.25).norm(),
    "smooth": lambda out: F.smooth_l1_loss(out, out.detach().roll(1, 0) * MASK[:, :1] if out.dim() == 2 else out.detach()),
}


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ONE_RESULT)
def test_layouts_and_signs_of_zeros_are_eagers(name, loss, layout):
    """A value gets all its gradients before it hands on their sum; the sum of what two ways hand on has other zeros."""
    compiled = compile_api.compile(ONE_RESULT[name])
    found = []
    for function in (ONE_RESULT[name], compiled):
        torch.manual_seed(0)
        x = torch.randn(4, 3, dtype=torch.double) * MASK.roll(1)
        x = (x.t().contiguous().t() if layout == "columns" else x).requires_grad_()
        y = (torch.rand(3, dtype=torch.double) - 0.5).requires_grad_()
        first = torch.autograd.grad(LOSSES[loss](function(x, y)), (x, y), create_graph=True, allow_unused=True)
        second = grad(first, (x, y)) if any(g is not None and g.requires_grad for g in first) else ()
        result = LOSSES[loss](function(x, y))
        (slope,) = torch.autograd.grad(result, x, create_graph=True)
        (slope.norm() + result).backward()
        found.append([*first, *second, x.grad])
    for eager, ours in zip(*found, strict=True):
        assert (eager is None) == (ours is None)
        if eager is not None:
            torch.testing.assert_close(ours, eager, equal_nan=True)
            assert ours.stride() == eager.stride()
            zeros = (eager == 0) & (ours == 0)
            assert torch.equal(ours.signbit() & zeros, eager.signbit() & zeros)
    assert compiled.report().graphs and not compiled.report().fallbacks


class Root(torch.autograd.Function):
    """The square root's power of three, whose second derivative is infinite at 0: zeros for a gradient would show."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sqrt()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / x


FUNCTIONS = {
    "first": lambda x, e, w: (Root.apply(x) * e) @ (w.t() @ w),
    "behind one more": lambda x, e, w: (Root.apply(x * 2) * e).sin() @ w,
    "twice": lambda x, e, w: (Root.apply(Root.apply(x)) * e) @ (w.t() @ w),
    "in the middle": lambda x, e, w: Root.apply(x * e) @ (w.t() @ w),
    "two results": lambda x, e, w: ((Root.apply(x) * e) @ (w.t() @ w), Root.apply(e) @ w),
}


@pytest.mark.parametrize("wanted", [(2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_no_gradient_comes_to_get_no_zeros(name, wanted):
    """What a second run is asked for in its middle does not go on behind it: 0 / 0 is no number, 1 / 0 is infinite."""

    def step(f):
        x = torch.tensor([[0.0, 1.0, 4.0], [2.0, 0.0, 3.0]], requires_grad=True)
        e = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0]], requires_grad=True)
        w = torch.tensor([[1.0, 2.0, -1.0], [0.5, -2.0, 1.0], [3.0, 1.0, 0.25]], requires_grad=True)
        inputs = [x, e, w]
        out = f(*inputs)
        total = sum((r * r).sum() for r in (out if isinstance(out, tuple) else (out,)))
        first = torch.autograd.grad(total, [inputs[k] for k in wanted], create_graph=True)
        sum((g * g).sum() for g in first).backward()
        return [*(g.detach() for g in first), x.grad, e.grad, w.grad]

    compiled = compile_api.compile(FUNCTIONS[name])
    for ours, eager in zip(step(compiled), step(FUNCTIONS[name]), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert torch.equal(torch.signbit(ours) | ours.isnan(), torch.signbit(eager) | eager.isnan())
    assert not compiled.report().fallbacks and compiled.report().kernels


_VECTORIZED = {
    "hessian": lambda f, x: torch.autograd.functional.hessian(lambda z: f(z).square().sum(), x, vectorize=True),
    "jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True),
    "jacobian with a graph": lambda f, x: torch.autograd.functional.jacobian(f, x, vectorize=True, create_graph=True),
    "batched with a graph": lambda f, x: torch.autograd.grad(
        f(x), x, torch.eye(6).reshape(6, 2, 3), is_grads_batched=True, create_graph=True
    )[0],
}


@pytest.mark.parametrize("kind", _VECTORIZED)
@pytest.mark.parametrize("net", ["pointwise", "linear", "attention"])
def test_many_gradients_at_once(kind, net):
    """``is_grads_batched`` gives a backward pass tensors of PyTorch's older kind of batches, through which a Function has
    no history: what should have one is refused, and not left without."""
    torch.manual_seed(0)
    nets = {
        "pointwise": lambda x: x.sin() * x.exp(),
        "linear": torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)),
        "attention": lambda x: (x @ x.t()).softmax(-1) @ x,
    }
    x = torch.randn(2, 3, requires_grad=True)
    compiled = compile_api.compile(nets[net])
    if kind.endswith("graph"):
        with pytest.raises(RuntimeError, match="is_grads_batched asks for many gradients, each with a graph"):
            _VECTORIZED[kind](compiled, x)
        inside = compile_api.compile(lambda x: torch.func.jacrev(nets[net])(x))  # as the documentation says
        torch.testing.assert_close(inside(x), torch.func.jacrev(nets[net])(x))
        return
    torch.testing.assert_close(_VECTORIZED[kind](compiled, x), _VECTORIZED[kind](nets[net], x))
    assert kind == "hessian" or "is_grads_batched" in compiled.report().verdict
