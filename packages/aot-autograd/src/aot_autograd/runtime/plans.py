"""What a runtime with gradients is made from, as data: it is written down for another process as it stands.

A plan is made once, of the joint graph and its partition (:mod:`.planning`), and the callable is put together from it
alone (:mod:`.training`): that of this process, and that of one which knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from prims.errors import StoredGraphError
from prims.records import record

__all__ = ["AgainPlan", "Emitted", "TrainingPlan", "checked"]


@record
class Emitted:
    """The text of a function, and what it names beside the parts of its own runtime."""

    text: str
    names: Mapping[str, Any]


@record
class AgainPlan:
    """When and how a region's program can be run again (:class:`aot_autograd.runtime.again.RunAgain`).

    Attributes:
        arguments: how many inputs are the caller's arguments.
        grad_enabled: the gradient mode at the program's begin.
        autocast: the autocast state of each device: ``(device, enabled, dtype)``.
        tensors: the inputs that are tensors of the program.
        weak: those of them that a call does not keep alive.
        seeds: by device, the input that is its seed.
        written: the inputs that the program writes.
        copied: those of them that its results depend on, so that a call keeps copies.
        copies_cost: whether these are large for what the program does, and not made before one has been missed.
        wanted: the inputs whose gradients the backward graph gives, in its order.
        leaves: by tangent, the leaf of the result that it belongs to, and whether to that view's base.
        saved: by tangent, the place of its result among the saved tensors; None where it is not there.
        under: by result, the results that it is computed from.
        views: leaves of the result that are views, counted as results behind the tangents.
        bases: of each view the tangent that it is a view of, or ``~input``.
        at_once: see :class:`aot_autograd.runtime.second.SecondRun`.
        obstacle: why the program cannot be run again.
    """

    arguments: int
    grad_enabled: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    tensors: tuple[int, ...]
    weak: frozenset[int]
    seeds: dict[torch.device, int]
    written: frozenset[int]
    copied: frozenset[int]
    copies_cost: bool
    wanted: tuple[int, ...]
    leaves: tuple[tuple[int, bool] | None, ...]
    saved: tuple[int | None, ...]
    under: tuple[tuple[int, ...], ...]
    views: tuple[int, ...]
    bases: tuple[int, ...]
    at_once: bool
    obstacle: str | None

    @property
    def tangents(self) -> int:
        """How many results are outputs of the graph through which gradients flow."""
        return len(self.leaves)

    @property
    def hands_to_inputs(self) -> bool:
        """Whether there are views of inputs among the results that others are computed from."""
        return any(base < 0 for base in self.bases)


@record
class TrainingPlan:
    """A runtime with gradients.

    Attributes:
        run: what is called; calls ``apply`` with the gate that ``enter`` gives, and the arguments.
        forward, collect: the forward and backward of the function of the results.
        give: the backward of the function of the inputs.
        device: of the gradients between the two functions.
        entering: the inputs that go through the gate.
        others: those of them (by place) that are no parameters.
        parameters: by gradient, whether it is a parameter's.
        saved: where each saved value is found: ``("input" | "output", index)``.
        needing: by saved tensor, the tangents whose backward pass reads it in eager.
        sharing: by tangent, those whose pass frees something that its own needs; empty where each frees all.
        needed: then, by saved tensor, the tangents that it is needed for.
        linked: the tangents whose results are kept for their links; None where there are no links.
        gates: where inputs with a history may go through several gates: by gate, their places in ``entering``.
        parts: which tangents' results lead to which of these gates (:mod:`aot_autograd.runtime.apart`).
        forward_apart: the forward of the function that then runs the forward graph.
        gather: what then puts together what the backward graph takes.
    """

    run: Emitted
    forward: Emitted
    collect: Emitted
    give: Emitted
    again: AgainPlan
    device: torch.device
    entering: tuple[int, ...]
    others: tuple[int, ...]
    parameters: tuple[bool, ...]
    saved: tuple[tuple[str, int], ...]
    needing: tuple[frozenset[int], ...]
    linked: frozenset[int] | None
    sharing: tuple[frozenset[int], ...] = ()
    needed: tuple[frozenset[int], ...] = ()
    gates: tuple[tuple[int, ...], ...] = ()
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    forward_apart: Emitted | None = None
    gather: Emitted | None = None


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _all(kind: Any, holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind and all(map(holds, value))


def _row(*holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        type(value) is tuple and len(value) == len(holds) and all(h(v) for h, v in zip(holds, value, strict=True))
    )


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device)


def _is_text(value: Any) -> bool:
    return type(value) is str


_INTS, _SET = _all(tuple, _is_int), _all(frozenset, _is_int)
#: What the fields of plans hold, which are read from files.
_FORMS: dict[str, Callable[[Any], bool]] = {
    "arguments": _is_int, "grad_enabled": _is_bool, "tensors": _INTS, "weak": _SET, "written": _SET, "wanted": _INTS,
    "autocast": _all(tuple, _row(_is_text, _is_bool, lambda value: isinstance(value, torch.dtype))),
    "seeds": lambda value: type(value) is dict and all(map(_is_device, value)) and all(map(_is_int, value.values())),
    "leaves": _all(tuple, _or_none(_row(_is_int, _is_bool))), "saved": _all(tuple, _or_none(_is_int)),
    "under": _all(tuple, _INTS), "views": _INTS, "bases": _INTS, "at_once": _is_bool, "obstacle": _or_none(_is_text),
    "device": _is_device, "entering": _INTS, "others": _INTS, "parameters": _all(tuple, _is_bool),
    "needing": _all(tuple, _SET), "linked": _or_none(_SET), "gates": _all(tuple, _INTS),
    "parts": _all(tuple, _row(_INTS, _INTS)), "sharing": _all(tuple, _SET), "needed": _all(tuple, _SET),
}  # fmt: skip
_SAVED = _all(tuple, _row(lambda value: value in ("input", "output"), _is_int))


def checked(plan: Any) -> Any:
    """A plan that was read from a file, if its fields hold what they should.

    Raises:
        StoredGraphError: one does not.
    """
    for each in fields(plan):
        value = getattr(plan, each.name)
        holds = _SAVED if each.name == "saved" and type(plan) is TrainingPlan else _FORMS.get(each.name)
        if holds is not None and not holds(value):
            raise StoredGraphError("ART-C5", f"{each.name} of a plan is {str(value)[:80]}")
    return plan
