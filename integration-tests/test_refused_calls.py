"""Calls that eager refuses, or takes, by type and size of what they are given: compiled they are as in eager."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import compile_api

aten = torch.ops.aten
COUNTS = torch.tensor([1, 2, 0])
TYPES = (torch.int64, torch.bool, torch.uint8, torch.float32, torch.float16, torch.float64, torch.complex64)


def softmax_gradients():
    for name, dtype in itertools.product(("_softmax_backward_data", "_log_softmax_backward_data"), TYPES):
        call = getattr(aten, name)
        for given, dim, shape in itertools.product(dict.fromkeys((dtype, torch.float32)), (1, 2), ((2, 3), (), (0, 3))):
            def program(x, call=call, dtype=dtype, given=given, dim=dim):
                return call(x.to(dtype), x.to(dtype), dim if x.ndim else 0, given)
            yield f"{name} of {dtype}, {given}, {dim}, {shape}", program, torch.ones(shape)
        for other in (torch.float64, torch.float16):
            yield (
                f"{name} of {dtype} and {other}",
                lambda x, call=call, dtype=dtype, other=other: call(x.to(dtype), x.to(other), 1, torch.float32),
                torch.ones(2, 3),
            )


def one_hots():
    for shape, classes in itertools.product(((), (0,), (3,), (2, 0)), (-1, 0, 1, 2, -2)):
        yield f"one_hot({shape}, {classes})", lambda x, n=classes: F.one_hot(x, n), torch.zeros(shape, dtype=torch.int64)


def repeats():
    x = torch.arange(6.0).view(2, 3)
    calls = {
        "all": lambda x, **kw: x.repeat_interleave(2, **kw),
        "rows": lambda x, **kw: x.repeat_interleave(2, 1, **kw),
        "negative": lambda x, **kw: x.repeat_interleave(-1, 1, **kw),
        "never": lambda x, **kw: x.repeat_interleave(0, 1, **kw),
        "scalar": lambda x, **kw: x[0, 0].repeat_interleave(3, 0, **kw),
        "counts": lambda x, **kw: x.repeat_interleave(x.new_tensor([1, 2, 0], dtype=torch.int64), 1, **kw),
    }
    for (name, call), size in itertools.product(calls.items(), (None, 0, 2, 3, 6, 12, -1)):
        kw = {} if size is None else {"output_size": size}
        yield f"repeat_interleave, {name}, {kw}", lambda x, call=call, kw=kw: call(x, **kw) + 1, x


def pixels():
    shapes = ((4, 0, 1), (1, 4, 0, 2), (0, 4, 2, 2), (0, 1, 2, 2), (1, 0, 2), (2, 4, 0, 0), (3, 0, 4), (0, 3, 3, 3), (4, 2, 2))
    for call, shape in itertools.product((F.pixel_shuffle, F.pixel_unshuffle), shapes):
        yield f"{call.__name__}{shape}", lambda x, call=call: call(x * 1, 2), torch.ones(shape, requires_grad=True)


CASES = {name: (program, x) for name, program, x in (*softmax_gradients(), *one_hots(), *repeats(), *pixels())}


def outcome(call, x):
    x = x.detach().clone().requires_grad_(x.requires_grad)
    try:
        result = call(x)
        if result.requires_grad:
            result.sum().backward()
    except Exception as error:
        return type(error), str(error).partition("(while")[0]
    return result.shape, result.dtype, result.detach(), x.grad


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    program, x = CASES[name]
    theirs = outcome(program, x)
    ours = outcome(compile_api.compile(program), x)
    assert ours[:2] == theirs[:2]
    if len(theirs) == 4:
        assert torch.equal(ours[2], theirs[2])
        assert (ours[3] is None) == (theirs[3] is None) and (ours[3] is None or torch.equal(ours[3], theirs[3]))
