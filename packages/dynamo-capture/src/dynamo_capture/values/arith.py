"""Operators: constants are folded, tensors and sizes go into the graph, containers and objects do as Python does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.bits import BITWISE, decided, inverted, is_truth, of_bits
from dynamo_capture.values.compare import equal_by_default, equals
from dynamo_capture.values.composites import of_number
from dynamo_capture.values.constant import ConstantValue, fold, is_numpy_scalar, note_order
from dynamo_capture.values.exact import type_error
from dynamo_capture.values.made_arrays import NumpyArray, on_arrays
from dynamo_capture.values.tensor import SymValue, TensorValue
from prims.spec.elementary import floor_quotient, power

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
_DUNDER_COMPARISONS = {names[0]: fn for fn, names in _COMPARISONS.items()}
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


def binary(tx: Capture, fn: Callable[..., Any], a: Value, b: Value, written: Callable[..., Any] | None = None) -> Value:
    """``fn(a, b)`` for a binary operator from ``operator``; ``written`` is the one that an error names."""
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, written or fn, a, b)
    known = tx.graph.computed(fn, [a, b])
    if known is not None:
        return known
    if isinstance(a, NumpyArray) or isinstance(b, NumpyArray):
        return on_arrays(tx, fn, a, b)
    a, b = _numpy_operands(tx, fn, a, b)
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, written or fn, a, b)
    if isinstance(a, _GRAPH) or isinstance(b, _GRAPH):
        if _is_number_like(a) and _is_number_like(b):
            if fn in BITWISE and _are_integers(a, b):
                return of_bits(tx, fn, a, b)
            if not isinstance(a, TensorValue) and not isinstance(b, TensorValue):
                a, b = decided(tx, a), decided(tx, b)
                if fn is operator.pow and _is_power_of_floats(a, b):
                    return tx.graph_call(power, [a, b], {})
            elif fn is operator.pow and isinstance(a, SymValue) and _needs_a_tensor(a, b):
                kind = b.example.dtype  # type: ignore[attr-defined]
                whole = a.pytype is not float or kind.is_floating_point or kind.is_complex
                dtype = {"dtype": tx.from_python(kind)} if whole else {}
                a = tx.from_python(of_number).realize().call(tx, [a], dtype).realize()
            if not _numbers_may_fail(fn, a, b):
                numbers = not isinstance(a, TensorValue) and not isinstance(b, TensorValue)
                if numbers and fn is operator.floordiv and float in (a.pytype, b.pytype):
                    fn = floor_quotient
                return tx.graph_call(fn, [a, b], {})
            return _fold(tx, fn, a, b)
    if tx.overriding and (result := _of_subclasses(tx, fn, a, b)) is not None:
        return result
    result = _containers(tx, fn, a, b)
    if result is not None:
        return result
    name = _NAMES[fn]
    return _dunder(tx, fn, a, b, f"__{name}__", f"__r{name}__", written or fn)


def _numpy_operands(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> tuple[Value, Value]:
    """The operands of an operator, where one is a scalar of NumPy.

    Beside a tensor it is a Python number; beside anything else it computes itself, on numbers that are known.
    """
    from dynamo_capture.values.numpy_scalars import NumpyNumberValue, defers_to_tensors

    found = [isinstance(v, NumpyNumberValue) or (type(v) is ConstantValue and is_numpy_scalar(v.value)) for v in (a, b)]
    if not any(found):
        return a, b
    if found[0] and isinstance(b, TensorValue) and (fn is operator.matmul or not defers_to_tensors(a.pytype)):
        raise GraphBreak("QB09", "an operator of a numpy scalar on a tensor")
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        return tuple(v.number if isinstance(v, NumpyNumberValue) else _python_number(v) for v in (a, b))  # type: ignore[return-value]
    return tuple(ConstantValue(v.const()) if isinstance(v, (NumpyNumberValue, SymValue)) else v for v in (a, b))  # type: ignore[return-value]


def _python_number(value: Value) -> Value:
    from dynamo_capture.values.numpy_scalars import number_of

    if type(value) is ConstantValue and is_numpy_scalar(value.value):
        return ConstantValue(number_of(value.value))
    return value


def _fold(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    return fold(tx, fn, [a, b], {})


def _numbers_may_fail(fn: Callable[..., Any], a: Value, b: Value) -> bool:
    """Whether an operator of symbolic numbers raises in this call, or gives another type of number (guarded)."""
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        return False
    x, y = (v.example if isinstance(v, SymValue) else v.const() for v in (a, b))
    if isinstance(x, complex) or isinstance(y, complex):
        return True
    if fn in (operator.truediv, operator.floordiv, operator.mod):
        return bool(y == 0)
    if fn in (operator.lshift, operator.rshift):
        return bool(y < 0)
    if fn is operator.pow:
        # A negative exponent makes an int a float and fails on 0; a fraction of one makes a negative number complex.
        fails = bool(y < 0) and (not isinstance(x, (float, torch.SymFloat)) or bool(x == 0))
        return fails or (isinstance(y, (float, torch.SymFloat)) and bool(x < 0))
    return False


def _needs_a_tensor(base: SymValue, exponent: Value) -> bool:
    """Whether PyTorch takes no symbol as the base of a tensor's power: an int, or one that a logarithm is taken of."""
    return base.pytype is not float or exponent.example.requires_grad  # type: ignore[attr-defined, no-any-return]


