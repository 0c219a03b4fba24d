"""Matrix products by template; run under TRITON_INTERPRET=1 (or on a GPU) by test_templates.py.

Candidates are measured by a clock of the test's own, which prefers the tile named in ``FORCED``.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from gen_support import build, reference

import inductor_gen
from inductor_gen.device.cuda import KNOWN
from inductor_gen.device.record import known
from inductor_gen.templates import contest, tilings
from inductor_gen.templates.decisions import Decisions
from inductor_gen.templates.matmul import Tile
from prims.errors import InternalError
from prims.options import Options
from prims.report import Report

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
aten = torch.ops.aten
TILE = Tile(16, 32, 16, 4, 2)
ROW = Tile(1, 16, 32, 4, 2)
LASTING = Tile(16, 32, 16, 4, 2, 2, lasting=True)


@pytest.fixture(autouse=True)
def _one_tile(monkeypatch, tmp_path):
    """One tile, which always wins: by the clock, the first run of a problem is the library's and takes longest."""
    monkeypatch.setattr("inductor_gen.templates.products.tiles_for", lambda *a: [TILE])
    times = iter(range(10**6, 0, -1))
    monkeypatch.setattr(contest.bench, "milliseconds", lambda run, device: float(next(times)))
    monkeypatch.setattr(contest, "GAIN", 1.0)
    Decisions.forget()


def run(fn, inputs, tmp_path, *, numerics="fast", multiprocessors=132, **kw):
    inputs = [t.to(DEVICE) for t in inputs]
    env = build(fn, inputs, claims=inductor_gen.claims("cuda"), **kw)
    report = Report()
    options = Options(verify="off", max_autotune=True, numerics=numerics, cache_dir=str(tmp_path))
    device = dataclasses.replace(known("H100"), multiprocessors=multiprocessors)
    compiled = inductor_gen.compile_graph(env, options=options, report=report, triton=True, devices=lambda _: device)
    return compiled, report, compiled(*inputs), inputs


def check(fn, inputs, tmp_path, *, products=1, externs=0, kernels=None, tile=TILE, **kw):
    """Every product by template, compared with float64."""
    compiled, report, outputs, inputs = run(fn, inputs, tmp_path, **kw)
    assert not report.fallbacks, report.fallbacks
    assert [t.winner for t in report.tunings] == [str(tile)] * products, report.tunings
    assert len(compiled.externs) == externs, compiled.externs
    assert kernels is None or len(compiled.kernels) == kernels, [k.name for k in compiled.kernels]
    exact, rough = reference(fn, inputs, True), reference(fn, inputs, False)
    for got, want, usual in zip(outputs, exact, rough, strict=True):
        assert got.dtype == usual.dtype and got.shape == usual.shape and got.stride() == usual.stride()
        if got.dtype.is_floating_point and got.numel():
            limit = LIMITS[got.dtype] * max(want.abs().max().item(), 1.0)
            assert (got.double() - want).abs().max().item() <= limit
        else:
            torch.testing.assert_close(got, usual, rtol=0, atol=0)
    return compiled, report


def mm(p, a, b):
    return p.aten(aten.mm.default, a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m, n, k", [(32, 64, 32), (33, 65, 17), (1, 40, 50), (17, 1, 5), (1, 1, 1), (16, 32, 16)])
def test_product(dtype, m, n, k, tmp_path):
    check(mm, [torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)], tmp_path, kernels=1)


@pytest.mark.parametrize("left, right", [(True, False), (False, True), (True, True)])
def test_transposed_operands(left, right, tmp_path):
    a = torch.randn(19, 23).t() if left else torch.randn(23, 19)
    b = torch.randn(37, 19).t() if right else torch.randn(19, 37)
    check(mm, [a, b], tmp_path, kernels=1)


