"""The ``context_fn`` of a checkpoint, as ``create_selective_checkpoint_contexts`` makes it of a policy.

The policy is asked of every operator that runs, when the region's graph is traced under autograd, and not while it is
captured. So it is no part of a graph: it stays the program's own function, or is made of what the region made it of,
and everything that it can see is guarded to be as it is now. What may change behind it, or keeps a state from one
checkpoint to the next, is refused.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_fixed_file, is_library_class, is_library_name
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.functions import FunctionValue, PartialValue
from dynamo_capture.values.sets import SetValue
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["context_function"]


def context_function(tx: Capture, value: Value) -> Callable[[], Any]:
    """The ``context_fn`` as an object, for as long as its guards hold.

    Raises:
        GraphBreak: QB27, it sees what cannot be guarded.
    """
    pinned = _Pinned(tx)
    found: Callable[[], Any] = pinned.of(value)
    if pinned.keeps_state():
        raise GraphBreak("QB27", "its context_fn may change a list or set that outlives the checkpoint")
    return found


class _Pinned:
    """Objects of values, all that they can see guarded."""

    def __init__(self, tx: Capture) -> None:
        self.tx = tx
        self._made: dict[int, tuple[Any, Any]] = {}  # by what is asked for, which is kept beside it
        self._changes = self._holds = False  # is a method called that changes containers, is there one to change

    def keeps_state(self) -> bool:
        """May what was seen change a container that was there before?"""
        return self._changes and self._holds

    def of(self, value: Value) -> Any:
        value = value.realize()
        asked: Any = value.fn if isinstance(value, FunctionValue) and value.fn is not None else value
        known = self._made.get(id(asked))
        if known is not None:
            return known[1]
        made = self._object(value)
        self._made[id(asked)] = asked, made
        return made

    def _object(self, value: Value) -> Any:
        if isinstance(value, (ConstantValue, SymValue)):
            return value.const()  # a symbolic number is fixed here
        if isinstance(value, PartialValue):
            keywords = {name: self.of(each) for name, each in value.keywords.items()}
            return functools.partial(self.of(value.func), *map(self.of, value.args), **keywords)
        if isinstance(value, FunctionValue):
            return self._function(value)
        if isinstance(value, (ListValue, TupleValue, SetValue)) and value.pytype in (list, tuple, set, frozenset):
            self._holds |= value.pytype in (list, set)
            return value.pytype([self.of(each) for each in value.iterate(self.tx)])
        obj = self._fixed(value)
        if obj is not None:
            return obj
        raise GraphBreak("QB27", f"its context_fn sees {value.describe()}, which is not known to stay as it is")

    def _fixed(self, value: Value) -> Any:
        """An operator, or what a library has: a module, a class, a function."""
        try:
            obj = value.real()
        except GraphBreak:
            return None
        if isinstance(obj, types.ModuleType):
            return obj if is_library_name(obj.__name__) else None
        if isinstance(obj, type):
            return obj if is_library_class(obj) else None
        return obj if callable(obj) and is_library_name(type(obj).__module__) else None

    def _function(self, value: FunctionValue) -> Any:
        if value.fn is not None and is_fixed_file(value.code.co_filename):
            return value.fn
        self._changes |= any(not _CHANGING.isdisjoint(code.co_names) for code in _codes_in(value.code))
        if value.fn is not None:
            self._made[id(value.fn)] = value.fn, value.fn  # it may call itself
        defaults = tuple(map(self.of, value.default_values(self.tx)))
        keywords = {name: self.of(each) for name, each in value.keyword_defaults(self.tx).items()}
        contents = [cell.get(self.tx) for cell in value.cells(self.tx)]
        if None in contents:
            raise GraphBreak("QB27", f"its context_fn sees a variable of {value.qualname!r} that is not set yet")
        cells = tuple(types.CellType(self.of(each)) for each in contents)  # type: ignore[arg-type]
        for name in _globals_of(value.code):
            self.of(self.tx.load_global(value.globals, _builtins(self.tx, value), name))
        if value.fn is not None:
            return value.fn
        made = types.FunctionType(value.code, value.globals, value.name, defaults, cells)
        made.__kwdefaults__, made.__qualname__ = keywords or None, value.qualname
        return made


def _builtins(tx: Capture, function: FunctionValue) -> dict[str, Any]:
    found = function.globals.get("__builtins__", tx.request.builtins)
    return vars(found) if isinstance(found, types.ModuleType) else found


_CHANGING = frozenset(("add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "update"))


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes_in(const)


def _globals_of(code: types.CodeType) -> Iterator[str]:
    """The global names that a code object and those within it read; what sets a variable of others is refused."""
    for each in _codes_in(code):
        for instruction in dis.get_instructions(each):
            name = instruction.argval
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME") or (
                instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars
            ):
                raise GraphBreak("QB27", f"its context_fn sets {name!r}, which outlives the checkpoint")
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                yield name
