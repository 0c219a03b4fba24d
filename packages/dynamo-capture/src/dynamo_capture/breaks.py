"""Graph breaks: numbered reasons, each with a hint for the user."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prims.ir import SourceLoc
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.interpreter.root import LoopEnd

__all__ = [
    "REASONS", "BreakInfo", "EarlierEnd", "GraphBreak", "NotAnOperand", "Reason", "SkipFrame", "source_line",
    "without_frames",
]  # fmt: skip


@record
class Reason:
    """Why capture may stop: a stable number, one line, and what the user can do."""

    number: str
    title: str
    hint: str


def _table(*rows: tuple[str, str, str]) -> dict[str, Reason]:
    return {number: Reason(number, title, hint) for number, title, hint in rows}


#: All reasons, by number. Numbers are never reused.
REASONS = _table(
    ("QB01", "data-dependent branch on a tensor's value",
     "Compute both sides and choose with torch.where(condition, a, b), or branch on something known before the call."),
    ("QB02", "data-dependent read of a tensor's value",
     "Keep the value a tensor (x * y.sum(), not x * y.sum().item()), or read it outside of the compiled function. "
     "Where the size of a result depends on values (nonzero, x[mask], unique), use torch.where or a fixed size. "
     "With the option data_dependent such numbers and sizes stay in the graph, where nothing is asked about them."),
    ("QB03", "call of a function that capture does not know",
     "Call it outside of the compiled function, use a torch operation instead, or make it a custom operator "
     "(torch.library.custom_op)."),
    ("QB04", "call of a function under disable()",
     "Remove the disable() to have it captured, or call it outside of the compiled function."),
    ("QB05", "unsupported bytecode instruction",
     "Write the statement in another way, or put it outside of the compiled function."),
    ("QB06", "unsupported operation on a Python object", "Do this before or after the compiled function."),
    ("QB07", "unsupported operation of a builtin", "Do this before or after the compiled function."),
    ("QB08", "a torch operator could not be captured",
     "If the call fails without compile() too, mend its arguments; if not, call it outside of the compiled function, "
     "and please report it."),
    ("QB09", "a library outside torch is called on tensors",
     "Call it outside of the compiled function, or use the torch operation that does the same."),
    ("QB10", "an object of a kind that cannot be rebuilt is live here",
     "Let it go out of use before this line: a list instead of a generator, for example."),
    ("QB11", "input or output (print, files, logging)",
     "Read, write, print or log outside of the compiled function, or what it returns."),
    ("QB12", "autograd is driven from inside the region", "Call backward() outside of the compiled function."),
    ("QB13", "recursion or call depth too deep", "Turn the recursion into a loop."),
    ("QB14", "a loop ran too long to unroll", "Use one tensor operation over all rounds instead of the loop."),
    ("QB15", "module, class or function definition or import at run time",
     "Put the definition or import at the top of the file."),
    ("QB16", "random numbers from outside torch, or a clock",
     "Use torch's generators (torch.rand and the like), and torch.where(condition, a, b) instead of a branch. Read "
     "clocks before or after the compiled function."),
    ("QB17", "a tensor subclass or a tensor of an unsupported kind",
     "Pass plain tensors with strided memory: x.as_subclass(torch.Tensor), x.to_dense()."),
    ("QB18", "generator or coroutine used in an unsupported way",
     "Use a list instead of a generator, and run coroutines outside of the compiled function."),
    ("QB19", "the program raises an exception here",
     "It is run eagerly, so that the exception is the program's own. To have no break, check outside of the compiled "
     "function."),
    ("QB20", "graph_break() was called", "Remove the call for one graph instead of two."),
    ("QB21", "the program looks at its own frame", "Pass the values that are wanted as arguments."),
    ("QB22", "a control-flow operator could not be captured",
     "Its functions take and return tensors, of one structure, with the same shapes and dtypes where they are to "
     "agree, and change nothing. PyTorch's own implementation is called instead."),
    ("QB23", "a function of flex_attention could not be captured",
     "Let it compute a scalar tensor from its arguments and the tensors that it reads, by elementwise operations and "
     "indexing, and change nothing else."),
    ("QB24", "a function given to vmap could not be captured",
     "Let it take and return tensors, and neither write to tensors from outside nor keep its own for later. PyTorch's "
     "own implementation is called instead."),
    ("QB25", "processes synchronise here",
     "What DistributedDataParallel and fully_shard() do around a module runs as in eager, and the module inside is "
     "captured whole: compile the wrapped module itself (compile(DDP(m))) to have no break. A collective is captured "
     "where it waits and no gradient flows; for gradients use torch.distributed._functional_collectives. Call all else "
     "outside of the compiled function."),
    ("QB26", "sizes of a tensor are marked where the region that it came to is captured already",
     "Mark the tensor before it is passed to the compiled function."),
    ("QB27", "a checkpoint could not be captured",
     "Give use_reentrant, and let the function return tensors and write to nothing from outside: the backward pass "
     "runs it again, and a batch norm updates its statistics twice, in eager too. A policy (context_fn) may read what "
     "stays as it is, and keep no state from one checkpoint to the next. PyTorch's own checkpoint is called instead, "
     "and what it runs is eager: compile the module or function that is checkpointed (block.compile()) to have it "
     "compiled."),
)  # fmt: skip


class GraphBreak(Exception):
    """Capture cannot go on at this instruction. Never leaves the package.

    Args:
        number: a key of :data:`REASONS`.
        detail: names the object or operation.
        leaves: what has to run as the program wrote it, since the operation sees more of it than its operands:
            ``"frame"``, the frame that does it (``locals()``), or ``"callers"``, all frames (``sys._getframe(1)``).

    Attributes:
        guard: guards what the break depends on, in the capture that ends with it; None where that is guarded anyway.
    """

    def __init__(self, number: str, detail: str = "", *, leaves: str | None = None) -> None:
        super().__init__(number, detail)
        self.number = number
        self.detail = detail
        self.leaves = leaves
        self.where: SourceLoc | None = None
        self.guard: Callable[[Any], None] | None = None

    @property
    def text(self) -> str:
        """The reason in one line."""
        title = REASONS[self.number].title
        return f"{title}: {self.detail} [{self.number}]" if self.detail else f"{title} [{self.number}]"

    @property
    def hint(self) -> str:
        """What the user can do about it."""
        return REASONS[self.number].hint


class NotAnOperand(GraphBreak):
    """What is given to an operator of torch is nothing that a graph has: a function of the program's, say."""


