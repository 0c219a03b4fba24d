"""``export_graph``: one call as one graph, for tools that read, draw or change graphs, and as a function to call."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch

from dynamo_capture.contract import supports_dynamic_shapes
from dynamo_capture.frontend import optimize
from prims.errors import Unsupported
from prims.ir import Envelope
from prims.options import Options
from prims.source import SourceLoc

__all__ = ["ExportedGraph", "export_graph"]


class ExportedGraph(Envelope):
    """The graph of a function's call, an envelope as the next stages take it, and that function, run by the graph.

    It is called as the function is and gives what the function gives, in its structure; what the function does beside
    computing (it appends a loss to a list) is done as well. It holds the function's own parameters. For calls that the
    graph is not for, other sizes that were not marked dynamic, say, it raises :class:`prims.errors.NotCompiled` with
    what differs.

    Attributes:
        graph_module: the graph as a module, which takes the tensors and sizes of ``inputs``, in order, and gives a flat
            tuple. Nodes have ``stack_trace``, the program's line as ``torch.fx`` shows it. What is changed in its
            ``graph`` is run from ``graph_module.recompile()`` on.
        envelope: the envelope alone, with inputs (``source`` says where the program has each), outputs and symbols.
    """

    graph_module: torch.fx.GraphModule
    envelope: Envelope
    _compiled: Callable[..., Any]
    __wrapped__: Any

    def __init__(
        self, fn: Any, compiled: Callable[..., Any], graph_module: torch.fx.GraphModule, envelope: Envelope
    ) -> None:
        super().__init__(**{field.name: getattr(envelope, field.name) for field in dataclasses.fields(Envelope)})
        named = fn.forward if isinstance(fn, torch.nn.Module) else fn
        own = {"graph_module": graph_module, "envelope": envelope, "_compiled": compiled, "__wrapped__": fn}
        own |= {name: getattr(named, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(named, name)}
        try:
            own["__signature__"] = inspect.signature(named)
        except (TypeError, ValueError):  # some functions in C have none
            pass
        self.__dict__.update(own)  # the fields of an envelope are not set again

    def replace(self, **changes: Any) -> Envelope:
        """An envelope with some fields changed, which is no function any more."""
        return self.envelope.replace(**changes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph for a call of the function."""
        return self._compiled(*args, **kwargs)

    def __repr__(self) -> str:
        name = self.__dict__.get("__qualname__", type(self.__wrapped__).__name__)
        return f"<graph of {name}{getattr(self, '__signature__', '')}: {len(self.op_nodes)} operators>"

    def __str__(self) -> str:
        return str(self.envelope)


def export_graph(fn: Any, *args: Any, options: Options | None = None, **kwargs: Any) -> ExportedGraph:
    """The graph of one call, which must be a single one, with the function's signature and results.

    The call is made, by the graph. Sizes are fixed unless they are marked (:func:`dynamo_capture.mark_dynamic`) or
    ``options`` say so.

    Args:
        fn: a function, a method or a module.

    Raises:
        Unsupported: the graph breaks, or there is nothing to capture.
        Exception: what the function raises.
    """
    found: list[torch.fx.GraphModule] = []

    @supports_dynamic_shapes
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append(gm)
        return lambda *flat: gm.forward(*flat)  # as it is when it is called: graphs are there to be changed

    base = options or Options()
    compiled: Any = optimize(fn, backend, options=base.replace(fullgraph=True))
    compiled.__quintet_optimizer__.exporting = True
    compiled(*args, **kwargs)
    if len(found) != 1:
        raise Unsupported(f"{fn!r} gave {len(found)} graphs; export needs exactly one")
    gm = found[0]
    envelope: Envelope = gm.meta["envelope"]
    for entry in envelope.symbols:
        if entry.hint is None and entry.binding is not None:
            source = envelope.inputs[entry.binding.input_index].source
            raise Unsupported(f"{fn!r} calls {source}, whose result is no argument of the graph")
    gm.meta.pop("writes", None)
    for node in gm.graph.nodes:
        where = node.meta.get("source")
        if isinstance(where, SourceLoc):
            node.meta["stack_trace"] = _trace_of(where)
    return ExportedGraph(fn, compiled, gm, envelope)


def _trace_of(where: SourceLoc) -> str:
    """A line of the program as tracebacks show it, which is how ``torch.fx`` keeps it."""
    text = linecache.getline(where.filename, where.line).strip()
    return f'  File "{where.filename}", line {where.line}, in {where.function}' + (f"\n    {text}" if text else "")
