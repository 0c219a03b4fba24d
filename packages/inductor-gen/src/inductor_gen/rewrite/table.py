"""The rewrites of the typed graph: rows, tried in order at every node, before anything is laid out."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_gen.extern.attention import BACKWARD, FORWARD
from inductor_gen.loops.graph import Graph, Node
from inductor_gen.rewrite import activations, concatenations, convolutions, heads, impossible, masks, maxima, products
from inductor_gen.rewrite.row import Context, Editor, Row, specs
from prims.errors import VerifierError
from prims.ir import Fuel
from prims.ops import PrimOp
from prims.records import record

__all__ = ["CONSTRAINTS", "ROWS", "Rewritten", "rewrite", "verify"]

_CONVOLUTIONS = (convolutions.CONVOLUTION,)

#: In this order: each sees what those before it have made. Verdicts about masks name places in the graph as it came.
ROWS = (
    Row("mask", masks.known_mask, masks.settle, "eager_exact", required=True, ops=(*FORWARD, *BACKWARD)),
    Row("empty", impossible.is_unsettled, impossible.settle, "eager_exact", required=True),
    Row(
        "scatter without atomics", impossible.needs_library, impossible.call, "eager_exact", required=True,
        ops=("scatter", "index_put"),
    ),
    Row("part of a concatenation", concatenations.apart, concatenations.take, "eager_exact", ops=("slice",)),
    Row("concatenation of neighbours", concatenations.neighbours, concatenations.join, "eager_exact", ops=("concat",)),
    Row("concatenation of many", concatenations.is_of_many, concatenations.call, "eager_exact", ops=("concat",)),
    Row("gelu", activations.activated, activations.join, ops=(activations.LINEAR,)),
    Row("shared heads", heads.shared, heads.share, "eager_close", ops=(heads.SHARING,)),
    Row("convolution over tiles", convolutions.tiled, convolutions.forward, "eager_close", ops=_CONVOLUTIONS),
    Row(
        "gradients of a 1x1 convolution", convolutions.is_1x1_backward, convolutions.backward, "eager_close",
        ops=(convolutions.BACKWARD,),
    ),
    Row("bias of a convolution", convolutions.biased, convolutions.split_bias, "eager_close", ops=_CONVOLUTIONS),
    Row("convolution of patches", convolutions.is_patches, convolutions.gather, ops=_CONVOLUTIONS),
    Row("maxima of windows", maxima.windows, maxima.in_loops, "eager_exact", ops=(maxima.POOLING,)),
    Row("products of one matrix", products.siblings, products.together, ops=products.PRODUCTS),
    Row("aligned product", products.unaligned, products.pad, ops=products.PRODUCTS),
)  # fmt: skip

CONSTRAINTS = {
    "GRAPH-C1": "A node takes what stands before it, each is among the readers of what it takes, and no other is.",
    "GRAPH-C2": "A primitive's metadata is what its operands' make it.",
    "GRAPH-C3": "A result of the graph is one of its nodes.",
}

_STRICT = ("fast", "eager_close", "eager_exact")


@record
class Rewritten:
    """A graph, and how often each row was applied to it."""

    graph: Graph
    fired: dict[str, int]

    def __str__(self) -> str:
        """The rows that were applied, and the nodes, one line each."""
        rows = [f"# {name}: {count}" for name, count in self.fired.items()]
        return "\n".join([*rows, *map(_line, self.graph.nodes), f"return {self.graph.outputs}"])


def rewrite(
    graph: Graph, context: Context, fuel: Fuel, rows: Sequence[Row] = ROWS, *, check: bool = False
) -> Rewritten:
    """Apply the rows that the numerics allow, one unit of fuel for each change; the graph itself is changed.

    Raises:
        VerifierError: with ``check``, a row broke a constraint; the error names both.
    """
    fired: dict[str, int] = {}
    context.results.update(x for x in graph.outputs if isinstance(x, Node))
    if context.numerics != "eager_exact":
        graph.image_shapes = convolutions.images_of(graph.nodes)
    for row in rows:
        if _STRICT.index(row.numerics) >= _STRICT.index(context.numerics):
            count = _apply(row, graph, context, fuel)
            if count:
                fired[row.name] = count
            if count and check:
                verify(graph, row.name)
    return Rewritten(graph, fired)


def _apply(row: Row, graph: Graph, context: Context, fuel: Fuel) -> int:
    edit, count, ops = Editor(graph, context.results), 0, frozenset(row.ops)
    if ops and not any(node.op in ops for node in graph.nodes):
        return 0
    for node in graph.nodes:
        edit.at = node
        found = None
        asked = (not ops or node.op in ops) and node not in edit.gone
        if asked and (row.required or fuel.left):
            try:
                found = row.match(node, context)
            except Exception:
                fuel.spend(row.name)
                raise
        if found is not None and (row.required or fuel.spend(row.name)):
            row.apply(edit, node, found)
            count += 1
        edit.nodes.append(node)
    edit.finish()
    if count:
        graph.nodes = [node for node in edit.nodes if node not in edit.gone]
        graph.relink()
    return count


def verify(graph: Graph, after: str) -> None:
    """Check the constraints.

    Raises:
        VerifierError: one is broken.
    """
    known: set[Node] = set()
    for node in graph.nodes:
        taken = all(x in known and x.users.count(node) == 1 for x in node.ins)
        _demand(taken and all(node in user.ins for user in node.users), "GRAPH-C1", node, after)
        if isinstance(node.target, PrimOp):
            made = node.target.meta(*specs(node.args))
            same = (made.dtype, made.device) == (node.dtype, node.device)
            _demand(same and len(made.shape) == len(node.shape), "GRAPH-C2", node, after)
        known.add(node)
    for x in graph.outputs:
        _demand(not isinstance(x, Node) or x in known, "GRAPH-C3", x, after)


def _demand(holds: bool, label: str, node: Node, after: str) -> None:
    if not holds:
        raise VerifierError(label, CONSTRAINTS[label], node=repr(node), after=after)


def _line(node: Node) -> str:
    args = ", ".join([*map(repr, node.args), *(f"{k}={v!r}" for k, v in node.kwargs.items())])
    shape = "" if node.dtype is None else f" : {str(node.dtype).removeprefix('torch.')}{list(map(str, node.shape))}"
    return f"{node!r} = {node.kind} {node.op}({args}){shape}"
