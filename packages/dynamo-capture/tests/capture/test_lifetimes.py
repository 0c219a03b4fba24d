"""What is compiled dies with its last user, and keeps nothing of the program's alive; whose exceptions are seen."""

from __future__ import annotations

import collections
import contextlib
import gc
import traceback
import weakref

import pytest
import torch
from torch import nn

import dynamo_capture


def compiled(fn):
    return dynamo_capture.optimize(fn, dynamo_capture.supports_dynamic_shapes(lambda gm, inputs: gm.forward))


def test_arguments_are_not_kept():
    def fn(x, xs, table):
        y = x * 2 + xs[0]
        dynamo_capture.graph_break()
        return y + table["a"]

    c = compiled(fn)
    x, a, b = torch.randn(1000), torch.randn(1000), torch.randn(1000)
    alive = [weakref.ref(t) for t in (x, a, b)]
    c(x, [a], {"a": b})
    del x, a, b
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]


def test_results_and_intermediates_are_not_kept():
    c = compiled(lambda x: [x * 2 + i for i in range(3)])
    alive = [weakref.ref(t) for t in c(torch.randn(10))]
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


WALKS = {
    "a dict": (dict, lambda x: {"a": x}, lambda held: held.items()),
    "an ordered dict": (collections.OrderedDict, lambda x: {"a": x}, lambda held: held.values()),
    "a list": (list, lambda x: [x, x], iter),
    "a list backwards": (list, lambda x: [x, x], reversed),
    "a tuple": (tuple, lambda x: (x, x), iter),
}


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", WALKS)
def test_what_was_walked_does_not_wait_for_the_collector(name, breaks):
    """A walk refers to what it walks: it must not refer to itself."""
    cls, make, walk = WALKS[name]
    kind = type("Kind", (cls,), {})

    def fn(x, held):
        steps = walk(held)
        for one in steps:
            x = x + (one[1] if type(one) is tuple else one)
            if breaks:
                dynamo_capture.graph_break()
        return x

    c = compiled(fn)
    c(torch.randn(100), kind(make(torch.randn(100))))
    gc.collect()
    gc.disable()
    try:
        for size in (100, 50, 25):  # a capture or two among them
            big = torch.randn(size)
            alive = weakref.ref(big)
            c(torch.randn(size), kind(make(big)))
            del big
            assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("breaks", [False, True])
def test_modules_are_not_kept(breaks):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(2):
                x = self.a(x).relu()
                if breaks:
                    dynamo_capture.graph_break()
            return self.b(x)

    net = Net()
    c = compiled(net)
    c(torch.randn(2, 4))
    alive = [weakref.ref(o) for o in (net, net.a, net.a.weight, net.b.bias)]
    del net, c
    gc.collect()
    assert [ref() for ref in alive] == [None] * 4


def test_a_module_dies_before_the_function_that_was_compiled():
    def fn(module, x):
        return module(x) + 1

    c = compiled(fn)
    alive = []
    for _ in range(3):
        module = nn.Linear(4, 4)
        alive.append(weakref.ref(module.weight))
        c(module, torch.randn(2, 4))
    del module
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


def test_compiled_functions_die():
    def make():
        big = torch.randn(1000)

        def fn(x):
            return x + big

        return fn, weakref.ref(big)

    fn, big = make()
    c = compiled(fn)
    c(torch.randn(1000))
    function = weakref.ref(fn)
    del fn, c
    gc.collect()
    assert function() is None and big() is None


def test_exceptions_keep_type_message_and_lines(capture):
    class Mine(Exception):
        pass

    def helper(x, n):
        if n == 3:
            raise Mine("three", n)
        return x.reshape(n, 2)

    def fn(x, n):
        y = x + 1
        return helper(y, n) * 2

    def outcome(call, n):
        try:
            call(torch.ones(4), n)
        except Exception as error:
            lines = traceback.extract_tb(error.__traceback__)
            return type(error), error.args, [(e.name, e.lineno) for e in lines if e.filename == __file__][1:]
        return None

    c = capture(fn, strict=False)
    for n in (2, 3, 5, 3, 2):
        assert outcome(c, n) == outcome(fn, n)
    assert outcome(fn, 3)[0] is Mine and outcome(fn, 5)[0] is RuntimeError


def test_code_maps_forget():
    from dynamo_capture.codemap import CodeMap

    kept = CodeMap()
    codes = [compile("x + 1", "same", "eval") for _ in range(3)]
    assert codes[0] == codes[1] and codes[0] is not codes[1]
    for i, code in enumerate(codes):
        kept[code] = i
    assert [kept.get(code) for code in codes] == [0, 1, 2], "by identity, though they are equal"
    kept[codes[1]] = 7
    del codes[0], code
    assert len(kept) == 2 and kept.get(codes[0]) == 7
    kept.clear()
    assert kept.get(codes[0]) is None
    del codes
    assert len(kept) == 0


def test_a_capture_lets_go_of_everything():
    """Nothing of a capture is left but what it gave, even where values refer to each other."""
    from dynamo_capture.graph_builder import GraphBuilder
    from dynamo_capture.interpreter.state import FrameState

    def fn(x, xs):
        def again(n):
            return x if n == 0 else again(n - 1) + 1

        loop = [x]
        loop.append(loop)
        dynamo_capture.graph_break()
        return again(2) + xs[0]

    c = compiled(fn)
    gc.collect()
    gc.disable()
    try:
        x, xs = torch.ones(2), [torch.ones(2)]
        reference = weakref.ref(xs[0])
        assert c(x, xs).tolist() == [4, 4]
        del xs
        assert reference() is None
        assert not [o for o in gc.get_objects() if isinstance(o, (GraphBuilder, FrameState)) and o.__class__.__dict__
                    and getattr(o, "tx", None) is not None]  # fmt: skip
    finally:
        gc.enable()


class Held:
    left = 0


def raises(x, held):
    y = x * 2
    raise ValueError(held, y)


def raises_natively(x, held):
    y = x * 2
    return {}["missing", y.ndim]


def raises_past_finally(x, held):
    y = x * 2
    try:
        return [held, y][7]
    finally:
        held.left = 1


def raises_from_another(x, held):
    y = x * 2
    try:
        raise KeyError("first")
    except KeyError as error:
        raise TypeError("second", y.ndim) from error


@pytest.mark.parametrize("fn", [raises, raises_natively, raises_past_finally, raises_from_another])
def test_what_a_call_that_raises_was_given_dies_with_the_exception(fn):
    compiled = dynamo_capture.optimize(fn, lambda gm, inputs: gm.forward)
    for _ in range(3):
        held = Held()
        died = weakref.ref(held)
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(Exception):
                compiled(torch.ones(2), held)
            del held
            assert died() is None
        finally:
            gc.enable()
    assert compiled.__quintet_optimizer__.report.graphs
