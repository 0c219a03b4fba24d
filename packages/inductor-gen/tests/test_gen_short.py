"""On CPUs: reductions of a few steps, through which each vector lane goes by itself, maxima of small windows, and what is
inside of borders."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, check
from torch.utils._python_dispatch import TorchDispatchMode

import inductor_gen
from inductor_gen.kernel.nest import STRIP

POOL = torch.ops.aten.max_pool2d_with_indices.default
UNROLLED = "#pragma GCC unroll"


def text(case: Any) -> str:
    return "\n".join(k.source for k in case.compiled.kernels)


def normed(p: Any, x: Any, dims: tuple[int, ...]) -> Any:
    """Deviations from a mean of dimensions, over their root mean square: three loops."""
    if x.dtype == torch.bfloat16:
        x = p.convert(x, torch.float32)
    count = math.prod(x.shape[d] for d in dims)
    rest = tuple(d for d in range(x.ndim) if d not in dims)
    spread = lambda y: p.broadcast(p.div(y, float(count)), tuple(x.shape), rest)
    d = p.sub(x, spread(p.sum(x, dims)))
    return p.mul(d, p.rsqrt(p.add(spread(p.sum(p.mul(d, d), dims)), 1e-5)))


def softmax(p: Any, x: Any, dims: tuple[int, ...]) -> Any:
    rest = tuple(d for d in range(x.ndim) if d not in dims)
    e = p.exp(p.sub(x, p.broadcast(p.amax(x, dims), tuple(x.shape), rest)))
    return p.div(e, p.broadcast(p.sum(e, dims), tuple(x.shape), rest))


FUNCTIONS = {
    "sum": lambda p, x, dims: p.sum(x, dims),
    "amax": lambda p, x, dims: p.amax(x, dims),
    "amin": lambda p, x, dims: p.amin(p.mul(x, -1.0), dims),
    "norm": normed,
    "softmax": softmax,
}

#: Shapes and the dimensions that are reduced: innermost, outermost, in between, two of them.
PLACES = {
    "last": (lambda n: (300, n), (1,)),
    "first": (lambda n: (n, 300), (0,)),
    "middle": (lambda n: (3, n, 70), (1,)),
    "two": (lambda n: (300, 2, n // 2 or 1), (1, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_steps_are_unrolled_inside_the_lane(name: str, place: str, n: int, dtype: torch.dtype) -> None:
    shape, dims = PLACES[place][0](n), PLACES[place][1]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(n)).to(dtype)
    case = check(lambda p, x: FUNCTIONS[name](p, x, dims), [x])
    steps = math.prod(shape[d] for d in dims)
    assert (UNROLLED in text(case)) == (steps <= STRIP)


@pytest.mark.parametrize("name", ["amax", "amin", "sum"])
def test_special_numbers_among_few(name: str) -> None:
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    x = torch.cartesian_prod(*[torch.tensor(values)] * 3)
    case = check(lambda p, x: FUNCTIONS[name](p, x, (1,)), [x], exact=True)
    assert UNROLLED in text(case)


def test_sizes_that_change_are_loops() -> None:
    x = torch.randn(50, 3)
    case = check(lambda p, x: p.sum(x, (1,)), [x], dynamic={0: [1]})
    assert UNROLLED not in text(case)
    wide = torch.randn(50, 40)
    torch.testing.assert_close(case.compiled(wide)[0], wide.sum(1))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1000])
def test_rows_that_fill_no_tile(rows: int, threads: int) -> None:
    x = torch.randn(rows, 4)
    check(lambda p, x: normed(p, x, (1,)), [x], options=OPTIONS.replace(threads=threads))


# ---- maxima of windows ------------------------------------------------------------------------------------------


def pooled(x: torch.Tensor, settings: tuple[Any, ...], **options: Any) -> tuple[Any, torch.Tensor]:
    """A compiled maximum pooling between two operations, and what eager computes."""
    compute = lambda x: torch.max_pool2d(-x, *settings) * 2.0
    want = compute(x)
    env = build(
        lambda p, x: p.mul(p.aten(POOL, p.neg(x), *map(list, settings))[0], 2.0), [x], strides=[want.stride()]
    )
    return inductor_gen.compile_graph(env, options=OPTIONS.replace(**options)), want


LAYOUTS = {
    "rows": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "settings",
    [((2, 2), (2, 2)), ((2, 2), (1, 1)), ((1, 3), (2, 1)), ((4, 1), ()), ((2, 2), (3, 3), (0, 0), (2, 2))],
    ids=str,
)
def test_maxima_of_small_windows_are_loops(settings: tuple[Any, ...], layout: str, dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, -1.0, 2.5, math.inf, -math.inf, math.nan, 1.0], dtype=dtype)
    places = torch.randint(len(values), (2, 3, 12, 11), generator=torch.Generator().manual_seed(1))
    x = LAYOUTS[layout](values[places])
    compiled, want = pooled(x, settings)
    got = compiled(x)[0]
    assert "max_pool" not in compiled.source and got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    zeros = want[want == 0].signbit()
    assert torch.equal(got[want == 0].signbit(), zeros) and (zeros.any() and not zeros.all() or math.prod(settings[0]) < 3)


@pytest.mark.parametrize(
    "settings,dtype",
    [
        (((3, 3), (1, 1)), torch.float32),
        (((2, 2), (2, 2), (1, 1)), torch.float32),
        (((2, 2), (2, 2)), torch.float16),
        (((15, 15), (1, 1), (7, 7)), torch.float32),  # more elements than are ever taken apart
    ],
    ids=str,
)
def test_other_windows_stay_eagers(settings: tuple[Any, ...], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 16, 17).to(dtype)
    compiled, want = pooled(x, settings)
    assert "max_pool" in compiled.source
    torch.testing.assert_close(compiled(x)[0], want, rtol=0, atol=0)


def test_a_window_that_reaches_out_of_the_image_stays_eagers() -> None:
    x = torch.randn(2, 3, 11, 11)
    for ceil in (False, True):
        env = build(lambda p, x: p.aten(POOL, x, [2, 2], [2, 2], [0, 0], [1, 1], ceil)[0], [x])
        compiled = inductor_gen.compile_graph(env, options=OPTIONS)
        assert ("max_pool" in compiled.source) == ceil
        assert torch.equal(compiled(x)[0], torch.max_pool2d(x, 2, 2, 0, 1, ceil))


def test_an_image_without_a_batch() -> None:
    x = torch.randn(3, 8, 9)
    compiled, want = pooled(x, ((2, 2), (2, 2)))
    assert "max_pool" not in compiled.source and torch.equal(compiled(x)[0], want)


@pytest.mark.parametrize("ceil", [False, True])
def test_sizes_of_images_that_change_stay_eagers(ceil: bool) -> None:
    x = torch.randn(2, 3, 12, 12)
    env = build(lambda p, x: p.aten(POOL, x, [2, 2], [2, 2], [0, 0], [1, 1], ceil)[0], [x], dynamic={0: [2]})
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert "max_pool" in compiled.source
    other = torch.randn(2, 3, 9, 12)
    assert torch.equal(compiled(other)[0], torch.max_pool2d(other, 2, 2, 0, 1, ceil))


class Watch(TorchDispatchMode):
    """Notes whether eager's pooling gets its channels innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.innermost: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is POOL:
            self.innermost.append(args[0].stride(1) == 1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [3, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_eagers_pooling_gets_many_channels_innermost(dtype: torch.dtype, channels: int, layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(2, channels, 9, 9).to(dtype))
    compiled, want = pooled(x, ((3, 3), (2, 2), (1, 1)))
    with Watch() as watch:
        got = compiled(x)[0]
    assert got.stride() == want.stride() and torch.equal(got, want)
    assert watch.innermost == [True] if channels >= 16 else len(watch.innermost) == 1


def test_places_that_are_read_are_eagers() -> None:
    x = torch.randn(2, 3, 8, 8)
    compiled = inductor_gen.compile_graph(build(lambda p, x: p.aten(POOL, x, [2, 2]), [x]), options=OPTIONS)
    assert "max_pool" in compiled.source
    for got, want in zip(compiled(x), torch.nn.functional.max_pool2d(x, 2, return_indices=True), strict=True):
        assert torch.equal(got, want)


# ---- inside of borders ------------------------------------------------------------------------------------------


def windows(p: Any, x: Any, low: int, high: int) -> Any:
    """Sums over windows of 2x2 of an image with a border."""
    y = p.pad(x, 0, (0, 0, low, low), (0, 0, high, high))
    n, c, h, w = y.shape
    part = lambda a, b: p.slice(y, (0, 0, a, b), (n, c, h - 1 + a, w - 1 + b), (1, 1, 1, 1))
    return p.add(p.add(part(0, 0), part(0, 1)), p.add(part(1, 0), part(1, 1)))


BORDERED = {
    "windows": lambda p, x: windows(p, x, 1, 1),
    "wide": lambda p, x: windows(p, x, 4, 3),
    "above": lambda p, x: p.add(p.pad(x, 0, (0, 0, 2, 0), (0, 0, 0, 0)), 1),
    "below, of another number": lambda p, x: p.pad(p.mul(x, 2), 7, (0, 0, 0, 0), (0, 0, 3, 0)),
    "shifted": lambda p, x: p.add(
        p.pad(p.slice(x, (0, 0, 1, 0), tuple(x.shape), (1, 1, 1, 1)), 0, (0, 0, 0, 0), (0, 0, 1, 0)), x
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 6, 40), (1, 16, 3, 3), (2, 3, 1, 1), (1, 1, 2, 70)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", BORDERED)
def test_inside_of_borders_and_on_them(name: str, layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::7] = math.inf
    check(BORDERED[name], [LAYOUTS[layout](x)], exact=True)


def test_a_loop_without_conditions_runs_inside_of_a_border() -> None:
    x = torch.randn(2, 64, 9, 9).to(memory_format=torch.channels_last)
    case = check(BORDERED["windows"], [x])
    inside, _, border = text(case).partition("else {")
    assert border and " ? in" in border
    assert "#pragma omp simd" in inside and "#pragma omp simd" in border


@pytest.mark.parametrize("n", [0, 1, 5])
def test_an_image_that_is_border_alone(n: int) -> None:
    x = torch.full((n, 3, 0, 4), math.nan)
    check(BORDERED["wide"], [x])


def test_sizes_of_bordered_images_that_change() -> None:
    x = torch.randn(2, 3, 6, 6)
    case = check(BORDERED["windows"], [x], dynamic={0: [2, 3]})
    for shape in ((2, 3, 1, 1), (2, 3, 50, 50)):
        y = torch.randn(shape)
        want = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(y, (1, 1, 1, 1)), 2, 1) * 4
        torch.testing.assert_close(case.compiled(y)[0], want)