def test_operands_inside_larger_buffers(tmp_path):
    def fn(p, x, w):
        return mm(p, p.slice(x, (2, 5), (20, 22), (1, 1)), p.permute(p.slice(w, (1, 0), (34, 34), (1, 2)), (1, 0)))

    check(fn, [torch.randn(21, 40), torch.randn(40, 34)], tmp_path, kernels=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activation_and_bias(dtype, tmp_path):
    def fn(p, x, w, c):
        y = p.add(mm(p, x, w), p.broadcast(c, (33, 50), (1,)))
        return p.mul(p.mul(y, 0.5), p.add(p.erf(p.mul(y, 0.7071)), 1.0))

    inputs = [torch.randn(33, 20).to(dtype), torch.randn(20, 50).to(dtype), torch.randn(50).to(dtype)]
    compiled, _ = check(fn, inputs, tmp_path, kernels=1)
    assert "aten.mm.default" in compiled.kernels[0].ops and "erf" in compiled.kernels[0].ops


def test_residual_and_conversion(tmp_path):
    def fn(p, x, w, r):
        y = p.add(p.convert(mm(p, x, w), torch.float32), r)
        return y, p.convert(p.mul(y, 2.0), torch.float16)

    check(fn, [torch.randn(20, 24).half(), torch.randn(24, 40).half(), torch.randn(20, 40)], tmp_path, kernels=1)


def test_gated_products_share_one_epilogue(tmp_path):
    def fn(p, x, v, w):
        gate = mm(p, x, v)
        return p.mul(p.mul(gate, p.sigmoid(gate)), mm(p, x, w))

    check(fn, [torch.randn(18, 20), torch.randn(20, 36), torch.randn(20, 36)], tmp_path, products=2, kernels=2)


def test_reshaped_and_permuted_after(tmp_path):
    def fn(p, x, w):
        y = p.reshape(mm(p, x, w), (2, 9, 4, 8))
        return p.mul(p.permute(y, (0, 2, 1, 3)), 3.0)

    check(fn, [torch.randn(18, 20), torch.randn(20, 32)], tmp_path, kernels=1)


def test_flattened_after(tmp_path):
    def fn(p, x, w):
        return p.exp(p.reshape(mm(p, x, w), (18 * 32,)))

    check(fn, [torch.randn(18, 20) / 4, torch.randn(20, 32) / 4], tmp_path, kernels=1)


def test_product_kept_beside_what_reads_it(tmp_path):
    def fn(p, x, w):
        y = mm(p, x, w)
        z = p.tanh(y)
        return y, z, p.gt(z, 0.0)

    check(fn, [torch.randn(18, 20), torch.randn(20, 33)], tmp_path, kernels=1)


def test_product_kept_for_a_later_product(tmp_path):
    def fn(p, x, w):
        y = mm(p, x, w)
        return mm(p, p.tanh(y), y)

    check(fn, [torch.randn(20, 20) / 4, torch.randn(20, 20) / 4], tmp_path, products=2, kernels=2)


def test_random_numbers_after_a_product_are_those_of_any_kernel(tmp_path):
    def fn(p, seed, x, w):
        kept = p.ge(p.random_uniform((18, 36), seed, 40, torch.float32, x.device), 0.25)
        return p.where(kept, mm(p, x, w), 0.0), kept

    check(fn, [torch.tensor(1234), torch.randn(18, 20), torch.randn(20, 36)], tmp_path, kernels=1)


def test_reductions_stay_apart(tmp_path):
    def fn(p, x, w):
        return p.sum(p.exp(mm(p, x, w)), (1,))

    check(fn, [torch.randn(18, 20) / 4, torch.randn(20, 33) / 4], tmp_path, kernels=2)


@pytest.mark.parametrize("bias", [(40,), (18, 40), (1, 40), (18, 1)])
@pytest.mark.parametrize("kwargs", [{}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0}])
def test_addmm(bias, kwargs, tmp_path):
    def fn(p, c, x, w):
        return p.maximum(p.aten(aten.addmm.default, c, x, w, **kwargs), 0.0)

    check(fn, [torch.randn(bias), torch.randn(18, 20), torch.randn(20, 40)], tmp_path, kernels=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batches(dtype, tmp_path):
    def fn(p, x, y):
        return p.mul(p.aten(aten.bmm.default, x, y), 0.25)

    x, y = torch.randn(3, 17, 20).to(dtype), torch.randn(3, 33, 20).to(dtype).transpose(1, 2)
    check(fn, [x, y], tmp_path, kernels=1)
    check(lambda p, a, b: p.aten(aten.bmm.default, a, b), [x, y], tmp_path, kernels=1)


def test_batches_with_bias_and_heads_apart(tmp_path):
    def fn(p, c, x, y):
        z = p.reshape(p.aten(aten.baddbmm.default, c, x, y), (2, 3, 17, 33))
        return p.add(p.permute(z, (0, 2, 1, 3)), 1.0)

    check(fn, [torch.randn(6, 1, 33), torch.randn(6, 17, 20), torch.randn(6, 20, 33)], tmp_path, kernels=1)


def test_dot_of_four_dimensions(tmp_path):
    x, y = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 7, 4)
    check(lambda p, a, b: p.neg(p.dot(a, b)), [x, y], tmp_path, kernels=1)


