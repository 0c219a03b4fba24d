"""Weak references to objects that exist outside of the region."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak, SkipFrame
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.compare import existing
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.construct import constructor
from dynamo_capture.values.identity import pin

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["WeakReferenceValue", "dereference", "weak_reference"]


def dereference(reference: Any) -> Any:
    """What a weak reference refers to (a step of a guard's path)."""
    return weakref.ref.__call__(reference)


class WeakReferenceValue(Value):
    """A weak reference: one that exists (``original``), or one that the region makes, without a callback.

    What it refers to lives as long as the region changes nothing: an object that the program then lets go of may be
    gone in eager, where the running code holds it.
    """

    __slots__ = ("original", "target")

    mutable = True

    def __init__(self, target: Value, original: Any = None, source: Source | None = None) -> None:
        self.source = source
        self.target = target
        self.original = original

    @property
    def pytype(self) -> type:
        return weakref.ref if self.original is None else type(self.original)

    def real(self) -> Any:
        if self.original is None:
            raise GraphBreak("QB06", "a weak reference made here, as a real object")
        return self.original

    def key(self, tx: Capture) -> Any:
        """The reference itself, or one that is equal to it, as what it refers to is one object in every call."""
        target = self.target.realize()
        obj = existing(target)
        if obj is None or target.key(tx) is not obj:
            raise GraphBreak("QB06", f"a weak reference to {display(target)} as a key")
        pin(tx, target)
        return self.original or weakref.ref(obj)

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise GraphBreak("QB03", "a weak reference with arguments")
        if tx.side and self._may_be_gone(tx):
            raise GraphBreak("QB06", "whether what a weak reference refers to is alive after changes")
        source = self.target.source
        if source is not None and source.kind == "local":
            held = tx.frames[0].locals.get(source.key[1])
            if held is None or held.realize() is not self.target.realize():
                # Emitted code holds all arguments of the frame to its end.
                text = f"a weak reference to what {source} was"
                raise SkipFrame(text, "Take it outside of the compiled function.", where=tx.location())
        return self.target

    def _may_be_gone(self, tx: Capture) -> bool:
        """May the region's changes have let go of it? Not where nothing that they replace leads to it."""
        obj = None if self.original is None else dereference(self.original)
        released = None if obj is None else tx.side.released(tx.object_behind)
        return released is None or _leads_to(released, obj)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.pytype)
        raise GraphBreak("QB06", f"attribute {name!r} of a weak reference")

    def children(self) -> Iterator[Value]:
        yield self.target

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(weakref.ref, [self.target])

    def describe(self) -> str:
        return "a weak reference"


#: Objects that are looked at before it is taken for granted that one of them leads there.
_MOST = 20_000


def _leads_to(roots: list[Any], wanted: Any) -> bool:
    """Do references lead from one of the objects to another? Modules and classes keep what they hold whoever lets go of
    them, and tensors hold none but by attributes."""
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        obj = todo.pop()
        if obj is wanted or len(seen) > _MOST:
            return True
        if id(obj) in seen or isinstance(obj, (types.ModuleType, type)):
            continue
        seen.add(id(obj))
        if isinstance(obj, types.FunctionType):
            todo += [obj.__closure__, obj.__defaults__, obj.__kwdefaults__, obj.__dict__]
        elif isinstance(obj, torch.Tensor):
            todo.append(obj.__dict__)
        else:
            todo += gc.get_referents(obj)
    return False


def weak_reference(tx: Capture, obj: Any, source: Source | None) -> Value:
    """An existing weak reference; it alone is held, not what it refers to."""
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, type(obj))
    return WeakReferenceValue(tx.from_python(dereference(obj), Source("call", source, dereference)), obj, source)


@constructor(weakref.ref)
def _make(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = args[0].realize() if args else None
    none = len(args) == 2 and type(args[1].realize()) is ConstantValue and args[1].realize().const() is None
    if target is None or kwargs or not (len(args) == 1 or none):
        raise GraphBreak("QB03", "the class weakref.ReferenceType, with a callback")
    if type(target) is ConstantValue:
        tx.exact(weakref.ref, target.value)
    obj = existing(target)
    if obj is None and target.source is None:
        held = [value.realize() for frame in tx.frames for value in frame.locals.values()]
        if all(value is not target for value in held):  # emitted code holds what it makes to its end
            text = f"a weak reference to {display(target)}, which no variable holds"
            raise SkipFrame(text, "Keep what it refers to in a variable.", where=tx.location())
    if obj is None or not type(obj).__weakrefoffset__:
        raise GraphBreak("QB03", f"the class weakref.ReferenceType, of {display(target)}")
    known = tx.references.get(id(target))
    if known is None:
        known = tx.references[id(target)] = WeakReferenceValue(target)
        tx.keep(target)
    return known
