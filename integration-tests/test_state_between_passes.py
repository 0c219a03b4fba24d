"""The backward of an ``autograd.Function`` reads the program's state when it runs, not what it was in the forward pass."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch

import compile_api

SCALE = 2.0
REBOUND = 2.0
TABLE = {"by": 2.0, "also": (1, 2)}
ITEMS = [2.0, 3.0]
SETTINGS = SimpleNamespace(by=2.0)
WEIGHT = torch.tensor([2.0, 3.0, 4.0])
THIS = sys.modules[__name__]


def helper(g):
    return g * 2


def with_default(g, by=2.0):
    return g * by


def with_attribute(g):
    return g * with_attribute.by


with_attribute.by = 2.0


def rebind(value):
    global REBOUND
    REBOUND = value


class Class:
    by = 2.0


def function_of(backward):
    """A program of an ``autograd.Function`` that doubles in its forward, with a backward of its own."""
    methods = {
        "forward": staticmethod(lambda ctx, x: x * 2),
        "backward": staticmethod(lambda ctx, g: backward(g)),
    }
    made = type("Doubles", (torch.autograd.Function,), methods)
    return lambda x: made.apply(x)


class OfArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, held):
        ctx.held = held
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.held.by, None


class OfClass(torch.autograd.Function):
    by = 2.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.size, ctx.text, ctx.pair, ctx.none = x.shape[0], "text", (1.0, x.shape), None
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.text == "text" and ctx.pair[1] == x.shape and ctx.none is None
        return g * OfClass.by * x * ctx.size


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, "text", x.sin()

    @staticmethod
    def backward(ctx, first, text, second):
        return (first + second * 3) * SCALE


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x * weight

    @staticmethod
    def backward(ctx, g):
        return g * ctx.weight.exp().sin(), None


def cell():
    by = 2.0

    def backward(g):
        return g * by

    def change(value):
        nonlocal by
        by = value

    return function_of(backward), change


OF_CELL, change_cell = cell()


def set_on(owner, name, value):
    """What sets an attribute, and gives what sets it back."""

    def change():
        before = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, before)

    return change


def put(container, key, value):
    def change():
        before = container[key]
        container[key] = value
        return lambda: container.__setitem__(key, before)

    return change


def called(function, value, before):
    def change():
        function(value)
        return lambda: function(before)

    return change


def write(tensor):
    def change():
        before = tensor.clone()
        tensor.mul_(3)
        return lambda: tensor.copy_(before)

    return change


def defaults():
    before = with_default.__defaults__
    with_default.__defaults__ = (3.0,)
    return lambda: setattr(with_default, "__defaults__", before)


GLOBAL, CALLS, MODULE = function_of(lambda g: g * SCALE), function_of(lambda g: helper(g)), function_of(
    lambda g: g * THIS.SCALE
)
#: Name: (the program, what changes, the reason for which the region ends; None where it is captured).
CASES = {
    "a global number": (GLOBAL, set_on(THIS, "SCALE", 3.0), None),
    "the sign of its zero": (GLOBAL, set_on(THIS, "SCALE", -0.0), None),
    "a global number by its module": (MODULE, set_on(THIS, "SCALE", 3.0), None),
    "a global number and two results": (lambda x: Several.apply(x)[::2], set_on(THIS, "SCALE", 3.0), None),
    "one that a function sets": (
        function_of(lambda g: g * REBOUND), called(rebind, 3.0, 2.0), "'REBOUND', which a function sets anew",
    ),
    "a table": (function_of(lambda g: g * TABLE["by"]), put(TABLE, "by", 3.0), None),
    "a list": (function_of(lambda g: g * ITEMS[0]), put(ITEMS, 0, 3.0), None),
    "a function": (CALLS, set_on(THIS, "helper", lambda g: g * 3), None),
    "a function's default": (function_of(lambda g: with_default(g)), defaults, None),
    "a function's attribute": (function_of(lambda g: with_attribute(g)), set_on(with_attribute, "by", 3.0), None),
    "a class's attribute": (lambda x: OfClass.apply(x), set_on(OfClass, "by", 3.0), None),
    "another class's attribute": (function_of(lambda g: g * Class.by), set_on(Class, "by", 3.0), None),
    "a variable around it": (OF_CELL, called(change_cell, 3.0, 2.0), None),
    "a global object": (
        function_of(lambda g: g * SETTINGS.by), set_on(SETTINGS, "by", 3.0), "SETTINGS, an object of type",
    ),
    "an argument's attribute": (lambda x: OfArgument.apply(x, SETTINGS), set_on(SETTINGS, "by", 3.0), "'held' of its"),
    "a global tensor": (function_of(lambda g: g * WEIGHT), set_on(THIS, "WEIGHT", -WEIGHT), "tensor 'WEIGHT'"),
    "a global tensor that is written": (function_of(lambda g: g * WEIGHT), write(WEIGHT), "tensor 'WEIGHT'"),
    "a tensor in its context": (lambda x: Kept.apply(x, WEIGHT), write(WEIGHT), None),
    "one of its data": (lambda x: Kept.apply(x, WEIGHT), write(WEIGHT.data), None),
}  # fmt: skip


def gradient(call, change, around=lambda y: y, **kwargs):
    """The gradient of a call's results where something changes between the passes."""
    x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
    results = call(x)
    undo = change()
    try:
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum(around(y).sum() for y in results), x, **kwargs)[0]
    finally:
        undo()


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_changed_between_the_passes(name, backend):
    program, change, reason = CASES[name]
    compiled = compile_api.compile(program, backend=backend)
    for _ in range(2):
        for around in (lambda y: y, torch.sin):
            for one in (change, lambda: lambda: None):
                found, wanted = gradient(compiled, one, around), gradient(program, one, around)
                assert torch.equal(found.signbit(), wanted.signbit())
                torch.testing.assert_close(found, wanted)
    breaks = [each.reason for each in compiled.report().breaks]
    assert not breaks if reason is None else any(reason in each for each in breaks), breaks


