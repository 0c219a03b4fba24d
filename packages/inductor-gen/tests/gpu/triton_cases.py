"""Cases for generated Triton kernels; run under TRITON_INTERPRET=1 (or on a GPU) by test_triton_kernels.py."""

from __future__ import annotations

import dataclasses
import os
import re

import pytest
import torch
from gen_support import build, reference
from gradient_cases import CASES, inputs_of, normalized, scatters

import inductor_gen
from inductor_gen.device.record import device_of, known
from inductor_gen.loops.graph import Node
from prims.errors import Unsupported
from prims.options import Options

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
HALVES = (torch.float16, torch.bfloat16)

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="PyTorch finds no CUDA device; TRITON_INTERPRET is not 1"
)


def check(fn, inputs, tol=None, devices=device_of, **kw):
    """Compile ``fn`` to Triton, run it, and compare with the reference."""
    inputs = [t.to(DEVICE) for t in inputs]
    env = build(fn, inputs, claims=inductor_gen.claims(DEVICE), **kw)
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True, devices=devices)
    outputs = compiled(*inputs)
    for got, want in zip(outputs, reference(fn, inputs, False), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.is_floating_point():
            limit = tol or {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}[want.dtype]
            torch.testing.assert_close(got, want, rtol=limit, atol=limit, equal_nan=True)
        else:
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (33, 65), (3, 5, 17)])
def test_pointwise(dtype, shape):
    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    check(lambda p, a, b: (p.add(p.mul(p.sin(a), b), 2.0), p.tanh(b)), [x, y])


@pytest.mark.parametrize("dtype", HALVES)
def test_compared_halves_are_rounded(dtype):
    """A number of 16 bits equals itself as it comes from memory."""
    x = torch.arange(1, 65).to(dtype)
    root = x.sqrt()
    env = build(lambda p, a, b: (p.eq(p.sqrt(a), b),), [x.to(DEVICE), root.to(DEVICE)], claims=inductor_gen.claims(DEVICE))
    (got,) = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)(x.to(DEVICE), root.to(DEVICE))
    assert got.all()


@pytest.mark.parametrize("op,scale", [("erf", 2**-0.5), ("tanh", 0.8)])
@pytest.mark.parametrize("dtype", HALVES)
def test_one_plus_erf_and_tanh_of_halves(op, scale, dtype):
    """Tails included; no use of the library's function. The interpreter truncates where it converts to bfloat16."""
    x = torch.cat([torch.linspace(-5, 5, 4001), torch.tensor([0.0, -0.0, 11.0, 300.0, -300.0, torch.inf, torch.nan])]).to(dtype)

    def fn(p, a):
        wide = p.convert(a, torch.float32)
        return p.convert(p.add(getattr(p, op)(p.mul(wide, scale)), 1.0), dtype)

    env = build(fn, [x.to(DEVICE)], claims=inductor_gen.claims(DEVICE))
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
    assert f"qt_one_plus_{op}(" in compiled.kernels[0].source and f"libdevice.{op}(" not in compiled.kernels[0].source
    (got,) = compiled(x.to(DEVICE))
    at = x.double() * scale
    exact = torch.special.erfc(-at) if op == "erf" else 2 * torch.sigmoid(2 * at)
    got = got.cpu().double()
    assert torch.equal(got.isnan(), x.isnan())
    unit = (exact.abs() * torch.finfo(dtype).eps).clamp_min(2.0**-24)
    off = ((got - exact).abs() / unit).nan_to_num(0)
    assert off.max() < (1.01 if dtype == torch.bfloat16 else 1.2), off.max()