@record
class EarlierEnd:
    """A place before which the region may turn out to have to end: what happens there is done after its graph has run.

    Attributes:
        step: of the root frame.
        brk: why it ends there then.
        tensors: the tensors whose elements are read after the graph, with their versions.
    """

    step: int
    brk: GraphBreak
    tensors: tuple[tuple[Any, float], ...] = ()


def without_frames(error: BaseException, handled: BaseException | None) -> None:
    """Cut an exception, and those that it came from, off from the frames of the capture that it ended.

    Args:
        handled: what the program was handling when the capture began, which is the program's own.
    """
    last: BaseException | None = error
    while last is not None and last is not handled:
        last.__traceback__ = None
        before = last.__cause__ or last.__context__
        last.__cause__ = last.__context__ = None
        last = before


class SkipFrame(Exception):
    """The whole frame is left to eager.

    Args:
        reason: one line for the report.
        todo: what the user can do about it.
        once: only this call; the next one is looked at again.
    """

    def __init__(self, reason: str, todo: str, *, where: SourceLoc | None = None, once: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.todo = todo
        self.where = where
        self.once = once

    @classmethod
    def at_break(cls, brk: GraphBreak | LoopEnd, why: str = "", *, where: SourceLoc | None = None) -> SkipFrame:
        """A break that cannot be one; ``why``: what keeps the graph from ending there."""
        return cls(f"{brk.text}; {why}" if why else brk.text, brk.hint, where=where or brk.where)


@record
class BreakInfo:
    """A graph break as it is shown to the user.

    Attributes:
        place: the instruction at which it happens. The rounds of a loop, and recompilations, break at one place.
    """

    number: str
    reason: str
    where: SourceLoc | None
    stack: tuple[SourceLoc, ...] = ()
    place: tuple[int, int] = (0, 0)

    @property
    def hint(self) -> str:
        """What the user can do about it."""
        return REASONS[self.number].hint

    def describe(self) -> str:
        """The reason, the user's line with its text, and the hint, one per line."""
        lines = [self.reason]
        for loc in (*self.stack, *((self.where,) if self.where else ())):
            lines.append(f"  at {loc}")
            text = source_line(loc)
            if text:
                lines.append(f"      {text}")
        lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def source_line(loc: SourceLoc | None) -> str:
    """The text of a source line, stripped; empty when it cannot be read."""
    return linecache.getline(loc.filename, loc.line).strip() if loc else ""
