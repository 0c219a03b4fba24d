"""The cross-entropy of logits that nothing else reads is computed by chunks of their rows, and so is its gradient.

The captured graph is searched for a product with a weight (``F.linear``, ``x @ w.T``), what may stand between it and
the loss - views, slices of rows as causal language models take, casts, scalings and soft caps - and ``F.cross_entropy``
or ``log_softmax`` and ``F.nll_loss``. Views and slices are taken of the hidden states instead; the rest becomes the
body of an operator (:mod:`prims.control.losses`), traced with its derivative. A graph that returns its logits, or reads
them otherwise, keeps them: the search is for logits with this one reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from aot_autograd.autocast import differentiating
from aot_autograd.trace.attention import same
from aot_autograd.trace.control import operator_of
from aot_autograd.trace.patterns import Unlike, argument, check_alone, name_of, require, shape_of
from aot_autograd.trace.tracer import Tracer, state_of
from prims.control import Form
from prims.control.losses import summed_in
from prims.dtypes import HALVES
from prims.ir import Fuel
from prims.options import Options
from prims.records import record
from prims.spec import TensorSpec, to_torch
from prims.transforms import gradient

__all__ = ["LinearLoss", "find_losses"]

#: Types whose gradients need no factor to be numbers (see :mod:`prims.control.losses`).
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)

_VIEWS = frozenset("view reshape flatten contiguous clone unsqueeze squeeze".split())
_CASTS = frozenset("to float double bfloat16 type".split())
_SCALED = frozenset("mul multiply truediv div true_divide divide add sub neg".split())


@record
class LinearLoss:
    """A loss of logits that a graph computes.

    Attributes:
        nodes: those that compute it, in order.
        hidden: what the product is of: ``[*lead, h]``.
        weight: ``[v, h]``, or where ``turned`` ``[h, v]``.
        bias: ``[v]``, or None.
        moves: what is done to the logits' rows, in order: the leading sizes of a view, or the indices of a part.
        steps: what is done to each logit or row, in order.
    """

    nodes: tuple[Node, ...]
    hidden: Node
    weight: Node
    turned: bool
    bias: Node | None
    moves: tuple[tuple[str, Any], ...]
    steps: tuple[Node, ...]

    @property
    def logits(self) -> TensorSpec:
        """The metadata of the product."""
        return self.nodes[0].meta["spec"]  # type: ignore[no-any-return]

    def call(self, value_of: Callable[[Node], Any], tracer: Tracer) -> torch.Tensor | None:
        """The loss, by chunks; None where that would not save enough memory."""
        weight = value_of(self.weight)
        weight = weight.t() if self.turned else weight
        hidden = value_of(self.hidden)
        for kind, what in self.moves:
            if kind == "view":
                hidden = hidden.reshape([*map(to_torch, what), hidden.shape[-1]])
            else:
                hidden = hidden[torch.fx.node.map_arg(what, value_of)]
        hidden = hidden.reshape(-1, hidden.shape[-1])
        call = _Call(self, tracer, hidden, weight, value_of)
        if not call.pays():
            return None
        bias = None if self.bias is None else value_of(self.bias)
        return _ByChunks.apply(call, hidden, weight, bias)  # type: ignore[no-any-return]


def find_losses(gm: torch.fx.GraphModule, options: Options) -> dict[Node, LinearLoss]:
    """The losses in a torch-dialect graph whose logits need not exist, by the last node of each.

    None where results are to be rounded as in eager, nor where a gradient is differentiated itself: that of the
    operator has no derivative.
    """
    nodes = list(gm.graph.nodes)
    if options.numerics != "fast" or any(_is_differentiated(node) for node in nodes):
        return {}
    place = {node: k for k, node in enumerate(nodes)}
    fuel, found = Fuel(options.fuel), {}
    for node in nodes:
        if name_of(node) in ("cross_entropy", "nll_loss"):
            try:
                loss = _loss(node)
                check_alone(loss.nodes, nodes, place)
            except (Unlike, IndexError, TypeError):  # the last two of calls in a form that is not known
                continue
            if fuel.spend("loss by chunks"):
                found[node] = loss
    return found


def _is_differentiated(node: Node) -> bool:
    return node.target is gradient and bool(argument(node, 4, "create_graph", False))


def _loss(last: Node) -> LinearLoss:
    """The loss whose last call this is, which reads a product's result."""
    require(argument(last, *_IGNORED, -100).__class__ is int and argument(last, *_REDUCTION, "mean") in ("mean", "sum"))
    legacy = [argument(last, at, name) for at, name in ((3, "size_average"), (5, "reduce"))]
    require(legacy == [None, None] and isinstance(argument(last, 7, "label_smoothing", 0.0), (int, float)))
    chain, x = [last], argument(last, 0, "input")
    while name_of(x) not in ("linear", "matmul", "__matmul__", "mm"):
        require(isinstance(x, Node) and len(chain) < 32)
        chain.append(x)
        x = argument(x, 0, "input") if isinstance(argument(x, 0, "input"), Node) else x.args[1]
    chain.append(x)
    chain.reverse()
    hidden, weight = argument(x, 0, "input"), argument(x, 1, "other" if name_of(x) != "linear" else "weight")
    bias = argument(x, 2, "bias") if name_of(x) == "linear" else None
    turned = name_of(x) != "linear"
    logits, of = shape_of(x), shape_of(weight)
    require(len(of) == 2 and all(type(n) is int for n in of) and len(shape_of(hidden)) == len(logits))
    require(x.meta["spec"].dtype in _DTYPES and "out" not in x.kwargs)
    moves, steps, at = _between(chain[1:-1], len(logits) - 1)
    require(at == (1 if len(shape_of(chain[-2])) > 1 else 0))
    _check_target(last, chain[-2], at)
    return LinearLoss(tuple(chain), hidden, weight, turned, bias, tuple(moves), tuple(steps))


