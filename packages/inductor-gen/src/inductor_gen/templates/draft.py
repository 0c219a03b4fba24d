"""What a choice between renderings may look at."""

from __future__ import annotations

from collections.abc import Mapping

from inductor_gen.codegen.rendering import Rendering
from inductor_gen.kernel.build import Builder
from inductor_gen.layout.record import Layout, Prepared
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["Draft"]


@record
class Draft:
    """A graph whose kernels are made and in order, before anything is chosen for them."""

    options: Options
    hint: Hint
    prepared: Prepared
    builder: Builder
    rendering: Rendering
    report: Report | None = None

    @property
    def layouts(self) -> Mapping[Node, Layout]:
        """The layouts of all buffers."""
        return self.builder.layouts
