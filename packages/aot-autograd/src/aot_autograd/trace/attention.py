"""Attention as the user called it, or wrote it out (``written``), with operands that PyTorch's fused kernels take.

On a GPU these want the last dimension of every operand contiguous. A mask with another layout, such as a
relative-position bias with its heads innermost, or a query that is a slice with steps, sends eager to separate matrix
products and a softmax in float32, many times slower. In a traced program such operands, but for masks with a gradient,
are laid out anew for them, by the kernel that makes them where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.nn import functional as F

from prims.dtypes import HALVES
from prims.spec import TensorSpec, spec_of, to_torch
from prims.spec.rules import attention as kernels

if TYPE_CHECKING:
    from aot_autograd.trace.written import Mask, Written

__all__ = ["LEAST", "LOWEST", "all_same", "attention", "dense_rows", "fused", "same"]

#: Scores of one head from which a fused kernel pays: it works at blocks of 64 or 128 rows and columns. In training on a
#: CPU it takes twice as many: 32 heads of 128 x 64 without a mask took 8.3 ms by the formula and 10.5 by kernels on a
#: core, of 192 x 64 both 17, of 512 x 64 140 and 114 (forward alone 2.8 and 2.8, 5.7 and 4.8, 50 and 31).
LEAST = 128 * 128

#: The lowest number that is added to scores.
LOWEST = -1e30


def _on_gpu(query: torch.Tensor) -> bool:
    return query.device.type == "cuda"


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, *rest: Any,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention``, its result laid out as eager's."""
    if not _on_gpu(query):
        return F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **options)
    given = query, key, value, attn_mask
    query, key, value = map(_with_dense_rows, (query, key, value))
    if attn_mask is not None and attn_mask.dim() >= 2:
        needs_gradient = attn_mask.requires_grad and torch.is_grad_enabled()
        if attn_mask.stride(-1) != 1 and not needs_gradient:
            attn_mask = dense_rows(attn_mask)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **options)
    as_given = all(a is b for a, b in zip((query, key, value, attn_mask), given, strict=True))
    return out if as_given else out.contiguous()


def _with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() < 2 or x.stride(-1) == 1 else x.contiguous()


def dense_rows(mask: torch.Tensor) -> torch.Tensor:
    """An equal mask whose last dimension is contiguous. Dimensions before it that repeat one value still do."""
    repeated = [d for d in range(mask.dim() - 1) if mask.stride(d) == 0]
    core = mask
    for d in repeated:
        core = core.narrow(d, 0, 1)
    return core.contiguous().expand(mask.shape)


# ---- written out -------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Are two sizes known to be one? No guard comes of it."""
    if type(a) is int or type(b) is int:
        return type(a) is type(b) and bool(a == b)
    return a.ctx.simplify(a.expr) is b.ctx.simplify(b.expr)  # type: ignore[no-any-return]


def all_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def fused(w: Written, value_of: Callable[[Node], Any]) -> torch.Tensor | None:
    """What a program writes out, by a fused kernel; None where none takes it."""
    spec: TensorSpec = w.nodes[-1].meta["spec"]
    q, k, v = (_arranged(value_of(node), order) for node, order in w.operands)
    masks = [value_of(m.node) for m in w.masks]
    gradients = torch.is_grad_enabled()
    rows, columns = map(_hint, w.shape[-2:])
    training = gradients and any(x.requires_grad for x in (q, k, v))
    if rows * columns < LEAST * (2 if training and q.device.type == "cpu" else 1):
        return None
    dtypes = {_computed_in(x) for x in (q, k, v)}
    if dtypes != {spec.dtype} or (q.device.type == "cpu" and spec.dtype in HALVES):
        return None  # of 16 bits a CPU's kernel takes as long as the two products
    if any(m.requires_grad and gradients or not _may_be_a_mask(m) for m in masks):
        return None
    lead = w.shape[:-2]
    q, k, v = (_led(x.to(spec.dtype), first, lead) for x, first in ((q, w.product), (k, w.product), (v, w.led)))
    if _on_gpu(q):
        q, k, v = map(_with_dense_rows, (q, k, v))
    chosen = kernels.sdp_choice(
        spec_of(q), spec_of(k), spec_of(v), None if w.causal or not masks else spec_of(q), w.dropout, w.causal
    )  # fmt: skip
    if chosen == kernels.MATH:
        return None
    mask: Any = None
    hidden: Any = None
    gives = ""
    if masks and not w.causal:
        laid = [_laid(m, x, w.shape) for m, x in zip(w.masks, masks, strict=True)]
        settled = _settled(w, laid, spec.dtype, training)
        if settled is None:
            return None
        mask, hidden, gives = settled
        if gives == "mean":
            q = torch.where(hidden, 0.0, q)  # without scores
    out = attention(q, k, v, mask, w.dropout, w.causal, scale=w.scale)
    if gives == "NaN by sums":
        out = out * torch.where(hidden, math.nan, 1.0).to(out.dtype)  # its gradients are NaN too
    elif gives == "NaN":  # and of gradients every value's, for what replaces scores has none
        nan: Any = math.nan
        if v.requires_grad and gradients:
            nan = v.mean(-2, True) * torch.where(hidden.any(-2, True), nan, 0.0).to(v.dtype)
        out = torch.where(hidden, nan, out)
    out = out.reshape(*map(to_torch, w.led), *out.shape[-2:])
    # Laid out as eager's result: einsum gives a view of a product, others a product.
    return out.contiguous().permute(w.out) if w.nodes[-1].target is torch.einsum else out.permute(w.out).contiguous()


