"""Graph capture from Python bytecode (PEP 523) for PyTorch."""

__version__ = "0.1.0"

from dynamo_capture.breaks import BreakInfo
from dynamo_capture.contract import supports_dynamic_shapes
from dynamo_capture.dynamic import mark_dynamic, mark_static
from dynamo_capture.frontend import (
    Explanation,
    allow_in_graph,
    disable,
    explain,
    export_graph,
    optimize,
    reset,
)
from dynamo_capture.marks import graph_break, is_compiling

__all__ = [
    "BreakInfo",
    "Explanation",
    "allow_in_graph",
    "disable",
    "explain",
    "export_graph",
    "graph_break",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "reset",
    "supports_dynamic_shapes",
]
