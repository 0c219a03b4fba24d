"""Regions of whose results some are not computed from all inputs with a history of their own.

One autograd node behind all results, which leads to one before all inputs, has the engine come to every input, and to
everything that the program has computed it from, whatever results the loss is made of. In eager there is no way to what
a result is not computed from: nothing there is run, and no hook called. So where that matters there are several nodes:

    results computed from the same inputs ─▶ part 1 ─▶ gate 1 ─▶ inputs that the same results are computed from
                                                  ╲
    others                                ─▶ part 2 ─▶ gate 2 ─▶ others

A part only takes note of the gradients that come. The first gate that has its turn runs the backward graph for all; the
others find their gradients there. The engine takes ready nodes by age, the youngest first, so that all parts have had
their turn by then. Where one has not (the gradient of its results is computed on another device) the first gate's
gradients do not depend on it, and the next gate runs the backward graph anew, with all that has come.

What the backward graph takes is saved by a node of its own, that nothing leads to: each part holds it by its (empty)
result. Nodes know each other by weak references, and by what they share; a gradient that goes between them is None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from aot_autograd.runtime.emitted import apply_of, gate_tensor
from aot_autograd.runtime.hush import hush
from aot_autograd.runtime.nested import handed_to_inputs, less

if TYPE_CHECKING:
    from aot_autograd.runtime.again import RunAgain
    from aot_autograd.runtime.plans import TrainingPlan

__all__ = ["Apart", "CompiledResults", "Shared", "nothing_behind"]

_NONE: dict[int, Any] = {}


class Shared:
    """What the nodes of one call share.

    Attributes:
        parts: its parts.
        passes: by the engine's number of a backward pass, what has come in it.
        holder: the tensor by which parts hold what is saved.
    """

    __slots__ = ("holder", "parts", "passes")

    def __init__(self) -> None:
        self.parts: list[ref[Any]] = []
        self.passes: dict[int, ref[_Pass]] = {}
        self.holder: Callable[[], torch.Tensor | None] = _gone

    def at_pass(self) -> _Pass:
        """What has come in the current backward pass, which alone keeps it."""
        task = torch._C._current_graph_task_id()
        held = self.passes.get(task)
        found = None if held is None else held()
        if found is None:
            found = _Pass()
            for old in [old for old, state in self.passes.items() if state() is None]:
                self.passes.pop(old, None)
            self.passes[task] = ref(found)
            torch.autograd.Variable._execution_engine.queue_callback(found.clear)
        return found


class _Pass:
    """One backward pass through a call.

    Attributes:
        call: the node that has saved what the backward graph takes, once something has come.
        tangents: by position, the gradients of results.
        arrived: the parts that had their turn.
        results: the gradients of all inputs, as far as they are not handed over.
        is_whole: whether they are of all that comes in this pass.
        handed: what has been handed on to inputs through views of them.
    """

    def __init__(self) -> None:
        self.call: ref[Any] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything: the pass has come to its end."""
        self.tangents: dict[int, torch.Tensor] = {}
        self.arrived: list[Any] = []
        self.results: list[torch.Tensor | None] | None = None
        self.is_whole = False
        self.handed: dict[int, torch.Tensor] = {}


def _gone() -> None:
    return None


class CompiledResults(torch.autograd.Function):
    """A part: gives results that are computed from inputs behind the same gates their history."""

    @staticmethod
    def forward(
        ctx: Any, shared: Shared, holder: tuple[torch.Tensor], tangents: tuple[int, ...],
        results: tuple[torch.Tensor, ...], *gates: torch.Tensor,
    ) -> Any:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.shared = shared
        ctx.holder = holder[0]
        ctx.call = holder[0].grad_fn
        ctx.tangents = tangents
        shared.holder = ref(holder[0])
        shared.parts.append(ref(ctx))
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        state = ctx.shared.at_pass()
        state.call = ref(ctx.call)
        for k, gradient in zip(ctx.tangents, gradients, strict=True):
            if gradient is not None:
                before = state.tangents.get(k)
                state.tangents[k] = gradient if before is None else before + gradient
        state.arrived.append(ctx)
        return (None,) * (4 + len(ctx.next_functions))


