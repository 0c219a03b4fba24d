"""Checks that eager makes on the values of a tensor: a factorisation's error code.

``linalg.inv(x)`` is ``linalg_inv_ex(x)`` and a check that raises where the matrix is singular. In a functional graph a
check has no result that could keep it alive, so here it is an operator that passes a value on: the inverse is usable
only behind its check, and the error is raised when the graph runs, by eager's own function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from aot_autograd.trace.special import HANDLERS, handles
from prims.registry import define_operator
from prims.spec import TensorSpec, meta_rule

__all__ = ["HANDLERS", "linalg_checked", "one_hot"]

aten = torch.ops.aten


def linalg_checked(x: torch.Tensor, info: torch.Tensor, api_name: str, is_matrix: bool) -> torch.Tensor:
    """A copy of ``x`` if the error codes ``info`` are all 0.

    Raises:
        torch.linalg.LinAlgError: they are not.
    """
    aten._linalg_check_errors(info, api_name, is_matrix=is_matrix)
    return x.clone()


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``F.one_hot``, which for tensors without data leaves out whether each class exists.

    Raises:
        RuntimeError: none can.
    """
    if tensor.dtype == torch.int64 and isinstance(num_classes, int) and num_classes == 0:
        raise RuntimeError("Class values must be smaller than num_classes.")
    if tensor.dtype != torch.int64 or not num_classes > 0:
        return F.one_hot(tensor, num_classes)
    return torch.ops.quintet.one_hot.default(tensor, num_classes)  # type: ignore[no-any-return]


define_operator("linalg_checked(Tensor self, Tensor info, str api_name, bool is_matrix) -> Tensor", linalg_checked)


@meta_rule("quintet.linalg_checked.default")
def _checked_spec(x: TensorSpec, info: TensorSpec, api_name: str, is_matrix: bool) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device, x.strides)


@handles(
    "linalg_inv_ex.default", "linalg_cholesky_ex.default", "linalg_lu_factor_ex.default", "_linalg_solve_ex.default",
    "linalg_ldl_factor_ex.default",
)  # fmt: skip
def _factorisation(tracer: Any, func: Any, args: Any, kwargs: Any) -> Any:
    results = tracer.pure(func, args, kwargs)
    tracer.factorisations[id(results[-1])] = results
    return results


@handles("_linalg_check_errors.default")
def _check(tracer: Any, func: Any, args: Any, kwargs: Any) -> Any:
    info, api_name = args
    results = tracer.factorisations.get(id(info))
    if results is None:
        return NotImplemented
    value = results[0]
    node, spec = tracer.emit(
        torch.ops.quintet.linalg_checked.default,
        (tracer.read(value), tracer.read(info), api_name, kwargs["is_matrix"]),
        {},
    )
    tracer.write(value, node, spec)
    return None
