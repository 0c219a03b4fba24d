"""A graph's nodes through a target's table, and the one error that lists all that does not map."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx

from compile_api.deploy.interchange.program import Program
from prims.control import control_of
from prims.errors import UserError
from prims.ops import PrimOp
from prims.records import record
from prims.spec import TensorSpec

__all__ = ["Missing", "NotMapped", "Target", "not_mapped", "walk"]


class NotMapped(Exception):
    """Raised by a row for a call that it cannot write; the text says why."""


@record
class Target:
    """What a form can express.

    Attributes:
        name: as a person writes it.
        rows: primitive -> ``fn(builder, *arguments) -> value``, arguments with values in the place of nodes.
        unmapped: the primitives that are not in ``rows``, with the reason.
        composites: the same as ``rows`` by overload, for calls that stay one node; ``takes`` says which.
        takes: overload -> ``fn(node) -> bool``, whether its row can write this call.
        dtypes: dtype -> its name in the form.
    """

    name: str
    rows: Mapping[str, Callable[..., Any]]
    unmapped: Mapping[str, str]
    composites: Mapping[str, Callable[..., Any]]
    takes: Mapping[str, Callable[[torch.fx.Node], bool]]
    dtypes: Mapping[torch.dtype, Any]


class Missing:
    """What does not map, by name, each with its reasons and the user's lines."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[str]]] = {}

    def add(self, name: str, reason: str, where: Any = None) -> None:
        """Note one call."""
        lines = self.found.setdefault(name, {}).setdefault(reason, [])
        if where is not None and str(where) not in lines:
            lines.append(str(where))

    def refuse(self, target: Target) -> None:
        """Raise what was noted, if anything was.

        Raises:
            UserError: it lists all of it.
        """
        if not self.found:
            return
        listed = [
            f"  {name}: {reason}" + (f" ({', '.join(lines[:3])}{', ...' if len(lines) > 3 else ''})" if lines else "")
            for name, reasons in self.found.items() for reason, lines in reasons.items()
        ]  # fmt: skip
        todo = "Change these lines (what is random in training is gone after model.eval())"
        if all(name.startswith(("aten.", "prim.")) for name in self.found):
            todo += ", or package() the program, which keeps calls of PyTorch's operators"
        raise UserError(
            f"the program cannot be written as {target.name}; what does not map:\n" + "\n".join(listed), todo=f"{todo}."
        )


def walk(program: Program, target: Target, builder: Any, values: dict[torch.fx.Node, Any], missing: Missing) -> None:
    """Write every node that a result needs, in order; ``values`` holds the inputs' and receives the others'.

    What a row refuses is noted in ``missing``, and the walk goes on with the primitive's type alone, so that one error
    can list everything.
    """
    needed = _needed(program)
    for node in program.graph.nodes:
        if node.op != "call_function" or node not in needed:
            continue
        where = node.meta.get("source")
        if node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
            continue
        name = node.target.name if isinstance(node.target, PrimOp) else str(node.target)
        try:
            _check_dtypes(node, target)
            row = _row(name, node, target, program.reasons)
            builder.at(node)
            values[node] = row(builder, *_arguments(node, values), **_map(dict(node.kwargs), values))
        except NotMapped as error:
            missing.add(name, str(error), where)
            values[node] = builder.unknown(node)


def _row(name: str, node: torch.fx.Node, target: Target, reasons: Mapping[str, str]) -> Callable[..., Any]:
    if isinstance(node.target, PrimOp):
        if name in target.unmapped:
            raise NotMapped(target.unmapped[name])
        return target.rows[name]
    if name in target.composites:
        if not target.takes[name](node):
            raise NotMapped(f"not with these arguments in {target.name}")
        return target.composites[name]
    if control_of(node.target) is not None:
        raise NotMapped("control flow is not mapped")
    if name in ("quintet.recurrent.default", "quintet.lstm_layer.default"):
        raise NotMapped("a recurrent network over a number of steps that may differ is a loop, which is not mapped")
    if name.startswith("quintet."):
        raise NotMapped("a check that is no computation, and raises an error")
    if not name.startswith("aten."):
        raise NotMapped("an operator of another library")
    known = f": {reasons[name]}" if name in reasons else ""
    raise NotMapped(f"it stays a call of PyTorch's own kernel, as it has no form in primitives{known}")


def _check_dtypes(node: torch.fx.Node, target: Target) -> None:
    for one in (node, *node.all_input_nodes):
        for spec in _specs(one):
            if spec.dtype not in target.dtypes:
                raise NotMapped(not_mapped(spec.dtype))


def not_mapped(dtype: torch.dtype) -> str:
    """Why a dtype is none of a target's."""
    return "complex numbers are not mapped" if dtype.is_complex else f"numbers of {dtype} are not mapped"


def _specs(node: torch.fx.Node) -> Iterable[TensorSpec]:
    spec = node.meta.get("spec")
    return [s for s in (spec if isinstance(spec, (tuple, list)) else (spec,)) if isinstance(s, TensorSpec)]


def _arguments(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> tuple[Any, ...]:
    args = node.args
    if isinstance(node.target, PrimOp):
        args = node.target.bind(*[_bound(a) for a in args], **{k: _bound(a) for k, a in node.kwargs.items()})
        return tuple(_map(_unbound(a), values) for a in args)
    return tuple(_map(a, values) for a in args)


class _Ranked:
    """A node with the number of dimensions that `PrimOp.bind` asks for."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.node = node
        self.ndim = node.meta["spec"].ndim


def _bound(a: Any) -> Any:
    if isinstance(a, torch.fx.Node):
        return _Ranked(a)
    return tuple(map(_bound, a)) if isinstance(a, (tuple, list)) else a


def _unbound(a: Any) -> Any:
    if isinstance(a, _Ranked):
        return a.node
    return tuple(map(_unbound, a)) if isinstance(a, tuple) else a


def _map(a: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
    if isinstance(a, torch.fx.Node):
        return values[a]
    if isinstance(a, (tuple, list)):
        return tuple(_map(x, values) for x in a)
    if isinstance(a, dict):
        return {k: _map(x, values) for k, x in a.items()}
    return a


def _needed(program: Program) -> set[torch.fx.Node]:
    """The nodes that a result depends on."""
    found: set[torch.fx.Node] = set()
    waiting = [value for _, value in program.results if isinstance(value, torch.fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