class Apart:
    """The nodes of a region's calls.

    Args:
        gather: ``gather(call, tangents)`` gives what the backward graph takes.
        backward: the compiled backward pass.
        leave: where other results may be differentiated after some, ``leave(call, saved, tangents)`` keeps what these
            need; ``gather`` then leaves what it has read as ``call.found``.

    Attributes:
        enter: by gate, what makes it: takes what is shared and its inputs.
        part: makes a part.
        gate_of: by gradient, its gate.
    """

    def __init__(
        self, plan: TrainingPlan, gather: Callable[..., list[Any]], backward: Callable[..., Any], again: RunAgain,
        leave: Callable[..., None] | None,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._gather = gather
        self._backward = backward
        self._again = again
        self._leave = leave
        places = {k: j for j, gate in enumerate(plan.gates) for k in gate}
        self.gate_of = tuple(places[k] for k in range(len(plan.entering)))
        self.enter = [apply_of(self._gate(j)) for j in range(len(plan.gates))]
        self.part = apply_of(CompiledResults)

    def _gate(self, j: int) -> type[torch.autograd.Function]:
        places, device = self._plan.gates[j], self._plan.device
        others = [n for n, k in enumerate(places) if k in self._plan.others]

        def forward(ctx: Any, shared: Shared, *args: torch.Tensor) -> torch.Tensor:
            ctx.set_materialize_grads(False)
            ctx.second = None
            ctx.shared = shared
            ctx.others = {n: ref(args[n]) for n in others} if others else _NONE
            return gate_tensor(device)

        def backward(ctx: Any, gate: None) -> Any:
            state = ctx.shared.at_pass()
            if not state.is_whole:
                self._run(ctx, state)
            found = [state.results[k] for k in places]
            if state.is_whole:
                for k in places:
                    state.results[k] = None
            if any(one is None for one in found):
                hush(ctx, found, ctx.others)
            return None, *found

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        return type("CompiledInputs", (torch.autograd.Function,), methods)

    def _run(self, gate: Any, state: _Pass) -> None:
        """Compute the gradients of all inputs from what has come so far."""
        call: Any = None if state.call is None else state.call()
        run = gate.second and gate.second()
        # First, since parts on another device may have their turn meanwhile.
        state.is_whole = not _are_awaited(gate.shared, state) and not (run is not None and run.awaits_exits())
        tangents = [state.tangents.get(k) for k in range(self._again.tangents)]
        grad = torch.is_grad_enabled()
        own = self._again.own_results(call) if call is not None and grad else ()
        box = None if call is None else self._gather(call, tangents)
        if state.is_whole:
            state.tangents = {}
            if call is not None:
                if self._leave is not None:
                    self._leave(call, call.found, tangents)
                    call.found = None
                # Unless the graph is retained, the box is now the only owner of what was saved.
                call.maybe_clear_saved_tensors()
        if call is not None and self._again.hands_to_inputs:
            state.handed.update(handed_to_inputs(call))
        if run is not None or call is not None and (grad or call.second is not None or self._again.has_changed()):
            results = self._again.found(gate, call, own, tuple(tangents), box, state.is_whole)
        else:
            tangents.clear()
            results = self._backward(box)
        if state.handed:
            results = less(results, self._plan.again.wanted, state.handed)
        state.results = list(results)

    def once_more(self, call: Any, tangent: int, value: torch.Tensor) -> torch.Tensor | None:
        """A result that is no longer there, as a tensor with the edges that it had."""
        holder = call.shared.holder()
        if holder is None:
            return None
        gates = next(gates for tangents, gates in self._plan.parts if tangent in tangents)
        behind = [call.kept[2][j] for j in gates] or [nothing_behind()]
        return self.part(call.shared, (holder,), (tangent,), (value.detach(),), *behind)  # type: ignore[no-any-return]


def _are_awaited(shared: Shared, state: _Pass) -> bool:
    """Whether parts have yet to have their turn in this backward pass."""
    for held in shared.parts:
        part = held()
        if part is not None and part not in state.arrived and torch._C._will_engine_execute_node(part):
            return True
    return False


def nothing_behind() -> torch.Tensor:
    """In place of a gate, for results that lead to no input."""
    return gate_tensor(requires_grad=True)
