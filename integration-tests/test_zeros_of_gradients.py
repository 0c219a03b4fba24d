"""Zeros of gradients and results have eager's sign: kernels that add to zeros give none that is negative, others keep what they get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import compile_api

SHAPES = {1: (1, 2, 6), 2: (1, 2, 4, 4), 3: (1, 1, 3, 3, 3)}
Case = tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]]


def resampled(mode: str, size: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.interpolate(x, size=size, mode=mode)


def padded(mode: str, *pad: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.pad(x, pad, mode=mode)


MODES = {"nearest": 1, "nearest-exact": 2, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3, "area": 2}
CASES: dict[str, Case] = {
    **{f"{m} to {n}": (SHAPES[d], resampled(m, n)) for m, d in MODES.items() for n in (2, SHAPES[d][-1], 5, 8)},
    **{f"{m} {pad}": (SHAPES[2], padded(m, *pad)) for m in ("reflect", "replicate") for pad in ((2, 1, 1, 1), (0, 0, 0, 1))},
    "mean of windows": (SHAPES[2], lambda x: F.avg_pool2d(x, 3, 2, 1)),
    "mean of windows apart": (SHAPES[2], lambda x: F.avg_pool2d(x, 2)),
    "adaptive means": (SHAPES[2], lambda x: F.adaptive_avg_pool2d(x, 3)),
    "adaptive means that divide": (SHAPES[1], lambda x: F.adaptive_avg_pool1d(x, 2)),
    "maxima of windows": (SHAPES[2], lambda x: F.max_pool2d(x, 2)),
    "response norm": ((1, 4, 3), lambda x: F.local_response_norm(x, 2)),
    "max": ((5,), torch.max),
    "min": ((5,), torch.min),
    "median": ((5,), torch.median),
    "nanmedian": ((5,), torch.nanmedian),
    "amax": ((3, 4), lambda x: x.amax(0)),
    "sign and more": ((4,), lambda x: (x.sgn(), x * 2)),
    "more and sign": ((4,), lambda x: (x * 2, x.sgn(), x.sin())),
    "sign of what has no derivative": ((4,), lambda x: x.log().sgn()),
    "sign divided": ((4,), lambda x: (1 / x).sgn()),
    "expanded sign": ((4,), lambda x: (x.sgn().expand(3, 4), x * 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_zeros_have_eagers_sign(case: str) -> None:
    """The gradients of the results are -0.0, 0.0, some of either and of other numbers; infinite where nothing is weighed."""
    shape, fn = CASES[case]
    x = ((torch.arange(torch.Size(shape).numel()) * 7 % 11 - 5) / 4).reshape(shape).requires_grad_()
    compiled = compile_api.compile(fn)
    for number in (-0.0, 0.0, None, *([float("inf")] if shape not in SHAPES.values() else [])):
        found = []
        for f in (fn, compiled):
            results = f(x)
            results = [t for t in (results if isinstance(results, tuple) else (results,)) if t.requires_grad]
            mixed = [((torch.arange(t.numel()) * 5 % 3 - 1) * -1.0).reshape(t.shape) for t in results]
            given = mixed if number is None else [torch.full_like(t, number) for t in results]
            found.append(torch.autograd.grad(results, [x], given)[0])
        eager, ours = found
        assert bool((eager.isnan() == ours.isnan()).all())
        zero = (eager == 0) & (ours == 0)
        assert bool((eager.signbit() == ours.signbit())[zero].all()), (number, eager, ours)
        assert ours.stride() == eager.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_zeros_of_products_with_a_vector_of_changing_sizes(layout: torch.memory_format, dtype: torch.dtype) -> None:
    """The gradient of rows by a vector is a product of numbers; of a batch of matrices a sum, which begins with 0."""
    compiled = compile_api.compile(torch.matmul)
    for size in (1, 2, 3):
        vector = torch.tensor([-1.0, 0.0, 2.0])[:size].to(dtype)
        gradients = []
        for f in (torch.matmul, compiled):
            x = torch.ones(2, 7, 3, size, dtype=dtype).to(memory_format=layout).requires_grad_()
            weights = (torch.arange(42) % 3 - 1).reshape(2, 7, 3).to(dtype)
            gradients += torch.autograd.grad(f(x, vector), x, weights)
        assert torch.equal(gradients[0], gradients[1])
        assert torch.equal(gradients[0].signbit(), gradients[1].signbit())


@pytest.mark.parametrize("reduce", [torch.sum, lambda y: y.sum(0), lambda y: y[0], lambda y: y.t().diagonal()])
def test_zeros_of_one_gradient_of_two(reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Where no gradient comes to a result, nothing is added to what comes to it by the other, however that is laid out."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, reduce(y)

    gradients = []
    for f in (program, compile_api.compile(program)):
        x = torch.ones(3, 3, requires_grad=True)
        result = f(x)[1]
        result.backward(torch.full_like(result, -0.0))
        gradients.append(x.grad)
    assert torch.equal(gradients[0].signbit(), gradients[1].signbit())


RESULTS: dict[str, Case] = {
    **{name: case for name, case in CASES.items() if "sign" not in name and name not in ("max", "min")},
    "means of windows of one": (SHAPES[1], lambda x: F.avg_pool1d(x, 1)),
    "means of windows with gaps": (SHAPES[3], lambda x: F.avg_pool3d(x, 1, 2)),
    "powers of windows": (SHAPES[2], lambda x: F.lp_pool2d(x, 1, 1)),
    "adaptive means of one": (SHAPES[2], lambda x: F.adaptive_avg_pool2d(x, (4, 4))),
    "adaptive maxima": (SHAPES[1], lambda x: F.adaptive_max_pool1d(x, 6)),
    "sums": ((1, 4), lambda x: (x.sum(0), x.mean(0), x.cumsum(0), x.prod(0), x.nansum(0), x.logsumexp(0))),
    "scattered": ((4,), lambda x: torch.zeros(4).scatter_add(0, torch.arange(4), x)),
    "a product of matrices": ((4, 1), lambda x: (x @ torch.ones(1, 3), x.t() @ torch.ones(4, 2))),
    "convolution": (SHAPES[2], lambda x: F.conv2d(x, torch.ones(1, 2, 1, 1))),
    "chosen channels": (SHAPES[2], lambda x: (F.pixel_shuffle(x.view(1, 8, 2, 2), 2), F.channel_shuffle(x, 2))),
    "folded": ((1, 4, 4), lambda x: F.fold(x, (4, 4), (2, 2), stride=2)),
    "blended": ((4,), lambda x: (x.lerp(x, 0.5), torch.addcmul(x, x, x), torch.hypot(x, x), x.clamp(-1, 1))),
    "bags": ((4, 3), lambda x: F.embedding_bag(torch.tensor([[0, 1]]), x, mode="sum")),
}  # fmt: skip


@pytest.mark.parametrize("case", RESULTS)
def test_zeros_of_results_have_eagers_sign(case: str) -> None:
    """Of what is -0.0, or zeros of either sign (of which the larger is any, by a kernel's order)."""
    shape, fn = RESULTS[case]
    signs = torch.where(torch.arange(torch.Size(shape).numel()) % 3 == 1, 0.0, -0.0).reshape(shape)
    compiled = compile_api.compile(fn)
    for x in (torch.full(shape, -0.0), signs):
        results = [f(x) for f in (fn, compiled)]
        for eager, ours in zip(*(t if isinstance(t, tuple) else (t,) for t in results), strict=True):
            zero = (eager == 0) & (ours == 0)
            assert bool((eager.signbit() == ours.signbit())[zero].all()), (eager, ours)
            assert bool((zero | (eager == ours)).all())


def between(h: torch.Tensor) -> torch.Tensor:
    """A result of what is written over again."""
    result = h.neg_() * 2
    h.mul_(-2.0)
    return result


def filled(h: torch.Tensor) -> torch.Tensor:
    """The old numbers' gradient is what comes by the other result alone."""
    other = h * -3
    h.fill_(2.0)
    return other


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "silu": lambda h: F.silu(h, inplace=True),
    "multiplied": lambda h: h.mul_(-2.0),
    "a power, and a result": lambda h: (h.pow_(2), h * 3)[1],
    "a power, and a result of a part": lambda h: (h.pow_(2), h[:, 0] * 3)[1],
    "a power, and a result of it all": lambda h: (h.pow_(2), h.sum())[1],
    "twice, and a result between": between,
    "a part": lambda h: h[:, 1:].mul_(-1.0).sum(),
    "twice": lambda h: h.neg_().mul_(-2.0),
    "zeroed": lambda h: h.zero_(),
    "filled, beside a result": filled,
    "copied": lambda h: h.copy_(h.flip(0)),
    "nothing but a look": lambda h: (h.detach().abs(), None)[1],
}


