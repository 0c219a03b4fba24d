"""What is said of an object that a stored program rests on: the same text in every process in which it is the same.

An object is found by its place (a name in a module, an attribute of a class, where a path from the frame leads), and a
place may hold something else the next time. A fact is what capture relied on when it looked at the object: for a
function its code and where its globals are; for a class its name, as all that capture reads of a program's class is
guarded; for what C code made its kind and its names, as the versions of Python and torch are part of the key.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import sys
import types
from typing import Any

import torch

from dynamo_capture.codemap import CodeMap
from dynamo_capture.rules import is_fixed_file, is_library_class, is_library_name, module_of_globals
from dynamo_capture.stored.plain import NotPlain, packed
from dynamo_capture.wrappers import is_disabled
from prims.artefact import NotPortable

__all__ = ["C_KINDS", "code_digest", "fact_of", "instance_fact", "is_of_numpy", "is_type_form", "of_class"]

C_KINDS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType,
)  # fmt: skip
_MAX_DEPTH = 12
_HEAP_TYPE = 1 << 9
_digests: CodeMap[str] = CodeMap()
#: The descriptor of a named tuple's field.
_NAMED_FIELD = type(collections.namedtuple("_Named", "field").field)  # type: ignore[attr-defined]


def code_digest(code: types.CodeType) -> str:
    """What a code object does, with the code inside it: not where its text stands.

    Raises:
        NotPortable: a constant of it is no plain value.
    """
    known = _digests.get(code)
    if known is None:
        held = hashlib.sha256(code.co_code)
        held.update(code.co_exceptiontable)
        parts = (
            code.co_name, code.co_qualname, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
            code.co_flags, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        )  # fmt: skip
        held.update(repr((*parts, [_const(const) for const in code.co_consts])).encode("utf-8", "surrogatepass"))
        known = _digests[code] = held.hexdigest()
    return known


def _const(const: Any) -> Any:
    if isinstance(const, types.CodeType):
        return ("code", code_digest(const))
    if type(const) is types.FunctionType and is_fixed_file(const.__code__.co_filename):
        return ("function", const.__module__, const.__qualname__)  # of this package, in a resume function
    try:
        return packed(const)
    except NotPlain:
        raise NotPortable(f"a constant of the code is a {type(const).__name__}") from None


def of_class(cls: type) -> list[Any]:
    """The fact of a class."""
    return ["class", cls.__module__, cls.__qualname__, is_library_class(cls)]


def instance_fact(obj: Any) -> list[Any]:
    """That it is an instance of a class."""
    return ["instance", type(obj).__module__, type(obj).__qualname__]


def fact_of(obj: Any, *, deep: bool = False, depth: int = 0) -> Any:
    """The fact of an object, as JSON.

    Args:
        deep: of a function, its defaults and the content of its closure too, which nothing else guards.

    Raises:
        NotPortable: nothing can be said of it that holds in another process.
    """
    if depth > _MAX_DEPTH:
        raise NotPortable("an object is nested too deeply")
    cls = type(obj)
    if is_disabled(obj):
        return ["disabled"]  # a graph ends before a call of it
    if cls is types.FunctionType:
        return _function(obj, deep, depth)
    if isinstance(obj, types.ModuleType):
        return ["module", obj.__name__]
    if isinstance(obj, type):
        return of_class(obj)
    if cls is types.CodeType:
        return ["code", code_digest(obj)]
    if isinstance(obj, C_KINDS) or is_of_numpy(obj):
        return _made_in_c(obj)
    if isinstance(obj, enum.Enum):
        return ["member", of_class(cls), obj._name_, *_content_of_member(obj, depth)]
    if isinstance(obj, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return ["operator", str(obj)]
    if is_type_form(obj):
        return ["form", cls.__qualname__, repr(obj)]
    inside = _INSIDE.get(cls)
    if inside is not None:
        parts = [getattr(obj, name) for name in inside]
        return [cls.__qualname__, *(fact_of(part, deep=deep, depth=depth + 1) for part in parts)]
    if cls is functools.partial:
        values = [obj.func, list(obj.args), dict(obj.keywords)]
        return ["partial", *(fact_of(part, deep=True, depth=depth + 1) for part in values)]
    if cls is functools._lru_cache_wrapper:
        return ["cached", obj.cache_parameters(), fact_of(obj.__wrapped__, deep=deep, depth=depth + 1)]
    if cls is _NAMED_FIELD:
        return ["field", obj.__reduce__()[1][0]]
    try:
        return ["value", packed(obj)]
    except NotPlain:
        pass
    if cls in (list, tuple):
        return [cls.__name__, *(fact_of(item, deep=True, depth=depth + 1) for item in obj)]
    if cls is dict:
        items = [(fact_of(k), fact_of(v, deep=True, depth=depth + 1)) for k, v in obj.items()]
        return ["dict", *([k, v] for k, v in items)]
    if cls.__flags__ & _HEAP_TYPE and is_library_class(cls) and cls.__mro__ == (cls, object) and not _state(obj):
        return instance_fact(obj)  # a mark that stands for itself
    raise NotPortable(f"a {cls.__module__}.{cls.__qualname__}, of which nothing is known that holds elsewhere")


def _content_of_member(member: enum.Enum, depth: int) -> list[Any]:
    """What a member of an enumeration is without anybody asking for its value: a number, a text, a set of flags."""
    of_data = type(member)._member_type_ is not object  # type: ignore[attr-defined]
    return [fact_of(member._value_, deep=True, depth=depth + 1)] if of_data or isinstance(member, enum.Flag) else []


def is_of_numpy(obj: Any) -> bool:
    """Whether it is one of NumPy's functions that are objects of its own kinds."""
    cls = type(obj)
    return cls.__module__ == "numpy" and cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher")


