"""A graph that ends at one kind of object goes on at others: what a break was found by is guarded."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import dynamo_capture
from prims.options import Options


class Odd:
    def __mul__(self, other):
        return re.sub("a", "b", "caa") * other


class OddTensor(torch.Tensor):
    """A class with more of its own than capture knows."""

    def __getattr__(self, name):
        raise AttributeError(name)


def times(x):
    return x * 2


def _in_a_call(x):
    return times(x) + (0 if isinstance(x, torch.Tensor) else x * 0)


#: Objects at which the graph breaks, and programs that get them.
ODD = {
    "an object": Odd,
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a compressed tensor": lambda: torch.eye(3).to_sparse_csr(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged),
    "a quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "a named tensor": lambda: torch.ones(3, names=("a",)),
    "a tensor of a class": lambda: torch.ones(3).as_subclass(OddTensor),
    "a pattern": lambda: re.compile("a"),
    "a generator of random numbers": torch.Generator,
}
GIVEN = {"an operator": times, "a method": lambda x: x.__mul__(2), "a call": _in_a_call,
         "an attribute": lambda x: x.real * 2, "a loop": lambda x: [x * i for i in range(3)]}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", GIVEN)
@pytest.mark.parametrize("odd", ODD)
def test_a_break_at_one_kind_of_object_is_none_at_others(odd, program):
    """Code that ends there whatever comes would serve all calls: none would be compiled again."""
    fn, graphs = GIVEN[program], []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    c = dynamo_capture.optimize(fn, backend, options=Options(program_cache=False))
    with contextlib.suppress(Exception):  # eager's own refusal of it
        c(ODD[odd]())
    graphs.clear()
    torch.testing.assert_close(c(torch.ones(3)), fn(torch.ones(3)))
    assert len(graphs) == 1
