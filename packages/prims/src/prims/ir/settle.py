"""Sizes in the terms that a compilation's guards have left.

A size may have been written down before a guard made it equal to another, or to 1: ``min(s0, s1 - 1)`` that was
broadcast, ``s1`` of an input before the program asked whether it is 1. Whoever asks whether a dimension is one looks at
its expression, so that stages put sizes in these terms before they begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from prims.ir.envelope import Envelope
from prims.ir.symbols import expr_of, symbols_in
from prims.spec import Sym, TensorSpec

__all__ = ["settled", "settler"]


def settler(env: Envelope) -> Callable[[Any], Any]:
    """Puts sizes, alone and in metadata, in these terms; what is no size comes back.

    A symbol that no input of this graph binds (a backward graph has few of them) replaces none.
    """
    context, bound = env.symbols.context, env.symbols.names()
    if context is None or not (context.replacements or context.sums):
        return lambda value: value

    def number(value: Any) -> Any:
        expr = expr_of(value)
        if expr is None:
            return value
        made = context.make(expr)
        return made if symbols_in(made) <= bound else value

    def settle(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            shape, strides = (list(map(number, values)) for values in (value.shape, value.strides))
            return value.replace(shape=shape, strides=strides, storage_offset=number(value.storage_offset))
        return number(value) if isinstance(value, Sym) else value

    return settle


def settled(env: Envelope) -> Envelope:
    """The envelope with the metadata and the numbers of its nodes in these terms; the same one where all are.

    Its inputs stay as they are: each symbol is read where it stands alone.
    """
    context = env.symbols.context
    if context is None or not (context.replacements or context.sums):
        return env
    settle = settler(env)
    settle_all: Callable[[Any], Any] = lambda value: torch.fx.node.map_aggregate(value, settle)
    graph, _ = env.copy_graph()
    for node in graph.nodes:
        if node.op != "output":
            node.args, node.kwargs = settle_all(node.args), settle_all(node.kwargs)
        spec = node.meta.get("spec")
        node.meta["spec"] = type(spec)(map(settle, spec)) if type(spec) in (tuple, list) else settle(spec)
    return env.replace(graph=graph)
