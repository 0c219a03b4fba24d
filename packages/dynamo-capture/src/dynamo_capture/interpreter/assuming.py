"""Branches on a tensor's value that lead to a ``raise``: ``assert (x > 0).all()``, ``if x.isnan().any(): raise ...``.

The region goes on as if nothing was to be raised, and the graph computes the condition beside its results. It is read
when the graph has run, before anything else has changed: where it is not as assumed the frame is run again eagerly
(:class:`dynamo_capture.emitted.Again`), from the beginning, and raises what the program raises. A graph that writes to
what exists outside ends before such a branch instead, as do those that are exported and those inside others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.interpreter.catching import may_be_caught
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import TensorValue
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.interpreter.decode import DecodedCode

__all__ = ["Assumed", "assume", "decided"]

#: Instructions in front of a RAISE_VARARGS, which make the exception.
_MOST = 60
_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RERAISE", "YIELD_VALUE", "SEND", "FOR_ITER", "GET_ITER"))


@record
class Assumed:
    """A tensor of one bool that the graph gives, which has to be true; ``step`` and ``brk`` are where it would end."""

    condition: Value
    step: int
    brk: GraphBreak


def decided(tx: Capture, decoded: DecodedCode, value: Value, if_true: int, if_false: int) -> bool:
    """The truth of ``value``, by which a jump goes to either of two instructions.

    Raises:
        GraphBreak: only the data tells, and neither or each of the ways raises.
    """
    try:
        return value.truth(tx)
    except GraphBreak as brk:
        tensor = value.realize()
        ways = _raises(decoded, if_true), _raises(decoded, if_false)
        if brk.number != "QB01" or not isinstance(tensor, TensorValue) or ways[0] == ways[1]:
            raise
        if may_be_caught(tx.frames):
            raise
        assume(tx, tensor, ways[1], brk)
        return ways[1]


def assume(tx: Capture, tensor: TensorValue, truth: bool, brk: GraphBreak) -> None:
    """From here on the truth of a tensor is that, or the frame is run again eagerly.

    Raises:
        GraphBreak: ``brk``, where that cannot be.
    """
    if tx.request.exporting or not tx.graph.is_outermost or tx.levels or tensor.example.numel() != 1:
        raise brk
    brk.where = tx.location()
    step = tx.frames[0].call_step()  # type: ignore[attr-defined]
    condition = tx.graph_call(torch.ne if truth else torch.eq, [tensor, ConstantValue(0)], {}).realize()
    if tx.raising.met is None:
        tx.raising.met = step
    tx.assumed.append(Assumed(condition, step, brk))


def _raises(decoded: DecodedCode, at: int) -> bool:
    """Whether the instructions from there on make an exception and raise it, without another branch."""
    for inst in decoded.instructions[at : at + _MOST]:
        if inst.name == "RAISE_VARARGS":
            return True
        if inst.name in _ENDS or "JUMP" in inst.name:
            return False
    return False