@pytest.mark.parametrize("name", ["silu", "sigmoid"])
@pytest.mark.parametrize("dtype", HALVES)
def test_silu_and_sigmoid_of_halves_divide_roughly(name, dtype):
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, -0.0, 80.0, 200.0, -80.0, torch.inf, torch.nan])]).to(dtype)

    def fn(p, a):
        wide = p.convert(a, torch.float32)
        y = p.sigmoid(wide) if name == "sigmoid" else p.div(wide, p.add(p.exp(p.neg(wide)), 1.0))
        return p.convert(y, dtype), p.convert(p.mul(y, wide), dtype)

    env = build(fn, [x.to(DEVICE)], claims=inductor_gen.claims(DEVICE))
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
    source = compiled.kernels[0].source
    assert f"qt_{name}(v" in source and "div_rn" not in source and "= tl.exp(" not in source
    got = [y.cpu().double() for y in compiled(x.to(DEVICE))]
    exact = torch.sigmoid(x.double()) * (x.double() if name == "silu" else 1)
    for y, wanted in zip(got, (exact, exact * x.double()), strict=True):
        assert torch.equal(y.isnan(), x.isnan())
        unit = (wanted.abs() * torch.finfo(dtype).eps).clamp_min(2.0**-24)
        off = ((y - wanted).abs() / unit).nan_to_num(0)
        assert off.max() < 1.01, off.max()


MEETINGS = {
    "itself": (lambda p, t: p.sub(t, t), True),
    "its negative": (lambda p, t: p.add(p.neg(t), t), True),
    "its row's largest": (lambda p, t: p.sub(t, p.broadcast(p.amax(t, (1,)), t.shape, (0,))), True),
    "another product": (lambda p, t: p.sub(t, p.mul(p.add(t, 1.0), 0.0)), True),
    "a constant": (lambda p, t: p.sub(t, 3.0), False),
}


