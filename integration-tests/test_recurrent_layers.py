"""GRU and RNN layers of batches and lengths that change: two captures serve them all, with eager's results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compile_api

KINDS = {
    "GRU": lambda **options: nn.GRU(5, 6, **options),
    "RNN": lambda **options: nn.RNN(5, 6, **options),
    "RNN of relu": lambda **options: nn.RNN(5, 6, nonlinearity="relu", **options),
    "LSTM": lambda **options: nn.LSTM(5, 6, **options),
}
SHAPES = {
    "plain": {},
    "batch first": {"batch_first": True},
    "two ways": {"bidirectional": True, "batch_first": True},
    "deep": {"num_layers": 3, "bias": False},
    "deep, two ways": {"num_layers": 2, "bidirectional": True},
}
SIZES = ((7, 3), (7, 4), (8, 4), (5, 2), (70, 3), (6, 9), (12, 5), (7, 3))


def flat(out):
    result, state = out
    return [result, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_inference(kind, shape):
    torch.manual_seed(0)
    layer = KINDS[kind](**SHAPES[shape]).eval()
    compiled = compile_api.compile(layer)
    with torch.no_grad():
        for steps, batch in SIZES:
            x = torch.randn(*((batch, steps) if layer.batch_first else (steps, batch)), 5)
            found, wanted = flat(compiled(x)), flat(layer(x))
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
            assert [each.stride() for each in found] == [each.stride() for each in wanted]
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 3, str(report)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_training_of_batches_that_change(kind, shape):
    torch.manual_seed(0)
    layer = KINDS[kind](**SHAPES[shape])
    compiled = compile_api.compile(layer)
    for batch in (3, 4, 2, 7, 5):
        x = torch.randn(*((batch, 7) if layer.batch_first else (7, batch)), 5)
        rows = []
        for run in (layer, compiled):
            layer.zero_grad()
            given = x.clone().requires_grad_()
            out = flat(run(given))
            sum(each.pow(2).sum() for each in out).backward()
            rows.append([*out, given.grad, *(p.grad.clone() for p in layer.parameters())])
        torch.testing.assert_close(*rows, atol=1e-4, rtol=1e-4)
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 2, str(report)


def test_training_of_lengths_that_change():
    """Eager's layer, after a break, for every length but the first: not a graph for each, and the rest stays compiled."""
    torch.manual_seed(0)
    first, layer, last = nn.Linear(4, 5), nn.GRU(5, 6), nn.Linear(6, 2)

    def fn(x):
        return last(layer(first(x).tanh())[0]).sigmoid()

    compiled = compile_api.compile(fn)
    for steps in range(5, 17):
        x = torch.randn(steps, 3, 4)
        torch.testing.assert_close(compiled(x), fn(x), atol=1e-5, rtol=1e-5)
    report = compiled.report()
    assert "recompile limit" not in str(report), str(report)
    assert "of a length that changes" in str(report)


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", ["GRU", "RNN"])
def test_packed_sequences_and_given_states(kind, dynamic):
    torch.manual_seed(0)
    layer = KINDS[kind]().eval()

    def fn(x, lengths, state):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        out, last = layer(packed, state)
        return nn.utils.rnn.pad_packed_sequence(out)[0], last

    compiled = compile_api.compile(fn, dynamic=dynamic)
    with torch.no_grad():
        for lengths in ([5, 4, 2], [6, 6, 1], [3, 2, 2]):
            given = torch.randn(lengths[0], 3, 5), torch.tensor(lengths), torch.randn(1, 3, 6)
            torch.testing.assert_close(compiled(*given), fn(*given), atol=1e-5, rtol=1e-5)


def test_dropout_between_layers():
    """What it drops is drawn; a layer in evaluation drops nothing, at the same call of the same length."""
    torch.manual_seed(0)
    layer = nn.GRU(5, 6, num_layers=2, dropout=0.5)
    compiled = compile_api.compile(layer, dynamic=True)
    with torch.no_grad():
        for steps in (4, 9, 5):
            x = torch.randn(steps, 3, 5)
            wanted = flat(layer.eval()(x))
            torch.testing.assert_close(flat(compiled(x)), wanted, atol=1e-5, rtol=1e-5)
            layer.train()
            first, second = flat(compiled(x)), flat(compiled(x))
            assert not torch.allclose(first[0], second[0]) and not torch.allclose(first[0], wanted[0])
            torch.testing.assert_close(first[1][0], wanted[1][0], atol=1e-5, rtol=1e-5)  # before anything is dropped


@pytest.mark.parametrize("sizes", [((7, 3, 4), None), ((7, 3, 5), (1, 4, 6)), ((7, 3, 5), (2, 3, 6))])
def test_sizes_that_do_not_fit_are_refused(sizes):
    layer = nn.GRU(5, 6).eval()
    size, state = sizes
    given = [torch.randn(size)] + ([] if state is None else [torch.randn(state)])
    for run in (layer, compile_api.compile(layer, dynamic=True), compile_api.compile(layer)):
        with pytest.raises(RuntimeError, match=r"[Ee]xpected"), torch.no_grad():
            run(*given)
