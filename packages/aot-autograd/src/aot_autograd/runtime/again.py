"""Gradients that are to be differentiated themselves (``create_graph=True``).

A compiled backward pass has no derivative. Where one is asked for, the region runs once more, eagerly and under
autograd, on the inputs of its call, and its gradients are taken of that run. This is right only where a second run
does what the first did; where it may not (random numbers, written inputs, inputs that have changed or are gone) the
compiled gradients are given, with a node that explains itself when it is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from aot_autograd.partition.split import Partition, is_random
from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.trace.outcome import Joint, flatten

__all__ = ["RunAgain"]


class RunAgain:
    """Runs a compiled region's program again for gradients with a history.

    Args:
        joint: the traced region.
        partition: its two graphs.
        eager: the program; takes the caller's arguments.
        backward: the compiled backward pass.
    """

    def __init__(self, joint: Joint, partition: Partition, eager: Callable[..., Any], backward: LazyBackward) -> None:
        program = joint.outcome.program
        self._eager = eager
        self._backward = backward
        self._joint = joint
        self._wanted = partition.gradients
        self._arguments = program.arguments
        self._autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
        inputs = program.tracer.inputs
        tensors = [i for i, tensor in enumerate(program.tracer.input_tensors) if tensor is not None]
        self._tensors = [i for i in tensors if inputs[i].kind not in ("rng_seed", "tangent")]
        # What is no parameter, leaf or constant may be an activation, which must not live on for this.
        self._weak = frozenset(
            i
            for i in self._tensors
            if inputs[i].kind == "input" and not (inputs[i].requires_grad and program.grad_fns.get(i) is None)
        )
        self._leaves = self._leaves_of_tangents()
        self._obstacle = self._find_obstacle()

    def _leaves_of_tangents(self) -> list[int | None]:
        """For each tangent the leaf of the program's result that it belongs to."""
        leaves = self._joint.outcome.leaves
        return [
            next(
                (at for at, leaf in enumerate(leaves) if leaf.kind == "output" and leaf.index == i and not leaf.steps),
                None,
            )
            for i in self._joint.tangents
        ]

    def _find_obstacle(self) -> str | None:
        nodes = self._joint.envelope.graph.nodes
        if any(desc.kind == "rng_seed" for desc in self._joint.envelope.inputs) or any(map(is_random, nodes)):
            return "it draws random numbers"
        if self._joint.outcome.mutations:
            return "it writes to its inputs"
        if None in self._leaves:
            return "its results are views of one another"
        return None

    def keep(self, args: Sequence[Any]) -> Any:
        """What a call has to keep of its inputs."""
        if self._obstacle is not None:
            return None
        weak = self._weak
        try:
            versions = [args[i]._version for i in self._tensors]
        except RuntimeError:  # inference tensors have none
            versions = None
        if not weak:
            return args, versions
        return tuple(TensorWeakRef(arg) if i in weak else arg for i, arg in enumerate(args)), versions

    def gradients(self, kept: Any, tangents: Sequence[torch.Tensor | None], box: list[Any]) -> Sequence[Any]:
        """The gradients with a history, in the order of the backward graph's outputs.

        Args:
            kept: what :meth:`keep` gave.
            tangents: the gradients of the differentiable results, with their own history.
            box: what the compiled backward pass takes.
        """
        args, obstacle = self._inputs(kept)
        if obstacle is not None:
            return _refusing(self._backward(box), obstacle)
        for i in self._wanted:
            # One tensor may be two arguments, each of which has its own gradient.
            if i < self._arguments:
                args[i] = args[i].view_as(args[i])
        with ExitStack() as stack:
            # The program may turn gradients on by itself.
            stack.enter_context(torch.set_grad_enabled(self._joint.outcome.program.grad_enabled))
            for device, enabled, dtype in self._autocast:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled))
            results: list[Any] = []
            flatten(self._eager(*args[: self._arguments]), results)
        present = [i for i, tangent in enumerate(tangents) if tangent is not None]
        return torch.autograd.grad(
            [results[self._leaves[i]] for i in present],  # type: ignore[index]
            [args[i] for i in self._wanted],
            [tangents[i] for i in present],
            create_graph=True,
            allow_unused=True,
        )

    def _inputs(self, kept: Any) -> tuple[list[Any], str | None]:
        """The inputs of the call, or what forbids to run it again."""
        if kept is None:
            return [], self._obstacle
        held, versions = kept
        args = [value() if type(value) is TensorWeakRef else value for value in held]
        if any(args[i] is None for i in self._weak):
            return [], "an input of it is no longer there"
        if versions is None:
            return [], "an input of it is an inference tensor"
        lifted = self._joint.outcome.program.lifted
        replaced = any(store[name] is not args[i] for i, (store, name) in lifted.items())
        if replaced or any(args[i]._version != version for i, version in zip(self._tensors, versions, strict=True)):
            return [], "an input of it was modified since"
        return args, None


class _NoSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and explains itself when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, reason: str, anchor: torch.Tensor, *values: torch.Tensor) -> Any:
        ctx.reason = reason
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "the gradient of a compiled region's gradient was asked for. That takes a second run of the region, which "
            f"is not possible: {ctx.reason}. Run the part of the program that needs second derivatives eagerly "
            "(compile_api.disable)."
        )


def _refusing(results: Sequence[Any], reason: str) -> Sequence[Any]:
    """The gradients, such that their own gradients raise an error; without a node they would silently be zero."""
    places = [i for i, result in enumerate(results) if result is not None]
    anchor = torch.zeros((), requires_grad=True)
    wrapped = _NoSecondDerivative.apply(reason, anchor, *(results[i] for i in places))
    out = list(results)
    for place, value in zip(places, wrapped, strict=True):
        out[place] = value
    return out
