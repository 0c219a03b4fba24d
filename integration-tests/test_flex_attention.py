"""``flex_attention`` compiled: one graph for its score and mask functions, eager's results, gradients of the formula."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from scored_attention import MASKS as MASK_PROGRAMS
from scored_attention import SCORES as SCORE_PROGRAMS
from scored_attention import judge, masked, scored
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compile_api

B, H, T, D = 2, 4, 16, 8

torch.manual_seed(0)
SLOPES = torch.randn(H)
TABLE = torch.randn(H, T, T)
DOCUMENTS = torch.randint(0, 3, (B, T))
FACTOR = torch.tensor(0.3, dtype=torch.float64)
OFFSET = torch.tensor(3)


def relative(score, batch, head, query, key):
    if SLOPES.numel() > 2:  # known when the graph is made
        return score + SLOPES[head] * (query - key)
    return score


def written(score, batch, head, query, key):
    score += SLOPES[head]
    return score


SCORES = {
    "none": None,
    "slopes": relative,
    "table": lambda s, b, h, q, k: s + TABLE[h, q, k],
    "rows of rows": lambda s, b, h, q, k: s + TABLE[h][q][k],
    "a place that is known": lambda s, b, h, q, k: s + TABLE[h, 0, k] + TABLE[h][-1][q],
    "a place in a tensor": lambda s, b, h, q, k: s + TABLE[h, OFFSET, k],
    "capped": lambda s, b, h, q, k: torch.tanh(s / 5) * 5,
    "causal": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    "documents": lambda s, b, h, q, k: torch.where(DOCUMENTS[b, q] == DOCUMENTS[b][k], s, -float("inf")),
    "a factor in double precision": lambda s, b, h, q, k: s * FACTOR,
    "in place": written,
    "made": lambda s, b, h, q, k: s + b.new_ones(()) + torch.zeros_like(s),
}
MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q - k).abs() <= 3,
    "documents": lambda b, h, q, k: DOCUMENTS[b, q] == DOCUMENTS[b, k],
    "rows that see nothing": lambda b, h, q, k: (q >= k) & (q > 3),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager's own, of not being compiled
        yield


def operands(heads=H, dtype=torch.float32):
    torch.manual_seed(1)
    return [torch.randn(B, n, T, D).to(dtype) for n in (H, heads, heads)]


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [x for item in value if item is not None for x in flat(item)]


def captured(fn, *inputs):
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
    ours = flat(compiled(*inputs))
    report = compiled.report()
    assert report.kernels and not report.fallbacks and not report.breaks
    return compiled, ours


def check(fn, *inputs):
    _, ours = captured(fn, *inputs)
    theirs = flat(fn(*inputs))
    for a, b in zip(ours, theirs, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1.6e-2 if a.dtype == torch.bfloat16 else 1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name):
    check(lambda q, k, v: flex_attention(q * 1.5, k, v, score_mod=SCORES[name]).sin(), *operands())


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    mask = create_block_mask(MASKS[name], B, None, T, T, device="cpu", BLOCK_SIZE=8)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=relative, block_mask=mask), *operands())


def test_combined_masks():
    both = module.and_masks(MASKS["causal"], module.or_masks(MASKS["window"], MASKS["documents"]))
    mask = create_block_mask(both, B, H, T, T, device="cpu")
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *operands())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_element_types(dtype):
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=relative, scale=0.5), *operands(dtype=dtype))


def test_grouped_heads_and_memory_order():
    q, k, v = operands(heads=2)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=relative, enable_gqa=True), q, k, v)


def test_sums_beside_the_result():
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES["causal"], return_lse=True), *operands())
    if hasattr(module, "AuxRequest"):
        aux = module.AuxRequest(lse=True)
        check(lambda q, k, v: flex_attention(q, k, v, return_aux=aux), *operands())


def formula(q, k, v, slopes, table):
    n = torch.arange(T)
    scores = q @ k.transpose(-2, -1) / math.sqrt(D) + slopes[:, None, None] * (n[:, None] - n) + table
    return scores.tanh().masked_fill(n[:, None] < n, -math.inf).softmax(-1) @ v


def test_gradients():
    """PyTorch's own has none on a CPU; the written formula has."""
    mask = create_block_mask(MASKS["causal"], None, None, T, T, device="cpu")

    def fn(q, k, v, slopes, table):
        score = lambda s, b, h, i, j: (s + slopes[h] * (i - j) + table[h, i, j]).tanh()
        return flex_attention(q, k, v, score_mod=score, block_mask=mask)

    results = []
    for attend, dtype in ((fn, torch.float32), (formula, torch.float64)):
        given = [t.to(dtype).requires_grad_() for t in (*operands(), SLOPES, TABLE)]
        (out,) = captured(fn, *given)[1] if attend is fn else [formula(*given)]
        results.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), given)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_sizes_that_change():
    fn = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i >= j, s - (i - j), -1e9))
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
    for length in (16, 24, 40, 7):
        q, k, v = (torch.randn(B, H, length, D) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=1e-4, atol=1e-5)
    assert not compiled.report().fallbacks
    assert len(compiled.report().recompiles) <= 1


