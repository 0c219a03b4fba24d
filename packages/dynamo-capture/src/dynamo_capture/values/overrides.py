"""Subclasses of ``torch.Tensor`` with ``__torch_function__``: their Python is captured, their memory is plain tensors.

An instance is an :class:`OverridingTensorValue` around the plain tensor that the graph has. An operator on one calls
the class's ``__torch_function__`` as eager does, with the function, types and arguments that eager hands over: which
these are is asked of PyTorch itself, by calling the operator on stand-ins (:func:`_handed_over`). Inside
``DisableTorchFunctionSubclass``, which the default implementation enters, operators are those on the plain tensors.
Where an instance leaves the region it is made of the graph's output by ``as_subclass``.

Subclasses with ``__torch_dispatch__`` are in :mod:`dynamo_capture.values.dispatching`; those with attribute access of
their own break the graph.
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import BuiltinValue, ClassValue, HandlerValue
from dynamo_capture.values.classes import bind_attribute, find, full_name, lookup, no_attribute
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.construct import constructor
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import FunctionValue
from dynamo_capture.values.identity import identity_key
from dynamo_capture.values.objects import is_data_descriptor
from dynamo_capture.values.tensor import SymValue, TensorMethodValue, TensorValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = [
    "OverridingTensorValue", "as_subclass", "dispatched", "dispatches", "handled", "has_instances", "has_method",
    "overrides", "subclass_input",
]  # fmt: skip

_OWN = torch.nn.Parameter.__mro__
_METACLASSES = (type(torch.Tensor), type(torch.nn.Parameter), type(torch.nn.Buffer))
#: What an instance is asked for itself, not for its memory: the plain tensor may have another answer.
_OF_THE_OBJECT = frozenset(
    ("grad", "grad_fn", "is_leaf", "_base", "_is_view", "_version", "output_nr", "retain_grad", "retains_grad",
     "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "detach_", "data", "set_", "backward",
     "_backward_hooks", "resize_", "resize_as_", "__dict__", "__reduce_ex__", "__deepcopy__", "__setstate__")
)  # fmt: skip


class OverridingTensorValue(Value):
    """An instance of a subclass: ``inner`` has its memory, ``attrs`` what the region has set on a new one."""

    __slots__ = ("attrs", "cls", "inner", "obj")

    mutable = True

    def __init__(self, cls: type, inner: Any, obj: Any = None, source: Source | None = None) -> None:
        self.source = source
        self.cls = cls
        #: A TensorValue; None of a wrapper, which has tensors as attributes (:mod:`dynamo_capture.values.dispatching`).
        self.inner = inner
        self.obj = obj
        self.attrs: dict[str, Value] = {}

    @property
    def pytype(self) -> type:
        return self.cls

    def real(self) -> Any:
        if self.obj is None:
            raise GraphBreak("QB02", "the value of a computed tensor")
        return self.obj

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        return self.call_method(tx, "__bool__", [], {}).realize().truth(tx)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        found, owner = lookup(self.cls, name)
        of_class = owner is not None and owner not in _OWN
        own = self.attrs if self.obj is None else self.obj.__dict__
        if name in own and not (of_class and is_data_descriptor(found)):
            find(tx, self.cls, name)
            if self.obj is None:
                return self.attrs[name]
            return tx.read(own[name], self.source and self.source.attr(name))
        if self.source is not None and (owner is None or not is_data_descriptor(found)):
            tx.guards.no_instance_attr(self.source, name)
        if of_class:
            return bind_attribute(tx, self, self.cls, name, found, owner)  # type: ignore[arg-type]
        find(tx, self.cls, name)
        if owner is None:
            raise tx.observed(no_attribute(full_name(self.cls), name))
        if name in _OF_THE_OBJECT:
            raise GraphBreak("QB17", f"Tensor.{name} of a {self.cls.__name__}")
        if callable(getattr(torch.Tensor, name)):
            return TensorMethodValue(self, name)  # type: ignore[arg-type]
        return dispatched(tx, getattr, [self, ConstantValue(name)], {})

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        own = self.attrs if self.obj is None else self.obj.__dict__
        if lookup(self.cls, name)[1] not in _OWN or name in _OF_THE_OBJECT or name in own:
            return super().call_method(tx, name, args, kwargs)
        if self.source is not None:
            tx.guards.no_instance_attr(self.source, name)
        if name == "as_subclass":  # which no class is told of
            return as_subclass(tx, self.inner, args)
        return dispatched(tx, name, [self, *args], kwargs, method=True)

    def call_c_method(
        self, tx: Capture, name: str, descriptor: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """``super().name(...)``."""
        if descriptor is object.__init__ and not args and not kwargs:
            return ConstantValue(None)
        if getattr(torch.Tensor, name, None) is not descriptor or name in _OF_THE_OBJECT:
            raise GraphBreak("QB17", f"the method {name!r} of {self.describe()}")
        return dispatched(tx, name, [self, *args], kwargs, method=True)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        found, owner = lookup(self.cls, name)
        if self.obj is not None or (owner is not None and is_data_descriptor(found)):
            raise GraphBreak("QB17", f"setting attribute {name!r} of a {self.cls.__name__}")
        tx.side.epoch += 1
        self.attrs[name] = value

    def get_iter(self, tx: Capture) -> Value:
        return self.call_method(tx, "__iter__", [], {}).realize()

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.get_iter(tx).iterate(tx)

    def length(self, tx: Capture) -> Value:
        return self.call_method(tx, "__len__", [], {})

    def contains(self, tx: Capture, item: Value) -> bool:
        raise GraphBreak("QB02", "membership test on a tensor")

    def reconstruct(self, cg: CodeGen) -> None:
        attrs = DictValue.named(self.attrs) if self.attrs else ConstantValue(None)
        cg.call_const(_made, [self.inner, ClassValue(self.cls), attrs])

    def children(self) -> Iterator[Value]:
        yield self.inner
        yield from self.attrs.values()

    def describe(self) -> str:
        return f"a {self.cls.__name__}, which is a tensor"


def _made(tensor: torch.Tensor, cls: type, attrs: dict[str, Any] | None) -> Any:
    """Runs in the emitted code: an instance that the region has made, with the history of the graph's output."""
    with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(tensor.requires_grad):
        made = tensor.as_subclass(cls)
    if attrs:
        made.__dict__.update(attrs)
    return made


