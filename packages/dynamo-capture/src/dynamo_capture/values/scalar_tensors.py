"""Floats that tensors without dimensions hold: the step counts and products that optimizers keep on the CPU.

Eager reads them (``step.item()``) to compute with Python floats, and decides by them. They are inputs of the region, on
the CPU and of one element, so that reading them before the graph costs what eager's reading does: such a number is a
float input like any other, and what the region does to the tensor is done to the number too, with the rounding of the
tensor's dtype. Numbers that are equal at capture and were so in every capture before are one input, by a guard.

So are learning rates that are such tensors, and how many models an average is of (``AveragedModel.n_averaged``): what
is computed of them is known as a number too, for operators that take one, and for ``if``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.composites import TENSOR_MAKERS
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.versions import version_of
from prims.spec.expr import bits_of_float, round_to_single
from prims.spec.sym import float_to_single

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["known_number", "note_number", "numbers_after"]

Number = Callable[[], "Value | None"]

_FILLED = {torch.zeros: 0.0, torch.ones: 1.0}
_IN_PLACE = {
    operator.iadd: operator.add, "add_": operator.add, "__iadd__": operator.add,
    operator.imul: operator.mul, "mul_": operator.mul, "__imul__": operator.mul,
}  # fmt: skip
_IN_PLACE_LISTS = {torch._foreach_add_: operator.add, torch._foreach_mul_: operator.mul}
#: Operators between tensors without dimensions, or with a number.
_OPERATORS = (operator.add, operator.sub, operator.mul, operator.truediv)
_TESTS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_COPIES = frozenset(("clone", "detach"))
_KINDS = (torch.float32, torch.float64)
#: Buffers in which modules count: the models of an average, the batches of a batch norm without a momentum.
_COUNTS = (("_buffers", "n_averaged"), ("_buffers", "num_batches_tracked"))


def number_of(tensor: torch.Tensor) -> float:
    """The number that a tensor holds (a step of a guard's path)."""
    return float(tensor.item())


def known_number(tx: Capture, tensor: TensorValue) -> Value | None:
    """The float that a tensor holds here, or None where only its data tells."""
    example = tensor.example
    if not _may_hold(example):
        return None
    if tensor.scalar is not None:
        number, version = tensor.scalar
        return number() if version == version_of(example) else None
    if version_of(example) or not _is_of_optimizer(tx, tensor):
        return None
    tensor.scalar = _once(partial(_input, tx, tensor)), 0
    return tensor.scalar[0]()


def _may_hold(example: torch.Tensor) -> bool:
    if example.ndim:
        return False
    is_scalar = example.device.type == "cpu" and example.dtype in (*_KINDS, torch.int64, torch.bool)
    return is_scalar and not example.is_inference() and not example.requires_grad


def _is_of_optimizer(tx: Capture, tensor: TensorValue) -> bool:
    """Whether a tensor is an optimizer's state or setting, or counts the models of an average.

    Those are read in every step; by others a program may decide anew.
    """
    source: Any = tensor.source
    if source is None or tensor.real_tensor is None:
        return False
    if tensor.example.dtype == torch.int64:
        return source.kind == "module_item" and source.key in _COUNTS
    return any(source.stands_in(name, tx.optimizers) for name in ("state", "param_groups"))


def _input(tx: Capture, tensor: TensorValue) -> Value | None:
    source: Any = tensor.source
    with _disable_current_modes():
        number = float(number_of(tensor.real()))
    if number != number:
        return None
    held = Source("call", source, number_of)
    first = tx.sizes.shared_number(str(held), number, str(source.key))
    if first is not None and first in tx.numbers:
        value, other = tx.numbers[first]
        tx.sizes.equal_numbers.append((Source("call", held, bits_of_float), other))
        return value
    value = tx.graph.float_input(held, number)
    tx.numbers[str(held)] = value, Source("call", held, bits_of_float)
    return value


def note_number(tensor: Value, number: Number) -> None:
    """The tensor, as the region has just made or written it, holds this float."""
    if isinstance(tensor, TensorValue) and _may_hold(tensor.example):
        tensor.scalar = number, version_of(tensor.example)


def numbers_after(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]
) -> list[tuple[TensorValue | None, Number]]:
    """The floats that tensors will hold after a call: of arguments that it writes, or (None) of its result."""
    if not args or fn.__hash__ is None or fn not in _TELLING:
        return []
    if fn in TENSOR_MAKERS:
        return _made(tx, args[0].realize(), kwargs)
    if fn in _FILLED:
        is_scalar = _items(args[0].realize()) == [] and len(args) == 1
        return [(None, lambda: ConstantValue(_FILLED[fn]))] if is_scalar and "out" not in kwargs else []
    if fn is torch.full:
        return _made(tx, args[1].realize(), kwargs) if len(args) == 2 and _items(args[0].realize()) == [] else []
    if fn in _COPIES and isinstance(args[0].realize(), TensorValue) and not kwargs:
        return _one(tx, None, args[0].realize(), lambda number: number)
    if fn in _OF_RANDOM and len(args) == 2:
        decided = _whatever_is_drawn(fn, args[0].realize(), args[1].realize())
        if decided is not None:
            return [(None, lambda: ConstantValue(decided))]
    if (fn in _OPERATORS or fn in _TESTS) and len(args) == 2:
        return _between(tx, fn, args[0].realize(), args[1].realize())
    if fn is operator.neg:
        return _between(tx, operator.mul, args[0].realize(), ConstantValue(-1))
    return _written(tx, fn, args, kwargs)


