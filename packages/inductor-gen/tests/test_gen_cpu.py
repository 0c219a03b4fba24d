"""Which of PyTorch's CPU kernels runs, in which layout, and kernels whose loops the size of the data decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, check
from torch.utils._python_dispatch import TorchDispatchMode

import inductor_gen
from inductor_gen.extern import cpu

CONV = torch.ops.aten.convolution.default
needs_onednn = pytest.mark.skipif(cpu.onednn() is None, reason="this build of PyTorch or processor has no oneDNN")


def conv(p: Any, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
    two = lambda v: [v, v]
    return p.aten(CONV, x, w, b, two(stride), two(padding), [1, 1], False, [0, 0], groups)


#: x, weight, stride, padding, groups, and the function in the generated code that computes it.
SHAPES = {
    "3x3": ((2, 16, 20, 18), (24, 16, 3, 3), 1, 1, 1, "torch_convolution"),
    "depthwise": ((1, 32, 20, 18), (32, 1, 5, 5), 2, 2, 32, "torch_convolution"),
    "grouped": ((1, 32, 20, 18), (32, 8, 3, 3), 1, 1, 4, "torch_convolution"),
    "1x1, heavy": ((1, 96, 5, 5), (160, 96, 1, 1), 1, 0, 1, "_conv1x1"),
    "1x1, heavy, stride 2": ((2, 96, 9, 7), (160, 96, 1, 1), 2, 0, 1, "_strided_conv1x1"),
    "1x1, light": ((2, 8, 30, 30), (8, 8, 1, 1), 1, 0, 1, "torch_convolution"),
    "one pixel": ((1, 64, 1, 1), (16, 64, 1, 1), 1, 0, 1, "torch_convolution"),
    "patches": ((1, 256, 6, 5), (256, 256, 3, 3), 1, 1, 1, "library_linear"),
    "patches, stride 2": ((2, 256, 7, 8), (256, 256, 3, 3), 2, 1, 1, "library_linear"),
    "patches, no padding": ((1, 64, 9, 9), (512, 64, 5, 5), 1, 0, 1, "library_linear"),
}

FORMATS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "sliced": lambda x: torch.cat([x, x], 3)[..., : x.shape[3]],
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}


@needs_onednn
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("slow", [False, True], ids=["blas", "slow blas"])
def test_convolutions_have_eagers_values_and_strides(
    monkeypatch: pytest.MonkeyPatch, slow: bool, name: str, form: str, bias: bool
) -> None:
    monkeypatch.setattr(cpu, "blas_is_slow", lambda: slow)
    shape, weight, stride, padding, groups, function = SHAPES[name]
    if name.startswith("patches") and not slow:
        function = "torch_convolution"
    x, w = FORMATS[form](torch.randn(shape)), torch.randn(weight) / 8
    inputs = [x, w, torch.randn(weight[0])] if bias else [x, w]

    def fn(p: Any, x: Any, w: Any, *b: Any) -> Any:
        y = p.maximum(conv(p, p.add(x, 0.5), w, *(b or (None,)), stride, padding, groups), 0.0)
        return y, conv(p, x, w, None, stride, padding, groups)

    def eager(*inputs: torch.Tensor) -> list[torch.Tensor]:
        x, w, *b = inputs
        y = torch.conv2d(x + 0.5, w, *(b or (None,)), stride, padding, 1, groups).relu()
        return [y, torch.conv2d(x, w, None, stride, padding, 1, groups)]

    wanted = eager(*inputs)
    env = build(fn, inputs, strides=[y.stride() for y in wanted])
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert f"f_{function}(" in compiled.source
    exact = eager(*(t.double() for t in inputs))
    for got, theirs, truth in zip(compiled(*inputs), wanted, exact, strict=True):
        assert got.stride() == theirs.stride()
        allowed = 3 * (theirs.double() - truth).abs().max() + 1e-6 * truth.abs().max()
        assert (got.double() - truth).abs().max() <= allowed


@needs_onednn
def test_images_stay_channels_last_between_convolutions() -> None:
    """Only the way in and the way out change the layout, in kernels that do other work anyway."""

    def fn(p: Any, x: Any, v: Any, w: Any) -> Any:
        y = p.maximum(conv(p, x, v, padding=1), 0.0)
        return p.add(p.maximum(conv(p, y, w, padding=1), 0.0), y)

    inputs = [torch.randn(1, 8, 32, 32), torch.randn(32, 8, 3, 3), torch.randn(32, 32, 3, 3)]
    env = build(fn, inputs)
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert len(compiled.kernels) == 3  # the image, the first maximum, the second with the sum
    assert compiled.source.count("moved_32768_1_1024_32(") == 2  # both convolutions' results
    (got,) = compiled(*inputs)
    y = torch.conv2d(inputs[0], inputs[1], padding=1).relu()
    torch.testing.assert_close(got, torch.conv2d(y, inputs[2], padding=1).relu() + y, rtol=1e-4, atol=1e-3)
    assert got.is_contiguous()


@needs_onednn
def test_pooling_follows_its_convolutions() -> None:
    pool = torch.ops.aten.max_pool2d_with_indices.default

    def fn(p: Any, x: Any, w: Any) -> Any:
        return p.aten(pool, p.maximum(conv(p, x, w, padding=1), 0.0), [3, 3], [2, 2], [1, 1])

    x, w = torch.randn(1, 16, 24, 24), torch.randn(32, 16, 3, 3)
    wanted = pool(torch.conv2d(x, w, padding=1).relu(), [3, 3], [2, 2], [1, 1])
    env = build(fn, [x, w], strides=[y.stride() for y in wanted])
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert "(18432, 1, 768, 32)" in compiled.source
    for got, theirs in zip(compiled(x, w), wanted, strict=True):
        torch.testing.assert_close(got, theirs, rtol=1e-4, atol=1e-4)
        assert got.stride() == theirs.stride()


@needs_onednn
def test_convolutions_of_any_batch() -> None:
    def fn(p: Any, x: Any, v: Any, w: Any) -> Any:
        return conv(p, p.maximum(conv(p, x, v, padding=1), 0.0), w)

    v, w = torch.randn(96, 16, 3, 3) / 8, torch.randn(160, 96, 1, 1) / 8
    env = build(fn, [torch.randn(3, 16, 6, 6), v, w], dynamic={0: (0,)})
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert "_conv1x1" in compiled.source
    for batch in (3, 2, 9):
        x = torch.randn(batch, 16, 6, 6)
        (got,) = compiled(x, v, w)
        torch.testing.assert_close(got, torch.conv2d(torch.conv2d(x, v, padding=1).relu(), w), rtol=1e-4, atol=1e-4)
        assert got.is_contiguous()


@needs_onednn
def test_training_keeps_the_layouts_that_eager_saves() -> None:
    from dataclasses import replace

    def fn(p: Any, x: Any, w: Any) -> Any:
        return conv(p, p.maximum(x, 0.0), w, padding=1), p.maximum(x, 0.0)

    env = build(fn, [torch.randn(1, 8, 24, 24), torch.randn(16, 8, 3, 3)])
    saved = replace(env.outputs[1], kind="saved")
    compiled = inductor_gen.compile_graph(env.replace(outputs=(env.outputs[0], saved)), options=OPTIONS)
    assert "(9216, 1, 384, 16)" not in compiled.source


@pytest.fixture
def slow_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "blas_is_slow", lambda: True)


@needs_onednn
@pytest.mark.usefixtures("slow_blas")
@pytest.mark.parametrize("left", ["rows", "columns", "sliced"])
@pytest.mark.parametrize("right", ["rows", "columns", "sliced"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_products_by_onednn(left: str, right: str, bias: bool) -> None:
    def laid_out(form: str, rows: int, columns: int) -> torch.Tensor:
        match form:
            case "rows":
                return torch.randn(rows, columns)
            case "columns":
                return torch.randn(columns, rows).t()
        return torch.randn(rows, columns + 24)[:, 8 : columns + 8]

    a, b, c = laid_out(left, 96, 192), laid_out(right, 192, 160), torch.randn(160)

    def fn(p: Any, a: Any, b: Any, c: Any) -> Any:
        y = p.aten(torch.ops.aten.addmm.default, c, a, b) if bias else p.aten(torch.ops.aten.mm.default, a, b)
        return p.maximum(y, 0.0)

    compiled = inductor_gen.compile_graph(build(fn, [a, b, c]), options=OPTIONS)
    assert "f_linear(" in compiled.source
    exact = a.double() @ b.double() + (c.double() if bias else 0)
    (got,) = compiled(a, b, c)
    assert (got.double() - exact.relu()).abs().max() <= 1e-6 * exact.abs().max() * 8
    assert got.is_contiguous()
    close = inductor_gen.compile_graph(build(fn, [a, b, c]), options=OPTIONS.replace(numerics="eager_close"))
    assert "f_linear(" not in close.source


class Operators(TorchDispatchMode):
    """The names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