_IGNORED, _REDUCTION = (4, "ignore_index"), (6, "reduction")


def _between(chain: Sequence[Node], at: int) -> tuple[list[tuple[str, Any]], list[Node], int]:
    """What happens between product and loss: to rows, to logits; and which dimension the classes are in at the end."""
    moves: list[tuple[str, Any]] = []
    steps: list[Node] = []
    for x in chain:
        name, given, shape = name_of(x), x.args[0] if x.args else None, shape_of(x)
        before = shape_of(given) if isinstance(given, Node) else ()
        classes = before[at] if before else None
        last = at == len(before) - 1
        if name in _VIEWS:
            require(shape and (last or name in ("contiguous", "clone")))
            if last:
                at = len(shape) - 1
                moves.append(("view", shape[:-1]))
            require(same(shape[at], classes))
        elif name == "getitem":
            require(last and isinstance(given, Node))
            moves.append(("part", _rows_of(x.args[1], len(before))))
            at = len(shape) - 1
        elif name in ("transpose", "swapaxes", "permute"):
            require(last and _order(x, len(before)) == [0, len(before) - 1, *range(1, len(before) - 1)])
            at = 1
        elif name in ("log_softmax", "softmax"):
            dim = argument(x, 1, "dim")
            require(name == "log_softmax" and type(dim) is int and dim % len(before) == at)
            steps.append(x)
        else:
            numbers = [a for a in x.args if not isinstance(a, Node)]
            scales = name in _SCALED and all(type(a) in (int, float) for a in (*numbers, *x.kwargs.values()))
            casts = name in _CASTS and not x.kwargs and all(isinstance(a, torch.dtype) for a in numbers)
            require((scales or casts or name == "tanh") and len(x.all_input_nodes) == 1 and len(x.args) <= 2)
            require(x.meta["spec"].dtype in _DTYPES)
            steps.append(x)
    return moves, steps, at


def _rows_of(index: Any, ndim: int) -> tuple[Any, ...]:
    """An index into all dimensions but the last, which it leaves whole."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [p for p in parts if not isinstance(p, Node)]:
        gap = next(k for k, p in enumerate(parts) if p is Ellipsis)
        parts[gap : gap + 1] = [slice(None)] * (ndim - len(parts) + 1)
    require(len(parts) <= ndim and all(isinstance(p, (int, slice)) and type(p) is not bool for p in parts))
    if len(parts) == ndim:
        require(parts.pop() in (slice(None), slice(0, None, None)))
    return tuple(parts)


def _order(x: Node, ndim: int) -> list[int]:
    """The dimensions of what a view permutes, in the view's order."""
    given = [d for a in x.args[1:] for d in (a if isinstance(a, (tuple, list)) else (a,))]
    require(not x.kwargs and all(type(d) is int for d in given))
    dims = [d % ndim for d in given]  # type: ignore[operator]
    if name_of(x) == "permute":
        return dims
    order = list(range(ndim))
    order[dims[0]], order[dims[1]] = dims[1], dims[0]
    return order


