"""Functions under ``functools.lru_cache`` and ``functools.cache``.

Such a function gives what it computed once, whatever has changed since, until its cache forgets: neither its body,
inlined, nor the result of one call says what the next call gives. So a call on existing objects that the guards pin
down is made now, as the program would make it here, and made again by the guards of every later call: its result is
an input of the frame like any other (a hit takes a tenth of a microsecond), and what is read of it is guarded. A cache
that was cleared, that has dropped the entry, or whose function gives something else then is seen.

Where the region has changed objects that the function may look at, the cache must have the result, so that the function
does not look; guards, too, only read the cache then.

A function that can look at nothing but its arguments (:func:`_looks_at_arguments_alone`) gives the same whether a cache
has it or not: of sizes of tensors that are symbols, and after changes, its body is inlined.

So it is of objects that the region makes and that hash by identity, once for each: no cache has an entry for them.
Elsewhere the graph breaks, and the program makes the call: after such changes, and where the function raises.
"""

from __future__ import annotations

import dis
import functools
import gc
import logging
import operator
import types
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class, is_library_name
from dynamo_capture.sources import Source
from dynamo_capture.values.base import IdentityKey, Value
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.identity import object_of, pin
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special_by_code

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["call_cached"]


def _dispatch(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``functools.singledispatch`` chooses for a class, which it keeps in a cache; the guards ask it again."""
    cls = args[0].realize() if len(args) == 1 and not kwargs else None
    known = cls.const() if cls is not None and cls.is_const else None
    registries = [cell.cell_contents for cell in fn.__closure__]
    changed = any(tx.changed(each) is not None for each in registries)
    if not isinstance(known, type) or id(known) in tx.made_classes or changed:
        raise GraphBreak("QB03", "functools.singledispatch of a class that is made here, or after changes")
    asked = functools.partial(fn, known)
    return tx.from_python(tx.guards.now(asked, f"what {fn.__qualname__} chooses for {known.__qualname__}"))


special_by_code(functools.singledispatch(lambda value: None).dispatch)(_dispatch)


def call_cached(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``fn(*args, **kwargs)`` for a function with a cache.

    Raises:
        GraphBreak: the program has to make the call itself.
    """
    parameters = fn.cache_parameters()
    if parameters["maxsize"] == 0:
        return tx.from_python(fn.__wrapped__).call(tx, args, kwargs)  # it keeps nothing
    values = [value.realize() for value in (*args, *kwargs.values())]
    symbols = set[str]().union(*map(_symbols_of, values))
    if symbols and symbols <= _sizes_of_tensors(tx) and _looks_at_arguments_alone(fn.__wrapped__):
        return tx.from_python(fn.__wrapped__).call(tx, args, kwargs).realize()
    keys = tuple(value.key(tx) for value in values)
    kinds = tuple(value.pytype for value in values) if parameters["typed"] else ()
    call = (id(fn), len(args), tuple(kwargs), keys, kinds)
    known = tx.cached_calls.get(call)
    if known is None:
        known = tx.cached_calls[call] = _call(tx, fn, args, kwargs, values, keys)
    return known


def _only_speaks(values: list[Value]) -> bool:
    """Whether it is a message of a logger, given once: what the region changes has no part in it."""
    return bool(values) and issubclass(values[0].pytype, logging.Logger)


def _call(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], values: list[Value], keys: tuple[Any, ...]
) -> Value:
    name = getattr(fn, "__qualname__", "a function")
    if any(isinstance(key, IdentityKey) for key in keys):  # no cache has anything of what is made here
        return tx.from_python(fn.__wrapped__).call(tx, args, kwargs).realize()
    if any(isinstance(value, TensorValue) for value in values):
        raise GraphBreak("QB03", f"{name}, which keeps its results, of a tensor")
    of_types = getattr(fn, "__module__", None) == "typing"  # Optional[int]: looks at types alone
    harmless = of_types or (_only_speaks(values) and not tx.written)
    changed = bool(tx.side or tx.graph.mutated_inputs()) and not harmless
    real = [object_of(tx, value) for value in values]
    if any(obj is None and not value.is_const for obj, value in zip(real, values, strict=True)):
        raise GraphBreak("QB03", f"{name}, which keeps its results, of objects that the region makes")
    given = dict(zip(kwargs, real[len(args) :], strict=True))
    if changed and not _keeps(fn, tuple(real[: len(args)]), given):
        if _looks_at_arguments_alone(fn.__wrapped__):
            return tx.from_python(fn.__wrapped__).call(tx, args, kwargs).realize()
        raise GraphBreak("QB03", f"{name}, which keeps its results, after changes that it may look at")
    for value in values:
        pin(tx, value)
    ask = functools.partial(_kept, fn) if changed else fn
    made = functools.partial(ask, *real[: len(args)], **given)
    try:
        with _disable_current_modes():
            result = made()
    except Exception as error:
        raise GraphBreak("QB03", f"{name}, which keeps its results, raised {type(error).__name__}") from None
    source = Source("call", Source("constant", None, (made,)), operator.call)
    return tx.from_python(result, source).realize()


