"""The policies about bits in generated code: orders of sums, tiles and blocks of which rows decide none, no atomics."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build

import inductor_gen
from inductor_gen.extern import ordered
from inductor_gen.pipeline import lower_graph
from prims.errors import Unsupported
from prims.report import Report

INVARIANT = OPTIONS.replace(batch_invariant=True)
SAME = OPTIONS.replace(deterministic=True)
ROWS = (1, 2, 7, 32, 300, 4096)


# ---- own products ----------------------------------------------------------------------------------------------


def close(got: torch.Tensor, want: torch.Tensor, within: float = 2e-5) -> bool:
    assert got.shape == want.shape
    return bool((got.double() - want.double()).abs().max() <= within * want.double().abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 255, 17), (37, 600, 53), (5, 513, 130)])
def test_products(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    a, b, bias = (torch.randn(shape).to(dtype) for shape in ((m, k), (n, k), (n,)))
    exact = a.double() @ b.double().t()
    error = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-14}.get(dtype, 2e-5)
    got = ordered.product(a, b.t())
    assert got.dtype == dtype and close(got, exact, error)
    assert torch.equal(got, ordered.product(a, b.t().contiguous())), "the layout decides"
    assert all(torch.equal(ordered.product(a[i : i + 1], b.t())[0], got[i]) for i in range(m))
    assert all(torch.equal(ordered.product(a, b[j : j + 1].t())[:, 0], got[:, j]) for j in range(0, n, 5))
    sums, want = ordered.sum_of_product(bias, a, b.t(), beta=2, alpha=0.5), 2 * bias.double() + 0.5 * exact
    terms = 2 * bias.abs().double() + 0.5 * exact.abs()  # the two may cancel
    assert (sums.double() - want).abs().max() <= 2 * error * terms.max(), (sums, want)


def test_products_of_many_and_of_none() -> None:
    a, b = torch.randn(4, 3, 5, 6), torch.randn(4, 3, 6, 2)
    assert close(ordered.product(a, b), a @ b)
    assert ordered.product(torch.ones(3, 0), torch.ones(0, 4)).eq(0).all()
    assert ordered.product(torch.ones(0, 3), torch.ones(3, 4)).shape == (0, 4)
    whole = torch.randint(-9, 9, (3, 4))
    assert torch.equal(ordered.product(whole, whole.t()), whole @ whole.t())


SETTINGS = list(itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 2), (1, 2), (False, True)))


@pytest.mark.parametrize(("dims", "step", "pad", "apart", "groups", "transposed"), SETTINGS)
def test_convolutions(dims: int, step: int, pad: int, apart: int, groups: int, transposed: bool) -> None:
    x = torch.randn(3, 4, *(11, 9, 8)[:dims], requires_grad=True)
    kernel = (3, 2, 3)[:dims]
    weight = torch.randn(*((4, 6 // groups) if transposed else (6, 4 // groups)), *kernel, requires_grad=True)
    more = [min(step, apart) - 1] * dims if transposed else [0] * dims
    settings = ([step] * dims, [pad] * dims, [apart] * dims, transposed, more, groups)
    bias = torch.randn(6)
    want = torch.convolution(x, weight, bias, *settings)
    got = ordered.convolution(x.detach(), weight.detach(), bias, *settings)
    assert close(got, want.detach())
    one = ordered.convolution(x.detach()[1:2], weight.detach(), bias, *settings)
    assert torch.equal(one[0], got[1])
    grad = torch.randn_like(want)
    by_x, by_weight = torch.autograd.grad(want, (x, weight), grad)
    made = ordered.convolution_backward(grad, x.detach(), weight.detach(), [6], *settings, [True, True, True])
    assert close(made[0], by_x) and close(made[1], by_weight) and close(made[2], grad.transpose(0, 1).flatten(1).sum(1))


def test_images_with_channels_last() -> None:
    x, weight = torch.randn(2, 8, 12, 12), torch.randn(5, 8, 3, 3)
    settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    rows = ordered.convolution(x, weight, None, *settings)
    assert torch.equal(rows, ordered.convolution(x.to(memory_format=torch.channels_last), weight, None, *settings))


# ---- kernels for a GPU -----------------------------------------------------------------------------------------


def layer(p: Any, x: Any, w: Any, b: Any) -> Any:
    """A product, and a softmax over its columns."""
    y = p.aten(torch.ops.aten.addmm.default, b, x, p.permute(w, (1, 0)))
    e = p.exp(p.sub(y, p.broadcast(p.amax(y, (1,)), y.shape, (0,))))
    return p.div(e, p.broadcast(p.sum(e, (1,)), y.shape, (0,)))


def columns(p: Any, x: Any) -> Any:
    """Sums along the dimension that is not contiguous."""
    return p.sum(p.mul(x, 2.0), (0,))


def blocks(fn: Any, inputs: list[torch.Tensor], options: Any) -> tuple[list[Any], Report]:
    """What decides the order of sums in each kernel: blocks, tiles, warps and stages."""
    report = Report()
    env = build(fn, inputs, claims=inductor_gen.claims("cuda", options))
    sources = lower_graph(env, options, report, triton=True).sources()
    sizes = r"([RK]BLOCK: tl\.constexpr = \d+|# \d+x\d+x\d+ .*|for \w+ in range|tl\.program_id\(1\))"
    whole = r"([XY]BLOCK: tl\.constexpr = \d+)"
    return [(re.findall(sizes, s.text), re.findall(whole, s.text), s.warps, s.stages) for s in sources], report


@pytest.mark.parametrize("width", [90, 3000, 20000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_have_no_say(dtype: torch.dtype, width: int) -> None:
    def of(rows: int, options: Any) -> tuple[list[Any], Report]:
        inputs = [torch.randn(rows, 64), torch.randn(width, 64), torch.randn(width)]
        return blocks(layer, [x.to(dtype) for x in inputs], options)

    found = [of(rows, INVARIANT) for rows in ROWS]
    assert all(made == found[0][0] for made, _ in found), "another block for another batch"
    assert all(r.policies[0].op == "aten.addmm.default" and r.policies[0].held for _, r in found)
    if width != 3000:  # a block for each whole row, in any case
        usual = [of(rows, OPTIONS)[0] for rows in ROWS]
        assert any(made != usual[0] for made in usual), "a test that sees nothing"


def test_columns_have_no_say() -> None:
    found = [blocks(columns, [torch.randn(333, rows)], INVARIANT)[0] for rows in ROWS]
    assert all(made == found[0] for made in found)


def test_what_the_library_computes_is_named() -> None:
    def wide(p: Any, x: Any, y: Any) -> Any:
        return p.mul(p.aten(torch.ops.aten.mm.default, x, y), 2.0)

    inputs = [torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]
    env = build(wide, inputs, claims=inductor_gen.claims("cpu", INVARIANT))
    report = Report()
    lower_graph(env, INVARIANT, report)
    assert [(p.op, p.held) for p in report.policies] == [("aten.mm.default", True)]

    def spectrum(p: Any, x: Any) -> Any:
        return p.aten(torch.ops.aten.cholesky_inverse.default, x)

    env = build(spectrum, [torch.eye(3)], claims=inductor_gen.claims("cpu", INVARIANT))
    lower_graph(env, INVARIANT, report)
    assert [(p.op, p.held) for p in report.policies[1:]] == [("aten.cholesky_inverse.default", False)]
    with pytest.raises(Unsupported, match="not known to compute each row by itself"):
        lower_graph(env, INVARIANT.replace(strict=True), report)


# ---- deterministic ---------------------------------------------------------------------------------------------


def summed(p: Any, x: Any, at: Any, values: Any) -> Any:
    return p.index_put(x, (at,), (0,), values, True)


def test_no_atomic_additions() -> None:
    inputs = [torch.zeros(5, 3), torch.tensor([1, 4, 1, 0]), torch.randn(4, 3)]
    usual = lower_graph(build(summed, inputs), OPTIONS, triton=True)
    assert any("atomic_add" in s.text for s in usual.sources())
    report = Report()
    lowered = lower_graph(build(summed, inputs), SAME, report, triton=True)
    assert not any("atomic" in s.text for s in lowered.sources())
    assert [(p.policy, p.op, p.held) for p in report.policies] == [("deterministic", "index_put", True)]
    whole = lower_graph(build(summed, [t.long() for t in inputs]), SAME, triton=True)
    assert any("atomic_add" in s.text for s in whole.sources()), "integers have one sum"
    x, at, values = inputs
    compiled = inductor_gen.compile_graph(build(summed, inputs), options=SAME)
    torch.testing.assert_close(compiled(*inputs)[0], x.index_put((at,), values, accumulate=True))


def test_claims_follow_the_options() -> None:
    assert "aten.index_put.default" in inductor_gen.claims("cuda", SAME)
    assert "aten.index_put.default" not in inductor_gen.claims("cuda", OPTIONS)
    assert not any("_attention" in name for name in inductor_gen.claims("cpu", INVARIANT))
    assert inductor_gen.claims("cpu", OPTIONS) == inductor_gen.claims("cpu")