@pytest.mark.parametrize("shape", [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
def test_empty_products_stay_with_the_library(shape, tmp_path):
    m, n, k = shape
    check(mm, [torch.randn(m, k), torch.randn(k, n)], tmp_path, products=0, externs=1)


def test_other_dtypes_stay_with_the_library(tmp_path):
    inputs = [torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)]
    check(mm, inputs, tmp_path, products=0, externs=1)


def test_dynamic_sizes(tmp_path):
    def fn(p, x, w, c):
        y = mm(p, x, w)
        return p.tanh(p.add(y, p.broadcast(c, y.shape, (1,))))

    inputs = [torch.randn(21, 24) / 5, torch.randn(24, 40), torch.randn(40)]
    compiled, _ = check(fn, inputs, tmp_path, kernels=1, dynamic={0: (0,)})
    for rows in (1, 16, 50):
        more = [torch.randn(rows, 24, device=DEVICE) / 5, *(t.to(DEVICE) for t in inputs[1:])]
        want = torch.tanh((more[0].double() @ more[1].double()) + more[2].double())
        torch.testing.assert_close(compiled(*more)[0].double(), want, rtol=1e-5, atol=1e-5)


def test_rounded_between_where_numerics_are_eagers(tmp_path):
    def fn(p, x, w):
        return p.mul(p.convert(mm(p, x, w), torch.float32), 1.0)

    inputs = [torch.randn(16, 32).half(), torch.randn(32, 32).half()]
    _, _, (close,), inputs = run(fn, inputs, tmp_path, numerics="eager_close")
    assert torch.equal(close, close.half().float())
    Decisions.forget()
    _, _, (fast,), _ = run(fn, inputs, tmp_path)
    assert not torch.equal(fast, fast.half().float())


def test_nothing_is_fused_where_that_is_not_wanted(tmp_path):
    inputs = [torch.randn(16, 16, device=DEVICE), torch.randn(16, 16, device=DEVICE)]
    env = build(lambda p, a, b: p.exp(mm(p, a, b)), inputs)
    options = Options(verify="off", max_autotune=True, epilogue_fusion=False, cache_dir=str(tmp_path))
    assert len(inductor_gen.compile_graph(env, options=options, triton=True).kernels) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("m, n, k", [(1, 40, 50), (2, 16, 32), (1, 1, 3)])
@pytest.mark.parametrize("turned", [True, False])
def test_single_rows(dtype, m, n, k, turned, tmp_path, monkeypatch):
    monkeypatch.setattr("inductor_gen.templates.products.tiles_for", lambda *a: [ROW])

    def fn(p, c, x, w):
        return p.tanh(p.aten(aten.addmm.default, c, x, w))

    w = torch.randn(n, k).t() if turned else torch.randn(k, n)
    check(fn, [torch.randn(n).to(dtype), torch.randn(m, k).to(dtype), w.to(dtype)], tmp_path, kernels=1, tile=ROW)


def test_products_with_odd_rows_need_no_contest(monkeypatch):
    monkeypatch.setattr("inductor_gen.pipeline.is_half_product", lambda node: True)
    monkeypatch.setattr("inductor_gen.templates.choice.misaligned", lambda node: node.op == "aten.mm.default")
    monkeypatch.setattr("inductor_gen.templates.choice.odd_tile", lambda device: LASTING)
    inputs = [torch.randn(40, 24).bfloat16().to(DEVICE), torch.randn(51, 24).bfloat16().to(DEVICE)]

    def fn(p, a, w):
        y = mm(p, a, p.permute(w, (1, 0)))
        return p.reshape(y, (5, 8, 51))

    env = build(fn, inputs, claims=inductor_gen.claims("cuda"))
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
    assert not compiled.externs and len(compiled.kernels) == 1
    (got,) = compiled(*inputs)
    want = (inputs[0].float() @ inputs[1].float().t()).reshape(5, 8, 51)
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kept", [False, True])
def test_shallow_products_join_what_reads_them_without_a_contest(kept, monkeypatch):
    """Unless the product is needed itself."""
    monkeypatch.setattr("inductor_gen.pipeline.is_half_product", lambda node: True)
    monkeypatch.setattr(
        "inductor_gen.templates.choice.shallow_tile", lambda m, n, k, dtype, device: TILE if n == 48 else None
    )
    monkeypatch.setattr("inductor_gen.templates.choice.spared", lambda m, n, k, tile, device: device.launch_cost * m * n * k)
    monkeypatch.setattr("inductor_gen.templates.choice.LEAST", 40 * 48 * 23.5)
    inputs = [torch.randn(s).mul(0.3).bfloat16().to(DEVICE) for s in ((40, 24), (24, 48), (48, 20), (48,))]

    def fn(p, a, w, v, c):
        y = mm(p, a, w)
        z = p.maximum(p.add(y, p.broadcast(c, (40, 48), (1,))), 0.0)
        return (mm(p, z, v), y) if kept else mm(p, z, v)

    env = build(fn, inputs, claims=inductor_gen.claims("cuda"))
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
    assert len(compiled.kernels) == 1 and len(compiled.externs) == (2 if kept else 1)
    assert ("tl.dot(" in compiled.kernels[0].source) is not kept
    for got, want in zip(compiled(*inputs), reference(fn, inputs, False), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=0.05)
    monkeypatch.setattr("inductor_gen.templates.choice.LEAST", 40 * 48 * 24.5)  # a template spares too little
    assert len(inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True).externs) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m, n, k", [(70, 65, 40), (16, 300, 16), (33, 31, 17), (5, 7, 3)])
