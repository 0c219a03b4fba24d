"""Functions under ``functools.lru_cache`` and ``functools.cache``.

Such a function gives what it computed once, whatever has changed since, until its cache forgets: neither its body,
inlined, nor the result of one call says what the next call gives. So a call on existing objects that the guards pin
down is made now, as the program would make it here, and made again by the guards of every later call: its result is
an input of the frame like any other (a hit takes a tenth of a microsecond), and what is read of it is guarded. A cache
that was cleared, that has dropped the entry, or whose function gives something else then is seen.

Where the region has changed objects that the function may look at, the cache must have the result, so that the function
does not look; guards, too, only read the cache then.

Elsewhere the graph breaks, and the program makes the call: after such changes, where the function raises, and for
arguments that the region makes. Only tensors that it computes are let through: they hash by identity, so that no cache
has an entry for them, and the body is inlined, once per tensor.
"""

from __future__ import annotations

import functools
import gc
import logging
import operator
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import IdentityKey, Value
from dynamo_capture.values.identity import object_of, pin
from dynamo_capture.values.tensor import TensorValue
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
    keys = tuple(value.key(tx) for value in values)
    types = tuple(value.pytype for value in values) if parameters["typed"] else ()
    call = (id(fn), len(args), tuple(kwargs), keys, types)
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
    fresh = [value for value, key in zip(values, keys, strict=True) if isinstance(key, IdentityKey)]
    if fresh and all(isinstance(value, TensorValue) for value in fresh):
        return tx.from_python(fn.__wrapped__).call(tx, args, kwargs).realize()
    if fresh or any(isinstance(value, TensorValue) for value in values):
        raise GraphBreak("QB03", f"{name}, which keeps its results, of objects that the region makes, or of a tensor")
    of_types = getattr(fn, "__module__", None) == "typing"  # Optional[int]: looks at types alone
    harmless = of_types or (_only_speaks(values) and not tx.written)
    changed = bool(tx.side or tx.graph.mutated_inputs()) and not harmless
    real = [object_of(tx, value) for value in values]
    if any(obj is None and not value.is_const for obj, value in zip(real, values, strict=True)):
        raise GraphBreak("QB03", f"{name}, which keeps its results, of objects that the region makes")
    given = dict(zip(kwargs, real[len(args) :], strict=True))
    if changed and not _keeps(fn, tuple(real[: len(args)]), given):
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
