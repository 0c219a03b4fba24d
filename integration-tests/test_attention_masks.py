"""Attention under masks of padded batches, on the CPU: right for every batch, and without the mask where it adds nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mask_cases import MASKS, Attention, batch, contents, worst_of_threads

import compile_api
from inductor_gen.extern import calls as extern_calls
from inductor_gen.rewrite import masks


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short masks are not worth a question on the CPU, but as good for tests."""
    monkeypatch.setattr(masks, "LONG", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """What compiled graphs give the fused attention operators: (is there a mask, the causal flag)."""
    seen: list[tuple[bool, bool]] = []
    made = extern_calls.with_dense_rows

    def spied(function: Any, count: int) -> Any:
        call, at = made(function, count), 4 if count == 3 else 7

        def spy(*args: Any, **kwargs: Any) -> Any:
            seen.append((kwargs.get("attn_mask") is not None, len(args) > at and args[at]))
            return call(*args, **kwargs)

        return spy

    monkeypatch.setattr(extern_calls, "with_dense_rows", spied)
    return seen


def gradients(model: Any, x: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(x, given)
    (out * torch.linspace(0, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("given", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("train", [False, True])
def test_padding_that_changes_between_calls(mask: str, given: torch.dtype, train: bool, calls: Any) -> None:
    torch.manual_seed(0)
    model = Attention(mask)
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    x, padding = batch(torch.float32, given, "cpu")
    for how in contents(padding):
        calls.clear()
        with torch.set_grad_enabled(train):
            ours = gradients(compiled, x, padding) if train else [compiled(x, padding)]
        with torch.set_grad_enabled(train):
            eager = gradients(model, x, padding) if train else [model(x, padding)]
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text: f"{how}: {text}")
        wanted = (how != "none", how == "none" and MASKS[mask][1])
        assert calls == [wanted] * (4 if train else 2), how
    assert not compiled.report().fallbacks and compiled.report().kernels


def test_a_backward_pass_does_as_its_own_forward(calls: Any) -> None:
    """Two forward passes before either backward, with the same tensor changed between them."""
    model = Attention("causal")
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)

    def both(f: Any) -> list[torch.Tensor]:
        x, padding = torch.linspace(-1, 1, 3 * 24 * 32).view(3, 24, 32).requires_grad_(), torch.ones(3, 24)
        first = f(x, padding.clone())
        padding[0, :4] = 0
        second = f(x, padding)
        return [torch.autograd.grad(out.square().sum(), x)[0] for out in (first, second)]

    ours = both(compiled)
    for a, b in zip(ours, both(model), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert calls[4:] == [(False, True)] * 2 + [(True, False)] * 2


def test_threads_with_other_batches() -> None:
    model = Attention("causal")
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    assert worst_of_threads(compiled, model, torch.device("cpu"), 20) < 1e-4


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
def test_masks_stay_where_roundings_matter(numerics: str, calls: Any) -> None:
    compiled = compile_api.compile(Attention("causal"), fullgraph=True, options={"numerics": numerics})
    with torch.no_grad():
        compiled(*batch(torch.float32, torch.int64, "cpu"))
    assert calls == [(True, False)] * 2


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("train", [False, True])
def test_lengths_that_change(mask: str, train: bool, calls: Any) -> None:
    model = Attention(mask)
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    for length in (24, 17, 33, 24):
        x, padding = batch(torch.float32, torch.int64, "cpu", length)
        for hidden in (0, 3):
            padding[0, :hidden] = 0
            calls.clear()
            with torch.set_grad_enabled(train):
                ours = gradients(compiled, x, padding) if train else [compiled(x, padding)]
                eager = gradients(model, x, padding) if train else [model(x, padding)]
            for a, b in zip(ours, eager, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert calls == [(hidden > 0, not hidden and MASKS[mask][1])] * (4 if train else 2), length
    report = compiled.report()
    assert not report.fallbacks and len(report.recompiles) == 1
