"""Linear layers followed by a tanh-approximated gelu: on a GPU the library's product computes both.

cuBLASLt adds the bias and applies the gelu to float32 sums before it rounds them, in the product's own kernel; a kernel
of ours would read and write the whole matrix once more. Programs write this gelu as a formula as often as they call
``gelu``, so that it is known by its values: a formula of analytic operations that agrees with it at many points is it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import torch

from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.row import Context, Editor
from prims.dtypes import HALVES
from prims.ops import PrimOp

__all__ = ["LINEAR", "activated", "join"]

LINEAR = "aten.addmm.default"

_ANALYTIC = frozenset({"add", "convert", "div", "exp", "mul", "neg", "pow", "sub", "tanh"})

#: Nodes of a formula that is looked at.
_MOST = 24


def activated(node: Node, c: Context) -> tuple[Node, list[Node]] | None:
    """A product with a bias, on a GPU and of 16 bits, as its reader takes it, and the gelu that alone reads it.

    None where a kernel reads the gelu: that one computes it as well.
    """
    if not _is_linear(node) or node in c.results:
        return None
    shaped = node.users[0] if len(node.users) == 1 and node.users[0].op == "reshape" else node
    region = None if shaped in c.results else _gelu(shaped, c.results)
    if region is None or any(user.kind in ("pointwise", "reduce", "scan") for user in region[-1].users):
        return None
    return shaped, region


def join(p: Editor, node: Node, found: tuple[Node, list[Node]]) -> None:
    """Let the product compute the gelu."""
    last = found[1][-1]
    product = p.aten(torch.ops.aten._addmm_activation.default, *node.args, use_gelu=True, spec=node.spec)
    p.replace(last, p.reshape(product, last.spec.shape))


def _is_linear(node: Node) -> bool:
    """Is it ``bias + a @ b`` that cuBLASLt takes: 16-bit on a GPU, a row for bias, rows of whole 16 bytes?"""
    if node.op != LINEAR or node.kwargs or not node.on_gpu:
        return False
    bias, columns = node.args[0], node.shape[1]
    if node.dtype not in HALVES or any(x.dtype != node.dtype for x in node.ins):
        return False
    return len(bias.shape) == 1 and bias.shape[0] is columns and columns.is_const and columns.value % 8 == 0


def _gelu(x: Node, outputs: Collection[Node]) -> list[Node] | None:
    """The nodes that compute gelu(x), in order, where they alone read ``x``; None where there are none."""
    region: dict[Node, None] = {}
    waiting = sorted(x.users, key=lambda n: n.id)
    while waiting and len(region) < _MOST:
        node = waiting.pop(0)
        if node in region:
            continue
        if node.kind != "pointwise" or node.op not in _ANALYTIC or not all(i is x or i in region for i in node.ins):
            return None
        region[node] = None
        open_ = [n for n in (x, *region) if n in outputs or any(user not in region for user in n.users)]
        if open_ == [node] and any(n.op == "tanh" for n in region) and node.shape == x.shape and node.dtype == x.dtype:
            if _is_gelu(x, list(region)):
                return list(region)
        waiting = sorted({*waiting, *node.users}, key=lambda n: n.id)
    return None


def _is_gelu(x: Node, region: list[Node]) -> bool:
    points, wanted = _points()
    values: dict[Node, Any] = {x: points}
    for node in region:
        if node.op == "convert":
            if not node.args[1].is_floating_point:
                return False
            values[node] = values[node.args[0]]
            continue
        if not isinstance(node.target, PrimOp):
            return False
        values[node] = node.target(*(values[a] if isinstance(a, Node) else a for a in node.args))
    return bool(torch.allclose(values[region[-1]], wanted, rtol=1e-6, atol=1e-7))


@functools.lru_cache(maxsize=1)
def _points() -> tuple[torch.Tensor, torch.Tensor]:
    """Points, in float64, and gelu there."""
    points = torch.cat([torch.linspace(-6, 6, 97, dtype=torch.float64), torch.tensor([-60.0, 60.0, 1000.0]).double()])
    return points, torch.nn.functional.gelu(points, approximate="tanh")
