"""Specs of real tensors with chosen dimensions made symbolic."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch

from prims.errors import Unsupported
from prims.spec import expr as ex
from prims.spec import layout
from prims.spec.sym import SymbolContext, sym_max
from prims.spec.tensorspec import TensorSpec, spec_of


def abstract_spec(
    tensor: torch.Tensor, ctx: SymbolContext | None, dynamic_dims: Any = (), source: str = "",
    dynamic_strides: Mapping[int, Any] = types.MappingProxyType({}),
) -> TensorSpec:  # fmt: skip
    """The spec of a tensor with a symbol in each of ``dynamic_dims`` (or the given size, for a mapping).

    A dimension of size 0 or 1 stays static: broadcasting treats it differently. Strides that are dense in some
    order of the dimensions are expressed by the sizes; any other stride is static, but for the given ones
    (see :func:`free_strides`).

    Raises:
        Unsupported: the tensor is not strided (sparse, nested ...).
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise Unsupported(f"a tensor of layout {tensor.layout}")
    spec = spec_of(tensor)
    if not dynamic_dims and not dynamic_strides:
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
    strides = symbolic_strides(spec, tuple(shape), ctx, dynamic_strides)
    return TensorSpec(shape, spec.dtype, spec.device, strides, spec.storage_offset)


def free_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> dict[int, int]:
    """The strides of a tensor that its sizes and its other strides do not tell, by dimension.

    Those of a slice (``x[:, :-1]``, ``x[::2]``, a part of a fused projection, the filled part of a cache), which leave
    memory out between the elements, and those of dimensions of one element (``x[:, -1:]``). One that is expanded (0)
    or that overlaps is none of them.
    """
    found, real = {}, 1
    for dim in layout.sort_dims(range(len(shape)), shape, strides):
        if strides[dim] == 0:
            continue
        if shape[dim] == 1:
            if strides[dim] != real:
                found[dim] = strides[dim]
            continue
        if strides[dim] > max(real, 1):
            found[dim] = strides[dim]
        real = strides[dim] * max(shape[dim], 1)
    return found


def symbolic_strides(
    spec: TensorSpec, shape: tuple[Any, ...], ctx: SymbolContext | None = None,
    given: Mapping[int, Any] = types.MappingProxyType({}),
) -> tuple[Any, ...]:  # fmt: skip
    """The strides of ``spec`` in terms of the symbolic ``shape``.

    A stride equal to the product of the sizes of faster dimensions becomes that product; others stay numbers, but for
    the ``given`` ones. Of these it is a guard that dimensions do not overlap.
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
            elif dim in given:
                strides[dim] = given[dim]
            continue
        if spec.strides[dim] != real:
            if dim in given and ctx is not None:
                least = getattr(symbolic, "expr", symbolic)
                ctx.add_guard(ex.ge(given[dim].expr, least), "a stride that leaves memory out in between")
            real, symbolic = spec.strides[dim], given.get(dim, spec.strides[dim])
        strides[dim] = symbolic
        real, symbolic = real * max(spec.shape[dim], 1), symbolic * sym_max(shape[dim], 1)
    return tuple(strides)
