"""``generate()`` of small language models serves mixed requests from a few entries, with eager's tokens."""

from __future__ import annotations

import pytest
import torch
from reports import captured

import compile_api
from prims.errors import CompileWarning

pytest.importorskip("transformers", reason="the models are transformers'")

import serving_cases as cases

#: Each architecture meets one cache here, and both ways of attention (with a decoder alone, and with an encoder) both;
#: ``benchmarks/serving.py`` goes through all.
CELLS = (
    ("gpt2", "dynamic"), ("llama", "static"), ("qwen2", "dynamic"), ("gpt_neox", "static"), ("mixtral", "dynamic"),
    ("t5", "static"), ("bart", "dynamic"),
)  # fmt: skip


@pytest.mark.parametrize("architecture,cache", CELLS)
def test_mixed_requests_have_few_entries_and_eager_tokens(architecture, cache):
    eager, model = cases.model_of(architecture), cases.model_of(architecture)
    compiled = cases.compiled_forward(model, compile_api.compile)
    requests = cases.requests(seed=3)
    assert len(requests) == 36
    for request in requests:
        assert torch.equal(cases.serve(model, cache, *request), cases.serve(eager, cache, *request)), request
    report = compiled.report()
    assert len(cases.live_entries(compiled)) <= 3
    assert len(report.recompiles) <= 8
    assert not report.fallbacks and not report.breaks
    assert report.kernels and len(captured(report)) == len(report.recompiles) + 1
    before = len(report.recompiles)
    # No recompilation per token, nor for batches and lengths that have not been met. (A static cache is made for so many
    # tokens, whose number has not changed.)
    tokens = 9 if cache == "dynamic" else 5
    for mode, batch, length in (("greedy", 3, 11), ("sampling", 1, 6), ("beam", 5, 8)):
        ours = cases.serve(model, cache, mode, batch, length, tokens=tokens)
        assert torch.equal(ours, cases.serve(eager, cache, mode, batch, length, tokens=tokens))
    assert len(compiled.report().recompiles) == before


def test_padded_batches_have_entries_of_their_own_for_the_mask():
    """``generate()`` gives ``forward`` no mask where nothing is padded: two programs, each before and in decoding."""
    eager, model = cases.model_of("llama"), cases.model_of("llama")
    compiled = cases.compiled_forward(model, compile_api.compile)
    for request in cases.requests(("greedy", "sampling")):
        ours = cases.serve(model, "dynamic", *request, padded=True)
        assert torch.equal(ours, cases.serve(eager, "dynamic", *request, padded=True)), request
    assert len(cases.live_entries(compiled)) <= 5
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("sizes", [(1, 4, 3, 1, 5), (4, 1, 3, 1, 5), (3, 4, 1, 5), (3, 1, 4, 1)])
def test_one_entry_serves_a_batch_of_one_too(sizes):
    linear = torch.nn.Linear(8, 8)

    def program(x):
        return linear(x).relu().sum(-1)

    compiled = compile_api.compile(program)
    with torch.no_grad():
        for size in (*sizes, 2, 1, 7):
            x = torch.randn(size, 8)
            torch.testing.assert_close(compiled(x), program(x))
        (entry,) = cases.live_entries(compiled)
        before = len(compiled.report().recompiles)
        for size in (1, 6, 1):
            x = torch.randn(size, 8)
            torch.testing.assert_close(compiled(x), program(x))
    assert len(compiled.report().recompiles) == before and entry.hits >= 3
    assert compiled.report().kernels and not compiled.report().fallbacks


def test_what_depends_on_a_size_of_one_has_entries_of_its_own():
    def program(x, y):
        z = x + y  # a size of one is broadcast
        return z * 2 if x.shape[0] == 1 else z * 3 + x.t().is_contiguous()

    compiled = compile_api.compile(program)
    for rows, others in ((1, 4), (4, 4), (1, 1), (3, 3), (5, 1), (1, 6), (6, 6), (2, 1), (1, 1)):
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_reaching_the_limit_warns_once_and_says_what_differed():
    def program(x, n):
        return x * len(n)

    compiled = compile_api.compile(program, options={"recompile_limit": 3})
    x = torch.randn(3)
    with pytest.warns(CompileWarning, match="recompile limit of 3") as caught:
        for n in range(1, 12):
            torch.testing.assert_close(compiled(x, "a" * n), x * n)
    assert len([w for w in caught if w.category is CompileWarning]) == 1
    (fallback,) = compiled.report().fallbacks
    assert "what differed: L['n'] (3 times)" in fallback.reason
    assert len(cases.live_entries(compiled)) == 3


def test_entries_that_were_replaced_are_not_counted():
    def program(x, y, z):
        return x.sum() * y.mean() + z

    compiled = compile_api.compile(program, options={"recompile_limit": 2})
    for a, b, c in ((3, 4, 5), (6, 4, 5), (7, 8, 5), (7, 8, 9), (2, 3, 4), (9, 9, 9)):
        inputs = torch.randn(a), torch.randn(b), torch.randn(c)
        torch.testing.assert_close(compiled(*inputs), program(*inputs))
    report = compiled.report()
    assert not report.fallbacks and len(captured(report)) == 4
    assert len(cases.live_entries(compiled)) == 1
