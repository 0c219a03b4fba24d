"""``compile_(module)``: the module itself runs compiled code, rather than an object made from it."""

from __future__ import annotations

import types
from typing import Any, TypeVar

import torch

from compile_api.compile import compile
from compile_api.function import is_compiled_function
from compile_api.module import CompiledModule, compiled_in_place, put_in_place
from prims.errors import UserError
from prims.report import Report

__all__ = ["compile_", "report_of"]

M = TypeVar("M", bound=torch.nn.Module)


def compile_(module: M, **settings: Any) -> M:
    """Compile a module in place: calls of it run compiled code from now on. Returns the module.

    It is what ``torch.nn.Module.compile()`` is to ``torch.compile``. Its class, attributes and ``state_dict()`` stay as
    they are; copies and pickles of it are not compiled. :func:`report_of` gives the report.

    Args:
        settings: the arguments of :func:`compile_api.compile`; ``disable=True`` undoes it.

    Raises:
        UserError: no module; arguments that ``compile()`` refuses.
    """
    if not isinstance(module, torch.nn.Module) or isinstance(module, CompiledModule):
        raise UserError(
            f"compile_() got a {type(module).__name__}, which "
            + ("is compiled already" if isinstance(module, CompiledModule) else "is no module"),
            todo="Give a torch.nn.Module; compile() takes functions and other callables.",
        )
    compiled = compile(module, **settings)
    put_in_place(module, compiled)
    return module


def report_of(compiled: Any) -> Report:
    """The report of what ``compile()`` returned, or of a module that ``compile_()`` has compiled.

    Raises:
        UserError: it is not compiled.
    """
    function: Any = compiled.__func__ if isinstance(compiled, types.MethodType) else compiled
    if isinstance(compiled, CompiledModule):
        return compiled.report()
    if isinstance(compiled, torch.nn.Module) and (behind := compiled_in_place(compiled)) is not None:
        return behind.report()
    if is_compiled_function(function):
        return function.report()  # type: ignore[no-any-return]
    raise UserError(f"{compiled!r:.200} is not compiled", todo="Give what compile() returned.")
