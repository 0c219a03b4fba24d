"""What primitives cost beside memory."""

from __future__ import annotations

from inductor_gen.device.record import Device

__all__ = ["LIBRARY", "LONGEST", "TEMPLATE", "op_cost", "op_length", "product_seconds"]

#: The share of its peak that a device comes to in a library's product of 16-bit matrices, and in a template's.
LIBRARY, TEMPLATE = 0.75, 0.5

#: Of each primitive, the two figures below; 1 and 1 of those that are not here.
_COST = {
    "div": (4, 9), "sqrt": (4, 10), "rsqrt": (5, 4), "reciprocal": (4, 8), "floor_div": (6, 9), "trunc_div": (6, 9),
    "remainder": (6, 60), "fmod": (20, 65), "exp": (10, 30), "exp2": (10, 3), "expm1": (14, 12), "log": (10, 40),
    "log2": (10, 35), "log10": (10, 35), "log1p": (14, 35), "sin": (12, 140), "cos": (12, 140), "tan": (16, 120),
    "asin": (14, 20), "acos": (14, 25), "atan": (14, 25), "sinh": (16, 30), "cosh": (16, 15), "tanh": (14, 20),
    "asinh": (20, 75), "acosh": (20, 80), "atanh": (20, 40), "erf": (14, 30), "erfc": (24, 120), "erfinv": (30, 55),
    "lgamma": (40, 280), "digamma": (40, 580), "sigmoid": (13, 35), "pow": (20, 130), "atan2": (20, 55),
    "hypot": (8, 20), "random_uniform": (30, 60), "random_normal": (60, 120), "random_bits": (30, 60),
    "bounded": (0, 0), "nonzero": (0, 0),
}  # fmt: skip


#: The greatest length of a primitive.
LONGEST = max(length for _, length in _COST.values())


def op_cost(op: str) -> int:
    """Rough cycles per element of an elementwise primitive, vectorised; a plain addition is 1."""
    return _COST.get(op, (1, 1))[0]


def op_length(op: str) -> int:
    """As many additions as an elementwise primitive compiles like for a GPU, where it is inlined with all its branches:
    Triton 3.7 takes 0.25 milliseconds for one, for each element that a thread has (``benchmarks/device_constants.py
    lengths``)."""
    return _COST.get(op, (1, 1))[1]


def product_seconds(m: int, n: int, k: int, tile: tuple[int, int], device: Device) -> float:
    """Seconds of a 16-bit product ``[m, k] @ [k, n]`` at a device's peak: turns of its multiprocessors, each a tile."""
    turns = -(-(-(-m // tile[0]) * -(-n // tile[1])) // device.multiprocessors)
    return turns * device.multiprocessors * 2 * tile[0] * tile[1] * k / device.flops16