def _check_target(last: Node, x: Node, at: int) -> None:
    """The target holds a class for each row, not the classes' probabilities."""
    target, weight = argument(last, 1, "target"), argument(last, 2, "weight")
    require(isinstance(target, Node) and target.meta["spec"].dtype == torch.int64)
    require(len(shape_of(target)) == len(shape_of(x)) - 1)
    require(weight is None or isinstance(weight, Node))


# ---- the call --------------------------------------------------------------------------------------------------------

#: Rows of a chunk. On a core, 1,024 rows of 50,257 logits of 768 numbers took 9.6 s whole (408 MB at most, gradients
#: included), by 512 rows 10.0 s (206 MB), by 256 10.5 (154 MB), by 64 14.4 (154 MB): each adds to a sum as large as
#: the weight.
_ROWS = 512

#: Those of 16 bits on a GPU, where the sum over chunks (8 bytes moved for each of ``v * h``) is to take a fifth of the
#: time of a chunk's products (6 operations for each of ``rows * v * h``), and a byte costs as much as 200 operations.
_ROWS_OF_HALVES = 1024

#: Bytes that are saved at least: 1,024 rows of 4,000 logits (24 MB saved) took half as long again by chunks, 4,096 rows
#: (120 MB saved) a tenth.
_LEAST = 32 << 20

#: Columns to which logits of 16 bits are padded on a GPU: rows that begin at no multiple of 16 bytes cost cuBLAS six
#: times as long.
_ALIGNED = 8


