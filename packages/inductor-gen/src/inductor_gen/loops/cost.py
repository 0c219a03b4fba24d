"""What primitives cost beside memory."""

from __future__ import annotations

from inductor_gen.device.record import Device

__all__ = ["LIBRARY", "TEMPLATE", "op_cost", "product_seconds"]

#: The share of its peak that a device comes to in a library's product of 16-bit matrices, and in a template's.
LIBRARY, TEMPLATE = 0.75, 0.5

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


def product_seconds(m: int, n: int, k: int, tile: tuple[int, int], device: Device) -> float:
    """Seconds of a 16-bit product ``[m, k] @ [k, n]`` at a device's peak: turns of its multiprocessors, each a tile."""
    turns = -(-(-(-m // tile[0]) * -(-n // tile[1])) // device.multiprocessors)
    return turns * device.multiprocessors * 2 * tile[0] * tile[1] * k / device.flops16
