"""What a backward reads that may be another thing when it runs.

Eager runs a backward after the region: what it reads of the program's state (a global variable, a closure's cell, an
attribute of a class) is what it is then. A captured backward has what it was at capture, which the region's guards
compare when the region runs, and nobody after that. So each such read is noted (:class:`LaterReads`):

- of what does not change itself (a number, a text, a function, a class, a module, a table of numbers and texts) the
  captured backward keeps where it was read. When it runs it looks there once more (:class:`StillThere`), and leaves the
  call to the program's own backward where it finds something else;
- of all else that exists outside (an object, a tensor) nobody knows when it changes, or what of it matters: the region
  ends before the call, which runs eagerly. So it is where a function of the module sets the name anew;
- what the region itself has made may change until the region ends, and after that if it is known outside: then the
  region ends before the call too. So it does where the region sets anew what the backward has read.

What the forward has read, and has left in the context, is no such read. Of libraries nothing changes.
"""

from __future__ import annotations

import enum
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_fixed_file, is_library_class, is_library_name, is_set_anew, library_of
from dynamo_capture.triton_ops import is_triton_kernel
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import Held
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue, is_numpy_scalar
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.functions import CellValue, FunctionValue
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["LaterReads", "StillThere", "changed_since"]

_OF_C = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
#: What does not change itself, as long as it is the same object.
_FIXED = (
    *CONST_TYPES, *_OF_C, types.FunctionType, types.ModuleType, types.GenericAlias, type, enum.Enum, staticmethod,
    classmethod, property, torch.finfo, torch.iinfo, re.Pattern,
)  # fmt: skip
_TABLES = (tuple, list, dict, set, frozenset)
#: Of a table that is larger nobody compares the whole in each backward pass.
_LARGEST = 256
_OF_NUMPY = frozenset(("ufunc", "_ArrayFunctionDispatcher"))
_ABSENT = object()


class _Read(NamedTuple):
    """One read: ``read(*where)`` gave ``found``, whose content was ``told`` if it is a table."""

    read: Callable[..., Any]
    where: tuple[Any, ...]
    found: Any
    told: Any
    name: str


class StillThere:
    """Whether what a captured backward has read is still there: called in each backward pass.

    ``str`` of it says what is not.
    """

    __slots__ = ("_reads",)

    def __init__(self, reads: tuple[_Read, ...]) -> None:
        self._reads = reads

    def __call__(self) -> bool:
        for read, where, found, told, _ in self._reads:
            now = read(*where)
            if now is not found and not _same(now, found) or told is not None and not _same(now, told):
                return False
        return True

    def __str__(self) -> str:
        names = [name for name, one in ((each.name, StillThere((each,))) for each in self._reads) if not one()]
        return f"{' and '.join(names)}, which the backward of an autograd function reads, changed after the forward"


