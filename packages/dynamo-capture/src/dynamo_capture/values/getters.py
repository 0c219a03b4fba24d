"""``operator.itemgetter``, ``attrgetter`` and ``methodcaller``, of constants."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import CONST_TYPES
from dynamo_capture.values.containers import TupleValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["GETTERS", "GetterValue", "existing_getter", "make_getter"]

GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class GetterValue(Value):
    """Such an object.

    Attributes:
        keys: what it was made of; a method's name is followed by the arguments.
        named: the arguments by name.
    """

    __slots__ = ("getter", "keys", "named")

    def __init__(self, getter: Any, source: Source | None = None) -> None:
        self.source = source
        self.getter = getter
        self.keys, self.named = _made_of(getter)

    @property
    def pytype(self) -> type:
        return type(self.getter)

    @property
    def obj(self) -> Any:
        """The object, if it existed before the region."""
        return None if self.source is None else self.getter

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            if kwargs:
                raise GraphBreak("QB19", f"{display(self)} is called with named arguments")
            raise tx.observed(TypeError(f"{type(self.getter).__name__} expected 1 argument, got {len(args)}"))
        value = args[0].realize()
        if isinstance(self.getter, operator.methodcaller):
            name, *given = self.keys
            named = {key: tx.from_python(arg) for key, arg in self.named.items()}
            return value.call_method(tx, name, [tx.from_python(arg) for arg in given], named)
        results = [self._get(tx, value, key) for key in self.keys]
        return results[0] if len(results) == 1 else TupleValue(results)

    def _get(self, tx: Capture, value: Value, key: Any) -> Value:
        if isinstance(self.getter, operator.itemgetter):
            return value.getitem(tx, tx.from_python(key))
        for name in key.split("."):
            value = value.realize().getattr(tx, name)
        return value

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.getter)

    def describe(self) -> str:
        return f"an operator.{type(self.getter).__name__}"


def make_getter(cls: type, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(*args, **kwargs)`` of constants."""
    keys = [a.realize().const() for a in args]
    return GetterValue(tx.exact(cls, *keys, **{k: v.realize().const() for k, v in kwargs.items()}))


def existing_getter(tx: Capture, obj: Any, source: Source | None) -> Value:
    """One from outside. It cannot change; one that lives in a variable may be made anew for each call."""
    keys, named = _made_of(obj)
    if not _is_fixed((*keys, *named.values())):
        raise GraphBreak("QB03", f"an operator.{type(obj).__name__} of objects")
    if source is None:
        source = Source("constant", None, (obj,))
    elif source.kind == "local":
        tx.guards.type_is(source, type(obj))
        tx.guards.predicate(source, functools.partial(_is_alike, keys, named), f"{source} is made of {keys} {named}")
    else:
        tx.guards.is_object(source, obj)
    return GetterValue(obj, source)


def _made_of(getter: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made, keys = getter.__reduce__()[:2]
    if isinstance(made, functools.partial):  # a method with named arguments
        return (*made.args, *keys), dict(made.keywords)
    return tuple(keys), {}


def _is_fixed(value: Any) -> bool:
    return all(map(_is_fixed, value)) if type(value) is tuple else type(value) in CONST_TYPES


def _is_alike(keys: tuple[Any, ...], named: dict[str, Any], obj: Any) -> bool:
    """Whether a getter is made of these; ``1`` is not ``True``, nor ``0.0`` ``-0.0``."""
    return repr(_made_of(obj)) == repr((keys, named))
