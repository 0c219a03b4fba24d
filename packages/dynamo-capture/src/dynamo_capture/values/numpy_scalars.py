"""Scalars of NumPy: what PyTorch makes of them, and those that change between calls.

To an operator of PyTorch an integer or floating scalar is the Python number that it holds (:func:`number_of`); only
where a tensor is made of data its dtype counts (:func:`of_data`). One that changes between calls is a symbolic number
for operators, and is specialised wherever Python or NumPy computes with it (:class:`NumpyNumberValue`). So is what
NumPy's functions make of a symbolic number, ``np.sqrt(x.shape[-1])``, to the last place (:func:`function_of_number`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue, is_numpy_scalar
from dynamo_capture.values.containers import ListValue, TupleValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["NumpyNumberValue", "function_of_number", "defers_to_tensors", "number_of", "numpy_scalar", "of_data"]

#: Functions that make a tensor of data, whose dtype they take over.
_FROM_DATA = frozenset((torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor))

#: Methods that give the Python number.
_CONVERSIONS = frozenset(("item", "tolist"))


def number_of(scalar: Any) -> Any:
    """The Python number that an argument of an operator is.

    Raises:
        GraphBreak: a bool, which PyTorch takes for a bool, an int or a float, as the operator may be.
    """
    if type(scalar).__name__ in ("bool", "bool_"):
        raise GraphBreak("QB09", "a bool of NumPy as an argument of an operator")
    number = scalar.item()
    if type(number) not in (int, float, complex):
        raise GraphBreak("QB09", f"a {type(scalar).__name__} of NumPy as an argument of an operator")
    return number


@functools.cache
def defers_to_tensors(cls: type) -> bool:
    """Whether an operator of such a scalar and a tensor is the tensor's, which takes it for a Python number."""
    with _disable_current_modes():
        return type(cls(2) * torch.ones(1)) is torch.Tensor and cls.__name__ not in ("bool", "bool_")


def of_data(fn: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of a function that makes a tensor of data, with Python's numbers in place of NumPy's."""
    if fn not in _FROM_DATA or not args or not any(map(_is_scalar, _leaves(args[0]))):
        return args, kwargs
    convert = number_of
    if "dtype" not in kwargs:
        convert = _item
        try:
            with _disable_current_modes():
                dtype = torch.as_tensor(_real(args[0])).dtype
        except Exception as error:
            raise GraphBreak("QB09", f"a tensor made of scalars of NumPy: {error}") from None
        kwargs = {**kwargs, "dtype": ConstantValue(dtype)}
    return [_plain(args[0], convert), *args[1:]], kwargs


def _item(scalar: Any) -> Any:
    return scalar.item()


def _is_scalar(value: Value) -> bool:
    return isinstance(value, NumpyNumberValue) or (isinstance(value, ConstantValue) and is_numpy_scalar(value.value))


def _leaves(value: Value) -> Iterator[Value]:
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        for item in value.items:
            yield from _leaves(item)
    else:
        yield value


def _real(value: Value) -> Any:
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return [_real(item) for item in value.items]
    return value.obj if isinstance(value, NumpyNumberValue) else value.const()


def _plain(value: Value, convert: Callable[[Any], Any]) -> Value:
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return ListValue([_plain(item, convert) for item in value.items])
    if isinstance(value, NumpyNumberValue):
        return value.number
    return ConstantValue(convert(value.const())) if _is_scalar(value) else value


class NumpyNumberValue(Value):
    """An integer or floating scalar that changes between calls.

    Attributes:
        obj: the scalar of this call.
        number: the Python number that it holds, as a symbol.
    """

    __slots__ = ("number", "obj")

    def __init__(self, obj: Any, number: Value, source: Source) -> None:
        self.source = source
        self.obj = obj
        self.number = number

    @property
    def pytype(self) -> type:
        return type(self.obj)

    def const(self) -> Any:
        """Specialise: it is guarded to be what it is in this call."""
        self.number.const()
        return self.obj

    def constant(self) -> ConstantValue:
        """The same as a constant, guarded."""
        return ConstantValue(self.const())

    def key(self, tx: Capture) -> Any:
        return self.const()

    def truth(self, tx: Capture) -> bool:
        return self.constant().truth(tx)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in _CONVERSIONS:
            from dynamo_capture.values.callables import HandlerValue

            return HandlerValue(lambda tx, args, kwargs: self.call_method(tx, name, args, kwargs), name)
        return self.constant().getattr(tx, name)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return self.constant().getitem(tx, key)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.constant().iterate(tx)

    def contains(self, tx: Capture, item: Value) -> bool:
        return self.constant().contains(tx, item)

    def length(self, tx: Capture) -> Value:
        return self.constant().length(tx)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _CONVERSIONS and not args and not kwargs:
            return self.number
        return self.constant().call_method(tx, name, args, kwargs)

    def describe(self) -> str:
        return f"a {type(self.obj).__name__} of NumPy"


class ComputedNumber(NumpyNumberValue):
    """A ``float64`` that one of NumPy's functions makes of a symbolic number."""

    __slots__ = ()

    def __init__(self, zero: Any, number: Value) -> None:
        super().__init__(zero, number, None)  # type: ignore[arg-type]

    def const(self) -> Any:
        return type(self.obj)(self.number.const())

    def children(self) -> Iterator[Value]:
        yield self.number

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(type(self.obj), [self.number])


#: NumPy's functions of one number, and Python's that give as much where they have a value.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": math.sqrt, "exp": math.exp, "expm1": math.expm1, "log": math.log, "log2": math.log2, "log1p": math.log1p,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh,
    "arctan": math.atan,
}  # fmt: skip


def function_of_number(tx: Capture, fn: Any, number: Value) -> Value | None:
    """A function of NumPy of a symbolic number, where it has a value (guarded); else None."""
    from dynamo_capture.values.elementary import elementary_function
    from dynamo_capture.values.tensor import SymValue

    plain = _FUNCTIONS.get(fn.__name__)
    if plain is None or not isinstance(number, SymValue) or number.pytype not in (int, float):
        return None
    found = elementary_function(tx, plain, [number])
    if not isinstance(found, SymValue):
        return None
    return ComputedNumber(fn(0.5) * 0, found)


def numpy_scalar(tx: Capture, obj: Any, source: Source) -> Value:
    """The value of an existing scalar."""
    kinds = {base.__name__ for base in type(obj).__mro__}
    if "integer" in kinds and tx.int_is_dynamic(held := Source("call", source, operator.index), int(obj)):
        tx.guards.type_is(source, type(obj))
        return NumpyNumberValue(obj, tx.graph.int_input(held, int(obj)), source)
    if "floating" in kinds and type(obj.item()) is float:
        held = Source("call", source, float)
        if tx.float_is_dynamic(held, float(obj)):
            tx.guards.type_is(source, type(obj))
            return NumpyNumberValue(obj, tx.graph.float_input(held, float(obj)), source)
    tx.guards.equals(source, obj)
    return ConstantValue(obj, source)
