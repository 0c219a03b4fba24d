"""What eager's autograd nodes save of the memory that a region's user can write before the backward pass.

Eager raises where its backward pass comes to a node that saved a tensor which was written since. Of a region's memory
that is the inputs' and the results'.

A custom function may also keep a tensor by itself, in its context: its backward reads what is there then, whoever has
written it. A front end that has captured the function leaves these in a list, ``kept`` of the autograd node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.trace.tracer import state_of
from prims.sharding import is_sharded

if TYPE_CHECKING:
    from aot_autograd.trace.outcome import Outcome
    from aot_autograd.trace.tracer import Tracer

__all__ = ["Place", "is_late", "names_of_saved", "nodes_behind", "read_late", "saved_by_eager"]

#: Memory that is the user's: ``("input" | "output", index)``.
Place = tuple[str, int]


def nodes_behind(roots: Iterable[Any]) -> set[Any]:
    """The autograd nodes that some lead to, themselves included."""
    seen: set[Any] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(source for source, _ in node.next_functions)
    return seen


def saved_by_eager(outcome: Outcome, tangents: list[int]) -> Mapping[Place, frozenset[int]]:
    """By place, the tangents (by position) whose backward pass comes to a node that saves something of its memory.

    Args:
        tangents: the differentiable graph outputs.
    """
    inputs = outcome.program.tracer.input_tensors
    owners = [(("input", i), tensor) for i, tensor in enumerate(inputs) if tensor is not None]
    owners += [(("output", i), tensor) for i, tensor in enumerate(outcome.tensors[: outcome.user_outputs])]
    places: dict[int, list[Place]] = {}
    edges: dict[Any, Place] = {}
    for place, tensor in owners:
        storage = state_of(tensor).storage
        places.setdefault(id(storage), []).append(place)
        for one in (tensor, storage.base):
            if one is not None and place[0] == "output" and one.grad_fn is not None:
                edges[one.grad_fn, one.output_nr] = place
    found: dict[Place, set[int]] = {}
    saving: dict[Any, set[Place]] = {}
    for k, i in enumerate(tangents):
        for node in nodes_behind([outcome.tensors[i].grad_fn]):
            if node not in saving:
                saving[node] = _places_saved(node, places, edges)
            for place in saving[node]:
                found.setdefault(place, set()).add(k)
    return {place: frozenset(by) for place, by in sorted(found.items())}


def read_late(tracer: Tracer, nodes: Iterable[Any]) -> frozenset[int]:
    """Have custom backwards read the inputs that they keep themselves in the backward graph; which inputs these are.

    Nothing is made of them before. Of other memory of the user's that they keep a write is an error, as if they had
    saved it.
    """
    found: set[int] = set()
    for node in nodes:
        kept: list[Any] = getattr(node, "kept", None) or []
        for at, value in enumerate(kept):
            if hasattr(value, "_aot_state") and tracer.read(value).op == "placeholder":
                index = state_of(value).storage.input_index
                if value.requires_grad and value.is_leaf and value is not tracer.input_tensors[index]:  # type: ignore[index]
                    continue  # a leaf that the program has made of it, whose gradient the backward asks for
                found.add(index)  # type: ignore[arg-type]
                kept[at] = tracer.pure(torch.ops.aten.clone.default, (value,), {})
                tracer.read(kept[at]).meta["late"] = True
    return frozenset(found)


def is_late(node: Any) -> bool:
    """Whether a node reads an input for a custom backward, which reads what is there then."""
    return "late" in node.meta


def _places_saved(node: Any, places: dict[int, list[Place]], edges: dict[Any, Place]) -> set[Place]:
    found: set[Place] = set()
    kind: Any = type(node)
    for name in names_of_saved(kind):
        value = getattr(node, name)
        for saved in value if isinstance(value, (list, tuple)) else (value,):
            one = saved.data
            one = one._local_tensor if is_sharded(one) else one
            state = getattr(one, "_aot_state", None)
            if state is not None:
                found.update(places.get(id(state.storage), ()))
            elif isinstance(one, torch.Tensor) and (one.grad_fn, one.output_nr) in edges:
                found.add(edges[one.grad_fn, one.output_nr])  # a node shows its own result as a new tensor
    for one in getattr(node, "kept", None) or ():
        state = getattr(one, "_aot_state", None)
        if state is not None and state.node.op != "placeholder":  # of those see `read_late`
            found.update(places.get(id(state.storage), ()))
    return found


@functools.cache
def names_of_saved(node: type) -> tuple[str, ...]:
    """The attributes by which a class of autograd nodes shows what it saves, as it holds it: unpacked, a node's own
    result is a new tensor, and making that imports PyTorch's distributed tensors, symbolic shapes and sympy (0.3 s)."""
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
