"""Shapes changed in place, of views and of what has views, and writes to the memory: gradients and errors are eager's.

After a write autograd makes the histories of views anew. Eager does it by strides, and by the calls that made the view
where that has another type than its base: a change of shape in place is then lost, and the gradient transposed.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from aot_autograd import aot_function, run_eagerly
from prims.report import Report

BASES = {
    "tensor": lambda x: x.sin(),
    "parts of complex numbers": lambda x: torch.view_as_real(torch.complex(x, x.sin())),
}
VIEWS = {"itself": lambda b: b, "all": lambda b: b[:], "part": lambda b: b[:2], "turned": lambda b: b.flip(0)[:].transpose(0, 1)}
CHANGES = {"t_": lambda v: v.transpose_(0, 1), "unsqueeze_": lambda v: v.unsqueeze_(0), "swapaxes_": lambda v: v.swapaxes_(0, -1)}
WRITES = {
    "none": lambda base, view, row: None,
    "base": lambda base, view, row: base.mul_(2),
    "view": lambda base, view, row: view.mul_(2),
    "view of it": lambda base, view, row: view.unsqueeze(0).add_(1),
    "row": lambda base, view, row: row.mul_(2),
    "without gradients": lambda base, view, row: view.detach().mul_(2),
}


def programs():
    for (base, view, change, write), early in itertools.product(
        itertools.product(BASES, VIEWS, CHANGES, WRITES), (True, False)
    ):
        parts = BASES[base], VIEWS[view], CHANGES[change], WRITES[write]
        yield f"{base}, {view}, {change}, write {write}, row {'before' if early else 'after'}", parts, early


def build(parts, early):
    make, look, change, write = parts

    def program(x, w):
        base = make(x)
        view = look(base)
        row = base[0] if early else None
        change(view)
        row = base[-1] if row is None else row
        write(base, view, row)
        return view * w[: view.numel()].view(view.shape), row * row, base

    return program


PROGRAMS = {name: build(parts, early) for name, parts, early in programs()}


def gradients(call):
    found = []
    w = torch.arange(1.0, 19.0)
    for used in range(3):
        x = torch.linspace(-2, 2, 9).reshape(3, 3).requires_grad_()
        result = call(x, w)[used]
        try:
            (result * w[: result.numel()].view(result.shape)).sum().backward()
        except RuntimeError as error:
            found.append(str(error).partition(" at index")[0].split()[-3:])
            continue
        found.append(x.grad)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    program = PROGRAMS[name]
    try:
        theirs = gradients(program)
    except RuntimeError:
        pytest.skip("eager refuses the program")
    graph = torch.fx.Graph()
    graph.output(graph.call_function(program, (graph.placeholder("x"), graph.placeholder("w"))))
    report = Report()
    given = [torch.linspace(-2, 2, 9).reshape(3, 3).requires_grad_(), torch.arange(1.0, 19.0)]
    ours = gradients(aot_function(torch.fx.GraphModule(torch.nn.Module(), graph), given, fw_compiler=run_eagerly, report=report))
    for mine, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, list):
            assert mine == wanted
        else:
            torch.testing.assert_close(mine, wanted)
    if "write none" in name and ("itself" not in name or "after" in name):
        assert not report.fallbacks  # left to eager is no more than must be
