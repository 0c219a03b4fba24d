"""Operators that run through PyTorch's own kernels: which are claimed, and how they are called."""
