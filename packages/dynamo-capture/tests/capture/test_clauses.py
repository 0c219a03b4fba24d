"""Operators that raise because of their data, and what the program's clauses write on the way out.

A table of programs: an operator that raises for some indices, the clause around it, what the clause writes. Each runs
under a backend that runs the graph as it is, in the order of the program, and under one that writes its inputs when all
is computed. After every call, raised or not, everything that the program can see is eager's, and so are gradients
through what was written.
"""

from __future__ import annotations

import contextlib
import itertools
import types

import pytest
import torch

import dynamo_capture
from prims.options import Options
from prims.report import Report
from prims.undo import writes_when_done

pytestmark = pytest.mark.filterwarnings("ignore")

#: Operators on ``y`` (of at least five elements) that refuse indices above 4.
RAISING = {
    "gather": "y.gather(0, at)",
    "index": "y[at]",
    "embedding": "F.embedding(at, y.reshape(-1, 1))[:, 0]",
    "index_select": "y[:5].index_select(0, at)",
    "take": "torch.take(y[:5], at)",
    "loss": "F.nll_loss(y[:5].expand(2, 5), at).reshape(1)",
    "cholesky": "torch.linalg.cholesky(torch.diag(4.5 - at)).sum(0) * y[:2]",
}
CLAUSES = {
    "none, written before": "write(x, s)\nz = {op}",
    "finally": "try:\n    z = {op}\nfinally:\n    write(x, s)",
    "finally that knows": "done = False\ntry:\n    z = {op}\n    done = True\nfinally:\n    if not done: write(x, s)",
    "finally, written before": "write(x, s)\ntry:\n    z = {op}\nfinally:\n    write(x, s)",
    "finally in finally": "try:\n    try:\n        z = {op}\n    finally:\n        write(x, s)\nfinally:\n    write(x, s)",
    "except that raises on": "try:\n    z = {op}\nexcept Exception:\n    write(x, s)\n    raise",
    "except": "try:\n    write(x, s)\n    z = {op}\nexcept Exception:\n    write(x, s)\n    z = x[:2] * 3",
    "manager": "with Exiting(x, s):\n    z = {op}",
    "manager in a loop": "for _ in range(2):\n    with Exiting(x, s):\n        write(x, s)\n        z = {op}",
    "generator as manager": "with clearing(x, s):\n    z = {op}",
    "stack of exits": "with contextlib.ExitStack() as stack:\n    stack.callback(write, x, s)\n    z = {op}",
    "suppressed": "z = x[:2] * 3\nwith contextlib.suppress(RuntimeError, IndexError):\n    write(x, s)\n    z = {op}\n    write(x, s)",
    "callee": "def read():\n    try:\n        return {op}\n    finally:\n        write(x, s)\nz = read()",
    "generator": "for _ in walking(x, s):\n    z = {op}",
    "no_grad around": "with torch.no_grad():\n    try:\n        z = {op}\n    finally:\n        write(x, s)",
}
WRITES = {
    "input": lambda x, s: x.add_(1),
    "part of an input": lambda x, s: x[1:3].mul_(3),
    "attribute": lambda x, s: s.buffer.add_(x.detach().sum()),
    "attribute, with a history": lambda x, s: s.buffer.add_(x.sum()),
    "item": lambda x, s: s.items[0].mul_(2),
    "counter": lambda x, s: setattr(s, "count", s.count + 1),
    "list": lambda x, s: s.log.append(len(s.log)),
    "new attribute": lambda x, s: setattr(s, "made", x * 2),
    "counter and input": lambda x, s: (setattr(s, "count", s.count + 1), x.add_(1)),
}


def program(op, clause, write):
    """``f(x, at, s)`` of the table."""

    class Exiting:
        def __init__(self, x, s):
            self.given = x, s

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            if kind is not None:
                write(*self.given)

    @contextlib.contextmanager
    def clearing(x, s):
        write(x, s)
        try:
            yield
        finally:
            write(x, s)

    def walking(x, s):
        try:
            yield 1
        finally:
            write(x, s)

    lines = ["y = x * 2", *clause.format(op=op).splitlines(), "return z * 2 + x.sum() + s.buffer.sum()"]
    text = "def f(x, at, s):\n    from torch.nn import functional as F\n    " + "\n    ".join(lines)
    space = {"torch": torch, "contextlib": contextlib, "write": write, "Exiting": Exiting, "clearing": clearing, "walking": walking}
    exec(text, space)
    return space["f"]


def in_order(gm, example_inputs):
    return gm.forward


def at_the_end(gm, example_inputs):
    """As a compiled graph does: its inputs get what it makes of them when all is computed."""

    @writes_when_done
    def run(*args):
        own = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        results = gm.forward(*own)
        for given, made in zip(args, own, strict=True):
            if isinstance(given, torch.Tensor) and made._version:
                with torch.set_grad_enabled(torch.is_grad_enabled() and not (given.is_leaf and given.requires_grad)):
                    given.copy_(made)
        return results

    return run


def seen(fn, count, indices, training):
    """What a call gives and leaves behind, and gradients."""
    weight = (torch.arange(float(count)) - 2).requires_grad_(training)
    x = weight * 1
    s = types.SimpleNamespace(buffer=torch.ones(2), items=[torch.ones(3)], count=0, log=[], made=None)
    try:
        result = fn(x, torch.tensor(indices), s)
    except Exception as error:
        result = type(error).__name__
    found = [result, x, s.buffer, s.items[0], s.count, s.log, s.made]
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    total = sum(each.sum() for each in tensors if each.requires_grad)
    if isinstance(total, torch.Tensor):
        try:
            total.backward()
        except RuntimeError as error:
            found.append(str(error)[:30])
    found.append(weight.grad)
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in found]


CALLS = [(5, [0, 1]), (5, [0, 9]), (5, [3, 1]), (6, [1, 2]), (7, [9, 0]), (7, [4, 1])]


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("clause", CLAUSES)
def test_what_is_written_on_the_way_out(clause, training):
    raisers = itertools.cycle(RAISING.items())
    dynamics = itertools.cycle([None, True, False])
    for (write, written), backend in itertools.product(WRITES.items(), [in_order, at_the_end]):
        (name, op), dynamic = next(raisers), next(dynamics)
        dynamo_capture.reset()
        eager, ours = program(op, CLAUSES[clause], written), program(op, CLAUSES[clause], written)
        report = Report()
        backend.supports_dynamic_shapes = True
        compiled = dynamo_capture.optimize(ours, backend, options=Options(strict=True, dynamic=dynamic), report=report)
        for count, indices in CALLS:
            expected, got = seen(eager, count, indices, training), seen(compiled, count, indices, training)
            assert got == expected, (write, name, backend.__name__, dynamic, indices)
        assert report.graphs, (write, name, backend.__name__)
        reasons = ("an operator raised", "the generator 'walking' is left inside a try")
        left = [f.reason for f in report.fallbacks if not f.reason.startswith(reasons)]
        assert not left, (write, name, backend.__name__, left)
