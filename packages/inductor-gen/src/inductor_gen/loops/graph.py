"""The code generator's view of a prim-dialect envelope: plain nodes with sizes as expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable
from dataclasses import field
from typing import Any, TypeVar

import torch

from inductor_gen.device.backends import BACKENDS
from inductor_gen.device.claims import CUDNN_BACKWARD, KERNELS, claims
from inductor_gen.loops.index import size
from prims.collectives import is_collective, is_transfer
from prims.errors import InternalError
from prims.ir import Envelope
from prims.ir.settle import settler
from prims.lower.custom import STRIDES
from prims.ops import PrimOp
from prims.records import record
from prims.spec import TensorSpec
from prims.spec.expr import Expr

__all__ = [
    "Graph", "Node", "asked_before", "build_graph", "inner_dims", "instances", "is_training", "is_whole_division",
    "kind_of", "may_refuse", "overload_name", "reached", "runs_once", "waits_on_host",
]  # fmt: skip

T = TypeVar("T")

_KIND_OF_ROW = {
    "unary": "pointwise",
    "binary": "pointwise",
    "ternary": "pointwise",
    "cast": "pointwise",
    "create": "create",
    "random": "pointwise",
    "view": "view",
    "reduce": "reduce",
    "scan": "scan",
    "dot": "extern",
}
_ANY_STRIDES = frozenset[str]().union(*map(claims, BACKENDS)) - KERNELS - {CUDNN_BACKWARD}
_DIVISIONS = frozenset(("floor_div", "trunc_div", "remainder", "fmod"))
#: How the names of operators begin that any data suits.
_NEVER_REFUSE = (
    "dot", "mm.", "addmm.", "bmm.", "baddbmm.", "convolution", "_scaled_dot_product", "sort.", "topk.", "_fft_",
)  # fmt: skip
_PLAIN = frozenset((int, bool, float, str, type(None), torch.dtype, torch.device))
_KIND_OF_NAME = {"gather": "pointwise", "index": "pointwise", "scatter": "scatter", "index_put": "scatter"}


class Node:
    """One value of the graph.

    Attributes:
        id: position in the graph; ascending in topological order.
        kind: ``input size constant pointwise create view reduce scan scatter extern item``.
        op: the primitive's name, or the overload's (``aten.mm.default``).
        args: canonical arguments, nodes for tensors.
        ins: the nodes among the arguments, in order.
        shape: sizes; dtype and device None for values that are not tensors.
        strides: per tensor operand the strides that it has in eager, for an operator that is given them; else None.
        late: in a graph that takes its own derivatives, "gradient" of what hangs on one, "again" of what is computed
            again for it (``meta["late"]``); else None: early.
        unmasked: of an attention operator that goes without its mask, "free" or "causal"; else None.
        users: nodes that take this one, each once.
        parts: of a concatenation, once asked, its operands and where each starts (:func:`loops.views.parts_of`).
    """

    __slots__ = (
        "args", "device", "dtype", "id", "ins", "kind", "kwargs", "late", "op", "parts", "shape", "source", "spec",
        "strides", "target", "unmasked", "users",
    )  # fmt: skip

    def __init__(self, id: int, kind: str, op: str, args: tuple[Any, ...], spec: Any, source: Any = None) -> None:
        self.id = id
        self.kind = kind
        self.op = op
        self.args = args
        self.kwargs: dict[str, Any] = {}
        self.target: Any = None
        self.spec = spec
        self.source = source
        self.strides: tuple[Any, ...] | None = None
        self.late: str | None = None
        self.unmasked: str | None = None
        self.users: list[Node] = []
        self.ins: list[Node] = []
        self.parts: tuple[list[Node], list[Expr]] | None = None
        shape = getattr(spec, "shape", None)
        self.shape: tuple[Expr, ...] = () if shape is None else tuple(map(size, shape))
        self.dtype: torch.dtype | None = getattr(spec, "dtype", None)
        self.device: torch.device | None = getattr(spec, "device", None)

    def __repr__(self) -> str:
        return f"%{self.id}:{self.op}"

    @property
    def is_late(self) -> bool:
        """Is it for a derivative that the graph takes itself?"""
        return self.late is not None

    @property
    def on_gpu(self) -> bool:
        """Does its value live on a GPU?"""
        return self.device is not None and self.device.type == "cuda"

    def link(self) -> None:
        """Fill ``ins`` from the arguments and enter this node among their users."""
        self.parts = None
        found: dict[Node, None] = {}
        _collect(self.args, found)
        _collect(self.kwargs, found)
        self.ins = list(found)
        for value in self.ins:
            value.users.append(self)


def _collect(values: Any, found: dict[Node, None]) -> None:
    for value in values.values() if isinstance(values, dict) else values:
        kind = type(value)
        if kind is Node:
            found[value] = None
        elif kind is not int and isinstance(value, (tuple, list, dict)):
            _collect(value, found)


def instances(kind: type[T], values: Iterable[Any]) -> list[T]:
    """The instances of a class among nested arguments, in order and with repetitions."""
    found: list[T] = []
    for value in values:
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += instances(kind, value)
        elif isinstance(value, dict):
            found += instances(kind, value.values())
    return found


def reached(starts: Iterable[Node], on: Callable[[Node], Iterable[Node]] = operator.attrgetter("ins")) -> list[Node]:
    """The nodes that these lead to, themselves among them, each once; ``on`` gives those that one leads to, by default
    what it takes."""
    found: dict[Node, None] = {}
    todo = list(starts)
    while todo:
        x = todo.pop()
        if x not in found:
            found[x] = None
            todo += on(x)
    return list(found)


@record(frozen=False)
class Graph:
    """Nodes in topological order.

    Attributes:
        inputs: the inputs among the nodes, in order.
        outputs: the flat outputs, nodes or literals.
        images: values that are to lie with channels last where an operator reads them through views.
        image_shapes: the shapes of what convolutions and poolings take and give, where channels last pays.
        matrices: products ``[images * pixels, channels]`` that are images, and the images' shapes.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    images: set[Node] = field(default_factory=set)
    image_shapes: set[tuple[Expr, ...]] = field(default_factory=set)
    matrices: dict[Node, tuple[Expr, ...]] = field(default_factory=dict)

    def add(self, kind: str, op: str, args: tuple[Any, ...], spec: Any, source: Any = None) -> Node:
        """Append a node (not for use in the middle of the graph)."""
        node = Node(len(self.nodes), kind, op, args, spec, source)
        self.nodes.append(node)
        node.link()
        return node

    def relink(self) -> None:
        """Number the nodes by their places, and find out anew which take which."""
        for k, node in enumerate(self.nodes):
            node.id, node.users = k, []
        for node in self.nodes:
            node.link()


