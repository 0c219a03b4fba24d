"""Programs that are compiled beside the user's (``Options.background``).

A frame is captured by the call that asks for it, on its own thread: what capture reads (arguments, modules, globals,
modes) is read between two of the program's own instructions, and each read has its guard. Everything that is asked of
the call is settled then: the emitted code, the guards but for sizes that a later stage asks about, the program's text
for the store. What remains is the backend's work on the graph. It needs no object of the call: of the inputs a backend
that says so (``reads_no_data``) gets stand-ins without memory, and the modes of the thread are entered again. The frame
then runs eagerly, whole.

A later call of the code for which the guards hold takes the program over, or runs eagerly while it is not ready; one
for which they do not is captured anew, as without the option. Guards of sizes that the backend's work has come to are
on the tree by then; where they cannot be (:class:`dynamo_capture.sizes.NotGuardable`), the next capture compiles at
once.

What a program to come holds: its graph, its code and guards (which refer to what they compare weakly or by value), and
stand-ins. A backend of somebody else's gets the call's tensors, which are held until it has returned.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture import _native
from prims.background import Job
from prims.errors import DataDependentError, InternalError
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.contract import Contract
    from dynamo_capture.graph_builder import GraphInput
    from dynamo_capture.running import Running
    from dynamo_capture.state import CapturedGraph
    from dynamo_capture.stored.programs import Unfinished
    from prims.spec import SymbolContext

__all__ = ["Held", "Later", "Modes", "Pending", "Sizes"]


class Modes:
    """The modes of a thread under which a backend is asked, to be entered on another one.

    Attributes:
        state: torch's global state, as guards compare it; a part of it is the process's.
    """

    def __init__(self) -> None:
        self.state = _native.state_words()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
        self._cache = torch.is_autocast_cache_enabled()
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def entered(self) -> ExitStack:
        """A context manager that enters them. No function modes and default devices are among them."""
        stack = ExitStack()
        if self._device is not None:
            stack.enter_context(torch.cuda.device(self._device))
        stack.enter_context(torch.inference_mode(self._inference))
        stack.enter_context(torch.set_grad_enabled(self._grad))
        for device, enabled, dtype in self._autocast:
            before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
            stack.callback(_set_autocast, device, *before)
            _set_autocast(device, enabled, dtype)
        stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(self._cache)
        return stack


def _set_autocast(device: str, enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)


class Held:
    """Stands for the compiled graph in code that is emitted before there is one; never run."""

    def __init__(self, writes_when_done: bool) -> None:
        self.writes_when_done = writes_when_done

    def __call__(self, *args: Any) -> Any:
        raise InternalError("a program ran before it was compiled")


class Later:
    """The backend that capture is given: it keeps what there is to compile.

    Args:
        backend: the real one.
        failed: texts of graphs that are known not to be compiled.
    """

    def __init__(self, backend: Any, contract: Contract, failed: set[str]) -> None:
        self._contract = contract
        self._failed = failed
        self._reads_no_data = getattr(backend, "reads_no_data", False) is True
        #: Whether what the backend makes writes its inputs when it is done.
        self.promised = getattr(backend, "gives_writes_when_done", False) is True
        self.graph: torch.fx.GraphModule | None = None
        self.examples: list[Any] = []
        self.modes: Modes | None = None

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[GraphInput]) -> Callable[..., Any]:
        """What stands for the compiled graph."""
        self.graph = None
        if self._failed and str(gm.meta["envelope"]) in self._failed:
            return gm.forward
        make = stand_in if self._reads_no_data else lambda example: example
        self.examples = [make(self._contract.example(inp)) for inp in inputs]
        self.graph, self.modes = gm, Modes()
        return Held(self.promised)


def stand_in(example: Any) -> Any:
    """A tensor of the same class, type, device and place in autograd, without elements; sizes are the graph's to tell.

    Other values, and tensors that are no plain ones, as they are.
    """
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if type(example) not in plain or example.layout is not torch.strided or example.is_conj() or example.is_neg():
        return example
    with torch.inference_mode(example.is_inference()), torch.no_grad():
        empty = torch.empty(0, dtype=example.dtype, device=example.device)
    if type(example) is not torch.Tensor:
        made = type(example)(empty)
        made.requires_grad_(example.requires_grad)
        return made
    empty.requires_grad_(example.requires_grad)
    if example.is_leaf:
        return empty
    with torch.enable_grad():
        return empty.view_as(empty)


@record
class Sizes:
    """What the guards know of a graph's symbols when capture ends.

    Attributes:
        operands: symbol name -> the native operand that reads it.
        known: how many guards of sizes are on the tree.
        floats: symbols that are the bits of floats.
    """

    context: SymbolContext
    operands: dict[str, tuple[Any, ...]]
    known: int
    floats: frozenset[str]


@record(frozen=False)
class Unbound:
    """A translation whose graph is still to be compiled.

    Attributes:
        tree: the native guards.
        run: what stands for the graph among the code's constants.
        writes: the graph writes inputs, so that it matters when.
    """

    code: types.CodeType
    tree: Any
    captured: CapturedGraph
    running: Running
    run: Any
    writes: bool
    sizes: Sizes

    def bound(self, compiled: Callable[..., Any]) -> types.CodeType:
        """The code with the compiled graph in it."""
        run = _native.activate(self.running.around(compiled), None)
        return self.code.replace(co_consts=tuple(run if const is self.run else const for const in self.code.co_consts))

    def add_size_guards(self) -> bool:
        """Put guards of sizes that came up since on the tree; whether there are any.

        Raises:
            NotGuardable: one of them cannot be.
        """
        from dynamo_capture.guards import Guard
        from dynamo_capture.sizes import late_size_guards

        sizes = self.sizes
        new = sizes.context.guards[sizes.known :]
        if not new:
            return False
        whole = late_size_guards(sizes.context, new, sizes.operands, sizes.floats)
        text = " and ".join(str(guard.expr) for guard in new)
        self.tree.check_shape(whole, text=text, reason="; ".join(sorted({guard.reason for guard in new})))
        self.captured.guards.extend(Guard("size", str(guard.expr), True, guard.where) for guard in new)
        return True


@record(frozen=False)
class Pending:
    """A program of a code object that is being compiled, or is ready and has not been taken over.

    Attributes:
        outcome: how that ended: ``"ready"``, ``"again"`` (to be captured again), ``"at once"`` (likewise, and compiled
            by the call) or ``"failed"`` (``job.error`` says how).
        late: whether guards of sizes came up in the background.
    """

    unbound: Unbound
    later: Later
    state: Any
    where: str | None
    name: str
    unfinished: Unfinished | None = None
    job: Job | None = None
    outcome: str = ""
    code: types.CodeType | None = None
    late: bool = False
    reason: str | None = None

    @property
    def guards(self) -> Any:
        """The native guards, as an entry has them."""
        return self.unbound.tree

    @property
    def ended(self) -> bool:
        """Whether the background has done with it."""
        return self.job is not None and self.job.done

    def drop(self) -> None:
        """Nobody is going to take it over."""
        if self.job is not None:
            self.job.dropped = True

    def spent(self) -> float:
        """Seconds since the background has begun with it."""
        return 0.0 if self.job is None else self.job.spent()

    def compile(self, backend: Callable[..., Any]) -> None:
        """The work in the background. What goes wrong is the outcome."""
        graph, examples, modes = self.later.graph, self.later.examples, self.later.modes
        assert graph is not None and modes is not None
        try:
            with modes.entered():
                if _native.state_words() != modes.state:
                    self._not("again", "torch's settings have changed meanwhile")
                    return
                compiled = backend(graph, examples)
                if _native.state_words() != modes.state:
                    self._not("again", "torch's settings have changed meanwhile")
                    return
        except DataDependentError:
            if self.state.reads_between:
                self.outcome = "failed"
                raise
            self.state.reads_between = True
            self._not("again", "a stage needs numbers that only the data tells")
            return
        except BaseException:
            self.outcome = "failed"
            raise
        finally:
            del examples
            self.later.examples = []
            self.unbound.sizes.context.made.clear()
        self._finish(graph, compiled)

    def _finish(self, graph: torch.fx.GraphModule, compiled: Any) -> None:
        from dynamo_capture.sizes import NotGuardable

        unbound = self.unbound
        if unbound.writes and self.later.promised and getattr(compiled, "writes_when_done", False) is not True:
            self.state.failed.add(str(graph.meta["envelope"]))  # it is left to eager, which the code does not expect
            self._not("again", "the graph was left to eager")
            return
        try:
            self.late = unbound.add_size_guards()
        except NotGuardable as error:
            self._not("at once", str(error))
            return
        self.code = unbound.bound(compiled)
        if self.unfinished is not None:
            self.unfinished.finish(compiled, self.late)
            self.unfinished = None
        self.outcome = "ready"

    def _not(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