def _settled(
    w: Written, masks: list[torch.Tensor], dtype: torch.dtype, training: bool
) -> tuple[Any, Any, str] | None:
    """A mask for the kernel; the rows that see nothing, if there are any; and what these give: the ``"mean"`` of all
    values, or ``"NaN"``, maybe ``"NaN by sums"``. None where that cannot be had."""
    keep: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    for m, x in zip(w.masks, masks, strict=True):
        if m.fill is not None:
            seen = x.logical_not() if m.hides else x.to(torch.bool)
            keep = seen if keep is None else keep & seen
        else:
            x = x * m.factor if m.factor != 1 else x
            bias = x if bias is None else bias + x
    if bias is not None and bias.dtype != dtype and not w.coarse:
        return None  # fewer bits than the scores have
    fills = [m.fill for m in w.masks if m.fill is not None]
    infinite = -math.inf in fills
    if infinite and any(map(math.isfinite, fills)):
        return None
    if keep is not None and (bias is None or w.adds == "little"):
        if w.sees:
            return keep, None, ""
        if any(m.fill is None for m in w.masks[: len(fills)]):
            return None  # added to what replaces scores
        hidden = keep.any(-1, True).logical_not()
        if bias is None:
            mask = keep | hidden
        else:
            mask = torch.where(keep, bias, torch.where(hidden, 0.0, -math.inf)).to(dtype)
        return mask, hidden, "NaN" if infinite else "mean"
    assert bias is not None
    if w.sees or (keep is None and w.adds == "little"):
        return _above_lowest(bias).to(dtype) if w.sees else bias.to(dtype), None, ""
    vague = w.adds != "infinity" or (keep is not None and not infinite)
    if vague and (training or dtype is torch.float16):
        return None
    if keep is not None:
        bias = torch.where(keep, bias, -math.inf if infinite else LOWEST)
    if w.adds == "hide" and not infinite:
        return _above_lowest(bias).to(dtype), None, ""
    if bias.ndim == 4 and not any(same(s, 1) for s in spec_of(bias).shape[:-2]):
        return None  # as large as the scores
    alone = bias == -math.inf
    hidden = alone.all(-1, True)
    mask = torch.where(alone, torch.where(hidden, 0.0, -math.inf), _above_lowest(bias)).to(dtype)
    return mask, hidden, "NaN by sums"


def _above_lowest(bias: torch.Tensor) -> torch.Tensor:
    """What is added to scores, no less than :data:`LOWEST` where its type has such numbers: below them is -inf alone,
    which stays."""
    return bias if torch.finfo(bias.dtype).min > LOWEST else bias.clamp(min=LOWEST)


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.hint or 0)


def _computed_in(x: torch.Tensor) -> torch.dtype:
    """The type that a product computes in, by autocast."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype.is_floating_point and x.dtype is not torch.float64
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def _may_be_a_mask(m: Any) -> bool:
    return isinstance(m, torch.Tensor) and not m.is_complex()


def _arranged(x: torch.Tensor, order: tuple[int | None, ...]) -> torch.Tensor:
    """``[*lead, length, width]``, with 1 for dimensions that it has not."""
    kept = [d for d in order if d is not None]
    x = x if kept == list(range(x.ndim)) else x.permute(kept)
    for at, d in enumerate(order):
        x = x.unsqueeze(at) if d is None else x
    return x


def _led(x: torch.Tensor, first: tuple[Any, ...], lead: tuple[Any, ...]) -> torch.Tensor:
    """``[batch, heads, length, width]`` of what a product takes with leading sizes ``first``, which become ``lead``."""
    if not all_same(spec_of(x).shape[:-2], first):
        x = x.expand(*map(to_torch, first), *x.shape[-2:])
    return x.reshape(*_two(lead), *x.shape[-2:]) if not all_same(first, lead) or len(lead) != 2 else x


def _two(lead: Sequence[Any]) -> list[Any]:
    """Leading sizes as two."""
    sizes = [1] * (2 - len(lead)) + [to_torch(s) for s in lead]
    return [sizes[0], math.prod(sizes[1:])]


def _laid(m: Mask, x: torch.Tensor, shape: tuple[Any, ...]) -> torch.Tensor:
    """A mask that can be spread over the kernel's scores."""
    sizes, lead = spec_of(x).shape, shape[:-2]
    if all(same(s, 1) for s in sizes[:-2]):
        x = x.reshape(x.shape[-2:]) if x.ndim > 2 else x
        return x if x.ndim == 2 else x.reshape(1, -1)
    if len(lead) == 2 and len(m.lead) == 2:
        return x if x.ndim == 4 else x.unsqueeze(0)
    x = x.expand(*map(to_torch, m.lead), *x.shape[-2:])
    return x.reshape(*_two(lead), *x.shape[-2:])
