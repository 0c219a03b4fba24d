"""Questions about a call's inputs: whether what masks are computed of has the contents that are usual."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prims.coding import decoded, encoded
from prims.errors import StoredGraphError
from prims.records import record

__all__ = ["Condition", "Question", "Slot", "pattern_of"]

_PATTERNS = ("ones", "zeros", "triangle")


@record
class Slot:
    """In place of an argument: the value number ``at`` of a condition."""

    at: int


@record
class Condition:
    """A tensor, computed of a graph's inputs, that is to have the contents that ``pattern`` names.

    Attributes:
        steps: ``(primitive, arguments)`` whose results follow the inputs that it reads; arguments that are slots are
            :class:`Slot`. The last result is the tensor, or the only input where there are no steps.
        inputs: positions among the graph's inputs.
        pattern: ``"ones"``, ``"zeros"``, or ``"triangle"``: what is not later is 1 (truth values) or 0 (else -inf).
    """

    inputs: tuple[int, ...]
    steps: tuple[tuple[str, tuple[Any, ...]], ...]
    pattern: str

    def value(self, inputs: Sequence[Any]) -> torch.Tensor:
        """The tensor for a call's inputs."""
        values = [inputs[k] for k in self.inputs]
        for primitive, args in self.steps:
            values.append(_reference(primitive)(*_filled(args, values)))
        return values[-1]


@record
class Question:
    """What has to hold in a call: all the conditions."""

    conditions: tuple[Condition, ...]
    device: torch.device

    def told(self) -> dict[str, Any]:
        """As JSON."""
        conditions = [
            {"inputs": list(c.inputs), "steps": [[name, _told(args)] for name, args in c.steps], "pattern": c.pattern}
            for c in self.conditions
        ]
        return {"device": str(self.device), "conditions": conditions}

    @classmethod
    def of(cls, told: Mapping[str, Any], inputs: int) -> Question:
        """The question of :meth:`told`'s JSON, about a graph of so many inputs.

        Raises:
            StoredGraphError: it is none.
        """
        conditions = tuple(_condition(each, inputs) for each in told["conditions"])
        return cls(conditions, decoded({"device": told["device"]}))


def pattern_of(pattern: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor with the contents that a pattern names."""
    if pattern != "triangle":
        return torch.full(tuple(shape), pattern == "ones", dtype=dtype, device=device)
    seen = torch.ones(shape[-2], shape[-1], dtype=torch.bool, device=device).tril()
    if dtype != torch.bool:
        seen = torch.zeros(shape[-2], shape[-1], dtype=dtype, device=device).masked_fill_(~seen, -math.inf)
    return seen.expand(tuple(shape))


def _filled(args: Any, values: Sequence[Any]) -> Any:
    if isinstance(args, (tuple, list)):
        return type(args)(_filled(a, values) for a in args)
    return values[args.at] if isinstance(args, Slot) else args


@functools.cache
def _reference(primitive: str) -> Callable[..., Any]:
    from prims.ops import TABLE

    return TABLE[primitive].torch_ref


# ---- in files ---------------------------------------------------------------------------------------------------


def _told(value: Any) -> Any:
    if isinstance(value, Slot):
        return {"slot": value.at}
    if isinstance(value, (tuple, list)):
        return {"list" if isinstance(value, list) else "tuple": list(map(_told, value))}
    return {"value": encoded(value)}


def _condition(told: Mapping[str, Any], inputs: int) -> Condition:
    from prims.ops import TABLE

    read, steps, pattern = tuple(told["inputs"]), [], told["pattern"]
    known = len(read)
    for name, args in told["steps"]:
        if name not in TABLE:
            raise StoredGraphError("ART-C5", f"a question about masks calls no primitive {str(name)[:80]!r}")
        steps.append((name, _from(args, known)))
        known += 1
    if not known or pattern not in _PATTERNS or not all(type(k) is int and 0 <= k < inputs for k in read):
        raise StoredGraphError("ART-C5", f"a question about masks asks for {str(pattern)[:80]!r} of {str(read)[:80]}")
    return Condition(read, tuple(steps), pattern)


def _from(told: Any, known: int) -> Any:
    ((kind, content),) = told.items()
    if kind == "slot" and type(content) is int and 0 <= content < known:
        return Slot(content)
    if kind in ("list", "tuple"):
        items = [_from(each, known) for each in content]
        return items if kind == "list" else tuple(items)
    if kind == "value":
        return decoded(content)
    raise StoredGraphError("ART-C5", f"a question about masks has the argument {str(told)[:80]}")