def _whatever_is_drawn(fn: Any, a: Value, b: Value) -> bool | None:
    """What a comparison of a number that ``torch.rand`` draws gives, whichever it draws; None where that decides.

    A layer is dropped if the number is below a rate that is 0 by default.
    """
    if not isinstance(a, TensorValue):
        a, b, fn = b, a, _MIRRORED[fn]
    if not isinstance(a, TensorValue) or type(b) is not ConstantValue or type(b.value) not in (int, float):
        return None
    if a.node.target is not torch.rand or version_of(a.example) or a.example.dtype not in _KINDS:
        return None
    at_0, at_1 = _OF_RANDOM[fn]
    return at_0 if _beyond(fn, b.value) else at_1 if b.value >= 1 else None


def _beyond(fn: Any, rate: float) -> bool:
    """Whether a comparison with ``rate`` is the same for all numbers from 0 on."""
    return rate <= 0 if fn in (operator.lt, operator.ge) else rate < 0


#: Comparisons of a number in [0, 1) with one that no number is below, and with one that all are below.
_OF_RANDOM = {operator.lt: (False, True), operator.le: (False, True), operator.gt: (True, False),
              operator.ge: (True, False)}  # fmt: skip
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}


#: All functions after which a number may be known.
_TELLING = frozenset(
    (*TENSOR_MAKERS, *_FILLED, torch.full, *_COPIES, *_OF_RANDOM, *_OPERATORS, *_TESTS, operator.neg, *_IN_PLACE,
     *_IN_PLACE_LISTS, "copy_", torch._foreach_copy_)
)  # fmt: skip


def _between(tx: Capture, fn: Any, a: Value, b: Value) -> list[tuple[TensorValue | None, Number]]:
    """What an operator gives of tensors without dimensions, rounded to the dtype that it gives."""
    tensors = [v.example for v in (a, b) if isinstance(v, TensorValue)]
    if not tensors or not all(map(_may_hold, tensors)):
        return []
    numbers = [_operand(tx, a), _operand(tx, b)]
    if None in numbers:
        return []
    kind = _kind(fn, [v.example if isinstance(v, TensorValue) else v.pytype() for v in (a, b)])

    def result() -> Value | None:
        from dynamo_capture.values.arith import binary, compare

        x, y = (_rounded(tx, number(), kind) for number in numbers)  # type: ignore[misc]
        if x is None or y is None:
            return None
        if fn in _TESTS:
            return compare(tx, fn, x, y).realize()
        return _rounded(tx, binary(tx, fn, x, y).realize(), kind)

    return [(None, _once(result))]


def _kind(fn: Any, operands: list[Any]) -> torch.dtype:
    """The dtype in which an operator computes."""
    kind = torch.result_type(*operands)
    return torch.get_default_dtype() if kind == torch.int64 and fn is operator.truediv else kind


