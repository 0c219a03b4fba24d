"""Compiled functions: what capture returns, with a report, and copied and pickled like functions."""

from __future__ import annotations

import copyreg
import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from prims.report import Report

__all__ = ["compile_function", "is_compiled_function", "original_of"]

#: The types of the compiled functions that were made.
_types: set[type] = set()


def original_of(fn: Any) -> Any:
    """The function behind one that ``compile()`` made, or the method behind its method; every other object itself."""
    if isinstance(fn, types.MethodType):
        function = original_of(fn.__func__)
        return fn if function is fn.__func__ else types.MethodType(function, fn.__self__)
    return fn.__wrapped__ if _settings_of(fn) is not None else fn


def is_compiled_function(fn: Any) -> bool:
    """Whether ``compile()`` made a function."""
    return _settings_of(fn) is not None


def _settings_of(fn: Any) -> dict[str, Any] | None:
    """The arguments of ``compile()`` of a function that it made; None for all other objects, which are not asked.

    ``functools.wraps`` copies attributes to functions that are not compiled ones, so that a name is no proof.
    """
    return vars(fn).get("_quintet_settings") if any(type(fn) is cls for cls in _types) else None


def compile_function(
    fn: Callable[..., Any],
    optimize: Callable[[Callable[..., Any]], Callable[..., Any]],
    settings: dict[str, Any],
    report: Report,
) -> Any:
    """The compiled counterpart of a function, method or other callable.

    Args:
        optimize: capture's entry; may return its argument where nothing can be compiled.
        settings: ``compile()``'s keyword arguments, for copies and pickles.
    """
    compiled: Any = optimize(_with_code(fn))
    if isinstance(compiled, (types.FunctionType, types.MethodType)):
        compiled = _EagerFunction(compiled)
    compiled.__wrapped__ = fn
    compiled._quintet_settings = settings
    compiled.report = lambda: report
    _types.add(type(compiled))
    copyreg.pickle(type(compiled), _reduce)  # type: ignore[arg-type]
    return compiled


class _EagerFunction:
    """A function that could not be compiled here, with a place for its report. Binds as functions do."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _with_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn``, or a Python function that calls it, so that there is bytecode to capture."""
    if isinstance(fn, (types.FunctionType, types.MethodType)) or _is_disabled(fn):
        return fn
    call = None if isinstance(fn, type) else _class_lookup(type(fn), "__call__")
    if isinstance(call, types.FunctionType):
        return types.MethodType(call, fn)

    def call_it(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    if isinstance(fn, type):
        return functools.update_wrapper(call_it, fn, updated=())  # a class's attributes are not a function's
    getters = (_class_lookup(type(fn), "__getattr__"), _class_lookup(type(fn), "__getattribute__"))
    if any(isinstance(getter, types.FunctionType) for getter in getters):
        return call_it  # an object that answers any question would give a name that is none
    try:
        return functools.update_wrapper(call_it, fn)
    except (AttributeError, TypeError):
        return call_it


def _is_disabled(fn: Any) -> bool:
    capture = sys.modules.get("dynamo_capture")  # whose disable() made it, if it is one
    return capture is not None and capture.is_disabled(fn)


def _class_lookup(cls: type, name: str) -> Any:
    """The raw attribute that a class or a base defines, or None."""
    return next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)


def _reduce(compiled: Any) -> Any:
    """As a function, by its name where that leads to it; else as the original and the settings to compile it anew."""
    settings = _settings_of(compiled)
    if settings is None:
        raise TypeError(f"cannot pickle {compiled!r}")
    module, name = compiled.__module__, compiled.__qualname__
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (AttributeError, ImportError, ValueError):
        found = None
    if found is compiled:
        return name
    return _rebuild, (compiled.__wrapped__, settings)


def _rebuild(fn: Callable[..., Any], settings: dict[str, Any]) -> Any:
    from compile_api.compile import compile

    return compile(fn, **settings)
