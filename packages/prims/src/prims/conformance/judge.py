"""Is a result right? Judged against the same primitive in float64, relative to eager's own error.

A floating-point result passes where, element by element, it has eager's NaNs and infinities and

    |result - exact| <= ULPS * eps * |exact|  +  SPREAD * |eager - exact|  +  GROWTH * eps * scale

`exact` is the PyTorch reference on float64 operands, `eager` the same in the tested dtype. `scale` is, for the
primitives that add, the reference on the operands' absolute values (so that cancellation is not blamed on the
backend), 1 for functions with a root away from 0, else 0. The basic arithmetic must also get the sign of a zero
right. Everything else - integers, bools, data movement, random
bits - must be equal bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch

from prims.dtypes import KEPT_FLOATS
from prims.handlers.base import map_values
from prims.ops import PrimOp

__all__ = ["GROWTH", "SPREAD", "ULPS", "judge"]

ULPS = 8.0
SPREAD = 2.0
GROWTH = 4.0

_EXACT_KINDS = ("view", "create", "cast")
_EXACT = ("nextafter", "random_bits", "random_uniform", "gather", "index", "where")
_ROOTED = {"lgamma": 1.0, "digamma": 1.0, "random_normal": 8.0}
_SIGNED_ZEROS = frozenset(
    ("neg", "abs", "copysign", "add", "sub", "mul", "div", "floor", "ceil", "trunc", "round", "sqrt", "reciprocal")
)
_ADDING = ("sum", "cumsum", "dot", "fma", "scatter", "index_put")


def _widen(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def _magnitude(x: Any) -> Any:
    return x.double().abs() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def _mismatch(where: torch.Tensor, result: torch.Tensor, want: torch.Tensor, why: str) -> str:
    count = int(where.sum())
    at = tuple(int(i) for i in where.nonzero()[0])
    return f"{why} at {count} of {where.numel()} elements, first at {at}: got {result[at]}, want {want[at]}"


def judge(op: PrimOp, args: tuple[Any, ...], result: Any) -> str | None:
    """What is wrong with a backend's `result` for a primitive on `args`, or None when it conforms."""
    eager = op.torch_ref(*op.bind(*args))
    if not isinstance(result, torch.Tensor):
        return f"the result is {type(result).__name__}, not a tensor"
    result = result.detach().cpu()
    if result.dtype != eager.dtype:
        return f"dtype {result.dtype}, want {eager.dtype}"
    if result.shape != eager.shape:
        return f"shape {tuple(result.shape)}, want {tuple(eager.shape)}"
    if not eager.dtype.is_floating_point or op.kind in _EXACT_KINDS or op.name in _EXACT:
        return _judge_exact(eager, result)
    return _judge_float(op, args, eager, result)


def _judge_exact(eager: torch.Tensor, result: torch.Tensor) -> str | None:
    if eager.dtype in KEPT_FLOATS:
        eager, result = eager.float(), result.float()
    equal = torch.eq(eager, result)
    if eager.dtype.is_floating_point:
        equal = equal & (torch.signbit(eager) == torch.signbit(result)) | (eager.isnan() & result.isnan())
    return None if bool(equal.all()) else _mismatch(~equal, result, eager, "not equal")


def _judge_float(op: PrimOp, args: tuple[Any, ...], eager: torch.Tensor, result: torch.Tensor) -> str | None:
    special = ~torch.isfinite(eager)
    same = torch.where(special, (eager == result) | (eager.isnan() & result.isnan()), torch.isfinite(result))
    if not bool(same.all()):
        return _mismatch(~same, result, eager, "NaN or infinity differs")
    if op.name in _SIGNED_ZEROS:
        zeros = (eager == 0) & (result == 0) & (torch.signbit(eager) != torch.signbit(result))
        if bool(zeros.any()):
            return _mismatch(zeros, result, eager, "a zero has the wrong sign")
    exact = eager.double()
    if op.kind != "random":
        exact = op.torch_ref(*op.bind(*map_values(_widen, args)))
    scale = torch.full_like(exact, _ROOTED.get(op.name, 0.0))
    if op.name in _ADDING:
        scale = op.torch_ref(*op.bind(*map_values(_magnitude, args)))
    info = torch.finfo(eager.dtype)
    error = (result.double() - exact).abs()
    allowed = ULPS * info.eps * exact.abs() + SPREAD * (eager.double() - exact).abs() + GROWTH * info.eps * scale
    wrong = ~special & ~(error <= allowed + info.tiny)
    return _mismatch(wrong, result, exact, "too far from the float64 result") if bool(wrong.any()) else None
