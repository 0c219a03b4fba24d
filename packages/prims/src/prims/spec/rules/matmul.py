"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch

from prims.spec.infer import meta_rule
from prims.spec.iterator import iterate
from prims.spec.rules.views import expand
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def _equal(a: Size, b: Size, what: str) -> None:
    if a is not b and a != b:
        raise RuntimeError(f"{what}: sizes {a} and {b} must match")


def _holds(condition: Any, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


def _same_dtype(name: str, *operands: TensorSpec) -> None:
    first = operands[0].dtype
    for x in operands[1:]:
        if x.dtype is not first:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {first} != {x.dtype} ({name})")


@meta_rule("aten.mm.default")
def mm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if a.ndim != 2 or b.ndim != 2:
        raise RuntimeError(f"mm: both operands must be matrices, got {a} and {b}")
    if a.shape[1] is not b.shape[0] and a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]})"
        )
    _same_dtype("mm", a, b)
    return TensorSpec((a.shape[0], b.shape[1]), a.dtype, a.device)


@meta_rule("aten.mm.dtype")
def mm_dtype(a: TensorSpec, b: TensorSpec, out_dtype: torch.dtype) -> TensorSpec:
    return TensorSpec((a.shape[0], b.shape[1]), out_dtype, a.device)


@meta_rule("aten.addmm.default", "aten._addmm_activation.default", "aten.sspaddmm.default")
def addmm(x: TensorSpec, a: TensorSpec, b: TensorSpec, **kwargs: Any) -> TensorSpec:
    out = mm(a, b)
    expand(x, out.shape)
    _same_dtype("addmm", x, a)
    return out


@meta_rule("aten.bmm.default")
def bmm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if a.ndim != 3 or b.ndim != 3:
        raise RuntimeError("batch1 must be a 3D tensor")
    _equal(a.shape[0], b.shape[0], "bmm: batch")
    _equal(a.shape[2], b.shape[1], "bmm: inner")
    _same_dtype("bmm", a, b)
    return TensorSpec((a.shape[0], a.shape[1], b.shape[2]), a.dtype, a.device)


@meta_rule("aten.bmm.dtype")
def bmm_dtype(a: TensorSpec, b: TensorSpec, out_dtype: torch.dtype) -> TensorSpec:
    return bmm(a, b).replace(dtype=out_dtype)


@meta_rule("aten.baddbmm.default")
def baddbmm(x: TensorSpec, a: TensorSpec, b: TensorSpec, **kwargs: Any) -> TensorSpec:
    out = bmm(a, b)
    expand(x, out.shape)
    return out


@meta_rule("aten.addbmm.default")
def addbmm(x: TensorSpec, a: TensorSpec, b: TensorSpec, **kwargs: Any) -> TensorSpec:
    product = bmm(a, b)
    _same_dtype("addbmm", x, a)
    expand(x, product.shape[1:])
    return TensorSpec(product.shape[1:], a.dtype, a.device)


@meta_rule("aten._grouped_mm.default")
def grouped_mm(
    a: TensorSpec, b: TensorSpec, offs: TensorSpec | None = None, bias: TensorSpec | None = None,
    out_dtype: torch.dtype | None = None,
) -> TensorSpec:  # fmt: skip
    """Products of groups: of rows of ``a`` (``[m, k] @ [groups, k, n]``), of columns of ``b`` (``[groups, m, k] @
    [k, n]``), of what both sum over (``[m, k] @ [k, n]``), or of whole matrices. Rows of the result begin at multiples
    of 16 bytes."""
    flat = a.ndim == 2 or b.ndim == 2
    placed = "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
    _holds((offs is not None) is flat, placed)
    if a.ndim == 3 or b.ndim == 3:
        _holds(a.shape[-1] == b.shape[-2], "contraction dimension of mat_a and mat_b must match")
    if a.ndim == b.ndim == 3:
        _holds(a.shape[0] == b.shape[0], "batched dimension has to match")
    count = offs.shape[0] if offs is not None else a.shape[0]
    for x in (a, b) if flat else ():
        _holds(x.ndim == 2 or x.shape[0] == count, "matrix batch sizes have to match")
    rows, columns = a.shape[-2], b.shape[-1]
    unit = 16 // a.dtype.itemsize
    wide = (columns + unit - 1) // unit * unit
    if a.ndim != b.ndim:
        return TensorSpec((rows, columns), a.dtype, a.device, (wide, 1))
    return TensorSpec((count, rows, columns), a.dtype, a.device, (rows * wide, wide, 1))


@meta_rule("aten.mv.default")
def mv(a: TensorSpec, x: TensorSpec) -> TensorSpec:
    _equal(a.shape[1], x.shape[0], "mv")
    return TensorSpec((a.shape[0],), a.dtype, a.device)


@meta_rule("aten.addmv.default")
def addmv(x: TensorSpec, a: TensorSpec, v: TensorSpec, **kwargs: Any) -> TensorSpec:
    out = mv(a, v)
    _same_dtype("addmv", x, a)
    expand(x, out.shape)
    return out


@meta_rule("aten.dot.default", "aten.vdot.default")
def dot(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    _equal(a.shape[0], b.shape[0], "dot")
    _same_dtype("dot", a, b)
    return TensorSpec((), a.dtype, a.device)


@meta_rule("aten.ger.default", "aten.outer.default")
def outer(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return TensorSpec((a.shape[0], b.shape[0]), dtype, a.device)


@meta_rule("aten.addr.default")
def addr(x: TensorSpec, a: TensorSpec, b: TensorSpec, **kwargs: Any) -> TensorSpec:
    dtype = torch.promote_types(x.dtype, torch.promote_types(a.dtype, b.dtype))
    expand(x, (a.shape[0], b.shape[0]))
    column = TensorSpec((a.shape[0], 1), a.dtype, a.device, (a.strides[0], 1))
    row = TensorSpec((1, b.shape[0]), b.dtype, b.device, (1, b.strides[0]))
    return iterate((x, column, row), dtype)


@meta_rule("aten.linear.default")
def linear(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> TensorSpec:
    if x.shape[-1] is not weight.shape[-1] and x.shape[-1] != weight.shape[-1]:
        rows: Size = 1
        for s in x.shape[:-1]:
            rows = rows * s
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and {weight.shape[-1]}x{weight.shape[0]})"
        )
    return TensorSpec((*x.shape[:-1], *weight.shape[:-1]), x.dtype, x.device)
