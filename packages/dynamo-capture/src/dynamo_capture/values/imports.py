"""Imports at run time: what ``import``, ``__import__`` and ``importlib.import_module`` give.

A module that is imported already is a constant, and that ``sys.modules`` still has it is guarded. One that is not is
imported now, where that is what eager does too: nothing that the region has done so far is still to be replayed.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_name
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["import_name"]

_PARAMETERS = ("name", "globals", "locals", "fromlist", "level")


def import_name(tx: Capture, name: str, globals_: dict[str, Any], fromlist: Any, level: int) -> Value:
    """``__import__(name, globals_, None, fromlist, level)``, as the ``import`` statement calls it."""
    tx.guards.is_object(Source("item", Source("constant", None, (vars(builtins),)), "__import__"), _IMPORT)
    if builtins.__import__ is not _IMPORT:
        raise GraphBreak("QB15", f"import of {name} where __import__ is another")
    module = _imported(tx, name, level, lambda: _IMPORT(name, globals_, None, fromlist, level))
    for each in dict.fromkeys((name, getattr(module, "__name__", name))):
        _guard_loaded(tx, each)
    return tx.from_python(module)


_IMPORT = builtins.__import__


def _guard_loaded(tx: Capture, name: str) -> None:
    if name in sys.modules and not is_library_name(name):
        tx.guards.is_object(Source("constant", None, (sys.modules,)).item(name), sys.modules[name])


def _imported(tx: Capture, name: str, level: int, load: Callable[[], Any]) -> Any:
    """What an import gives; the module's own code runs as it does outside of a capture.

    Raises:
        GraphBreak: it fails, or what the region has done so far would come after it.
    """
    if level == 0 and name not in sys.modules and not is_library_name(name):
        try:
            is_there = importlib.util.find_spec(name.partition(".")[0]) is not None
        except (ImportError, ValueError):
            is_there = False
        if tx.side or not is_there:
            raise GraphBreak("QB15", f"import of {name}")
    try:
        with _disable_current_modes():
            return load()
    except Exception as error:
        raise GraphBreak("QB15", f"import of {name}, which fails: {error}") from None


@builtin(builtins.__import__)
def _dunder_import(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    if "name" not in given or len(args) > len(_PARAMETERS) or given.keys() - set(_PARAMETERS):
        raise GraphBreak("QB07", "__import__() with these arguments")
    name = given["name"].realize().const()
    level = given["level"].realize().const() if "level" in given else 0
    if type(name) is not str or level != 0:
        raise GraphBreak("QB15", "a relative import by __import__()")
    fromlist = () if "fromlist" not in given else tuple(v.realize().const() for v in given["fromlist"].unpack(tx))
    return import_name(tx, name, tx.frames[-1].globals, fromlist, 0)


@special(importlib.import_module)
def _import_module(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("name", "package"), args, strict=False)) | kwargs
    name = given["name"].realize().const() if "name" in given else None
    if type(name) is not str or name.startswith(".") or given.keys() - {"name", "package"}:
        raise GraphBreak("QB15", "importlib.import_module() of a relative name")
    module = _imported(tx, name, 0, lambda: importlib.import_module(name))
    _guard_loaded(tx, name)
    return tx.from_python(module)
