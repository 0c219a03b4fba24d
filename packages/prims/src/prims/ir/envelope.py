"""The envelope: a graph with everything that the next stage may know about it.

A worked example, as its text form prints it. The function scales a buffer in place and returns a row of it::

    def step(buffer, x):
        buffer.mul_(x)
        return buffer[0]

The graph is functional, so the new value of ``buffer`` is an output of kind ``mutation``; ``Mutation(0, 0)`` says
that the runtime copies output 0 into input 0, and ``Alias(0, "input", 0, view)`` that the user's result 0 is to be
given as a view of that input; the graph does not compute it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

from prims.ir.nodes import copy_node
from prims.records import record

if TYPE_CHECKING:
    from prims.source import SourceLoc
    from prims.spec import Sym, SymbolContext, TensorSpec

__all__ = [
    "DIALECTS",
    "INPUT_KINDS",
    "OUTPUT_KINDS",
    "Alias",
    "Envelope",
    "InputDesc",
    "Mutation",
    "OutputDesc",
    "SymbolBinding",
    "SymbolEntry",
    "SymbolTable",
]

DIALECTS = ("torch", "aten", "prim")
INPUT_KINDS = ("parameter", "buffer", "input", "constant", "saved", "size", "rng_seed", "tangent")
OUTPUT_KINDS = ("output", "mutation", "saved", "gradient")


@record
class InputDesc:
    """One input, in placeholder order.

    Attributes:
        name: unique among the inputs; the placeholder's name in the text form.
        kind: one of :data:`INPUT_KINDS`.
        spec: a ``TensorSpec``; for kind ``size`` a ``Sym`` or an int.
        requires_grad: whether the tensor needs a gradient.
        source: how the user's program reaches it (``self.fc.weight``), for people to read.
    """

    name: str
    kind: str
    spec: TensorSpec | Sym | int
    requires_grad: bool = False
    source: str | None = None


@record
class OutputDesc:
    """One element of the flat output tuple.

    Attributes:
        kind: one of :data:`OUTPUT_KINDS`.
        spec: a ``TensorSpec``, a ``Sym``, a Python scalar, or None for an absent gradient.
        source: for a mutation or gradient, the input it belongs to; for people to read.
    """

    kind: str
    spec: TensorSpec | Sym | int | float | bool | None
    source: str | None = None


class Mutation(NamedTuple):
    """After the graph has run, output ``output_index`` is copied into input ``input_index``."""

    input_index: int
    output_index: int


@record
class Alias:
    """One of the user's results shares storage with a base, and is not computed by the graph.

    The runtime makes it by replaying the view. The user's results without an alias are the graph's outputs of kind
    ``output``, in order; further ones may follow that exist only as bases.

    Attributes:
        output_index: position among the user's flat results.
        base_kind: ``"input"`` or ``"output"`` (of the graph), and ``base_index`` its position there.
        view: the view's shape, strides and offset, or None where the output is the very base tensor.
    """

    output_index: int
    base_kind: str
    base_index: int
    view: TensorSpec | None = None


class SymbolBinding(NamedTuple):
    """Where a symbol's value is read at run time: a dimension of an input, or a ``size`` input itself."""

    input_index: int
    dim: int | None = None


@record
class SymbolEntry:
    """A size symbol: inclusive range (None is unbounded), the first value seen, and its binding.

    An unbacked symbol has neither: its value is read from the result of the node that makes it.
    """

    name: str
    min: int | None
    max: int | None
    hint: int | float | None
    binding: SymbolBinding | None = None


@record
class SymbolTable:
    """The symbols of an envelope, and the context that owns them (None after parsing or loading)."""

    context: SymbolContext | None = field(default=None, compare=False, repr=False)
    entries: tuple[SymbolEntry, ...] = ()

    def __iter__(self) -> Iterator[SymbolEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> SymbolEntry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def names(self) -> frozenset[str]:
        """The names of all symbols."""
        return frozenset(entry.name for entry in self.entries)

    @staticmethod
    def from_inputs(
        inputs: Iterable[InputDesc], context: SymbolContext | None, graph: torch.fx.Graph | None = None
    ) -> SymbolTable:
        """The table of the symbols that the inputs bind, each at the first place where it stands alone, and of those
        that nodes of ``graph`` make."""
        from prims.ir.symbols import bind_symbols

        return bind_symbols(tuple(inputs), context, graph)


@record(eq=False)
class Envelope:
    """What one stage hands to the next; treated as immutable, its graph included.

    Attributes:
        dialect: ``"torch"``, ``"aten"`` or ``"prim"``.
        version: ``(major, minor)`` of the dialect.
        producer: name of the package that made it, and ``producer_version`` its version.
        graph: one placeholder per input, in order; returns one flat tuple (torch dialect included).
        constants: tensors that ``get_attr`` nodes name.
        default_dtype: what Python's floats, and quotients of whole numbers, are in the program.
    """

    dialect: str
    version: tuple[int, int]
    producer: str
    producer_version: str
    graph: torch.fx.Graph
    inputs: tuple[InputDesc, ...]
    outputs: tuple[OutputDesc, ...]
    symbols: SymbolTable = SymbolTable()
    mutations: tuple[Mutation, ...] = ()
    aliases: tuple[Alias, ...] = ()
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    default_dtype: torch.dtype = torch.float32

    def replace(self, **changes: Any) -> Envelope:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def placeholders(self) -> list[torch.fx.Node]:
        """The placeholder nodes, in input order."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def results(self) -> tuple[Any, ...]:
        """The arguments of the flat output tuple."""
        return tuple(self.graph.output_node().args[0])  # type: ignore[arg-type]

    def copy_graph(self) -> tuple[torch.fx.Graph, dict[torch.fx.Node, torch.fx.Node]]:
        """A copy of the graph that a pass may change, and the map from old nodes to new ones."""
        graph = torch.fx.Graph()
        mapping: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.graph.nodes:
            mapping[node] = copy_node(graph, node, mapping.__getitem__)
        return graph, mapping

    def module(self) -> torch.fx.GraphModule:
        """A module that runs the graph as it is on the flat inputs (see :mod:`prims.ir.run` for sizes)."""
        from prims.ir.run import make_module

        return make_module(self)

    def verify(self, level: str = "boundaries") -> Envelope:
        """Check the dialect's constraints; returns the envelope.

        Raises:
            VerifierError: a constraint is broken.
        """
        from prims.ir.verifier import verify

        return verify(self, level)

    def hash(self) -> str:
        """Hex SHA-256 of the text form and the constants' contents."""
        from prims.ir.text import hash_envelope

        return hash_envelope(self)

    def __str__(self) -> str:
        from prims.ir.text import print_text

        return print_text(self)

    @property
    def op_nodes(self) -> list[torch.fx.Node]:
        """The nodes that compute something."""
        return [n for n in self.graph.nodes if n.op in ("call_function", "call_method", "call_module")]

    def source_of(self, node: torch.fx.Node) -> SourceLoc | None:
        """The user's source location of a node, when known."""
        return node.meta.get("source")
