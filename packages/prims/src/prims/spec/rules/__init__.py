"""Metadata rules, by family of operators. Importing this package registers them all."""

from prims.spec.rules import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    linalg,
    losses,
    matmul,
    misc,
    norms,
    recurrent,
    reductions,
    shaping,
    views,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "linalg",
    "losses",
    "matmul",
    "misc",
    "norms",
    "recurrent",
    "reductions",
    "shaping",
    "views",
]
