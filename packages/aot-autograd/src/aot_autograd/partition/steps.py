"""Values that jump: comparisons, roundings to whole numbers, signs.

Made a second time, of operands that came out different in their last places, they may be other values altogether, and a
gradient would be that of a branch not taken.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from aot_autograd.partition.costs import is_fusible, name_of
from aot_autograd.partition.split import is_backward, is_view
from prims.spec import TensorSpec

__all__ = ["is_floating", "jumps_made_once"]

#: Those whose results are floating-point numbers; the others are known by their results, bools and integers.
_JUMPING = frozenset(
    "sign sgn floor ceil round trunc fix frac floor_divide remainder fmod heaviside logical_not logical_and logical_or "
    "logical_xor _to_copy div".split()
)
#: What rounds nothing: results are some of the operands' numbers, or their opposites.
_EXACT = frozenset(
    "abs neg relu clamp clamp_min clamp_max maximum minimum fmax fmin where cat stack flip roll repeat clone copy "
    "constant_pad_nd masked_fill select_scatter slice_scatter full full_like zeros zeros_like ones ones_like arange "
    "index index_select gather embedding random_uniform random_normal scalar_tensor empty empty_like".split()
)
#: What rounds once, and so in the same way wherever it is computed.
_ONCE = frozenset("add sub mul div sqrt reciprocal rsub".split())
_SUMS = frozenset("add sub rsub".split())
_HALVES = (torch.float16, torch.bfloat16)


def is_floating(node: torch.fx.Node) -> bool:
    """Whether a node is a tensor of floating-point numbers."""
    spec = node.meta["spec"]
    return isinstance(spec, TensorSpec) and spec.dtype.is_floating_point


def jumps_made_once(nodes: Any) -> set[torch.fx.Node]:
    """The forward values that jump and whose operands, computed again, may come out different in their last places."""
    return {
        node for node in nodes
        if not is_backward(node) and is_fusible(node) and _jumps(node) and any(map(_may_differ, node.all_input_nodes))
    }  # fmt: skip


def _jumps(node: torch.fx.Node) -> bool:
    spec = node.meta["spec"]
    if not isinstance(spec, TensorSpec) or is_view(node):
        return False
    if not any(map(is_floating, node.all_input_nodes)):
        return False
    if not spec.dtype.is_floating_point and not spec.dtype.is_complex:
        return True
    return name_of(node) in _JUMPING - {"_to_copy", "div"} or node.kwargs.get("rounding_mode") is not None


def _may_differ(operand: torch.fx.Node) -> bool:
    """Whether a value may round otherwise in another kernel: in it are a function of a library, a sum of several, a
    product that is added to something (one rounding or two), or a narrow type, in which a kernel does not round what it
    goes on with."""
    stack, seen = [operand], set()
    while stack:
        node = stack.pop()
        if node in seen or node.op != "call_function" or not is_floating(node) or not is_fusible(node):
            continue
        seen.add(node)
        name = name_of(node)
        narrow = node.meta["spec"].dtype in _HALVES and name not in _EXACT and not is_view(node)
        if narrow or not (is_view(node) or name in _EXACT or name in _ONCE or name == "_to_copy"):
            return True
        if name in _SUMS and ("alpha" in node.kwargs or any(_is_product(x) for x in node.all_input_nodes)):
            return True
        stack += node.all_input_nodes
    return False


def _is_product(node: torch.fx.Node) -> bool:
    while node.op == "call_function" and (is_view(node) or name_of(node) == "neg"):
        node = node.all_input_nodes[0]
    return node.op == "call_function" and name_of(node) == "mul" and is_fusible(node)
