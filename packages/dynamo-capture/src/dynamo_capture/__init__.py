"""Graph capture from Python bytecode (PEP 523) for PyTorch."""

__version__ = "0.1.0"

from dynamo_capture.breaks import BreakInfo
from dynamo_capture.contract import supports_dynamic_shapes
from dynamo_capture.dynamic import mark_dynamic, mark_static, mark_unbacked, maybe_mark_dynamic
from dynamo_capture.exported import ExportedGraph, export_graph
from dynamo_capture.frontend import (
    Explanation,
    allow_in_graph,
    disable,
    explain,
    optimize,
    reset,
)
from dynamo_capture.marks import (
    cudagraph_mark_step_begin,
    error_on_graph_break,
    graph_break,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    nested_compile_region,
)
from dynamo_capture.promises import assume_constant_result, substitute_in_graph
from dynamo_capture.stance import get_stance, set_stance
from dynamo_capture.wrappers import is_disabled

__all__ = [
    "BreakInfo",
    "Explanation",
    "ExportedGraph",
    "allow_in_graph",
    "assume_constant_result",
    "cudagraph_mark_step_begin",
    "disable",
    "error_on_graph_break",
    "explain",
    "export_graph",
    "get_stance",
    "graph_break",
    "is_compiling",
    "is_disabled",
    "is_dynamo_compiling",
    "is_exporting",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "nested_compile_region",
    "optimize",
    "reset",
    "set_stance",
    "substitute_in_graph",
    "supports_dynamic_shapes",
]