def kind_of(op: PrimOp) -> str:
    """The kind of the nodes of a primitive."""
    kind = _KIND_OF_NAME.get(op.name) or _KIND_OF_ROW.get(op.kind)
    if kind is None:
        raise InternalError(f"primitive {op.name!r} has kind {op.kind!r}, which no lowering knows")
    return kind


def overload_name(target: Any) -> str:
    """``aten.mm.default``."""
    return f"{target.namespace}.{target._schema.name.split('::')[-1]}.{target._overloadname}"


def build_graph(env: Envelope, own_strides: bool = False) -> Graph:
    """The graph of a prim-dialect envelope, dead nodes removed.

    With ``own_strides`` every operator is given its operands in eager's strides, not only those that may count on them.
    """
    live = _live(env)
    graph = Graph()
    value: dict[Any, Any] = {}
    settle = settler(env)

    def look(x: Any) -> Any:  # ``map_values``, with most leaves told at a glance
        kind = type(x)
        if kind in _PLAIN:
            return x
        if kind is torch.fx.Node:
            return value[x]
        if isinstance(x, (tuple, list)):
            return (kind if kind is list else tuple)([look(v) for v in x])
        return {k: look(v) for k, v in x.items()} if isinstance(x, dict) else settle(x)

    for node in env.graph.nodes:
        if node.op == "placeholder":
            desc = env.inputs[len(graph.inputs)]
            is_tensor = isinstance(desc.spec, TensorSpec)
            spec = settle(desc.spec) if is_tensor else desc.spec
            made = graph.add("input" if is_tensor else "size", desc.name, (), spec)
            graph.inputs.append(made)
            value[node] = made if is_tensor else spec
        elif node.op == "get_attr":
            made = graph.add("constant", str(node.target), (), node.meta["spec"])
            made.target = env.constants[str(node.target)]
            value[node] = made
        elif node.op == "output":
            graph.outputs = [look(v) for v in node.args[0]]
        elif node in live:
            value[node] = _convert(graph, node, look, own_strides)
    return graph