def _same(left: Any, right: Any) -> bool:
    """Whether two objects that do not change are the same to whoever reads them."""
    cls = type(left)
    if cls is not type(right):
        return False
    if cls is float:
        return math.copysign(1, left) == math.copysign(1, right) and (left == right or left != left and right != right)
    if cls is complex:
        return _same(left.real, right.real) and _same(left.imag, right.imag)
    if cls in (tuple, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if cls is dict:
        return _same(list(left.items()), list(right.items()))
    if cls in (set, frozenset):
        return _same(list(left), list(right))
    return left is right or cls in CONST_TYPES and bool(left == right)


def _copy(obj: Any) -> Any:
    """The table as it is now; what is no table is itself."""
    cls = type(obj)
    if cls is dict:
        return {key: _copy(value) for key, value in obj.items()}
    return cls(map(_copy, obj)) if cls in _TABLES else obj


def _items(obj: Any) -> Iterator[Any]:
    yield obj
    if type(obj) in _TABLES:
        for each in (*obj, *obj.values()) if type(obj) is dict else obj:
            yield from _items(each)


def _told(obj: Any) -> Any:
    """What is compared beside the identity: a table's content. ``_ABSENT`` where nobody can tell that it changes."""
    for count, each in enumerate(_items(obj)):
        if count > _LARGEST or not (_is_fixed(each) or type(each) in _TABLES):
            return _ABSENT
    return _copy(obj) if type(obj) in _TABLES else None


def _is_fixed(obj: Any) -> bool:
    """Whether it does not change itself, as kernels and names of Triton, and numbers and functions of NumPy do not."""
    if isinstance(obj, _FIXED) or is_triton_kernel(obj) or is_numpy_scalar(obj):
        return True
    module = type(obj).__module__
    return module.partition(".")[0] == "triton" or module == "numpy" and type(obj).__name__ in _OF_NUMPY


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


class LaterReads:
    """Notes what the backward that is being captured reads.

    Args:
        what: the backward.
        outer: of a backward within another's, that of the other.
    """

    def __init__(self, tx: Capture, what: str, outer: LaterReads | None) -> None:
        self._tx = tx
        self._what = what
        self._outer = outer
        self._reads: dict[Any, _Read] = {}
        self._made: list[tuple[Value, list[Any]]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._fixed: list[tuple[Any, str]] = []

    def still(self) -> StillThere | None:
        """What tells in a backward pass whether all is as it was; None where nothing can be another."""
        return StillThere(tuple(self._reads.values())) if self._reads else None

    # --- reads ------------------------------------------------------------------------------------------------------

    def of_global(self, globals_: dict[str, Any], name: str, value: Value, builtin: bool) -> None:
        """A global name, which may be a builtin's where there is none."""
        if library_of(globals_) is not None:
            return
        found = _ABSENT if builtin else self._object(name, value, globals_.get(name, _ABSENT))
        if found is not _ABSENT and is_set_anew(globals_, name):
            raise self._brk(f"the global variable {name!r}, which a function sets anew")
        self._globals.append((globals_, name, self._tx.side.global_value(globals_, name)))
        self._note(globals_.get, (name, _ABSENT), found, f"the global variable {name!r}", (id(globals_), name))

    def of_cell(self, name: str, cell: CellValue, value: Value) -> None:
        """The content of a closure's cell."""
        if cell.cell is None or self._tx.side.is_mutated(cell):
            self._of_made(cell)
            self.of_context(value, f"the variable {name!r}")
            return
        found = self._object(name, value, _content(cell.cell))
        self._made.append((cell, _inside(cell)))
        self._note(_content, (cell.cell,), found, f"the variable {name!r}", (id(cell.cell),))

    def of_class(self, owner: type, name: str, found: Any) -> None:
        """An attribute that a class has."""
        if is_library_class(owner) or id(owner) in self._tx.made_classes:
            return
        text = f"{owner.__qualname__}.{name}"
        if type(found) is Held:
            raise self._brk(f"{text}, which is set here")
        self._fixed.append((owner, name))
        self._note(owner.__dict__.get, (name, _ABSENT), found, text, (id(owner), name))

    def of_module(self, module: types.ModuleType, name: str, value: Value) -> None:
        """An attribute of a module."""
        if not is_library_name(module.__name__):
            self.of_global(module.__dict__, name, value, False)

    def of_function(self, fn: types.FunctionType | None, names: tuple[str, ...]) -> None:
        """Attributes of a function; of one that is called, its code and defaults."""
        if fn is not None and not is_fixed_file(fn.__code__.co_filename):
            for name in names:
                if self._tx.side.found_on(fn, name) is not None:
                    raise self._brk(f"{fn.__qualname__}.{name}, which is set here")
                self._fixed.append((fn, name))
                found = getattr(fn, name)
                self._note(getattr, (fn, name, _ABSENT), found, f"{fn.__qualname__}.{name}", (id(fn), name))

    def of_context(self, value: Value, text: str) -> None:
        """What the forward has left in the context, or the region in a variable."""
        value = value.realize()
        if isinstance(value, TupleValue):
            for item in value.items:
                self.of_context(item, text)
        elif value.mutable and not isinstance(value, (TensorValue, FunctionValue)):
            if value.source is not None or getattr(value, "obj", None) is not None:
                raise self._brk(f"{text}, {value.describe()}")
            self._of_made(value)
            for child in _held(value):
                self.of_context(child, text)

    def of_object(self, obj: Any, source: Any) -> None:
        """An object that is looked at for the first time, on whatever way."""
        known = any(obj is read.found for read in self._reads.values())
        if not known and not self._tx.frames[-1].decoded.in_library and _told(obj) is _ABSENT:
            raise self._brk(f"{source}, an object of type {type(obj).__name__}")

    # --- what becomes of them ---------------------------------------------------------------------------------------

    def may_change(self, needed: dict[int, Value]) -> bool:
        """Whether the region has changed something of it since, or somebody may who knows it when the region has run.

        Args:
            needed: what the code needs then, by identity.
        """
        side = self._tx.side
        for value, inside in self._made:
            now = _inside(value)
            same = len(now) == len(inside) and all(one is other for one, other in zip(now, inside, strict=True))
            if not same or value.source is None and id(value) in needed:
                return True
        if any(side.global_value(globals_, name) is not value for globals_, name, value in self._globals):
            return True
        return any(side.found_on(obj, name) is not None for obj, name in self._fixed)

    def _object(self, name: str, value: Value, outside: Any) -> Any:
        """What will be there: an object that exists, or a constant that the region puts there."""
        value = value.realize()
        if isinstance(value, (SymValue, TensorValue)):
            kind = "number" if isinstance(value, SymValue) else "tensor"
            raise self._brk(f"the {kind} {name!r}")
        if isinstance(value, ConstantValue):
            return value.value
        if outside is _ABSENT or self._tx.side.is_mutated(value):
            raise self._brk(f"{name!r}, which is made here")
        return outside

    def _of_made(self, value: Value) -> None:
        self._made.append((value, _inside(value)))
        if self._outer is not None:
            self._outer._of_made(value)

    def _note(self, read: Callable[..., Any], where: tuple[Any, ...], found: Any, name: str, key: Any) -> None:
        if _is_of_library(found):
            return
        told = None if found is _ABSENT else _told(found)
        if told is _ABSENT:
            raise self._brk(f"{name}, an object of type {type(found).__name__}")
        if key not in self._reads:
            self._reads[key] = _Read(read, where, found, told, name)
        if self._outer is not None:
            self._outer._note(read, where, found, name, key)

    def _brk(self, text: str) -> GraphBreak:
        return GraphBreak("QB12", f"{self._what}, whose backward reads what may change until its call: {text}")


def _is_of_library(obj: Any) -> bool:
    """Whether it is a module, a class or a function of a library, for which nobody puts another in its place."""
    if isinstance(obj, types.ModuleType):
        return is_library_name(obj.__name__)
    if isinstance(obj, type):
        return is_library_class(obj)
    if isinstance(obj, types.FunctionType):
        return is_fixed_file(obj.__code__.co_filename)
    return isinstance(obj, _OF_C) and is_library_name(getattr(obj, "__module__", None))


def changed_since(tx: Capture, built: Any) -> tuple[int, GraphBreak] | None:
    """The step at which the region ends, and why, where a captured backward reads what the region changes then."""
    if not tx.backwards:
        return None
    needed = {id(value): value for value in built}
    found = [(step, brk) for step, brk, reads in tx.backwards if reads.may_change(needed)]
    return min(found, key=lambda end: end[0], default=None)


def _held(value: Value) -> list[Value]:
    attrs = getattr(value, "attrs", None) or {}
    return [*value.children(), *(each for each in attrs.values() if isinstance(each, Value))]


def _inside(value: Value) -> list[Any]:
    """What a value of the region holds."""
    return [value.content] if isinstance(value, CellValue) else _held(value)