def _symbols_of(value: Value) -> set[str]:
    """The symbols in a number, or in a tuple of such."""
    value = value.realize()
    if isinstance(value, TupleValue):
        return set[str]().union(*map(_symbols_of, value.items))
    return set(value.example.node.expr.free_symbols()) if isinstance(value, SymValue) else set()


def _sizes_of_tensors(tx: Capture) -> set[str]:
    """The symbols that sizes of inputs are. A number of the program's own that has a symbol is fixed instead: what a
    cache keeps for it may be a list, which the program has changed since."""
    graph: Any = tx.graph
    while not graph.is_outermost:
        graph = graph.outer
    tensors = [inp for inp in graph.inputs if isinstance(inp.value, TensorValue)]
    sizes = (size for inp in tensors for size in inp.node.meta["spec"].shape)
    return {size.expr.symbol_name for size in sizes if not isinstance(size, int) and size.expr.is_symbol}


#: Functions and classes that are looked into, one from the other, at most.
_FAR = 60


def _looks_at_arguments_alone(fn: Any) -> bool:
    """Whether a function, and all that it calls by name, can look at nothing else that may change: its global names are
    functions and classes of which the same holds, modules of libraries, and constants, and it sets none."""
    seen: dict[int, Any] = {}
    todo = [fn]
    while todo:
        obj = todo.pop()
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        if len(seen) > _FAR:
            return False
        found = _named(obj)
        if found is None:
            return False
        todo += found
    return True


def _named(obj: Any) -> list[Any] | None:
    """What an object's code names, or None where it is something that may change."""
    if isinstance(obj, (types.ModuleType, types.FunctionType, type)) and _is_librarys(obj):
        return []
    if isinstance(obj, functools._lru_cache_wrapper):
        return [obj.__wrapped__]
    if isinstance(obj, (staticmethod, classmethod)):
        return [obj.__func__]
    if isinstance(obj, property):
        return [part for part in (obj.fget, obj.fset, obj.fdel) if part is not None]
    if isinstance(obj, type):
        parts = [part for base in obj.__mro__ if not is_library_class(base) for part in vars(base).values()]
        return [part for part in parts if not isinstance(part, (*_SLOTS, dict))]
    if not isinstance(obj, types.FunctionType):
        return [] if _is_constant(obj) else None
    cells = [cell.cell_contents for cell in obj.__closure__ or () if cell != types.CellType()]
    return _globals_named(obj.__code__, obj.__globals__, [*cells, *(obj.__defaults__ or ())])


_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _globals_named(code: types.CodeType, globals_: dict[str, Any], found: list[Any]) -> list[Any] | None:
    builtins = globals_.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "STORE_NAME"):
            return None
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in globals_:
            found.append(globals_[instruction.argval])
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval not in builtins:
            return None
    for const in code.co_consts:
        if isinstance(const, types.CodeType) and _globals_named(const, globals_, found) is None:
            return None
    return found


def _is_librarys(obj: Any) -> bool:
    name = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return isinstance(name, str) and is_library_name(name)


def _is_constant(obj: Any) -> bool:
    if isinstance(obj, (tuple, frozenset)):
        return all(map(_is_constant, obj))
    return isinstance(obj, (bool, int, float, complex, str, bytes, type(None), type(...), types.BuiltinFunctionType))


#: What a guard finds where a cache no longer has a result.
_FORGOTTEN = object()


def _kept(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What the cache has for a call, without calling the function."""
    return fn(*args, **kwargs) if _keeps(fn, args, kwargs) else _FORGOTTEN


def _keeps(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the cache has a result for a call; no for calls whose key is not simply their arguments."""
    if kwargs or fn.cache_parameters()["typed"]:
        return False
    single = len(args) == 1 and type(args[0]) in (int, str)
    caches = [part for part in gc.get_referents(fn) if type(part) is dict and part is not getattr(fn, "__dict__", None)]
    size = fn.cache_info().currsize
    return any(len(cache) == size and (args[0] if single else args) in cache for cache in caches)
