"""Attention that a program writes out: queries by keys, a scale, a mask, a softmax, dropout, the product with values.

PyTorch's fused kernels compute the same and keep the scores to themselves, which are the square of the length. The
formula is found in the captured graph and traced as one call of ``F.scaled_dot_product_attention``, so that autograd
differentiates that: forward and backward are a pair of fused kernels, with any scale, mask and layout of heads.

Three things differ between formula and kernel, and are made the formula's:

- A row that sees nothing. The formula gives NaN where scores are hidden by minus infinity and the mean of the values
  where they are replaced by a number; kernels give zeros or NaN. Such a row's mask is opened, and its result made what
  the formula gives. This is left out where every row is known to see something.
- Numbers near the lowest that are added to scores. Kernels multiply them, which overflows; they are held at -1e30,
  beside which float32 loses a score as well. Float16 has no such number and keeps its formula; so does training, for
  kernels go backward from logarithms of sums, which lose the sum beside such a number.
- Random numbers of dropout, which kernels draw themselves: the formula stays where they are to be eager's.

Masks that need a gradient, scores that are read by something else, and what no fused kernel takes stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from aot_autograd.trace.attention import LOWEST, all_same, fused, same
from aot_autograd.trace.patterns import (
    IN_PLACE,
    Unlike,
    argument,
    changes,
    check_alone,
    is_floating,
    name_of,
    require,
    shape_of,
)
from aot_autograd.trace.tracer import Tracer
from prims.ir import Fuel
from prims.options import Options
from prims.records import record
from prims.spec import TensorSpec

__all__ = ["Mask", "Written", "find_written"]

#: The largest number that replaces scores and hides them: they are greater.
_HIDES = -1e9

#: The largest number that is added to scores without hiding them.
_LITTLE = 1e4

#: Elements of the largest mask that is computed to look at it.
_LARGEST = 1 << 24

_KINDS = {
    "product": "matmul bmm __matmul__", "einsum": "einsum", "baddbmm": "baddbmm", "softmax": "softmax",
    "dropout": "dropout", "cast": "to float half bfloat16 double type type_as", "same": "contiguous clone",
    "view": "view reshape unflatten flatten unsqueeze squeeze", "swap": "transpose permute swapaxes mT getattr",
    "mul": "mul imul mul_ multiply", "div": "div truediv itruediv div_ true_divide divide",
    "add": "add iadd add_", "sub": "sub isub sub_", "fill": "masked_fill masked_fill_", "where": "where",
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


#: Functions whose results are finite where their operands are: a mask's few terms do not overflow.
_FINITE = frozenset(
    """mul sub rsub add neg to float type where masked_fill expand expand_as getitem view reshape unsqueeze permute
    transpose embedding index_select gather contiguous clone zeros ones full arange clamp minimum maximum tril triu
    zeros_like ones_like full_like truediv div""".split()
)


@record
class Mask:
    """What hides scores, or is added to them.

    Attributes:
        node: truth values or what is added.
        lead: the dimensions before rows and columns of the scores that it is applied to.
        fill: the number that scores are replaced by where ``node`` is ``hides``; None for what is added.
        hides: whether true hides.
        factor: of what is added.
    """

    node: Node
    lead: tuple[Any, ...]
    fill: float | None = None
    hides: bool = True
    factor: float = 1.0


@record
class Written:
    """An attention that a graph writes out.

    Attributes:
        nodes: those that compute it of queries, keys, values and masks, in order.
        operands: queries, keys and values, with the order of dimensions that makes them ``[*lead, rows, width]``; None
            in it is a new dimension.
        product: the leading dimensions of the scores' product.
        shape: of the softmax's operand: ``[*lead, rows, columns]``.
        led: the leading sizes of the last product, and ``out``, the order of dimensions that makes
            ``[*led, rows, width]`` its result.
        scale: of the scores.
        masks: from the softmax on inwards.
        dropout: the probability.
        sees: is every row known to see something, by the only mask there is?
        causal: does that mask hide just what comes later?
        adds: what is added to scores: ``"little"``, numbers that ``"hide"`` as good as all, ``"infinity"`` to hide, or
            ``"anything"``.
        coarse: does it keep its meaning in a type of fewer bits?
    """

    nodes: tuple[Node, ...]
    operands: tuple[tuple[Node, tuple[int | None, ...]], ...]
    product: tuple[Any, ...]
    shape: tuple[Any, ...]
    led: tuple[Any, ...]
    out: tuple[int, ...]
    scale: float
    masks: tuple[Mask, ...]
    dropout: float
    sees: bool = True
    causal: bool = False
    adds: str = "little"
    coarse: bool = True

    def call(self, value_of: Callable[[Node], Any], tracer: Tracer) -> torch.Tensor | None:
        """The result by a fused kernel, for the values of nodes; None where none takes these."""
        return fused(self, value_of)


def find_written(gm: torch.fx.GraphModule, options: Options) -> dict[Node, Written]:
    """The attentions that a torch-dialect graph writes out, by the last node of each.

    None where results are to be rounded as in eager.
    """
    nodes = list(gm.graph.nodes)
    if options.numerics != "fast":
        return {}
    fuel, graph = Fuel(options.fuel), _Graph(gm, nodes)
    found = {}
    for node in nodes:
        if _kind(node) in ("product", "einsum"):
            try:
                written = graph.written(node)
            except (Unlike, IndexError, TypeError):  # the last two of calls in a form that is not known
                continue
            if not (written.dropout and options.eager_random) and fuel.spend("written attention"):
                found[node] = written
    return found


# ---- the formula ----------------------------------------------------------------------------------------


def _kind(node: Any) -> str | None:
    return _KIND_OF.get(name_of(node))


class _Graph:
    """A graph in which attentions are looked for."""

    def __init__(self, gm: torch.fx.GraphModule, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.place = {node: k for k, node in enumerate(nodes)}
        envelope = gm.meta.get("envelope")
        inputs = [node for node in nodes if node.op == "placeholder"]
        kinds = [desc.kind for desc in envelope.inputs] if envelope is not None else []
        self.parameters = {node for node, kind in zip(inputs, kinds, strict=False) if kind == "parameter"}
        self.constants: dict[Node, torch.Tensor | None] = {}

    def written(self, last: Node) -> Written:
        """The attention whose last product this is.

        Raises:
            Unlike: there is none.
        """
        left, right, out = _product(last)
        weights, values, chain = left, right, [last]
        try:
            softmax, dropout = self._weights(weights, chain)
        except (Unlike, IndexError):
            weights, values, chain = right, left, [last]
            softmax, dropout = self._weights(weights, chain)
        labels = weights[1]
        require(len(labels) >= 2)
        if _kind(weights[0]) == "swap":
            labels = (*labels[:-2], labels[-1], labels[-2])
        *lead, row, column = labels
        only = set(labels) & set(values[1]) - set(out)
        width = [x for x in values[1] if x not in (*lead, column)]
        require(only == {column} and len(width) == 1)
        natural = (*lead, row, *width)
        require(len(set(out)) == len(natural) and set(out) == set(natural) and len(set(values[1])) == len(values[1]))
        operand = self._last(softmax.args[0], softmax)
        shape = shape_of(operand)
        product, scale, masks = self._scores(operand, chain)
        queries, keys, score_lead = _score_operands(product)
        nodes = tuple(sorted(chain, key=self.place.__getitem__))
        check_alone(nodes, self.nodes, self.place)
        v = (values[0], tuple(_at(values[1], x) for x in (*lead, column, *width)))
        places = tuple(natural.index(x) for x in out)
        led = tuple(shape_of(last)[out.index(x)] for x in lead)
        found = Written(nodes, (queries, keys, v), score_lead, shape, led, places, scale, masks, dropout)
        return self._with_proofs(found)

    def _last(self, x: Any, reader: Node) -> Node:
        """The node whose value an operand has when it is read: the last that wrote it in place."""
        require(isinstance(x, Node))
        writers = [u for u in x.users if name_of(u) in IN_PLACE and u.args[0] is x]
        before = [u for u in writers if self.place[u] < self.place[reader]]
        return max(before, key=self.place.__getitem__, default=x)

    def _weights(self, operand: tuple[Node, Any], chain: list[Node]) -> tuple[Node, float]:
        """The softmax that weights come from, and the probability of dropout after it."""
        x, dropout = self._last(operand[0], chain[0]), 0.0
        if _kind(x) == "swap":
            require(_swaps(x))
            chain.append(x)
            x = self._last(x.args[0], x)
        while _kind(x) != "softmax":
            kind = _kind(x)
            chain.append(x)
            if kind == "dropout":
                p, training = argument(x, 1, "p", 0.5), argument(x, 2, "training", True)
                require(type(training) is bool and isinstance(p, (int, float)) and not dropout)
                dropout = float(p) if training else 0.0
                require(dropout < 1)
            else:
                require(kind in ("cast", "same") or (kind == "view" and _keeps_rows(x)))
                require(kind != "cast" or is_floating(x))
            x = self._last(x.args[0], x)
        chain.append(x)
        dim = argument(x, 1, "dim")
        require(isinstance(dim, int) and dim in (-1, len(shape_of(x)) - 1))
        return x, dropout

    def _scores(self, x: Node, chain: list[Node]) -> tuple[Node, float, tuple[Mask, ...]]:
        """The product that scores are made of, its scale, and its masks, where ``x`` is the softmax's operand."""
        scale = 1.0
        masks: list[Mask] = []
        while True:
            chain.append(x)
            kind, lead = _kind(x), shape_of(x)[:-2]
            if kind in ("product", "einsum"):
                return x, scale, tuple(masks)
            if kind == "baddbmm":
                beta, alpha = x.kwargs.get("beta", 1), x.kwargs.get("alpha", 1)
                require(isinstance(alpha, (int, float)) and isinstance(beta, (int, float)))
                if beta:
                    masks.append(Mask(argument(x, 0, "input"), lead, factor=scale * beta))
                return x, scale * alpha, tuple(masks)
            after = x.args[0]
            if kind in ("mul", "div"):
                number = self._number(x.args[1])
                if number is None and kind == "mul" and not isinstance(x.args[0], Node):
                    number, after = self._number(x.args[0]), x.args[1]
                require(number and number > 0 and not x.kwargs)
                scale = scale * number if kind == "mul" else scale / number  # type: ignore[operator]
            elif kind in ("add", "sub"):
                other = x.args[1]
                require(not x.kwargs and isinstance(other, Node) and isinstance(after, Node))
                if kind == "add" and not self._leads_to_product(after):
                    after, other = other, after
                require(not self._leads_to_product(other) and all_same(shape_of(after), shape_of(x)))
                masks.append(Mask(other, lead, factor=scale if kind == "add" else -scale))
            elif kind in ("fill", "where"):
                after, mask = self._filled(x, scale)
                masks.append(mask)
            else:
                require(kind == "same" or (kind == "cast" and is_floating(x)) or (kind == "view" and _keeps_rows(x)))
            x = self._last(after, x)

    def _filled(self, x: Node, scale: float) -> tuple[Any, Mask]:
        """What is masked by replacing scores, and the mask."""
        lead, dtype = shape_of(x)[:-2], x.meta["spec"].dtype
        if _kind(x) == "fill":
            (after, mask, fill), hides = (x.args[0], argument(x, 1, "mask"), argument(x, 2, "value")), True
        else:
            mask, after, fill = argument(x, 0, "condition"), argument(x, 1, "input"), argument(x, 2, "other")
            hides = False
            if self._number(fill) is None:
                after, fill, hides = fill, after, True
        number = self._number(fill)
        require(number is not None and isinstance(mask, Node) and all_same(shape_of(after), shape_of(x)))
        least = _HIDES if dtype is not torch.float16 else torch.finfo(dtype).min / 2
        require(number * scale <= least)  # type: ignore[operator]
        return after, Mask(mask, lead, number, hides)

    def _leads_to_product(self, x: Any) -> bool:
        while _kind(x) in ("mul", "div", "cast", "view", "same", "fill", "add", "sub", "where"):
            x = next((a for a in x.args if isinstance(a, Node) and is_floating(a)), None)
        return _kind(x) in ("product", "einsum", "baddbmm")

    # ---- what is known about masks ----------------------------------------------------------------------

    def _with_proofs(self, w: Written) -> Written:
        if not w.masks:
            return w
        added = [m for m in w.masks if m.fill is None]
        sees, causal = self._sees(w) if len(w.masks) == 1 else (False, False)
        known = [self.constant(m.node) for m in added]
        adds = self._adds([m.node for m in added])
        coarse = all(map(_is_coarse, (m.node for m in added), known))
        return replace(w, sees=sees, causal=causal, adds=adds, coarse=coarse)

    def _sees(self, w: Written) -> tuple[bool, bool]:
        """Does every row see something by the only mask? Does it see just what does not come later?"""
        (mask,) = w.masks
        square = same(*w.shape[-2:])
        value = self.constant(mask.node)
        if value is not None:
            if mask.fill is None:
                least = torch.finfo(value.dtype).min / 2 if value.is_floating_point() else LOWEST
                seen = value > max(LOWEST, least)
                plain = mask.factor > 0 and bool(((value == 0) | ~seen).all())
            else:
                seen, plain = (value == 0) if mask.hides else (value != 0), True
            sees = bool(seen.any(-1).all())
            rows, columns = seen.shape[-2:] if seen.ndim >= 2 else (0, 1)
            lower = seen.new_ones(rows, columns).tril()
            return sees, sees and plain and square and rows == columns and bool((seen == lower).all())
        # Of symbolic sizes: what triu leaves above a diagonal is hidden, or what tril leaves below one is seen.
        node = _base(mask.node)
        way, diagonal = name_of(node), argument(node, 1, "diagonal", 0)
        if way not in ("tril", "triu") or type(diagonal) is not int or not _is_filled(_base(node.args[0])):
            return False, False
        seen = mask.fill is not None and not mask.hides
        square = square and all_same(shape_of(node)[-2:], w.shape[-2:])
        if way == "tril" and seen and diagonal >= 0:
            return True, square and diagonal == 0
        if way == "triu" and not seen and diagonal >= 1 and mask.factor > 0:
            return True, square and diagonal == 1 and mask.fill is not None
        return False, False

    def _number(self, x: Any) -> float | None:
        """A number, or what a constant without dimensions holds."""
        if isinstance(x, Node):
            value = self.constant(x)
            return float(value) if value is not None and value.numel() == 1 and not value.ndim else None
        return float(x) if type(x) in (int, float) else None

    def constant(self, node: Node) -> torch.Tensor | None:
        """The value of a node that depends on nothing but numbers."""
        if node not in self.constants:
            self.constants[node] = None
            values: dict[Node, Any] = {}
            try:
                for x in self._cone(node):
                    values[x] = _evaluated(x, values)
                value = values[node]
                self.constants[node] = value if isinstance(value, torch.Tensor) else None
            except Exception:  # whatever the program's own call raises: tracing meets it again
                pass
        return self.constants[node]

    def _cone(self, node: Node) -> list[Node]:
        """What a node is computed of, in order.

        Raises:
            Unlike: of inputs, or of much.
        """
        found: set[Node] = set()
        todo = [node]
        while todo:
            x = todo.pop()
            if x not in found:
                spec = x.meta.get("spec")
                require(name_of(x) and not changes(x) and not any(changes(u) and u.args[0] is x for u in x.users))
                require(isinstance(spec, TensorSpec) and all(type(s) is int for s in spec.shape))
                require(math.prod(spec.shape) <= _LARGEST)
                require(not any(t in name_of(x) for t in ("rand", "drop", "norm")))
                found.add(x)
                todo += x.all_input_nodes
        return sorted(found, key=self.place.__getitem__)

    def _adds(self, nodes: list[Node]) -> str:
        """What sort of numbers (``Written.adds``) finite sums and products make, parameters taken to be small."""
        seen: set[Node] = set()
        todo, numbers = nodes, []
        while todo:
            x = todo.pop()
            if x in seen or not is_floating(x) or x in self.parameters:
                continue
            seen.add(x)
            numbers += [abs(a) for a in (*x.args, *x.kwargs.values()) if isinstance(a, float)]
            if name_of(x) not in _FINITE:
                return "anything"
            todo += x.all_input_nodes
        large = [a for a in numbers if a > _LITTLE]
        if not large:
            return "little"
        if all(map(math.isinf, large)):
            return "infinity"
        return "hide" if len(large) == 1 else "anything"


