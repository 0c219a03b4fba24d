"""What a form for another runtime is written from: inputs, results and weights by name, and primitives between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.fx

from compile_api.deploy import trees
from compile_api.deploy.contract import Result, dtype_of
from compile_api.deploy.exported import Exported
from prims.errors import UserError
from prims.forking import compiling
from prims.handlers import GraphHandler
from prims.ir import Envelope
from prims.ir.symbols import expr_of
from prims.lower import lower
from prims.records import record
from prims.report import Report
from prims.spec import Sym
from prims.spec import expr as ex
from prims.spec.exprtext import parse

__all__ = ["Argument", "Program", "Weight", "dim_text", "program_of"]


@record
class Argument:
    """A tensor that comes with a call; ``node`` is None where the program does not read it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]
    node: torch.fx.Node | None


@record(eq=False)
class Weight:
    """A parameter, buffer or constant; ``written`` if a call gives it a new value."""

    name: str
    value: torch.Tensor
    node: torch.fx.Node
    written: bool

    @property
    def dtype(self) -> torch.dtype:
        """Of its elements."""
        return self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.value.shape)


@record(eq=False)
class Program:
    """An exported program in primitives.

    Attributes:
        arguments, weights: its inputs.
        graph: between them and the results.
        outputs: name -> node or size, of each leaf of the result that is a tensor or a size.
        updates: the new values of arguments and weights that the program writes, named after them.
        symbols: symbol of a size -> the input's node and the dimension in which it stands.
        dims: symbol of a size -> the dimension's name.
        reasons: overload that could not be written in primitives -> why, where that is known.
    """

    arguments: tuple[Argument, ...]
    weights: tuple[Weight, ...]
    graph: torch.fx.Graph
    outputs: tuple[tuple[str, Any], ...]
    updates: tuple[tuple[str, torch.fx.Node], ...]
    symbols: Mapping[str, tuple[torch.fx.Node, int]]
    dims: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Argument | Weight, ...]:
        """Arguments, then weights."""
        return (*self.arguments, *self.weights)

    @property
    def results(self) -> tuple[tuple[str, Any], ...]:
        """Outputs, then new values."""
        return (*self.outputs, *self.updates)


def dim_text(size: Any, dims: Mapping[str, str]) -> int | str:
    """A size as a number, or as text in the dimensions' names."""
    e = expr_of(size)
    if e is None:
        return int(size)
    named = {s: ex.symbol(dims[s.name]) for s in e.symbols if s.name in dims}
    return str(ex.substitute(e, named))


@compiling()
def program_of(exported: Exported, takes: Mapping[str, Callable[[torch.fx.Node], bool]], target: str) -> Program:
    """The program in primitives, and in those overloads of ``takes`` of which it is True for every call.

    Raises:
        UserError: a result shares memory in a way that only memory can tell.
    """
    if not isinstance(exported, Exported):
        raise UserError(f"got a {type(exported).__name__}", todo="Give what compile_api.export() returns.")
    exported.refuse_numbers(f"written as {target}")
    contract, env = exported.contract, exported.envelope
    calls: dict[str, list[torch.fx.Node]] = {}
    for node in env.op_nodes:
        calls.setdefault(str(node.target), []).append(node)
    claims = frozenset(name for name, fits in takes.items() if all(map(fits, calls.get(name, ()))))
    report = Report()
    options = exported.options.replace(numerics="fast", batch_invariant=False)
    lowered = lower(env, claims=claims, options=options, report=report)
    whole = (f.reason.partition(": ") for f in report.fallbacks if f.stage == "lower")
    reasons = {name: reason for name, _, reason in whole if reason != "no decomposition"}
    graph, mapping = lowered.copy_graph()
    for node in graph.nodes:  # what is only computed so that its error comes in its place
        if str(node.target) == "quintet.computed_after.default":
            node.replace_all_uses_with(node.args[0])
    nodes = [mapping[node] for node in lowered.placeholders()]
    results: tuple[Any, ...] = tuple(graph.output_node().args[0])  # type: ignore[arg-type]
    written = {index: results[output] for index, output in lowered.mutations}
    arguments, weights = _inputs(exported, nodes, written)
    outputs = _outputs(exported, lowered, graph, nodes, written, target, results)
    taken = {a.name for a in arguments} | {w.name for w in weights}
    outputs = tuple((name if name not in taken else f"{name}.out", value) for name, value in outputs)
    updates = tuple((f"{_name(exported, index)}.new", node) for index, node in written.items())
    symbols = {
        e.name: (nodes[e.binding.input_index], e.binding.dim)
        for e in lowered.symbols if e.binding is not None and e.binding.dim is not None
    }  # fmt: skip
    return Program(arguments, weights, graph, outputs, updates, symbols, dict(contract.bound), reasons)


def _name(exported: Exported, index: int) -> str:
    kind, what = exported.contract.sources[index]
    return exported.contract.inputs[what].name if kind == "argument" else what


def _inputs(
    exported: Exported, nodes: Sequence[torch.fx.Node], written: Mapping[int, Any]
) -> tuple[tuple[Argument, ...], tuple[Weight, ...]]:
    contract = exported.contract
    read = {what: nodes[index] for index, (kind, what) in enumerate(contract.sources) if kind == "argument"}
    arguments = tuple(
        Argument(what.name, dtype_of(what.dtype), what.shape, read.get(at))
        for at, what in enumerate(contract.inputs) if what.dtype is not None
    )  # fmt: skip
    weights = tuple(
        Weight(what, exported.weights[what], nodes[index], index in written)
        for index, (kind, what) in enumerate(contract.sources) if kind == "weight"
    )  # fmt: skip
    return arguments, weights