def test_what_the_functions_read_may_change():
    slopes, scale = torch.randn(H), [1.0]
    fn = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * scale[0] + slopes[h] * (i - j))
    compiled, _ = captured(fn, *operands())
    slopes.mul_(-1)
    torch.testing.assert_close(compiled(*operands()), fn(*operands()), rtol=1e-4, atol=1e-5)
    scale[0] = 3.0
    torch.testing.assert_close(compiled(*operands()), fn(*operands()), rtol=1e-4, atol=1e-5)


REFUSED = {
    "a sum": lambda s, b, h, i, j: s.sum(),
    "a softmax": lambda s, b, h, i, j: s.softmax(0),
    "dimensions": lambda s, b, h, i, j: (s + SLOPES).sum(),
    "a slice": lambda s, b, h, i, j: s + TABLE[h, :, j].sum(),
    "written place": lambda s, b, h, i, j: s + i.add_(1),
    "no tensor": lambda s, b, h, i, j: 1.0,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_means_something_else_for_all_scores_breaks(name):
    fn = lambda q, k, v: flex_attention(q, k, v, score_mod=REFUSED[name])
    with pytest.raises(Exception, match="QB23"):
        compile_api.compile(fn, fullgraph=True)(*operands())


def test_side_effects_break():
    seen = []

    def score(s, b, h, i, j):
        seen.append(1)
        return s

    with pytest.raises(Exception, match=r"it has side effects \[QB23\]"):
        compile_api.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=score), fullgraph=True)(*operands())


def test_bad_calls_raise_eagers_errors():
    q, k, v = operands(heads=2)
    compiled = compile_api.compile(lambda q, k, v: flex_attention(q, k, v))
    with pytest.raises(ValueError, match="same number of heads"):
        compiled(q, k, v)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Traced as where there are kernels for it: here the operators' formulas run."""
    monkeypatch.setattr("aot_autograd.trace.scored.DEVICES", ("cpu",))


@pytest.mark.parametrize("name", SCORE_PROGRAMS)
def test_operators(name, as_on_a_gpu):
    function = scored(name, 4, 20, 33, "cpu")
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    judge(function, compiled, (4, 2), (20, 33), (8, 16), torch.bfloat16, "cpu")
    assert [e.name.split("_")[0] for e in compiled.report().externs] == ["quintet.attention"] * 2


@pytest.mark.parametrize("name", MASK_PROGRAMS)
def test_operators_with_block_masks(name, as_on_a_gpu):
    function = masked(name, 2, 70, "cpu", 32)
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True}, dynamic=False)
    judge(function, compiled, (2, 1), (70, 70), (8, 8), torch.float16, "cpu")


