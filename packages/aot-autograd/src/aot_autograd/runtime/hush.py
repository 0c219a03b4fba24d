"""Hooks and functions of the program behind inputs that no gradient reaches.

One autograd node is before many inputs of a region, so that the engine comes to each of these, though the results that
have a gradient may not be computed from it. Its hooks would be called with None, an ``autograd.Function`` behind it
with zeros, which then are the gradients of leaves that have none. In eager there is no way to it.

These inputs are parameters: others have a node of their own (:mod:`.apart`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch.autograd.function import BackwardCFunction

__all__ = ["hooks_of", "hush", "is_of_program", "pass_by"]


class _Hushed:
    """A hook that is called only where a gradient has come."""

    def __init__(self, hook: Callable[[Any], Any], arrival: _Arrival) -> None:
        self.hook = hook
        self._arrival = arrival

    def __call__(self, value: Any) -> Any:
        return self.hook(value) if value is not None and self._arrival.has_come else None


class _Arrival:
    """Whether a gradient has come to a tensor, which its hooks for a gradient know by what they get, others do not."""

    has_come = True

    def __call__(self, gradient: torch.Tensor | None) -> None:
        self.has_come = gradient is not None


def hush(node: Any, results: Sequence[torch.Tensor | None], others: dict[int, ref[torch.Tensor]]) -> None:
    """For the rest of this backward pass, call hooks of inputs without a gradient only where one comes to them.

    So it is with the leaves and functions that such an input was computed from: the engine comes to these too.

    Args:
        node: the autograd node of the inputs.
        results: their gradients.
        others: inputs that may be no leaves, by place.
    """
    seen: set[Any] = set()
    todo = []
    for k, (result, (behind, _)) in enumerate(zip(results, node.next_functions, strict=False)):
        if result is None and behind is not None:
            todo.append(behind)
            x = others[k]() if k in others else None
            if x is not None and not x.is_leaf:
                x._fix_weakref()  # type: ignore[attr-defined]
                _hush(x)
    while todo:
        behind = todo.pop()
        if behind not in seen:
            seen.add(behind)
            todo.extend(source for source, _ in behind.next_functions if source is not None)
            _hush_node(behind)
            if hasattr(behind, "variable"):
                _hush(behind.variable)
            elif is_of_program(behind) and "apply" not in behind.__dict__:
                torch.autograd.Variable._execution_engine.queue_callback(pass_by(behind))


def _hush(x: torch.Tensor) -> None:
    if not x._backward_hooks and not x._post_accumulate_grad_hooks:  # type: ignore[attr-defined]
        return
    tables: list[dict[int, Any]] = [x._backward_hooks or {}, x._post_accumulate_grad_hooks or {}]  # type: ignore[attr-defined,list-item]
    if any(isinstance(hook, _Hushed) for table in tables for hook in table.values()):
        return
    arrival = _Arrival()
    for table in tables:
        table.update({key: _Hushed(hook, arrival) for key, hook in table.items()})
    handle = x.register_hook(arrival)
    x._backward_hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined,union-attr]

    def speak() -> None:
        handle.remove()
        for table in tables:
            table.update({key: hook.hook for key, hook in table.items() if isinstance(hook, _Hushed)})

    torch.autograd.Variable._execution_engine.queue_callback(speak)


def is_of_program(node: Any) -> bool:
    """Whether a node is of a function, but not of this package: those know what has not come, and may have something
    else to give."""
    if not isinstance(node, BackwardCFunction):
        return False
    return not str(type(node)._forward_cls.__module__).startswith("aot_autograd.")  # type: ignore[attr-defined]


class _HushedOfNode:
    """A hook of an autograd node that is called only where a gradient has come to the node."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self.hook = hook

    def __call__(self, *gradients: Sequence[torch.Tensor | None]) -> Any:
        """Takes what has come to the node; behind what it has given, where it has been run."""
        return self.hook(*gradients) if any(one is not None for one in gradients[-1]) else None


def _hush_node(node: Any) -> None:
    tables = []
    for register in (node.register_prehook, node.register_hook):
        table = hooks_of(register)
        if table and not any(isinstance(hook, _HushedOfNode) for hook in table.values()):
            table.update({key: _HushedOfNode(hook) for key, hook in table.items()})
            tables.append(table)
    if not tables:
        return

    def speak() -> None:
        for table in tables:
            table.update({key: hook.hook for key, hook in table.items() if isinstance(hook, _HushedOfNode)})

    torch.autograd.Variable._execution_engine.queue_callback(speak)


def hooks_of(register: Callable[..., Any]) -> Any:
    """The hooks that a node's method ``register`` has put on it, which are known by a handle alone."""
    handle = register(_HushedOfNode)
    table = handle.hooks_dict_ref()
    handle.remove()
    return table


def pass_by(node: Any) -> Callable[[], None]:
    """Run the backward of a function only where a gradient comes to it, until what is returned is called.

    What the engine calls is the node's attribute ``apply``, for which it has made zeros of what has not come; hooks
    before the node see what has.
    """
    arrival = _Arrival()
    held = ref(node)  # not to hold what holds this

    def notes(gradients: Sequence[torch.Tensor | None]) -> None:
        arrival.has_come = any(gradient is not None for gradient in gradients)

    def apply(*gradients: Any) -> Any:
        function: Any = held()
        if arrival.has_come:
            return type(function).apply(function, *gradients)
        return (None,) * len(function.needs_input_grad)

    handle = node.register_prehook(notes)
    node.apply = apply

    def end() -> None:
        handle.remove()
        function = held()
        if function is not None:
            function.__dict__.pop("apply", None)

    return end
