"""The default partitioner: what eager would save."""

from __future__ import annotations

import operator

import torch.fx

from aot_autograd.partition.split import is_random, is_view, needed_by_backward
from aot_autograd.trace.outcome import Joint
from prims.options import Options

__all__ = ["default_partition"]


def default_partition(joint: Joint, options: Options) -> list[torch.fx.Node]:
    """Save every forward value that the backward uses, or the tensor of which it is a view.

    Views and constants (operators without tensor arguments) are made again; they cost nothing.
    """
    del options
    saved: dict[torch.fx.Node, None] = {}
    seen: set[torch.fx.Node] = set()
    stack = needed_by_backward(joint)[::-1]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            if joint.envelope.inputs[_position(joint, node)].kind != "size":
                saved[node] = None
        elif is_view(node):
            stack.extend(node.all_input_nodes)
        elif not node.all_input_nodes and not is_random(node):
            continue
        elif isinstance(node.meta["spec"], (tuple, list)) and node.target is not operator.getitem:
            # A node with several results: its elements are values, itself is none.
            stack.extend(user for user in node.users if user.target is operator.getitem)
        else:
            saved[node] = None
    return list(saved)


def _position(joint: Joint, node: torch.fx.Node) -> int:
    return joint.envelope.placeholders().index(node)