def _made(tx: Capture, given: Value, kwargs: dict[str, Value]) -> list[tuple[TensorValue | None, Number]]:
    if not isinstance(given, (ConstantValue, SymValue)) or given.pytype is not float:
        return []
    dtype = kwargs["dtype"].realize().const() if "dtype" in kwargs else None
    kind = torch.get_default_dtype() if dtype is None else dtype
    return [(None, lambda: _rounded(tx, given, kind))] if kind in _KINDS else []


def _written(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]
) -> list[tuple[TensorValue | None, Number]]:
    op, many = _IN_PLACE.get(fn), _IN_PLACE_LISTS.get(fn)
    targets = [args[0]] if op or fn == "copy_" else None
    if many or fn is torch._foreach_copy_:
        targets = _items(args[0].realize())
    if targets is None or len(args) != 2 or not _is_unscaled(kwargs):
        return []
    others = _items(args[1].realize()) if many or fn is torch._foreach_copy_ else None
    if others is None:
        others = [args[1]] * len(targets)
    found: list[tuple[TensorValue | None, Number]] = []
    for target, other in zip(targets, others, strict=False):
        tensor, operand = target.realize(), other.realize()
        if isinstance(tensor, TensorValue) and _may_hold(tensor.example):
            found += _after(tx, tensor, op or many, operand)
    return found


def _after(tx: Capture, tensor: TensorValue, op: Any, operand: Value) -> list[tuple[TensorValue | None, Number]]:
    kind = tensor.example.dtype
    other = _operand(tx, operand)
    if other is None or (kind not in _KINDS and (op is None or operand.pytype is not int)):
        return []
    if op is None:
        return [(tensor, lambda: _rounded(tx, other(), kind))]
    return _one(tx, tensor, tensor, lambda number: _computed(tx, op, number, other(), kind))


def _one(
    tx: Capture, target: TensorValue | None, tensor: Value, change: Callable[[Value], Value | None]
) -> list[tuple[TensorValue | None, Number]]:
    """``change`` of the number that a tensor holds now; asked only when somebody reads it."""
    if not isinstance(tensor, TensorValue) or not _may_hold(tensor.example):
        return []
    held, version = tensor.scalar, version_of(tensor.example)
    if held is None:
        if version or not _is_of_optimizer(tx, tensor):
            return []
        before: Number = _once(partial(_input, tx, tensor))
    elif held[1] == version:
        before = held[0]
    else:
        return []

    def after() -> Value | None:
        number = before()
        return None if number is None else change(number)

    return [(target, _once(after))]


def _once(number: Number) -> Number:
    known: list[Value | None] = []

    def ask() -> Value | None:
        if not known:
            known.append(number())
        return known[0]

    return ask


def _operand(tx: Capture, value: Value) -> Number | None:
    if isinstance(value, TensorValue):
        found = _one(tx, None, value, lambda number: number)
        return found[0][1] if found else None
    if isinstance(value, (ConstantValue, SymValue)) and value.pytype in (int, float):
        return lambda: value
    return None


def _computed(tx: Capture, op: Any, number: Value, other: Value | None, kind: torch.dtype) -> Value | None:
    """``op`` in the tensor's dtype, which rounds a Python number before it computes."""
    from dynamo_capture.values.arith import binary

    rounded = _rounded(tx, other, kind)
    return None if rounded is None else _rounded(tx, binary(tx, op, number, rounded).realize(), kind)


def _rounded(tx: Capture, number: Value | None, kind: torch.dtype) -> Value | None:
    if number is None or kind not in (*_KINDS, torch.int64):
        return None
    if isinstance(number, ConstantValue):
        value = float(number.value)
        return ConstantValue(round_to_single(value) if kind == torch.float32 else value)
    if number.pytype is not float:
        number = tx.graph_call(torch.sym_float, [number], {}).realize()
    return tx.graph_call(float_to_single, [number], {}).realize() if kind == torch.float32 else number


def _items(value: Value) -> list[Value] | None:
    return list(value.items) if isinstance(value, (TupleValue, ListValue)) else None


def _is_unscaled(kwargs: dict[str, Value]) -> bool:
    if kwargs.keys() - {"alpha"}:
        return False
    alpha = kwargs["alpha"].realize() if kwargs else ConstantValue(1)
    return alpha.is_const and bool(alpha.const() == 1)
