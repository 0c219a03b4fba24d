"""Specs of real tensors with chosen dimensions made symbolic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prims.errors import Unsupported
from prims.spec import layout
from prims.spec.sym import SymbolContext, sym_max
from prims.spec.tensorspec import TensorSpec, spec_of


def abstract_spec(
    tensor: torch.Tensor, ctx: SymbolContext | None, dynamic_dims: Any = (), source: str = ""
) -> TensorSpec:
    """The spec of a tensor with a symbol in each of ``dynamic_dims`` (or the given size, for a mapping).

    A dimension of size 0 or 1 stays static: broadcasting treats it differently. Strides that are dense in some
    order of the dimensions are expressed by the sizes; any other stride is static.

    Raises:
        Unsupported: the tensor is not strided (sparse, nested ...).
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise Unsupported(f"a tensor of layout {tensor.layout}")
    spec = spec_of(tensor)
    if not dynamic_dims:
        return spec
    if ctx is None:
        raise ValueError("dynamic_dims needs a SymbolContext")
    sizes = dict(dynamic_dims) if isinstance(dynamic_dims, Mapping) else dict.fromkeys(dynamic_dims)
    shape = list(spec.shape)
    for dim, size in sizes.items():
        dim = dim % len(shape)
        if size is not None:
            shape[dim] = size
        elif shape[dim] > 1:
            shape[dim] = ctx.new_symbol(shape[dim], f"{source}.size({dim})")
    return TensorSpec(shape, spec.dtype, spec.device, symbolic_strides(spec, tuple(shape)), spec.storage_offset)


def symbolic_strides(spec: TensorSpec, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of ``spec`` in terms of the symbolic ``shape``.

    A stride equal to the product of the sizes of faster dimensions becomes that product; others stay numbers.
    """
    order = layout.sort_dims(range(spec.ndim), spec.shape, spec.strides)
    strides = list(spec.strides)
    real, symbolic = 1, 1
    for dim in order:
        if spec.strides[dim] == 0:
            continue
        # Whatever the stride of a size of one is: those of the other dimensions do not follow from it.
        if spec.shape[dim] == 1 and type(shape[dim]) is int:
            if spec.strides[dim] == real:
                strides[dim] = symbolic
            continue
        if spec.strides[dim] != real:
            real, symbolic = spec.strides[dim], spec.strides[dim]
        strides[dim] = symbolic
        real, symbolic = real * max(spec.shape[dim], 1), symbolic * sym_max(shape[dim], 1)
    return tuple(strides)