@pytest.mark.parametrize("name", WRITES)
def test_zeros_of_what_a_region_writes_over(name: str) -> None:
    """Gradients of -0.0, 0.0 and others for what was written, or for the result, whose hooks see what eager's see."""
    write = WRITES[name]

    def program(h: torch.Tensor) -> torch.Tensor | None:
        return write(h)

    compiled = compile_api.compile(program)
    for weighed in ("written", "result", "both"):
        found: list[list[torch.Tensor]] = []
        for f in (program, compiled):
            leaf = torch.linspace(-3, 3, 12).reshape(3, 4).requires_grad_()
            h, seen = leaf * 1, []
            h.register_hook(seen.append)
            result = f(h)
            assert h.grad_fn is not None
            results = {"written": [h], "result": [result], "both": [h, result]}[weighed]
            results = [t for t in results if t is not None and t.requires_grad]
            if results:
                given = [((torch.arange(t.numel()) * 5 % 4 - 1.0).relu() * -1.0).reshape(t.shape) for t in results]
                (gradient,) = torch.autograd.grad(results, leaf, given)
                seen.append(gradient)
            found.append(seen)
        assert len(found[0]) == len(found[1])
        for theirs, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert torch.equal(ours.signbit(), theirs.signbit()), weighed
    report = compiled.report()
    assert report.graphs and not report.fallbacks
