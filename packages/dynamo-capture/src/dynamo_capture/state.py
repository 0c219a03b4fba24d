"""What is remembered between captures of one code object, and what one captured region amounts to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from dynamo_capture import _native
from dynamo_capture.breaks import BreakInfo
from dynamo_capture.dynamic import DynamicSizes
from dynamo_capture.whynot import Why
from prims.records import record

if TYPE_CHECKING:
    import torch.fx

    from dynamo_capture.background import Pending
    from dynamo_capture.covering import Outline
    from dynamo_capture.guards import Guard

__all__ = ["Backend", "CapturedGraph", "CodeState"]

#: ``backend(gm, example_inputs) -> callable``.
Backend = Callable[["torch.fx.GraphModule", list[Any]], Callable[..., Any]]


@record
class CapturedGraph:
    """What one captured region amounts to, for ``explain`` and the report."""

    name: str
    graph: torch.fx.GraphModule | None
    guards: list[Guard]
    brk: BreakInfo | None
    where: str
    #: What it assumes, to be compared with other entries; None of a stored program.
    outline: Outline | None = None


@record(frozen=False)
class CodeState:
    """What is remembered between captures of one code object."""

    sizes: DynamicSizes
    #: How often translation was asked for.
    looks: int = 0
    raised: int = 0
    empty: int = 0
    #: What the hook has been told but, on another thread, may not have noted yet: the identity of a new entry, and
    #: that the frames are to be left alone.
    new_entry: int = 0
    left_alone: bool = False
    #: Why its frames come to no compiled code, where they do not.
    why: Why | None = None
    waits: int = 0
    #: Entries that a later one has taken the place of.
    replaced: int = 0
    #: Why no entry served, for each time that it was captured again.
    misses: list[str] = field(default_factory=list)
    #: It knows what a store knows of the sizes that the code object has met.
    informed: bool = False
    #: Values that only the data tells are read between graphs, for a stage could not do with symbols for them.
    reads_between: bool = False
    #: Programs that are being compiled in the background, or are ready there, the newest first.
    pending: list[Pending] = field(default_factory=list)
    #: Texts of graphs that the background has found not to be compiled.
    failed: set[str] = field(default_factory=set)
    #: The next capture is compiled by the call itself: the background could not put its guards on the tree.
    at_once: bool = False

    def answered(self, answer: Any) -> None:
        """The hook is about to be told."""
        self.left_alone = type(answer) is int and answer == _native.SKIP
        self.new_entry = 0 if type(answer) is int else id(answer)
        self.waits = 0

    def wait_for(self, entries: list[Any]) -> bool:
        """Whether the newest entry is still on its way into the cache (for a while; it may have been dropped)."""
        if not self.new_entry or any(id(entry) == self.new_entry for entry in entries) or self.waits > 100:
            self.new_entry = 0
            return False
        self.waits += 1
        time.sleep(0.0001)
        return True
