"""Choosing what to save by a minimum cut.

Each forward value is a vertex split in two, joined by an edge whose capacity is the bytes that saving it takes. Values
that exist anyway (parameters, inputs) hang at the source, together with results that must not be computed twice
(contractions, random numbers); what the backward needs hangs at the sink. A minimum cut is then the cheapest set of
values from which the rest can be computed again by fusible operators. Of all minimum cuts the one nearest the sink is
taken, which computes least again.

The formulation is that of H. He and S. Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion
Aware" (MLSys 2023); the memory budget below the cut's own level orders contractions by work per byte, as knapsack
checkpointing does.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from aot_autograd.partition.costs import is_fusible, is_slow, size_in_bytes, work
from aot_autograd.partition.default import default_partition
from aot_autograd.partition.flow import INFINITE, FlowNetwork
from aot_autograd.partition.norms import operands_of_norm
from aot_autograd.partition.softmax import STATISTIC
from aot_autograd.partition.split import (
    is_backward,
    is_random,
    is_view,
    needed_by_backward,
    operands_to_run_again,
)
from aot_autograd.partition.steps import is_floating, jumps_made_once
from aot_autograd.partition.visible import copied, kept_anyway, may_be_copied
from aot_autograd.trace.outcome import Joint
from prims.errors import CompileWarning
from prims.options import Options
from prims.spec import TensorSpec

__all__ = ["min_cut_partition", "saved_bytes"]


def min_cut_partition(joint: Joint, options: Options) -> list[torch.fx.Node]:
    """The cheapest values to save, in bytes.

    With ``options.memory_budget`` below 1, at most that share of what :func:`default_partition` saves is kept, as far
    as that can be had by computing contractions, attention and other heavy operators again; those with the least work
    per byte come first. Random operators are never run again.

    Where the budget is a size, as few of those operators run again as let the step's estimated peak fit
    (:mod:`aot_autograd.partition.peak`). A warning says so where it does not fit even then.

    Under eager's numerics, without a budget, what eager saves is saved: what a program writes behind a version counter
    between the two passes (``parameter.data``, the memory of a NumPy array) reaches a backward pass as it does eager's.
    """
    limit = options.memory_limit
    if options.numerics != "fast" and limit is None and float(options.memory_budget) >= 1:
        return default_partition(joint, options)
    problem = _Problem(joint)
    chosen = problem.solve(frozenset())
    if limit is not None:
        return _fitting(joint, problem, chosen, limit)
    share = float(options.memory_budget)
    if share >= 1:
        return chosen
    allowed = share * saved_bytes(joint, default_partition(joint, options))
    if saved_bytes(joint, chosen) <= allowed:
        return chosen
    order = problem.heavy_by_work_per_byte()
    count = _first(len(order), lambda k: saved_bytes(joint, problem.solve(frozenset(order[:k]))) <= allowed)
    return problem.solve(frozenset(order[:count]))


def _first(count: int, fits: Callable[[int], bool]) -> int:
    """The least number below ``count`` that fits, where all above fit too; ``count`` if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


#: Choices that are looked at for a budget in bytes, before the last is refined.
_STEPS = 16


