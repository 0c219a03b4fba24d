"""Branches on a tensor's value that lead to a ``raise``: ``assert (x > 0).all()``, ``if x.isnan().any(): raise ...``.

The region goes on as if nothing was to be raised, and the graph computes the condition beside its results. It is read
when the graph has run, before anything else has changed: where it is not as assumed the frame is run again eagerly
(:class:`dynamo_capture.emitted.Again`), from the beginning, and raises what the program raises. A graph that writes to
what exists outside (an optimizer's step) gives it the old values back at its end, where a condition does not hold. It
ends before such a branch where that cannot be, as do graphs that are exported and those inside others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.graph_builder import is_written
from dynamo_capture.interpreter.catching import may_be_caught
from dynamo_capture.spent import autograd_nodes, is_spent
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import set_mode
from prims.records import record
from prims.spec.layout import may_overlap

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.graph_builder import GraphInput
    from dynamo_capture.interpreter.decode import DecodedCode

__all__ = ["Assumed", "assume", "decided", "written_if_as_assumed"]

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


def written_if_as_assumed(tx: Capture, outputs: list[Any]) -> Assumed | None:
    """At the end of the graph: what it writes to outside gets its old value back where a condition does not hold.

    A backward pass that is still to come may need what such a write changes.

    Args:
        outputs: the results of the graph.

    Returns:
        The condition before which the graph has to end, where that cannot be.
    """
    inputs = tx.graph.inputs
    uncounted = tx.graph.may_write_uncounted and any(_is_inference(inp) for inp in inputs)
    written = [inp for inp in inputs if is_written(inp)]
    if not tx.assumed or not (written or uncounted):
        return None
    gets_back = not uncounted and tx.raising.traced is None and all(map(_may_get_back, written))
    if not gets_back or any(map(_has_history, outputs)):
        return tx.assumed[0]  # type: ignore[no-any-return]
    after = next(node for node in tx.graph.graph.nodes if node.op != "placeholder")
    with tx.graph.graph.inserting_before(after):
        old = [tx.graph_call("clone", [_detached(tx, inp)], {}, method=True) for inp in written]
    records, setter = torch.is_grad_enabled(), torch._C._set_grad_enabled
    set_mode(tx, setter, [False])
    for device in dict.fromkeys(cast(TensorValue, inp.value).example.device for inp in written):
        holds = _all_hold(tx, device)
        for inp, before in zip(written, old, strict=True):
            value = cast(TensorValue, inp.value)
            if value.example.device == device:
                kept = tx.graph_call(torch.where, [holds, value, before], {})
                tx.graph_call("copy_", [value, kept], {}, method=True)
    set_mode(tx, setter, [records])
    return None


def _all_hold(tx: Capture, device: torch.device) -> Value:
    """Whether all conditions hold, as a tensor without dimensions on that device."""
    found: Value | None = None
    for each in tx.assumed:
        condition = each.condition
        if condition.example.ndim:
            condition = tx.graph_call("reshape", [condition, TupleValue([])], {}, method=True)
        if condition.realize().example.device != device:
            condition = tx.graph_call("to", [condition, ConstantValue(device)], {}, method=True)
        found = condition if found is None else tx.graph_call(torch.logical_and, [found, condition], {})
    assert found is not None
    return found


def _detached(tx: Capture, inp: GraphInput) -> Value:
    return tx.graph_call("detach", [cast(Value, inp.value)], {}, method=True)


def _is_inference(inp: GraphInput) -> bool:
    return isinstance(inp.value, TensorValue) and inp.value.example.is_inference()


def _has_history(value: Any) -> bool:
    """Whether a backward pass through a result can be run."""
    if not isinstance(value, TensorValue) or value.example.grad_fn is None:
        return False
    return not any(map(is_spent, autograd_nodes([value.example])))


def _may_get_back(inp: GraphInput) -> bool:
    """Whether a tensor that was written to is the one that it was, in its shape and to autograd, and may be set.

    ``copy_`` refuses a tensor whose elements share memory (an expanded one, of which a part was written).
    """
    value = cast(TensorValue, inp.value)
    example, spec = value.example, inp.node.meta["spec"]
    same = value.node is inp.node and (tuple(example.shape), example.dtype) == (tuple(spec.shape), spec.dtype)
    whole = same and not may_overlap(spec.shape, spec.strides)
    return whole and example._base is None and (example.is_leaf or not example.requires_grad)


def _raises(decoded: DecodedCode, at: int) -> bool:
    """Whether the instructions from there on make an exception and raise it, without another branch."""
    for inst in decoded.instructions[at : at + _MOST]:
        if inst.name == "RAISE_VARARGS":
            return True
        if inst.name in _ENDS or "JUMP" in inst.name:
            return False
    return False
