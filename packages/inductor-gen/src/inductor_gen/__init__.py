"""Fusing code generator: primitive graphs to C and Triton kernels."""

__version__ = "0.1.0"
