"""What takes the place of a graph that the code generator refuses, beside compiled ones: the results are eager's."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import compile_api
import inductor_gen
from prims.errors import Unsupported

#: Inputs by how they lie in memory.
LAYOUTS = {
    "contiguous": lambda: torch.randn(4, 5),
    "transposed": lambda: torch.randn(5, 4).t(),
    "by two": lambda: torch.randn(9, 11)[1::2, 1::2],
    "expanded": lambda: torch.randn(4, 1).expand(4, 5),
    "all one number": lambda: torch.randn(1).expand(4, 5),
    "of one row": lambda: torch.randn(3, 5)[1:2],
}


def in_place(x):
    y = x.exp()
    x.mul_(2)
    return y.sin(), x * y


def checked_though_unused(x):
    wide = x[:, :1].expand(x.shape[0], 3)
    (x > 0).clone().index_copy_(0, torch.tensor([0]), x[-1:] > 1)
    return wide, x.cos()


REGIONS = {
    "two results of different inputs": lambda x: (F.hardswish(x), F.softplus(x + 1)),
    "a result beside what it is made of": lambda x: (x.softmax(-1), x.cov()),
    "written over": in_place,
    "a view of what is kept": lambda x: (x.exp().t(), (x.t() @ x).tanh()),
    "checked though unused": checked_though_unused,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("region", REGIONS)
def test_results_and_gradients_are_eagers(region: str, layout: str) -> None:
    """Of the two graphs that a region has, forward and backward, each is refused alone, and both."""
    fn = REGIONS[region]

    def run(call, leaf):
        given = torch.empty_strided(leaf.shape, leaf.stride()).copy_(leaf * 1) if region == "written over" else leaf
        made = [m for m in call(given) if m.requires_grad]
        return [*made, *torch.autograd.grad(made, leaf, [m + 1 for m in made])]

    if region == "written over" and 0 in LAYOUTS[layout]().stride():
        return  # eager does not write to memory that elements share
    torch.manual_seed(0)
    given = LAYOUTS[layout]()
    wanted = run(fn, given.detach().requires_grad_())
    for refused in itertools.product((False, True), repeat=2):
        turns, whole = iter((*refused, *refused)), inductor_gen.compile_graph

        def compile_graph(*args, turns=turns, whole=whole, **kwargs):
            if next(turns, False):
                raise Unsupported("refused")
            return whole(*args, **kwargs)

        compile_api.reset()
        compiled = compile_api.compile(fn, options={"verify": "every_pass"})
        with mock.patch.object(inductor_gen, "compile_graph", compile_graph):
            found = run(compiled, given.detach().requires_grad_())
        reasons = [record.reason for record in compiled.report().fallbacks if record.eager]
        assert bool(reasons) == any(refused) and all("refused" in reason for reason in reasons), reasons
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected)
            if got.requires_grad:  # the strides of a gradient are those of whichever part of it came first
                assert got.stride() == expected.stride(), refused
