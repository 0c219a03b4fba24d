"""Structural equality of envelopes, independent of node names and of the text form."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from prims.ir.envelope import Envelope
from prims.ir.metadata import same_size, same_spec
from prims.ir.symbols import expr_of

__all__ = ["structural_difference"]


def structural_difference(a: Envelope, b: Envelope) -> str | None:
    """The first difference between two envelopes, or None when they are equal.

    Nodes are compared in program order by kind, target, arguments, metadata and source; symbols by name; constants by
    content.
    """
    for name in ("dialect", "version", "producer", "producer_version", "mutations", "default_dtype"):
        if getattr(a, name) != getattr(b, name):
            return f"{name}: {getattr(a, name)!r} and {getattr(b, name)!r}"
    if a.symbols.entries != b.symbols.entries:
        return f"symbols: {a.symbols.entries} and {b.symbols.entries}"
    if len(a.inputs) != len(b.inputs) or len(a.outputs) != len(b.outputs) or len(a.aliases) != len(b.aliases):
        return "numbers of inputs, outputs or aliases"
    for x, y in zip(a.inputs, b.inputs, strict=True):
        if (x.name, x.kind, x.requires_grad, x.source) != (y.name, y.kind, y.requires_grad, y.source):
            return f"input {x} and {y}"
        if not _same_type(x.spec, y.spec):
            return f"spec of input {x.name}: {x.spec!r} and {y.spec!r}"
    for index, (o, p) in enumerate(zip(a.outputs, b.outputs, strict=True)):
        if (o.kind, o.source) != (p.kind, p.source) or not _same_type(o.spec, p.spec):
            return f"output {index}: {o} and {p}"
    for s, t in zip(a.aliases, b.aliases, strict=True):
        same = (s.output_index, s.base_kind, s.base_index) == (t.output_index, t.base_kind, t.base_index)
        if not same or not _same_type(s.view, t.view):
            return f"alias {s} and {t}"
    if a.constants.keys() != b.constants.keys():
        return f"constants: {sorted(a.constants)} and {sorted(b.constants)}"
    for name, value in a.constants.items():
        other = b.constants[name]
        if value.dtype != other.dtype or not torch.equal(value, other):
            return f"constant {name}"
    return _graphs(a.graph, b.graph)


def _graphs(a: torch.fx.Graph, b: torch.fx.Graph) -> str | None:
    if len(a.nodes) != len(b.nodes):
        return f"{len(a.nodes)} and {len(b.nodes)} nodes"
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    for x, y in zip(a.nodes, b.nodes, strict=True):
        if x.op != y.op or (x.op not in ("placeholder", "output") and x.target != y.target):
            return f"node {x.format_node()} and {y.format_node()}"
        if not _same_value(x.args if x.op != "placeholder" else (), y.args if y.op != "placeholder" else (), mapping):
            return f"arguments of {x.format_node()} and {y.format_node()}"
        if not _same_value(dict(x.kwargs), dict(y.kwargs), mapping):
            return f"keyword arguments of {x.format_node()} and {y.format_node()}"
        if x.op != "placeholder" and not _same_type(x.meta.get("spec"), y.meta.get("spec")):
            return f"metadata of {x.name}: {x.meta.get('spec')!r} and {y.meta.get('spec')!r}"
        if x.op != "placeholder" and x.meta.get("source") != y.meta.get("source"):  # inputs have their descriptor's
            return f"source of {x.name}: {x.meta.get('source')} and {y.meta.get('source')}"
        mapping[x] = y
    return None


def _same_type(a: Any, b: Any) -> bool:
    if expr_of(a) is not None or expr_of(b) is not None:
        return same_size(a, b)
    return a is b or same_spec(a, b)


def _same_value(a: Any, b: Any, mapping: dict[torch.fx.Node, torch.fx.Node]) -> bool:
    if isinstance(a, torch.fx.Node):
        return mapping.get(a) is b
    if isinstance(a, (tuple, list)):
        if isinstance(a, tuple) != isinstance(b, tuple) or not isinstance(b, (tuple, list)) or len(a) != len(b):
            return False
        return all(_same_value(x, y, mapping) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same_value(a[k], b[k], mapping) for k in a)
    if isinstance(a, slice):
        return isinstance(b, slice) and _same_value((a.start, a.stop, a.step), (b.start, b.stop, b.step), mapping)
    return same_size(a, b)