def _evaluated(x: Node, values: Mapping[Node, Any]) -> Any:
    """A node's value on the CPU."""

    def value(a: Any) -> Any:
        is_device = isinstance(a, torch.device) or (type(a) is str and a.startswith("cuda"))
        return values[a] if isinstance(a, Node) else torch.device("cpu") if is_device else a

    args = torch.fx.node.map_aggregate((x.args, dict(x.kwargs)), value)
    with torch.no_grad():
        if x.op == "call_method":
            return getattr(args[0][0], x.target)(*args[0][1:], **args[1])  # type: ignore[index,arg-type]
        return x.target(*args[0], **args[1])  # type: ignore[index,operator]


def _base(node: Any) -> Any:
    """What a mask is a view or a conversion of."""
    while name_of(node) in ("view", "reshape", "unsqueeze", "expand", "to", "bool", "float", "type", "getitem"):
        indices = node.args[1] if name_of(node) == "getitem" else None
        whole = all(i is None or i == slice(None) for i in indices) if isinstance(indices, tuple) else indices is None
        if not whole:
            break
        node = node.args[0]
    return node


def _is_filled(node: Any) -> bool:
    """Is every element one number other than 0?"""
    name = name_of(node)
    return name == "ones" or (name == "full" and bool(node.args[1]) and not isinstance(node.args[1], Node))