def _fitting(joint: Joint, problem: _Problem, chosen: list[torch.fx.Node], limit: int) -> list[torch.fx.Node]:
    """What to save so that a step's estimated peak is at most ``limit`` bytes, or as low as it can be had."""
    from aot_autograd.partition.peak import estimated_peak

    tried = {0: (estimated_peak(joint, chosen), chosen)}
    if tried[0][0] <= limit:
        return chosen
    order = problem.heavy_by_work_per_byte()

    def fits(count: int) -> bool:
        if count not in tried:
            saved = problem.solve(frozenset(order[:count]))
            tried[count] = (estimated_peak(joint, saved), saved)
        return tried[count][0] <= limit

    # Less saved is not always less at the peak: what is computed again at once is alive at once. So the whole range is
    # looked at, in so many steps, and the first step that fits is then made as small as it can be.
    steps = sorted({len(order) * k // _STEPS for k in range(_STEPS + 1)})
    for below, above in itertools.pairwise(steps):
        if fits(above):
            found = _first(above - below, lambda k: fits(below + k))  # noqa: B023  called here alone
            return tried[below + found][1]
    peak, best = min(tried.values(), key=lambda pair: pair[0])
    warnings.warn(
        f"memory_budget is {limit} bytes, but a training step takes {peak} at least, by estimate: parameters, other "
        "inputs, gradients and what cannot be computed again. Give it more, or smaller batches.",
        CompileWarning,
        stacklevel=2,
    )
    return best


def saved_bytes(joint: Joint, saved: list[torch.fx.Node]) -> int:
    """Bytes of the saved values, without those that exist anyway (parameters and other inputs)."""
    hints = _hints(joint)
    total = sum(size_in_bytes(n.meta["spec"], hints) for n in dict.fromkeys(saved) if n.op != "placeholder")
    written = {joint.envelope.placeholders()[index] for index, _, _ in joint.outcome.mutations}
    copies = written | {node for node in copied(joint, saved) if node.op == "placeholder"}
    return total + sum(size_in_bytes(n.meta["spec"], hints) for n in set(saved) & copies)


def _hints(joint: Joint) -> Mapping[str, Any]:
    context = joint.envelope.symbols.context
    return {} if context is None else context.estimates()


def _compared(joint: Joint) -> set[torch.fx.Node]:
    """The forward values that the backward pass compares with others, and those that the forward pass has compared.

    Made again they may differ in their last places, as vectors and scalars of a kernel do: none of a row were then
    its largest, and the row's gradient lost.
    """
    found: set[torch.fx.Node] = set()
    for node in joint.envelope.graph.nodes:
        if node.target not in _COMPARISONS or not all(is_floating(operand) for operand in node.all_input_nodes):
            continue
        if not is_backward(node):
            found.add(node)
            continue
        stack = list(node.all_input_nodes)
        while stack:
            operand = stack.pop()
            if not is_backward(operand):
                found.add(operand)
            elif is_fusible(operand):
                stack.extend(operand.all_input_nodes)
    return found


_COMPARISONS = frozenset(getattr(torch.ops.aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge"))


class _Problem:
    """The forward values on which the backward rests, and the network over them."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.hints = _hints(joint)
        self.needed = needed_by_backward(joint)
        self.copies = {joint.envelope.placeholders()[index] for index, _, _ in joint.outcome.mutations}
        self.copies |= may_be_copied(joint)
        self.kept_anyway = kept_anyway(joint)
        live: set[torch.fx.Node] = set()
        stack = list(self.needed)
        while stack:
            node = stack.pop()
            if node not in live:
                live.add(node)
                stack.extend(operands_to_run_again(node))
        self.nodes = [n for n in joint.envelope.graph.nodes if n in live and not is_backward(n)]
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.skipping = self._values_that_skip()
        self.compared = {self._looked_at(node) for node in _compared(joint) | jumps_made_once(self.nodes)}

    def _values_that_skip(self) -> set[torch.fx.Node]:
        """Fusible results of heavy operators that are used again behind further heavy ones: residual streams.

        Were they made again, each from the one before, the first step of the backward pass would make all of them,
        and keep them until each is used: as much memory as saving them, and the work besides.
        """
        depth: dict[torch.fx.Node, int] = {}
        skipping: set[torch.fx.Node] = set()
        for node in self.nodes:
            below = max((depth[operand] for operand in node.all_input_nodes), default=0)
            light = node.op != "call_function" or is_fusible(node) or node.target is operator.getitem
            depth[node] = below if light else below + 1
            if light:
                skipping.update(operand for operand in node.all_input_nodes if 0 < depth[operand] < depth[node])
        return {self._looked_at(node) for node in skipping}

    def _looked_at(self, node: torch.fx.Node) -> torch.fx.Node:
        """The value of which ``node`` is a view."""
        while is_view(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node

    def solve(self, unlocked: frozenset[torch.fx.Node]) -> list[torch.fx.Node]:
        """The values to save when ``unlocked`` heavy nodes may run again."""
        count = len(self.nodes)
        source, sink = 2 * count, 2 * count + 1
        network = FlowNetwork(2 * count + 2)
        for i, node in enumerate(self.nodes):
            network.edge(2 * i, 2 * i + 1, self._price(node))
            locked = (node in self.skipping and not unlocked) or node in self.compared
            is_unlocked = node in unlocked or self._of_unlocked(node, unlocked)
            runs_again = is_unlocked or (self._runs_again(node) and not locked)
            if node.op == "placeholder" or not runs_again:
                network.edge(source, 2 * i, INFINITE)
            else:
                for operand in operands_to_run_again(node):
                    network.edge(2 * self.index[operand] + 1, 2 * i, INFINITE)
        for node in self.needed:
            network.edge(2 * self.index[node] + 1, sink, INFINITE)
        network.max_flow(source, sink)
        reaching = network.reaches(sink)
        return [
            node
            for i, node in enumerate(self.nodes)
            if reaching[2 * i + 1] and not reaching[2 * i] and not self._is_size(node)
        ]

    def _runs_again(self, node: torch.fx.Node) -> bool:
        if node.target is operator.getitem and node.args[1] != 0 and operands_of_norm(self._first(node)) is not None:
            # Statistics are kept: they are small, and the rest is made from them without a reduction.
            return False
        return is_fusible(node) and STATISTIC not in node.meta and not is_slow(node)

    def _first(self, item: torch.fx.Node) -> torch.fx.Node:
        """The first element of the node whose element ``item`` is."""
        whole: Any = item.args[0]
        return next((u for u in whole.users if u.target is operator.getitem and u.args[1] == 0), item)

    def _of_unlocked(self, node: torch.fx.Node, unlocked: frozenset[torch.fx.Node]) -> bool:
        return node.target is operator.getitem and node.args[0] in unlocked

    def _is_size(self, node: torch.fx.Node) -> bool:
        return not isinstance(node.meta["spec"], TensorSpec)

    def _price(self, node: torch.fx.Node) -> int:
        spec = node.meta["spec"]
        if node.op == "placeholder":
            # It exists anyway, unless the runtime or its owner may overwrite it: then saving makes a copy.
            return size_in_bytes(spec, self.hints) + 1 if node in self.copies else 0
        if not isinstance(spec, TensorSpec) or is_view(node):
            # A tuple is no value, and a view is saved as what it looks at.
            return INFINITE
        return 0 if node in self.kept_anyway else size_in_bytes(spec, self.hints) + 1

    def heavy_by_work_per_byte(self) -> list[torch.fx.Node]:
        """Operators that are not fusible and not random, the cheapest to run again per byte first."""
        heavy = [
            n for n in self.nodes
            if n.op == "call_function" and n.target is not operator.getitem and not is_random(n)
            and (not is_fusible(n) or is_slow(n))
        ]  # fmt: skip

        def price(node: torch.fx.Node) -> float:
            users = [u for u in node.users if u.target is operator.getitem] or [node]
            kept = sum(size_in_bytes(n.meta["spec"], self.hints) for n in users)
            return work(node, self.hints) / max(kept, 1)

        return sorted(heavy, key=price)