ELEMENTWISE = {
    "//": lambda s, b, h, i, j: s + (i // 2),
    "% & |": lambda s, b, h, i, j: torch.where(((i % 3) > (j & 1)) | ~(i > 2), s, 0.0),
    "<< >> ^": lambda s, b, h, i, j: torch.where((i > j) ^ ((i << 1) > (j >> 1)), s, -1.0),
    "abs, powers": lambda s, b, h, i, j: s - abs(i - j) * 2.0 ** -(h + 1) + torch.exp2(-(h + 1.0)),
    "logarithms": lambda s, b, h, i, j: s + torch.log((i - j).abs() + 1.0) - torch.log1p((i - j).abs().float()),
    "roots": lambda s, b, h, i, j: s / torch.sqrt(i + 1.0) * torch.rsqrt(j + 1.0),
    "bounds": lambda s, b, h, i, j: s.clamp(-1, 1) + torch.minimum(i, j) - torch.clamp(i - j, min=-2, max=2),
    "conversions": lambda s, b, h, i, j: s + (i - j).to(s.dtype) * 0.1 + (i > j).int() + (i - j).type_as(s),
    "activations": lambda s, b, h, i, j: F.silu(s) + F.gelu(s) + torch.sigmoid(s) + F.logsigmoid(s) + F.softplus(s),
    "fills": lambda s, b, h, i, j: s.masked_fill(i < j, -1e9) + torch.zeros_like(s) + torch.where(i > j, s, torch.full_like(s, 2)),
    "division": lambda s, b, h, i, j: s + torch.div(i, 2, rounding_mode="floor") + i / (j + 1) + torch.fmod(i, 2),
    "signs": lambda s, b, h, i, j: torch.copysign(s, i - j) * torch.sign(j + 1) + torch.frac(s) - torch.nan_to_num(s),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_calls_are_captured(name):
    function = lambda q, k, v: flex_attention(q, k, v, score_mod=ELEMENTWISE[name])
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    operands = [torch.randn(2, 2, 6, 4) for _ in range(3)]
    torch.testing.assert_close(compiled(*operands), function(*operands), rtol=1e-4, atol=1e-5)


def operators_in(function, *args, **options):
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True, **options})
    compiled(*args)
    return sum("quintet.attention" in e.name for e in compiled.report().externs)


def test_what_the_operators_cannot_do_stays_the_formula(as_on_a_gpu):
    halves = [torch.randn(1, 2, 5, 8, dtype=torch.float16) for _ in range(3)]
    plain = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 2)
    learnt = torch.ones(2, requires_grad=True)
    double = torch.tensor(2.0, dtype=torch.float64)
    assert operators_in(plain, *halves) == 1
    assert operators_in(plain, *[x.float() for x in halves]) == 0
    assert operators_in(plain, *halves, numerics="eager_close") == 0
    assert (
        operators_in(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * learnt[h]), *halves)
        == 0
    )
    assert (
        operators_in(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * double), *halves) == 0
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert operators_in(plain, *[x.float() for x in halves]) == 1


def test_second_derivatives_of_the_operators(as_on_a_gpu):
    function = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s))
    compiled = compile_api.compile(function, fullgraph=True)
    exact = compile_api.compile(function, fullgraph=True, backend="eager")
    start = [torch.randn(1, 2, 12, 8).half() for _ in range(3)]
    found = []
    for run, kind in ((compiled, torch.float16), (exact, torch.float64)):
        leaves = [x.to(kind, copy=True).requires_grad_() for x in start]
        (first,) = torch.autograd.grad(run(*leaves).double().square().sum(), leaves[0], create_graph=True)
        found.append(torch.autograd.grad(first.double().square().sum(), leaves)[1].double())
    torch.testing.assert_close(*found, rtol=0, atol=1e-2 * found[1].abs().max().item())