class _Call:
    """One call under a tracer.

    Attributes:
        target: a class for each row.
        weights: of the classes, or None.
    """

    def __init__(
        self, loss: LinearLoss, tracer: Tracer, hidden: torch.Tensor, weight: torch.Tensor,
        value_of: Callable[[Node], Any],
    ) -> None:  # fmt: skip
        last = loss.nodes[-1]
        self.loss, self.tracer, self.last = loss, tracer, last
        self.dtype, self.device = loss.logits.dtype, loss.logits.device
        self.sums = summed_in(self.dtype)
        self.classes, self.width = weight.shape
        self.count = hidden.shape[0]
        self.rows = _ROWS_OF_HALVES if self.device.type == "cuda" and self.dtype in HALVES else _ROWS
        self.target = value_of(argument(last, 1, "target")).reshape(-1)
        given = argument(last, 2, "weight")
        self.weights = None if given is None else value_of(given)
        self.ignored = argument(last, *_IGNORED, -100)
        unaligned = self.device.type == "cuda" and self.dtype in HALVES and self.classes % _ALIGNED
        self.padding = _ALIGNED - unaligned if unaligned else 0

    def pays(self) -> bool:
        """Does it save enough memory: the logits and their gradient, less chunks of them and what sums take?"""
        context = self.tracer.context
        count = self.tracer.plain(self.count)
        count = count if isinstance(count, int) else int(context.hint(count.expr))  # type: ignore[union-attr]
        row = self.classes * self.dtype.itemsize
        kept = 2 * min(self.rows, count) * row
        if self.dtype != self.sums:
            kept += self.classes * self.width * self.sums.itemsize
        if self.padding:
            kept += self.classes * self.width * self.dtype.itemsize
        if self.weights is not None and self.weights.requires_grad and torch.is_grad_enabled():
            return False
        return 2 * count * row - kept >= _LEAST

    def factors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Each row's factor in the loss; and for a mean what it divides by."""
        counted = self.target != self.ignored
        if argument(self.last, *_REDUCTION, "mean") == "sum":
            return counted.to(self.sums), None
        if self.weights is None:
            total = counted.sum().to(self.sums)
        else:
            weights = self.weights.to(self.sums)[torch.where(counted, self.target, 0)]
            total = torch.where(counted, weights, 0.0).sum()
        return torch.where(counted, 1.0 / total, 0.0), total

    def operands(self, hidden: Any, weight: Any, bias: Any) -> tuple[Any, ...]:
        """As the product takes them (under autocast, of its type)."""
        found = [x if x is None else x.to(self.dtype) for x in (hidden, weight, bias)]
        if self.padding:
            found[1] = F.pad(found[1], (0, 0, 0, self.padding))
            found[2] = None if found[2] is None else F.pad(found[2], (0, self.padding))
        return tuple(found)

    def operator(self, factor: torch.Tensor, biased: bool, learns: tuple[str, ...]) -> Any:
        """The operator, whose body computes the loss of a chunk's rows, and their gradient where something learns."""
        logits = TensorSpec((self.rows, self.classes + self.padding), self.dtype, self.device)
        sliced = [TensorSpec((self.rows,), state_of(x).spec.dtype, x.device) for x in (self.target, factor)]
        read = [] if self.weights is None else [state_of(self.weights).spec]
        results = [TensorSpec((), self.sums, self.device), logits]
        form = Form("linear_loss", rows=self.rows, sliced=2, biased=biased, learns=learns)
        body = self._derived if learns else self._value
        results = results if learns else results[:1]
        return operator_of(self.tracer, name_of(self.last), form, [body], [logits, *sliced, *read], [results])

    def _value(self, tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:
        x, target, factor, *weights = values
        x = x[:, : self.classes] if self.padding else x
        for step in self.loss.steps:
            x = _applied(step, x)
        given: dict[str, Any] = {"weight": weights[0] if weights else None, "ignore_index": self.ignored}
        if name_of(self.last) == "cross_entropy":
            given["label_smoothing"] = argument(self.last, 7, "label_smoothing", 0.0)
        each = self.last.target(x, target, reduction="none", **given).to(self.sums)  # type: ignore[operator]
        # Rows that fill up the last chunk count nothing, whatever their logits.
        return (torch.where(factor != 0, each * factor, 0.0).sum(),)

    def _derived(self, tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:

        logits, *others = values
        with torch.enable_grad():
            (loss,) = self._value(tracer, [logits.requires_grad_(), *others])
        tracer.backward = True
        with differentiating():
            (found,) = torch.autograd.grad(loss, logits)
        tracer.backward = False
        return loss.detach(), found


def _applied(step: Node, x: torch.Tensor) -> torch.Tensor:
    """What a node computes, of a chunk's rows."""
    source = step.all_input_nodes[0]
    args, kwargs = torch.fx.node.map_arg((step.args, dict(step.kwargs)), lambda a: x if a is source else a)
    if name_of(step) == "log_softmax":
        args, kwargs = (x, -1), {name: a for name, a in kwargs.items() if name == "dtype"}
    if step.op == "call_method":
        return getattr(args[0], str(step.target))(*args[1:], **kwargs)  # type: ignore[no-any-return]
    return step.target(*args, **kwargs)  # type: ignore[operator,no-any-return]


class _ByChunks(torch.autograd.Function):
    """The loss, and its derivative by hidden states, weight and bias."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *given: Any) -> Any:
        names = ("hidden", "weight", "bias")
        learns = tuple(name for name, needs in zip(names, ctx.needs_input_grad[1:], strict=True) if needs)
        factor, total = call.factors()
        operands = [x for x in call.operands(*given) if x is not None]
        weights = [] if call.weights is None else [call.weights]
        made = call.operator(factor, given[2] is not None, learns)
        loss, *gradients = made.call(call.tracer, [*operands, call.target, factor, *weights])
        if total is not None:
            loss = torch.where(total == 0, float("nan"), loss)
        ctx.learns, ctx.specs = learns, {name: x for name, x in zip(names, given, strict=True) if x is not None}
        ctx.specs = {name: (x.dtype, x.shape[0]) for name, x in ctx.specs.items()}
        ctx.save_for_backward(*gradients)
        return loss.to(call.last.meta["spec"].dtype)

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        found: Mapping[str, torch.Tensor] = dict(zip(ctx.learns, ctx.saved_tensors, strict=True))
        scaled: list[torch.Tensor | None] = []
        for name in ("hidden", "weight", "bias"):
            if name not in found:
                scaled.append(None)
                continue
            dtype, count = ctx.specs[name]
            scaled.append((found[name][:count] * tangent).to(dtype))
        return (None, *scaled)
