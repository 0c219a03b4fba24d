"""``compile()``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compile_api.backends import Backend, make_backend
from compile_api.environment import unsupported_environment, unsupported_kind, warn_once
from compile_api.function import compile_function, original_of
from compile_api.modes import make_options
from compile_api.module import CompiledModule, compile_module
from compile_api.programs import DiskPrograms, programs_of
from compile_api.progress import watcher
from prims.eager import leave_to_eager
from prims.errors import UserError
from prims.forking import compiling
from prims.imports import forget_broken_imports
from prims.logs import show_logs
from prims.options import Options
from prims.report import Report

__all__ = ["compile"]


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or module. Nothing is compiled before the first call.

    Args:
        model: a function, method, callable object or ``torch.nn.Module``; without it, a decorator is returned.
        fullgraph: make a graph break an error that names the user's line.
        dynamic: True makes every size symbolic from the first call, False none ever, None those that change.
        backend: a name from :func:`compile_api.list_backends` or any ``f(gm, example_inputs) -> callable``.
        mode: ``"default"``, ``"reduce-overhead"``, ``"max-autotune"`` or ``"max-autotune-no-cudagraphs"``.
        options: names and values of :class:`compile_api.Options`; they win over the mode's.
        disable: return the model as it is.

    Returns:
        The compiled counterpart, with ``report()``. A module's shares the original's state and is an instance of
        its class.

    Raises:
        UserError: not callable; an unknown mode, backend or option.
        NotCompiled: nothing can be compiled here (an unsupported Python, say), under ``fullgraph``.
    """
    settings: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": dict(options) if isinstance(options, Mapping) else options,
        "disable": disable,
    }
    opts = make_options(fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options)
    show_logs(opts.logs)
    report = Report(progress=watcher(opts), asked=opts.policies)
    chosen = make_backend(backend, opts, report)
    if model is None:
        return functools.partial(compile, **settings)
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(compile(model.__func__, **settings))
    if not callable(model):
        raise UserError(
            f"compile() got {model!r} (of type {type(model).__name__}), which is not callable",
            todo="Give a function, a torch.nn.Module or another callable.",
        )
    if disable:
        return model
    model = model._orig_mod if isinstance(model, CompiledModule) else original_of(model)
    optimize = _optimizer(model, chosen, opts, report, programs_of(backend, opts, report))
    if isinstance(model, torch.nn.Module):
        return compile_module(model, optimize, settings, opts, report)
    return compile_function(model, optimize, settings, report)


def _optimizer(
    model: Any, backend: Backend, options: Options, report: Report, programs: DiskPrograms | None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Capture's entry for this call, or one that leaves functions alone where nothing can be compiled."""
    problem = unsupported_environment() or unsupported_kind(model)
    if problem is not None:
        leave_to_eager(report, options, "environment", problem, subject="call", quiet=True)
        warn_once(problem)  # not once for each function of the program
        return lambda fn: fn

    def optimize(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not (options.background and "dynamo_capture.frontend" in sys.modules):  # else nothing is to wait
            with compiling():
                forget_broken_imports()
                import dynamo_capture
        import dynamo_capture

        return dynamo_capture.optimize(fn, backend, options=options, report=report, programs=programs)

    return optimize
