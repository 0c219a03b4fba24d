"""Another run of a region, eagerly and under autograd, in a graph of its own.

Its inputs have no history. What is computed from them is given to the program through :class:`_Exit` nodes, by which
the program knows gradients that are differentiable. A backward pass that comes to an exit differentiates inside, and
hands on what arrives there for the region's results and for what has entered. What arrives at other values of the run
waits until the node of the call's inputs has its turn, and is then walked back together with the results' gradients:
a value gets all its gradients before it hands on their sum, as in eager's one graph, with eager's layouts and zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch.autograd.graph import GradientEdge

from aot_autograd.runtime.emitted import gate_tensor
from aot_autograd.runtime.hush import hush, is_of_program, pass_by

__all__ = ["REFUSAL", "SecondRun", "enter"]

#: An autograd node and the number of an output of the operator that it belongs to.
Edge: TypeAlias = tuple[Any, int]

REFUSAL = (
    "the gradient of a compiled region's gradient was asked for. That takes a second run of the region, which is not "
    "possible: {reason}. Run the part of the program that needs second derivatives eagerly (compile_api.disable)."
)


class SecondRun:
    """One more run of a region, for the gradients of a call's gradients.

    Args:
        call: the call's autograd node.
        own_results: gives the call's differentiable results, as far as they can be had.
        made: the run's results, in the order of the call's; those that are views of others last.
        inputs: the inputs whose gradients are wanted, and what :func:`enter` gave for them.
        gate_of: of each of them, the gate of the call that it went through.
        bases: of each result that is a view: the result that it is of, or ``~input``, and the run's tensor for that.
        at_once: whether what arrives at values inside is handed on to results and inputs without waiting: where hooks,
            or results that others are computed from, stand between.
    """

    def __init__(
        self,
        call: Any,
        own_results: Callable[[Any], list[torch.Tensor | None]],
        made: list[torch.Tensor],
        inputs: list[tuple[torch.Tensor, torch.Tensor]],
        gate_of: Sequence[int],
        bases: dict[int, tuple[int, torch.Tensor]],
        at_once: bool,
    ) -> None:
        self._call = ref(call)
        self._gates: tuple[torch.Tensor, ...] = call.kept[2]
        self._own_results = own_results
        self._made = made
        self._inputs = {_edge(inside): tensor for tensor, inside in inputs}
        self._gate_of = dict(zip(self._inputs, gate_of, strict=True))
        self._branches = frozenset(edge for edge, tensor in self._inputs.items() if not tensor.is_leaf)
        self._exits: list[ref[Any]] = []
        self._bases = bases
        self._at_once = at_once
        self._results = {_edge(result): k for k, result in enumerate(made)}
        self._nodes, _ = _walk(self._results)
        self._waiting: dict[int, list[tuple[list[Edge], list[torch.Tensor], _Entered]]] = {}

    def is_awaited(self) -> bool:
        """Whether this backward pass has come to gradients of this run."""
        return torch._C._current_graph_task_id() in self._waiting

    def awaits_exits(self) -> bool:
        """Whether gradients of this run have yet to have their turn in this backward pass."""
        task = torch._C._current_graph_task_id()
        exits = [one for held in self._exits if (one := held()) is not None]
        self._exits = [ref(one) for one in exits]
        return any(one.task != task and torch._C._will_engine_execute_node(one) for one in exits)

    def add(self, exit: Any) -> None:
        """Note the node of gradients of this run."""
        if len(self._gates) > 1:
            exit.task = None
            self._exits.append(ref(exit))

    def gradients(
        self, tangents: Sequence[torch.Tensor | None], own: Sequence[torch.Tensor | None], is_last: bool = True
    ) -> list[torch.Tensor | None]:
        """The gradients of the inputs: what the results' give, and what has arrived inside in this backward pass.

        Args:
            is_last: whether they are not asked for once more in this backward pass.
        """
        entered = _Entered()
        present = [k for k, tangent in enumerate(tangents) if tangent is not None]
        ends: list[Any] = [self._made[k] for k in present]
        given = [entered.add(tangents[k]) for k in present]  # type: ignore[arg-type]
        task = torch._C._current_graph_task_id()
        for edges, arrived, others in self._waiting.pop(task, ()) if is_last else self._waiting.get(task, ()):
            ends += [GradientEdge(*edge) for edge in edges]
            given += arrived
            entered.edges += others.edges
            entered.tensors += others.tensors
        retain = not is_last or torch.is_grad_enabled() or torch._C._autograd._get_current_graph_task_keep_graph()
        return self._leave(_differentiate(ends, [*self._inputs], given, retain), entered, own)

    def gradients_between(
        self, tangent: int, behind: Sequence[int], gradient: torch.Tensor, own: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], dict[int, torch.Tensor]]:
        """What a result's gradient gives to those ``behind`` it, on no way through others of them.

        And what comes of that to those that are no views, through views of them too, and to inputs (``~input``).
        """
        entered = _Entered()
        edges = [_edge(self._made[k]) for k in behind]
        with _cut(edges):
            found = _differentiate([self._made[tangent]], edges, [entered.add(gradient)], True)
        handed = self._at_bases({k: one for k, one in zip(behind, found, strict=True) if one is not None})
        left = self._leave([*found, *handed.values()], entered, own)
        return left[: len(found)], dict(zip(handed, left[len(found) :], strict=True))  # type: ignore[arg-type]

    def _at_bases(self, found: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """The gradients of some results as gradients of what those that are views are of."""
        handed = {k: one for k, one in found.items() if k not in self._bases}
        views: dict[int, list[int]] = {}
        for k in found.keys() & self._bases.keys():
            views.setdefault(self._bases[k][0], []).append(k)
        for base, places in views.items():
            edge = _edge(self._bases[places[0]][1])
            (passed,) = _differentiate([self._made[k] for k in places], [edge], [found[k] for k in places], True)
            assert passed is not None
            handed[base] = handed[base] + passed if base in handed else passed
        return handed

    def _leave(
        self, values: list[torch.Tensor | None], entered: _Entered, own: Sequence[torch.Tensor | None] = ()
    ) -> list[torch.Tensor | None]:
        """Values for the program; those with a history inside have an exit for theirs."""
        batches = (torch._C._functorch.is_legacy_batchedtensor(value) for value in values if value is not None)
        if torch.is_grad_enabled() and any(batches):
            # A Function that is applied to such a batch has no history in PyTorch: what leads to it would be lost.
            raise RuntimeError(REFUSAL.format(reason="is_grads_batched asks for many gradients, each with a graph"))
        leaving = {i: value for i, value in enumerate(values) if value is not None and value.requires_grad}
        if not leaving:
            return values
        inside, inputs, results = self._reached([*leaving.values()])
        if not own and results:
            call = self._call()
            own = self._own_results(call) if call is not None else ()
        # What arrives at a view that is no longer there goes on to its base.
        gone = {k for k in self._bases if not own or own[k] is None}
        results = [edge for edge in results if self._results[edge] not in gone]
        # A node has the engine come to all that it leads to: hooks are called there with None and nodes make zeros of
        # it. So values that lead to other inputs with a history, or other results, than others leave by a node of their
        # own.
        if self._branches:
            for (_, led, used), places in self._groups(leaving, entered).items():
                own_inside, own_inputs, _ = self._reached([leaving[i] for i in places])
                own_results, own_entered = [edge for edge in results if edge in led], entered.only(used)
                self._leave_by(values, places, own_inside, own_inputs, own_results, own_entered, own)
        elif not results and len(inputs) < len(self._inputs) and not self._lead_to_gate(entered.tensors):
            apart: dict[tuple[Edge, ...], list[int]] = {}
            for i, value in leaving.items():
                apart.setdefault(tuple(self._reached([value])[1]), []).append(i)
            for reached, places in apart.items():
                self._exit(values, places, [*reached], {edge: inputs[edge] for edge in reached}, entered)
        else:
            self._leave_by(values, [*leaving], inside, inputs, results, entered, own)
        return values

    def _groups(
        self, leaving: dict[int, torch.Tensor], entered: _Entered
    ) -> dict[tuple[frozenset[Any], ...], list[int]]:
        """Values by what they lead to: inputs with a history, results, and what has entered (by place)."""
        groups: dict[tuple[frozenset[Any], ...], list[int]] = {}
        for i, value in leaving.items():
            seen, _ = _walk([_edge(value)], self._nodes)
            used = frozenset(n for n, (node, _) in enumerate(entered.edges) if node in seen)
            _, inputs, results = self._reached([value])
            groups.setdefault((self._branches.intersection(inputs), frozenset(results), used), []).append(i)
        return groups

    def _leave_by(
        self, values: list[torch.Tensor | None], places: list[int], inside: list[Edge],
        inputs: dict[Edge, torch.Tensor], results: list[Edge], entered: _Entered, own: Sequence[torch.Tensor | None],
    ) -> None:  # fmt: skip
        """Put the values at some places behind one exit: to the inputs themselves where a gate leads to others, too."""
        if not results and not self._branches.issubset(inputs) and not self._lead_to_gate(entered.tensors):
            self._exit(values, places, [*inputs], inputs, entered)
            return
        handed = {edge: own[self._results[edge]] if own else None for edge in results}
        led = [*results, *inputs] if self._at_once else inside
        self._exit(values, places, led, handed, entered, self._before(inputs))

    def _before(self, inputs: Iterable[Edge]) -> list[torch.Tensor]:
        """The gates of some inputs."""
        if len(self._gates) == 1:
            return list(self._gates)
        return [self._gates[j] for j in sorted({self._gate_of[edge] for edge in inputs})]

    def _reached(self, values: list[torch.Tensor]) -> tuple[list[Edge], dict[Edge, torch.Tensor], list[Edge]]:
        """The edges of this run to which some values' gradients come first, and the inputs and results they reach."""
        _, inside = _walk([_edge(value) for value in values], self._nodes)
        under, _ = _walk(inside)
        inputs = {edge: tensor for edge, tensor in self._inputs.items() if edge[0] in under}
        return inside, inputs, [e for e in self._results if (e[0] in under if self._at_once else e in inside)]

    def _exit(
        self, values: list[torch.Tensor | None], places: list[int], inside: list[Edge],
        handed: Mapping[Edge, torch.Tensor | None], entered: _Entered, gates: Sequence[torch.Tensor] = (),
    ) -> None:  # fmt: skip
        """Put the values at some places, which lead to ``inside``, behind an exit."""
        # Nothing arrives by the gates, but their nodes get their turn after what waits for them.
        wait_at: Sequence[torch.Tensor] = gates if inside else ()
        if not handed and not entered.tensors and not wait_at:
            wait_at = (gate_tensor(requires_grad=True),)  # they lead to leaves that the region has made
        behind = (*handed.values(), *wait_at, *entered.tensors)
        left = _Exit.apply(self, [values[i] for i in places], inside, list(handed), entered, *behind)
        for i, value in zip(places, left, strict=True):
            values[i] = value

    def _lead_to_gate(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the program's graph leads from some tensors to a node of the call's inputs."""
        nodes = _walk([_edge(tensor) for tensor in tensors])[0] if tensors else ()
        return any(gate.grad_fn in nodes for gate in self._gates)

    def walk_back(self, exit: Any, coming: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What an exit's values give to what it hands gradients to, and to what has entered.

        Raises:
            RuntimeError: something arrives at a result that cannot be had, or that has a hook inside.
        """
        inside: list[Edge] = exit.inside
        entered = _Entered()
        present = [i for i, gradient in enumerate(coming) if gradient is not None]
        given = [entered.add(coming[i]) for i in present]  # type: ignore[arg-type]
        with _cut(inside):
            found = _differentiate([exit.values[i] for i in present], [*inside, *exit.entered], given, True)
        if torch.is_grad_enabled():
            entered.tensors += exit.saved_tensors
            entered.edges += exit.entered
        arrived = dict(zip(inside, found, strict=False))
        handed = [arrived.pop(edge) for edge in exit.handed]
        for edge, gradient, there in zip(exit.handed, handed, exit.there, strict=True):
            if gradient is not None and edge in self._results and self._made[self._results[edge]]._backward_hooks:
                raise RuntimeError(REFUSAL.format(reason="the program puts a hook on a result of it"))
            if gradient is not None and not there:
                raise RuntimeError(REFUSAL.format(reason="a result of it was changed in place or is no longer there"))
        if exit.waits:
            task = torch._C._current_graph_task_id()
            if task not in self._waiting:
                self._waiting[task] = []
                torch.autograd.Variable._execution_engine.queue_callback(lambda: self._waiting.pop(task, None))
            waiting = {edge: gradient for edge, gradient in arrived.items() if gradient is not None}
            self._waiting[task].append((list(waiting), list(waiting.values()), entered))
        return self._leave([*handed, *found[len(inside) :]], entered)


def bare(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history. ``is_grads_batched`` makes gradients that know no ``detach``."""
    if torch._C._functorch.is_legacy_batchedtensor(tensor):
        with torch.no_grad():
            return tensor.view(tensor.shape)
    return tensor.detach()


def enter(tensor: torch.Tensor, former: torch.Tensor | None = None, frozen: bool = False) -> torch.Tensor:
    """A tensor for a graph of its own: with a history that is its entrance, whose node is not that of another.

    Args:
        former: a copy of what the tensor was, to be taken in its place.
        frozen: whether one enters so that needs no gradient any more: it did when it was used.
    """
    value = bare(tensor if former is None else former)
    if not (tensor.requires_grad or frozen) or not torch.is_grad_enabled():
        return value
    return _Entrance.apply(gate_tensor(requires_grad=True), value)  # type: ignore[no-any-return]


class _Entered:
    """Tensors that have entered a graph of its own: as the program knows them, and as edges inside."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.edges: list[Edge] = []

    def only(self, places: Collection[int]) -> _Entered:
        """Those at some places."""
        made = _Entered()
        made.tensors = [tensor for n, tensor in enumerate(self.tensors) if n in places]
        made.edges = [edge for n, edge in enumerate(self.edges) if n in places]
        return made

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Have a tensor enter."""
        inside = enter(tensor)
        if inside.requires_grad:
            self.tensors.append(tensor)
            self.edges.append(_edge(inside))
        return inside


def _edge(tensor: torch.Tensor) -> Edge:
    return tensor.grad_fn, tensor.output_nr


def _walk(roots: Iterable[Edge], border: Collection[Any] = ()) -> tuple[set[Any], list[Edge]]:
    """The nodes that some edges lead to, up to a ``border`` of others, and the edges that cross that."""
    seen: set[Any] = set()
    crossing: dict[Edge, None] = {}
    todo = list(roots)
    while todo:
        edge = todo.pop()
        if edge[0] in border:
            crossing[edge] = None
        elif edge[0] is not None and edge[0] not in seen:
            seen.add(edge[0])
            todo.extend(edge[0].next_functions)
    return seen, list(crossing)


def _differentiate(
    ends: list[Any], inputs: Sequence[Edge], gradients: list[torch.Tensor], retain: bool
) -> list[torch.Tensor | None]:
    """The gradients at edges, with a history where gradients are enabled."""
    if not ends or not inputs:
        return [None] * len(inputs)
    wanted = [GradientEdge(*edge) for edge in inputs]
    history = torch.is_grad_enabled()
    return list(torch.autograd.grad(ends, wanted, gradients, retain, history, allow_unused=True))


@contextmanager
def _cut(edges: Sequence[Edge]) -> Iterator[None]:
    """With nothing passing through some edges: they are asked for what arrives.

    The engine comes to what is behind them all the same, and has zeros for a function of the program there.
    """
    places: dict[Any, set[int]] = {}
    for node, place in edges:
        places.setdefault(node, set()).add(place)
    handles = [node.register_prehook(_Cut(frozenset(cut))) for node, cut in places.items()]
    behind, _ = _walk(edges)
    ends = [pass_by(node) for node in behind if is_of_program(node) and "apply" not in node.__dict__]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for end in ends:
            end()


class _Cut:
    """Before a node: lets nothing pass for some of its outputs."""

    def __init__(self, places: frozenset[int]) -> None:
        self._places = places

    def __call__(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        return tuple(None if i in self._places else gradient for i, gradient in enumerate(gradients))


class _Entrance(torch.autograd.Function):
    """An edge for what enters; what arrives there is asked for."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return bare(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


class _Exit(torch.autograd.Function):
    """Gives the program values of a run; takes their gradients back to it."""

    @staticmethod
    def forward(
        ctx: Any, run: SecondRun, values: list[torch.Tensor], inside: list[Edge], handed: list[Edge], entered: _Entered,
        *behind: torch.Tensor | None,
    ) -> Any:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.run = run
        ctx.values = values
        ctx.inside = inside
        ctx.handed = handed
        ctx.entered = list(entered.edges)
        ctx.there = [tensor is not None for tensor in behind[: len(handed)]]
        ctx.gates = len(behind) - len(handed) - len(entered.tensors)
        ctx.waits = bool(ctx.gates) or not inside
        run.add(ctx)
        ctx.save_for_backward(*entered.tensors)
        return tuple(map(bare, values))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.values is None:
            return ctx.saved_tensors  # an error: the graph was freed
        ctx.task = torch._C._current_graph_task_id()
        given = ctx.run.walk_back(ctx, gradients)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.values = None
        count = len(ctx.handed)
        if any(gradient is None for gradient in given):
            there = [gradient for gradient, one in zip(given, ctx.there, strict=False) if one]
            hush(ctx, [*there, *(None,) * ctx.gates, *given[count:]], {})
        return (None, None, None, None, None, *given[:count], *(None,) * ctx.gates, *given[count:])
