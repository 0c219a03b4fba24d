"""Results that other results of a region are computed from, as autograd's graph shows them.

The autograd function of a region gives all its results, so that the engine knows of no way from one to another. In
eager there is one: ``r`` computed from ``h`` hands its gradient on to ``h``, where hooks, ``retain_grad`` and
``torch.autograd.grad(..., h)`` see it. Here each such result passes through a link, a node that has those of the
results behind it among its next ones.

The compiled backward pass goes through the region once, and lets nobody look in between. Where nobody does, a link
hands nothing on. Where somebody may, it hands on the gradient that the second result has with respect to the first,
of a second run of the program (:mod:`aot_autograd.runtime.again`); the first result's link takes it away again from
what it gives to the compiled backward pass, which adds its own: what hooks have made of the sum stays.

A result that is a view (of another, or of an input) has the view's own node, through which the gradient goes on to the
base: taken away is there what comes through views too, of an input's gradient behind the compiled backward pass.

``torch.autograd.grad(..., x)`` cannot be told from ``torch.autograd.grad(..., (x, h))``. Where the region cannot be run
again, what is handed on then is a tensor that raises an error when it is used, and is dropped by the next link, or
where it is added to the gradient of a view's base.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import torch

from aot_autograd.runtime.again import RunAgain, Unknown, call_of, present
from aot_autograd.runtime.emitted import apply_of, gate_tensor, of_value_alone
from aot_autograd.runtime.hush import hooks_of

__all__ = ["handed_to_inputs", "less", "make_link", "nowhere"]


_NONE: dict[int, Any] = {}


class _Nowhere(torch.autograd.Function):
    """A node that leads to nothing: an engine runs it only if it runs all that it reaches, to capture no gradients."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return None


def nowhere() -> torch.Tensor:
    """What each link takes before the results."""
    with torch.inference_mode(False), torch.enable_grad():
        return _Nowhere.apply(gate_tensor(requires_grad=True))  # type: ignore[no-any-return]


