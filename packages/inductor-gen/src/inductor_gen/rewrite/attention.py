"""Attention that a program writes out: queries by keys, a scale, a mask, a softmax, and the product with values.

A fused kernel computes the same and keeps the scores to itself, which are the square of the length. It differs in one
case: where a row hides everything by minus infinity the formula gives NaN, the kernels zero. So a mask is taken only
where its elements are finite by how it is made, or where it is constant and every row sees something.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.edit import Editor
from inductor_gen.rewrite.masks import kind_of_mask, value_of
from inductor_gen.rewrite.row import Context
from prims.dtypes import HALVES
from prims.records import record
from prims.spec import TensorSpec
from prims.spec.rules import attention as kernels

__all__ = ["Written", "fuse", "written"]

_PRODUCTS = ("aten.bmm.default", "dot")

#: Primitives of finite numbers whose results are finite: sums and products of a mask's few terms are.
_FINITE = frozenset(("where", "add", "sub", "mul", "neg", "convert", "minimum", "maximum", "full", "gather", "index"))

#: Scores of one head from which the fused kernel pays: it works at blocks of 64 or 128 rows and columns.
LEAST = 128 * 128

#: What follows the mask (or its absence) among a kernel's arguments, before the causal flag and after it.
_KERNELS = {
    kernels.FLASH: ("flash", False, (0.0,), (False,)),
    kernels.EFFICIENT: ("efficient", True, (False, 0.0), ()),
    kernels.CUDNN: ("cudnn", True, (False, 0.0), (False,)),
}


@record
class Written:
    """What attends.

    Attributes:
        operands: queries, keys (their last two dimensions swapped) and values, as the products take them.
        lead: batch and heads.
        scale: of the scores.
        mask: what is added to them; or what decides about them, with the numbers for true and false.
        causal: is it instead a mask that hides what comes later?
        kernel: one of PyTorch's, as it would choose.
    """

    operands: tuple[Node, Node, Node]
    lead: tuple[Any, ...]
    scale: float
    mask: tuple[Any, ...]
    causal: bool
    kernel: int


def written(node: Node, c: Context) -> Written | None:
    """The attention whose last product this is."""
    weights = _alone(node.args[0], c, node) if node.op in _PRODUCTS and not c.training else None
    x = None if weights is None else _softmax(weights, c)
    found = None if x is None else _scores(x, c)
    if weights is None or found is None or len(weights.shape) not in (3, 4):
        return None
    product, scale, mask = found
    query, key, value = operands = (*product.args, node.args[1])
    *lead, rows, columns = weights.spec.shape
    sizes = (*query.shape, *key.shape, *value.shape)
    if {x.dtype for x in operands} != {node.dtype} or not all(s.is_const and s.value for s in sizes):
        return None
    if not node.on_gpu and node.dtype in HALVES:
        return None  # of these a CPU's kernel takes as long as the two products
    sees, causal = _sees(mask, c)
    if rows * columns < LEAST or not (sees or _is_finite(mask, c)):
        return None
    mask, lead = () if causal else mask, (1, *lead) if len(lead) == 1 else tuple(lead)
    widths = ((rows, query.shape[-1]), (columns, key.shape[-2]), (columns, value.shape[-1]))
    q, k, v = [TensorSpec((*lead, n, w.value), node.dtype, node.device) for n, w in widths]  # type: ignore[arg-type]
    kernel = kernels.sdp_choice(q, k, v, q if mask else None, 0.0, causal, cudnn=kernels.cudnn_comes_first)
    return None if kernel == kernels.MATH else Written(operands, lead, scale, mask, causal, kernel)


def _sees(mask: tuple[Any, ...], c: Context) -> tuple[bool, bool]:
    """Is the mask constant, and sees every row something? Does it hide just what comes later?"""
    if not mask:
        return True, False
    found = mask[0]
    if found.op == "broadcast" and tuple(found.args[2])[-2:] == (len(found.shape) - 2, len(found.shape) - 1):
        found = found.args[0]
    value = value_of(found, c.hint)
    if value is not None and len(mask) == 3:
        value = torch.where(value, *(torch.tensor(-math.inf if x else 0.0, device=value.device) for x in mask[1:]))
    sees = value is not None and bool((value > -math.inf).any(-1).all())
    return sees, value is not None and sees and kind_of_mask(value) == "causal"


def _is_finite(mask: tuple[Any, ...], c: Context) -> bool:
    """Are the mask's elements finite whatever its inputs are, parameters taken to be so?"""
    todo: list[Any] = [x for x in mask if len(mask) == 1 or not isinstance(x, Node)]
    while todo:
        x = todo.pop()
        if isinstance(x, float) and not math.isfinite(x):
            return False
        if isinstance(x, Node) and x not in c.parameters and x.dtype is not None and x.dtype.is_floating_point:
            if x.kind != "view" and x.op not in _FINITE:
                return False
            todo += x.args[0] if x.op == "concat" else x.args
    return True


