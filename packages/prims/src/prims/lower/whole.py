"""Calls that stay whole although their operator has a decomposition: a kernel cannot raise what eager raises."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from prims.lower.rewrites import constant
from prims.spec import Sym, TensorSpec
from prims.spec import expr as E

__all__ = ["may_raise"]

_DIVISIONS = frozenset(
    f"aten.{name}"
    for name in ("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar",
                 "remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod.Scalar")
)  # fmt: skip


def may_raise(name: str, node: torch.fx.Node, args: tuple[Any, ...]) -> bool:
    """Does eager raise for some values of the operands? The CPU's integer divisions do, where a divisor is zero."""
    if name not in _DIVISIONS:
        return False
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or spec.device.type != "cpu":
        return False
    return not (spec.dtype.is_floating_point or spec.dtype.is_complex) and not _surely_not_zero(args[1])


def _surely_not_zero(divisor: Any) -> bool:
    if isinstance(divisor, Sym):
        return divisor.ctx.statically_known(E.eq(divisor.expr, E.const(0))) is False
    if isinstance(divisor, (bool, int, float)):
        return divisor != 0
    found = constant(divisor)
    return found is not None and isinstance(found[0], (bool, int, float)) and found[0] != 0
