"""Gradients that are handed over bucket by bucket, while the rest of the backward pass is still to come.

``DistributedDataParallel`` sends a bucket of gradients to the other processes when its last one has been accumulated.
A region whose backward pass is one autograd node gives all gradients at its end, when nothing is left to compute
meanwhile. So under DDP the node of the inputs is a chain of nodes, one for each bucket, each with its own section of
the backward graph:

    results ─▶ bucket 1 ─▶ bucket 2 ─▶ ... ─▶ bucket n
                  ╰─▶ its parameters  ╰─▶ its parameters

The engine prefers leaves to all other nodes: it accumulates a bucket's gradients, and DDP's hooks send them, before it
runs the next section. Nothing is called behind its back, so that hooks, ``retain_graph``, gradients of some inputs only
and ``no_sync`` are as they are without buckets; sections after the last gradient that is asked for do not run at all.

The forward graph is not cut, and the sections are compiled when they first run. Outside of DDP nothing is cut, nor is
a region whose inputs have several nodes (:mod:`.apart`): with one chain before all of them the engine would come to
what eager has no way to. Its gradients are handed over when all are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.fx import Node
from torch.nn.parallel import DistributedDataParallel

from aot_autograd.runtime.again import RunAgain
from aot_autograd.runtime.emitted import gate_tensor
from aot_autograd.runtime.halves import kept_box
from aot_autograd.runtime.hush import hush
from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.runtime.plans import TrainingPlan
from prims.forking import compiling

if TYPE_CHECKING:  # what a stored program need not import outside of DDP
    from aot_autograd.runtime.sections import Section
    from prims.ir import Envelope

__all__ = ["Buckets", "bucket_limits"]

Enter = Callable[..., torch.Tensor]


def bucket_limits() -> tuple[int, ...] | None:
    """The bytes of the buckets of the ``DistributedDataParallel`` whose forward is running; None outside of one."""
    wrapped: Any = DistributedDataParallel._active_ddp_module
    if wrapped is None:
        return None
    config = getattr(wrapped, "_bucket_config", None)
    if config is not None:
        return config.per_bucket_bytes_caps or (config.first_bucket_bytes_cap, config.bucket_bytes_cap)  # type: ignore[no-any-return]
    by_default = getattr(wrapped, "bucket_bytes_cap_default", False)
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if by_default else wrapped.bucket_bytes_cap
    return first, wrapped.bucket_bytes_cap


class Buckets:
    """Makes the gate of a call, through which its inputs go, under a reducer with buckets.

    Args:
        whole: the gate without buckets.
    """

    def __init__(self, plan: TrainingPlan, backward: LazyBackward, again: RunAgain, whole: Enter) -> None:
        self._plan = plan
        self._backward = backward
        self._again = again
        self._whole = whole
        self._made: dict[tuple[int, ...], Enter] = {}

    def enter(self, args: Sequence[Any]) -> torch.Tensor:
        """The gate for a call's inputs."""
        limits = bucket_limits()
        if limits is None:
            return self._whole(*[args[i] for i in self._plan.entering])
        made = self._made.get(limits)
        if made is None:
            with compiling():
                made = self._made[limits] = self._chain(limits)
        return made(args)

    def _chain(self, limits: tuple[int, ...]) -> Enter:
        from aot_autograd.runtime.buckets import buckets, parameters_read

        plan, gradients = self._plan, self._plan.again.wanted
        read = parameters_read(plan.saved, gradients)
        groups = buckets(self._backward.env, plan.parameters, read, limits)
        if len(groups) < 2 or self._again.hands_to_inputs or self._again.still:
            whole, entering = self._whole, plan.entering
            return lambda args: whole(*[args[i] for i in entering])
        source = _Sectioned(self._backward, groups, read)
        links = []
        for k, group in enumerate(groups):
            places = [gradients[output] for output in group]
            others = [n for n, output in enumerate(group) if not plan.parameters[output]]
            links.append((_node(source, self._again, k, others, plan.device), places))
        links.reverse()

        def enter(args: Sequence[Any]) -> torch.Tensor:
            behind: tuple[torch.Tensor, ...] = ()
            for apply, places in links:
                behind = (apply(*[args[i] for i in places], *behind),)
            return behind[0]

        return enter


class _Sectioned:
    """The sections of a backward graph, for each pattern of absent tangents, compiled when they first run.

    Args:
        groups: the outputs that each section gives.
        read: by output, the inputs that hold the parameter whose gradient it is.
    """

    def __init__(self, backward: LazyBackward, groups: list[list[int]], read: dict[int, list[int]]) -> None:
        self.backward = backward
        self.groups = groups
        self._read = read
        self._tangents = sum(desc.kind == "tangent" for desc in backward.env.inputs)
        self._plans: dict[tuple[bool, ...], _Plan] = {}

    def begin(self, box: list[Any]) -> _Pass:
        """A backward pass on these inputs of the backward graph; the list is given up."""
        absent = tuple(tangent is None for tangent in box[-self._tangents :])
        plan = self._plans.get(absent)
        if plan is None:
            with compiling():
                plan = self._plans.get(absent) or self._plans.setdefault(absent, self._plan(absent))
        given = dict(zip(plan.placeholders, (x for x in box if x is not None), strict=True))
        box.clear()
        return _Pass(plan, given)

    def _plan(self, absent: tuple[bool, ...]) -> _Plan:
        from aot_autograd.runtime.absent import without_tangents
        from aot_autograd.runtime.buckets import cut

        env, read = self.backward.env, self._read
        outputs: Sequence[int] = range(len(env.outputs))
        if any(absent):
            env, outputs = without_tangents(env, absent)
        at = {output: k for k, output in enumerate(outputs)}
        groups = [[at.get(output) for output in group] for group in self.groups]
        present = [[k for k in group if k is not None] for group in groups]
        # Tangents are the last inputs, so that those before them keep their places.
        sections = cut(env, present, {at[output]: places for output, places in read.items() if output in at})
        return _Plan(self.backward, env, sections, groups)


