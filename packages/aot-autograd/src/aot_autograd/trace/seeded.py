"""Random operators as functions of a seed that the runtime draws anew for each call.

A generated kernel can then make the numbers where they are used, and the backward pass makes a dropout mask again from
the seed instead of keeping it. The numbers differ from eager's for the same generator state; ``fallback_random`` keeps
eager's operators. Each draw has its own range of Philox counters under the call's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.fx

from aot_autograd.trace.opinfo import bind, op_info
from prims.ops.rng import counters
from prims.spec import TensorSpec, infer

__all__ = ["HANDLERS"]

aten = torch.ops.aten


class Draws(Protocol):
    """What makes numbers of a seed: a tracer, whose values are nodes, or the runtime, whose values are tensors."""

    seeded: bool

    def spec(self, tensor: Any) -> TensorSpec: ...
    def seed(self, device: torch.device) -> Any: ...
    def counter_of(self, func: Any, args: Any, kwargs: Any, count: Any) -> Any: ...
    def emit(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]: ...
    def pure(self, func: Any, args: Any, kwargs: Any) -> Any: ...
    def read(self, tensor: Any) -> Any: ...
    def wrap(self, value: Any, spec: Any, wanted: Any) -> Any: ...
    def write(self, target: Any, value: Any, spec: Any) -> None: ...


#: ``rule(tracer, draw, spec, arguments by name) -> (value, spec)``; ``draw("random_uniform")`` gives such a pair.
Rule = Callable[..., tuple[Any, Any]]
HANDLERS: dict[Any, Callable[..., Any]] = {}


def _handles(*overloads: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in overloads:
            packet, overload = name.split(".")
            func = getattr(getattr(aten, packet), overload)
            HANDLERS[func] = _handler(rule)
        return rule

    return register


def _handler(rule: Rule) -> Callable[..., Any]:
    def handle(tracer: Draws, func: Any, args: Any, kwargs: Any) -> Any:
        if not tracer.seeded:
            return NotImplemented
        info = op_info(func)
        given = {name: bind(info, args, kwargs, name, i) for i, name in enumerate(info.names)}
        given = {name: _default(func, i) if v is None else v for i, (name, v) in enumerate(given.items())}
        target = args[0] if info.written else None
        spec = infer(func, args, kwargs)  # where there are numbers, it asks whether the operator takes them
        spec = tracer.spec(target) if target is not None else spec
        if given.get("generator") is not None or not spec.dtype.is_floating_point:
            return NotImplemented

        def draw(kind: str, dtype: torch.dtype | None = None) -> tuple[Any, TensorSpec]:
            return _draw(tracer, kind, spec, func, args, kwargs, dtype)

        node, made = rule(tracer, draw, spec, given)
        if made.dtype != spec.dtype:
            node, made = tracer.emit(aten._to_copy.default, (node,), {"dtype": spec.dtype})
        if target is None:
            return tracer.wrap(node, made, spec)
        tracer.write(target, node, made)
        return target

    return handle


def _default(func: Any, position: int) -> Any:
    argument = func._schema.arguments[position]
    return argument.default_value if argument.has_default_value() else None


def _draw(
    tracer: Draws, kind: str, spec: TensorSpec, func: Any, args: Any, kwargs: Any, dtype: torch.dtype | None = None
) -> tuple[Any, TensorSpec]:
    """Numbers of the result's shape, by default in float32 (float64 for doubles)."""
    dtype = dtype or (torch.float64 if spec.dtype == torch.float64 else torch.float32)
    offset = tracer.counter_of(func, args, kwargs, counters(spec.numel(), dtype))
    return tracer.emit(
        getattr(torch.ops.quintet, kind).default,
        (list(spec.shape), tracer.read(tracer.seed(spec.device)), offset),
        {"dtype": dtype, "device": spec.device},
    )


@_handles("bernoulli_.float", "bernoulli.p")
def _bernoulli(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    return tracer.emit(aten.lt.Scalar, (draw("random_uniform")[0], given["p"]), {})


@_handles("bernoulli.default")
def _bernoulli_of(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    p, _ = tracer.emit(torch.ops.quintet.probabilities.default, (tracer.read(given["self"]),), {})
    return tracer.emit(aten.lt.Tensor, (draw("random_uniform")[0], p), {})


def _native_dropout(tracer: Draws, func: Any, args: Any, kwargs: Any) -> Any:
    """``(input * mask / (1 - p), mask)``: what dropout is on a GPU."""
    value, p, train = args
    if not tracer.seeded or train is False or not 0 < p < 1:
        return NotImplemented
    spec = tracer.spec(value)
    drawn, _ = _draw(tracer, "random_uniform", spec, func, args, kwargs)
    node, made = tracer.emit(aten.ge.Scalar, (drawn, p), {})
    mask = tracer.wrap(node, made, infer(func, args, kwargs)[1])
    kept = tracer.pure(aten.mul.Tensor, (value, mask), {})
    return tracer.pure(aten.mul.Scalar, (kept, 1.0 / (1.0 - p)), {}), mask


HANDLERS[aten.native_dropout.default] = _native_dropout


@_handles("rand.default", "rand_like.default")
def _rand(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    return draw("random_uniform", spec.dtype)  # of as many bits as it has: those of others could be rounded to 1


@_handles("randn.default", "randn_like.default")
def _randn(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    return draw("random_normal")


@_handles("uniform_.default", "uniform.default")
def _uniform(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    low, high = given["from"], given["to"]
    node, _ = tracer.emit(aten.mul.Scalar, (draw("random_uniform")[0], high - low), {})
    node, made = tracer.emit(aten.add.Scalar, (node, low), {})
    if made.dtype != spec.dtype:
        node, made = tracer.emit(aten._to_copy.default, (node,), {"dtype": spec.dtype})
    reached, _ = tracer.emit(aten.ge.Scalar, (node, high), {})  # by rounding; then it is the low end, as in eager
    return tracer.emit(aten.where.ScalarSelf, (reached, low, node), {})


@_handles("normal_.default", "normal_functional.default")
def _normal(tracer: Draws, draw: Any, spec: TensorSpec, given: dict[str, Any]) -> Any:
    node, _ = tracer.emit(aten.mul.Scalar, (draw("random_normal")[0], given["std"]), {})
    return tracer.emit(aten.add.Scalar, (node, given["mean"]), {})
