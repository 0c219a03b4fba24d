"""Metadata of overloads without a direct rule."""

from __future__ import annotations

from typing import Any

import torch

from prims.spec.infer import Rule, unsupported
from prims.spec.sym import from_torch, to_torch
from prims.spec.tensorspec import TensorSpec

OpOverload = torch._ops.OpOverload
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def _lift(x: Any) -> Any:
    from prims.spec.tensor import make

    if isinstance(x, TensorSpec):
        return make(x)
    if isinstance(x, (list, tuple)):
        return type(x)(map(_lift, x))
    return to_torch(x)


def _lower(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.spec  # type: ignore[attr-defined]
    if isinstance(x, (list, tuple)):
        return type(x)(map(_lower, x))
    return from_torch(x)


def fallback_rule(func: OpOverload) -> Rule:
    """The best rule for an overload that has no direct one."""
    if func.has_kernel_for_dispatch_key(_COMPOSITE):

        def composite(*args: Any, **kwargs: Any) -> Any:
            from prims.spec.tensor import AbstractMode

            with AbstractMode(), torch.no_grad():
                return _lower(func.decompose(*map(_lift, args), **{k: _lift(v) for k, v in kwargs.items()}))

        return composite

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise unsupported(func)

    return missing
