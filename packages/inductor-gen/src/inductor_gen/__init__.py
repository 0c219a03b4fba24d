"""Fusing code generator: primitive graphs to C and Triton kernels.

``compile_graph`` takes a prim-dialect envelope (see :mod:`prims.ir`) and returns a callable of its flat inputs;
``claims`` names the aten operators that are to stay single nodes in it, ``get_ready`` starts early what takes time to
start, and ``free_memory`` gives back what is kept between calls.
"""

from inductor_gen.compiled import CompiledGraph, Kernel, compile_graph, free_memory, get_ready
from inductor_gen.device.claims import claims

__all__ = ["CompiledGraph", "Kernel", "claims", "compile_graph", "free_memory", "get_ready"]

__version__ = "0.1.0"
