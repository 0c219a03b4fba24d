"""Operators: constants are folded, tensors and sizes go into the graph, containers and objects do as Python does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.compare import equal_by_default, equals
from dynamo_capture.values.constant import ConstantValue, is_numpy_scalar
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["BINARY", "DUNDER_OPERATORS", "INPLACE", "binary", "compare", "inplace", "unary"]

#: ``dis``'s BINARY_OP arguments in order (opcode.h, NB_ADD ...).
BINARY: tuple[Callable[..., Any], ...] = (
    operator.add, operator.and_, operator.floordiv, operator.lshift, operator.matmul, operator.mul, operator.mod,
    operator.or_, operator.pow, operator.rshift, operator.sub, operator.truediv, operator.xor,
)  # fmt: skip
INPLACE: tuple[Callable[..., Any], ...] = (
    operator.iadd, operator.iand, operator.ifloordiv, operator.ilshift, operator.imatmul, operator.imul,
    operator.imod, operator.ior, operator.ipow, operator.irshift, operator.isub, operator.itruediv, operator.ixor,
)  # fmt: skip

_NAMES = {
    operator.add: "add", operator.and_: "and", operator.floordiv: "floordiv", operator.lshift: "lshift",
    operator.matmul: "matmul", operator.mul: "mul", operator.mod: "mod", operator.or_: "or", operator.pow: "pow",
    operator.rshift: "rshift", operator.sub: "sub", operator.truediv: "truediv", operator.xor: "xor",
}  # fmt: skip
_PLAIN = dict(zip(INPLACE, BINARY, strict=True))
_COMPARISONS = {
    operator.eq: ("__eq__", "__eq__"), operator.ne: ("__ne__", "__ne__"), operator.lt: ("__lt__", "__gt__"),
    operator.gt: ("__gt__", "__lt__"), operator.le: ("__le__", "__ge__"), operator.ge: ("__ge__", "__le__"),
}  # fmt: skip
_UNARY = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__", abs: "__abs__"}

#: Methods of numbers that are operators.
DUNDER_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": fn for fn, name in _NAMES.items()},
    **{names[0]: fn for fn, names in _COMPARISONS.items()},
}
_SYMBOL = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
           operator.mod: "%", operator.pow: "**", operator.matmul: "@", operator.and_: "&", operator.or_: "|",
           operator.xor: "^", operator.lshift: "<<", operator.rshift: ">>", operator.lt: "<", operator.gt: ">",
           operator.le: "<=", operator.ge: ">="}  # fmt: skip

_GRAPH = (TensorValue, SymValue)


def binary(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``fn(a, b)`` for a binary operator from ``operator``."""
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, fn, a, b)
    if isinstance(a, _GRAPH) or isinstance(b, _GRAPH):
        if isinstance(a, ConstantValue) and is_numpy_scalar(a.value):
            raise GraphBreak("QB09", "an operator of a numpy scalar on a tensor")
        if _is_number_like(a) and _is_number_like(b):
            return tx.graph_call(fn, [a, b], {})
    result = _containers(tx, fn, a, b)
    if result is not None:
        return result
    name = _NAMES[fn]
    return _dunder(tx, fn, a, b, f"__{name}__", f"__r{name}__")


