"""Normalised values made again from the saved statistics, without a second reduction.

A backward pass keeps a normalisation's mean and reciprocal deviation anyway; of these, ``x``, the weight and the bias
its result is made pointwise, so that only ``x`` has to be kept beside them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from prims.spec import TensorSpec, infer

__all__ = ["KEPT", "forget_statistics", "keep_norms", "operands_of_norm", "rebuild_norm"]

KEPT = "kept"
"""``node.meta`` key of a normalisation whose result is not to be made again by another formula."""

aten = torch.ops.aten

_LAYER = aten.native_layer_norm.default
_BATCH = aten._native_batch_norm_legit_functional.default
_HALVES = (torch.float16, torch.bfloat16)


def forget_statistics(graph: torch.fx.Graph) -> None:
    """Let the gradients of batch norms take only the statistics that they make something of: running ones in
    evaluation, where those of the batch are empty, the batch's in training. Nobody has to keep the others."""
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and isinstance(node.args[7], bool):
            unused = (3, 4) if node.args[7] else (5, 6)
        elif node.target is aten.cudnn_batch_norm_backward.default:  # it always trains
            unused = (3, 4)
        else:
            continue
        for place in unused:
            node.update_arg(place, None)


def operands_of_norm(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """What a normalised value can be made from pointwise, or None for any other node.

    The input, weight and bias (where there are any), mean and reciprocal deviation, in this order. What is of 16 bits
    needs statistics in float32, as a GPU's are, and those of float32 parameters.
    """
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    norm = node.args[0]
    if not isinstance(norm, torch.fx.Node) or norm.target not in (_LAYER, _BATCH) or KEPT in norm.meta:
        return None
    if norm.target is _BATCH and type(norm.args[7]) not in (int, float):
        return None
    statistics = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    mean, rstd = statistics.get(1), statistics.get(2)
    if mean is None or rstd is None:
        return None
    value, weight, bias = _parameters(norm)
    dtype = node.meta["spec"].dtype
    given = [part for part in (value, weight, bias) if part is not None]
    # Statistics in 16 bits give values of which some have another sign: a rectifier's gradient would differ.
    wide = torch.float32 if dtype in _HALVES else dtype
    if value.meta["spec"].dtype != dtype or any(part.meta["spec"].dtype != wide for part in (mean, rstd)):
        return None
    if any(part.meta["spec"].dtype not in (dtype, wide) for part in given):
        return None
    return [*given, mean, rstd]


def keep_norms(graph: torch.fx.Graph) -> None:
    """Mark the normalisations of a graph in which roundings are to be eager's, which another formula's are not."""
    for node in graph.nodes:
        if node.target in (_LAYER, _BATCH):
            node.meta[KEPT] = True


def _parameters(norm: torch.fx.Node) -> tuple[Any, Any, Any]:
    args = norm.args
    return (args[0], args[2], args[3]) if norm.target is _LAYER else (args[0], args[1], args[2])


def rebuild_norm(
    node: torch.fx.Node, graph: torch.fx.Graph, mapped: Callable[[torch.fx.Node], torch.fx.Node]
) -> torch.fx.Node:
    """Add the formula of :mod:`prims.decomp.normalisation` to ``graph``, in the statistics' type. Operands are there.

    It is the forward pass's own: what is normalised next has its statistics of numbers that were rounded so, and where
    those hardly differ, others' roundings would be most of what is left of them without their mean.
    """
    norm: Any = node.args[0]
    items = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    value, weight, bias = _parameters(norm)

    def call(func: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        made = graph.call_function(func, args, kwargs)
        specs = [a.meta["spec"] if isinstance(a, torch.fx.Node) else a for a in args]
        made.meta["spec"] = infer(func, tuple(specs), kwargs)
        if "source" in node.meta:
            made.meta["source"] = node.meta["source"]
        return made

    spec: TensorSpec = node.meta["spec"]
    wide = items[1].meta["spec"].dtype  # what the forward pass computes in

    def operand(of: torch.fx.Node) -> torch.fx.Node:
        made = mapped(of)
        if made.meta["spec"].dtype != wide:
            made = call(aten._to_copy.default, made, dtype=wide)
        channels = norm.target is _BATCH and of is not value
        if channels and len(spec.shape) > 2:
            return call(aten.view.default, made, [spec.shape[1]] + [1] * (len(spec.shape) - 2))
        return made

    x, mean, rstd = (operand(of) for of in (value, items[1], items[2]))
    w, b = (None if of is None else operand(of) for of in (weight, bias))
    if norm.target is _BATCH and spec.device.type == "cpu":
        result = _by_channel(call, x, mean, rstd, w, b, _eps(norm))
    else:
        result = call(aten.mul.Tensor, call(aten.sub.Tensor, x, mean), rstd)
        if w is not None:
            result = call(aten.mul.Tensor, result, w)
        if b is not None:
            result = call(aten.add.Tensor, result, b)
    return result if spec.dtype == wide else call(aten._to_copy.default, result, dtype=spec.dtype)


def _eps(norm: torch.fx.Node) -> float:
    return float(norm.args[7])  # type: ignore[arg-type]


def _by_channel(call: Callable[..., Any], x: Any, mean: Any, rstd: Any, weight: Any, bias: Any, eps: float) -> Any:
    """``x * scale + shift``, as a CPU's kernels have it. A channel whose numbers are all the same is its bias: there,
    as far as the reciprocal deviation tells, the mean is taken from ``x`` instead."""
    scale = rstd if weight is None else call(aten.mul.Tensor, rstd, weight)
    product = call(aten.mul.Tensor, mean, scale)
    shift = call(aten.neg.default, product) if bias is None else call(aten.sub.Tensor, bias, product)
    if eps > 0.0:
        least = torch.finfo(rstd.meta["spec"].dtype).eps
        constant = call(aten.ge.Scalar, rstd, (1.0 - least) / math.sqrt(eps))
        nothing = call(aten.zeros_like.default, mean)
        x = call(aten.sub.Tensor, x, call(aten.where.self, constant, mean, nothing))
        shift = call(aten.where.self, constant, nothing if bias is None else bias, shift)
    return call(aten.add.Tensor, call(aten.mul.Tensor, x, scale), shift)
