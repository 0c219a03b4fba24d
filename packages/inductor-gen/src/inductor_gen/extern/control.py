"""Branches and loops: a step of the wrapper that runs compiled bodies, each compiled once however often it runs.

The host reads a predicate, which waits for the device that computes it. A scan writes its stacked results row by row
into memory allocated once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_gen.loops.graph import Node
from prims.control import Form, control_of, run
from prims.ir import Envelope

__all__ = ["with_bodies"]

_Body = Callable[[list[Any]], list[Any]]


def with_bodies(node: Node, compiled: Callable[[Envelope], _Body]) -> tuple[str, Callable[..., Any]] | None:
    """``(name, callable)`` of an operator of control flow, which runs its compiled bodies; None for others."""
    control = control_of(node.target)
    return None if control is None else (node.op, _function(control.form, [compiled(body) for body in control.bodies]))


def _function(form: Form, bodies: list[_Body]) -> Callable[..., Any]:
    if form.kind == "scan":
        return lambda *args: _one_or_all(_scan(form, bodies[0], args))
    plain = [lambda *args, body=body: body(list(args)) for body in bodies]

    def call(*args: Any) -> Any:
        given = {id(x) for x in args}
        return _one_or_all([x.clone() if id(x) in given else x for x in run(form, plain, args)])

    return call


def _one_or_all(results: list[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


def _scan(form: Form, step: _Body, args: tuple[Any, ...]) -> list[Any]:
    first, last = form.carried, form.carried + form.mapped
    carried, mapped, others = list(args[:first]), [x.unbind(0) for x in args[first:last]], args[last:]
    rows: list[Any] = []
    stacked: list[torch.Tensor] = []
    length = len(mapped[0])
    for at in reversed(range(length)) if form.reverse else range(length):
        found = step([*carried, *(x[at] for x in mapped), *others])
        if not rows:
            stacked = [x.new_empty((length, *x.shape)) for x in found[first:]]
            rows = list(zip(*(x.unbind(0) for x in stacked), strict=True)) or [()] * length
        for row, value in zip(rows[at], found[first:], strict=True):
            row.copy_(value)
        carried = found[:first]
    return [*carried, *stacked]
