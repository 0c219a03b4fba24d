"""Where an object of a capture is found in another process, with what is said of it (see :mod:`.facts`).

A place is JSON: ``["module", name]``, ``["attr", module, qualified name]``, ``["dict", module]`` (its globals),
``["in", class, name]`` (a class's own attribute), ``["of", object, name]`` (an attribute of an object),
``["node", number]`` (where a path from the frame leads), ``["type", number]`` (the class of that),
``["keeper", module, name]`` (a container in a module), ``["cell", function, index]`` (of its closure),
``["cached", function]`` (the cached form of it that ``typing`` keeps),
``["nested", indices]`` (a code object inside the frame's),
``["partial", function, args, kwargs]``, ``["operator", name]``, ``["limits", class, dtype]`` (what ``torch.finfo``
gives), ``["made", function, args]`` (what a function gives), ``["globals"]`` and ``["builtins"]`` (the frame's).
Objects in a place are numbers of the table ``refs``, whose rows are a place and a fact, ordered so that each needs only
those before it.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.rules import is_library_class, module_of_globals
from dynamo_capture.stored.facts import fact_of, instance_fact, is_of_numpy
from dynamo_capture.stored.plain import NotPlain, packed
from prims.artefact import NotPortable

if TYPE_CHECKING:
    from dynamo_capture.request import FrameRequest
    from dynamo_capture.stored.log import Reads

__all__ = ["Namer", "cached_form", "walk"]

#: Where a function in C may stand that does not say so.
_HOMES = ("torch", "torch._C", "torch._C._nn", "torch._C._VariableFunctions", "torch.nn.functional", "torch.linalg",
          "builtins", "math", "operator", "_operator", "itertools")  # fmt: skip
#: Modules whose containers guards look into.
_KEEPERS = ("sys", "builtins", "torch.nn.modules.module", "torch.autograd.forward_ad")


def walk(module: Any, qualname: str) -> Any:
    """The object of a qualified name in a module, or None."""
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


class Namer:
    """Writes the objects of one capture down.

    Args:
        request: the captured frame.
        reads: what was read of libraries, whose places name objects that have no name of their own.
    """

    def __init__(self, request: FrameRequest, reads: Reads) -> None:
        self.request = request
        self.refs: list[Any] = []
        self._numbers: dict[tuple[int, bool], int] = {}
        self._alive: list[Any] = []
        #: Nodes by the classes of their values, which may have no other place.
        self.types: dict[int, int] = {}
        #: Tensors of the frame, by the nodes that lead to them: which are the same is all that their identity tells.
        self.tensors: list[tuple[int, torch.Tensor]] = []
        self._tensor_at: dict[int, int] = {}
        self._places: dict[int, list[Any]] = {}
        self._made = reads.made
        #: Classes and names by what they were found to hold.
        self._owners: dict[int, tuple[type, str]] = {}
        for globals_, name, obj in reads.globals.values():
            if (module := module_of_globals(globals_)) is not None:
                self._places.setdefault(id(obj), ["attr", module, name])
        for module_, name, obj in reads.attributes.values():
            self._places.setdefault(id(obj), ["attr", module_.__name__, name])
        for cls, name in reads.lookups.values():
            for base in cls.__mro__:
                if name in base.__dict__:
                    self._owners.setdefault(id(base.__dict__[name]), (base, name))
                    break

    def meet(self, node: int, tensor: torch.Tensor) -> None:
        """Know that a path leads to a tensor."""
        self.tensors.append((node, tensor))
        self._tensor_at.setdefault(id(tensor), node)

    def pack(self, value: Any) -> Any:
        """Any value as JSON.

        Raises:
            NotPortable: it holds an object that has no place, or of which nothing is known.
        """
        try:
            return packed(value, self._packed)
        except NotPlain:
            raise NotPortable(f"a {type(value).__name__} that holds itself") from None

    def object(self, value: Any) -> Any:
        """An object as JSON, which is itself rather than like itself: a list or dict is not written down.

        Raises:
            NotPortable: see :meth:`pack`.
        """
        try:
            return packed(value, self._packed, whole=False)
        except NotPlain:
            raise NotPortable(f"a {type(value).__name__} that holds itself") from None

    def _packed(self, value: Any) -> dict[str, int]:
        return {"r": self.ref(value)}

    def ref(self, obj: Any, *, deep: bool = False, place: list[Any] | None = None) -> int:
        """The number of an object; ``deep``: it is told by its identity, so that nothing else guards what it holds."""
        key = (id(obj), deep)
        number = self._numbers.get(key)
        if number is None:
            found = place or self._place(obj)
            if found is None:
                raise NotPortable(f"{_described(obj)} has no name by which another process finds it")
            of_library = found == self._places.get(id(obj)) or obj is torch.default_generator
            by_itself = found[0] in _BY_THEMSELVES or (isinstance(obj, torch.Tensor) and found[0] == "node")
            fact = None if by_itself else _fact(obj, deep, of_library)
            self.refs.append([found, fact, deep] if deep else [found, fact])
            number = self._numbers[key] = len(self.refs) - 1
            self._alive.append(obj)
        return number

    # --- places -------------------------------------------------------------------------------------------------

    def _place(self, obj: Any) -> list[Any] | None:
        if id(obj) in self._tensor_at:
            return ["node", self._tensor_at[id(obj)]]
        if id(obj) in self._made:
            _, fn, args = self._made[id(obj)]
            return ["made", self.ref(fn), {"l": [self.object(arg) for arg in args]}]
        if isinstance(obj, types.ModuleType):
            name = obj.__name__
            if sys.modules.get(name) is obj:
                return ["module", name]
            return self._places.get(id(obj))
        if isinstance(obj, dict):
            return self._of_dict(obj)
        if type(obj) is types.CodeType:
            return self._nested(obj)
        if type(obj) is functools.partial:
            keywords = {"d": [[name, self.object(value)] for name, value in obj.keywords.items()]}
            return ["partial", self.ref(obj.func), {"l": [self.object(value) for value in obj.args]}, keywords]
        if isinstance(obj, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return ["operator", str(obj)]
        if type(obj) is types.GenericAlias:
            parts = [self.object(part) for part in (obj.__origin__, obj.__args__)]
            return ["made", self.ref(types.GenericAlias), {"l": parts}]
        if type(obj) in (torch.finfo, torch.iinfo):
            return ["limits", self.ref(type(obj)), packed(getattr(torch, obj.dtype))]
        if obj is torch.default_generator:
            return ["attr", "torch", "default_generator"]
        if isinstance(obj, enum.Enum):
            return ["of", self.ref(type(obj)), obj._name_]
        found = self._by_name(obj) or self._in_class(obj) or self._of_type(obj)
        return found or self._places.get(id(obj)) or _kept(obj)

    def _of_dict(self, obj: dict[Any, Any]) -> list[Any] | None:
        if obj is self.request.globals:
            return ["globals"]
        if obj is self.request.builtins:
            return ["builtins"]
        name = module_of_globals(obj)
        if name is not None:
            return ["dict", name]
        return self._places.get(id(obj)) or _kept(obj)

    def _nested(self, code: types.CodeType) -> list[Any] | None:
        path = _path(self.request.code, code)
        return None if path is None else ["nested", path]

    def _by_name(self, obj: Any) -> list[Any] | None:
        name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
        if not isinstance(name, str) or not (isinstance(obj, _NAMED) or is_of_numpy(obj)):
            return None
        module = getattr(obj, "__module__", None)
        if isinstance(module, str) and module in sys.modules and walk(sys.modules[module], name) is obj:
            return ["attr", module, name]
        if isinstance(obj, types.BuiltinFunctionType):
            for home in (getattr(getattr(obj, "__self__", None), "__name__", ""), *_HOMES):
                if isinstance(home, str) and home in sys.modules and walk(sys.modules[home], obj.__name__) is obj:
                    return ["attr", home, obj.__name__]
        return None

    def _in_class(self, obj: Any) -> list[Any] | None:
        name = getattr(obj, "__name__", "")
        owner = getattr(obj, "__objclass__", None)
        if isinstance(owner, type) and owner.__dict__.get(name) is obj:
            return ["in", self.ref(owner), name]
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, type) and getattr(owner, name, None) is obj:
            return ["of", self.ref(owner), name]
        known = self._owners.get(id(obj))
        if known is not None and known[0].__dict__.get(known[1]) is obj:
            return ["in", self.ref(known[0]), known[1]]
        return self._part(obj) or self._enclosed(obj) or self._cached(obj)

    def _enclosed(self, obj: Any) -> list[Any] | None:
        """What a decorator's function holds, which has the name of what it decorates (``functools.wraps``)."""
        name, module = getattr(obj, "__qualname__", None), getattr(obj, "__module__", None)
        if not isinstance(obj, _NAMED) or not isinstance(name, str) or module not in sys.modules:
            return None
        outer = walk(sys.modules[module], name)
        cells = outer.__closure__ or () if type(outer) is types.FunctionType else ()
        held = [getattr(cell, "cell_contents", None) for cell in cells]
        return next((["cell", self.ref(outer), at] for at, each in enumerate(held) if each is obj), None)

    def _cached(self, obj: Any) -> list[Any] | None:
        """A function of ``typing`` behind a cache: from Python 3.12 on a dict has it by the function."""
        inner = getattr(obj, "__wrapped__", None)
        if type(obj) is not functools._lru_cache_wrapper or cached_form(inner) is not obj:
            return None
        return ["cached", self.ref(inner)]

    def _part(self, obj: Any) -> list[Any] | None:
        """The function of a property, a class method or a static method."""
        if type(obj) is not types.FunctionType or "." not in obj.__qualname__ or obj.__module__ not in sys.modules:
            return None
        above, _, name = obj.__qualname__.rpartition(".")
        cls = walk(sys.modules[obj.__module__], above)
        raw = cls.__dict__.get(name) if isinstance(cls, type) else None
        for part in ("fget", "fset", "fdel", "__func__", "func"):
            if raw is not None and getattr(raw, part, None) is obj:
                return ["of", self.ref(raw, place=["in", self.ref(cls), name]), part]
        return None

    def _of_type(self, obj: Any) -> list[Any] | None:
        node = self.types.get(id(obj)) if isinstance(obj, type) else None
        return None if node is None else ["type", node]


