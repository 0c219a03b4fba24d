"""Tables that modules fill as they are imported.

An import can be broken off anywhere, by Ctrl-C, by a lack of memory or by the end of the program. Python forgets the
module then and executes it anew at the next import; what it had put into tables of other modules is still there. So a
name may be defined again by another execution of the module that defined it, and by nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

__all__ = ["Definitions", "define_operator", "import_operator", "keeps_leading_dimensions"]

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class Definitions(dict[str, V]):
    """Named definitions, in the order in which they were first made."""

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, dict[str, Any]] = {}

    def define(self, name: str, value: V, what: str) -> None:
        """Add a definition.

        Raises:
            ValueError: the name has one, made elsewhere or earlier in the same execution of its module.
        """
        home = _executing_module()
        before = self._homes.get(name)
        if name in self and (before is None or before is home or before.get("__name__") != home.get("__name__")):
            raise ValueError(f"{what} {name!r} is defined twice")
        self._homes[name] = home
        self[name] = value


def _executing_module() -> dict[str, Any]:
    """The globals of the module whose import makes a definition (of the definer itself, outside of any import)."""
    frame = first = sys._getframe(2)
    while frame.f_code.co_name != "<module>":
        if frame.f_back is None:
            return first.f_globals
        frame = frame.f_back
    return frame.f_globals


_LIBRARY = torch.library.Library("quintet", "FRAGMENT")
_KEY = "CompositeExplicitAutograd"
#: What runs an operator, by its name: the newest definition counts.
_IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {}


#: The modules that define operators of ours, of which a stored graph may name one before they are imported.
_HOMES = {
    "prims.lower.strided": "strided_from",
    "prims.ops.seeded": "probabilities random_normal random_uniform",
    "prims.spec.rules.creation": "linspace",
    "prims.spec.rules.indexing": "one_hot",
    "prims.spec.rules.recurrent": "lstm_layer recurrent",
    "prims.transfers": "at_device at_host to_device to_host",
    "aot_autograd.trace.checks": "linalg_checked",
    "aot_autograd.trace.unused": "computed_after",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def import_operator(name: str) -> None:
    """Have ``quintet::name`` defined, if it is one of ours and the package that defines it is there."""
    if name in _HOME and not hasattr(torch.ops.quintet, name):
        with suppress(ImportError):
            importlib.import_module(_HOME[name])


def define_operator(schema: str, implementation: F, tags: tuple[Any, ...] = ()) -> F:
    """Make ``quintet::name`` of a schema ``name(...) -> ...``, or give the one that is there another implementation."""
    name = schema.partition("(")[0]
    _IMPLEMENTATIONS[name] = implementation

    def run(*args: Any, **kwargs: Any) -> Any:
        return _IMPLEMENTATIONS[name](*args, **kwargs)

    if not hasattr(torch.ops.quintet, name):
        _LIBRARY.define(schema, tags=tags)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"quintet::{name}", _KEY):
        _LIBRARY.impl(name, run, _KEY)
    return implementation


def keeps_leading_dimensions(name: str) -> None:
    """Give ``vmap`` a rule for ``quintet::name``, whose first argument's dimensions come first in its result: a batch
    is one dimension more."""

    def batched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        levels, call = torch._C._functorch, getattr(torch.ops.quintet, name)
        level = levels.peek_interpreter_stack().level()
        inside, dim = levels._unwrap_batched(x, level)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)):
            made: torch.Tensor = call(inside if dim is None else inside.movedim(dim, 0), *rest)
        return made if dim is None else levels._add_batch_dim(made, 0, level)

    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"quintet::{name}", "FuncTorchBatched"):
        _LIBRARY.impl(name, batched, "FuncTorchBatched")
