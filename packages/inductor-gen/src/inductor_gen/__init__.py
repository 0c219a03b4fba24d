"""Fusing code generator: primitive graphs to C and Triton kernels.

``compile_graph`` takes a prim-dialect envelope (see :mod:`prims.ir`) and returns a callable of its flat inputs;
``claims`` names the aten operators that are to stay single nodes in it, ``get_ready`` starts early what takes time to
start, and ``free_memory`` gives back what is kept between calls.

What generates code is imported on first use: a process that loads stored graphs needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prims.artefact import register_loader
from prims.forking import compiling

if TYPE_CHECKING:
    from inductor_gen.compiled import CompiledGraph, Kernel, compile_graph, free_memory, get_ready
    from inductor_gen.device.claims import claims

__all__ = ["CompiledGraph", "Kernel", "claims", "compile_graph", "free_memory", "get_ready"]

__version__ = "0.1.0"

register_loader("inductor_gen.graph", "inductor_gen.runtime.stored:load")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'inductor_gen' has no attribute {name!r}")
    home = "device.claims" if name == "claims" else "compiled"
    with compiling():  # for a fork meanwhile
        globals()[name] = found = getattr(importlib.import_module(f"inductor_gen.{home}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
