"""Subclasses of ``torch.Tensor`` with ``__torch_dispatch__``: wrappers, whose tensors are attributes of an object.

An instance is a :class:`DispatchingTensorValue`: sizes, dtype and device of its own, and attributes as any object has
them. A tensor in an attribute is an input of the graph, guarded like every input, once the program reads it; an
instance in an attribute is looked at in the same way. So nothing has to be asked of ``__tensor_flatten__``: what an
instance is made of is what the class's own Python reads of it, and what that decides by is guarded where it is read.

An operator reaches ``__torch_dispatch__`` below autograd, after what PyTorch's C++ makes of it: ``F.linear`` is
``t`` and ``addmm``, in inference mode ``linear``. The calls of the class are found by running the operator on abstract
tensors that stand in for the arguments, under a mode that answers each call (:func:`below`). At the first that has no
answer yet the run ends, the class's Python is captured with the arguments of that call, and the operator runs again
from its start: the interpreter never runs inside of C++, whose thread-local state would be that of the dispatcher. What
the class computes with the tensors inside are operators of the graph.

An instance that leaves the region is made as the region has made it: an empty wrapper with the attributes that the
class has set (:func:`rebuilt`). Where autograd would record an operator on instances the graph breaks: its derivative
is made of further calls of the class, with gradients that are instances themselves.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.arith import binary
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import BuiltinValue, ClassValue
from dynamo_capture.values.classes import lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.iterators import IteratorValue
from dynamo_capture.values.overrides import OverridingTensorValue, check_class, overrides
from dynamo_capture.values.tensor import (
    AUTOGRAD,
    GIVES_NUMBERS,
    PYTHON_STATE,
    READS_DATA,
    SymValue,
    TensorValue,
)
from dynamo_capture.values.torch_calls import special
from prims.spec import SymbolicCalls, TensorSpec, from_torch
from prims.spec.tensor import make

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["DispatchingTensorValue", "below", "wrapper_input"]

#: What the memory, the history or the Python object of an instance is asked for.
_NOT_OF_A_WRAPPER = (READS_DATA - GIVES_NUMBERS) | PYTHON_STATE | AUTOGRAD
#: What an operator may give beside tensors, sizes and sequences.
_PLAIN = frozenset((type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout,
                    torch.memory_format))  # fmt: skip
#: The most calls of classes that one operator is made of.
_CALLS = 256


class DispatchingTensorValue(OverridingTensorValue):
    """An instance of a wrapper class: ``sizes`` as the program reads them, ``spec`` as the dispatcher does."""

    __slots__ = ("inference", "requires_grad", "sizes", "spec", "strides")

    def __init__(
        self, cls: type, sizes: list[Value], strides: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device,
        *, offset: int = 0, requires_grad: bool = False, inference: bool = False, obj: Any = None,
        source: Source | None = None,
    ) -> None:  # fmt: skip
        super().__init__(cls, None, obj, source)
        self.sizes = [size.realize() for size in sizes]
        #: None: of a contiguous tensor.
        self.strides = strides
        known = (size.example if isinstance(size, SymValue) else size.const() for size in self.sizes)
        self.spec = TensorSpec([from_torch(size) for size in known], dtype, device, strides, offset)
        self.requires_grad = requires_grad
        self.inference = inference

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "as_subclass":
            raise GraphBreak("QB17", f"as_subclass of a {self.cls.__name__}")
        return super().call_method(tx, name, args, kwargs)

    def get_iter(self, tx: Capture) -> Value:
        return super().get_iter(tx) if self._iterates_itself(tx) else IteratorValue(self.iterate(tx))

    def _iterates_itself(self, tx: Capture) -> bool:
        """Whether the class is asked for an iterator, rather than for the rows."""
        return lookup(self.cls, "__iter__")[0] is not torch.Tensor.__iter__ or overrides(tx, [self])

    def iterate(self, tx: Capture) -> Iterator[Value]:
        if self._iterates_itself(tx):
            return super().iterate(tx)
        if not self.sizes:
            raise tx.observed(TypeError("iteration over a 0-d tensor"))
        return iter(self.call_method(tx, "unbind", [ConstantValue(0)], {}).realize().unpack(tx))

    def reconstruct(self, cg: CodeGen) -> None:
        spec = self.spec
        facts = ConstantValue((self.strides, spec.dtype, spec.device, self.inference))
        cg.call_const(rebuilt, [ClassValue(self.cls), TupleValue(self.sizes), facts, DictValue.named(self.attrs)])

    def children(self) -> Iterator[Value]:
        yield from self.sizes
        yield from self.attrs.values()


def rebuilt(cls: type, sizes: tuple[int, ...], facts: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """Runs in the emitted code: an instance that the region has made."""
    strides, dtype, device, inference = facts
    with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode(inference):
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, sizes, strides=strides, dtype=dtype, device=device
        )
    made.__dict__.update(attrs)
    return made


# --- instances that exist outside -------------------------------------------------------------------------------------


def sizes_of(obj: Any) -> tuple[int, ...]:
    """The sizes of a wrapper (a step of a guard's path)."""
    with torch._C.DisableTorchFunctionSubclass():
        return tuple(obj.shape)


def _facts_of(obj: Any) -> tuple[Any, ...]:
    """Sizes, strides (None: contiguous) and other metadata of a wrapper."""
    with torch._C.DisableTorchFunctionSubclass():
        strides = None if obj.is_contiguous() else obj.stride()
        return (
            tuple(obj.shape), strides, obj.dtype, obj.device, obj.layout is torch.strided and not obj.is_nested,
            obj.requires_grad, obj.is_inference(), obj.stride(), obj.storage_offset(),
        )  # fmt: skip


_SIZES, _STRIDES, _DTYPE, _DEVICE, _STRIDED, _GRAD, _INFERENCE, _ALL_STRIDES, _OFFSET = range(9)


def wrapper_input(tx: Capture, obj: Any, source: Source | None) -> Value:
    """An instance that exists outside.

    Raises:
        GraphBreak: its class does more than capture knows.
    """
    cls = type(obj)
    named, source = source, source or Source("constant", None, (obj,))
    tx.guards.type_is(source, cls)  # also where the graph breaks at its class
    check_class(tx, cls, named, dispatches=True)
    facts = _facts_that_are_stored(obj)
    if facts is None or not facts[_STRIDED]:
        raise GraphBreak("QB17", f"{cls.__name__} ({source}), which computes its sizes or is not strided")
    held = Source("call", source, sizes_of)
    sizes = [_size(tx, size, held.item(d)) for d, size in enumerate(facts[_SIZES])]
    fixed = [size.value if type(size) is ConstantValue else None for size in sizes]
    least = min((min(size, 2) for size, known in zip(facts[_SIZES], fixed, strict=True) if known is None), default=2)
    strides = None if None in fixed and facts[_STRIDES] is None else list(facts[_ALL_STRIDES])
    with torch._C.DisableTorchFunctionSubclass():
        tx.guards.tensor(source, obj, fixed, strides, True, least, stored=True)
    tx.overriding = True
    return DispatchingTensorValue(
        cls, sizes, facts[_STRIDES], facts[_DTYPE], facts[_DEVICE], offset=facts[_OFFSET],
        requires_grad=facts[_GRAD], inference=facts[_INFERENCE], obj=obj, source=source,
    )  # fmt: skip


def _size(tx: Capture, size: int, source: Source) -> Value:
    """A size of an instance: symbolic once it has changed, like any int of the frame."""
    return tx.from_python(size, source).realize() if tx.int_is_dynamic(source, size) else ConstantValue(size)


def _facts_that_are_stored(obj: Any) -> tuple[Any, ...] | None:
    """The metadata; None where a class's Python is asked for it (``dispatch_sizes_strides_policy``)."""
    asked: list[Any] = []
    facts: list[tuple[Any, ...]] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code is not _facts_of.__code__:
            asked.append(frame.f_code)

    def read() -> None:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            facts.append(_facts_of(obj))
        except Exception:
            asked.append(None)
        finally:
            sys.setprofile(before)

    if sys.getprofile() is None:
        read()
    else:  # cProfile's cannot be set again from Python; a thread has a profiler of its own
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
    return None if asked else facts[0]


# --- instances that the region makes ----------------------------------------------------------------------------------


_MAKES = ("cls", "size", "strides", "storage_offset", "memory_format", "dtype", "layout", "device", "pin_memory",
          "requires_grad")  # fmt: skip
#: What it says where it is given: other values make no plain wrapper.
_MAKES_PLAIN = {"storage_offset": (None, 0), "memory_format": (None,), "layout": (None, torch.strided),
                "pin_memory": (None, False), "requires_grad": (None, False)}  # fmt: skip


@builtin(torch.Tensor._make_wrapper_subclass)  # type: ignore[attr-defined]
def _make_wrapper_subclass(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(_MAKES, args, strict=False)) | kwargs
    cls = given["cls"].realize().const()
    for name, value in given.items():
        allowed = _MAKES_PLAIN.get(name)
        if name not in _MAKES or (allowed is not None and value.realize().const() not in allowed):
            raise GraphBreak("QB17", f"a {cls.__name__} that is made with {name}=")
    check_class(tx, cls, dispatches=True)
    sizes = [size.realize() for size in given["size"].realize().unpack(tx)]
    strides = given["strides"].realize() if "strides" in given else ConstantValue(None)
    dtype = given["dtype"].realize().const() if "dtype" in given else None
    device = given["device"].realize().const() if "device" in given else None
    value = DispatchingTensorValue(
        cls, sizes, None, dtype or torch.get_default_dtype(), torch.device(device or "cpu"),
        inference=torch.is_inference_mode_enabled(),
    )  # fmt: skip
    if not (strides.is_const and strides.const() is None):
        stepped = [each.realize() for each in strides.unpack(tx)]
        if not _is_contiguous(value, stepped):
            value.strides = tuple(each.const() for each in stepped)
            value.spec = value.spec.replace(strides=value.strides)
    tx.side.epoch += 1
    tx.overriding = True
    return value


def _is_contiguous(value: DispatchingTensorValue, strides: list[Value]) -> bool:
    """Whether these are the strides of a contiguous tensor, for all sizes that the guards allow."""
    given = [from_torch(each.example) if isinstance(each, SymValue) else each.const() for each in strides]
    return all(a is b or (type(a) is type(b) and a == b) for a, b in zip(given, value.spec.strides, strict=True))


@special(return_and_correct_aliasing)
def _return_arguments(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of an operator that writes, what it writes to; of another one ``out``. The storages of wrappers hold nothing."""
    func, given, named, out = (each.realize() for each in (*args, *kwargs.values()))
    func = func.const()
    if torch.Tag.inplace_view in func.tags:
        raise GraphBreak("QB17", f"{func} on a tensor subclass changes its sizes in place")
    by_name = dict(zip((arg.name for arg in func._schema.arguments), given.unpack(tx), strict=False))
    if isinstance(named, DictValue):
        by_name |= {key.realize().const(): value for key, value in named.whole(tx).values()}
    written = [ret.alias_info.before_set for ret in func._schema.returns if ret.alias_info and ret.alias_info.is_write]
    if not written:
        return out
    if len(written) != len(func._schema.returns):
        raise GraphBreak("QB17", f"{func} on a tensor subclass")
    found = [
        by_name[arg.name].realize() for which in written for arg in func._schema.arguments
        if arg.alias_info and arg.alias_info.before_set & which
    ]  # fmt: skip
    return found[0] if len(found) == 1 else TupleValue(found)


# --- operators --------------------------------------------------------------------------------------------------------


class _Asked(BaseException):
    """A call that the operator makes, which has no answer yet."""


class _Answering(TorchDispatchMode):
    """Gives the calls that an operator makes their answers, in order."""

    def __init__(self, stand_ins: _StandIns, answers: list[Value]) -> None:
        super().__init__()
        self.stand_ins = stand_ins
        self.answers = iter(answers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = next(self.answers, None)
        if answer is None:
            raise _Asked(func, args, kwargs or {})
        return self.stand_ins.of(answer)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else PyTorch's own compiler is imported


class _StandIns:
    """Abstract tensors in place of values, for one run of an operator."""

    def __init__(self, tx: Capture) -> None:
        self.tx = tx
        self._made: dict[int, torch.Tensor] = {}
        self._values: dict[int, Value] = {}
        self._numbers: dict[str, Value] = {}

    def of(self, value: Value) -> Any:
        """A value as an argument of the operator."""
        value = value.realize()
        if isinstance(value, DispatchingTensorValue):
            for size in value.sizes:
                self._note_number(size)
            return self._tensor(value, value.spec, value.requires_grad, value.inference)
        if isinstance(value, TensorValue):
            example: Any = value.example
            if not all(type(size) is int for size in example.spec.shape):
                for size in value.getattr(self.tx, "shape").unpack(self.tx):
                    self._note_number(size)
            return self._tensor(value, example.spec, example.requires_grad, example.is_inference())
        if isinstance(value, SymValue):
            self._note_number(value)
            return value.example
        if isinstance(value, (TupleValue, ListValue)):
            items = [self.of(item) for item in value.items]
            return items if isinstance(value, ListValue) else value.pytype(items)
        if isinstance(value, DictValue):
            return {key.realize().const(): self.of(item) for key, item in value.whole(self.tx).values()}
        if isinstance(value, SliceValue):
            return slice(*[self.of(part) for part in value.parts])
        if value.is_const:
            return value.const()
        raise GraphBreak("QB17", f"an operator of a tensor subclass with {display(value)}")

    def _tensor(self, value: Value, spec: TensorSpec, requires_grad: bool, inference: bool) -> torch.Tensor:
        made = self._made.get(id(value))
        if made is None:
            with torch.inference_mode(inference):
                made = make(spec, requires_grad)
            self._made[id(value)] = made
            self._values[id(made)] = value
        return made

    def _note_number(self, value: Value) -> None:
        value = value.realize()
        if isinstance(value, SymValue) and isinstance(value.example, torch.SymInt):
            expr = value.example.node.expr
            self._numbers.setdefault(str(expr), value)

    def value(self, result: Any) -> Value:
        """The value that an argument or a result of the operator stands for.

        Raises:
            GraphBreak: it is made anew.
        """
        if isinstance(result, torch.Tensor):
            return self._values.get(id(result)) or self._number_in_a_tensor(result)
        if isinstance(result, torch.SymInt):
            return self._number(result)
        if isinstance(result, (tuple, list)):
            items = [self.value(item) for item in result]
            return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
        if type(result) not in _PLAIN:
            raise GraphBreak("QB17", f"a {type(result).__name__} of a tensor subclass")
        return self.tx.from_python(result)

    def _number_in_a_tensor(self, made: torch.Tensor) -> Value:
        """A number of the call that PyTorch has made a tensor of, beside the dispatcher: the 5 of ``x[0] = 5``."""
        if type(made) is not torch.Tensor or made.dim() or made.device.type != "cpu" or made.requires_grad:
            raise GraphBreak("QB17", "an operator of a tensor subclass that makes a tensor of no class")
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            number = made.item()
        return self.tx.graph_call(torch.scalar_tensor, [ConstantValue(number)], {"dtype": ConstantValue(made.dtype)})

    def _number(self, number: torch.SymInt) -> Value:
        expr = number.node.expr
        known = self.tx.known_number(number)
        if known is not None:
            return ConstantValue(known)
        if str(expr) in self._numbers:
            return self._numbers[str(expr)]
        terms = {name: _Term(self.tx, value) for name, value in self._numbers.items()}
        try:
            return expr.evaluate(terms).value  # type: ignore[no-any-return]
        except (KeyError, AttributeError, TypeError):
            raise GraphBreak("QB17", f"the size {expr} of a tensor subclass") from None

    def written(self) -> list[DispatchingTensorValue]:
        """The instances that the operator has written to, as autograd counts.

        Raises:
            GraphBreak: it has changed the sizes of one.
        """
        found = []
        for key, value in ((key, self._values[id(made)]) for key, made in self._made.items()):
            if not isinstance(value, DispatchingTensorValue):
                continue
            made: Any = self._made[key]
            if made.spec is not value.spec and made.spec != value.spec:
                raise GraphBreak("QB17", f"the sizes of a {value.cls.__name__} are changed in place")
            if not value.inference and made._version:
                found.append(value)
        return found

    def is_argument(self, tensor: torch.Tensor, upto: int) -> bool:
        """Whether it stands for one of the first ``upto`` values that were asked for."""
        return any(made is tensor for made in list(self._made.values())[:upto])

    @property
    def count(self) -> int:
        return len(self._made)


class _Term:
    """A symbolic size in an expression that is computed anew."""

    def __init__(self, tx: Capture, value: Value) -> None:
        self.tx = tx
        self.value = value

    def _with(self, fn: Any, other: Any, turned: bool = False) -> _Term:
        operand = other.value if isinstance(other, _Term) else ConstantValue(other)
        pair = (operand, self.value) if turned else (self.value, operand)
        return _Term(self.tx, binary(self.tx, fn, *pair))

    def __add__(self, other: Any) -> _Term:
        return self._with(operator.add, other)

    def __radd__(self, other: Any) -> _Term:
        return self._with(operator.add, other, True)

    def __mul__(self, other: Any) -> _Term:
        return self._with(operator.mul, other)

    def __rmul__(self, other: Any) -> _Term:
        return self._with(operator.mul, other, True)

    def __pow__(self, exponent: int) -> _Term:
        return functools.reduce(operator.mul, [self] * exponent)

    def __floordiv__(self, other: Any) -> _Term:
        return self._with(operator.floordiv, other)

    def __mod__(self, other: Any) -> _Term:
        return self._with(operator.mod, other)


def below(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool) -> Value:
    """A function of torch, or a method by name, on arguments with instances among them, that no ``__torch_function__``
    is told of: what the classes' ``__torch_dispatch__`` make of it.

    Raises:
        GraphBreak: autograd, autocast or ``vmap`` would have a part in it, or it is about more than the numbers.
    """
    name = fn if method else args[1].realize().const() if fn is getattr else getattr(fn, "__name__", "")
    if name in _NOT_OF_A_WRAPPER or name.startswith("__array"):
        raise GraphBreak("QB17", f"{name} of a tensor subclass")
    answers: list[Value] = []
    while len(answers) < _CALLS:
        stand_ins = _StandIns(tx)
        given, named = [stand_ins.of(arg) for arg in args], {key: stand_ins.of(value) for key, value in kwargs.items()}
        arguments = stand_ins.count
        try:
            with torch._C.DisableTorchFunctionSubclass(), _Answering(stand_ins, answers):
                with SymbolicCalls() if tx.symbols.symbols else nullcontext():
                    result = getattr(given[0], fn)(*given[1:], **named) if method else fn(*given, **named)
        except _Asked as asked:
            call = asked.args
        except GraphBreak:
            raise
        except Exception as error:
            text = str(error).partition("\n")[0]
            raise GraphBreak("QB17", f"{name} on a tensor subclass: {type(error).__name__}: {text}") from None
        else:
            _check_history(stand_ins, result, arguments, name)
            for value in stand_ins.written():
                _count_write(tx, value)
            return stand_ins.value(result)
        answers.append(_answer(tx, stand_ins, *call))
    raise GraphBreak("QB17", f"{name} on a tensor subclass, which is very many calls")


def _check_surroundings(tx: Capture, func: Any) -> None:
    """Nothing else has a part in a call that an operator makes, and would not have one inside of the class's own."""
    if tx.levels:
        raise GraphBreak("QB17", f"{func} on a tensor subclass inside of a derivative or of vmap")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise GraphBreak("QB17", f"{func} on a tensor subclass under autocast")


def _check_history(stand_ins: _StandIns, result: Any, arguments: int, name: str) -> None:
    """Nothing that the operator gives has a gradient, but for its arguments themselves."""
    for each in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(each, torch.Tensor) and each.requires_grad and not stand_ins.is_argument(each, arguments):
            raise GraphBreak("QB17", f"{name} on a tensor subclass, of which a gradient is asked")


def _count_write(tx: Capture, value: DispatchingTensorValue) -> None:
    """Autograd counts what is written to an instance, also one that holds no memory of its own."""
    tx.side.epoch += 1
    if value.obj is not None:
        tx.side.call_later(torch.autograd.graph.increment_version, [value], {})


def _answer(tx: Capture, stand_ins: _StandIns, func: Any, args: Any, kwargs: Any) -> Value:
    """One call that an operator makes: of the classes of its arguments, or of the graph."""
    _check_surroundings(tx, func)
    given = [stand_ins.value(arg) for arg in args]
    named = {name: stand_ins.value(value) for name, value in kwargs.items()}
    classes = _in_order(_classes([*given, *named.values()]))
    if not classes:
        return tx.graph_call(func, given, named)
    told = TupleValue([ClassValue(cls) for cls in classes])
    off, tx.overrides_off = tx.overrides_off, 0
    try:
        for cls in classes:
            dispatch = ClassValue(cls).getattr(tx, "__torch_dispatch__")
            with_names: Value = DictValue.named(named) if named else DictValue()
            asked = [BuiltinValue(func), told, TupleValue(given), with_names]
            result = dispatch.call(tx, asked, {}).realize()
            if not (type(result) is ConstantValue and result.value is NotImplemented):
                _check_inside(result, [*given, *named.values()], cls)
                return result
    finally:
        tx.overrides_off = off
    raise GraphBreak("QB17", f"__torch_dispatch__ of {classes[0].__name__} that gives NotImplemented for {func}")


def _classes(values: list[Value]) -> list[type]:
    found: list[type] = []
    for value in values:
        value = value.realize()
        if isinstance(value, DispatchingTensorValue):
            found.append(value.cls)
        elif isinstance(value, (TupleValue, ListValue)):
            found += _classes(value.items)
    return list(dict.fromkeys(found))


def _in_order(classes: list[type]) -> list[type]:
    """From left to right, a subclass before the classes that it is one of."""
    ordered: list[type] = []
    for cls in classes:
        at = next((i for i, other in enumerate(ordered) if issubclass(cls, other)), len(ordered))
        ordered.insert(at, cls)
    return ordered


def _check_inside(result: Value, arguments: list[Value], cls: type) -> None:
    """Nothing has a gradient below autograd: what the class computes with tensors that need one has none in eager."""
    result = result.realize()
    if any(result is value.realize() for value in arguments):
        return
    if isinstance(result, TensorValue) and result.example.requires_grad:
        raise GraphBreak("QB17", f"__torch_dispatch__ of {cls.__name__} computes with tensors that need a gradient")
    if isinstance(result, (TupleValue, ListValue)):
        for item in result.items:
            _check_inside(item, arguments, cls)
    if isinstance(result, DispatchingTensorValue) and result.obj is None:
        for item in result.attrs.values():
            _check_inside(item, arguments, cls)