def _is_coarse(node: Node, known: torch.Tensor | None) -> bool:
    """Are the numbers 0, or hide, so that fewer bits lose nothing?"""
    if known is not None:
        return bool(((known == 0) | (known <= LOWEST)).all())
    node = _base(node)
    return name_of(node) == "mul" and any(isinstance(a, float) and a <= LOWEST for a in node.args)


def _keeps_rows(x: Node) -> bool:
    """Is it a view with the same last two dimensions?"""
    return all_same(shape_of(x)[-2:], shape_of(x.args[0])[-2:]) and len(shape_of(x)) >= 2


def _swaps(x: Node) -> bool:
    """Is it a view with the last two dimensions swapped?"""
    name, ndim = name_of(x), len(shape_of(x))
    if name in ("mT", "getattr"):
        return name == "mT" or x.args[1] == "mT"
    given = [d for a in x.args[1:] for d in (a if isinstance(a, (tuple, list)) else (a,))]
    if x.kwargs or not all(type(d) is int for d in given):
        return False
    dims = [d % ndim for d in given]
    if name == "permute":
        return dims == [*range(ndim - 2), ndim - 1, ndim - 2]
    return sorted(dims) == [ndim - 2, ndim - 1]


# ---- products as sums over labels -----------------------------------------------------------------------


