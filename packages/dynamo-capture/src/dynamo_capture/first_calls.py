"""Calls that the emitted code makes before the graph runs: seeding, random draws, readings of a clock.

Nothing between two such calls, or between one and the graph, sees in which order they come: they are in the program's
order among each other, and what may see it ends the region (:func:`dynamo_capture.values.drawn.comes_too_early`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import EarlierEnd
from dynamo_capture.values.base import Value
from prims.records import record
from prims.spec.expr import bits_of_float

if TYPE_CHECKING:
    from dynamo_capture.codegen import CodeGen

__all__ = ["FirstCall", "FirstCalls"]


def _ways(generator: Value) -> tuple[Any, Any]:
    """How the state of a random generator is read and set."""
    cls: Any = generator.pytype
    if cls is torch.Generator:
        return cls.get_state, cls.set_state
    return random.Random.getstate, random.Random.setstate


@record
class FirstCall:
    """``fn(*args, **kwargs)``.

    Attributes:
        result: the local variable of the emitted code that takes what it gives, or None.
        as_bits: it takes the bits of that, which is a float.
        generator: the ``random.Random`` or ``torch.Generator`` that it advances, or None.
        end: where the region ends if the call cannot come first.
        number: the result is a number, rather than a tensor or a generator.
    """

    fn: Callable[..., Any]
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    result: str | None = None
    as_bits: bool = False
    generator: Value | None = None
    end: EarlierEnd | None = None
    number: bool = True


class FirstCalls:
    """The calls of one capture, in the program's order."""

    def __init__(self) -> None:
        self._calls: list[FirstCall] = []

    def add(self, call: FirstCall) -> None:
        """One more."""
        self._calls.append(call)

    def new_name(self) -> str:
        """A local variable for the next result."""
        return f"___first{len(self._calls)}"

    @property
    def draws(self) -> bool:
        """Whether a random generator advances."""
        return bool(self._states())

    @property
    def gives_numbers(self) -> bool:
        """Whether a call gives the graph a number."""
        return any(call.result is not None and call.number for call in self._calls)

    def end(self) -> EarlierEnd | None:
        """Where the region ends if the calls cannot come first; None where they can anyway."""
        return next((call.end for call in self._calls if call.end is not None), None)

    def roots(self) -> list[Value]:
        """The values that the calls need."""
        given = [value for call in self._calls for value in (*call.args, *call.kwargs.values())]
        return [*given, *(generator for generator, _ in self._states())]

    def emit(self, cg: CodeGen, *, again: bool) -> None:
        """Emit the calls; ``again``: :meth:`emit_put_back` follows."""
        for generator, state in self._states() if again else ():
            cg.call_const(_ways(generator)[0], [generator])
            cg.emit("STORE_FAST", state)
        for call in self._calls:
            if call.as_bits:
                cg.begin_call(bits_of_float)
            cg.call_const(call.fn, list(call.args), call.kwargs)
            if call.as_bits:
                cg.end_call(1)
            if call.result is None:
                cg.pop()
            else:
                cg.emit("STORE_FAST", call.result)

    def emit_put_back(self, cg: CodeGen) -> None:
        """Emit what gives the random generators the states back that they had."""
        for generator, state in self._states():
            cg.begin_call(_ways(generator)[1])
            cg.load(generator)
            cg.emit("LOAD_FAST", state)
            cg.end_call(2)
            cg.pop()

    def _states(self) -> list[tuple[Value, str]]:
        """The random generators, each with the local variable that keeps its state."""
        found = {id(call.generator): call.generator for call in self._calls if call.generator is not None}
        return [(generator, f"___state{at}") for at, generator in enumerate(found.values())]
