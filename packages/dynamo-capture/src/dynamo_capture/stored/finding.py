"""The objects that a stored program names, as this process has them; what was said of each is checked.

Nothing is imported for being named but modules of this package, torch's and Python's own: a program that this process
has not loaded is not there.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.float_guards import entry_of, item_of
from dynamo_capture.rules import is_library_name
from dynamo_capture.stored.facts import fact_of, instance_fact
from dynamo_capture.stored.names import cached_form, walk
from dynamo_capture.stored.plain import NotPlain, unpacked
from prims.artefact import NotPortable

if TYPE_CHECKING:
    from dynamo_capture.request import FrameRequest

__all__ = ["Finder", "Missed"]

_ABSENT = object()


class Missed(Exception):
    """A stored program does not serve here.

    Args:
        field: what is different: ``"code"``, ``"class"``, ``"guard"`` and the like.
        text: which one, and how.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field = field
        self.text = text


class Finder:
    """Finds what the table ``refs`` of a program says, for one frame.

    Args:
        request: the frame.
        refs: rows of place and fact.
    """

    def __init__(self, request: FrameRequest, refs: Sequence[Any]) -> None:
        self.request = request
        self.refs = refs
        self._found: dict[int, Any] = {}
        self._nodes: dict[int, Any] = {}
        #: By a node's number, how it is reached: (method, arguments).
        self.steps: dict[int, tuple[str, tuple[Any, ...]]] = {}

    def unpack(self, data: Any) -> Any:
        """The value of JSON that :meth:`Namer.pack` wrote.

        Raises:
            Missed: an object in it is another here, or not there.
        """
        return unpacked(data, self._reference)

    def _reference(self, data: dict[str, Any]) -> Any:
        if data.keys() != {"r"}:
            raise NotPlain
        return self.obj(data["r"])

    def obj(self, number: int) -> Any:
        """The object of a row.

        Raises:
            Missed: another is there, or none.
        """
        found = self._found.get(number, _ABSENT)
        if found is _ABSENT:
            row = self.refs[number]
            found = self._at(row[0])
            if found is _ABSENT:
                raise Missed("name", f"there is no {self._text(row[0])}")
            if row[1] is not None:
                self.compare(found, row[1], self._text(row[0]), deep=len(row) > 2 and row[2])
            self._found[number] = found
        return found

    def compare(self, found: Any, fact: Any, text: str, *, deep: bool = False) -> None:
        """Check what was said of an object.

        Raises:
            Missed: something else holds.
        """
        if isinstance(fact, list) and fact and fact[0] == "instance":
            now: Any = instance_fact(found)
        else:
            try:
                now = fact_of(found, deep=deep)
            except NotPortable as error:
                raise Missed("object", f"{text} is {error}") from None
        if now != fact:
            raise Missed(_field(fact, now), f"{text}{_own_name(found, text)} is another")

    def _text(self, place: list[Any]) -> str:
        """A place for people."""
        kind, *rest = place
        if kind == "attr":
            return f"{rest[0]}.{rest[1]}"
        if kind in ("in", "of"):
            owner = self._found.get(rest[0])
            return f"{getattr(owner, '__qualname__', type(owner).__name__)}.{rest[1]}"
        if kind in ("node", "type"):
            return self._path(rest[0])
        return " ".join(str(part) for part in rest)

    def _path(self, node: int) -> str:
        method, args = self.steps.get(node, ("?", ()))
        if method in _ROOTS:
            shown = [arg if isinstance(arg, str) else getattr(arg, "__name__", None) for arg in args]
            return next((text for text in reversed(shown) if text is not None), method)
        key = ".".join(str(getattr(arg, "__name__", arg)) for arg in args[1:])
        return f"{self._path(args[0]) if args else '?'}.{key or method}"

    # --- places -------------------------------------------------------------------------------------------------

    def _at(self, place: list[Any]) -> Any:
        kind, *rest = place
        try:
            return getattr(self, f"_at_{kind}")(*rest)
        except (KeyError, AttributeError, IndexError, TypeError):
            return _ABSENT

    def _at_module(self, name: str) -> Any:
        module = sys.modules.get(name)
        if module is None and (is_library_name(name) or name.partition(".")[0] == "dynamo_capture"):
            try:
                module = importlib.import_module(name)
            except ImportError:
                return _ABSENT
        return _ABSENT if module is None else module

    def _at_attr(self, module: str, name: str) -> Any:
        home = self._at_module(module)
        found = None if home is _ABSENT else walk(home, name)
        return _ABSENT if found is None else found

    def _at_dict(self, module: str) -> Any:
        return vars(self._at_module(module))

    def _at_keeper(self, module: str, name: str) -> Any:
        found = vars(self._at_module(module))[name]
        return found if isinstance(found, (dict, list, set)) else _ABSENT

    def _at_in(self, cls: int, name: str) -> Any:
        return self.obj(cls).__dict__[name]

    def _at_of(self, owner: int, name: str) -> Any:
        return getattr(self.obj(owner), name)

    def _at_cell(self, fn: int, index: int) -> Any:
        return self.obj(fn).__closure__[index].cell_contents

    def _at_cached(self, fn: int) -> Any:
        found = cached_form(self.obj(fn))
        return _ABSENT if found is None else found

    def _at_node(self, node: int) -> Any:
        return self.value(node)

    def _at_type(self, node: int) -> Any:
        return type(self.value(node))

    def _at_nested(self, path: list[int]) -> Any:
        code: Any = self.request.code
        for index in path:
            code = code.co_consts[index]
        return code if isinstance(code, types.CodeType) else _ABSENT

    def _at_partial(self, fn: int, args: Any, kwargs: Any) -> Any:
        return functools.partial(self.obj(fn), *self.unpack(args), **self.unpack(kwargs))

    def _at_operator(self, name: str) -> Any:
        return operator.attrgetter(name)(torch.ops)

    def _at_limits(self, cls: int, dtype: Any) -> Any:
        kind = self.obj(cls)
        return kind(self.unpack(dtype)) if kind in (torch.finfo, torch.iinfo) else _ABSENT

    def _at_made(self, fn: int, args: Any) -> Any:
        return self.obj(fn)(*self.unpack(args))

    def _at_globals(self) -> Any:
        return self.request.globals

    def _at_builtins(self) -> Any:
        return self.request.builtins

    # --- where paths of the frame lead --------------------------------------------------------------------------

    def value(self, node: int) -> Any:
        """Where the path to a node leads in this frame. (The guards themselves are evaluated natively.)

        Raises:
            Missed: it leads nowhere.
        """
        found = self._nodes.get(node, _ABSENT)
        if found is _ABSENT:
            method, args = self.steps[node]
            try:
                found = getattr(self, f"_step_{method}", self._child)(*args) if method in _ROOTS else self._child(
                    method, *args
                )
            except Missed:
                raise
            except Exception as error:
                raise Missed("guard", f"a path of the frame leads nowhere ({type(error).__name__})") from None
            self._nodes[node] = found
        return found

    def _step_local(self, index: int, name: str) -> Any:
        return self.request.args[name]

    def _step_closure(self, index: int, name: str) -> Any:
        return self.request.closure[index].cell_contents

    def _step_closure_cell(self, index: int, name: str) -> Any:
        return self.request.closure[index]

    def _step_global_(self, name: str) -> Any:
        return self.request.globals[name]

    def _step_globals_dict(self) -> Any:
        return self.request.globals

    def _step_builtin(self, name: str) -> Any:
        return self.request.builtins[name]

    def _step_constant(self, obj: Any, text: Any = None) -> Any:
        return obj

    def _child(self, method: str, parent: int, *key: Any) -> Any:
        return _CHILDREN[method](self.value(parent), *key)


