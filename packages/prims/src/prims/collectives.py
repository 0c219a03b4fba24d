"""Operators that exchange data with other processes: ``_c10d_functional.*`` of ``torch.distributed``.

In the ATen and primitive dialects a collective is a functional overload whose last argument names the process group. It
gives a tensor that is still under way, of which ``wait_tensor`` makes one that may be read. Every process of the group
runs the same collectives in the same order, or all of them wait for ever: so each is run once and no stage leaves one
out, merges two, runs one again, or lets one overtake another. The eager kernels are their meaning.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["exchanges", "is_collective", "is_transfer", "is_wait", "waiting"]

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
_LOCAL = ("wait_tensor", "_wrap_tensor_autograd")


def is_collective(target: Any) -> bool:
    """Whether an overload exchanges data with other processes."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES and not _is_local(target)


def is_wait(target: Any) -> bool:
    """Whether an overload waits for what a collective has begun, and gives its tensor."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES and _is_local(target)


def is_transfer(target: Any) -> bool:
    """Whether an operator copies to host memory or back (:mod:`prims.transfers`): these keep their order, too."""
    return getattr(target, "namespace", None) == "quintet" and target._opname in _TRANSFERS


_TRANSFERS = frozenset(("to_host", "at_host", "to_device", "at_device"))


def waiting(target: Any) -> Any:
    """``wait_tensor`` in place of the operator by which eager puts the wait off until the tensor is read.

    Of that nobody takes notice who reads memory, as generated code does.
    """
    return torch.ops._c10d_functional.wait_tensor.default if is_wait(target) else target


def exchanges(graph: torch.fx.Graph) -> bool:
    """Whether a graph holds collectives."""
    return any(is_collective(node.target) for node in graph.nodes)


def _is_local(target: torch._ops.OpOverload) -> bool:
    return target._schema.name.partition("::")[2] in _LOCAL