def has_method(tx: Capture, value: OverridingTensorValue, name: str) -> bool:
    """Whether the class has a method of the name that is not torch's."""
    return find(tx, value.cls, name)[1] not in _OWN


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The memory and history of an instance as a plain tensor (a step of a guard's path)."""
    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        return tensor.as_subclass(torch.Tensor)


def dispatches(tx: Capture, cls: type) -> bool:
    """Whether a class has a ``__torch_dispatch__`` of its own."""
    return find(tx, cls, "__torch_dispatch__")[1] not in _OWN


def subclass_input(tx: Capture, obj: Any, source: Source | None) -> Value:
    """An instance that exists outside.

    Raises:
        GraphBreak: its class does more than capture knows.
    """
    cls = type(obj)
    named, source = source, source or Source("constant", None, (obj,))
    tx.guards.type_is(source, cls)  # also where the graph breaks at its class
    check_class(tx, cls, named)
    inner = tx.wrap(plain_tensor(obj), Source("call", source, plain_tensor))
    if not isinstance(inner, TensorValue):
        raise GraphBreak("QB17", f"{cls.__name__} ({source})")
    tx.overriding = True
    return OverridingTensorValue(cls, inner, obj, source)


def check_class(tx: Capture, cls: type, source: Source | None = None, *, dispatches: bool = False) -> None:
    """The class has ``__torch_function__`` and methods, with ``dispatches`` a ``__torch_dispatch__`` too, and nothing
    else of its own.

    Raises:
        GraphBreak: it has, or is one of the library's.
    """
    ours = ["__getattribute__", "__setattr__", "__delattr__", "__getattr__", "__del__", "__hash__", "__dict__"]
    if not dispatches:
        ours.append("__torch_dispatch__")
    known = type(cls) in _METACLASSES and not is_library_class(cls) and not tx.devices.now
    if not known or any((owner := find(tx, cls, name)[1]) is not None and owner not in _OWN for name in ours):
        raise GraphBreak("QB17", f"{cls.__name__} ({source})" if source is not None else f"a {cls.__name__}")
    if not (_is_off(cls) or isinstance(find(tx, cls, "__torch_function__")[0], classmethod)):
        raise GraphBreak("QB17", f"__torch_function__ of {cls.__name__}, which is no class method")
    if dispatches and not isinstance(find(tx, cls, "__torch_dispatch__")[0], classmethod):
        raise GraphBreak("QB17", f"__torch_dispatch__ of {cls.__name__}, which is no class method")


def _is_off(cls: type) -> bool:
    return cls.__torch_function__ is torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]


