"""Writes in place that autograd does not see, or takes for a derivative of zero, and views from before and after them.

A table: operation × what is written × the kind of input × which views and results of them the region returns. Each
result's gradient alone, and that of all together, is eager's: which inputs have one, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from aot_autograd import aot_function, default_partition, min_cut_partition, run_eagerly
from prims.options import Options
from prims.report import Report


def unseen(y: torch.Tensor) -> None:
    with torch.no_grad():
        y.mul_(2)


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "logical_not": lambda y: y.logical_not_(),
    "logical_and": lambda y: y.logical_and_(torch.tensor(1.0)),
    "logical_xor": lambda y: y.logical_xor_(torch.tensor(1.0)),
    "eq": lambda y: y.eq_(1),
    "ge": lambda y: y.ge_(0.2),
    "le of a tensor": lambda y: y.le_(torch.tensor(0.3)),
    "floor": lambda y: y.floor_(),
    "round": lambda y: y.round_(),
    "sign": lambda y: y.sign_(),
    "sgn": lambda y: y.sgn_(),
    "trunc": lambda y: y.trunc_(),
    "power of zero": lambda y: y.pow_(0),
    "floor_divide": lambda y: y.floor_divide_(0.3),
    "heaviside": lambda y: y.heaviside_(torch.tensor(0.0)),
    "nextafter": lambda y: y.nextafter_(torch.tensor(9.0)),
    "zero": lambda y: y.zero_(),
    "fill": lambda y: y.fill_(3.0),
    "fill by a tensor": lambda y: y.fill_(torch.tensor(2.0)),
    "masked_fill": lambda y: y.masked_fill_(y.detach() > 0, 2.0),
    "index_fill": lambda y: y.index_fill_(0, torch.tensor([0]), 2.0),
    "item": lambda y: y.__setitem__(0, 7.0),
    "bernoulli": lambda y: y.bernoulli_(1.0),
    "random": lambda y: y.random_(1, 2),
    "integers": lambda y: y.copy_(torch.full(y.shape, 3)),
    "bools": lambda y: y.copy_(torch.ones(y.shape, dtype=torch.bool)),
    "itself, detached": lambda y: y.copy_(y.detach() * 2),
    "no_grad": unseen,
    "data": lambda y: y.data.mul_(2),
    "detach": lambda y: y.detach().mul_(2),
    "mul": lambda y: y.mul_(2),
}
#: Of an input: what the views are taken of, and what is written.
TARGETS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "input": lambda x: (x, x),
    "row": lambda x: (x, x[1]),
    "transposed": lambda x: (x, x.t()),
    "detached row": lambda x: (x, x.detach()[1]),
    "intermediate": lambda x: ((h := x * 2), h),
    "part of an intermediate": lambda x: ((h := x * 2), h[:, 1:3]),
    "detached intermediate": lambda x: ((h := x * 2), h.detach()),
}
VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda y: y[None],
    lambda y: y[0],
    lambda y: y.t(),
    lambda y: y.flatten(),
    lambda y: y[1:, ::2],
    lambda y: y,
]
RETURNED: list[Callable[..., list[torch.Tensor]]] = [
    lambda before, after, target, used: [before],
    lambda before, after, target, used: [after],
    lambda before, after, target, used: [before, after, target],
    lambda before, after, target, used: [target, used],
    lambda before, after, target, used: [before * 3, after * 3],
    lambda before, after, target, used: [before, after * 3, used],
]


def region(write: Any, target: Any, view: Any, returned: Any) -> Callable[..., Any]:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        source, written = target(x)
        before = view(source)
        used = (source * 1).sin()
        beside = torch.nn.functional.pad(y, (1, 2))
        write(written)
        return (*returned(before, view(source), written, used), beside)

    return run


def numbers() -> torch.Tensor:
    return torch.linspace(-1, 1.3, 12)


#: The leaf, and the input that is made of it.
INPUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "leaf": lambda: ((x := numbers().view(3, 4).clone().requires_grad_()), x),
    "leaf that is a view": lambda: ((x := numbers().view(4, 3).t().requires_grad_()), x),
    "activation": lambda: ((x := numbers().view(3, 4).requires_grad_()), x * 1.5),
    "view of an activation": lambda: ((x := torch.cat([numbers(), numbers()]).requires_grad_()), (x * 2)[:12].view(3, 4)),
    "view of a leaf that is one": lambda: ((x := numbers().view(3, 4).requires_grad_()), x[:]),
}  # fmt: skip


def seen(function: Callable[..., Any], kind: str, same: bool) -> Any:
    """Values and gradients of a call, or its error."""
    leaf, x = INPUTS[kind]()
    leaves = [leaf] if same else [leaf, torch.linspace(0, 1, 5, requires_grad=True)]
    try:
        results = [*function(*([x] if same else [x, leaves[1]])), x]
    except RuntimeError as error:
        return str(error)[:60]
    found: list[Any] = [[(r.detach().clone(), r.requires_grad, r.is_leaf) for r in results]]
    weighed = [(r * torch.arange(1.0, r.numel() + 1).view(r.shape)).sum() for r in results if r.requires_grad]
    for loss in [*weighed, sum(weighed)] if weighed else []:
        try:
            found.append(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True))
        except RuntimeError as error:
            found.append(str(error)[:60])
    return found


def equal(ours: Any, eager: Any) -> bool:
    if isinstance(eager, torch.Tensor):
        return isinstance(ours, torch.Tensor) and torch.allclose(ours, eager, equal_nan=True)
    if isinstance(eager, (tuple, list)):
        return isinstance(ours, (tuple, list)) and len(ours) == len(eager) and all(map(equal, ours, eager))
    return type(ours) is type(eager) and ours == eager


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("write", WRITES)
def test_views_of_what_is_written(write: str, target: str) -> None:
    first = list(WRITES).index(write) * 5 + list(TARGETS).index(target)
    for turn, (kind, same) in enumerate(itertools.product(INPUTS, (False, True)), first):
        run = region(WRITES[write], TARGETS[target], VIEWS[turn % 6], RETURNED[turn // 6 % 6])
        graph = torch.fx.Graph()
        inputs = [graph.placeholder("x")] + ([] if same else [graph.placeholder("y")])
        graph.output(graph.call_function(run, (inputs[0], inputs[-1])))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        example = [INPUTS[kind]()[1], torch.linspace(0, 1, 5, requires_grad=True)][: len(inputs)]
        report = Report()
        compiled = aot_function(
            module, example, fw_compiler=run_eagerly, options=Options(fallback_random=True), report=report,
            partition_fn=min_cut_partition if turn % 2 else default_partition,
        )  # fmt: skip
        eager, ours = seen(module, kind, same), seen(compiled, kind, same)
        assert equal(ours, eager), (kind, same, turn, eager, ours)
        reasons = [entry.reason for entry in report.fallbacks]
        assert all("needs no gradient" in r or "is not implemented" in r for r in reasons) or isinstance(eager, str), reasons
