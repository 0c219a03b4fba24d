"""Calls whose results nobody uses. They leave no trace in a graph, but eager still raises where it refuses them.

What depends on sizes and types, and the metadata rules do not check themselves, the operator's own kernel is asked when
the graph is made: it runs once on zeros, and on ones, of the sizes of this call. What depends on the data is asked in
every call: the operators of :data:`_BY_DATA` stay in the graph, tied to one of its results (:func:`tie`).

With symbolic sizes the kernel is asked for those of the first call only; for others the metadata rules answer, whose
questions are the graph's guards (``integration-tests/test_refused_sizes.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from aot_autograd.trace.opinfo import op_info, runs_once
from prims.errors import Unsupported
from prims.registry import define_operator
from prims.spec import TensorSpec, meta_rule
from prims.spec.sym import SymNode

__all__ = ["check_unused", "computed_after", "tie"]

#: How the dispatcher words that an operator has no kernel for a device.
_NO_KERNEL = "Could not run"
#: Elements of all operands beyond which a kernel is not run for its checks.
LIMIT = 1 << 20

#: Operators that refuse some data: indices and targets out of range, divisors of 0, matrices that are singular or hold
#: what is no number. ``integration-tests/test_refused_data.py`` finds them in the operator database.
_BY_DATA = frozenset(
    f"aten::{name}"
    for name in (
        "index index_put index_select index_add index_copy index_fill index_reduce gather take put scatter scatter_add "
        "scatter_reduce embedding _embedding_bag _embedding_bag_forward_only "
        "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward binary_cross_entropy "
        "_ctc_loss max_unpool2d max_unpool3d histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts "
        "segment_reduce repeat_interleave lu_unpack cholesky linalg_pinv linalg_lu_solve linalg_lstsq "
        "_linalg_eigh linalg_eig _linalg_eigvals _linalg_svd"
    ).split()
) | {"quintet::linalg_checked", "quintet::one_hot", "quintet::probabilities"}
#: Those that refuse a divisor of 0 where they compute in integers.
_DIVISIONS = frozenset(f"aten::{name}" for name in ("div", "floor_divide", "remainder", "fmod"))


def _may_refuse_data(node: torch.fx.Node) -> bool:
    name = node.target._schema.name  # type: ignore[union-attr]
    if name in _DIVISIONS:
        spec = node.meta["spec"]
        return isinstance(spec, TensorSpec) and not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    return name in _BY_DATA


def check_unused(node: torch.fx.Node) -> bool:
    """Whether a call that nobody uses must be made all the same, as eager may raise for its data.

    Raises:
        Unsupported: the operator's kernel refuses operands of these sizes and types; eager will say so.
    """
    func = node.target
    if node.meta.get("backward") or not isinstance(func, torch._ops.OpOverload):
        return False
    if func.namespace == "aten":
        _check_sizes(node, func)
    return _may_refuse_data(node)


def _check_sizes(node: torch.fx.Node, func: torch._ops.OpOverload) -> None:
    if op_info(func).kind != "pure" or runs_once(func, node.args, node.kwargs):
        return
    specs = [source.meta["spec"] for source in node.all_input_nodes] or [node.meta["spec"]]
    if not all(isinstance(s, TensorSpec) and s.device.type == "cpu" for s in specs):
        return
    sizes = [_number(s.numel()) for s in specs]
    if None in sizes or sum(map(int, sizes)) > LIMIT:  # none of what only the data say
        return
    refused: Exception | None = None
    for fill in (0, 1):  # an index that exists, a divisor that is not zero
        try:
            args, kwargs = _filled(node.args, fill), _filled(node.kwargs, fill)
            with torch.no_grad():
                func(*args, **kwargs)
            return
        except Exception as error:
            if isinstance(error, NotImplementedError) and _NO_KERNEL in str(error):
                return  # eager does not come to this operator
            refused = refused or error
    raise Unsupported(f"{func}, whose result is unused, raises: {refused}", where=node.meta.get("source"))


def _number(value: Any) -> Any:
    """A symbolic number's value in this call."""
    return value.ctx.hint(value.expr) if isinstance(value, SymNode) else value


def _filled(value: Any, fill: int) -> Any:
    """Real tensors full of a number, and numbers, in place of graph values and symbolic sizes."""
    if isinstance(value, torch.fx.Node):
        spec = value.meta["spec"]
        shape, strides = ([_number(n) for n in sizes] for sizes in (spec.shape, spec.strides))
        return torch.empty_strided(shape, strides, dtype=spec.dtype).fill_(fill)
    if isinstance(value, (list, tuple)):
        return [_filled(v, fill) for v in value]
    if isinstance(value, dict):
        return {name: _filled(v, fill) for name, v in value.items()}
    return _number(value)


def computed_after(x: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of ``x`` with its strides, once ``others`` have been computed, of which nothing is used."""
    once = x
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    copy = torch.empty_strided(once.shape, once.stride(), dtype=x.dtype, device=x.device)
    return copy.copy_(once).expand(x.shape)


define_operator("computed_after(Tensor self, Tensor[] others) -> Tensor", computed_after)


@meta_rule("quintet.computed_after.default")
def _computed_after_spec(x: TensorSpec, others: Sequence[TensorSpec]) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device, x.strides)


def tie(graph: torch.fx.Graph, results: Sequence[torch.fx.Node], kept: Sequence[torch.fx.Node]) -> None:
    """Have the smallest of a graph's results computed after calls that nobody uses, so that these are made.

    Args:
        graph: with its output node, whose arguments begin with ``results``.
        kept: the calls.

    Raises:
        Unsupported: the graph has no result, or none on the device of a call.
    """
    output = graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    devices = {_first(node.meta["spec"]).device for node in kept}
    fitting = [at for at, node in enumerate(results) if devices <= {node.meta["spec"].device}]
    if not fitting:
        raise Unsupported(f"{kept[0].target}, whose result is unused, may raise by its data, and nothing is computed")
    at = min(fitting, key=lambda at: int(_number(results[at].meta["spec"].numel())))
    order = {node: place for place, node in enumerate(graph.nodes)}
    with graph.inserting_after(max((results[at], *kept), key=order.__getitem__)):
        others = [node for node in kept if isinstance(node.meta["spec"], TensorSpec)]
        made = graph.call_function(torch.ops.quintet.computed_after.default, (results[at], others))
    made.meta.update(spec=_computed_after_spec(results[at].meta["spec"], ()), source=kept[0].meta.get("source"))
    for node in kept:
        if node not in others:
            with graph.inserting_before(made):
                first = graph.call_function(operator.getitem, (node, 0))
            first.meta.update(spec=node.meta["spec"][0], source=node.meta.get("source"))
            others.append(first)
    made.args = (results[at], others)
    values[at] = made
    output.args = (tuple(values),)


def _first(spec: Any) -> Any:
    return spec if isinstance(spec, TensorSpec) else spec[0]
