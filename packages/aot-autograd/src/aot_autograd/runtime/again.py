"""Gradients that are to be differentiated themselves (``create_graph=True``).

A compiled backward pass has no derivative. Where one is asked for, the region runs once more, eagerly and under
autograd, on the inputs of its call, and its gradients are taken of that run (:mod:`aot_autograd.runtime.second`).
Random numbers are drawn again from the call's seed, and statistics that a normalisation updates are written to copies.
So it is where a custom backward reads what has changed since the forward pass.
This is right only where a second run does what the first did; where it may not (results that depend on an input that
the region writes, inputs that have changed or are gone) the compiled gradients are given, with a node that explains
itself when it is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import TensorWeakRef

from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.runtime.plans import AgainPlan
from aot_autograd.runtime.second import REFUSAL, SecondRun, enter
from aot_autograd.structure import flatten
from prims.forking import compiling

if TYPE_CHECKING:
    from aot_autograd.runtime.apart import Apart

__all__ = ["RunAgain", "Unknown", "call_of", "present"]


class RunAgain:
    """Runs a compiled region's program again for gradients with a history.

    Args:
        plan: what is known of it.
        eager: the program; takes the caller's arguments.
        backward: the compiled backward pass.
        lifted: by input, the program's own tensor: where it is, and its name there.
        still: what tells whether all is as it was that the compiled backward pass rests on.

    Results are counted as in ``Joint.under``: the differentiable graph outputs, then views that are results.

    Attributes:
        tangents: how many are graph outputs.
        hands_to_inputs: whether there are views of inputs among them.
        apart: makes calls whose inputs go through several gates, if there may be such.
    """

    def __init__(
        self,
        plan: AgainPlan,
        eager: Callable[..., Any],
        backward: LazyBackward,
        lifted: Mapping[int, tuple[dict[str, Any], str]],
        still: Sequence[Callable[[], bool]] = (),
    ) -> None:
        self._plan = plan
        self._eager = eager
        self._backward = backward
        self._lifted = lifted
        self.still = still
        self._weak = plan.weak
        self._tensors = plan.tensors
        self._obstacle = plan.obstacle
        self._copied = frozenset() if plan.copies_cost else plan.copied
        self._written_since: frozenset[int] = frozenset()
        self._on_cpu = [i for device, i in plan.seeds.items() if device.type == "cpu"]
        self.tangents = plan.tangents
        self.hands_to_inputs = plan.hands_to_inputs
        self.apart: Apart | None = None

    def keep(self, args: Sequence[Any], *gates: torch.Tensor) -> Any:
        """What a call has to keep, before it writes: its inputs, their versions, and ``gates``, through which they got
        their history."""
        if self._obstacle is not None:
            return None, None, gates
        weak, copied = self._weak, self._copied | self._written_since
        try:
            versions = [args[i]._version for i in self._tensors]
        except RuntimeError:  # inference tensors have none
            versions = None
        on_cpu = self._on_cpu
        if not weak and not on_cpu and not copied:
            return args, versions, gates
        held = [TensorWeakRef(arg) if i in weak else arg for i, arg in enumerate(args)]
        for i in copied:
            held[i] = _Former(held[i], args[i].detach().clone())
        for i in on_cpu:
            held[i] = int(args[i])  # a number is no memory of the program's
        return tuple(held), versions, gates

    def has_changed(self) -> bool:
        """Whether the program's own backwards read other things by now than the compiled backward pass rests on."""
        return bool(self.still) and not all(holds() for holds in self.still)

    def gradients(self, node: Any, gate: Any) -> Sequence[Any]:
        """The gradients of a call's inputs, in the order of the backward graph's outputs.

        Args:
            node: the autograd node of the inputs.
            gate: its gradient: what the node of the outputs has handed on in attributes, if it had its turn.
        """
        box = getattr(gate, "box", None)
        gate.box = None
        call, own, tangents = getattr(gate, "again", None) or (None, (), (None,) * len(self._plan.leaves))
        return self.found(node, call, own, tangents, box)

    def found(
        self, node: Any, call: Any, own: Sequence[torch.Tensor | None], tangents: Sequence[torch.Tensor | None],
        box: list[Any] | None, is_last: bool = True,
    ) -> Sequence[Any]:  # fmt: skip
        """The gradients of a call's inputs, in the order of the backward graph's outputs.

        Args:
            node: an autograd node of inputs.
            call: the call's node, if it had its turn; then ``own`` are its results and ``tangents`` their gradients.
            box: what the backward graph takes.
            is_last: whether they are not asked for once more in this backward pass.
        """
        run = node.second and node.second()
        if run is not None and run.is_awaited():
            return run.gradients(tangents, own, is_last)  # type: ignore[no-any-return]
        changed = self.has_changed()
        if call is None or not (changed or torch.is_grad_enabled()):
            return self._backward(box)  # type: ignore[arg-type]
        with torch.enable_grad():
            run, obstacle = self._second_run(call)
        if run is None and changed:
            reads = " and ".join(str(holds) for holds in self.still if not holds())
            raise RuntimeError(_CHANGED.format(reads=reads, reason=obstacle))
        if run is None:
            others = (*call.kept[2], *own, *tangents)
            return _refusing(self._backward(box), str(obstacle), others)  # type: ignore[arg-type]
        return run.gradients(tangents, own, is_last)  # type: ignore[no-any-return]

    def gradients_between(
        self, call: Any, tangent: int, gradient: torch.Tensor, surely: bool
    ) -> tuple[Sequence[torch.Tensor | None], dict[int, torch.Tensor]]:
        """What a result's gradient gives to the results that it is computed from, on no way through others of them.

        And what comes of that to each graph output, through views of it too, and through views to inputs (``~input``).

        Args:
            call: the call's autograd node.
            tangent: the result's.
            gradient: of the result.
            surely: whether somebody will see it. Else what cannot be had is :class:`Unknown`.

        Raises:
            RuntimeError: the region cannot be run again.
        """
        under = self.under(tangent)
        with torch.enable_grad():
            run, obstacle = self._second_run(call, surely)
        if run is None:
            reason = _BETWEEN.format(reason=obstacle)
            if surely:
                raise RuntimeError(reason)
            # Nobody asks for the gradient of one that is gone.
            behind = [(call.results[k] if k < self.tangents else call.views[k][0])() for k in under]
            return [None if result is None else Unknown(result, None, reason) for result in behind], {}
        own = self.own_results(call) if torch.is_grad_enabled() else ()
        return run.gradients_between(tangent, under, gradient, own)

    def base_of(self, view: int) -> int:
        """The graph output that a view is of, or the input, as ``~input``."""
        return self._plan.bases[view - self.tangents]

    def place_of(self, tangent: int) -> int | None:
        """The place of a result among what the call saves."""
        return self._plan.saved[tangent]

    def under(self, tangent: int) -> tuple[int, ...]:
        """The tangents of the results that a result is computed from."""
        return self._plan.under[tangent]

    def own_results(self, call: Any) -> list[torch.Tensor | None]:
        """The differentiable results of a call, as tensors with the edges that the user's have, where they can be had.

        Args:
            call: the call's autograd node.
        """
        links = getattr(call, "links", {})
        found: list[torch.Tensor | None] = []
        for k, (first, place) in enumerate(zip(call.results, self._plan.saved, strict=True)):
            result = _with_edge(first, call, k in links)
            if result is None and place is not None:
                link = links[k]() if k in links else None
                if k not in links:
                    result = call.saved_tensors[place]
                    if self.apart is not None and is_apart(call):
                        result = self.apart.once_more(call, k, result)
                elif link is not None:
                    result = link.saved_tensors[0]
            found.append(result)
        views = getattr(call, "views", {})
        for k in range(self.tangents, self.tangents + len(self._plan.views)):
            view, version = views.get(k, (_gone, 0))
            result = present(view)
            found.append(result if result is not None and result._version == version else None)
        return found

    def _second_run(self, call: Any, insist: bool = True) -> tuple[SecondRun | None, str | None]:
        """Another run of the program for a call, made where there is none, or why there can be none.

        Args:
            insist: have later calls keep their inputs.
        """
        run = call.second and call.second()
        if run is not None:
            return run, None
        args, former, obstacle = self._inputs(call.kept, insist)
        if obstacle is not None:
            return None, obstacle
        given = args.copy()
        for i in self._tensors:  # one tensor may be two arguments, each of which has its own gradient
            args[i] = enter(args[i], former.get(i), frozen=i in self._plan.wanted)
        inputs = [(given[i], args[i]) for i in self._plan.wanted]
        results: list[Any] = []
        flatten(self._run(args), results)
        made = [self._result(results, k) for k in range(len(self._plan.leaves))]
        if any(result is None for result in made):
            return None, "its results are views of one another"
        bases = {}
        for k, at in enumerate(self._plan.views, self.tangents):
            base = self.base_of(k)
            bases[k] = base, made[base] if base >= 0 else args[~base]
            made.append(results[at])
        gate_of = self.apart.gate_of if self.apart is not None and is_apart(call) else (0,) * len(inputs)
        run = SecondRun(call, self.own_results, made, inputs, gate_of, bases, self._plan.at_once)  # type: ignore[arg-type]
        call.second = ref(run)
        for gate in call.kept[2]:
            if gate.grad_fn is not None:
                gate.grad_fn.second = call.second
        return run, None

    def _run(self, args: list[Any]) -> Any:
        """What the program returns for these inputs of its graph."""
        with ExitStack() as stack:
            # The program may turn gradients on by itself.
            stack.enter_context(torch.set_grad_enabled(self._plan.grad_enabled))
            stack.enter_context(self._standing_in(args))
            for device, enabled, dtype in self._plan.autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled))
            if self._plan.seeds:
                with compiling():  # what knows how random numbers are traced
                    from aot_autograd.runtime.redraw import Redraw

                seeds = {device: torch.as_tensor(args[i]) for device, i in self._plan.seeds.items()}
                stack.enter_context(Redraw(seeds))
            return self._eager(*args[: self._plan.arguments])

    @contextmanager
    def _standing_in(self, args: list[Any]) -> Iterator[None]:
        """With these inputs in the places of the program's own tensors."""
        lifted = {id(store[name]): args[i] for i, (store, name) in self._lifted.items()}
        modules = self._eager.modules() if lifted and isinstance(self._eager, torch.nn.Module) else ()
        stores = [store for module in modules for store in (module._parameters, module._buffers)]
        places = [(store, name, real) for store in stores for name, real in store.items() if id(real) in lifted]
        try:
            for store, name, real in places:
                store[name] = lifted[id(real)]  # type: ignore[assignment]
            yield
        finally:
            for store, name, real in places:
                store[name] = real  # type: ignore[assignment]

    def _result(self, results: list[Any], tangent: int) -> torch.Tensor | None:
        """The second run's result that a tangent belongs to."""
        at, is_view = self._plan.leaves[tangent]  # type: ignore[misc]
        return results[at]._base if is_view else results[at]  # type: ignore[no-any-return]

    def _inputs(self, kept: Any, insist: bool = True) -> tuple[list[Any], dict[int, torch.Tensor], str | None]:
        """The inputs of the call, and what some were then, or what forbids to run it again.

        Args:
            insist: later calls are to keep what this one lacks.
        """
        held, versions, _ = kept
        if held is None:
            return [], {}, self._obstacle
        former = {i: value.copy for i, value in enumerate(held) if type(value) is _Former}
        if not former.keys() >= self._plan.copied:
            if insist:
                self._copied = self._plan.copied
            return [], {}, "its results depend on inputs that it writes (calls from now on will keep what those were)"
        held = [value.tensor if type(value) is _Former else value for value in held]
        args = [value() if type(value) is TensorWeakRef else value for value in held]
        gone = {i for i, value in enumerate(held) if type(value) is TensorWeakRef and args[i] is None}
        if not gone <= former.keys() & self._plan.written:
            if insist:
                self._weak = frozenset()
            return [], {}, "an input of it is no longer there (calls from now on will keep theirs)"
        if versions is None:
            return [], {}, "an input of it is an inference tensor"
        if any(store[name] is not args[i] for i, (store, name) in self._lifted.items()):
            return [], {}, "an input of it was replaced since"
        lost = {
            i for i, version in zip(self._tensors, versions, strict=True)
            if i not in former and i not in self._plan.written and args[i]._version != version
        }  # fmt: skip
        if lost:
            if insist:
                self._written_since |= lost
            return [], {}, "an input of it was modified since (calls from now on will keep what it was)"
        for i in self._plan.written:
            args[i] = former.pop(i, args[i]).clone()
        return args, former, None


