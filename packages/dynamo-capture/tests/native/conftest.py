"""Loads the extension without importing the package, which would need torch."""

from __future__ import annotations

import gc
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest


def load_native() -> ModuleType:
    name = "dynamo_capture._native"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.find_spec("dynamo_capture")
    folders = list(found.submodule_search_locations or []) if found else []
    folders.append(str(Path(__file__).parents[2] / "src" / "dynamo_capture"))
    for folder in folders:
        path = Path(folder) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        if path.is_file():
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[name] = module
            return module
    raise ImportError(f"no built {name} in {folders}: run packages/dynamo-capture/hatch_build.py")


native = load_native()


class Tracer:
    """A context that traces the functions given to it and records what it was asked."""

    def __init__(self) -> None:
        self.plans: dict[CodeType, Callable[..., Any]] = {}
        self.actions: dict[CodeType, int] = {}
        self.filtered: list[str] = []
        self.translated: list[tuple[Any, ...]] = []
        self.context = native.Context(self.filter, self.translate)

    def trace(self, fn: Callable[..., Any], plan: Callable[..., Any]) -> None:
        """`plan(args, entries)` answers translate for `fn`."""
        self.plans[fn.__code__] = plan

    def replace(self, fn: Callable[..., Any], new: Callable[..., Any]) -> None:
        """Run `new`'s code instead of `fn`'s, whatever the arguments."""
        self.trace(fn, lambda args, entries: native.Entry(new.__code__))

    def filter(self, code: CodeType, globals: dict[str, Any]) -> int:
        self.filtered.append(code.co_name)
        if code in self.plans:
            return native.TRACE
        return self.actions.get(code, native.SKIP)

    def translate(self, code, func, args, globals, builtins, closure, entries):  # type: ignore[no-untyped-def]
        self.translated.append((code, func, args, globals, builtins, closure, entries))
        return self.plans[code](args, entries)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return native.activate(fn, self.context)(*args, **kwargs)


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    tracer = Tracer()
    yield tracer
    assert native.get_active() is None
    for code in tracer.plans:
        native.reset_code(code)
    gc.collect()


@pytest.fixture(name="native")
def native_fixture() -> ModuleType:
    return native
