"""What primitives cost beside memory."""

from __future__ import annotations

__all__ = ["op_cost"]

_COST = {
    "div": 4, "sqrt": 4, "rsqrt": 5, "reciprocal": 4, "floor_div": 6, "remainder": 6, "trunc_div": 6, "fmod": 20,
    "exp": 10, "exp2": 10, "expm1": 14, "log": 10, "log2": 10, "log10": 10, "log1p": 14, "sin": 12, "cos": 12,
    "tan": 16, "asin": 14, "acos": 14, "atan": 14, "sinh": 16, "cosh": 16, "tanh": 14, "asinh": 20, "acosh": 20,
    "atanh": 20, "erf": 14, "erfc": 24, "erfinv": 30, "lgamma": 40, "digamma": 40, "sigmoid": 13, "pow": 20,
    "atan2": 20, "hypot": 8, "random_uniform": 30, "random_normal": 60, "random_bits": 30, "bounded": 0, "nonzero": 0,
}  # fmt: skip


def op_cost(op: str) -> int:
    """Rough cycles per element of an elementwise primitive, vectorised; a plain addition is 1."""
    return _COST.get(op, 1)