@pytest.mark.parametrize("name", ["a global number", "a class's attribute", "a global number and two results"])
def test_second_derivatives(name):
    program, change, _ = CASES[name]
    compiled = compile_api.compile(program)

    def second(call):
        return gradient(call, change, torch.sin, create_graph=True)

    found, wanted = second(compiled), second(program)
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad == wanted.requires_grad


def test_some_inputs_alone():
    """A region with several nodes of inputs."""

    def program(x, y):
        return GLOBAL(x).sin(), y * 3

    def gradients(call):
        x, y = (torch.ones(3, requires_grad=True) * 2 for _ in range(2))
        first, second = call(x, y)
        undo = set_on(THIS, "SCALE", 5.0)()
        try:
            return torch.autograd.grad(first.sum() + second.sum(), (x, y))
        finally:
            undo()

    torch.testing.assert_close(gradients(compile_api.compile(program)), gradients(program))


def test_changed_in_the_region():
    """What the region changes after the call is there when the backward runs, inside of the region too."""

    def program(x):
        first = function_of_class(x)
        Class.by = 5.0
        (inside,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        return first.sin(), inside

    function_of_class = function_of(lambda g: g * Class.by)
    found = []
    for call in (compile_api.compile(program), program):
        Class.by = 2.0
        x = torch.ones(3, requires_grad=True)
        result, inside = call(x)
        found.append((*torch.autograd.grad(result.sum(), x), inside))
    Class.by = 2.0
    torch.testing.assert_close(*found)


def test_a_context_that_the_region_changes():
    def program(x):
        held = [2.0]
        y = OfList.apply(x, held)
        held[0] = 3.0
        return y.sin()

    class OfList(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, held):
            ctx.held = held
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * ctx.held[0], None

    compiled = compile_api.compile(program)
    torch.testing.assert_close(gradient(compiled, lambda: lambda: None), gradient(program, lambda: lambda: None))
    assert compiled.report().breaks


def test_an_error_where_there_can_be_no_second_run():
    """Nothing is wrong in silence: where eager's backward pass cannot be had, the error says what has changed."""
    compiled = compile_api.compile(lambda x: GLOBAL(x.add_(1)))
    for changes in (False, True):
        x = torch.ones(3, requires_grad=True)
        result = compiled(x * 1)
        undo = set_on(THIS, "SCALE", 7.0)() if changes else lambda: None
        try:
            if changes:
                with pytest.raises(RuntimeError, match=r"'SCALE', which .* changed after .* writes to its in"):
                    result.sum().backward()
            else:
                result.sum().backward()
        finally:
            undo()
        assert x.grad is None if changes else torch.equal(x.grad, torch.full((3,), 2.0))
    assert not compiled.report().breaks and not compiled.report().fallbacks


#: What ordinary backwards read: all of it stays in one graph.
ORDINARY = {
    "torch and math": lambda g: torch.sin(g) * math.pi + math.sqrt(2.0),
    "torch.nn.functional": lambda g: torch.nn.functional.gelu(g),
    "a helper and a number": lambda g: helper(g) * SCALE,
    "a table and a class": lambda g: g * TABLE["by"] + len(TABLE["also"]) * Class.by,
    "a type": lambda g: g.to(torch.float64).to(torch.float32) * float(isinstance(g, torch.Tensor)),
    "a function inside": lambda g: (lambda other: other * 2)(g),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_backwards_are_captured(name):
    program = function_of(ORDINARY[name])
    compiled = compile_api.compile(lambda x: program(x).sin(), fullgraph=True)
    torch.testing.assert_close(
        gradient(compiled, lambda: lambda: None), gradient(lambda x: program(x).sin(), lambda: lambda: None)
    )
