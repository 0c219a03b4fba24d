"""How the wrapper calls an operator: the fastest public function for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.device.backends import backend
from inductor_gen.extern.cpu import by_linear, cpu_function, is_row, linear_by_onednn, takes_linear
from inductor_gen.extern.custom import custom_function, is_custom
from inductor_gen.extern.functions import deterministic, with_dense_rows, with_own_memory, without_shared
from inductor_gen.extern.ordered import get_ready, ordered_function
from inductor_gen.extern.policies import DECIDED
from inductor_gen.loops.graph import Node
from prims.options import Options
from prims.spec import TensorSpec

__all__ = ["by_transpose", "function_for", "function_of"]

#: Plain functions skip the overload's argument handling, about a microsecond of Python per call.
_DIRECT: dict[str, Callable[..., Any]] = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.convolution.default": torch.convolution,
    "dot": torch.matmul,
    "aten.addmm.default": torch.addmm,
    "aten.baddbmm.default": torch.baddbmm,
    "aten._addmm_activation.default": torch._addmm_activation,
}

#: Those whose arguments behind so many have to be named, and are not in the overload's call.
_NAMED = {"aten.addmm.default": 3, "aten.baddbmm.default": 3, "aten._addmm_activation.default": 3}


#: Attention kernels and how many of their leading arguments must have a dense last dimension.
_ATTENTION: dict[str, int] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 3,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 5,
}

#: Operators whose CPU kernels read behind a tensor of which equal elements share their memory (a stride of 0).
_WITHOUT_SHARED = frozenset({"aten.median.dim", "aten.nanmedian.dim"})


def function_for(node: Node, owned: Sequence[int] = (), exact: bool = False) -> tuple[str, Callable[..., Any]]:
    """``(readable name, callable)`` for an extern node; it takes the node's own arguments.

    ``owned``: positions among a custom operator's tensor operands that it may write to in place. ``exact``: only what
    runs eager's own kernel.
    """
    if is_custom(node):
        return custom_function(node, owned)
    found = None if exact else backend(_device_type(node))["call"](node)
    if found is not None:
        return found  # type: ignore[no-any-return]
    if node.op in _ATTENTION:
        return node.op, with_dense_rows(node.target, _ATTENTION[node.op])
    if node.op in _WITHOUT_SHARED:
        return node.op, without_shared(node.target)
    function = _DIRECT.get(node.op)
    if function is not None and len(node.args) <= _NAMED.get(node.op, len(node.args)):
        return f"torch.{function.__name__}", function
    return node.op, with_own_memory(node.target)


#: What computes the same of the right factor's transpose, as ``(left, transpose, bias | nothing)``.
_OF_TRANSPOSE: dict[Callable[..., Any], tuple[str, Callable[..., Any]]] = {
    torch.mm: ("torch.nn.functional.linear", torch.nn.functional.linear),
    torch.addmm: ("torch.nn.functional.linear", torch.nn.functional.linear),
    by_linear: ("linear", linear_by_onednn),
}


def by_transpose(function: Callable[..., Any], args: Sequence[Any]) -> tuple[str, Callable[..., Any]] | None:
    """``(readable name, callable)`` for a product that is handed its right factor's transpose, which is a linear layer.

    A weight that lies as a linear layer's needs no view made of it in each call then. None where there is no such call.
    """
    found = _OF_TRANSPOSE.get(function)
    if found is None or not 2 <= len(args) <= 3 or (len(args) == 3 and not is_row(args[0], args[-1])):
        return None
    return found


def _device_type(node: Node) -> str:
    """Where its results are. An operator with several has no device of its own; one without any runs on the CPU."""
    specs = node.spec if isinstance(node.spec, (tuple, list)) else (node.spec,)
    return next((spec.device.type for spec in specs if isinstance(spec, TensorSpec)), "cpu")


def function_of(
    node: Node, args: tuple[Any, ...], form: str | None, options: Options, owned: Sequence[int] = ()
) -> tuple[str, Callable[..., Any]]:
    """``(readable name, callable)`` for an operator with these arguments, in this form where it has several."""
    if options.batch_invariant:
        ordered = ordered_function(node, _device_type(node))
        if ordered is not None:
            get_ready(options)
            return ordered
    name, made = _function_of(node, args, form, options, owned)
    if options.deterministic and node.op in DECIDED:
        return f"deterministic_{name}", deterministic(made)
    return name, made


def _function_of(
    node: Node, args: tuple[Any, ...], form: str | None, options: Options, owned: Sequence[int]
) -> tuple[str, Callable[..., Any]]:
    if form == "linear":
        function = takes_linear(node)
        return function.__name__, function
    found = cpu_function(node, args) if options.numerics == "fast" else None
    return found if found is not None else function_for(node, owned, options.numerics == "eager_exact")
