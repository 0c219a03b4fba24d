"""Quintet behind PyTorch's own capture: ``torch.compile(model, backend="quintet")``.

PyTorch finds :func:`quintet` by the entry point ``torch_dynamo_backends`` of this package. What it captures is captured
once more by its first call, with real inputs: of the code of a graph that is quick, and everything behind it (options,
guards on sizes, reports, caches) is as under :func:`compile_api.compile`.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx

from compile_api.compile import compile
from prims.report import Report

__all__ = ["backend_reports", "quintet"]

_COMPILED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def quintet(
    gm: torch.fx.GraphModule, example_inputs: list[Any], *, mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The backend that ``torch.compile(backend="quintet")`` calls, once for each graph of its capture.

    Args:
        gm: the graph.
        example_inputs: not used: what it is compiled for is asked of the first call.
        mode, options: those of :func:`compile_api.compile`, handed on by ``torch.compile``.

    Raises:
        UserError: a mode or option that there is not.
    """
    force = getattr(gm, "real_recompile", None)  # its code is not written before it is asked for
    if force is not None:
        force()
    compiled: Any = compile(gm, mode=mode, options=None if options is None else dict(options))
    _COMPILED[next(_NUMBERS)] = compiled

    def run(*args: Any) -> Any:  # PyTorch takes a module apart, and calls what it is made of
        return compiled(*args)

    return run


def backend_reports() -> list[Report]:
    """The reports of all graphs that ``torch.compile(backend="quintet")`` has given and still has, the oldest first."""
    return [compiled.report() for _, compiled in sorted(_COMPILED.items())]