def is_training(env: Envelope) -> bool:
    """Are values saved for a backward pass, or does this graph read such?"""
    return not {"saved", "tangent"}.isdisjoint([*(d.kind for d in env.inputs), *(d.kind for d in env.outputs)])


def _convert(graph: Graph, node: torch.fx.Node, look: Any, own_strides: bool) -> Any:
    target = node.target
    meta = node.meta
    spec, source = look(meta.get("spec")), meta.get("source")
    if isinstance(target, PrimOp):
        args = target.bind(*look(node.args), **look(node.kwargs))
        made = Node(len(graph.nodes), kind_of(target), target.name, args, spec, source)
    elif target is operator.getitem:
        base, index = look(node.args)
        made = Node(len(graph.nodes), "item", "getitem", (base, index), spec, source)
    else:
        made = Node(len(graph.nodes), "extern", overload_name(target), look(node.args), spec, source)
        made.kwargs = look(node.kwargs)
        made.strides = None if made.op in _ANY_STRIDES and not own_strides else node.meta.get(STRIDES)
    made.target = target
    made.late = node.meta.get("late")
    graph.nodes.append(made)
    made.link()
    return made


def inner_dims(node: Node) -> tuple[int, ...]:
    """The dimensions of its operand that a reduction drops, or that a scan runs along."""
    dims = node.args[1]
    return (dims,) if isinstance(dims, int) else tuple(dims)


def runs_once(node: Node | torch.fx.Node) -> bool:
    """Does the operator run exactly once, in its order: does it advance a random generator, exchange data with other
    processes, or copy beside the computation?"""
    target = node.target
    in_order = is_collective(target) or is_transfer(target)
    return in_order or torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def waits_on_host(node: Node) -> bool:
    """Is the value in host memory for the time between a forward and a backward pass (:mod:`prims.transfers`)?"""
    if node.device is None or node.device.type != "cpu":
        return False
    if node.kind == "input":
        return any(is_transfer(user.target) for user in node.users)
    return is_transfer(node.target) and node.op in ("quintet.to_host.default", "quintet.at_host.default")


#: Nodes among which one is looked for that asks the same; views in which each element of their operand is.
_ASKED, _WHOLE = 32, frozenset(("reshape", "permute", "broadcast", "flip"))


def may_refuse(node: Node) -> bool:
    """May computing the node raise because of what its operands hold? On a GPU a kernel ends the process instead."""
    if node.kind == "extern":
        return not node.op.removeprefix("aten.").startswith(_NEVER_REFUSE)
    if node.on_gpu:
        return False
    if is_whole_division(node.op, node.dtype):
        return isinstance(node.args[1], Node) or not node.args[1]  # numbers are the program's own
    return node.kind == "scatter" or node.op in ("gather", "index", "bounded")


def asked_before(node: Node, kept: Container[Node]) -> bool:
    """Has a kernel that runs before looked at the very places by which a node goes? It has where those are ``bounded``,
    and of an ``index`` or ``index_put`` where it goes on from what was put there, or where what is put was read there
    and is ``kept`` in memory since."""
    if node.op == "scatter":
        return node.args[1].op == "bounded"
    if node.op not in ("index", "index_put"):
        return False
    asked = lambda i: i.args[0] if i.op == "bounded" else i
    places = lambda x: ([*map(asked, x.args[1])], x.args[2], [x.args[0].shape[d] for d in x.args[2]])
    if all(i.op == "bounded" for i in node.args[1]):
        return True
    written = node.args[0]
    while written.kind == "scatter" or written.op in ("reshape", "permute"):
        if written.op == "index_put" and places(written) == places(node):
            return True
        written = written.args[0]
    todo, seen = [node.args[3]] if node.op == "index_put" and node.args[3] in kept else [], set[Node]()
    while todo and len(seen) < _ASKED:
        x = todo.pop()
        if x.op == "index" and places(x) == places(node):
            return True
        if x not in seen and (x.kind in ("pointwise", "reduce") or x.op in _WHOLE):
            todo += instances(Node, x.args)
        seen.add(x)
    return False


def is_whole_division(op: str, dtype: torch.dtype | None) -> bool:
    """Does an operator divide whole numbers? Zeros are checked for on the CPU."""
    return op in _DIVISIONS and dtype is not None and not dtype.is_floating_point


def _live(env: Envelope) -> set[Any]:
    live: set[Any] = set()
    for node in reversed(list(env.graph.nodes)):
        if node.op == "output" or node in live or runs_once(node):
            live.update(node.all_input_nodes)
            live.add(node)
    return live
