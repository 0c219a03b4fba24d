"""After calls in which nothing had changed, so that guards are compared as memory, every change is still seen.

A stack of modules is called until its guards rest on a trail; then each kind of change is made at each depth, the
compiled module is compared with eager, the change is taken back, and it is compared again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo_capture
from dynamo_capture import optimize
from prims.options import Options
from prims.report import Report

FACTOR = 1.25
_DEPTHS = range(4)
Undo = Callable[[], object]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Level(nn.Module):
    scale = 0.5

    def __init__(self, below: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.randn(3))
        self.gain = 1.5
        self.table = {"bias": 0.25, "parts": (1.0, 2.0)}
        self.child = Level(below - 1) if below else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x.to(self.linear.weight.dtype)) * self.scale * self.gain
        y = scaled(y) + self.shift + self.table["bias"] * self.table["parts"][1]
        if self.training:
            y = y - 1
        return y if self.child is None else self.child(y)


class Negated(Level):
    """A subclass of the same layout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


class Held:
    """Sets an entry of a dict, or deletes it, and puts it back."""

    def __init__(self, table: Any, key: str) -> None:
        self.table, self.key, self.old = table, key, table.get(key, Held)

    def set(self, value: Any) -> Undo:
        self.table[self.key] = value
        return self.undo

    def drop(self) -> Undo:
        del self.table[self.key]
        return self.undo

    def undo(self) -> None:
        if self.old is Held:
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = self.old


def attribute(owner: Any, name: str, value: Any) -> Undo:
    old = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, old)


def class_attribute(name: str, value: Any) -> Undo:
    old = vars(Level)[name]
    setattr(Level, name, value)
    return lambda: setattr(Level, name, old)


def deleted_parameter(level: Level) -> Undo:
    old = level.linear.bias
    del level.linear.bias
    return lambda: level.linear.register_parameter("bias", old)


def data(tensor: torch.Tensor, new: torch.Tensor) -> Undo:
    old = tensor.data
    tensor.data = new
    return lambda: setattr(tensor, "data", old)


def stored(tensor: torch.Tensor, new: torch.Tensor) -> Undo:
    old = tensor.detach().clone()
    with torch.no_grad():
        tensor.set_(new)

    def undo() -> None:
        with torch.no_grad():
            tensor.set_(old)

    return undo


def converted(level: Level, dtype: torch.dtype) -> Undo:
    level.to(dtype)
    return lambda: level.to(torch.float32)


def hooked(level: Level) -> Undo:
    return level.linear.register_forward_hook(lambda module, args, out: out * 3).remove


def rebound(name: str, value: Any) -> Undo:
    return Held(globals(), name).set(value)


def whole_dict(level: Level) -> Undo:
    old = level.__dict__
    level.__dict__ = dict(old, gain=2.75)

    def undo() -> None:
        level.__dict__ = old

    return undo


def restrided(level: Level) -> Undo:
    """The weight with other strides, of the same sizes."""
    return data(level.linear.weight, level.linear.weight.data.t().contiguous().t())


