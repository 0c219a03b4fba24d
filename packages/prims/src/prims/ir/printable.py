"""Calls that ``fx`` can write down: an operator or an argument named like a Python keyword would be a SyntaxError.

``aten.random.from`` is such an operator, ``from`` of ``Tensor.uniform_`` such an argument. And complex numbers that are
not finite are written with ``infj`` and ``nanj``, which Python does not know by themselves.
"""

from __future__ import annotations

import cmath
import keyword
from typing import Any

import torch
import torch.fx
import torch.fx.graph

__all__ = ["make_printable", "printable_call"]

for _name in ("infj", "nanj"):  # as fx itself does for inf and nan
    torch.fx.graph._register_custom_builtin(_name, f"from cmath import {_name}", getattr(cmath, _name))


def printable_call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The same call, of an operator or of a method by its name, without keywords of Python as names.

    The operator becomes its packet, which finds the overload by the arguments; an argument is given by position.
    """
    if any(map(keyword.iskeyword, kwargs)):
        args, kwargs = _by_position(target, args, kwargs)
    if isinstance(target, torch._ops.OpOverload) and keyword.iskeyword(target._overloadname):
        target = target.overloadpacket
    return target, args, kwargs


def _by_position(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    for names, defaults in _signatures(target):
        last = max(names.index(name) if name in names else -1 for name in kwargs if keyword.iskeyword(name))
        taken = names[len(args) : last + 1]
        known = all(name in kwargs or name in defaults for name in taken)
        if last >= len(args) and known and all(name in names for name in kwargs):
            moved = [kwargs[name] if name in kwargs else defaults[name] for name in taken]
            return (*args, *moved), {name: value for name, value in kwargs.items() if name not in taken}
    return args, kwargs


def _signatures(target: Any) -> list[tuple[list[str], dict[str, Any]]]:
    """Argument names and defaults of each overload that a call of the target may be."""
    if isinstance(target, torch._ops.OpOverload):
        overloads = [target]
    else:
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        packet = getattr(torch.ops.aten, name, None) if name else None
        overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    return [
        (
            [a.name for a in overload._schema.arguments],
            {a.name: a.default_value for a in overload._schema.arguments if a.has_default_value()},
        )
        for overload in overloads
    ]


def make_printable(graph: torch.fx.Graph) -> None:
    """Replace the calls of a graph that ``fx`` could not write down."""
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            target, args, kwargs = printable_call(node.target, node.args, node.kwargs)
            if target is not node.target or args is not node.args:
                node.target, node.args, node.kwargs = target, args, kwargs