class _Plan:
    """The sections for one pattern of absent tangents.

    Attributes:
        placeholders: of the backward graph.
        given: by section, the results that are handed over after it; None for one that no tangent reaches.
        dropped: by section, the values that nobody takes from then on.
    """

    def __init__(
        self, backward: LazyBackward, env: Envelope, sections: list[Section], groups: list[list[int | None]]
    ) -> None:
        from aot_autograd.runtime.sections import part

        self.backward = backward
        self.sections = sections
        self.envelopes = [part(env, section, between="tangent") for section in sections]  # names their sizes, too
        self.placeholders = env.placeholders()
        results = env.results()
        self.given: list[list[Node | None]] = [[None if k is None else results[k] for k in group] for group in groups]
        self.compiled: list[Callable[[list[Any]], Sequence[Any]] | None] = [None] * len(sections)
        self.bindings = [(e.name, e.binding) for e in env.symbols if e.binding is not None]
        last: dict[Node, int] = dict.fromkeys(self.placeholders, 0)
        for k, section in enumerate(sections):
            last.update(dict.fromkeys((*section.inputs, *section.outputs), k))
            for node in self.given[k]:
                if node is not None:
                    last[node] = max(k, last.get(node, 0))
        self.dropped = [[node for node, at in last.items() if at == k] for k in range(len(sections))]

    def run(self, k: int, inputs: list[Any]) -> Sequence[Any]:
        """A section's results; the list of inputs is given up."""
        compiled = self.compiled[k]
        if compiled is None:
            with compiling():
                compiled = self.compiled[k]
                if compiled is None:
                    name = f"backward, part {k + 1} of {len(self.sections)}"
                    compiled = self.compiled[k] = self.backward.compile(self.envelopes[k], name)
        return compiled(inputs)


class _Pass:
    """One backward pass through the sections."""

    def __init__(self, plan: _Plan, values: dict[Node, Any]) -> None:
        self.plan = plan
        self.values = values
        self.sizes = {
            name: values[plan.placeholders[at.input_index]]
            if at.dim is None
            else values[plan.placeholders[at.input_index]].shape[at.dim]
            for name, at in plan.bindings
        }

    def section(self, k: int) -> list[torch.Tensor | None]:
        """The gradients of the next bucket, the ``k``-th."""
        plan, values = self.plan, self.values
        section, given, dropped = plan.sections[k], plan.given[k], plan.dropped[k]
        if section.outputs:
            inputs = [values[node] for node in section.inputs]
            inputs += [self.sizes[name] for name in section.sizes]
            kept = {node: values[node] for node in given if node in values}
            for node in dropped:
                values.pop(node, None)  # so that the graph frees it after its last use
            found = plan.run(k, inputs)
            values.update(kept)
            values.update(zip(section.outputs, found, strict=True))
            del found, inputs
        results = [None if node is None else values[node] for node in given]
        for node in dropped:
            values.pop(node, None)
        return results


class _Done:
    """Gradients that are all there: those of a second run of the region."""

    def __init__(self, results: Sequence[Any], groups: list[list[int]]) -> None:
        self._results = results
        self._groups = groups

    def section(self, k: int) -> list[Any]:
        """The gradients of the ``k``-th bucket."""
        return [self._results[output] for output in self._groups[k]]


def _node(source: _Sectioned, again: RunAgain, k: int, others: list[int], device: torch.device) -> Callable[..., Any]:
    """The function of the ``k``-th bucket: takes its inputs, then what the function of the next bucket gave.

    What a node's gradients are computed from travels on as attributes of the (empty) gradient for the next one.

    Args:
        others: the inputs that are no parameters, by place.
    """
    last = k == len(source.groups) - 1

    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        ctx.second = None
        ctx.others = {n: ref(args[n]) for n in others}
        return gate_tensor(device)

    def backward(ctx: Any, gate: Any) -> Any:
        if k:
            running, partial = gate.running, gate.partial
            gate.running = None
            if running is None:
                kept_box(gate)  # raises: by buckets nothing is kept
        elif ctx.second is not None or gate.again is not None:
            running, partial = _Done(again.gradients(ctx, gate), source.groups), True
        else:
            box, partial = gate.box, gate.partial
            gate.box = None
            running = source.begin(kept_box(gate) if box is None else box)
        results = running.section(k)
        if partial:
            hush(ctx, results, ctx.others)
        if last:
            return tuple(results) if len(results) > 1 else results[0]
        following: Any = gate_tensor(device)
        following.running, following.partial = running, partial
        return (*results, following)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("CompiledInputs", (torch.autograd.Function,), methods)
    return super(torch.autograd.Function, made).apply  # type: ignore[misc,no-any-return]