# ---- results ---------------------------------------------------------------------------------------------------------


def _outputs(
    exported: Exported, env: Envelope, graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node],
    written: Mapping[int, torch.fx.Node], target: str, results: Sequence[Any],
) -> tuple[tuple[str, Any], ...]:  # fmt: skip
    """The leaves of the result: views are computed, as other runtimes have no shared memory."""
    contract = exported.contract
    context = env.symbols.context
    found: list[tuple[str, Any]] = []
    p = GraphHandler(graph)

    def size(text: int | str) -> Any:
        if isinstance(text, int):
            return text
        e = parse(text)
        if e.is_const:
            return e.value
        assert context is not None  # which whatever has symbols has
        return Sym(e, context)

    with graph.inserting_before(graph.output_node()):
        for name, r in zip(trees.paths(contract.gives, "result"), contract.results, strict=True):
            if r.kind == "literal":
                continue
            if r.kind == "size":
                found.append((name, size(r.value)))
                continue
            value = results[r.index] if r.kind == "output" else written.get(r.index, nodes[r.index])
            if r.strides is not None:
                memory = (env.outputs if r.kind == "output" else env.inputs)[r.index].spec
                value = _view(p, value, memory, r, size, name, target)
            found.append((name, value))
    return tuple(found)


def _view(
    p: GraphHandler, base: torch.fx.Node, memory: Any, r: Result, size: Callable[[Any], Any], name: str, target: str
) -> torch.fx.Node:
    """The elements of a view of ``base``, whose memory has the strides of ``memory``."""
    if dtype_of(r.dtype or "") != memory.dtype:
        raise _only_memory(name, target)
    shape, strides, offset = [size(n) for n in r.shape], [size(n) for n in r.strides or ()], size(r.offset)
    order = _dense(memory.shape, memory.strides)
    if order is None:
        return _addressed(p, p.value(base), memory, shape, strides, offset, _only_memory(name, target))
    value = p.permute(p.value(base), order)
    number = _product(value.shape)
    flat = p.reshape(value, (number,))
    inner = _dense(shape, strides)
    if inner is not None and _same(_product(shape), number) and _same(offset, 0):
        dense = p.reshape(flat, tuple(shape[d] for d in inner))
        node: torch.fx.Node = p.permute(dense, tuple(inner.index(d) for d in range(len(shape)))).node
        return node
    taken: torch.fx.Node = p.index(flat, (_places(p, shape, strides, offset, flat.device),), (0,)).node
    return taken


def _only_memory(name: str, target: str) -> UserError:
    return UserError(
        f"the program cannot be written as {target}: {name} shares the memory of another tensor in a way that only "
        "memory can tell",
        todo="Return a copy of it: .clone().",
    )


def _places(p: GraphHandler, shape: Sequence[Any], strides: Sequence[Any], offset: Any, device: torch.device) -> Any:
    """Where in memory each element of a view is."""
    place = p.full(tuple(shape), offset, torch.int64, device)
    for d, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        line = p.mul(p.iota(n, 0, 1, torch.int64, device), stride)
        place = p.add(place, p.broadcast(line, tuple(shape), (d,)))
    return place


def _addressed(
    p: GraphHandler, base: Any, memory: Any, shape: Sequence[Any], strides: Sequence[Any], offset: Any,
    refusal: UserError,
) -> torch.fx.Node:  # fmt: skip
    """The elements of a view of what lies in memory with gaps, or repeated: each place is an index of every dimension.

    Raises:
        UserError: places do not tell indices apart, or sizes differ between calls.
    """
    if not all(isinstance(n, int) for n in (*memory.shape, *memory.strides)) or not base.ndim:
        raise refusal
    order = sorted((d for d in range(base.ndim) if memory.strides[d]), key=lambda d: -memory.strides[d])
    beyond = 0
    for d in reversed(order):  # an index of the dimension reaches further than all of the inner ones
        if memory.strides[d] <= beyond:
            raise refusal
        beyond += memory.strides[d] * (memory.shape[d] - 1)
    left = _places(p, shape, strides, offset, base.device)
    indices = [p.full(tuple(shape), 0, torch.int64, base.device)] * base.ndim
    for d in order:
        indices[d] = p.trunc_div(left, memory.strides[d])
        left = p.sub(left, p.mul(indices[d], memory.strides[d]))
    node: torch.fx.Node = p.index(base, tuple(indices), tuple(range(base.ndim))).node
    return node


def _product(sizes: Sequence[Any]) -> Any:
    number: Any = 1
    for n in sizes:
        number = number * n
    return number


def _dense(shape: Sequence[Any], strides: Sequence[Any]) -> tuple[int, ...] | None:
    """The order of dimensions in which memory holds the elements row by row without gaps, if there is one."""
    left = [d for d in range(len(shape)) if not _same(shape[d], 1)]
    order: list[int] = []
    step: Any = 1
    while left:
        inner = next((d for d in reversed(left) if _same(strides[d], step)), None)
        if inner is None:
            return None
        left.remove(inner)
        order.insert(0, inner)
        step = step * shape[inner]
    return (*(d for d in range(len(shape)) if _same(shape[d], 1)), *order)


def _same(a: Any, b: Any) -> bool:
    """Are two sizes equal whatever the symbols are?"""
    return ex.to_expr(expr_of(a) or a) is ex.to_expr(expr_of(b) or b)