@pytest.mark.parametrize("name", MEETINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_that_meet_what_depends_on_them_are_rounded(name, dtype):
    """What is left of equal terms is 0, and no rounding error of one of them."""
    fn, rounded = MEETINGS[name]
    x = torch.randn(70, 1, dtype=dtype)
    c = check(lambda p, a: fn(p, p.mul(a, 0.6666666865348816)), [x])
    assert (re.search("qt_(add|sub)[36]", c.kernels[0].source) is not None) == rounded
    if name in ("itself", "its negative", "its row's largest"):
        assert not c(x.to(DEVICE))[0].any()
    elif name == "another product":
        tiny = torch.full_like(x, 3 * torch.finfo(dtype).smallest_normal / 8)
        assert c(tiny.to(DEVICE))[0].all()  # numbers below the least normal one are none the less


@pytest.mark.parametrize("way", [
    lambda p, a: p.prod(a, (1,)), lambda p, a: p.prod(a, (0, 1)), lambda p, a: p.cumprod(a, 1), lambda p, a: p.exp(a),
    lambda p, a: p.sinh(a), lambda p, a: p.div(p.neg(a), p.tan(a)),
])  # fmt: skip
@pytest.mark.parametrize("columns", [7, 4000])
def test_other_operators_that_end_with_a_product_are_rounded_too(way, columns):
    x = torch.rand(3, columns) / 2 + 0.75
    c = check(lambda p, a: (t := way(p, a), p.sub(t, t), p.add(p.neg(t), t)), [x], devices=lambda _: SMALL, tol=1e-4)
    _, first, second = c(x.to(DEVICE))
    assert not first.any() and not second.any()
    assert all(re.search(f"qt_{op}32", "".join(k.source for k in c.kernels)) for op in ("add", "sub"))


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_exponentials_far_from_zero_are_exact_but_for_halves(name):
    """The hardware's power of two takes a product that is rounded: 2**-24 of the operand is lost."""
    x = torch.linspace(-87, 80, 5001)
    (got,) = (c := check(lambda p, a: getattr(p, name)(a), [x]))(x.to(DEVICE))
    assert "libdevice.exp(" in c.kernels[0].source
    exact = getattr(torch, name)(x.double())
    assert ((got.cpu().double() - exact) / exact).abs().max() < 4 * torch.finfo(torch.float32).eps
    c = check(lambda p, a: p.convert(p.exp(p.convert(a, torch.float32)), torch.bfloat16), [x.bfloat16() / 8])
    assert "tl.exp(" in c.kernels[0].source


@pytest.mark.parametrize("jump", [lambda p, y: p.floor(p.mul(y, 8.0)), lambda p, y: p.where(p.gt(y, 0.5), y, 0.0),
                                  lambda p, y: p.div(1.0, p.sub(y, 0.5)), lambda p, y: p.sqrt(p.sub(y, 0.5))])  # fmt: skip
def test_what_jumps_after_a_sigmoid_gets_an_exact_one(jump):
    x = torch.randn(300).bfloat16()
    c = check(lambda p, a: p.convert(jump(p, p.sigmoid(p.convert(a, torch.float32))), torch.bfloat16), [x])
    assert "qt_sigmoid" not in c.kernels[0].source


def test_erf_that_others_read_is_the_librarys():
    x = torch.randn(500).to(torch.bfloat16)

    def fn(p, a):
        e = p.erf(p.convert(a, torch.float32))
        return p.convert(p.mul(p.add(e, 1.0), e), torch.bfloat16)

    c = check(fn, [x])
    assert "qt_one_plus" not in c.kernels[0].source


def _centred(p, a, dims):
    kept = [d for d in range(len(a.shape)) if d not in dims]
    f = p.convert(a, torch.float32) if a.dtype in HALVES else a
    count = 1
    for d in dims:
        count *= a.shape[d]
    mean = p.div(p.sum(f, dims), float(count))
    return f, mean, p.sub(f, p.broadcast(mean, a.shape, kept)), count, kept


def _normalised(p, a, dims):
    """Two reductions one after the other, and what is computed along the rows after them."""
    f, mean, d, count, kept = _centred(p, a, dims)
    scale = p.rsqrt(p.add(p.div(p.sum(p.mul(d, d), dims), float(count)), 1e-5))
    return p.convert(p.mul(d, p.broadcast(scale, a.shape, kept)), a.dtype), mean, p.mul(scale, 0.9)


def _softmax(p, a, dims):
    kept = [d for d in range(len(a.shape)) if d not in dims]
    e = p.exp(p.sub(a, p.broadcast(p.amax(a, dims), a.shape, kept)))
    return p.div(e, p.broadcast(p.sum(e, dims), a.shape, kept))


def _written_before(p, a, dims):
    """A value along the rows is kept before the reduction, and a value of the rows alone too."""
    big = p.where(p.gt(a, 0.0), a, 0.0)
    return big, p.sum(big, dims), p.amax(p.mul(big, a), dims)


def _first(p, a, dims):
    at = p.argmax(a, dims[0])
    kept = [d for d in range(len(a.shape)) if d not in dims]
    return at, p.eq(p.broadcast(at, a.shape, kept), 3)


#: A device that so few programs fill that an interpreter is soon through with them.
SMALL = dataclasses.replace(known("H200"), multiprocessors=4)

SPLIT = {
    "sums": (lambda p, a, dims: (p.sum(a, dims), p.sum(p.mul(a, a), dims)), 2),
    "centred": (lambda p, a, dims: _centred(p, a, dims)[1:3], 3),
    "normalised": (_normalised, 3),
    "softmax": (_softmax, 5),
    "written before": (_written_before, 2),
}


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize(
    "dtype,shape,dims",
    [
        (torch.bfloat16, (700, 70), (0,)), (torch.float32, (300, 64), (0,)), (torch.bfloat16, (2, 40000), (1,)),
        (torch.float32, (5, 3, 60, 90), (0, 2, 3)), (torch.float32, (5, 12, 990), (0, 1, 2)),
        (torch.bfloat16, (30, 24, 40), (0, 1)),
    ],
)  # fmt: skip
def test_split_reductions(name, dtype, shape, dims):
    """Few rows of many columns: parts, rows, and what is left as a pointwise kernel, which puts no parts together."""
    fn, kernels = SPLIT[name]
    if name == "softmax" and dtype == torch.bfloat16:
        fn = lambda p, a, dims: p.convert(_softmax(p, p.convert(a, torch.float32), dims), torch.bfloat16)
    if name in ("sums", "written before") and dtype == torch.bfloat16:
        fn = lambda p, a, dims: SPLIT[name][0](p, p.convert(a, torch.float32), dims)
    c = check(lambda p, a: fn(p, a, dims), [torch.randn(shape).to(dtype)], devices=lambda _: SMALL, tol=2e-2 if dtype == torch.bfloat16 else 1e-3)
    texts = "".join(k.source for k in c.kernels).split("@triton.jit")[1:]
    assert len(texts) == kernels, texts
    launches = [name for k in c.kernels for name in k.launches]
    assert launches == [step.name for step in c.steps] and all(name in "".join(texts) for name in launches)
    assert len(launches) == kernels > len(c.kernels)
    assert sum("tl.program_id(1)" in t for t in texts) == (2 if kernels == 5 else 1)
    if kernels % 2:
        assert "RBLOCK" not in texts[-1]


def test_split_reductions_beside_small_kernels():
    """A launch of several kernels keeps the sources of a split one in order: the rows' read what the parts' write."""

    def fn(p, a, b, c):
        return p.add(b, 1.0), p.sum(a, (0,)), p.mul(c, 2.0), p.amax(p.neg(a), (0,))

    c = check(fn, [torch.randn(300, 33), torch.randn(50, 33), torch.randn(77)], devices=lambda _: SMALL, tol=1e-4)
    texts = [k.source for k in c.kernels]
    assert any("program <" in t for t in texts), "nothing was joined: the test shows nothing"


def test_split_argmax():
    for shape, dims in (((700, 70), (0,)), ((2, 20000), (1,))):
        c = check(lambda p, a, dims=dims: _first(p, a, dims), [torch.randint(-9, 9, shape).float()], devices=lambda _: SMALL)
        assert "".join(k.source for k in c.kernels).count("@triton.jit") == 3


def test_broadcast_and_bool():
    x, b = torch.randn(6, 11, 5), torch.randn(11)
    def fn(p, a, c):
        big = p.broadcast(c, (6, 11, 5), (1,))
        m = p.gt(a, big)
        return p.where(m, a, big), m
    check(fn, [x, b])


def test_transposed_tiles():
    x, y = torch.randn(70, 40), torch.randn(40, 70)
    c = check(lambda p, a, b: p.add(p.permute(a, (1, 0)), b), [x, y])
    assert "YBLOCK" in c.kernels[0].source


def test_pad_concat_slice_flip():
    x, y = torch.randn(9, 20), torch.randn(9, 12)
    check(lambda p, a, b: (p.concat((p.neg(a), b), 1), p.pad(a, 1.5, (1, 2), (3, -1)), p.flip(p.slice(a, (0, 3), (9, 15), (2, 3)), (1,))), [x, y])


def test_equal_pieces_of_a_concatenation_are_one_launch():
    parts = [torch.randn(2, 64, 9) for _ in range(20)] + [torch.randn(2, 30, 9)]
    scale = torch.randn(20 * 64 + 30)

    def fn(p, c, *xs):
        whole = p.concat(xs, 1)
        return p.mul(whole, p.broadcast(c, whole.shape, (1,)))

    c = check(fn, [scale, *parts])
    text = c.kernels[0].source
    assert len(c.kernels) == 1 and text.count("def k_") < 10, "16 in one; places that equal a size have texts of their own"
    assert "joined:16" in text


def test_halves_of_a_rotary_embedding_and_its_neighbours_are_one_launch():
    q, k, cosine, sine = (torch.randn(s) for s in ((2, 3, 40, 16), (2, 1, 40, 16), (40, 16), (40, 16)))

    def turned(p, x, cosine, sine):
        halves = [p.slice(x, (0, 0, 0, a), (*x.shape[:3], a + 8), (1, 1, 1, 1)) for a in (0, 8)]
        other = p.concat((p.neg(halves[1]), halves[0]), 3)
        return p.add(p.mul(x, cosine(x.shape)), p.mul(other, sine(x.shape)))

    def fn(p, a, b, *parts):
        spread = [lambda shape, v=v: p.broadcast(v, shape, (2, 3)) for v in parts]
        return turned(p, a, *spread), turned(p, b, *spread)

    c = check(fn, [q, k, cosine, sine])
    source = c.kernels[0].source
    assert len(c.kernels) == 1 and source.count("_part(") == 8 and source.count("if program <") == 3


def test_neighbours_that_depend_on_each_other_are_not_one_launch():
    x, y = torch.randn(64, 33), torch.randn(33, 64)

    def fn(p, a, b):
        total = p.sum(a, (1,))
        return p.cumsum(b, 0), p.add(p.permute(b, (1, 0)), p.broadcast(p.cumsum(total, 0), (64, 33), (0,)))

    c = check(fn, [x, y], tol=1e-4)
    assert len(c.kernels) > 1


REDUCE = ["sum", "prod", "amax", "amin", "any", "all"]


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("shape,dims", [((13, 37), (1,)), ((13, 37), (0,)), ((4, 6, 10), (0, 2)), ((5, 7), (0, 1)), ((3, 20000), (1,))])
def test_reduce(op, shape, dims):
    x = torch.randn(shape) * (0.01 if op == "prod" else 1) + (1 if op == "prod" else 0)
    if op in ("any", "all"):
        x = x > (2 if op == "any" else -2.5)
    check(lambda p, a: getattr(p, op)(a, dims), [x], tol=2e-4)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("shape,dim", [((13, 37), 1), ((40, 9), 0), ((2, 20000), 1), ((2, 3, 9000), 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_arg(op, shape, dim, dtype):
    x = torch.randint(-9, 9, shape).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[3] = float("nan")
    check(lambda p, a: getattr(p, op)(a, dim), [x])


def softmax(p, a):
    n, m = a.shape
    top = p.broadcast(p.amax(a, (1,)), (n, m), (0,))
    e = p.exp(p.sub(a, top))
    return p.div(e, p.broadcast(p.sum(e, (1,)), (n, m), (0,)))


@pytest.mark.parametrize("shape", [(5, 100), (300, 33), (3, 40000)])
def test_softmax(shape):
    c = check(softmax, [torch.randn(shape)])
    assert len(c.kernels) == 1


def test_column_softmax_and_looped():
    x = torch.randn(200, 48)
    def fn(p, a):
        e = p.exp(p.sub(a, p.broadcast(p.amax(a, (0,)), a.shape, (1,))))
        return p.div(e, p.broadcast(p.sum(e, (0,)), a.shape, (1,)))
    check(fn, [x])


def test_dynamic_sizes_are_looped():
    check(softmax, [torch.randn(40, 300)], dynamic={0: (0, 1)})
    compiled = check(lambda p, a, b: p.add(a, b), [torch.randn(40, 300)] * 2, dynamic={0: (0, 1), 1: (0, 1)})
    assert "too_large()" in compiled.source  # positions are 32-bit: larger sizes are refused, not misread
    huge = torch.empty(1).expand(2**16, 2**16)
    if DEVICE == "cpu":
        with pytest.raises(Unsupported, match="32-bit"):
            compiled(huge, huge)


def test_reduction_into_several_uses():
    x = torch.randn(6, 50).bfloat16()
    def fn(p, a):
        f = p.convert(a, torch.float32)
        s = p.sum(f, (1,))
        return p.convert(p.sub(f, p.broadcast(p.mul(s, 1 / 50), (6, 50), (0,))), torch.bfloat16), s
    check(fn, [x])


@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(op, dim):
    check(lambda p, a: getattr(p, op)(a, dim), [torch.randn(17, 40).double()])
    check(lambda p, a: getattr(p, op)(a, dim), [torch.randint(-2, 3, (17, 40))])


def test_long_scan():
    check(lambda p, a: p.cumsum(a, 1), [torch.randn(2, 9000).double()])


def looked_up(p, table, at):
    return p.gather(table, at, 0)


def looked_up_and_summed(p, table, at):
    return p.sum(p.mul(p.index(table, (at,), (0,)), 2.0), (1,)), p.sum(p.index(table, (at,), (0,)), (0,))


def beyond_the_end(p, table, at):
    """Indices computed from positions: those of the lanes beyond the end would be out of range."""
    n = at.shape[0]
    turned = p.add(p.iota(n, n - 1, -1, torch.int64, at.device), p.mul(at, 0))
    return p.index(p.index(table, (at,), (0,)), (turned,), (0,)), p.sum(p.gather(table, p.broadcast(turned, (n, 5), (0,)), 0), (1,))


def added(p, table, at):
    return p.index_put(table, (at,), (0,), p.index(table, (at,), (0,)), True)


@pytest.mark.parametrize("fn,columns", [
    (looked_up, 5), (looked_up, 2500), (beyond_the_end, 5), (beyond_the_end, 2500), (added, 5), (added, 2500),
    (looked_up_and_summed, 5), (looked_up_and_summed, 20_000),  # by a loop
])  # fmt: skip
def test_indices_out_of_range_stop_the_kernel(fn, columns):
    table, at = torch.randn(50, columns), torch.randint(0, 50, (33,))
    at[:2] = torch.tensor([0, 49])
    if fn is looked_up:
        at = at[:, None].expand(33, columns).clone()
    compiled = check(fn, [table, at], tol=1e-3)
    assert any("tl.device_assert(" in kernel.source for kernel in compiled.kernels)
    if fn is not looked_up:
        at[-1] = -50
        compiled(table.to(DEVICE), at.to(DEVICE))  # counted from the end
    if DEVICE == "cuda":
        return  # the context would be gone; test_gpu_bad_input.py does this in a process of its own
    for bad in (50, -51, 2**31 + 3, -(2**40)):
        at[-1] = bad
        with pytest.raises(Exception, match="out of range"):
            compiled(table, at)


def test_indices_that_are_in_range_are_not_checked():
    x = torch.randn(33, 20)
    compiled = check(lambda p, a: p.gather(a, p.broadcast(p.argmax(a, 1), (33, 20), (0,)), 1), [x])
    assert not any("tl.device_assert(" in kernel.source for kernel in compiled.kernels)


def test_gather_index_scatter():
    x = torch.randn(20, 16)
    i = torch.randint(0, 20, (8, 16))
    j = torch.randint(-20, 20, (7,))
    check(lambda p, a, b: p.gather(a, b, 0), [x, i])
    check(lambda p, a, b: p.index(a, (b,), (0,)), [x, j])
    check(lambda p, a, b, s: p.scatter(a, b, s, 0, "add"), [x, i, torch.randn(8, 16)], tol=1e-5)
    check(lambda p, a, b, s: p.index_put(a, (b,), (0,), s, True), [x, j, torch.randn(7, 16)], tol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (70, 40), (3, 2000)])
@pytest.mark.parametrize("spread", ["value", "both", "neither"])
def test_what_is_added_up_is_so_once_for_every_point(shape, spread):
    """Also where neither the value nor its place depends on the point."""
    place = {"value": (shape, ()), "both": (shape, tuple(range(len(shape)))), "neither": (shape, ())}[spread]
    source = torch.randint(1, 4, shape if spread == "both" else ()).double()

    def fn(p, x, value):
        at = p.full(shape, 1, torch.int64, x.device)
        if spread == "value":
            at = p.add(p.iota(shape[-1], 0, 1, torch.int64, x.device), 0)
            at = p.broadcast(at, shape, (len(shape) - 1,))
        return p.scatter(x, at, p.broadcast(value, *place), len(shape) - 1, "add")

    check(fn, [torch.randint(-3, 3, shape).double(), source])


def test_results_beside_a_reduction_are_written_as_they_are_made():
    """Triton 3.6 fails on some that are not."""

    def fn(p, x):
        mean = p.div(p.sum(p.cos(x), (0,)), 300.0)
        return p.add(p.abs(mean), 0.5), mean, p.floor_div(p.convert(mean, torch.int64), -3)

    (kernel,) = check(fn, [torch.randn(300)], devices=lambda _: SMALL, tol=1e-5).kernels
    stored = re.findall(r"tl.store\(.*v(\d+)\)$", kernel.source, re.M)
    assert len(stored) == 3 and [*map(int, stored)] == sorted(map(int, stored))


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 100), (300, 7), (20, 3000)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_gradient_of_what_norms_divide(shape, dim):
    """In loops, of sizes that are not known: what a loop reads of a row beside what is made of it is a block."""
    x, g = torch.randn(shape), torch.randn(shape)
    x.select(1 - dim, 1).zero_()
    compiled = check(normalized(dim), [x, g], devices=lambda _: SMALL, tol=1e-4, dynamic={0: (0, 1), 1: (0, 1)})
    assert len(compiled.kernels) > 1 or "b = tl.broadcast_to(v" in compiled.kernels[0].source


def test_integers_and_scalar_conditions_in_the_interpreter():
    """It leaves integers as they are where they become bfloat16, and calls comparisons of scalars floats."""

    def fn(p, x, i, s):
        there = p.logical_and(p.eq(x, p.broadcast(s, (70,), ())), p.broadcast(p.ge(s, 0.0), (70,), ()))
        return p.convert(i, torch.bfloat16), p.logical_and(p.broadcast(p.ne(s, s), (70,), ()), there), there

    check(fn, [torch.randint(0, 3, (70,)).float(), torch.arange(-35, 35), torch.tensor(1.0)])


def test_random_is_the_references():
    seed = torch.tensor(1234)
    def fn(p, a, s):
        return p.add(a, p.random_uniform((37, 5), s, 5003, torch.float32, a.device)), p.random_normal((64,), s, 0, torch.float32, a.device)
    check(fn, [torch.randn(37, 5), seed])


def test_special_values():
    x = torch.tensor([[0.0, float("nan"), 1.0], [float("inf"), -float("inf"), 2.0]])
    check(lambda p, a: (p.amax(a, (1,)), p.amin(a, (1,)), p.maximum(a, p.neg(a)), p.isnan(a)), [x])


def test_nothing_to_do():
    check(lambda p, a: p.neg(a), [torch.randn(0, 5)])
    check(lambda p, a: p.sum(a, (0,)), [torch.randn(0, 5)])
    check(lambda p, a: p.exp(a), [torch.randn(())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_primitives_conform(dtype):
    from prims.conformance import check_compiler

    if DEVICE == "cuda":
        pytest.skip("the conformance kit's samples are on the CPU")
    report = check_compiler(
        lambda env: inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True), dtypes=[dtype], samples=1
    )
    assert report.ok, str(report)


def convolution(x, w, bias, stride, device=None):
    return torch.ops.aten.convolution.default, x, w, bias, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1


def check_images(monkeypatch, fn, eager, inputs):
    """Compile ``fn`` as for a GPU, run it and compare with ``eager`` in float32; the compiled graph."""
    monkeypatch.setattr(Node, "on_gpu", True)
    inputs = [t.to(DEVICE) for t in inputs]
    compiled = inductor_gen.compile_graph(
        build(fn, inputs, claims=inductor_gen.claims("cuda")), options=Options(verify="off"), triton=True
    )
    for got, want in zip(compiled(*inputs), eager(*(t.float() for t in inputs)), strict=True):
        assert got.shape == want.shape and got.stride() == want.contiguous().stride()
        torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)
    return compiled


@pytest.mark.parametrize("channels,side,tile,bias", [(16, 6, 1, False), (7, 5, 1, True), (3, 8, 4, True), (24, 9, 2, False)])
def test_convolutions_over_tiles_are_products(monkeypatch, channels, side, tile, bias):
    x = torch.randn(2, channels, side, side).bfloat16()
    w = (torch.randn(12, channels, tile, tile) / (channels * tile * tile) ** 0.5).bfloat16()
    b = torch.randn(12).bfloat16()

    def fn(p, a, weight, c):
        y = p.aten(*convolution(p.mul(a, 0.5), weight, c if bias else None, tile))
        return p.maximum(y, 0.0), p.neg(y)

    def eager(a, weight, c):
        y = torch.nn.functional.conv2d(a * 0.5, weight, c if bias else None, tile)
        return y.relu(), -y

    compiled = check_images(monkeypatch, fn, eager, [x, w, b])
    assert compiled.externs == ("aten.mm.default",)


def test_gradients_of_a_1x1_convolution_are_products(monkeypatch):
    x, w = torch.randn(2, 10, 5, 4).bfloat16(), torch.randn(6, 10, 1, 1).bfloat16()
    g = torch.randn(2, 6, 5, 4).bfloat16()

    def fn(p, a, weight, grad):
        grad = p.mul(grad, 0.25)
        dx, dw, db = p.aten(
            torch.ops.aten.convolution_backward.default, grad, a, weight, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
            [True, True, True],
        )  # fmt: skip
        return p.mul(dx, 2.0), dw, db

    def eager(a, weight, grad):
        a, weight, bias = a.requires_grad_(), weight.requires_grad_(), torch.zeros(6, device=a.device, requires_grad=True)
        y = torch.nn.functional.conv2d(a, weight, bias)
        dx, dw, db = torch.autograd.grad(y, (a, weight, bias), grad * 0.25)
        return dx * 2, dw, db

    compiled = check_images(monkeypatch, fn, eager, [x, w, g])
    assert compiled.externs == ("aten.mm.default",) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape,fours", [((37, 64), True), ((3, 5, 20), True), ((64,), True), ((37, 5), False), ((7, 6), False)])
def test_uniform_numbers_in_fours(shape, fours, dtype):
    def fn(p, a, s):
        return p.random_uniform(shape, s, 5003, dtype, a.device), p.neg(p.random_uniform(shape, s, 1 << 40, dtype, a.device))

    c = check(fn, [torch.zeros(1), torch.tensor(1234)], tol=1e-7)
    assert all(("qt_words" in k.source) is fours for k in c.kernels)


@pytest.mark.parametrize("rows,columns,fours", [(50, 768, True), (5, 4100, True), (9, 30, False), (2, 40000, True)])
def test_dropout_beside_a_reduction(rows, columns, fours):
    def fn(p, a, s):
        kept = p.ge(p.random_uniform((rows, columns), s, 40, torch.float32, a.device), 0.25)
        x = p.where(kept, p.mul(a, 1 / 0.75), 0.0)
        return x, p.sub(x, p.broadcast(p.mul(p.sum(x, (1,)), 1 / columns), (rows, columns), (0,)))

    c = check(fn, [torch.randn(rows, columns), torch.tensor(77)], tol=1e-4)
    assert ("qt_words2" in c.kernels[0].source) is fours


def test_dropout_over_transposed_rows():
    def fn(p, a, s):
        kept = p.ge(p.random_uniform((64, 48), s, 9, torch.float32, a.device), 0.5)
        return p.sum(p.where(p.permute(kept, (1, 0)), a, 0.0), (1,)), p.sum(p.where(kept, p.permute(a, (1, 0)), 0.0), (1,))

    check(fn, [torch.randn(48, 64), torch.tensor(5)], tol=1e-4)


def test_small_buffers_share_an_allocation():
    from prims.ir import OutputDesc

    inputs = [torch.randn(300, 64).to(DEVICE)]

    def fn(p, a):
        mean, square = p.sum(a, (0,)), p.sum(p.mul(a, a), (0,))
        return mean, square, p.mul(mean, 2.0), p.amax(a, (0,))

    for kind, shared in (("saved", True), ("output", False)):
        env = build(fn, inputs, claims=inductor_gen.claims(DEVICE))
        env = env.replace(outputs=tuple(OutputDesc(kind, d.spec) for d in env.outputs))
        compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
        got = compiled(*inputs)
        assert (len({t.untyped_storage().data_ptr() for t in got}) == 1) is shared
        for t, want in zip(got, reference(fn, inputs, False), strict=True):
            assert t.shape == want.shape and t.is_contiguous() and t.data_ptr() % 16 == 0
            torch.testing.assert_close(t, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_reads_at_known_places(name, dtype):
    fn, shapes = CASES[name]
    assert not scatters(check(fn, inputs_of(shapes, dtype), tol=2e-3 if dtype == torch.float16 else None))
