"""Losses."""

from __future__ import annotations

from typing import Any

import torch

from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes, iterate
from prims.spec.promote import result_dtype
from prims.spec.rules.creation import with_format
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym
NONE = 0  # at::Reduction::None


def _reduced(out: TensorSpec, reduction: int) -> TensorSpec:
    return out if reduction == NONE else TensorSpec((), out.dtype, out.device)


def _agree(what: str, a: tuple[Size, ...], b: tuple[Size, ...]) -> None:
    if a != b:
        raise RuntimeError(f"size mismatch: {what} are of sizes {list(a)} and {list(b)}")


def _check_type_of(given: TensorSpec, x: TensorSpec) -> None:
    if given.dtype != x.dtype:
        raise RuntimeError(f"expected {x.dtype} but found {given.dtype}")


def _check_target(target: TensorSpec, types: tuple[torch.dtype, ...]) -> None:
    if target.dtype not in types:
        raise RuntimeError(f"a target of {target.dtype}, where it is one of {', '.join(map(str, types))}")


@meta_rule("aten.nll_loss_forward.default")
def nll_loss_forward(
    x: TensorSpec, target: TensorSpec, weight: TensorSpec | None, reduction: int, ignore_index: Size
) -> tuple[TensorSpec, TensorSpec]:
    _check_target(target, (torch.int64, torch.uint8))
    if x.ndim == 2:
        _agree("the batches", x.shape[:1], target.shape)
    if weight is not None:
        _agree("classes and weights", x.shape[-1:], weight.shape)
        _check_type_of(weight, x)
    total = TensorSpec((), x.dtype, x.device)
    if reduction == NONE and x.ndim == 2:
        return TensorSpec((x.shape[0],), x.dtype, x.device), total
    return total, total


@meta_rule("aten.nll_loss_backward.default")
def nll_loss_backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.nll_loss2d_forward.default")
def nll_loss2d_forward(
    x: TensorSpec, target: TensorSpec, weight: TensorSpec | None, reduction: int, ignore_index: Size
) -> tuple[TensorSpec, TensorSpec]:
    _check_target(target, (torch.int64,))
    _agree("input and target", (x.shape[0], *x.shape[2:]), target.shape)
    if weight is not None:
        _agree("classes and weights", x.shape[1:2], weight.shape)
        _check_type_of(weight, x)
    total = TensorSpec((), x.dtype, x.device)
    if reduction == NONE:
        return TensorSpec((x.shape[0], x.shape[2], x.shape[3]), x.dtype, x.device), total
    return total, total


@meta_rule("aten.nll_loss2d_backward.default")
def nll_loss2d_backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
    return with_format(x, torch.contiguous_format, x.dtype, x.device)


@meta_rule("aten.mse_loss.default")
def mse_loss(x: TensorSpec, target: TensorSpec, reduction: int = 1) -> TensorSpec:
    return _reduced(iterate((x, target), result_dtype((x, target))), reduction)


@meta_rule("aten.huber_loss.default")
def huber_loss(x: TensorSpec, target: TensorSpec, reduction: int = 1, delta: float = 1.0) -> TensorSpec:
    if isinstance(delta, (int, float)) and not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return _of_input(x, target, reduction)


@meta_rule("aten.smooth_l1_loss.default")
def smooth_l1_loss(x: TensorSpec, target: TensorSpec, reduction: int = 1, delta: float = 1.0) -> TensorSpec:
    if type(delta) in (int, float) and delta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return _reduced(iterate((x, target), result_dtype((x, target))), reduction)


@meta_rule("aten.soft_margin_loss.default")
def soft_margin_loss(x: TensorSpec, target: TensorSpec, reduction: int = 1) -> TensorSpec:
    found = _of_input(x, target, reduction)
    if (shape := broadcast_shapes((x.shape, target.shape))) != x.shape:
        raise RuntimeError(f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(shape)}")
    return found


