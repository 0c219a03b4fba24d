"""Reference interpreters: what a prim-dialect envelope means, slowly."""

from prims.reference.interpret import run_numpy, run_torch

__all__ = ["run_numpy", "run_torch"]