MM = torch.ops.aten.mm.default
AMD, INTEL = {"vendor_id": "AuthenticAMD"}, {"vendor_id": "GenuineIntel", "flags": "avx2 avx512f"}


@needs_onednn
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(
    ("facts", "threads", "rows", "inner", "columns", "lies", "by_onednn"),
    [
        (AMD, 2, 32, 1024, 2048, "columns", True),
        (AMD, 2, 32, 1024, 2048, "rows", False),
        (AMD, 2, 32, 1024, 2047, "columns", False),
        (AMD, 2, 1, 1024, 2048, "columns", False),
        (AMD, 2, 129, 1024, 2048, "columns", False),
        (AMD, 1, 32, 1024, 2048, "columns", False),
        (AMD, 1, 32, 512, 1 << 15, "columns", True),
        (INTEL, 1, 16, 512, 1 << 15, "columns", True),
        (INTEL, 4, 2, 512, 1 << 15, "columns", False),
        ({"vendor_id": "GenuineIntel", "flags": "avx2"}, 4, 32, 1024, 2048, "columns", False),
        ({}, 4, 32, 1024, 2048, "columns", False),
    ],
)  # fmt: skip
def test_few_rows_and_a_large_weight(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], threads: int, rows: int, inner: int, columns: int,
    lies: str, by_onednn: bool, symbolic: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(cpu, "facts", lambda: facts)
    monkeypatch.setattr(cpu, "blas_is_slow", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    a = torch.randn(rows, inner)
    b = torch.randn(columns, inner).t() if lies == "columns" else torch.randn(inner, columns)
    graph = build(lambda p, a, b: p.aten(MM, a, b), [a, b], dynamic={0: (0,)} if symbolic and rows > 1 else None)
    compiled = inductor_gen.compile_graph(graph, options=OPTIONS)
    with Operators() as seen:
        (got,) = compiled(a, b)
    assert ("mkldnn._linear_pointwise.default" in seen.names) is by_onednn
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_compared_halves_are_rounded(op: str, dtype: torch.dtype) -> None:
    """A number of 16 bits compares as it would come from memory, also where a kernel has just computed it."""
    x = torch.linspace(0.3, 3, 64).to(dtype)
    stored = x.exp()
    fn = lambda p, a, b: (getattr(p, op)(p.exp(a), b), getattr(p, op)(b, p.exp(a)))
    got = inductor_gen.compile_graph(build(fn, [x, stored]), options=OPTIONS)(x, stored)
    compare = getattr(torch, op)
    assert all(torch.equal(a, compare(stored, stored)) for a in got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_negated_sum_with_a_product_has_its_zeros_sign(dtype: torch.dtype) -> None:
    """-(0.0 + 0.0 * -1.0) and -(1.0 * 2.0 - 2.0) are -0.0, of vectors and of single numbers."""
    a, b, c, d = (torch.full((37,), n, dtype=dtype) for n in (0.0, -1.0, 1.0, 2.0))
    fn = lambda p, a, b, c, d: (p.neg(p.add(a, p.mul(a, b))), p.neg(p.sub(p.mul(c, d), d)))
    for got in inductor_gen.compile_graph(build(fn, [a, b, c, d]), options=OPTIONS)(a, b, c, d):
        assert bool((got == 0).all() and got.signbit().all())


NEGATIVES = {
    "a choice": lambda p, a, b, s: p.neg(p.where(p.lt(a, b), a, s)),
    "a choice in a choice": lambda p, a, b, s: p.neg(p.where(p.lt(a, b), a, p.where(p.eq(a, b), b, s))),
    "by a product": lambda p, a, b, s: p.mul(s, -1.0),
    "by a product from the left": lambda p, a, b, s: p.mul(-1.0, s),
    "by a quotient": lambda p, a, b, s: p.div(s, -1.0),
    "in a sum": lambda p, a, b, s: p.sub(p.neg(a), p.mul(s, p.add(a, 1.0))),
    "after a product": lambda p, a, b, s: p.sub(p.mul(p.neg(a), 3.0), s),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", NEGATIVES)
def test_all_forms_of_a_negated_sum_have_its_zeros_sign(form: str, dtype: torch.dtype) -> None:
    """Of 0.0 + 0.0 * -1.0, which is 0.0: a C compiler moves a change of sign through choices and into the sum."""
    a, b = torch.full((37,), 0.0, dtype=dtype), torch.full((37,), -1.0, dtype=dtype)
    fn = lambda p, a, b: (NEGATIVES[form](p, a, b, p.add(a, p.mul(a, b))),)
    (got,) = inductor_gen.compile_graph(build(fn, [a, b]), options=OPTIONS)(a, b)
    assert bool((got == 0).all() and got.signbit().all())


def test_long_sums_of_sizes_that_were_short() -> None:
    """The size of the first call says nothing about the error of the next one's sum."""
    env = build(lambda p, x: p.sum(p.exp(x), (0,)), [torch.zeros(8)], dynamic={0: (0,)})
    x = torch.full((200_000,), 0.1)
    (got,) = inductor_gen.compile_graph(env, options=OPTIONS)(x)
    exact = x.double().exp().sum()
    assert (got.double() - exact).abs() <= 2e-7 * exact


@needs_onednn
@pytest.mark.usefixtures("slow_blas")
def test_products_with_elements_that_repeat() -> None:
    x, w = torch.randn(192, 256), torch.randn(256)

    def fn(p: Any, x: Any, w: Any) -> Any:
        mm = torch.ops.aten.mm.default
        right, left = p.broadcast(w, (256, 160), (0,)), p.broadcast(w, (160, 256), (1,))
        return p.aten(mm, x, right), p.aten(mm, left, p.permute(x, (1, 0)))

    first, second = inductor_gen.compile_graph(build(fn, [x, w]), options=OPTIONS)(x, w)
    exact = x.double() @ w.double()
    torch.testing.assert_close(first.double(), exact[:, None].expand(192, 160), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.double(), exact[None].expand(160, 192), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.usefixtures("slow_blas")
def test_products_of_any_number_of_rows() -> None:
    w, c = torch.randn(256, 192), torch.randn(192)

    def fn(p: Any, x: Any, w: Any, c: Any) -> Any:
        return p.aten(torch.ops.aten.addmm.default, c, x, w), p.aten(torch.ops.aten.mm.default, x, w)

    env = build(fn, [torch.randn(64, 256), w, c], dynamic={0: (0,)})
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert compiled.source.count("f_linear(") == 2
    for rows in (64, 0, 1, 7, 300):
        x = torch.randn(rows, 256)
        first, second = compiled(x, w, c)
        torch.testing.assert_close(first, torch.addmm(c, x, w), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(second, torch.mm(x, w), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.usefixtures("slow_blas")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_of_other_types_are_left_alone(dtype: torch.dtype) -> None:
    a, b = torch.randn(96, 192).to(dtype), torch.randn(192, 160).to(dtype)
    case = check(lambda p, a, b: p.aten(torch.ops.aten.mm.default, a, b), [a, b])
    assert "f_linear(" not in case.compiled.source


def test_small_products_are_left_alone() -> None:
    case = check(lambda p, a, b: p.aten(torch.ops.aten.mm.default, a, b), [torch.randn(8, 16), torch.randn(16, 8)])
    assert "f_torch_mm(" in case.compiled.source


def test_a_product_with_a_transposed_weight_makes_no_view_of_it() -> None:
    """It is a linear layer, which takes the weight as it lies; a bias that is no row stays with the product."""
    mm, addmm = torch.ops.aten.mm.default, torch.ops.aten.addmm.default

    def fn(p: Any, x: Any, w: Any, row: Any, full: Any) -> Any:
        turned = p.permute(w, (1, 0))
        return p.aten(mm, x, turned), p.aten(addmm, row, x, turned), p.aten(addmm, full, x, turned)

    x, w, row, full = torch.randn(8, 16), torch.randn(4, 16), torch.randn(4), torch.randn(8, 4)
    compiled = inductor_gen.compile_graph(build(fn, [x, w, row, full]), options=OPTIONS)
    assert compiled.source.count("f_torch_nn_functional_linear(a0, a1") == 2 and compiled.source.count(".t()") == 1
    expected = [torch.mm(x, w.t()), torch.addmm(row, x, w.t()), torch.addmm(full, x, w.t())]
    for got, eager in zip(compiled(x, w, row, full), expected, strict=True):
        torch.testing.assert_close(got, eager, rtol=0, atol=0)


# ---- loops ----------------------------------------------------------------------------------------------------


def test_weights_do_not_decide_the_lane() -> None:
    """Statistics per channel of contiguous images: the lane runs along the images, whatever else runs along channels."""

    def fn(p: Any, x: Any, *rows: Any) -> Any:
        mean = p.div(p.sum(x, (0, 2)), float(x.shape[0] * x.shape[2]))
        y = p.sub(x, p.broadcast(mean, x.shape, (1,)))
        for row in rows:
            y = p.mul(y, p.broadcast(row, x.shape, (1,)))
        return y, p.add(mean, rows[0])

    case = check(fn, [torch.randn(4, 48, 400), *(torch.rand(48) for _ in range(5))], tol=1e-5)
    (kernel,) = case.compiled.kernels
    assert "t_" not in kernel.source.replace("int64_t", "")  # no tiles of channels


ROWS = [
    (data, dtype)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8)
    for data in ("random", "ties", "equal", "infinite", "nan first", "nan late", "nans")
    if dtype.is_floating_point or data in ("random", "ties", "equal")
]


@pytest.mark.parametrize("turn", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize(("data", "dtype"), ROWS, ids=str)
def test_long_rows_of_which_the_first_extreme(data: str, dtype: torch.dtype, turn: bool) -> None:
    x = torch.randint(0, 3 if data == "ties" else 1 if data == "equal" else 120, (5, 3, 700)).float()
    if data == "random" and dtype.is_floating_point:
        x = x + torch.rand(x.shape)
    if data == "infinite":
        x.fill_(float("-inf"))
        x[1, :, 650] = float("inf")
    if "nan" in data:
        x[:, :, {"nan first": 3, "nan late": 690, "nans": slice(600, 660, 7)}[data]] = float("nan")

    def fn(p: Any, x: Any) -> Any:
        x = p.flip(x, (2,)) if turn else x
        return p.argmax(x, 2), p.argmin(x, 2), p.argmax(p.reshape(x, (x.shape[0] * x.shape[1] * x.shape[2],)), 0)

    check(fn, [x.to(dtype)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integer_division_of_every_sign(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    values = torch.tensor([info.min, info.min + 1, -7, -3, -1, 0, 1, 3, 7, info.max - 1, info.max], dtype=torch.int64)
    values = values[values >= info.min].to(dtype)
    x, y = (v.reshape(-1) for v in torch.meshgrid(values, values[values != 0], indexing="ij"))

    def fn(p: Any, x: Any, y: Any) -> Any:
        return p.floor_div(x, y), p.trunc_div(x, y), p.remainder(x, y), p.fmod(x, y), p.floor_div(x, 7)

    least_by_minus_one = (x == info.min) & (y == -1) if dtype.is_signed else torch.zeros_like(x, dtype=torch.bool)
    check(fn, [x[~least_by_minus_one], y[~least_by_minus_one]])


@pytest.mark.parametrize("shape", [(300, 256), (300, 512), (200, 4096)], ids=str)
def test_sums_are_about_as_exact_as_eagers(shape: tuple[int, int]) -> None:
    """Over many rows of random numbers; eager adds up by halves, generated code by short stretches."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    case = check(lambda p, x: p.sum(x, (1,)), [x], tol=1e-4)
    exact = x.double().sum(1)
    ours, eager = ((y.double() - exact).square().mean().sqrt().item() for y in (case.outputs[0], x.sum(1)))
    assert ours <= 1.5 * eager