def cached_form(function: Any) -> Any:
    """What ``typing`` calls in the place of one of its functions; None if it keeps nothing for it."""
    caches = getattr(typing, "_caches", {})
    return caches.get(function) if type(function) is types.FunctionType else None


def _fact(obj: Any, deep: bool, of_library: bool) -> Any:
    try:
        return fact_of(obj, deep=deep)
    except NotPortable:
        if of_library and is_library_class(type(obj)):
            return instance_fact(obj)  # where the library keeps it; what is read of it is guarded
        raise


_NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.MethodDescriptorType, types.WrapperDescriptorType,
          functools._lru_cache_wrapper)  # fmt: skip
#: Places that say all.
_BY_THEMSELVES = frozenset(("module", "dict", "globals", "builtins", "partial", "operator", "keeper", "limits",
                            "made"))


def _described(obj: Any) -> str:
    name = getattr(obj, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(obj, '__module__', '?')}.{name}"
    return f"an object of type {type(obj).__name__}"


def _path(code: types.CodeType, wanted: types.CodeType) -> list[int] | None:
    for index, const in enumerate(code.co_consts):
        if const is wanted:
            return [index]
        if isinstance(const, types.CodeType) and (below := _path(const, wanted)) is not None:
            return [index, *below]
    return None


def _kept(obj: Any) -> list[Any] | None:
    """The place of a container that one of torch's or Python's modules keeps."""
    if not isinstance(obj, (dict, list, set)):
        return None
    for name in _KEEPERS:
        module = sys.modules.get(name)
        for attribute, held in vars(module).items() if module is not None else ():
            if held is obj:
                return ["keeper", name, attribute]
    return None