def test_lasting_tiles(dtype, m, n, k, tmp_path, monkeypatch):
    monkeypatch.setattr("inductor_gen.templates.products.tiles_for", lambda *a: [LASTING])

    def fn(p, c, x, w):
        return p.mul(p.aten(aten.addmm.default, c, x, p.permute(w, (1, 0))), 2.0)

    inputs = [torch.randn(n).to(dtype), torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)]
    check(fn, inputs, tmp_path, kernels=1, tile=LASTING, multiprocessors=3)


def test_lasting_tiles_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr("inductor_gen.templates.products.tiles_for", lambda *a: [LASTING])

    def fn(p, x, w):
        return p.exp(p.aten(aten.bmm.default, x, w))

    check(fn, [torch.randn(3, 20, 18), torch.randn(3, 18, 33)], tmp_path, kernels=1, tile=LASTING, multiprocessors=2)


def programs():
    x, y = torch.randn(70, 300), torch.randn(70, 300)
    return {
        "pointwise": (lambda p, a, b: (p.add(p.sin(a), b), p.gt(a, b)), [x, y]),
        "transposed": (lambda p, a, b: p.add(p.permute(a, (1, 0)), b), [x, y.t().contiguous()]),
        "rows": (lambda p, a: p.sub(a, p.broadcast(p.amax(a, (1,)), (70, 300), (0,))), [x]),
        "columns": (lambda p, a: p.sum(a, (0,)), [x]),
        "split": (lambda p, a: (p.sum(a, (0,)), p.argmax(a, 0)), [torch.randn(9000)]),
        "long scan": (lambda p, a: p.cumsum(a, 1), [torch.randn(5, 9000)]),
        "scan": (lambda p, a: p.cumsum(a, 1), [x]),
    }


