"""Calls whose results nobody uses. They leave no trace in a graph, but eager still raises where their sizes do not fit.

What the metadata rules do not check themselves, the operator's own kernel is asked when the graph is made: it runs once
on zeros of the sizes of this call.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from aot_autograd.trace.opinfo import draws_random, op_info
from prims.errors import Unsupported
from prims.spec import Sym, TensorSpec

__all__ = ["check_unused"]

#: Elements of all operands beyond which a kernel is not run for its checks.
LIMIT = 1 << 20


def check_unused(node: torch.fx.Node) -> None:
    """Leave a program to eager, which raises, if this call of it would.

    Raises:
        Unsupported: the operator's kernel refuses operands of these sizes and types.
    """
    func = node.target
    if node.meta.get("backward") or not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return
    if op_info(func).kind != "pure" or draws_random(func, node.args, node.kwargs):
        return
    specs = [source.meta["spec"] for source in node.all_input_nodes]
    if not specs or not all(isinstance(s, TensorSpec) and s.device.type == "cpu" for s in specs):
        return
    if sum(int(_number(s.numel())) for s in specs) > LIMIT:
        return
    try:
        args, kwargs = _zeros(node.args), _zeros(node.kwargs)
        with torch.no_grad():
            func(*args, **kwargs)
    except NotImplementedError:
        return
    except Exception as error:
        raise Unsupported(f"{func}, whose result is unused, raises: {error}", where=node.meta.get("source")) from None


def _number(value: Any) -> Any:
    """A symbolic size's value in this call."""
    return value.ctx.hint(value.expr) if isinstance(value, Sym) else value


def _zeros(value: Any) -> Any:
    """Real tensors of zeros, and numbers, in place of graph values and symbolic sizes."""
    if isinstance(value, torch.fx.Node):
        spec = value.meta["spec"]
        shape, strides = ([_number(n) for n in sizes] for sizes in (spec.shape, spec.strides))
        return torch.empty_strided(shape, strides, dtype=spec.dtype).zero_()
    if isinstance(value, (list, tuple)):
        return [_zeros(v) for v in value]
    if isinstance(value, dict):
        return {name: _zeros(v) for name, v in value.items()}
    return _number(value)
