"""The table of reductions, row by row and language by language; run under TRITON_INTERPRET=1 (or on a GPU) by
test_triton_reductions.py."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np
import pytest
import torch
from gen_support import build, reference

import inductor_gen
from inductor_gen.codegen.reductions import REDUCTIONS, Reduction
from inductor_gen.device.record import known
from prims.errors import Unsupported
from prims.handlers import TorchHandler
from prims.ops import TABLE
from prims.ops.check import array_spec
from prims.ops.row import define
from prims.options import Options

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LANGUAGES = ("c", "triton") if DEVICE == "cpu" else ("triton",)

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="PyTorch finds no CUDA device; TRITON_INTERPRET is not 1"
)

#: A device that so few programs fill that an interpreter is soon through with them.
SMALL = dataclasses.replace(known("H200"), multiprocessors=4)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}


def compiled(fn, inputs, language, **options):
    env = build(fn, inputs, claims=inductor_gen.claims(DEVICE))
    options = Options(verify="every_pass", **options)
    if language == "c":
        return inductor_gen.compile_graph(env, options=options)
    return inductor_gen.compile_graph(env, options=options, triton=True, devices=lambda _: SMALL)


def check(one, inputs, language):
    """Compile ``one`` of each input, run it, and compare with the reference."""

    def fn(p, *xs):
        return tuple(one(p, x) for x in xs)

    inputs = [t.to(DEVICE) for t in inputs]
    expected = reference(fn, inputs, False)
    for got, want in zip(compiled(fn, inputs, language)(*inputs), expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        limit = TOLERANCE.get(want.dtype, 0)
        torch.testing.assert_close(got, want, rtol=limit, atol=limit, equal_nan=True)


#: Shapes and the dimension that is reduced: whole rows, columns, one loop, split ones of either kind, one element, none.
SHAPES = {
    "rows": ((5, 33), 1), "columns": ((33, 5), 0), "long columns": ((150, 200), 0), "few columns": ((700, 9), 0),
    "few rows": ((1, 9001), 1), "one": ((4, 1), 1), "no rows": ((0, 7), 1), "empty": ((3, 0), 1),
}  # fmt: skip

PRIMITIVES = [name for name in REDUCTIONS if name in TABLE]


def operand(name, dtype, shape):
    generator = torch.Generator().manual_seed(len(name))
    x = torch.randint(-9, 10, shape, generator=generator)
    if dtype == torch.bool:
        return x > (8 if name == "any" else -9)
    if dtype == torch.uint8:
        return x.abs().to(dtype)
    if not dtype.is_floating_point:
        return x.to(dtype)
    if "prod" in name:  # of powers of two: exact in any order
        return torch.where(x > 6, 2.0, torch.where(x < -6, -0.5, 1.0)).to(dtype)
    return (x / 8).to(dtype)


def call(name, dim):
    row = TABLE[name]
    takes_one = row.params[1].kind == "dim"
    return lambda p, a: getattr(p, name)(a, dim if takes_one else (dim,))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", PRIMITIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_and_type(name, shape, language):
    size, dim = SHAPES[shape]
    row = TABLE[name]
    if shape == "empty" and any(label.endswith("-C3") for label in row.constraints):
        return  # the primitive refuses it
    dtypes = row.dtypes[:1] if math.prod(size) > 10_000 else row.dtypes  # an interpreter takes its time
    check(call(name, dim), [operand(name, dtype, size) for dtype in dtypes], language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("count", [2, 3, 4, 64, 5000])
def test_a_sum_of_negative_zeros(count, language):
    """It begins with 0, also where a block is as long as a row. (The interpreter's begins so in any case, a GPU's does not.)"""
    inputs = [torch.full((4, count), -0.0, dtype=dtype, device=DEVICE) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    for dim in (0, 1):
        got = compiled(lambda p, *xs, dim=dim: tuple(p.sum(x, (dim,)) for x in xs), inputs, language)(*inputs)
        for x, zeros in zip(inputs, got, strict=True):
            want = x.sum(dim)
            assert torch.equal(zeros, want) and torch.equal(zeros.signbit(), want.signbit())


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", [n for n in PRIMITIVES if torch.float32 in TABLE[n].dtypes])
@pytest.mark.parametrize("special", [("nan",), ("inf",), ("-inf",), ("inf", "-inf"), ("inf", "nan")])
def test_what_is_no_number(name, special, language):
    """NaN and infinities, in the first element, within and in the last."""
    for shape, dim in (SHAPES["rows"], SHAPES["columns"], SHAPES["few columns"]):
        inputs = []
        for dtype in (torch.float32, torch.float16):
            x = operand(name, dtype, shape).movedim(dim, 0).contiguous()
            for k, value in enumerate(special):
                x[0, k], x[x.shape[0] // 2, k + 1], x[-1, k + 2] = (float(value),) * 3
            inputs.append(x.movedim(0, dim).contiguous())
        check(call(name, dim), inputs, language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_reduction_is_one_row(monkeypatch, language):
    """A primitive that is added while the program runs needs a row, and nothing else."""

    def parity(x, dims):
        return torch.from_numpy(np.bitwise_xor.reduce(x.cpu().numpy(), axis=tuple(dims))).to(x.device)

    def meta(x, dims):
        return array_spec(tuple(s for d, s in enumerate(x.shape) if d not in dims), x.dtype, x.device)

    if "parity" not in TABLE:
        define("parity", "x: T, dims: dims", "reduce", doc="exclusive or", meta=meta, torch_ref=parity,
               numpy_ref=None, samples=lambda dtype: iter(()), dtypes=(torch.int32, torch.int64), constraints={})  # fmt: skip
    monkeypatch.setitem(REDUCTIONS, "parity", Reduction("parity", 0, "{0} ^= {1};", "^", "{0} ^ {1}"))
    for shape in ("rows", "columns", "long columns", "few columns", "few rows"):
        size, dim = SHAPES[shape]
        inputs = [operand("parity", dtype, size) * 12345 for dtype in (torch.int32, torch.int64)]
        check(lambda p, a, dim=dim: p.parity(a, (dim,)), inputs, language)


# ---- variances in one pass ---------------------------------------------------------------------------------------


def moments(p, a, dim=0):
    """Mean and variance, and what is computed with them along the row."""
    n, kept = a.shape[dim], tuple(d for d in range(len(a.shape)) if d != dim)
    mean = p.div(p.sum(a, (dim,)), float(n))
    d = p.sub(a, p.broadcast(mean, a.shape, kept))
    var = p.div(p.sum(p.mul(d, d), (dim,)), float(n))
    return mean, var, p.mul(d, p.broadcast(p.rsqrt(p.add(var, 1e-5)), a.shape, kept))


def _shifted(shape):
    return torch.randn(shape) * 1e-2 + 1e3


NUMBERS = {
    "plain": torch.randn, "shifted": _shifted, "far": lambda shape: torch.randn(shape) + 1e5,
    "after zeros": lambda shape: torch.cat([torch.zeros(40, *shape[1:]), _shifted((shape[0] - 40, *shape[1:]))]),
    "after one": lambda shape: torch.cat([torch.full((1, *shape[1:]), 1e6), torch.randn(shape[0] - 1, *shape[1:])]),
    "rising": lambda shape: torch.arange(float(shape[0])).view(-1, *[1] * (len(shape) - 1)).expand(shape) + 1e4,
    "equal": lambda shape: torch.full(shape, 1234.5678), "small": lambda shape: torch.randn(shape) * 1e-18,
    "doubles": lambda shape: torch.randn(shape).double() + 1e9,
}  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("shape,sources", [((2003, 20), 3), ((300, 640), 1)])
def test_variance_in_one_pass(numbers, shape, sources):
    """As near to float64's as two passes come, wherever the numbers lie and whichever comes first."""
    torch.manual_seed(0)
    x = NUMBERS[numbers](shape).contiguous().to(DEVICE)
    wide = x.double()
    scale = wide.var(0, unbiased=False).clamp_min(torch.finfo(x.dtype).eps ** 2 * wide.abs().amax(0) ** 2)
    errors = []
    for numerics in ("fast", "eager_close"):
        graph = compiled(moments, [x], "triton", numerics=numerics)
        mean, var, _ = graph(x)
        assert ((mean - wide.mean(0)).abs() <= 4 * torch.finfo(x.dtype).eps * wide.abs().amax(0)).all()
        errors.append(float(((var - wide.var(0, unbiased=False)).abs() / scale).max()))
        texts = "".join(k.source for k in graph.kernels)
        if numerics == "fast":
            assert texts.count("@triton.jit") == sources and texts.count("for r0 in") == (1 if sources == 3 else 2)
    assert errors[0] <= 2 * errors[1] + 20 * torch.finfo(x.dtype).eps, errors


