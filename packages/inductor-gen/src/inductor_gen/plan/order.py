"""The order of steps: producers first, what is recomputed for a backward pass as late as it can be, and of the orders
that are left one that keeps few bytes alive."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from inductor_gen.kernel.ir import Kernel, Step
from inductor_gen.layout.record import Prepared
from inductor_gen.loops.graph import Node, may_refuse, runs_once
from inductor_gen.loops.index import Hint
from inductor_gen.plan.peak import Orders, footprint

__all__ = ["dependencies", "ordered"]


def ordered(steps: Sequence[Step], prepared: Prepared, hint: Hint) -> list[Step]:
    """The steps (given with producers first) in the order in which they run."""
    needs = dependencies(steps, prepared.renewed, prepared.renewing)
    order = _delayed(steps, needs, prepared.tangents)
    footprints = dict(enumerate(map(footprint, steps)))
    orders = Orders(footprints, dict(enumerate(needs)), prepared.returned(), prepared.freed, hint, prepared.renewed)
    return [steps[i] for i in orders.lightest(order)]


def dependencies(
    steps: Sequence[Step], renewed: Collection[Node] = (), renewing: Mapping[Node, Node] | None = None
) -> list[set[int]]:
    """The steps, by position, that must run before each step: those that write what it reads or changes, those that
    read what it changes, and the operator before it that draws random numbers or exchanges data with other processes.

    What changes an input also waits for what may refuse the program's data and holds something that eager computes
    before the change: it would have raised its error by then (fusion keeps that apart from what reads the change).
    What makes ``renewed`` buffers waits for everything that may fail, where that does not wait for it; what makes
    ``renewing`` ones, each a copy of an input that it may turn out to be, also for what reads the input.
    """
    needs: list[set[int]] = []
    writer: dict[Node, int] = {}
    readers: dict[Node, list[int]] = {}
    random = -1
    for k, step in enumerate(steps):
        before = {writer[n] for n in step.reads if n in writer}
        for node in step.updates:
            before.update(readers.get(node, ()))
            before.update({writer[node]} if node in writer else ())
        if any(node.kind == "extern" and runs_once(node) for node in step.writes):
            before.update({random} if random >= 0 else ())
            random = k
        for node in step.reads:
            readers.setdefault(node, []).append(k)
        for node in (*step.writes, *step.updates):
            writer[node] = k
            readers[node] = []
        before.discard(k)
        needs.append(before)
    updates = [k for k, step in enumerate(steps) if any(node.kind == "input" for node in step.updates)]
    checks = [
        k for k, step in enumerate(steps)
        if (step.checks if isinstance(step, Kernel) else may_refuse(step.node))
    ]  # fmt: skip
    _wait(updates, checks, steps, needs, "before")
    last = [k for k, step in enumerate(steps) if renewed and not set(renewed).isdisjoint(step.writes)]
    failing = [k for k, step in enumerate(steps) if footprint(step).fails] if last else []
    _wait(last, failing, steps, needs, "all")
    for copy, given in (renewing or {}).items():
        made = [k for k, step in enumerate(steps) if copy in step.writes]
        _wait(made, [k for k, step in enumerate(steps) if given in step.reads and k not in made], steps, needs, "all")
    return needs


def _wait(
    later: Collection[int], checks: Collection[int], steps: Sequence[Step], needs: list[set[int]], which: str
) -> None:  # fmt: skip
    """Let steps wait for checks that do not wait for them: ``"all"``, or those ``"before"`` them in the program."""
    for k in later if checks else ():
        behind, found = {k}, 0
        while len(behind) > found:  # mostly two rounds: needs name earlier steps, but for those that were added here
            found = len(behind)
            for j, before in enumerate(needs):
                if not behind.isdisjoint(before):
                    behind.add(j)
        first = min(node.id for node in _nodes(steps[k]))
        apart = [j for j in checks if j not in behind]
        needs[k].update(j for j in apart if which == "all" or min(n.id for n in _nodes(steps[j])) < first)


def _nodes(step: Step) -> tuple[Node, ...]:
    return step.nodes if isinstance(step, Kernel) else (step.node,)


def _delayed(steps: Sequence[Step], needs: Sequence[Collection[int]], tangents: Collection[Node]) -> list[int]:
    """Put off what is recomputed from saved values until the gradients need it: done first, all of it would be in
    memory at once. In a backward graph that is what hangs on no gradient, in one that takes its own what is marked."""
    first: set[int] = set()
    for k, step in enumerate(steps):
        if tangents:
            waits = first.isdisjoint(needs[k]) and not any(n in tangents for n in step.reads)
        else:
            waits = all(node.late == "again" for node in _nodes(step))
        first.update(() if waits else (k,))
    out: list[int] = []
    placed: set[int] = set()
    for k in (*sorted(first), *range(len(steps))):
        todo = [k]
        while todo:
            top = todo[-1]
            missing = [s for s in sorted(needs[top], reverse=True) if s not in placed]
            if top in placed:
                todo.pop()
            elif missing:
                todo += missing
            else:
                placed.add(top)
                out.append(todo.pop())
    return out
