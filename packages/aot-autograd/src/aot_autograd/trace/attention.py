"""Attention as the user called it, with a mask that PyTorch's fused kernels take.

On a GPU these want the mask's last dimension contiguous. A mask with another layout, such as a relative-position bias
with its heads innermost, sends eager to separate matrix products and a softmax in float32, many times slower. In a
traced program a mask without a gradient is laid out anew for them, by the kernel that makes it where there is one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["attention", "dense_rows"]


def _on_gpu(query: torch.Tensor) -> bool:
    return query.device.type == "cuda"


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, *rest: Any,
    **options: Any,
) -> torch.Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention``."""
    if attn_mask is not None and _on_gpu(query) and attn_mask.dim() >= 2:
        needs_gradient = attn_mask.requires_grad and torch.is_grad_enabled()
        if attn_mask.stride(-1) != 1 and not needs_gradient:
            attn_mask = dense_rows(attn_mask)
    return F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **options)


def dense_rows(mask: torch.Tensor) -> torch.Tensor:
    """An equal mask whose last dimension is contiguous. Dimensions before it that repeat one value still do."""
    repeated = [d for d in range(mask.dim() - 1) if mask.stride(d) == 0]
    core = mask
    for d in repeated:
        core = core.narrow(d, 0, 1)
    return core.contiguous().expand(mask.shape)