def _is_power_of_floats(a: Value, b: Value) -> bool:
    """Whether a power of a positive number is a float though the number is none: ``n ** -0.5`` (guarded)."""
    x, y = (v.example if isinstance(v, SymValue) else v.const() for v in (a, b))
    return a.pytype is int and not isinstance(y, complex) and (b.pytype is float or bool(y < 0)) and bool(x > 0)


def _of_subclasses(tx: Capture, fn: Callable[..., Any], *operands: Value) -> Value | None:
    """An operator of tensors of subclasses, whose classes have no such method of their own."""
    from dynamo_capture.values.overrides import OverridingTensorValue, dispatched, has_method

    found = [value for value in operands if isinstance(value, OverridingTensorValue)]
    known = (OverridingTensorValue, TensorValue, SymValue, ConstantValue)
    if not found or not all(isinstance(value, known) for value in operands):
        return None
    if fn in _PLAIN:
        plain = _NAMES[_PLAIN[fn]]
        names: tuple[str, ...] = (f"__i{plain}__", f"__{plain}__", f"__r{plain}__")
    else:
        names = _COMPARISONS.get(fn) or ((_UNARY[fn],) if fn in _UNARY else (f"__{_NAMES[fn]}__", f"__r{_NAMES[fn]}__"))
    if any(has_method(tx, value, name) for value in found for name in names):
        return None
    return dispatched(tx, fn, list(operands), {})


def _are_integers(*values: Value) -> bool:
    return all(not isinstance(value, TensorValue) and value.pytype in (int, bool) for value in values)


def _is_number_like(value: Value) -> bool:
    if isinstance(value, _GRAPH):
        return True
    return isinstance(value, ConstantValue) and (
        isinstance(value.value, (int, float, complex)) or is_numpy_scalar(value.value)
    )