def _alone(x: Node, c: Context, *readers: Node) -> Node | None:
    """What ``x`` is by conversions and views that keep its rows, where nothing but these readers takes any of it."""
    while not (set(x.users) - set(readers)) and x not in c.results:
        same = (x.op == "convert" and x.args[0].dtype.is_floating_point) or (x.kind == "view" and _keeps_rows(x))
        if not same:
            return x
        readers, x = (x,), x.args[0]
    return None


def _keeps_rows(x: Node) -> bool:
    """Is it a view of the same rows, in the same order?"""
    is_one = lambda s: s.is_const and s.value == 1
    if x.op == "permute":
        moved = [d for d in x.args[1] if not is_one(x.args[0].shape[d])]
        return moved == sorted(moved)
    rows = [[s for s in n.shape if not is_one(s)][-2:] for n in (x, x.args[0])] if x.op == "reshape" else [[], [0]]
    return rows[0] == rows[1]


def _softmax(x: Node, c: Context) -> Node | None:
    """What ``x`` is the softmax of, along the last dimension."""
    if x.op != "div" or x.args[0] not in x.ins or x.args[0].op != "exp" or x.args[0].args[0].op != "sub":
        return None
    power, total, shifted = x.args[0], x.args[1], x.args[0].args[0]
    of, top = shifted.args
    if _spread(total, "sum") is not power or _spread(top, "amax") is not of:
        return None
    inside = {power, shifted, top, total, top.args[0], total.args[0]}
    apart = all(set(n.users) <= {x, *inside} and n not in c.results for n in inside)
    return _alone(of, c, shifted, top.args[0]) if apart else None


def _spread(x: Any, op: str) -> Any:
    """The operand of a reduction over the last dimension, of which ``x`` is the broadcast result."""
    last = len(x.shape) - 1 if isinstance(x, Node) else -1
    if last < 1 or x.op != "broadcast" or tuple(x.args[2]) != tuple(range(last)) or x.args[0].op != op:
        return None
    return x.args[0].args[0] if tuple(x.args[0].args[1]) == (last,) else None


def _scores(x: Node | None, c: Context) -> tuple[Node, float, tuple[Any, ...]] | None:
    """The product that scores are made of, its scale, and what masks it: nothing, a node, or a decision and numbers."""
    scale = 1.0
    mask: tuple[Any, ...] = ()
    while x is not None and x.op not in _PRODUCTS:
        nodes, numbers = [a for a in x.args if isinstance(a, Node)], [a for a in x.args if isinstance(a, (int, float))]
        if x.op in ("mul", "div") and numbers == [x.args[1]]:
            scale *= numbers[0] if x.op == "mul" else 1 / numbers[0]
            inner = nodes
        elif x.op == "add" and len(nodes) == 2 and not mask and scale == 1.0:
            inner = [a for a in nodes if _leads_to_product(a)]
            mask = tuple(a for a in nodes if a not in inner)
        elif x.op == "where" and len(nodes) == 2 and not mask and scale == 1.0:
            # What is hidden by a larger number would still differ from row to row when it is added.
            hides = numbers[0] <= torch.finfo(x.dtype).min / 2  # type: ignore[arg-type]
            inner = nodes[1:] if hides else []
            mask = (nodes[0], *(0.0 if isinstance(a, Node) else a for a in x.args[1:]))
        else:
            return None
        x = _alone(inner[0], c, x) if len(inner) == 1 else None
    return None if x is None else (x, scale, mask)


def _leads_to_product(x: Node) -> bool:
    while x.op in ("mul", "div", "convert", "reshape", "permute"):
        x = x.args[0]
    return x.op in _PRODUCTS


def fuse(p: Editor, node: Node, w: Written) -> None:
    """The fused kernel."""
    query, key, value = (_apart(p, x, w.lead) for x in w.operands)
    key = key.args[0] if key.op == "permute" and tuple(key.args[1]) == (0, 1, 3, 2) else p.permute(key, (0, 1, 3, 2))
    mask: Any = w.mask[0] if w.mask else None
    if len(w.mask) == 3:
        mask = p.where(mask, *(p.full(mask.spec.shape, x, node.dtype, node.device) for x in w.mask[1:]))
    if mask is not None:
        mask = mask if mask.dtype == node.dtype else p.convert(mask, node.dtype)
        mask = _apart(p, mask, w.lead)
    if not node.on_gpu:
        op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        made = p.aten(op, query, key, value, 0.0, w.causal, attn_mask=mask, scale=w.scale)
    else:
        name, masked, before, after = _KERNELS[w.kernel]
        op = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default
        masks = (mask,) if masked else ()
        made = p.aten(op, query, key, value, *masks, *before, w.causal, *after, scale=w.scale)
    shape = node.spec.shape
    p.replace(node, made[0] if len(shape) == 4 else p.reshape(made[0], shape))


def _apart(p: Editor, x: Node, lead: tuple[Any, ...]) -> Node:
    """An operand with batch and heads apart, as it was before they became one dimension."""
    shape = (*lead, *x.spec.shape[-2:])
    before = x.args[0] if x.op == "reshape" else x
    return before if tuple(before.spec.shape) == shape else p.reshape(x, shape)