CHANGES: dict[str, Callable[[Level], Undo]] = {
    "setattr": lambda m: attribute(m, "gain", -2.0),
    "setattr of another type": lambda m: attribute(m, "gain", 2),
    "setattr of a tensor": lambda m: attribute(m, "gain", torch.tensor([1.0, 2.0, 3.0])),
    "setattr that hides the class's": lambda m: Held(m.__dict__, "scale").set(9.0),
    "delattr": lambda m: Held(m.__dict__, "gain").drop(),
    "delattr of a buffer": lambda m: Held(m._buffers, "shift").drop(),
    "delattr of a parameter": deleted_parameter,
    "parameter is None": lambda m: Held(m.linear._parameters, "bias").set(None),
    "class": lambda m: attribute(m, "__class__", Negated),
    "__dict__ entry": lambda m: Held(m.__dict__, "gain").set(4.0),
    "whole __dict__": whole_dict,
    "_parameters entry": lambda m: Held(m.linear._parameters, "weight").set(nn.Parameter(torch.randn(3, 3))),
    "_parameters, of another class": lambda m: Held(m.linear.__dict__, "_parameters").set(
        OrderedDict(m.linear._parameters, bias=None)
    ),
    "_buffers entry": lambda m: Held(m._buffers, "shift").set(torch.randn(3)),
    "a dict's entry": lambda m: Held(m.table, "bias").set(8.0),
    "a dict's new entry before the old": lambda m: Held(m.__dict__, "table").set({"new": 1, **m.table, "bias": 1.0}),
    "a tuple in a dict": lambda m: Held(m.table, "parts").set((1.0, -5.0)),
    "class attribute": lambda m: class_attribute("scale", 3.0),
    "class's method": lambda m: class_attribute("forward", lambda self, x: x * 2),
    "class's call": lambda m: attribute(nn.Linear, "forward", lambda self, x: x + self.bias),
    "method in the instance": lambda m: Held(m.__dict__, "forward").set(lambda x: x + 5),
    "parameter by .data": lambda m: data(m.linear.weight, torch.randn(3, 3)),
    "parameter by .data, strides": restrided,
    "parameter by .data, type": lambda m: data(m.linear.weight, torch.randn(3, 3).double()),
    "parameter by set_": lambda m: stored(m.linear.bias, torch.randn(3)),
    "buffer by set_, size": lambda m: stored(m.shift, torch.randn(2, 3)),
    "parameter in place": lambda m: data(m.linear.bias, m.linear.bias.data + 1),
    "requires_grad_": lambda m: [m.linear.weight.requires_grad_(False)] and (lambda: m.linear.weight.requires_grad_()),
    "requires_grad_ of a buffer": lambda m: [m.shift.requires_grad_()] and (lambda: m.shift.requires_grad_(False)),
    "half": lambda m: converted(m, torch.float16),
    "double": lambda m: converted(m, torch.float64),
    "training": lambda m: attribute(m, "training", False),
    "hook": hooked,
    "module": lambda m: attribute(m, "linear", nn.Linear(3, 3)),
    "module of another class": lambda m: attribute(m, "linear", nn.Sequential(OrderedDict(weight=nn.Linear(3, 3)))),
    "child removed": lambda m: attribute(m, "child", None),
    "global": lambda m: rebound("FACTOR", -3.0),
    "global function": lambda m: rebound("scaled", lambda x: x - 1),
    "global function's code": lambda m: attribute(scaled, "__code__", (lambda x: x * 7).__code__),
}


def outcome(module: Callable[..., torch.Tensor], x: torch.Tensor, parameters: list[nn.Parameter]) -> Any:
    """The result and the parameters' gradients, or the error."""
    try:
        out = module(x)
        wanted = [p for p in parameters if p.requires_grad]
        gradients = torch.autograd.grad(out.sum(), wanted, allow_unused=True) if out.requires_grad else ()
    except Exception as error:
        return type(error)
    return out, out.requires_grad, gradients


def check_same(compiled: Any, model: Level, x: torch.Tensor, when: str) -> None:
    ours, eager = (outcome(module, x, list(model.parameters())) for module in (compiled, model))
    if isinstance(eager, type):
        assert ours is eager, f"{when}: {ours}, eager raises {eager}"
        return
    assert not isinstance(ours, type), f"{when}: raises {ours}"
    assert ours[1] == eager[1] and ours[0].dtype == eager[0].dtype, when
    torch.testing.assert_close(ours[0], eager[0], msg=lambda text: f"{when}: {text}")
    for got, expected in zip(ours[2], eager[2], strict=True):
        torch.testing.assert_close(got, expected, msg=lambda text: f"{when}, a gradient: {text}")


@pytest.mark.parametrize("depth", _DEPTHS)
def test_changes_after_clean_checks(depth: int) -> None:
    torch.manual_seed(depth)
    model = Level(len(_DEPTHS) - 1)
    x = torch.randn(2, 3)
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any, **options: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    level = model
    for _ in range(depth):
        level = level.child
    for name, change in CHANGES.items():
        dynamo_capture.reset()
        compiled = optimize(model, backend, options=Options(recompile_limit=64), report=Report())
        graphs.clear()
        for _ in range(4):
            check_same(compiled, model, x, f"{name}: before")
        assert len(graphs) == 1, f"{name}: {len(graphs)} captures of what does not change"
        undo = change(level)
        check_same(compiled, model, x, f"{name} at depth {depth}")
        check_same(compiled, model, x, f"{name} at depth {depth}, again")
        undo()
        for _ in range(3):
            check_same(compiled, model, x, f"{name} at depth {depth}, taken back")
