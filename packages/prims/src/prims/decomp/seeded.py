"""The seeded random operators (`prims.ops.seeded`) are primitives under another name."""

from __future__ import annotations

from typing import Any

import prims.ops.seeded  # noqa: F401  (defines the operators)
from prims.decomp.common import Value, required
from prims.decomp.registry import decomposition


@decomposition("quintet.random_uniform.default")
def random_uniform(p: Any, size: Any, seed: Any, offset: Any, *, dtype: Any, device: Any) -> Any:
    return p.random_uniform(tuple(size), seed, offset, dtype, device)


@decomposition("quintet.random_normal.default")
def random_normal(p: Any, size: Any, seed: Any, offset: Any, *, dtype: Any, device: Any) -> Any:
    return p.random_normal(tuple(size), seed, offset, dtype, device)


@decomposition("quintet.probabilities.default")
def probabilities(p: Any, self: Value) -> Value:
    """x, where 0 <= x <= 1"""
    return required(p, self, p.logical_and(p.ge(self, 0.0), p.le(self, 1.0)))