def _of_input(x: TensorSpec, target: TensorSpec, reduction: int) -> TensorSpec:
    """Of the input's type, and laid out as it: eager computes into an ``empty_like`` of it."""
    if not torch.can_cast(result_dtype((x, target)), x.dtype):
        raise RuntimeError(
            f"result type {result_dtype((x, target))} can't be cast to the desired output type {x.dtype}"
        )
    if broadcast_shapes((x.shape, target.shape)) == x.shape:
        return _reduced(with_format(x, None, x.dtype, x.device), reduction)
    return _reduced(iterate((x, target), x.dtype, common=result_dtype((x, target))), reduction)


@meta_rule(
    "aten.mse_loss_backward.default",
    "aten.smooth_l1_loss_backward.default",
)
def mse_loss_backward(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    dtype = result_dtype((x, target))
    return TensorSpec(broadcast_shapes((x.shape, target.shape)), dtype, x.device)


@meta_rule("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    """Laid out as the target times a function of the target's product with the input, as eager computes it."""
    dtype = result_dtype((x, target))
    return iterate((target, iterate((target, x), dtype)), dtype)


@meta_rule("aten.huber_loss_backward.default")
def huber_loss_backward(grad: TensorSpec, x: TensorSpec, target: TensorSpec, *args: Any) -> TensorSpec:
    if x.dtype != target.dtype:
        raise RuntimeError(f"Found dtype {target.dtype} but expected {x.dtype}")
    return mse_loss_backward(grad, x, target)


@meta_rule("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    x: TensorSpec, target: TensorSpec, weight: TensorSpec | None = None, reduction: int = 1
) -> TensorSpec:
    for given in (target, weight):
        if given is not None and x.device.type == "cpu":
            _check_type_of(given, x)
    return _reduced(with_format(x, None, x.dtype, x.device), reduction)


@meta_rule("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.binary_cross_entropy_with_logits.default")
def bce_with_logits(
    x: TensorSpec, target: TensorSpec, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> TensorSpec:
    """Laid out as the target, and of its type: it is computed as ``(1 - target).mul_(x)``..."""
    if not x.dtype.is_floating_point:
        raise RuntimeError(f"there is no log_sigmoid of {x.dtype}")
    if not torch.can_cast(result_dtype((x, target)), target.dtype):
        raise RuntimeError(f"result type {result_dtype((x, target))} can't be cast to {target.dtype}")
    return _reduced(iterate((target,), target.dtype), reduction)


@meta_rule("aten.multi_margin_loss.default")
def multi_margin_loss(
    x: TensorSpec, target: TensorSpec, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> TensorSpec:
    if reduction == NONE and x.ndim == 2:
        return TensorSpec((x.shape[0],), x.dtype, x.device)
    return TensorSpec((), x.dtype, x.device)


@meta_rule("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss(x: TensorSpec, target: TensorSpec, reduction: int) -> tuple[TensorSpec, TensorSpec]:
    if x.ndim:
        _agree("input and target", x.shape, target.shape)
    is_target = TensorSpec(target.shape, x.dtype, x.device)
    if reduction == NONE and x.ndim == 2:
        return TensorSpec((x.shape[0],), x.dtype, x.device), is_target
    return TensorSpec((), x.dtype, x.device), is_target


@meta_rule("aten._ctc_loss.default")
def ctc_loss(
    log_probs: TensorSpec, targets: TensorSpec, input_lengths: Any, target_lengths: Any, *args: Any
) -> tuple[TensorSpec, TensorSpec]:
    batch = log_probs.shape[1]
    longest = 2 * max(map(int, target_lengths), default=0) + 1
    alpha = TensorSpec((batch, max(map(int, input_lengths)), longest), log_probs.dtype, log_probs.device)
    return TensorSpec((batch,), log_probs.dtype, log_probs.device), alpha


@meta_rule("aten.multi_margin_loss_backward.default", "aten.multilabel_margin_loss_backward.default")
def margin_loss_backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten._ctc_loss_backward.default", "aten._ctc_loss_backward.Tensor")
def ctc_loss_backward(grad: TensorSpec, log_probs: TensorSpec, *args: Any) -> TensorSpec:
    return TensorSpec(log_probs.shape, log_probs.dtype, log_probs.device)