def as_subclass(tx: Capture, tensor: TensorValue, args: list[Value]) -> Value:
    """``tensor.as_subclass(cls)`` of a plain tensor."""
    cls = args[0].realize().const() if len(args) == 1 else None
    if cls is torch.Tensor:
        return tx.graph_call("view_as", [tensor, tensor], {}, method=True)
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor) or not tx.graph.is_outermost:
        raise GraphBreak("QB17", "Tensor.as_subclass")
    check_class(tx, cls)
    if issubclass(cls, torch.nn.Parameter):
        raise GraphBreak("QB17", "Tensor.as_subclass of a Parameter's class")
    if tensor.example.requires_grad and not torch.is_grad_enabled():
        tensor = tx.graph_call("detach", [tensor], {}, method=True)  # type: ignore[assignment]
    tx.side.epoch += 1
    tx.overriding = True
    return OverridingTensorValue(cls, tensor)


@builtin(torch.Tensor._make_subclass)
def _make_subclass(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor = args[1].realize() if len(args) == 2 and not kwargs else None
    if not isinstance(tensor, TensorValue):
        raise GraphBreak("QB17", "Tensor._make_subclass")
    inner = tx.graph_call("detach", [tensor], {}, method=True)
    return as_subclass(tx, inner, args[:1])  # type: ignore[arg-type]


# --- __torch_function__ -----------------------------------------------------------------------------------------------


def _instances(values: Any) -> Iterator[OverridingTensorValue]:
    for value in values:
        value = value.realize()
        if isinstance(value, OverridingTensorValue):
            yield value
        elif isinstance(value, (TupleValue, ListValue)):
            yield from _instances(value.items)


def _is_active(tx: Capture, value: OverridingTensorValue) -> bool:
    return not tx.overrides_off and not _is_off(value.cls)


def has_instances(args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether an instance of a subclass is among the arguments of a call; they are looked at up to the first."""
    return _has_instance(args) or (bool(kwargs) and _has_instance(kwargs.values()))


def _has_instance(values: Any) -> bool:
    for value in values:
        value = value.realize()
        if type(value) in _PLAIN:
            continue
        if isinstance(value, OverridingTensorValue):
            return True
        if isinstance(value, (TupleValue, ListValue)) and _has_instance(value.items):
            return True
    return False


#: Kinds of values that are no instances, and hold none.
_PLAIN = frozenset((TensorValue, ConstantValue))


def overrides(tx: Capture, values: Any) -> bool:
    """Whether the ``__torch_function__`` of one of the values is asked."""
    return any(_is_active(tx, value) for value in _instances(values))


def dispatched(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], *, method: bool = False) -> Value:
    """A function of torch, or a method by name, on arguments with instances among them."""
    if overrides(tx, (*args, *kwargs.values())):
        given = _handed_over(tx, fn, args, kwargs, method)
        if given is None:
            function = lookup(torch.Tensor, fn)[0] if method else fn
            if not isinstance(function, types.FunctionType):
                raise GraphBreak("QB17", f"{fn} on a tensor subclass, which is not told of it")
            return tx.call_function(FunctionValue(function), args, kwargs)
        return ask(tx, list(_instances((*args, *kwargs.values()))), *given)

    def call(args: list[Value], kwargs: dict[str, Value]) -> Value:
        if method:
            return args[0].realize().call_method(tx, fn, args[1:], kwargs)
        if fn is getattr:
            return args[0].realize().getattr(tx, args[1].const())
        return tx.from_python(fn).realize().call(tx, args, kwargs)

    return _unwrapped_call(tx, fn, call, args, kwargs, method)


def _unwrapped_call(
    tx: Capture, fn: Any, call: Callable[[list[Value], dict[str, Value]], Value], args: list[Value],
    kwargs: dict[str, Value], method: bool,
) -> Value:  # fmt: skip
    """A call with the plain tensors in place of the instances; what it gives back of them are the instances."""
    from dynamo_capture.values.sharded import is_sharded_class, on_shards

    found = list(_instances((*args, *kwargs.values())))
    if any(is_sharded_class(value.cls) for value in found):
        return on_shards(tx, fn, args, kwargs, method)
    if any(value.inner is None for value in found):
        from dynamo_capture.values.dispatching import below

        given, named = [_plain(arg) for arg in args], {name: _plain(value) for name, value in kwargs.items()}
        return below(tx, fn, given, named, method)
    before = [_layout(value.inner) for value in found]
    result = call([_plain(arg) for arg in args], {name: _plain(value) for name, value in kwargs.items()}).realize()
    if [_layout(value.inner) for value in found] != before:
        tx.side.epoch += 1
        raise GraphBreak("QB17", f"the sizes of a {found[0].cls.__name__} are changed in place")
    return next((value for value in found if value.inner is result), result)


def _layout(tensor: TensorValue) -> tuple[Any, ...]:
    spec = tensor.example.spec  # type: ignore[attr-defined]
    return spec.shape, spec.strides, spec.dtype


def _plain(value: Value) -> Value:
    value = value.realize()
    if isinstance(value, OverridingTensorValue):
        return value if value.inner is None else value.inner
    if isinstance(value, (TupleValue, ListValue)) and any(True for _ in _instances(value.items)):
        items = [_plain(item) for item in value.items]
        return TupleValue(items, value.pytype) if isinstance(value, TupleValue) else ListValue(items)
    return value


def ask(
    tx: Capture, found: list[OverridingTensorValue], fn: Any, types_: tuple[type, ...], args: list[Value],
    kwargs: dict[str, Value],
) -> Value:  # fmt: skip
    """``cls.__torch_function__(fn, types, args, kwargs)``.

    Raises:
        GraphBreak: several classes are asked in turn, or the class declines.
    """
    classes = {value.cls for value in found if _is_active(tx, value)}
    if len(classes) != 1:
        raise GraphBreak("QB17", f"operands of several classes: {', '.join(sorted(c.__name__ for c in classes))}")
    cls = classes.pop()
    function = tx.from_python(fn) if isinstance(fn, types.FunctionType) else BuiltinValue(fn)
    told = TupleValue([ClassValue(cls if each is _StandIn else each) for each in types_])
    named: Value = DictValue.named(kwargs) if kwargs else DictValue()
    asked = ClassValue(cls).getattr(tx, "__torch_function__")
    result = asked.call(tx, [function, told, TupleValue(args), named], {}).realize()
    if type(result) is ConstantValue and result.value is NotImplemented:
        raise GraphBreak("QB17", f"__torch_function__ of {cls.__name__} that gives NotImplemented")
    return result


def handled(tx: Capture, fn: Value, relevant: Value, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """``torch.overrides.handle_torch_function(fn, relevant, *args, **kwargs)``; None where no class is asked."""
    if not overrides(tx, [relevant]):
        return None
    found = list(_instances([relevant]))
    classes = tuple(dict.fromkeys(value.cls for value in found if _is_active(tx, value)))
    return ask(tx, found, fn.real(), classes, args, kwargs)


class _Found(BaseException):
    """What an operator hands to ``__torch_function__``."""


class _StandIn(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise _Found(func, types, args, kwargs or {})


#: Made once, outside of any mode. No operator looks into one.
_STAND_INS = [torch.empty(0).as_subclass(_StandIn) for _ in range(32)]
_PLAIN_STAND_INS = [torch.empty(0) for _ in range(32)]


def _handed_over(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool
) -> tuple[Any, tuple[type, ...], list[Value], dict[str, Value]] | None:
    """The function, types, arguments and keywords that ``__torch_function__`` gets of a call.

    None where it gets to know of the calls inside only, or of none: a function in Python that asks no class first.

    Raises:
        GraphBreak: PyTorch does not say.
    """
    given: dict[int, Value] = {}
    kept: list[Any] = []

    def stand_in(value: Value) -> Any:
        value = value.realize()
        active = isinstance(value, OverridingTensorValue) and _is_active(tx, value)
        if isinstance(value, (OverridingTensorValue, TensorValue)):
            pool = _STAND_INS if active else _PLAIN_STAND_INS
            made = next((each for each in pool if id(each) not in given), None)
            if made is None:
                raise GraphBreak("QB17", "an operator on very many tensors of a subclass")
        elif isinstance(value, SymValue):
            made = value.example
        elif isinstance(value, (TupleValue, ListValue)) and value.pytype in (tuple, list, torch.Size):
            items = [stand_in(item) for item in value.items]
            made = items if value.pytype is list else tuple(items)
        elif value.is_const:
            return value.const()
        else:
            raise GraphBreak("QB17", f"an operator of a tensor subclass with {display(value)}")
        given[id(made)] = value
        kept.append(made)
        return made

    def behind(made: Any) -> Value:
        if id(made) in given:
            return given[id(made)]
        if type(made) is tuple:
            return TupleValue([behind(item) for item in made])
        return tx.from_python(made)

    call_args = [stand_in(arg) for arg in args]
    call_kwargs = {name: stand_in(value) for name, value in kwargs.items()}
    try:
        getattr(call_args[0], fn)(*call_args[1:], **call_kwargs) if method else fn(*call_args, **call_kwargs)
    except _Found as found:
        if not _is_of_the_call(found):
            return None
        func, types_, args_found, kwargs_found = found.args
        return func, types_, [behind(arg) for arg in args_found], {name: behind(v) for name, v in kwargs_found.items()}
    except Exception as error:
        raise GraphBreak("QB17", f"{fn} on a tensor subclass: {type(error).__name__}") from None
    return None


def _is_of_the_call(found: _Found) -> bool:
    """Whether the call itself has asked the class, from C or by ``handle_torch_function``, rather than one inside."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(found.__traceback__)][1:-1]
    if codes and codes[0] is torch.nn.functional.max_pool2d.__code__:  # what it and its like share
        del codes[0]  # it does nothing but call one of two functions
    return not codes or (len(codes) == 2 and codes[1] is torch.overrides.handle_torch_function.__code__)


# --- switching it off -------------------------------------------------------------------------------------------------


class _SwitchedOff(Value):
    """``torch._C.DisableTorchFunctionSubclass()``. A graph does not break inside: the whole call runs natively."""

    __slots__ = ()

    @property
    def pytype(self) -> type:
        return torch._C.DisableTorchFunctionSubclass  # type: ignore[no-any-return]

    def getattr(self, tx: Capture, name: str) -> Value:
        if name not in ("__enter__", "__exit__"):
            raise GraphBreak("QB17", f"{name} of DisableTorchFunctionSubclass")
        return HandlerValue(self._enter if name == "__enter__" else self._leave, name)

    def _enter(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.side.epoch += 1
        tx.overrides_off += 1
        return ConstantValue(None)

    def _leave(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.side.epoch += 1
        tx.overrides_off -= 1
        return ConstantValue(None)


@constructor(torch._C.DisableTorchFunctionSubclass)
def _switched_off(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _SwitchedOff()


@special(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _by_default(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.Tensor.__torch_function__``: the operator on plain tensors, its results as instances of the class."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls, fn = given["cls"].realize().const(), given["func"].realize()
    if not all(issubclass(cls, each.realize().const()) for each in given["types"].realize().unpack(tx)):
        return ConstantValue(NotImplemented)
    positional = given["args"].realize().unpack(tx) if "args" in given else []
    named = given.get("kwargs", ConstantValue(None)).realize()
    by_name: dict[str, Value] = {}
    if isinstance(named, DictValue):
        by_name = {key.realize().const(): value for key, value in named.whole(tx).values()}
    elif not (type(named) is ConstantValue and named.value is None):
        raise GraphBreak("QB17", "__torch_function__ with keywords that are no dict")
    tx.overrides_off += 1
    try:
        result = fn.call(tx, list(positional), by_name).realize()
    finally:
        tx.overrides_off -= 1
    if fn.is_const and fn.const() in torch.overrides.get_default_nowrap_functions():
        return result
    return _converted(tx, result, cls)


def _converted(tx: Capture, value: Value, cls: type) -> Value:
    value = value.realize()
    if isinstance(value, (TensorValue, OverridingTensorValue)):
        if cls is torch.Tensor or issubclass(value.pytype, cls):
            return value
        plain = value.inner if isinstance(value, OverridingTensorValue) else value
        if plain is None:
            raise GraphBreak("QB17", f"a {value.pytype.__name__} as a {cls.__name__}")
        return as_subclass(tx, plain, [ClassValue(cls)])
    if isinstance(value, TupleValue):
        return TupleValue([_converted(tx, item, cls) for item in value.items], value.pytype)
    if isinstance(value, ListValue):
        return ListValue([_converted(tx, item, cls) for item in value.items])
    return value