@pytest.mark.parametrize("tiling", tilings._TRIED, ids=str)
@pytest.mark.parametrize("name", programs())
def test_every_tiling_computes_the_same(name, tiling, tmp_path, monkeypatch):
    monkeypatch.setattr(tilings, "LEAST", 0)
    monkeypatch.setattr(tilings, "_TRIED", (tiling,))
    fn, inputs = programs()[name]
    compiled, report, outputs, inputs = run(fn, inputs, tmp_path)
    assert not report.fallbacks and not any(t.dropped for t in report.tunings), report
    for got, want in zip(outputs, reference(fn, inputs, False), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-3 if name == "long scan" else 1e-4)
    # nothing is measured where blocks are at their least already
    assert report.tunings and all(t.winner != "as planned" or not t.times for t in report.tunings), report.tunings
    if name in ("pointwise", "transposed", "columns"):
        assert all(t.times for t in report.tunings)


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels chosen for another device run in the interpreter")
@pytest.mark.parametrize("device", [*KNOWN, "L4 of one multiprocessor"])
@pytest.mark.parametrize("name", programs())
def test_what_is_chosen_for_another_device_computes_the_same(name, device):
    record = KNOWN[device] if device in KNOWN else dataclasses.replace(KNOWN["L4"], multiprocessors=1, registers=2048)
    fn, inputs = programs()[name]
    env = build(fn, inputs, claims=inductor_gen.claims("cuda"))
    options = Options(verify="off", cache=False)
    compiled = inductor_gen.compile_graph(env, options=options, triton=True, devices=lambda _: record)
    assert compiled.kernels and not compiled.externs
    for got, want in zip(compiled(*inputs), reference(fn, inputs, False), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-3 if name == "long scan" else 1e-4)


def test_a_kernel_that_does_not_compile_is_dropped(tmp_path, monkeypatch):
    load = contest.bench.load_kernels

    def refuse(*args):
        found, refused = load(*args)
        bad = [name for name in found if "aten_mm" in name]
        return {k: v for k, v in found.items() if k not in bad}, {
            **refused,
            **dict.fromkeys(bad, "too much shared memory"),
        }

    monkeypatch.setattr(contest.bench, "load_kernels", refuse)
    compiled, report, (got,), (a, b) = run(mm, [torch.randn(20, 20), torch.randn(20, 20)], tmp_path)
    assert report.tunings[0].winner == "library" and list(report.tunings[0].dropped.values()) == [
        "too much shared memory"
    ]
    torch.testing.assert_close(got, a @ b)


def test_a_kernel_that_does_not_start_is_dropped(tmp_path, monkeypatch):
    load = contest.bench.load_kernels

    def broken(*args):
        raise InternalError("the driver refused to launch it (error 1)")

    monkeypatch.setattr(contest.bench, "load_kernels", lambda *a: (dict.fromkeys(load(*a)[0]), {}))
    monkeypatch.setattr(contest.bench.Bench, "_launch", lambda *a: broken)
    compiled, report, (got,), (a, b) = run(mm, [torch.randn(20, 20), torch.randn(20, 20)], tmp_path)
    assert report.tunings[0].winner == "library" and "error 1" in next(iter(report.tunings[0].dropped.values()))
    torch.testing.assert_close(got, a @ b)


def test_a_second_process_compiles_the_winner_only(tmp_path, monkeypatch):
    inputs = [torch.randn(20, 24), torch.randn(24, 33)]
    fn = lambda p, a, b: p.tanh(mm(p, a, b))
    run(fn, inputs, tmp_path)
    Decisions.forget()

    def never(*args):
        raise AssertionError("nothing is to be measured or compiled for measuring")

    monkeypatch.setattr(contest.bench, "milliseconds", never)
    monkeypatch.setattr(contest.bench, "load_kernels", never)
    compiled, report, _, _ = run(fn, inputs, tmp_path)
    assert [t.cached for t in report.tunings] == [True] and len(compiled.kernels) == 1 and not compiled.externs
