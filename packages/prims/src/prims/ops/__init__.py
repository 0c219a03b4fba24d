"""The closed set of primitives: one row each in `TABLE`, also as attributes (``prims.ops.add``).

A row can be called on torch tensors (it runs its PyTorch reference) and stands as a ``call_function`` target in
prim-dialect graphs. The rows are in `elementwise`, `structure`, `indexing`, `reduction` and `rng`.
"""

from __future__ import annotations

from typing import Any

from prims.ops import elementwise, indexing, reduction, rng, seeded, structure  # noqa: F401 - the table's order
from prims.ops.row import TABLE, Param, PrimOp, Sample, define, lookup

__all__ = ["TABLE", "Param", "PrimOp", "Sample", "define", "lookup"]


def __getattr__(name: str) -> Any:
    try:
        return TABLE[name]
    except KeyError:
        raise AttributeError(f"module 'prims.ops' has no attribute or primitive {name!r}") from None


def __dir__() -> list[str]:
    return [*__all__, *TABLE]
