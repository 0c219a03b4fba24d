"""Calling classes: builtin types, iterators, exceptions, named tuples, and classes written in Python."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import itertools
import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values import arith
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import BUILTINS, make_super
from dynamo_capture.values.classes import bind_attribute, lookup
from dynamo_capture.values.constant import ConstantValue, fold
from dynamo_capture.values.containers import ListValue, SetValue, TupleValue, is_namedtuple, named_fields
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import MethodValue, PartialValue
from dynamo_capture.values.iterators import GeneratorValue, IteratorValue
from dynamo_capture.values.objects import ExceptionValue, ObjectValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.text import has_symbols, text_of

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["empty_instance", "instantiate"]

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]

_TYPES: dict[type, Handler] = {}
_PLAIN_METACLASSES = frozenset((type, abc.ABCMeta))
_FOLDED = frozenset((torch.device, torch.finfo, torch.iinfo, bytes, complex, types.SimpleNamespace))


def constructor(*classes: type) -> Callable[[Handler], Handler]:
    """Register what calling a class does."""

    def register(handler: Handler) -> Handler:
        for cls in classes:
            _TYPES[cls] = handler
        return handler

    return register


def instantiate(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(*args, **kwargs)``."""
    handler = _TYPES.get(cls)
    if handler is not None:
        return handler(tx, args, kwargs)
    if isinstance(cls, enum.EnumMeta) or cls in _FOLDED:
        return fold(tx, cls, args, kwargs)
    if is_namedtuple(cls) and not isinstance(lookup(cls, "__init__")[0], types.FunctionType):
        return _named_tuple(tx, cls, args, kwargs)
    if issubclass(cls, torch.Tensor):
        raise GraphBreak("QB17", f"making a {cls.__name__} from its class")
    if not (type(cls) in _PLAIN_METACLASSES or _plain_metaclass_call(type(cls))):
        raise GraphBreak("QB03", f"the class {cls.__qualname__}, whose metaclass defines __call__")
    return _user_class(tx, cls, args, kwargs)


def _plain_metaclass_call(meta: type) -> bool:
    return not isinstance(lookup(meta, "__call__")[0], types.FunctionType)


def _user_class(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    new, _ = lookup(cls, "__new__")
    value: Value
    if isinstance(new, staticmethod) and isinstance(new.__func__, types.FunctionType):
        from dynamo_capture.values.callables import ClassValue

        value = tx.function(new.__func__, None).call(tx, [ClassValue(cls), *args], kwargs).realize()
        if not issubclass(value.pytype, cls):
            return value
    else:
        value = empty_instance(tx, cls, args)
    init, owner = lookup(cls, "__init__")
    if isinstance(init, types.FunctionType):
        bind_attribute(tx, value, cls, "__init__", init, owner).call(tx, args, kwargs)  # type: ignore[arg-type]
    elif isinstance(value, ObjectValue):
        if owner is object and (args or kwargs) and not isinstance(value, ExceptionValue):
            raise tx.observed(TypeError(f"{cls.__name__}() takes no arguments"))
        value.call_c_method(tx, "__init__", init, args, kwargs)
    return value


def empty_instance(tx: Capture, cls: type, args: list[Value]) -> Value:
    """What ``cls.__new__`` gives for a class whose C base is one that capture knows."""
    if issubclass(cls, BaseException):
        return ExceptionValue(cls, list(args))
    if issubclass(cls, (enum.Enum, torch.Tensor, type)):
        raise GraphBreak("QB15", f"an instance of {cls.__qualname__}")
    for base in cls.__mro__:
        if base is object:
            return ObjectValue(cls)
        if base in _PAYLOADS:
            return ObjectValue(cls, payload=_PAYLOADS[base]())
        if base is tuple:
            items = args[0].realize().unpack(tx) if args else []
            return ObjectValue(cls, payload=TupleValue(items))
        if not _is_python_class(base) or isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType):
            break
    raise GraphBreak("QB03", f"the class {cls.__module__}.{cls.__qualname__}")


_PAYLOADS: dict[type, Callable[[], Value]] = {
    dict: DictValue,
    collections.OrderedDict: lambda: DictValue(collections.OrderedDict),
    list: lambda: ListValue([]),
    set: SetValue,
}

