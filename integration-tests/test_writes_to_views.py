"""Views that eager lets nobody write where gradients are needed: one of several, and those made without gradients."""

from __future__ import annotations

import re

import pytest
import torch

import compile_api

WRITES = {
    "split": lambda y: y.split(2)[0].mul_(3),
    "split of sizes": lambda y: torch.split(y, [1, 3])[1].zero_(),
    "unbind": lambda y: y.unbind(0)[1].add_(1),
    "chunk": lambda y: y.chunk(2)[0].mul_(2),
    "columns": lambda y: y.chunk(2, -1)[1].sin_(),
    "a view of one": lambda y: y.chunk(2)[0][1].mul_(2),
    "turned": lambda y: y.chunk(2, 1)[0].t().mul_(2),
    "an element": lambda y: y.unbind(0)[2].__setitem__(0, 5.0),
    "rows": lambda y: [row.add_(1) for row in y],
    "a factor": lambda y: _scaled(y),
    "without gradients": lambda y: _made_without(y).mul_(2),
    "several without gradients": lambda y: _made_without(y, several=True).mul_(2),
}
#: What eager takes.
ALLOWED = {
    "tensor_split": lambda y: y.tensor_split(2)[0].mul_(2),
    "hsplit": lambda y: y.hsplit(2)[0].add_(1),
    "a slice": lambda y: y[:2].mul_(3),
    "select": lambda y: y[1].add_(1),
    "written without gradients": lambda y: _written_without(y),
    "of a copy": lambda y: y.clone().chunk(2)[0].clone().mul_(2),
}


def _scaled(y):
    q, _ = y.chunk(2, -1)
    q *= 0.5


def _made_without(y, several=False):
    with torch.no_grad():
        return y.chunk(2)[1] if several else y[1]


def _written_without(y):
    with torch.no_grad():
        y.chunk(2)[0].mul_(2)


def outcome(fn, x):
    x = x.clone().requires_grad_()
    try:
        y = fn(x)
        y.sum().backward()
    except RuntimeError as error:
        text = re.sub(r"Output \d+ of \w+", "Output", str(error)).partition(". ")[0]
        return text.replace("Output is a view of a view which was", "A view was")  # of what the memory is of, with us
    return x.grad


@pytest.mark.parametrize("where", ["in the function", "in a caller", "outside"])
@pytest.mark.parametrize("name", [*WRITES, *ALLOWED])
def test_writes(name, where):
    write = (WRITES | ALLOWED)[name]
    inner = lambda x: x * 2

    def whole(x):
        y = inner(x)
        write(y)
        return y * y

    def program(compile):
        if where == "in the function":
            return compile(whole)
        if where == "in a caller":
            return lambda x: compile(lambda x: whole(x + 1))(x)

        compiled = compile(lambda x: (x * 2, *(x * 2).chunk(2)))

        def fn(x):
            y = compiled(x)[0]
            write(y)
            return y * y

        return fn

    x = torch.linspace(-1, 1, 16).view(4, 4)
    theirs = outcome(program(lambda fn: fn), x)
    for _ in range(2):
        mine = outcome(program(compile_api.compile), x)
        if isinstance(theirs, str):
            assert mine == theirs
        else:
            torch.testing.assert_close(mine, theirs)
    assert isinstance(theirs, str) == (name in WRITES)


@pytest.mark.parametrize("index", [1, 2])
def test_results_that_are_views_of_several(index):
    """The caller meets eager's error; where no gradient is needed, none."""

    def fn(x):
        y = x * 2
        return (y, *y.split(2))

    compiled = compile_api.compile(fn)
    for needs in (True, False):
        x = torch.ones(4, requires_grad=needs)
        for call in (fn, compiled):
            results = call(x)
            assert results[index]._base is results[0]
            if needs:
                with pytest.raises(RuntimeError, match="multiple views"):
                    results[index].mul_(2)
            else:
                results[index].mul_(2)
                assert results[0].sum() == 12
    assert compiled.report().verdict == "compiled"
