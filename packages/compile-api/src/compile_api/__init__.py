"""compile() for PyTorch: the Quintet stages composed into one line.

>>> import compile_api
>>> model = compile_api.compile(model)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compile_api.backends import list_backends, lookup_backend, register_backend
from compile_api.compile import compile
from compile_api.module import CompiledModule, strip_prefix
from prims import errors
from prims.errors import CompileWarning
from prims.logs import set_logs
from prims.options import Options
from prims.report import Report

if TYPE_CHECKING:
    from compile_api.deploy.contract import Dim
    from compile_api.deploy.export import export
    from compile_api.deploy.exported import Exported, load_exported
    from compile_api.deploy.package import Package, load_package, package

__version__ = "0.1.0"

__all__ = [
    "CompileWarning",
    "CompiledModule",
    "Dim",
    "Exported",
    "Options",
    "Package",
    "Report",
    "allow_in_graph",
    "bisect",
    "cache",
    "compare",
    "compile",
    "disable",
    "errors",
    "explain",
    "export",
    "export_graph",
    "graph_break",
    "is_compiling",
    "list_backends",
    "load_exported",
    "load_package",
    "lookup_backend",
    "mark_dynamic",
    "minify",
    "package",
    "register_backend",
    "reset",
    "set_logs",
    "strip_prefix",
    "supports_dynamic_shapes",
]

#: Offered here for convenience; they belong to capture.
_FROM_CAPTURE = frozenset(
    ("allow_in_graph", "disable", "explain", "export_graph", "graph_break", "is_compiling", "mark_dynamic", "reset",
     "supports_dynamic_shapes")
)  # fmt: skip


#: What programs ahead of time need, and tools that look for what is wrong: where each is.
_LATER = {
    "Dim": "deploy.contract", "Exported": "deploy.exported", "export": "deploy.export",
    "load_exported": "deploy.exported", "compare": "comparison", "bisect": "bisector", "minify": "minifier",
    "Package": "deploy.package", "load_package": "deploy.package", "package": "deploy.package",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "cache":
        import importlib

        return importlib.import_module("compile_api.cache")
    if name in _FROM_CAPTURE or name in _LATER:
        import importlib

        where = f"compile_api.{_LATER[name]}" if name in _LATER else "dynamo_capture"
        value = getattr(importlib.import_module(where), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'compile_api' has no attribute {name!r}")
