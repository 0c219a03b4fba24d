"""Attention under masks of padded batches: right for every batch, and no call waits before everything is launched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from judge import assert_as_good
from mask_cases import MASKS, Attention, batch, contents, worst_of_threads
from on_gpu import DEVICE

import compile_api
from inductor_gen.extern import calls as library_calls
from inductor_gen.extern.attention import BACKWARD, FORWARD

DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """What compiled graphs give the fused attention operators: (is there a mask, the causal flag)."""
    seen: list[tuple[bool, bool]] = []
    made = library_calls.function_for

    def spied(node: Any, *rest: Any) -> Any:
        name, call = made(node, *rest)
        at = FORWARD.get(node.op) or BACKWARD.get(node.op)
        if at is None:
            return name, call

        def spy(*args: Any, **kwargs: Any) -> Any:
            seen.append((args[at.mask] is not None, len(args) > at.causal and args[at.causal]))
            return call(*args, **kwargs)

        return name, spy

    monkeypatch.setattr(library_calls, "function_for", spied)
    return seen


def results(model: Any, x: torch.Tensor, padding: torch.Tensor, train: bool) -> list[torch.Tensor]:
    with torch.set_grad_enabled(train):
        out = model(x, padding)
        if not train:
            return [out]
        model.zero_grad()
        (out.double() * torch.linspace(0, 1, out.numel(), device=out.device).view_as(out)).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [24, 33])
def test_padding_that_changes_between_calls(
    length: int, dtype: torch.dtype, mask: str, train: bool, calls: Any
) -> None:
    torch.manual_seed(0)
    model = Attention(mask).to(DEVICE, dtype)
    exact = copy.deepcopy(model).double()
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    x, padding = batch(dtype, torch.int64, DEVICE, length)
    served = []
    for how in contents(padding):
        calls.clear()
        ours = results(compiled, x, padding, train)
        last = calls[-4 if train else -2 :]
        assert len(set(last)) == 1, (how, calls)
        if how != "none":
            assert last[0][0], how
        served.append(last[0])
        if how != "row":  # rows without anything to look at are each kernel's own
            assert_as_good(ours, results(model, x, padding, train), results(exact, x.double(), padding, train))
        torch.cuda.synchronize()
    usual = (False, MASKS[mask][1])
    assert served[0] == served[1] == served[14] == served[15] == usual, served
    assert not compiled.report().fallbacks and compiled.report().kernels


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_numbers_are_as_if_it_ran_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Attention("padding", dropout=0.3).to(DEVICE, dtype)
    compiled = compile_api.compile(model, fullgraph=True)
    x, plain = batch(dtype, torch.int64, DEVICE)
    padded = plain.clone()
    padded[0, :5] = 0

    def run(masks: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.cuda.manual_seed(7)
        with torch.no_grad():
            return [compiled(x, mask) for mask in masks], torch.cuda.get_rng_state()

    run([plain, padded])
    always, state = run([padded, padded, padded])
    for _ in range(8):
        run([plain])  # until the guess is that nothing is padded
        torch.cuda.synchronize()
    guessed, after = run([plain, plain, padded])
    assert torch.equal(guessed[2], always[2]) and torch.equal(state, after)
    assert not torch.equal(guessed[0], guessed[1])
    assert not compiled.report().fallbacks


def test_a_guess_waits_once_and_when_everything_is_launched(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_api.compile(Attention("causal").to(DEVICE, torch.bfloat16), fullgraph=True)
    x, padding = batch(torch.bfloat16, torch.int64, DEVICE)
    launched: list[int] = []
    wait = torch.cuda.Event.synchronize
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: (launched.append(len(calls)), wait(self))[1])
    with torch.no_grad():
        for _ in range(3):
            calls.clear()
            launched.clear()
            with torch.cuda.stream(torch.cuda.current_stream()):
                torch.cuda._sleep(1_000_000)
                compiled(x, padding)
            assert calls == [(False, True)] * 2
    assert launched == [2]


def test_threads_on_streams_of_their_own() -> None:
    model = Attention("causal").to(DEVICE)
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    assert worst_of_threads(compiled, model, DEVICE, 30) < 1e-3
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("train", [False, True])
def test_replays_choose_between_two_recordings(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (found.append(id(self)), plain(self))[1])
    torch.manual_seed(0)
    model = Attention("causal").to(DEVICE)
    compiled = compile_api.compile(copy.deepcopy(model), mode="reduce-overhead", fullgraph=True)
    x, padding = batch(torch.float32, torch.int64, DEVICE)
    for _ in range(3):
        for how in contents(padding):
            ours, eager = results(compiled, x, padding, train), results(model, x, padding, train)
            for a, b in zip(ours, eager, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3, msg=lambda text: f"{how}: {text}")
            torch.cuda.synchronize()
    assert len(set(found)) >= 2
    assert not compiled.report().fallbacks


def test_what_the_user_records_keeps_its_masks() -> None:
    """A replay of the user's own CUDA graph cannot ask: it is right for every batch."""
    model = Attention("causal").to(DEVICE)
    compiled = compile_api.compile(copy.deepcopy(model), fullgraph=True)
    x, padding = batch(torch.float32, torch.int64, DEVICE)
    with torch.no_grad():
        for how in ("none", "padded"):
            padding.fill_(1)
            if how == "padded":
                padding[0, :4] = 0
            compiled(x, padding)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compiled(x, padding)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = compiled(x, padding)
        for hidden in (0, 6):
            padding.fill_(1)
            padding[1, :hidden] = 0
            graph.replay()
            torch.testing.assert_close(out, model(x, padding), rtol=1e-3, atol=1e-3)
