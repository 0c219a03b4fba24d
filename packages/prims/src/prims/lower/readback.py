"""Parts that are read back as they were written, and those that are written again.

Writes through views come in nested scatters: ``k[2:22, 3:7].mul_(0.5).add_(1)`` is a scatter into a scatter into ``k``,
of what is read from those of the first write, and of ``k.view(-1)`` each writes the view of a view of what came before.
Here what is read at the very place that was written last is what was written there, a view that leads back is what it
leads to, and a scatter goes on from what its own place overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
import torch.fx

from prims.decomp.registry import get
from prims.ir.envelope import Envelope
from prims.lower.clean import erase_dead
from prims.lower.numerics import stays_eager
from prims.lower.regions import SCATTERS, SETTING, VIEWS, WHOLE
from prims.spec import TensorSpec

__all__ = ["read_back"]

#: Views of views that are looked at.
_FAR = 6


def read_back(env: Envelope, claims: Container[str], numerics: str = "fast") -> Envelope:
    """An aten envelope without these detours; the same one where there are none.

    What stays a call, by ``claims`` or ``numerics``, is given what lies in memory as its own operand does.
    """
    same: dict[torch.fx.Node, torch.fx.Node] = {}
    onto: dict[torch.fx.Node, torch.fx.Node] = {}
    laid: dict[Any, torch.fx.Node] = {}  # those of ``same`` in whose place is what lies in the same memory
    resolved: Callable[[Any], torch.fx.Node] = lambda x: same.get(x, x)
    if not any(node.target in SCATTERS or node.target in SETTING for node in env.graph.nodes):
        return env
    for node in env.graph.nodes:
        if node.target in WHOLE:
            back = laid.get(node.args[0], node.args[0])
            for _ in range(_FAR if back.target in WHOLE else 0):
                back = laid.get(back.args[0], back.args[0])
                if _alike(back.meta["spec"], node.meta["spec"]):  # of one memory, at the same distances: the same
                    same[node] = laid[node] = back
                if node in same or back.target not in WHOLE:
                    break
        elif node.target in VIEWS:
            written, place = resolved(node.args[0]), node.args[1:]
            if SCATTERS.get(written.target) is node.target and _fixed(place) and written.args[2:] == place:
                source = resolved(written.args[1])
                if source.meta["spec"].dtype == node.meta["spec"].dtype:
                    same[node] = source
        elif node.target in SCATTERS and _fixed(node.args[2:]):
            base = resolved(node.args[0])
            while base.target is node.target and base.args[2:] == node.args[2:]:
                base = resolved(base.args[0])
            if base is not resolved(node.args[0]):
                onto[node] = base
    return _with(env, same, onto, claims, numerics) if same or onto else env


def _alike(a: TensorSpec, b: TensorSpec) -> bool:
    """Are they of one dtype, and of the same numbers of elements at the same distances?"""
    numbers = all(type(n) is int for n in (*a.shape, *a.strides, *b.shape, *b.strides))
    return numbers and (a.dtype, tuple(a.shape), tuple(a.strides)) == (b.dtype, tuple(b.shape), tuple(b.strides))


def _fixed(place: tuple[Any, ...]) -> bool:
    return all(type(x) in (int, type(None)) for x in place)


def _with(
    env: Envelope, same: dict[torch.fx.Node, torch.fx.Node], onto: dict[torch.fx.Node, torch.fx.Node],
    claims: Container[str], numerics: str,
) -> Envelope:  # fmt: skip
    """The envelope with ``same`` nodes for those that read them, but where a node's layout counts, and with scatters
    ``onto`` others."""
    graph, made = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in env.graph.nodes:
        plain = _takes_values(node, claims, numerics)
        copy = graph.node_copy(node, lambda x, plain=plain: made[same.get(x, x) if plain else x])  # type: ignore[misc]
        if node in onto:
            copy.update_arg(0, made[onto[node]])
        made[node] = copy
    erase_dead(graph)
    return env.replace(graph=graph)


def _takes_values(node: torch.fx.Node, claims: Container[str], numerics: str) -> bool:
    """Does an operator take values alone, wherever they lie?"""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    known = str(node.target) not in claims and get(node.target) is not None  # which `as_strided` has not
    return known and not stays_eager(numerics, node)
