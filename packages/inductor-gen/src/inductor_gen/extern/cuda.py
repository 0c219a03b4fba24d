"""Operators on CUDA whose fastest call differs from the plain one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from prims.dtypes import HALVES
from prims.errors import Refused

if TYPE_CHECKING:
    from inductor_gen.loops.graph import Node

__all__ = ["FUNCTIONS", "cuda_function", "distinct", "is_half_product", "misaligned", "with_aligned_rows"]


def cuda_function(node: Node) -> tuple[str, Callable[..., Any]] | None:
    """``(readable name, callable)`` for an extern node on a GPU, None where the plain call is best."""
    return _ATTENTION.get(node.op)


def misaligned(node: Node) -> bool:
    """Is it a large product on a GPU whose rows are no multiple of 16 bytes? cuBLAS is several times slower then."""
    if node.op not in ("aten.mm.default", "aten.addmm.default") or not node.on_gpu:
        return False
    if node.dtype not in HALVES or not all(s.is_const for s in node.shape):
        return False
    left = node.ins[-2] if len(node.ins) > 1 else node.ins[0]
    rows, columns = (int(s.value) for s in node.shape)
    return columns % 8 != 0 and rows * columns >= 1 << 22 and rows >= 64 and left.dtype == node.dtype


def with_aligned_rows(bias: torch.Tensor | None) -> torch.Tensor | None:
    """An attention's bias whose rows begin at multiples of 16 bytes, copied where they do not.

    The memory-efficient kernels need it. Eager pads the bias before it calls them; the padding is lost where a
    generated kernel writes the bias.
    """
    if bias is None:
        return None
    unit = 16 // bias.element_size()
    if bias.data_ptr() % 16 == 0 and bias.stride(-1) == 1 and all(s % unit == 0 for s in bias.stride()[:-1]):
        return bias
    once, columns = distinct(bias), bias.shape[-1]
    wide = -(-columns // unit) * unit
    padded = torch.empty((*once.shape[:-1], wide), dtype=bias.dtype, device=bias.device)[..., :columns]
    return padded.copy_(once).expand(bias.shape)


def distinct(x: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that expansion does not repeat."""
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if stride == 0 and size > 1:
            x = x.narrow(dim, 0, 1)
    return x


def efficient_attention(query: Any, key: Any, value: Any, bias: Any, *rest: Any, **kw: Any) -> Any:
    """The memory-efficient attention with whatever bias."""
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    return op(query, key, value, with_aligned_rows(bias), *rest, **kw)


def efficient_attention_backward(grad: Any, query: Any, key: Any, value: Any, bias: Any, *rest: Any, **kw: Any) -> Any:
    """Its backward."""
    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    return op(grad, query, key, value, with_aligned_rows(bias), *rest, **kw)


_REFUSED: set[Any] = set()  # kinds of operands that cuDNN has no kernel for


def cudnn_attention(query: Any, key: Any, value: Any, *rest: Any, **kw: Any) -> Any:
    """cuDNN's attention; where it refuses to share heads of keys and values they are repeated."""
    op = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    times = query.shape[1] // key.shape[1]
    if times == 1:
        return op(query, key, value, *rest, **kw)
    kind = (rest[1:], *((t.shape, t.stride(), t.dtype) for t in (query, key, value)))
    if kind not in _REFUSED:
        try:
            return op(query, key, value, *rest, **kw)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            _REFUSED.add(kind)
    return op(query, key.repeat_interleave(times, 1), value.repeat_interleave(times, 1), *rest, **kw)


_PLANS = threading.local()


def _planned() -> dict[Any, tuple[Any, Any]]:
    """Per kind of operands the strides of the result and its gradient for which this thread's plans are made."""
    found: dict[Any, tuple[Any, Any]] | None = getattr(_PLANS, "strides", None)
    if found is None:
        found = _PLANS.strides = {}
    return found


def _laid_out(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def cudnn_attention_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, seed: Any, offset: Any, bias: Any,
    cum_q: Any, cum_k: Any, max_q: Any, max_k: Any, dropout: float, causal: bool, *, scale: float | None = None,
) -> Any:  # fmt: skip
    """cuDNN's backward, or the memory-efficient kernel's, forward again and backward, where cuDNN refuses its operands.

    cuDNN crashes when it is asked again for a plan that it has failed to make, so that it is asked once.

    PyTorch keeps a plan for each kind of queries, keys, values and bias, whatever the strides of the forward's result
    and its gradient were when it was made (``MHACacheKeyWrapper`` in its ``MHA.cpp``): with other ones it computes
    wrong gradients. They are laid out as in the first call of their kind on the thread, as plans are kept by thread.

    Raises:
        Refused: cuDNN refuses, and the dropout of its forward cannot be repeated by another kernel.
    """
    query, key, value, out = (t if t.stride(-1) == 1 else t.contiguous() for t in (query, key, value, out))
    grad = grad if grad.stride(-1) == 1 else _laid_out(grad, out.stride())
    plan = (
        query.device, query.dtype, dropout, causal,
        *(None if t is None else (t.shape, t.stride()) for t in (query, key, value, bias)),
    )  # fmt: skip
    result, gradient = _planned().setdefault(plan, (out.stride(), grad.stride()))
    out, grad = _laid_out(out, result), _laid_out(grad, gradient)
    kind = (causal, scale, *((t.shape, t.stride(), t.dtype) for t in (grad, query, key, value, out)))
    op = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
    if kind not in _REFUSED:
        try:
            return op(grad, query, key, value, out, logsumexp, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout,
                      causal, scale=scale)  # fmt: skip
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            if dropout:
                raise Refused(str(error)) from error
            _REFUSED.add(kind)
    bias = with_aligned_rows(bias)
    forward = torch.ops.aten._scaled_dot_product_efficient_attention.default
    again, summed, seed, offset = forward(query, key, value, bias, True, 0.0, causal, scale=scale)
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    wanted = [True, True, True, False]
    return backward(
        grad, query, key, value, bias, again, summed, seed, offset, 0.0, wanted, causal, scale=scale
    )[:3]  # fmt: skip


_ATTENTION = {
    f"aten._scaled_dot_product_{function.__name__}.default": (function.__name__, function)
    for function in (cudnn_attention, cudnn_attention_backward, efficient_attention, efficient_attention_backward)
}


def is_half_product(node: Node) -> bool:
    """Is it a product of 16-bit matrices on a GPU?"""
    return node.on_gpu and node.op in ("aten.mm.default", "aten.addmm.default") and node.dtype in HALVES


#: The functions of this module that generated code calls, by name.
FUNCTIONS = dict(_ATTENTION.values())
