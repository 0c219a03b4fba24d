"""Scaled dot product attention: the choice of kernel, and each kernel's results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.dtypes import HALVES
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym
Gradients = tuple[bool, bool]  # of query, key or value; of the mask
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
    gradients: Gradients | None = None,
) -> int:
    """The backend that ``F.scaled_dot_product_attention`` uses (``at::SDPBackend``).

    For a GPU that this process uses PyTorch is asked, since the answer depends on the device, cuDNN's version and the
    environment, in every version by others; of another GPU only metadata is wanted. ``gradients``: those wanted, by the
    grad mode where it is not said.
    """
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4 or _has_empty(query, key, value):
        return MATH
    if query.device.type == "cpu":
        fused = (
            torch.backends.cuda.flash_sdp_enabled()
            and dropout_p == 0.0
            and query.dtype in (torch.float32, torch.float64, *HALVES)
            and not _last_dims_differ(query, key, value)
            and _have_dense_rows(query, key, value)
        )
        return FLASH if fused else MATH
    if query.device.type != "cuda":
        return MATH
    if not torch.cuda.is_initialized():
        return _supposed(query, key, value, attn_mask, is_causal, enable_gqa)
    wanted = (torch.is_grad_enabled(), False) if gradients is None else gradients
    return _asked(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, wanted)


def _asked(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, mask: TensorSpec | None, dropout_p: float, is_causal: bool,
    enable_gqa: bool, gradients: Gradients,
) -> int:  # fmt: skip
    """What PyTorch answers for small tensors like these: their heads are as wide, the same sizes are one, and of causal
    lengths and shared heads the same are equal."""
    _last_dims_differ(query, key, value)  # whether they do is a question too
    rows = 1 if query.shape[2] == 1 else 2
    columns = 1 if key.shape[2] == 1 else 2 if not is_causal or query.shape[2] == key.shape[2] else 3
    shared = enable_gqa and not bool(query.shape[1] == key.shape[1])

    def like(x: TensorSpec, rows: int, columns: int, grad: bool) -> torch.Tensor:
        lead = [1 if layout.known_equal(s, 1) else 2 for s in x.shape[:-2]]
        if x is query and shared:
            lead[1] = 4
        sizes = (*lead, 1 if x.shape[-2] == 1 else rows, columns)
        steps = () if _have_dense_rows(x) else (2,)
        made = torch.empty((*sizes, *steps), dtype=x.dtype, device=x.device)
        made = made[..., 0] if steps else made
        return made.requires_grad_(grad and x.dtype.is_floating_point)

    operands, of_mask = gradients
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        given = [
            like(x, length, _width(x.shape[3]), operands)
            for x, length in ((query, rows), (key, columns), (value, columns))
        ]
        bias = None if mask is None else like(mask, rows, 1 if mask.shape[-1] == 1 else columns, of_mask)
        return int(torch._fused_sdp_choice(*given, bias, dropout_p, is_causal, enable_gqa=enable_gqa))


def _width(size: Size) -> int:
    """The width of a head. All widths are alike of which PyTorch's questions have the same answers."""
    if not isinstance(size, int):
        for unit in (4, 8):
            _divisible(size, unit)
        for most in (1, 64, 128, 192, 224, 256):
            bool(size <= most)
        size = size.hint
    return int(size)


def _supposed(
    query: TensorSpec, key: TensorSpec, value: TensorSpec, mask: TensorSpec | None, is_causal: bool, enable_gqa: bool
) -> int:
    """As ``cuda/sdp_utils.cpp`` chooses for dense tensors, in PyTorch's default order, on a Hopper GPU with cuDNN 9.10
    or later, honouring the flags of ``torch.backends.cuda``."""
    flags = torch.backends.cuda
    dense = _have_dense_rows(query, key, value)
    if (mask is not None and not _have_dense_rows(mask)) or not (dense or query.shape[3] == 1):
        return MATH
    half = query.dtype in HALVES
    same_heads = not _last_dims_differ(query, key, value)
    if half and same_heads and _suits_cudnn(query, key) and flags.cudnn_sdp_enabled() and not enable_gqa:
        return CUDNN
    square = not is_causal or bool(query.shape[2] == key.shape[2])
    if half and same_heads and mask is None and square and flags.flash_sdp_enabled() and bool(query.shape[3] <= 256):
        return FLASH
    aligned = 8 if half else 4
    if (
        dense
        and flags.mem_efficient_sdp_enabled()
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


def _have_dense_rows(*specs: TensorSpec) -> bool:
    """Are elements of the last dimension side by side? Fused kernels want it, of a dimension of one element too."""
    return all(bool(x.strides[-1] == 1) for x in specs)


def _divisible(size: Size, by: int) -> bool:
    return bool(size % by == 0)


def _suits_cudnn(q: TensorSpec, k: TensorSpec) -> bool:
    return _divisible(q.shape[3], 8) and bool(q.shape[3] <= 256) and bool(k.shape[2] > 1)


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
    return sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)


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