def make_link(again: RunAgain, kept: frozenset[int]) -> Callable[..., torch.Tensor]:
    """What makes links: ``link(tangent, nowhere(), inputs, result, *results behind it)``.

    ``inputs`` are the places of those behind that are inputs which the region has written, or views of inputs. Nothing
    behind is saved, which eager does not either: the tables of their hooks are kept.

    Args:
        again: runs the region's program again.
        kept: the tangents whose results the call keeps until its backward pass.
    """
    def forward(
        ctx: Any, tangent: int, elsewhere: torch.Tensor, inputs: tuple[int, ...], result: torch.Tensor,
        *behind: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.tangent = tangent
        made = result.detach()
        call = call_of(result.grad_fn)
        call.results[tangent] = ref(made)
        call.links[tangent] = ref(ctx)
        ctx.behind = []
        for n, one in enumerate(behind):
            k, held = again.under(tangent)[n], ref(one)
            if k >= again.tangents:
                call.views[k] = held, one._version
                # A view's version is its input's, which counts writes behind autograd too: those change no history.
                ctx.behind.append((held, None if n in inputs else one._version, _hooks_of(one)))
            else:  # that of another link notes its hooks
                ctx.behind.append((held, one._version, _hooks_of(one) if n in inputs else _NONE))
        if tangent in kept:
            ctx.save_for_backward(made)
        return made

    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        (elsewhere, _), (own, _), *behind = ctx.next_functions
        call = call_of(own)
        task = torch._C._current_graph_task_id()
        count = len(behind)
        handed = call.handed.pop((task, ctx.tangent), None)
        if isinstance(gradient, Unknown):
            gradient = gradient.rest
        if gradient is None:
            return (None,) * (count + 4)
        given: Sequence[torch.Tensor | None] = (None,) * count
        if count:
            watched = _watched(ctx, behind)
            if watched or not torch._C._will_engine_execute_node(elsewhere):
                # Where the call's own node is not to be executed, somebody wants what comes before it.
                surely = watched or torch.is_grad_enabled() or not torch._C._will_engine_execute_node(own)
                given, passed = again.gradients_between(call, ctx.tangent, gradient, surely)
                for k, one in passed.items():
                    before = call.handed.get((task, k))
                    call.handed[task, k] = one if before is None else before + one
        if handed is not None:
            gradient = _difference(gradient, handed)
        return None, None, None, gradient, *given

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = type("Link", (torch.autograd.Function,), methods)
    for name in ("register_hook", "register_prehook"):
        setattr(made._backward_cls, name, _noting(getattr(made._backward_cls, name)))
    made._backward_cls._register_hook_dict = _noting_table(made._backward_cls._register_hook_dict)
    return _unseen(apply_of(made), again, kept)


_hooks_in_use, _push_hooks, _pop_hooks = (
    getattr(torch._C._autograd, f"_{name}_saved_tensors_default_hooks") for name in ("top", "push", "pop")
)


def _unseen(link: Callable[..., torch.Tensor], again: RunAgain, kept: frozenset[int]) -> Callable[..., torch.Tensor]:
    """A link, which keeps its result, as one whose result the program's ``saved_tensors_hooks`` do not see.

    They see it where the call saves it, as in eager, once: where they are in use, the link has it from there.
    """

    def call(tangent: int, elsewhere: torch.Tensor, inputs: tuple[int, ...], result: Any, *behind: Any) -> torch.Tensor:
        if tangent not in kept or _hooks_in_use(True) is None:
            return link(tangent, elsewhere, inputs, result, *behind)
        node: Callable[[], Any] = ref(call_of(result.grad_fn))
        place = again.place_of(tangent)
        _push_hooks(_forget, lambda _: node().saved_tensors[place].detach())
        try:
            return link(tangent, elsewhere, inputs, result, *behind)
        finally:
            _pop_hooks()

    return call


def _forget(tensor: torch.Tensor) -> None:
    """In place of what packs a tensor: nothing of it is kept."""


def _noting(register: Callable[..., Any]) -> Callable[..., Any]:
    """A node's method that puts a hook on it, and leaves a note of that: nobody can ask a node for its hooks."""

    def noting(node: Any, hook: Callable[..., Any]) -> Any:
        node.has_hooks = True
        return register(node, hook)

    return noting


def _noting_table(register: Callable[..., Any]) -> Callable[..., Any]:
    """A node's method by which ``Tensor.register_hook`` tells it of the table of its result's hooks."""

    def noting(node: Any, tensor: torch.Tensor) -> None:
        node.hooks_of_result = tensor._backward_hooks
        register(node, tensor)

    return noting


def _difference(gradient: torch.Tensor, handed: torch.Tensor) -> torch.Tensor:
    """What ``handed`` was added to; where both are zero with the gradient's sign, which changes no derivative."""
    rest = torch.where(gradient == handed, 0, gradient - handed)
    return torch.where((handed == 0) & (gradient == 0), gradient.detach(), rest)


def handed_to_inputs(call: Any) -> dict[int, torch.Tensor]:
    """What the links of this backward pass have handed on to views of inputs, as gradients of the inputs.

    Args:
        call: the call's autograd node.
    """
    task = torch._C._current_graph_task_id()
    return {~k: call.handed.pop((t, k)) for t, k in list(call.handed) if t == task and k < 0}


def less(
    results: Sequence[torch.Tensor | None], gradients: Sequence[int], handed: dict[int, torch.Tensor]
) -> list[torch.Tensor | None]:
    """The inputs' gradients without what comes to them through views of them.

    Args:
        gradients: the inputs that the results belong to.
        handed: what comes through views, by input.
    """
    return [
        result if result is None or i not in handed else _difference(result, handed[i])
        for i, result in zip(gradients, results, strict=True)
    ]


def _watched(ctx: Any, behind: Sequence[tuple[Any, int]]) -> bool:
    """Whether a result behind a link has a hook, or its node, or retains its gradient.

    Hooks stay with the node that a tensor had when they were put on it, also when it is written, or gone.
    """
    if any(node is not None and _has_hooks(node) for node, _ in behind):
        return True
    if any(hooks for _, _, hooks in ctx.behind):
        return True
    results = [(present(held), version) for held, version, _ in ctx.behind]
    same = [one for one, version in results if one is not None and version in (None, one._version)]
    return any(one.retains_grad for one in same)


def _hooks_of(tensor: Any) -> Mapping[int, Any]:
    """The table of a tensor's hooks, made as ``Tensor.register_hook`` makes it. One that is written gets another."""
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)
    return tensor._backward_hooks  # type: ignore[no-any-return]


def _has_hooks(node: Any) -> bool:
    """Whether a hook was put on the node of a link, or is on that of a view or of the copy into a written input."""
    if type(node).__name__ == "LinkBackward":
        return getattr(node, "has_hooks", False) or bool(getattr(node, "hooks_of_result", None))
    tables = map(hooks_of, (node.register_hook, node.register_prehook))
    return any(hook is not of_value_alone for table in tables for hook in table.values())
