"""Errors that come of data name the user's line: the graph's generated code has no lines of its own to show."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.fx

from prims.artefact import Artefact, NotPortable
from prims.errors import StoredGraphError
from prims.ir.serial import from_json, to_json

if TYPE_CHECKING:
    from prims.options import Options
    from prims.report import Report

__all__ = ["blaming", "load"]

#: What ``fx`` calls the file of a graph's generated code.
_GENERATED = "<eval_with_key>"


def blaming(module: torch.fx.GraphModule) -> Callable[..., Any]:
    """``module.forward``; an error raised in it gets a note with the user's line of the operator that raised it."""

    def run(*inputs: Any) -> Any:
        try:
            return module.forward(*inputs)
        except Exception as error:
            _blame(error, module.graph)
            raise

    run.artefact = functools.partial(_artefact, module)  # type: ignore[attr-defined]
    return run


def _artefact(module: torch.fx.GraphModule) -> Artefact:
    env = module.meta.get("envelope")
    if env is None or env.constants:
        raise NotPortable("a graph with constants, or without its description, is not stored")
    return Artefact("prims.graph", "1", {}, {"graph": to_json(env, indent=None).encode()})


def load(artefact: Artefact, options: Options, report: Report | None) -> Callable[..., Any]:
    """The graph of an artefact that :func:`blaming` gave, run operator by operator (a loader).

    Raises:
        StoredGraphError: it is of another version, or no graph.
    """
    if artefact.version != "1":
        raise StoredGraphError("ART-C4", f"a graph of version {artefact.version!r}")
    return blaming(from_json(artefact.files["graph"].decode()).module())


def _blame(error: Exception, graph: torch.fx.Graph) -> None:
    node = _failing_node(error, graph)
    source = None if node is None else node.meta.get("source")
    if source is None:
        return
    inside = f", in {source.function}" if source.function else ""
    note = f'In the program, this is\n  File "{source.filename}", line {source.line}{inside}'
    text = linecache.getline(source.filename, source.line).strip()
    note += f"\n    {text}" if text else ""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _failing_node(error: Exception, graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first operator whose result the generated code has not come to: its results are its local variables."""
    known = None
    traceback = error.__traceback__
    while traceback is not None and known is None:
        if traceback.tb_frame.f_code.co_filename.startswith(_GENERATED):
            known = traceback.tb_frame.f_locals
        traceback = traceback.tb_next
    if known is None:
        return None
    return next((node for node in graph.nodes if node.op.startswith("call") and node.name not in known), None)
