"""Compiling kernels to machine code, keeping them on disk, and calling them."""
