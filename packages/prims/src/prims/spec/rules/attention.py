"""Scaled dot product attention: the choice of kernel, and each kernel's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.dtypes import HALVES
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym
# at::SDPBackend
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3


def sdp_choice(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_mask: TensorSpec | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool = False,
    *,
    cudnn: Callable[[torch.device], bool],
) -> int:
    """The backend that ``F.scaled_dot_product_attention`` uses (``at::SDPBackend``).

    As ``sdp_utils_cpp.cpp`` and ``cuda/sdp_utils.cpp`` choose for dense tensors, in PyTorch's default order, and
    honouring the flags of ``torch.backends.cuda``. ``cudnn`` tells whether it comes first on a GPU.
    """
    flags = torch.backends.cuda
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4 or _has_empty(query, key, value):
        return MATH
    if query.device.type == "cpu":
        if (
            not flags.flash_sdp_enabled()
            or dropout_p > 0.0
            or query.dtype not in (torch.float32, torch.float64, *HALVES)
        ):
            return MATH
        if _last_dims_differ(query, key, value):
            return MATH
        return FLASH
    if query.device.type != "cuda":
        return MATH
    half = query.dtype in HALVES
    same_heads = not _last_dims_differ(query, key, value)
    if half and same_heads and _suits_cudnn(query) and flags.cudnn_sdp_enabled() and not enable_gqa:
        if cudnn(query.device):
            return CUDNN
    if half and same_heads and attn_mask is None and flags.flash_sdp_enabled() and bool(query.shape[3] <= 256):
        return FLASH
    aligned = 8 if half else 4
    if (
        flags.mem_efficient_sdp_enabled()
        and query.dtype in (torch.float32, *HALVES)
        and not enable_gqa
        and _divisible(query.shape[3], aligned)
        and _divisible(value.shape[3], aligned)
    ):
        return EFFICIENT
    return MATH


def _has_empty(*specs: TensorSpec) -> bool:
    return any(type(s) is int and s == 0 for x in specs for s in x.shape)


def _last_dims_differ(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> bool:
    a, b, c = q.shape[3], k.shape[3], v.shape[3]
    return not ((a is b or a == b) and (b is c or b == c))


def _divisible(size: Size, by: int) -> bool:
    return bool(size % by == 0)


def _suits_cudnn(q: TensorSpec) -> bool:
    """What torch 2.11 was seen to give cuDNN on a Hopper GPU: head sizes of multiples of 8 up to 128, and more
    than one query."""
    return _divisible(q.shape[3], 8) and bool(q.shape[3] <= 128) and bool(q.shape[2] > 1)


def cudnn_comes_first(device: torch.device) -> bool:
    """Does PyTorch prefer cuDNN's attention on a GPU?

    By the compute capability (9.0 and 10.0; not 8.0, 8.9 or 12.0), cuDNN's version and the environment, in every
    version by others: so PyTorch is asked, with operands that cuDNN can take. Of a GPU that this process does not
    use only metadata is wanted, which is the same.
    """
    if not torch.cuda.is_initialized():
        return True
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        x = torch.empty((1, 1, 128, 64), dtype=torch.float16, device=device)
        return int(torch._fused_sdp_choice(x, x, x)) == CUDNN


@meta_rule("aten._fused_sdp_choice.default")
def fused_sdp_choice(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_mask: TensorSpec | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> int:
    return sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, cudnn=cudnn_comes_first)


def _batch_first(q: TensorSpec, head: Size) -> TensorSpec:
    """``[b, h, s, d]`` over memory of ``[b, s, h, d]``."""
    b, h, s, _ = q.shape
    shape = (b, h, s, head)
    return TensorSpec(shape, q.dtype, q.device, layout.strides_in_order(shape, (3, 1, 2, 0)))


@meta_rule("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_cpu(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, *args: Any, **kwargs: Any
) -> tuple[TensorSpec, TensorSpec]:
    b, h, s, _ = query.shape
    lse_dtype = torch.float32 if query.dtype in HALVES else query.dtype
    lse = TensorSpec((b, h, s), lse_dtype, query.device, layout.strides_in_order((b, h, s), (1, 2, 0)))
    # The kernel makes its output like the query, whose layout it keeps.
    return query.replace(strides=layout.like_strides(query.shape, query.strides), storage_offset=0), lse


@meta_rule("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_cpu_backward(
    grad: TensorSpec, query: TensorSpec, key: TensorSpec, value: TensorSpec, *args: Any, **kwargs: Any
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return tuple(_batch_first(x, x.shape[3]) for x in (query, key, value))  # type: ignore[return-value]


def _philox(device: torch.device) -> tuple[TensorSpec, TensorSpec]:
    seed = TensorSpec((), torch.int64, device)
    return seed, seed


@meta_rule("aten._scaled_dot_product_flash_attention.default")
def flash(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    b, h, s, _ = query.shape
    lse = TensorSpec((b, h, s), torch.float32, query.device)
    state = TensorSpec((2,), torch.uint64, query.device)
    offset = TensorSpec((), torch.uint64, query.device)
    debug = TensorSpec((0,), query.dtype, query.device)
    head = _padded_head(query)
    out = _like(query) if head is query.shape[3] else TensorSpec((b, h, s, head), query.dtype, query.device)
    return out, lse, None, None, s, key.shape[2], state, offset, debug


def _padded_head(q: TensorSpec) -> Size:
    """The kernel pads head sizes to a multiple of 8; the composite slices its result."""
    head = q.shape[3]
    return head if _divisible(head, 8) else (head + 7) // 8 * 8


@meta_rule("aten._scaled_dot_product_efficient_attention.default")
def efficient(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
) -> tuple[TensorSpec, ...]:
    b, h, s, _ = query.shape
    padded = (s + 31) // 32 * 32 if compute_log_sumexp else 0
    lse = TensorSpec((b, h, padded), torch.float32, query.device)
    return _batch_first(query, value.shape[3]), lse, *_philox(query.device)


@meta_rule("aten._scaled_dot_product_cudnn_attention.default")
def cudnn(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    b, h, s, _ = query.shape
    shape = (b, h, s, value.shape[3])
    order = layout.permutation(query.shape, (query.strides,))
    out = TensorSpec(shape, query.dtype, query.device, layout.strides_in_order(shape, order))
    lse = TensorSpec((b, h, s, 1), torch.float32, query.device) if compute_log_sumexp else None
    return out, lse, None, None, s, key.shape[2], *_philox(query.device), None


def _like(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device, layout.like_strides(x.shape, x.strides))


@meta_rule(
    "aten._scaled_dot_product_flash_attention_backward.default",
    "aten._scaled_dot_product_cudnn_attention_backward.default",
)
def flash_backward(
    grad: TensorSpec, query: TensorSpec, key: TensorSpec, value: TensorSpec, *args: Any, **kwargs: Any
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return _like(query), _like(key), _like(value)


@meta_rule("aten._scaled_dot_product_efficient_attention_backward.default")
def efficient_backward(
    grad: TensorSpec,
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    attn_bias: TensorSpec | None,
    out: TensorSpec,
    logsumexp: TensorSpec,
    seed: TensorSpec,
    offset: TensorSpec,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: Any = None,
) -> tuple[TensorSpec | None, ...]:
    bias = None if attn_bias is None or not grad_input_mask[3] else _like(attn_bias)
    return (*(_batch_first(x, x.shape[3]) for x in (query, key, value)), bias)