class _Former(NamedTuple):
    """An input that the call has written, as a call keeps it, and what it was before."""

    tensor: Any
    copy: torch.Tensor


_aten = torch.ops.aten


def call_of(node: Any) -> Any:
    """The node of a call that a node of its results belongs to: itself, but where these have several."""
    return getattr(node, "call", node)


def is_apart(call: Any) -> bool:
    """Whether a call's inputs went through several gates."""
    return hasattr(call, "shared")


def _gone() -> None:
    return None


def present(first: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
    """The tensor of a weak reference, if it is still there."""
    result = first()
    if result is not None:
        result._fix_weakref()  # type: ignore[attr-defined]
    return result


def _with_edge(first: ref[torch.Tensor], node: Any, linked: bool) -> torch.Tensor | None:
    """A result that the call gave, if it is still there and comes from the call's node as it did."""
    result = present(first)
    if result is None:
        return None
    source: Any = result.grad_fn
    if type(source).__name__ == "LiftBackward0":  # a node of its own (:mod:`.planning`)
        source = source.next_functions[0][0]
    if linked and source is not None:
        source = source.next_functions[1][0] if type(source).__name__ == "LinkBackward" else None
    return result if source is not None and call_of(source) is node else None


_CHANGED = (
    "a compiled backward pass rests on {reads}. Eager's backward pass takes a second run of the region then, which is "
    "not possible: {reason}. Run the autograd function eagerly (compile_api.disable)."
)
_BETWEEN = (
    "the gradient of a compiled region's result was asked for, from which the region computes another result. That "
    "takes a second run of the region, which is not possible: {reason}. Run the part of the program whose results are "
    "watched eagerly (compile_api.disable)."
)


class Unknown(torch.Tensor):
    """A gradient that could not be computed and may not be wanted: whoever uses it gets an error.

    Attributes:
        rest: what was added to it.
        passed: whether it has gone on from a view to its base. The compiled backward pass gives the same to the base.
    """

    rest: torch.Tensor | None
    reason: str
    passed: bool

    @staticmethod
    def __new__(
        cls, like: torch.Tensor, rest: torch.Tensor | None, reason: str, passed: bool = False
    ) -> Unknown:
        made = torch.Tensor._make_wrapper_subclass(cls, like.shape, like.stride(), dtype=like.dtype, device=like.device)  # type: ignore[attr-defined]
        made.rest = rest
        made.reason = reason
        made.passed = passed
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unknown = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Unknown)]
        first = unknown[0]
        if func in (_aten.add.Tensor, _aten.add_.Tensor) and not kwargs and len(args) == 2:
            rests = [rest for t in args if (rest := t.rest if isinstance(t, Unknown) else t) is not None]
            known = sum(rests[1:], rests[0]) if rests else None
            passed = all(t.passed for t in unknown)
            return known if passed and known is not None else Unknown(first, known, first.reason, passed)
        if func in (_aten.detach.default, _aten.alias.default):
            return Unknown(first, first.rest, first.reason, first.passed)
        if torch._C._current_autograd_node() is None:
            raise RuntimeError(first.reason)

        def known_part(t: Any) -> Any:
            if not isinstance(t, Unknown):
                return t
            return torch.zeros(t.shape, dtype=t.dtype, device=t.device) if t.rest is None else t.rest

        result = func(*tree_map(known_part, args), **tree_map(known_part, kwargs or {}))
        rest = result if any(t.rest is not None for t in unknown) else None
        return Unknown(result, rest, first.reason, True)


class _NoSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and explains itself when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, reason: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.reason = reason
        return tuple(value.view_as(value) for value in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(REFUSAL.format(reason=ctx.reason))


def _refusing(results: Sequence[Any], reason: str, others: Sequence[torch.Tensor | None]) -> Sequence[Any]:
    """The gradients, such that their own gradients raise an error; without a node they would silently be zero.

    They are functions of ``others``: the inputs, which stand behind their gates, the call's results and the tangents.
    """
    places = [i for i, result in enumerate(results) if result is not None]
    behind = [t for t in others if t is not None]
    wrapped = _NoSecondDerivative.apply(reason, len(places), *(results[i] for i in places), *behind)
    out = list(results)
    for place, value in zip(places, wrapped, strict=True):
        out[place] = value
    return out
