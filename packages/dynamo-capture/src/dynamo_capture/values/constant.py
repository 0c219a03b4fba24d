"""Constants: Python objects that never change and that guards can compare."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["CONST_TYPES", "ConstantValue", "fold", "is_numpy_constant", "is_numpy_scalar", "note_order"]

#: Types whose instances are constants (exact type).
CONST_TYPES: frozenset[type] = frozenset(
    (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, torch.dtype,
     torch.device, torch.layout, torch.memory_format, types.CodeType, slice)
)  # fmt: skip

_CHANGEABLE = (list, dict, set, bytearray, collections.deque)
_SINGLETONS = frozenset((type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout))


def is_numpy_scalar(obj: Any) -> bool:
    """Whether ``obj`` is a numpy scalar such as ``np.float64(2.0)`` (numpy is not imported for the question)."""
    return type(obj).__module__ == "numpy" and any(base.__name__ == "generic" for base in type(obj).__mro__)


def is_numpy_constant(obj: Any) -> bool:
    """Whether ``obj`` is a dtype of NumPy, or the limits of one: ``np.finfo(np.float32)``."""
    module, name = type(obj).__module__, type(obj).__name__
    return module == "numpy.dtypes" or module == "numpy" and name in ("dtype", "finfo", "iinfo")


class ConstantValue(Value):
    """An immutable Python object known now."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Any = None) -> None:
        self.value = value
        self.source = source

    @property
    def pytype(self) -> type:
        return type(self.value)

    @property
    def is_const(self) -> bool:
        return True

    def const(self) -> Any:
        return self.value

    def real(self) -> Any:
        return self.value

    def key(self, tx: Capture) -> Any:
        if isinstance(self.value, slice):
            tx.exact(hash, self.value)
        return self.value

    def truth(self, tx: Capture) -> bool:
        return bool(self.value)

    def getattr(self, tx: Capture, name: str) -> Value:
        value = self.value
        result = tx.exact(getattr, value, name)
        if isinstance(result, (types.BuiltinMethodType, types.MethodWrapperType)):
            return ConstantMethodValue(self, name)
        return tx.from_python(result)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = self.value
        if name == "__hash__":
            tx.guards.hashed()
        if name == "__iter__" and not args and not kwargs and isinstance(value, (range, str, bytes)):
            return self.get_iter(tx)
        if name == "join" and type(value) is str and len(args) == 1 and not kwargs:
            from dynamo_capture.values.texts import joined

            return joined(tx, value, args[0].realize().unpack(tx))
        if type(value) is torch.device and name == "__enter__" and not args:
            tx.devices.enter(tx, value)
            return self
        if type(value) is torch.device and name == "__exit__":
            tx.devices.leave(tx)
            return ConstantValue(None)
        if name == "translate" and type(value) is str and len(args) == 1:
            from dynamo_capture.values.dicts import DictValue

            if isinstance(table := args[0].realize(), DictValue):
                table.whole(tx)
        if name in ("format", "format_map") and type(value) is str:
            from dynamo_capture.values.plain_objects import asks_the_process
            from dynamo_capture.values.tensor import SymValue
            from dynamo_capture.values.texts import by_format

            if name == "format" and not kwargs and (text := by_format(value, args)) is not None:
                return text
            given = [each.realize() for each in (*args, *kwargs.values())]
            numbers = all(type(each) is ConstantValue or isinstance(each, SymValue) for each in given)
            if asks_the_process(value) and not numbers:
                raise GraphBreak("QB03", f"str.{name} by {value!r:.60}, which may be of a date")
        return fold(tx, tx.exact(getattr, value, name), args, kwargs)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return map(tx.from_python, tx.exact(iter, self.value))

    def get_iter(self, tx: Capture) -> Value:
        from dynamo_capture.values.iterators import PositionIterator

        value = self.value
        if type(value) in (range, str, bytes):
            return PositionIterator(self, lambda i: tx.from_python(value[i]), type(iter(value)))
        return super().get_iter(tx)

    def getitem(self, tx: Capture, key: Value) -> Value:
        key = _known_index(key.realize())
        if not key.is_const:
            raise GraphBreak("QB06", f"index of a {type(self.value).__name__} that is not a constant")
        return fold(tx, lambda a, b: a[b], [self, key], {})

    def contains(self, tx: Capture, item: Value) -> bool:
        return bool(fold(tx, lambda a, b: b in a, [self, item], {}).const())

    def length(self, tx: Capture) -> Value:
        return fold(tx, len, [self], {})

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        raise GraphBreak("QB06", f"setting an item of {self.describe()}")

    def delitem(self, tx: Capture, key: Value) -> None:
        raise GraphBreak("QB06", f"deleting an item of {self.describe()}")

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.value)

    def describe(self) -> str:
        return f"the constant {self.value!r:.60}"


