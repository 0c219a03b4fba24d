"""Numbers that are to be elements: eager refuses those beyond a tensor's type, which would wrap or be infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from prims.spec.expr import Expr
from prims.spec.sym import Sym, SymFloat
from prims.spec.tensorspec import TensorSpec

__all__ = ["checking_numbers"]

#: Where an overload takes such numbers: positions and names.
_PLACES: dict[str, tuple[tuple[int, str], ...]] = {
    "aten.full.default": ((1, "fill_value"),),
    "aten.full_like.default": ((1, "fill_value"),),
    "aten.new_full.default": ((2, "fill_value"),),
    "aten.scalar_tensor.default": ((0, "s"),),
    "aten.fill.Scalar": ((1, "value"),),
    "aten.masked_fill.Scalar": ((2, "value"),),
    "aten.index_fill.int_Scalar": ((3, "value"),),
    "aten.scatter.value": ((3, "value"),),
    "aten.constant_pad_nd.default": ((2, "value"),),
    "aten.where.ScalarSelf": ((1, "self"),),
    "aten.where.ScalarOther": ((2, "other"),),
    "aten.clamp.default": ((1, "min"), (2, "max")),
    "aten.clamp_min.default": ((1, "min"),),
    "aten.clamp_max.default": ((1, "max"),),
}


def checking_numbers(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an overload, after which its numbers are compared with the type of the result."""
    places = _PLACES.get(name)
    if places is None:
        return rule

    def checking(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        if isinstance(result, TensorSpec):
            for position, keyword in places:
                value = args[position] if position < len(args) else kwargs.get(keyword)
                if value is not None and not _has_place(value, result.dtype):
                    raise RuntimeError(f"value cannot be converted to type {result.dtype} without overflow")
        return result

    return checking


def _has_place(value: Any, dtype: torch.dtype) -> bool:
    """Whether a number can be an element; of a symbolic one it is asked, and guarded, where its type is narrower."""
    if dtype is torch.bool or dtype.is_complex or isinstance(value, (bool, complex)):
        return True
    if isinstance(value, SymFloat):
        # What only the data say is not asked, it would end the graph; nor are sizes, which have a place in most types.
        asked = dtype is not torch.float64 and value.hint is not None and _is_of_the_program(value.expr)
        return not asked or _float_has_place(value, dtype)
    if isinstance(value, Sym):
        if dtype in (torch.int64, torch.float64, torch.float32, torch.bfloat16) or not value.is_int():
            return True
    elif not isinstance(value, (int, float)):
        return True
    if dtype.is_floating_point:
        if isinstance(value, float) and not math.isfinite(value):
            return True
        limit = torch.finfo(dtype).max
        return _within(value, -int(limit), int(limit)) if isinstance(value, (int, Sym)) else abs(value) <= limit
    if isinstance(value, float) and math.isnan(value):
        return False
    info = torch.iinfo(dtype)
    # An int that is negative counts from the end of a type without signs.
    low = -info.max if info.min == 0 and not isinstance(value, float) else info.min
    return _within(value, low, info.max)


def _is_of_the_program(e: Expr) -> bool:
    """Whether a float expression has a float of the program's in it, which is a symbol by its bits."""
    return e.kind == "fbits" or any(isinstance(x, Expr) and _is_of_the_program(x) for x in e.args)


def _float_has_place(value: SymFloat, dtype: torch.dtype) -> bool:
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return _within(value, float(info.min), float(info.max))
    limit = torch.finfo(dtype).max
    return _within(value, -limit, limit) or not bool(abs(value) < math.inf)


def _within(value: Any, low: Any, high: Any) -> bool:
    return bool(value >= low) and bool(value <= high)