def _is_python_class(cls: type) -> bool:
    """Whether a class was made by a ``class`` statement (its instances are laid out as plain objects)."""
    return bool(cls.__flags__ & (1 << 9)) or cls.__module__ in ("typing", "abc", "collections.abc")


def _named_tuple(tx: Capture, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fields = named_fields(cls)
    defaults = getattr(cls, "_field_defaults", {})
    items = list(args)
    for name in fields[len(args) :]:
        if name in kwargs:
            items.append(kwargs.pop(name))
        elif name in defaults:
            items.append(tx.from_python(defaults[name]))
        else:
            raise tx.observed(TypeError(f"{cls.__name__}() missing argument {name!r}"))
    if kwargs or len(items) > len(fields):
        raise tx.observed(TypeError(f"{cls.__name__}() got too many arguments"))
    return TupleValue(items, cls)


# --- builtin types --------------------------------------------------------------------------------------------------


@constructor(type)
def _type(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise GraphBreak("QB15", "type() with three arguments")
    value = args[0].realize()
    return tx.from_python(value.pytype)


@constructor(object)
def _object(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@constructor(super)
def _super(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return make_super(tx, args)


@constructor(bool)
def _bool(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].realize().truth(tx) if args else False)


@constructor(int)
def _int(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _number(tx, int, args, kwargs, torch.sym_int)


@constructor(float)
def _float(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _number(tx, float, args, kwargs, torch.sym_float)


def _number(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value], sym_fn: Any) -> Value:
    value = args[0].realize() if args else None
    if isinstance(value, TensorValue):
        raise GraphBreak("QB02", f"{cls.__name__}() of a tensor")
    if isinstance(value, SymValue):
        return value if value.pytype is cls else tx.graph_call(sym_fn, [value], {})
    if isinstance(value, ObjectValue):
        return value.call_method(tx, f"__{cls.__name__}__", [], {})
    return fold(tx, cls, args, kwargs)


@constructor(str)
def _str(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return ConstantValue("")
    value = args[0].realize()
    if isinstance(value, TensorValue):
        raise GraphBreak("QB02", "str() of a tensor")
    if has_symbols(value):
        return text_of(value)
    if isinstance(value, ObjectValue):
        return value.call_method(tx, "__str__", [], {})
    if isinstance(value, ListValue):
        return ConstantValue(str([item.realize().const() for item in value.items]))
    return fold(tx, str, args, kwargs)


@constructor(list)
def _list(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(args[0].realize().unpack(tx) if args else [])


@constructor(tuple)
def _tuple(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return TupleValue([])
    value = args[0].realize()
    if isinstance(value, TupleValue) and value.cls is tuple:
        return value
    return TupleValue(value.unpack(tx))


@constructor(torch.Size)
def _size(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(args[0].realize().unpack(tx) if args else [], torch.Size)


@constructor(set)
def _set(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SetValue.of(tx, args[0].realize().unpack(tx) if args else [])


@constructor(frozenset)
def _frozenset(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SetValue.of(tx, args[0].realize().unpack(tx) if args else [], frozenset)


@constructor(dict)
def _dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    result = DictValue()
    result.call_method(tx, "update", args, kwargs)
    return result


@constructor(collections.OrderedDict)
def _ordered_dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    result = DictValue(collections.OrderedDict)
    result.call_method(tx, "update", args, kwargs)
    return result


@constructor(collections.defaultdict)
def _default_dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0].realize() if args else None
    if isinstance(factory, ConstantValue):
        factory = None
    result = DictValue(collections.defaultdict, default_factory=factory)
    result.call_method(tx, "update", args[1:], kwargs)
    return result


@constructor(collections.deque)
def _deque(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", ConstantValue(None))
    items = args[0].realize().unpack(tx) if args else []
    maxlen = limit.realize().const()
    if maxlen is not None:
        items = items[max(0, len(items) - maxlen) :]
    return ListValue(items, collections.deque, maxlen=maxlen)


@constructor(slice)
def _slice(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from dynamo_capture.interpreter.data_ops import make_slice

    none = ConstantValue(None)
    return make_slice([none, args[0], none] if len(args) == 1 else [*args, none][:3])


@constructor(range)
def _range(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = []
    for arg in args:
        value = arg.realize()
        if isinstance(value, TensorValue):
            raise GraphBreak("QB02", "range() of a tensor")
        bounds.append(ConstantValue(value.const()))
    return fold(tx, range, bounds, {})  # type: ignore[arg-type]


class GetterValue(Value):
    """``operator.itemgetter`` or ``operator.attrgetter``, made in the region of constants."""

    __slots__ = ("getter", "keys")

    def __init__(self, getter: Any) -> None:
        self.source = None
        self.getter = getter
        self.keys: tuple[Any, ...] = getter.__reduce__()[1]

    @property
    def pytype(self) -> type:
        return type(self.getter)

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise tx.observed(TypeError(f"{type(self.getter).__name__} expected 1 argument, got {len(args)}"))
        results = [self._get(tx, args[0].realize(), key) for key in self.keys]
        return results[0] if len(results) == 1 else TupleValue(results)

    def _get(self, tx: Capture, value: Value, key: Any) -> Value:
        if isinstance(self.getter, operator.itemgetter):
            return value.getitem(tx, tx.from_python(key))
        for name in key.split("."):
            value = value.realize().getattr(tx, name)
        return value

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.getter)


def _getter(cls: type) -> Handler:
    def make(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        keys = [a.realize().const() for a in args]
        try:
            return GetterValue(cls(*keys, **{k: v.realize().const() for k, v in kwargs.items()}))
        except TypeError as error:
            raise tx.observed(error) from None

    return make


constructor(operator.itemgetter)(_getter(operator.itemgetter))
constructor(operator.attrgetter)(_getter(operator.attrgetter))


@constructor(functools.partial)
def _partial(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func = args[0].realize()
    if isinstance(func, PartialValue):
        return PartialValue(func.func, [*func.args, *args[1:]], {**func.keywords, **kwargs})
    return PartialValue(func, args[1:], kwargs)


@constructor(types.MethodType)
def _method(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[1], args[0].realize())


@constructor(property, staticmethod, classmethod)
def _descriptor(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB15", "a descriptor made at run time")


# --- iterators ------------------------------------------------------------------------------------------------------


def _iterator(tx: Capture, value: Value) -> Any:
    """``iter(value)``."""
    iterator: Any = value.realize().get_iter(tx)
    if not isinstance(iterator, (IteratorValue, GeneratorValue, ObjectValue)):
        raise GraphBreak("QB06", f"iteration over {iterator.describe()}")
    return iterator


def _source(tx: Capture, value: Value) -> Iterator[Value]:
    """The elements of ``iter(value)``; an existing iterator is advanced."""
    return _iterator(tx, value).iterate(tx)  # type: ignore[no-any-return]


@constructor(enumerate)
def _enumerate(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    position = (args[1] if len(args) > 1 else kwargs.get("start", ConstantValue(0))).realize().const()
    source = _iterator(tx, args[0])

    def items() -> Iterator[Value]:
        nonlocal position
        for item in source.iterate(tx):
            position += 1
            yield TupleValue([ConstantValue(position - 1), item])

    return IteratorValue(items(), lambda: (enumerate, [source, ConstantValue(position)]))


@constructor(zip)
def _zip(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].realize().truth(tx)
    iterators = [_iterator(tx, arg) for arg in args]
    sources = [iterator.iterate(tx) for iterator in iterators]

    def items() -> Iterator[Value]:
        while sources:
            row: list[Value] = []
            for i, source in enumerate(sources):
                item = next(source, None)
                if item is None:
                    if strict and (i > 0 or any(next(s, None) is not None for s in sources[1:])):
                        raise tx.observed(ValueError(f"zip() argument {i + 1} is shorter or longer than the others"))
                    return
                row.append(item)
            yield TupleValue(row)

    return IteratorValue(items(), lambda: (_zip_strictly if strict else zip, iterators))


def _zip_strictly(*iterators: Any) -> Any:
    """Runs in the emitted code."""
    return zip(*iterators, strict=True)


@constructor(map)
def _map(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    iterators = [_iterator(tx, arg) for arg in args[1:]]
    rows = zip(*[iterator.iterate(tx) for iterator in iterators], strict=False)
    return IteratorValue((fn.call(tx, list(row), {}) for row in rows), lambda: (map, [fn, *iterators]))


@constructor(filter)
def _filter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    plain = isinstance(fn, ConstantValue)

    def keep(item: Value) -> bool:
        return (item if plain else fn.call(tx, [item], {})).realize().truth(tx)

    source = _iterator(tx, args[1])
    return IteratorValue((x for x in source.iterate(tx) if keep(x)), lambda: (filter, [fn, source]))


@constructor(reversed)
def _reversed(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize()
    if isinstance(value, ObjectValue):
        if lookup(value.cls, "__reversed__")[1] is not None:
            return value.call_method(tx, "__reversed__", [], {})
        n = value.length(tx).const()
        return IteratorValue(value.getitem(tx, ConstantValue(i)) for i in range(n - 1, -1, -1))
    if isinstance(value, ListValue):
        return IteratorValue(_backwards(value.items))
    return IteratorValue(iter(value.unpack(tx)[::-1]))


def _backwards(items: list[Value]) -> Iterator[Value]:
    """By position, as the list may change while it is walked."""
    i = len(items) - 1
    while 0 <= i < len(items):
        yield items[i]
        i -= 1


@constructor(itertools.chain)
def _chain(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return IteratorValue(item for arg in args for item in _source(tx, arg))


BUILTINS[itertools.chain.from_iterable] = lambda tx, args, kwargs: IteratorValue(
    item for group in _source(tx, args[0]) for item in _source(tx, group)
)


@constructor(itertools.islice)
def _islice(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = [a.realize().const() for a in args[1:]]
    return IteratorValue(itertools.islice(_source(tx, args[0]), *bounds))


@constructor(itertools.product)
def _product(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    repeat = kwargs["repeat"].realize().const() if "repeat" in kwargs else 1
    pools = [arg.realize().unpack(tx) for arg in args]
    return IteratorValue(TupleValue(list(row)) for row in itertools.product(*pools, repeat=repeat))


@constructor(itertools.repeat)
def _repeat(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is None:
        return IteratorValue(itertools.repeat(args[0]), lambda: (itertools.repeat, [args[0]]))
    return IteratorValue(itertools.repeat(args[0], times.realize().const()))


@constructor(itertools.count)
def _count(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("start", "step"), args, strict=False)) | kwargs
    now, step = (given[n].realize().const() if n in given else d for n, d in (("start", 0), ("step", 1)))

    def items() -> Iterator[Value]:
        nonlocal now
        while True:
            item, now = now, now + step
            yield ConstantValue(item)

    return IteratorValue(items(), lambda: (itertools.count, [ConstantValue(now), ConstantValue(step)]))


@constructor(itertools.zip_longest)
def _zip_longest(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fill = kwargs.get("fillvalue", ConstantValue(None))
    rows = itertools.zip_longest(*[_source(tx, arg) for arg in args], fillvalue=fill)
    return IteratorValue(TupleValue(list(row)) for row in rows)


@constructor(itertools.accumulate)
def _accumulate(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    def add(a: Value, b: Value) -> Value:
        if len(args) > 1:
            return args[1].realize().call(tx, [a, b], {})
        return arith.binary(tx, operator.add, a.realize(), b.realize())

    def rebuild() -> tuple[Any, list[Value]]:
        raise GraphBreak("QB10", "itertools.accumulate with a function")

    return IteratorValue(itertools.accumulate(_source(tx, args[0]), add), rebuild if len(args) > 1 else None)


@constructor(itertools.pairwise)
def _pairwise(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return IteratorValue(TupleValue(list(pair)) for pair in itertools.pairwise(_source(tx, args[0])))


@constructor(itertools.starmap)
def _starmap(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    rows = _iterator(tx, args[1])
    called = (fn.call(tx, row.realize().unpack(tx), {}) for row in rows.iterate(tx))
    return IteratorValue(called, lambda: (itertools.starmap, [fn, rows]))