def _known_index(key: Value) -> Value:
    """An index, or a slice's bounds, that are symbolic numbers, as what they are in this call, which is guarded."""
    from dynamo_capture.values.containers import SliceValue
    from dynamo_capture.values.tensor import SymValue

    if isinstance(key, SymValue):
        return ConstantValue(key.const())
    if isinstance(key, SliceValue):
        parts = [part.realize() for part in key.parts]
        if all(part.is_const or isinstance(part, SymValue) for part in parts):
            return ConstantValue(slice(*[part.const() for part in parts]))
    return key


class ConstantMethodValue(Value):
    """A bound C method of a constant, such as ``", ".join``."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ConstantValue, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    @property
    def pytype(self) -> type:
        return types.BuiltinMethodType

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.call_method(tx, self.name, args, kwargs)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(getattr(self.owner.value, self.name))

    def truth(self, tx: Capture) -> bool:
        return True


def fold(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Run a pure function on constants now; what it raises, the program raises.

    Symbolic numbers among the operands are specialised.

    Raises:
        ObservedError: what the function raises.
        GraphBreak: an operand is not known, or the function changes it, or gives one back that can change.
    """
    name = getattr(fn, "__qualname__", repr(fn))
    given = [*args, *kwargs.values()]
    try:
        operands = [a.realize().const() for a in given]
    except GraphBreak:
        raise GraphBreak("QB07", f"{name} of values that are not constants") from None
    made = tx.exact(fn, *operands[: len(args)], **dict(zip(kwargs, operands[len(args) :], strict=True)))
    for operand, x in zip(given, operands, strict=True):  # those that can change are copies
        if isinstance(x, _CHANGEABLE) and (made is x or operand.realize().const() != x):
            raise GraphBreak("QB07", f"{name}, which changes or returns a {type(x).__name__} that it is given")
    note_order(tx, operands, made)
    return _new_object(tx, made)


def note_order(tx: Capture, operands: list[Any], made: Any) -> None:
    """Note that what was made of sets, a text say, may show their order."""
    if type(made) not in (bool, int, float) and _shows_hashes(operands):
        tx.guards.hashed()


def _shows_hashes(obj: Any) -> bool:
    """Whether there is a set in it whose order is another in another process, as the hashes of texts are."""
    kind = type(obj)
    if kind in (set, frozenset):
        return len(obj) > 1 and not all(type(x) in (int, bool, float) for x in obj)
    if kind in (list, tuple, collections.deque):
        return any(map(_shows_hashes, obj))
    return kind is dict and (any(map(_shows_hashes, obj)) or any(map(_shows_hashes, obj.values())))


def _new_object(tx: Capture, obj: Any) -> Value:
    """What an operation has made: one that can change is made anew in every call.

    Raises:
        GraphBreak: it is of a kind that cannot be.
    """
    kind = type(obj)
    if kind in CONST_TYPES:
        return ConstantValue(obj)
    if kind in (list, tuple, dict):
        from dynamo_capture.values.containers import ListValue, TupleValue
        from dynamo_capture.values.dicts import DictValue

        if kind is dict:
            return DictValue.of(tx, ((tx.from_python(key), _new_object(tx, value)) for key, value in obj.items()))
        return (ListValue if kind is list else TupleValue)([_new_object(tx, item) for item in obj])
    if kind in (set, bytearray) or hasattr(kind, "__next__"):
        raise GraphBreak("QB07", f"a {kind.__name__} made of constants")
    return tx.from_python(obj)