def _containers(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value | None:
    from dynamo_capture.values.containers import ListValue, TupleValue, kind_of

    if isinstance(a, (ListValue, TupleValue)):
        if fn is operator.add and kind_of(b) is kind_of(a):
            return a.concat(tx, b)  # type: ignore[arg-type]
        if fn is operator.mul and _is_count(b):
            return a.repeat(tx, b.const())
    if isinstance(b, (ListValue, TupleValue)) and fn is operator.mul and _is_count(a):
        return b.repeat(tx, a.const())
    if (a.pytype in _TEXTS or b.pytype in _TEXTS) and _is_plain(a.pytype) and _is_plain(b.pytype):
        return _of_text(tx, fn, a, b)
    if (_is_type(a) and (_is_type(b) or b.is_const)) or (_is_type(b) and a.is_const):
        return _of_types(tx, fn, a, b)
    return None


_TEXTS = (str, bytes)
_HEAP_TYPE = 1 << 9


def _is_plain(cls: type) -> bool:
    """Whether operators of such objects are CPython's, and no class of the program has a part in them."""
    from dynamo_capture.values.containers import is_struct_sequence

    builtin = cls.__module__ == "builtins" and not cls.__flags__ & _HEAP_TYPE and cls is not super
    return builtin or cls is torch.Size or is_struct_sequence(cls)


def _of_text(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """An operator of a string and another builtin object: ``"..." % (1, 2)``."""
    if fn is operator.mod:
        from dynamo_capture.values.texts import percent

        text = percent(tx, a, b)
        if text is not None:
            return text
    try:
        operands = [a.const(), b.const()]
    except GraphBreak:
        if fn is operator.mod:
            raise GraphBreak("QB07", f"formatting {display(b)}") from None
        type_error(tx, fn, a, b)
    made = tx.exact(fn, *operands)
    note_order(tx, operands, made)
    return tx.from_python(made)


def _is_count(value: Value) -> bool:
    return isinstance(value, SymValue) or (isinstance(value, ConstantValue) and isinstance(value.value, int))


def _is_type(value: Value) -> bool:
    """Whether a value is a class, a union of classes and the like, or None, of which unions are made."""
    return value.pytype is type(None) or isinstance(value.pytype, type) and (
        issubclass(value.pytype, type) or value.pytype.__module__ in ("types", "typing", "collections.abc")
    )


def _of_types(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``int | None``."""
    try:
        x, y = a.real(), b.real()
    except GraphBreak:
        raise GraphBreak("QB06", f"an operator of {display(a)} and {display(b)}") from None
    return tx.from_python(tx.exact(fn, x, y))


def _dunder(
    tx: Capture, fn: Callable[..., Any], a: Value, b: Value, name: str, reflected: str, written: Callable[..., Any]
) -> Value:
    """The protocol of user-defined operators (Python reference, 3.3.8)."""
    from dynamo_capture.values.classes import find
    from dynamo_capture.values.containers import SequenceValue

    type_a, type_b = a.pytype, b.pytype
    order = [(a, b, name), (b, a, reflected)]
    if type_b is not type_a and issubclass(type_b, type_a) and find(tx, type_b, reflected)[0] is not None:
        order.reverse()
    for x, y, method in order:
        found, _owner = find(tx, x.pytype, method)
        if found is None:
            continue
        if isinstance(x, SequenceValue) or _is_sequence_slot(x, found):
            continue  # the slots of sequences come last: see below
        if x.pytype in _STRANGERS and not issubclass(y.pytype, x.pytype):
            if x.pytype in _TEXTS and fn is operator.mod:
                raise GraphBreak("QB07", f"formatting {display(y)}")
            continue  # a number or string knows nothing of a user's object: NotImplemented
        result = x.call_method(tx, method, [y], {}).realize()
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return result
        if type_a is type_b:
            break
    if (joined := _sequence_slot(tx, fn, a, b, written)) is not None:
        return joined
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        raise GraphBreak("QB06", f"{_SYMBOL[fn]} between {display(a)} and {display(b)}")
    type_error(tx, written, a, b)


#: Builtin types whose operators decline objects of other classes, but for those that say how to be used as theirs.
_STRANGERS = frozenset((int, float, bool, complex, str, bytes, type(None), type(NotImplemented)))


def _inner(value: Value) -> Value:
    """The list, tuple and so on inside an instance of a subclass of one; other values themselves."""
    return getattr(value, "payload", None) or value


def _is_sequence_slot(value: Value, found: Any) -> bool:
    from dynamo_capture.values.containers import SequenceValue

    inner = _inner(value)
    is_sequence = isinstance(inner, SequenceValue) or (type(value) is not ConstantValue and _is_text(inner))
    return is_sequence and not _has_python_method(found) and found.__name__ in ("__add__", "__mul__", "__rmul__")


def _sequence_slot(
    tx: Capture, fn: Callable[..., Any], a: Value, b: Value, written: Callable[..., Any]
) -> Value | None:
    """``+`` and ``*`` of sequences, which Python asks for when no operand has an answer as a number has."""
    from dynamo_capture.values.containers import SequenceValue, kind_of

    x, y = _inner(a), _inner(b)
    if fn is operator.add and isinstance(x, SequenceValue):
        if kind_of(y) is kind_of(x):
            return _of_inner(x, a).concat(tx, y)  # type: ignore[arg-type]
        type_error(tx, written, a, b)
    if fn is operator.mul:
        for sequence, number, of in ((x, b, a), (y, a, b)):
            if isinstance(sequence, SequenceValue) and _is_count(number):
                return _of_inner(sequence, of).repeat(tx, number.const())
            if isinstance(sequence, SequenceValue):
                type_error(tx, written, a, b)
    if fn in (operator.add, operator.mul) and (_is_text(x) or _is_text(y)):
        if a.is_const and b.is_const:
            return _fold(tx, written, a, b)
        try:
            return ConstantValue(fn(x.const(), y.const()))
        except (TypeError, GraphBreak):
            raise GraphBreak("QB06", f"{_SYMBOL[fn]} between {display(a)} and {display(b)}") from None
    return None


def _is_text(value: Value) -> bool:
    return isinstance(value, ConstantValue) and isinstance(value.value, (str, bytes))


def _of_inner(inner: Any, value: Value) -> Any:
    """A subclass of deque makes instances of itself; of list and tuple, plain ones."""
    from dynamo_capture.values.containers import DequeValue

    if inner is not value and isinstance(inner, DequeValue):
        raise GraphBreak("QB06", f"an operator of {display(value)}")
    return inner


def inplace(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``a += b`` and the like; gives the value that the name is bound to afterwards."""
    from dynamo_capture.values.containers import ListValue
    from dynamo_capture.values.numpy_scalars import NumpyNumberValue

    plain = _PLAIN[fn]
    if isinstance(a, TensorValue):
        return tx.graph_call(fn, [a, b], {})
    if isinstance(a, NumpyArray) or isinstance(b, NumpyArray):
        return on_arrays(tx, fn, a, b)
    if isinstance(a, ListValue) and plain is operator.add:
        return a.call_method(tx, "__iadd__", [b], {})
    if isinstance(a, ListValue) and plain is operator.mul and _is_count(b):
        return a.call_method(tx, "__imul__", [b], {})
    if tx.overriding and (changed := _of_subclasses(tx, fn, a, b)) is not None:
        return changed
    if not isinstance(a, (ConstantValue, SymValue, ListValue, NumpyNumberValue)):
        from dynamo_capture.values.classes import find

        name = f"__i{_NAMES[plain]}__"
        if find(tx, a.pytype, name)[0] is not None:
            result = a.call_method(tx, name, [b], {}).realize()
            if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
                return result
    return binary(tx, plain, a, b, fn)


def compare(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``fn(a, b)`` for a comparison from ``operator``."""
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, fn, a, b)
    if isinstance(a, NumpyArray) or isinstance(b, NumpyArray):
        return on_arrays(tx, fn, a, b)
    a, b = _numpy_operands(tx, fn, a, b)
    if type(a) is ConstantValue and type(b) is ConstantValue:
        return _fold(tx, fn, a, b)
    if not (is_truth(a) and is_truth(b) and fn in (operator.eq, operator.ne)):
        # PyTorch takes what a symbolic truth value is compared with for one itself: -1 for True.
        a, b = decided(tx, a), decided(tx, b)
        if type(a) is ConstantValue and type(b) is ConstantValue:
            return _fold(tx, fn, a, b)
    if (isinstance(a, _GRAPH) or isinstance(b, _GRAPH)) and _is_number_like(a) and _is_number_like(b):
        return tx.graph_call(fn, [a, b], {})
    if tx.overriding and (result := _of_subclasses(tx, fn, a, b)) is not None:
        return result
    result = _compare_containers(tx, fn, a, b)
    if result is not None:
        return result
    return _compare_objects(tx, fn, a, b)


def _compare_containers(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value | None:
    from dynamo_capture.values.containers import ListValue, TupleValue, kind_of
    from dynamo_capture.values.dicts import DictValue

    is_equality = fn in (operator.eq, operator.ne)
    if isinstance(a, (ListValue, TupleValue)) and kind_of(a) is kind_of(b):
        xs, ys = a.unpack(tx), b.unpack(tx)
        if is_equality and len(xs) != len(ys) and type(xs) is list:
            return ConstantValue(fn is operator.ne)
        for x, y in zip(xs, ys, strict=False):
            if not equals(tx, x, y):
                if is_equality:
                    return ConstantValue(fn is operator.ne)
                return compare(tx, fn, x.realize(), y.realize())
        return ConstantValue(fn(len(xs), len(ys)))
    if isinstance(a, DictValue) and isinstance(b, DictValue) and is_equality:
        same = a.same_contents(tx, b)
        return ConstantValue(same is (fn is operator.eq))
    return None


def _compare_objects(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    from dynamo_capture.values.classes import find

    name, reflected = _COMPARISONS[fn]
    order = [(a, b, name), (b, a, reflected)]
    if b.pytype is not a.pytype and issubclass(b.pytype, a.pytype):
        order.reverse()
    for x, y, method in order:
        found, owner = find(tx, x.pytype, method)
        # What ``object`` says to ``!=`` is the opposite of what ``==`` says.
        negated = owner is object and method == "__ne__"
        if negated:
            method = "__eq__"
            found, owner = find(tx, x.pytype, method)
        if found is None or owner is object or isinstance(x, ConstantValue):
            continue
        if _has_python_method(found):
            result = x.call_method(tx, method, [y], {}).realize()
        else:
            result = _compare_natively(tx, _DUNDER_COMPARISONS[method], x, y, found)
        if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
            return ConstantValue(not result.truth(tx)) if negated else result
    if fn in (operator.eq, operator.ne):
        return ConstantValue(equal_by_default(tx, a, b) is (fn is operator.eq))
    if a.is_const and b.is_const:
        return _fold(tx, fn, a, b)
    type_error(tx, fn, a, b)


def _compare_natively(tx: Capture, fn: Callable[..., Any], x: Value, y: Value, found: Any) -> Value:
    """What the C method of ``x`` for a comparison gives, NotImplemented among others."""
    from dynamo_capture.values.dicts import DictValue, DictView
    from dynamo_capture.values.functions import MethodValue
    from dynamo_capture.values.objects import ObjectValue
    from dynamo_capture.values.sets import SetValue

    if isinstance(x, DictView) and isinstance(y, ObjectValue) and y.payload is not None:
        raise GraphBreak("QB06", f"comparison of {display(x)} and {display(y)}")
    if isinstance(x, (SetValue, DictView, DictValue)):
        is_values = isinstance(x, DictView) and x.kind == "values"
        inner = getattr(y, "payload", None) or y
        ordered = isinstance(x, DictValue) and fn not in (operator.eq, operator.ne)
        if is_values or ordered:
            return ConstantValue(NotImplemented)
        return x.call_method(tx, f"__{fn.__name__}__", [inner], {})
    if isinstance(x, MethodValue) and isinstance(y, MethodValue):
        return ConstantValue(equal_by_default(tx, x, y) is (fn is operator.eq))
    if isinstance(x, ObjectValue):
        return x.compare_natively(tx, fn, y, found)
    result = _compare_containers(tx, fn, x, getattr(y, "payload", None) or y)
    return ConstantValue(NotImplemented) if result is None else result


def _has_python_method(found: Any) -> bool:
    import types

    return isinstance(found, types.FunctionType)


def unary(tx: Capture, fn: Callable[..., Any], a: Value) -> Value:
    """``fn(a)`` for ``operator.neg``, ``pos``, ``invert`` and ``abs``."""
    if isinstance(a, NumpyArray):
        return on_arrays(tx, fn, a)
    a = decided(tx, a)
    if fn is operator.invert and isinstance(a, SymValue) and a.pytype is int:
        return inverted(tx, a)
    if isinstance(a, _GRAPH):
        return tx.graph_call(fn, [a], {})
    from dynamo_capture.values.numpy_scalars import NumpyNumberValue

    if a.is_const or isinstance(a, NumpyNumberValue):
        return fold(tx, fn, [a], {})
    if tx.overriding and (result := _of_subclasses(tx, fn, a)) is not None:
        return result
    from dynamo_capture.values.classes import find

    if find(tx, a.pytype, _UNARY[fn])[1] is None:
        type_error(tx, fn, a)
    return a.call_method(tx, _UNARY[fn], [], {})


def sym_kind(example: Any) -> bool:
    """Whether an example is one of torch's symbolic numbers."""
    return isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool))