def _fold(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    try:
        result = fn(a.const(), b.const())
    except Exception as error:
        raise tx.observed(error) from None
    return tx.from_python(result)


def _is_number_like(value: Value) -> bool:
    if isinstance(value, _GRAPH):
        return True
    return isinstance(value, ConstantValue) and (
        isinstance(value.value, (int, float, complex)) or is_numpy_scalar(value.value)
    )


def _containers(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value | None:
    from dynamo_capture.values.containers import ListValue, SetValue, TupleValue
    from dynamo_capture.values.dicts import DictValue

    if isinstance(a, (ListValue, TupleValue)):
        if fn is operator.add and type(b) is type(a):
            return a.concat(tx, b)
        if fn is operator.mul and isinstance(b, (ConstantValue, SymValue)):
            return a.repeat(tx, b.const())
    if isinstance(b, (ListValue, TupleValue)) and fn is operator.mul and isinstance(a, (ConstantValue, SymValue)):
        return b.repeat(tx, a.const())
    if isinstance(a, SetValue) and isinstance(b, SetValue):
        names = {operator.or_: "union", operator.and_: "intersection", operator.sub: "difference",
                 operator.xor: "symmetric_difference"}  # fmt: skip
        if fn in names:
            return a.call_method(tx, names[fn], [b], {})
    if isinstance(a, DictValue) and isinstance(b, DictValue) and fn is operator.or_:
        result = a.call_method(tx, "copy", [], {})
        result.call_method(tx, "update", [b], {})
        return result
    if isinstance(a, ConstantValue) and isinstance(a.value, (str, bytes)) and b.is_const:
        return _fold(tx, fn, a, b)  # "..." % (1, 2)
    for text, times in ((a, b), (b, a)):
        if isinstance(text, ConstantValue) and isinstance(text.value, (str, bytes)) and isinstance(times, SymValue):
            const = ConstantValue(times.const())
            return _fold(tx, fn, *((text, const) if times is b else (const, text)))
    return None


def _dunder(tx: Capture, fn: Callable[..., Any], a: Value, b: Value, name: str, reflected: str) -> Value:
    """The protocol of user-defined operators (Python reference, 3.3.8)."""
    from dynamo_capture.values.classes import lookup

    type_a, type_b = a.pytype, b.pytype
    order = [(a, b, name), (b, a, reflected)]
    if type_b is not type_a and issubclass(type_b, type_a) and lookup(type_b, reflected)[0] is not None:
        order.reverse()
    tried = False
    for x, y, method in order:
        found, _owner = lookup(x.pytype, method)
        if found is None:
            continue
        tried = True
        if isinstance(x, ConstantValue) and not y.is_const:
            continue  # a number or string knows nothing of a user's object: NotImplemented
        result = x.call_method(tx, method, [y], {}).realize()
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
        if type_a is type_b:
            break
    symbol = _SYMBOL.get(fn, fn.__name__)
    if tried or not (isinstance(a, _GRAPH) or isinstance(b, _GRAPH)):
        raise tx.observed(
            TypeError(f"unsupported operand type(s) for {symbol}: {type_a.__name__!r} and {type_b.__name__!r}")
        )
    raise GraphBreak("QB06", f"{symbol} between {display(a)} and {display(b)}")


def inplace(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``a += b`` and the like; gives the value that the name is bound to afterwards."""
    from dynamo_capture.values.containers import ListValue, SetValue
    from dynamo_capture.values.dicts import DictValue

    plain = _PLAIN[fn]
    if isinstance(a, TensorValue):
        return tx.graph_call(fn, [a, b], {})
    if isinstance(a, ListValue) and plain is operator.add:
        a.call_method(tx, "extend", [b], {})
        return a
    if isinstance(a, ListValue) and plain is operator.mul:
        a.replace(tx, list(a.repeat(tx, b.const()).unpack(tx)))
        return a
    if isinstance(a, SetValue) and a.pytype is set:
        names = {operator.or_: "update", operator.and_: "intersection_update", operator.sub: "difference_update"}
        if plain in names:
            a.call_method(tx, names[plain], [b], {})
            return a
    if isinstance(a, DictValue) and plain is operator.or_:
        a.call_method(tx, "update", [b], {})
        return a
    if not isinstance(a, (ConstantValue, SymValue)):
        from dynamo_capture.values.classes import lookup

        name = f"__i{_NAMES[plain]}__"
        if lookup(a.pytype, name)[0] is not None:
            result = a.call_method(tx, name, [b], {}).realize()
            if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
                return result
    return binary(tx, plain, a, b)


def compare(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``fn(a, b)`` for a comparison from ``operator``."""
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, fn, a, b)
    if (isinstance(a, _GRAPH) or isinstance(b, _GRAPH)) and _is_number_like(a) and _is_number_like(b):
        return tx.graph_call(fn, [a, b], {})
    result = _compare_containers(tx, fn, a, b)
    if result is not None:
        return result
    return _compare_objects(tx, fn, a, b)


def _compare_containers(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value | None:
    from dynamo_capture.values.containers import ListValue, SetValue, TupleValue
    from dynamo_capture.values.dicts import DictValue

    sequences = (ListValue, TupleValue)
    is_equality = fn in (operator.eq, operator.ne)
    if isinstance(a, sequences) and type(a) is type(b):
        xs, ys = a.unpack(tx), b.unpack(tx)
        for x, y in zip(xs, ys, strict=False):
            if not equals(tx, x, y):
                if is_equality:
                    return ConstantValue(fn is operator.ne)
                return compare(tx, fn, x.realize(), y.realize())
        return ConstantValue(fn(len(xs), len(ys)))
    if isinstance(a, SetValue) and isinstance(b, SetValue):
        return ConstantValue(fn(set(a.items), set(b.items)))
    if isinstance(a, DictValue) and isinstance(b, DictValue) and is_equality:
        same = a.same_contents(tx, b)
        return ConstantValue(same is (fn is operator.eq))
    return None


def _compare_objects(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    from dynamo_capture.values.classes import find, lookup

    name, reflected = _COMPARISONS[fn]
    for x, y, method in ((a, b, name), (b, a, reflected)):
        found, owner = find(tx, x.pytype, method)
        if found is None or owner is object or isinstance(x, ConstantValue):
            if method == "__ne__" and lookup(x.pytype, "__eq__")[1] is not object:
                if not isinstance(x, ConstantValue):
                    return ConstantValue(not compare(tx, operator.eq, x, y).truth(tx))
            continue
        if not _has_python_method(found):
            continue
        result = x.call_method(tx, method, [y], {}).realize()
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
    if fn in (operator.eq, operator.ne):
        return ConstantValue(equal_by_default(tx, a, b) is (fn is operator.eq))
    if a.is_const and b.is_const:
        return _fold(tx, fn, a, b)
    raise tx.observed(
        TypeError(
            f"{_SYMBOL[fn]!r} not supported between instances of {a.pytype.__name__!r} and {b.pytype.__name__!r}"
        )
    )


def _has_python_method(found: Any) -> bool:
    import types

    return isinstance(found, types.FunctionType)


def unary(tx: Capture, fn: Callable[..., Any], a: Value) -> Value:
    """``fn(a)`` for ``operator.neg``, ``pos``, ``invert`` and ``abs``."""
    if isinstance(a, _GRAPH):
        return tx.graph_call(fn, [a], {})
    if a.is_const:
        try:
            return tx.from_python(fn(a.const()))
        except ObservedError:
            raise
        except Exception as error:
            raise tx.observed(error) from None
    return a.call_method(tx, _UNARY[fn], [], {})


def sym_kind(example: Any) -> bool:
    """Whether an example is one of torch's symbolic numbers."""
    return isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool))
