"""compile() for PyTorch: the Quintet stages composed into one line.

>>> import compile_api
>>> model = compile_api.compile(model)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prims import forking

with forking.at_once():  # a collection of what importing PyTorch made takes as long as three imports of this
    from compile_api.backends import list_backends, lookup_backend, register_backend
    from compile_api.compile import compile
    from compile_api.in_place import compile_, report_of
    from compile_api.modes import list_mode_options, list_modes, list_options
    from compile_api.module import CompiledModule, strip_prefix
    from prims import errors
    from prims.background import wait
    from prims.errors import CompileWarning
    from prims.logs import set_logs
    from prims.options import Options
    from prims.report import Report

if TYPE_CHECKING:
    from compile_api.deploy.contract import Dim
    from compile_api.deploy.export import export
    from compile_api.deploy.exported import Exported, load_exported
    from compile_api.deploy.interchange.api import to_onnx, to_stablehlo
    from compile_api.deploy.package import Package, load_package, package
    from compile_api.torch_backend import backend_reports

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
    "assume_constant_result",
    "backend_reports",
    "bisect",
    "cache",
    "compare",
    "compile",
    "compile_",
    "cudagraph_mark_step_begin",
    "disable",
    "error_on_graph_break",
    "errors",
    "explain",
    "export",
    "export_graph",
    "get_stance",
    "graph_break",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "list_backends",
    "list_mode_options",
    "list_modes",
    "list_options",
    "load_exported",
    "load_package",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "minify",
    "nested_compile_region",
    "package",
    "profile",
    "register_backend",
    "report_of",
    "reset",
    "set_logs",
    "set_stance",
    "strip_prefix",
    "substitute_in_graph",
    "supports_dynamic_shapes",
    "to_onnx",
    "to_stablehlo",


    "wait",
    "worth_it",
]

#: Offered here for convenience; they belong to capture.
_FROM_CAPTURE = frozenset(
    ("allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable", "error_on_graph_break",
     "explain", "export_graph", "get_stance", "graph_break", "is_compiling", "is_dynamo_compiling", "is_exporting",
     "mark_dynamic", "mark_static", "mark_unbacked", "maybe_mark_dynamic", "nested_compile_region", "reset",
     "set_stance", "substitute_in_graph", "supports_dynamic_shapes")
)  # fmt: skip


#: What programs ahead of time need, and tools that look for what is wrong: where each is.
_LATER = {
    "Dim": "deploy.contract", "Exported": "deploy.exported", "export": "deploy.export",
    "load_exported": "deploy.exported", "compare": "comparison", "bisect": "bisector", "minify": "minifier",
    "worth_it": "worth", "profile": "profiling",
    "Package": "deploy.package", "load_package": "deploy.package", "package": "deploy.package",
    "backend_reports": "torch_backend", "to_onnx": "deploy.interchange.api", "to_stablehlo": "deploy.interchange.api",
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
