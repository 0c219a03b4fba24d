"""A rewrite of the typed graph as a row, and what its match may ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import torch

from inductor_gen.device.record import Asked, Device
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from prims.records import record

__all__ = ["Context", "Row"]


@record
class Context:
    """What is known besides the graph.

    Attributes:
        hint: a likely number for a size.
        devices: the record of a device.
        numerics: that of the options.
        masks: verdicts about attention masks, by the operator's place in the graph.
        training: are values saved for a backward pass, or does this graph read such?
        results: the nodes that the graph gives.
    """

    hint: Hint
    devices: Asked
    numerics: str = "fast"
    masks: Mapping[int, str] = field(default_factory=dict)
    training: bool = False
    results: set[Node] = field(default_factory=set)

    def device(self, node: Node) -> Device:
        """The record of the device that a node's value lives on."""
        return self.devices(node.device or torch.device("cpu"))


@record
class Row:
    """A rewrite.

    Attributes:
        name: what the text of the graph and fuel call it.
        match: ``(node, context) -> what apply needs``, None where it does not apply.
        apply: ``(editor, node, what match found)``.
        numerics: the strictest setting that allows it.
        required: it is made without fuel too, as later stages rely on it.
    """

    name: str
    match: Callable[[Node, Context], Any]
    apply: Callable[[Any, Node, Any], None]
    numerics: str = "fast"
    required: bool = False
