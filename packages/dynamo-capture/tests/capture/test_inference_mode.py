"""``torch.inference_mode`` inside a compiled function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamo_capture


@torch.inference_mode()
def decorated(x, layer):
    return layer(x).relu()


def whole(x, layer):
    with torch.inference_mode():
        y = layer(x)
        return y * 2, y.is_inference(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def operator_after(x, layer):
    with torch.inference_mode():
        y = layer(x)
    return y * 2, y.is_inference(), torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def operator_before(x, layer):
    y = layer(x)
    with torch.inference_mode():
        z = y * 2
    return y, z


def nested(x, layer):
    with torch.inference_mode():
        y = x + 1
        with torch.inference_mode():
            y = y * 2
        y = y + torch.ones(3)
    return y, torch.is_inference_mode_enabled()


def twice(x, layer):
    with torch.inference_mode():
        y = x + 1
    with torch.inference_mode():
        z = x + 2
    return y, z


def off_inside(x, layer):
    with torch.inference_mode():
        y = x + 1
        with torch.inference_mode(False):
            z = layer(x)
        return y, z, z.requires_grad


def break_inside(x, layer):
    with torch.inference_mode():
        y = layer(x)
        dynamo_capture.graph_break()
        z = y * 2
        inside = torch.is_inference_mode_enabled()
    return y, z, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def under_no_grad(x, layer):
    with torch.no_grad():
        with torch.inference_mode():
            y = layer(x)
        state = torch.is_grad_enabled()
    return y, state, torch.is_grad_enabled()


def grad_inside(x, layer):
    with torch.inference_mode():
        with torch.enable_grad():
            y = layer(x)
            state = torch.is_grad_enabled()
        with torch.no_grad():
            z = layer(x)
    return y, z, state, y.requires_grad, torch.is_grad_enabled()


def views(x, layer):
    with torch.inference_mode():
        v = x[1:]
        w = (x * 2)[1:]
        return v, w, v.is_inference(), w.is_inference()


def writes(x, layer):
    with torch.inference_mode():
        x.add_(1)
        y = x * 2
        y.mul_(3)
    return y


def gives_the_input(x, layer):
    with torch.inference_mode():
        return x, x.contiguous(), x.detach()


def caught(x, layer):
    try:
        with torch.inference_mode():
            y = x.sum()
            if x.shape[0] > 1:
                raise ValueError("no")
    except ValueError:
        pass
    return y, torch.is_inference_mode_enabled()


def autocast_inside(x, layer):
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        return layer(x)


def no_operator(x, layer):
    with torch.inference_mode():
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    return x + 1, inside


PROGRAMS = [decorated, whole, operator_after, operator_before, nested, twice, off_inside, break_inside, under_no_grad,
            grad_inside, views, writes, gives_the_input, caught, autocast_inside, no_operator]  # fmt: skip
#: Programs of one graph.
WHOLE = {decorated, whole, nested, under_no_grad, views, writes, gives_the_input, autocast_inside, grad_inside}


def described(result):
    if isinstance(result, torch.Tensor):
        facts = result.dtype, result.requires_grad, result.is_inference(), result.is_leaf
        return *facts, result.detach().tolist(), None if result.is_inference() else result._is_view()
    return tuple(map(described, result)) if isinstance(result, tuple) else result


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda m: m.__name__)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_eager(capture, fn, around):
    c = capture(fn)
    layer = nn.Linear(3, 3)
    with around():
        for _ in range(2):
            with torch.inference_mode(False):
                ours, theirs = torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3)
            expected = described(fn(theirs, layer))
            assert described(c(ours, layer)) == expected
            assert torch.equal(ours, theirs) and ours._version == theirs._version
            assert torch.is_inference_mode_enabled() == (around is torch.inference_mode)
            assert torch.is_grad_enabled() == (around is torch.enable_grad)
    assert not c.report.fallbacks
    if around is torch.enable_grad and fn in WHOLE:
        assert len(c.graphs) == 1 and not c.report.breaks


def test_modes_are_guarded(capture):
    c = capture(whole)
    layer, x = nn.Linear(3, 3), torch.ones(3, 3)
    for around in (torch.enable_grad, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with around():
            assert described(c(x, layer)) == described(whole(x, layer))
    assert len(c.report.recompiles) == 2


def test_an_operator_that_raises(capture):
    def fn(x, i):
        with torch.inference_mode():
            return x[i] * 2

    c = capture(fn)
    for i in (1, 5, 1):
        index = torch.tensor([i])
        if i == 5:
            with pytest.raises(IndexError):
                c(torch.ones(3), index)
        else:
            assert c(torch.ones(3), index).is_inference()
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_a_program_that_raises(capture):
    def fn(x):
        with torch.inference_mode():
            y = x + 1
            raise ValueError(tuple(y.shape))

    c = capture(fn)
    for _ in range(4):
        with pytest.raises(ValueError, match="3"):
            c(torch.ones(3))
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_fullgraph(capture):
    c = capture(decorated, fullgraph=True)
    layer = nn.Linear(3, 3)
    assert c(torch.ones(1, 3), layer).is_inference()
    loss = layer(torch.ones(1, 3)).sum()
    loss.backward()