Operand = tuple[Node, tuple[str, ...]]


def _product(node: Node) -> tuple[Operand, Operand, tuple[str, ...]]:
    """A product's operands with their dimensions' labels, and the result's."""
    if _kind(node) == "einsum":
        equation, *operands = node.args
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = list(operands[0])
        require(isinstance(equation, str) and len(operands) == 2 and "->" in equation)
        inputs, _, out = equation.replace(" ", "").partition("->")  # type: ignore[union-attr]
        a, b = operands
        texts = inputs.split(",")
        require(len(texts) == 2)
        left, right = (_labels(text, len(shape_of(x))) for text, x in zip(texts, (a, b), strict=True))
        return (a, left), (b, right), _labels(out, len(shape_of(node)))  # type: ignore[return-value]
    require(len(node.args) == 2 and not node.kwargs)
    a, b = node.args
    ndim = len(shape_of(a))
    require(ndim >= 2 and ndim == len(shape_of(b)))
    lead = tuple(f"{k}" for k in range(ndim - 2))
    return (a, (*lead, "m", "k")), (b, (*lead, "k", "n")), (*lead, "m", "n")  # type: ignore[return-value]


def _labels(text: str, ndim: int) -> tuple[str, ...]:
    before, dots, after = text.partition("...")
    names = [f".{k}" for k in range(ndim - len(before) - len(after))] if dots else []
    require(len(before) + len(names) + len(after) == ndim)
    return (*before, *names, *after)


def _at(labels: tuple[str, ...], label: str) -> int | None:
    return labels.index(label) if label in labels else None


def _score_operands(node: Node) -> tuple[Any, Any, tuple[Any, ...]]:
    """Queries and keys of a product of scores, each as ``[*lead, length, width]``, and its leading sizes."""
    if _kind(node) == "baddbmm":
        a, b = argument(node, 1, "batch1"), argument(node, 2, "batch2")
        require(isinstance(a, Node) and isinstance(b, Node))
        q, k, out = (a, ("0", "m", "k")), (b, ("0", "k", "n")), ("0", "m", "n")
    else:
        q, k, out = _product(node)  # type: ignore[assignment]
    require(len(out) >= 2)
    *lead, row, column = out
    if row in k[1]:
        q, k = k, q
    depth = set(q[1]) & set(k[1]) - set(out)
    require(len(depth) == 1 and len(set(out)) == len(out))
    (inner,) = depth
    for labels, own in ((q[1], row), (k[1], column)):
        require(len(set(labels)) == len(labels) and own in labels and set(labels) <= {*lead, own, inner})
    order = lambda x, own: (x[0], tuple(_at(x[1], label) for label in (*lead, own, inner)))
    return order(q, row), order(k, column), shape_of(node)[:-2]
