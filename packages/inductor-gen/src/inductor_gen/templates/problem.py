"""Choices that a lowered graph leaves, each with the kernels or operators that could be taken."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.rendering import Rendering
from inductor_gen.extern.calls import function_of
from inductor_gen.kernel.build import Builder
from inductor_gen.layout.record import Layout, Prepared, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from prims.options import Options
from prims.records import record
from prims.report import Report
from prims.spec.expr import Expr

__all__ = [
    "Candidate", "Draft", "Operator", "Problem", "Steps", "layout_text", "numbers", "sizes_text", "usual_operator",
]  # fmt: skip


@record
class Draft:
    """A graph whose kernels are made and in order, before anything is chosen for them."""

    options: Options
    hint: Hint
    prepared: Prepared
    builder: Builder
    rendering: Rendering
    report: Report

    @property
    def layouts(self) -> Mapping[Node, Layout]:
        """The layouts of all buffers."""
        return self.builder.layouts


@record
class Operator:
    """An operator's node and the callable that computes it."""

    node: Node
    name: str
    function: Callable[..., Any]


Steps = tuple[Operator | KernelSource, ...]


@record
class Candidate:
    """One way to compute a problem.

    Attributes:
        name: what the report and the cache call it.
        made: its steps, or what renders them when they are needed: what lost before never is.
    """

    name: str
    made: Steps | Callable[[], Steps]

    @functools.cached_property
    def steps(self) -> Steps:
        """Operators to call and kernels to launch, in order.

        Raises:
            Unsupported: Triton has no expression for something in it.
        """
        return self.made() if callable(self.made) else self.made


@record(frozen=False)
class Problem:
    """What to choose for.

    Attributes:
        text: what it is, in a line.
        key: what the choice depends on, beyond device and versions.
        positions: the calls that a choice replaces; what it consists of stands at the last of them.
        candidates: the first is what is taken without a choice.
        results: the buffers that are compared.
        scale: standard deviations of buffers' random data, where not 1.
        precision: relative error of float32 results that is none yet.
    """

    text: str
    key: str
    positions: tuple[int, ...]
    device: torch.device
    candidates: list[Candidate]
    results: tuple[Node, ...]
    scale: dict[Node, float] = field(default_factory=dict)
    precision: float = 2.0**-18


def usual_operator(draft: Draft, node: Node) -> Operator:
    """An operator as it is called without a choice."""
    name, function = function_of(node, *draft.prepared.call_of(node), draft.options)
    return Operator(node, name, function)


def numbers(hint: Hint, values: Sequence[Expr]) -> list[int]:
    """The sizes to measure with."""
    return [hint(v) for v in values]


def sizes_text(hint: Hint, sizes: Sequence[Expr]) -> str:
    """Sizes as ``16x512``."""
    return "x".join(map(str, numbers(hint, sizes)))


def layout_text(draft: Draft, nodes: Sequence[Node]) -> str:
    """Sizes, strides and dtypes of buffers, for keys."""
    parts = []
    for n in nodes:
        strides = strides_of(draft.layouts, n)
        parts.append(f"{n.dtype}{numbers(draft.hint, n.shape)}{numbers(draft.hint, strides)}")
    return " ".join(parts)