_ROOTS = frozenset(("local", "closure", "closure_cell", "global_", "globals_dict", "builtin", "constant"))


def _own(obj: Any) -> Any:
    return type.__dict__["__dict__"].__get__(obj) if isinstance(obj, type) else object.__getattribute__(obj, "__dict__")


_CHILDREN: dict[str, Any] = {
    "attr": getattr,
    "dict_attr": lambda obj, name: _own(obj)[name],
    "instance_dict": _own,
    "item": item_of,
    "module_item": lambda obj, table, name: _own(obj)[table][name],
    "dict_key": lambda obj, place: entry_of(obj, place)[0],
    "dict_value": lambda obj, place: entry_of(obj, place)[1],
    "type_of": type,
    "func_closure": lambda obj, index: obj.__closure__[index].cell_contents,
    "func_closure_cell": lambda obj, index: obj.__closure__[index],
    "func_defaults": lambda obj: obj.__defaults__,
    "func_kwdefaults": lambda obj: obj.__kwdefaults__,
    "func_code": lambda obj: obj.__code__,
    "method_self": lambda obj: obj.__self__,
    "method_func": lambda obj: obj.__func__,
    "grad": lambda obj: obj.grad,
    "call": lambda obj, fn: fn(obj),
}


def _own_name(obj: Any, text: str) -> str:
    """What a function or class calls itself, where the path to it does not say."""
    name = getattr(obj, "__qualname__", None)
    module = getattr(obj, "__module__", None)
    named = isinstance(obj, (type, types.FunctionType)) and isinstance(name, str) and isinstance(module, str)
    return f" ({module}.{name})" if named and not f"{module}.{name}".endswith(text) else ""


def _field(before: Any, now: Any) -> str:
    """What kind of thing is different."""
    kind = before[0] if isinstance(before, list) and before else "object"
    if kind == "function" and isinstance(now, list) and now and now[0] == "function":
        return "code" if before[1] != now[1] else "globals" if before[2] != now[2] else "defaults"
    return {"function": "code", "c": "function", "value": "value", "code": "code"}.get(kind, str(kind))
