"""Functions of Python's ``math`` that take numbers which may be symbols, where PyTorch has none of the kind."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from prims.spec import expr as E
from prims.spec.sym import SymFloat, from_torch, to_torch

__all__ = ["atan2", "exp", "expm1", "floor_quotient", "log", "log1p", "power"]


def _function(kind: str, plain: Callable[..., float]) -> Callable[..., Any]:
    def function(*numbers: Any) -> Any:
        given = [from_torch(x) for x in numbers]
        ctx = next((x.ctx for x in given if hasattr(x, "ctx")), None)
        if ctx is None:  # also of symbols of which only one value is left
            return plain(*given)
        return to_torch(SymFloat(E.float_op(kind, *(getattr(x, "expr", x) for x in given)), ctx))

    function.__name__ = function.__qualname__ = plain.__name__
    function.__doc__ = f"``math.{plain.__name__}``."
    return function


exp = _function("fexp", math.exp)
expm1 = _function("fexpm1", math.expm1)
log = _function("flog", math.log)
log1p = _function("flog1p", math.log1p)
atan2 = _function("fatan2", math.atan2)
power = _function("fpow", math.pow)
power.__name__ = power.__qualname__ = "power"
#: ``x // y`` of floats. PyTorch's own goes by an int, which there is none of for infinities and NaN.
floor_quotient = _function("ffloordiv", operator.floordiv)
floor_quotient.__name__ = floor_quotient.__qualname__ = "floor_quotient"
floor_quotient.__doc__ = "``operator.floordiv``."
