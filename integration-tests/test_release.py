"""What a first call was given, and what was compiled, dies when the program drops it, as in eager: by reference counts.

The cyclic collector is off while a program runs, is compiled and is dropped; a weak reference then tells. Where eager
itself leaves a cycle, so may we: every program is first run without being compiled.
"""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore::compile_api.CompileWarning", "ignore::UserWarning")

BACKENDS = ("eager", "aot_eager", "inductor")
PROGRAMS = []


def program(fn):
    PROGRAMS.append(fn)
    return fn


@program
def straight(x):
    return x.sin() + 1


@program
def sizes(x):
    return x.reshape(x.shape[0], 1) * x.shape[0]


@program
def nothing_used(x):
    return None


@program
def breaks(x):
    y = x * 2
    print(end="")
    return y + x


@program
def breaks_in_a_loop(x):
    for i in range(3):
        x = x + i
        print(end="")
    return x


@program
def breaks_in_a_callee(x):
    def callee(y):
        z = y * 2
        print(end="")
        return z

    return callee(x) + 1


@program
def starts_again(x):
    """The break is found in a call, after changes to objects: the capture is repeated up to it."""
    table = {"a": x * 2}

    def callee():
        table["b"] = [table["a"]]
        print(end="")

    callee()
    return table["b"][0] + 1


@program
def branches(x):
    if x.sum() > 100:
        return x * 3
    return x * 2


@program
def reads_data(x):
    return x * 2 if x.sum().item() > 100 else x + 1


@program
def generators(x):
    def values():
        yield x
        yield x * 2

    first = values()
    next(first)
    return sum(values()) + next(first)


@program
def comprehensions(x):
    return {i + 1: row * 2 for i, row in enumerate([x + i for i in range(3)])}[1]


@program
def closures(x):
    scale = 2

    def inner(y):
        nonlocal scale
        scale += 1
        return y * scale + x

    return inner(x)


class Node:
    def __init__(self, value):
        self.value = value
        self.other = None


@program
def objects(x):
    a, b = Node(x), Node(x * 2)
    a.other = b
    b.value = b.value + a.value
    del a.value
    return a.other.value


@program
def catches(x):
    try:
        x.no_such_attribute  # noqa: B018
    except AttributeError as error:
        return x * len(error.args)


@program
def catches_from_a_callee(x):
    def callee(y):
        raise ValueError(y)

    try:
        callee(1)
    except ValueError as error:
        return x + error.args[0]


@program
def raises(x):
    y = x + 1
    if y.ndim == 1:
        raise ValueError("the program's own")
    return y


@program
def raises_in_an_operator(x):
    return torch.cat([x, x.unsqueeze(0)])


@program
def under_no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y + x


@program
def in_place(x):
    return x.clone().add_(1).mul_(2)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


@program
def custom_backward(x):
    return Sine.apply(x) * 2


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new_is_collected():
    """A collection before each program looks at what the programs made, and not at all that was imported."""
    gc.collect()
    gc.freeze()


def alive_after(fn, grad):
    """Whether an input is alive after ``fn`` has run (and trained) on it and everything was dropped."""
    gc.collect()
    gc.disable()
    try:
        x = torch.rand(4, requires_grad=grad)
        reference = weakref.ref(x)
        try:
            out = fn(x)
            if grad and isinstance(out, torch.Tensor) and out.requires_grad:
                out.sum().backward()
            del out
        except (ValueError, RuntimeError, compile_api.errors.QuintetError):
            pass
        del x
        return reference() is not None
    finally:
        gc.enable()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("backend", [*BACKENDS, "fullgraph"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_first_inputs(fn, backend, grad):
    assert not alive_after(fn, grad)
    settings = {"fullgraph": True, "backend": "eager"} if backend == "fullgraph" else {"backend": backend}
    compiled = compile_api.compile(fn, **settings)
    assert not alive_after(compiled, grad)
    assert not alive_after(compiled, grad), "a later call"


def test_backends_that_fail():
    def failing(gm, inputs):
        raise RuntimeError("not today")

    assert not alive_after(compile_api.compile(straight, backend=failing), False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x, breaks):
        self.calls += 1
        x = self.first(x)
        if breaks:
            print(end="")
        return self.norm(x).relu()


@pytest.mark.parametrize("breaks_", [False, True], ids=["whole", "breaks"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("backend", BACKENDS)
class TestModules:
    def run(self, training, compiled, *args):
        out = compiled(*args)
        if training:
            out.sum().backward()

    def test_a_compiled_module(self, backend, training, breaks_):
        gc.collect()
        gc.disable()
        try:
            net = Net().train(training)
            compiled = compile_api.compile(net, backend=backend)
            x = torch.rand(3, 4)
            self.run(training, compiled, x, breaks_)
            alive = [weakref.ref(o) for o in (net, net.first, net.first.weight, net.norm.running_mean)]
            del net, compiled
            assert [ref() for ref in alive] == [None] * 4
        finally:
            gc.enable()

    def test_a_module_given_to_a_function(self, backend, training, breaks_):
        gc.collect()
        gc.disable()
        try:
            compiled = compile_api.compile(lambda net, x: net(x, breaks_) + 1, backend=backend)
            net, x = Net().train(training), torch.rand(3, 4)
            self.run(training, compiled, net, x)
            alive = [weakref.ref(o) for o in (net, net.first, net.first.weight, net.norm.running_mean)]
            del net
            assert [ref() for ref in alive] == [None] * 4
        finally:
            gc.enable()


SOURCE = """
class Scale(list):
    pass

scales = Scale([2, 3])

def helper(x):
    {line}
    return x * scales[0]

def f(x):
    def inner(y):
        return y + len(scales)
    for i in range(2):
        x = inner(x) + i
        {line}
    return helper(x)
"""


@pytest.mark.parametrize("line", ["pass", "print(end='')"], ids=["whole", "breaks"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_and_their_code(backend, line):
    """A function that is dropped takes its code, what was compiled of it, and what the guards refer to along."""
    graphs = []

    def watched(gm, inputs):
        compiled = compile_api.lookup_backend(backend)(gm, inputs)
        graphs.append(weakref.ref(gm))
        return compiled

    gc.collect()
    gc.disable()
    try:
        names: dict = {}
        exec(SOURCE.format(line=line), names)
        expected = names["f"](torch.ones(3))
        compiled = compile_api.compile(names["f"], backend=watched)
        for size in (3, 4, 5):
            out = compiled(torch.ones(size))
            assert out.tolist() == [expected[0].item()] * size
        functions = [names["f"], names["helper"]]
        alive = [weakref.ref(o) for fn in functions for o in (fn, fn.__code__)] + [weakref.ref(names["scales"])]
        del functions, compiled, out
        names.clear()
        assert [ref() for ref in alive] == [None] * 5
    finally:
        gc.enable()
    gc.collect()
    assert graphs and all(ref() is None for ref in graphs)


def test_identities_of_code_are_used_again():
    """Code that dies gives its identity to another function's: what was remembered of the one is not the other's."""
    seen = set()
    hits = 0
    for i in range(200):
        names: dict = {}
        exec(f"def f(x):\n    y = x * {i}\n    print(end='')\n    return y + {i}", names)
        code = id(names["f"].__code__)
        hits += code in seen
        seen.add(code)
        assert compile_api.compile(names["f"], backend="eager")(torch.ones(2)).tolist() == [2 * i] * 2
        del names
    assert hits