def test_variance_in_one_pass_of_rows_with_infinities():
    x = torch.randn(2003, 20)
    x[0, 0], x[1500, 1], x[-1, 2], x[7, 3], x[0, 4] = (float(v) for v in ("inf", "inf", "-inf", "nan", "nan"))
    x = x.to(DEVICE)
    for got, want in zip(compiled(moments, [x], "triton")(x), moments(TorchHandler(), x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_variance_of_long_rows(dtype):
    """Rows along memory, of several tiles each and of a few elements more, in parts and whole."""

    def fn(p, a):
        return tuple(p.convert(v, torch.float32) for v in moments(p, p.convert(a, torch.float32), 1))

    for shape in ((2, 40_003), (40, 33_000)):
        x = (torch.randn(shape) + 3).to(dtype).to(DEVICE)
        graph = compiled(fn, [x], "triton")
        assert "".join(k.source for k in graph.kernels).count("for r0 in") == (1 if shape[0] == 2 else 2)
        for got, want in zip(graph(x), fn(TorchHandler(), x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_scatter_says_what_no_hardware_has():
    with pytest.raises(Unsupported):
        from inductor_gen.codegen.tritonexpr import store_mode
        from inductor_gen.kernel.body import Store, Val

        store_mode(Store(None, None, Val("const", (), torch.float32, 1, None), "mul"))