def _state(obj: Any) -> bool:
    """Whether an object holds anything."""
    return bool(getattr(obj, "__dict__", None)) or bool(getattr(type(obj), "__slots__", ()))


def is_type_form(obj: Any) -> bool:
    """Whether it is what an annotation says beside classes: ``int | None``, ``list[int]``, ``typing.Optional[int]``."""
    return isinstance(obj, (types.GenericAlias, types.UnionType)) or type(obj).__module__ == "typing"


#: Objects that are what their parts are.
_INSIDE: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    enum.property: ("fget", "fset", "fdel"),
    types.DynamicClassAttribute: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MethodType: ("__func__", "__self__"),
    functools.cached_property: ("func", "attrname"),
}


def _function(fn: types.FunctionType, deep: bool, depth: int) -> list[Any]:
    name = module_of_globals(fn.__globals__)
    said = ["function", code_digest(fn.__code__), name if name is not None else ["made"]]
    if deep:
        inner = [fn.__defaults__ and list(fn.__defaults__), fn.__kwdefaults__]
        said += [_deep(part, fn, depth) for part in inner]
        said.append([_deep(_content(cell), fn, depth) for cell in fn.__closure__ or ()])
    return said


def _deep(part: Any, fn: types.FunctionType, depth: int) -> Any:
    try:
        return fact_of(part, deep=True, depth=depth + 1)
    except NotPortable:
        if is_fixed_file(fn.__code__.co_filename) and is_library_name(fn.__module__):
            return ["of", type(part).__module__, type(part).__qualname__]  # the library's own
        raise


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _made_in_c(obj: Any) -> list[Any]:
    owner = getattr(obj, "__objclass__", None)
    if owner is None:
        owner = getattr(obj, "__self__", None)
    module = getattr(obj, "__module__", None)
    if isinstance(owner, type):
        place = [owner.__module__, owner.__qualname__]
        if not is_library_class(owner) and type(obj) not in (types.MemberDescriptorType, types.GetSetDescriptorType):
            raise NotPortable(f"{obj!r:.80}, of a library that is not in the key")
    elif owner is None or isinstance(owner, types.ModuleType):
        place = [owner.__name__ if owner is not None else ""]
        known = module is None or is_library_name(module) or module.partition(".")[0] in ("numpy", "dynamo_capture")
        if not known:
            raise NotPortable(f"the function {module}.{obj.__name__} in C, of a library that is not in the key")
    else:
        raise NotPortable(f"{obj!r:.80}, which is bound to an object")
    said = ["c", type(obj).__name__, obj.__name__, module if isinstance(module, str) else None, place]
    home = str(module or place[0]).partition(".")[0]
    return [*said, getattr(sys.modules.get("numpy"), "__version__", None)] if home == "numpy" else said
