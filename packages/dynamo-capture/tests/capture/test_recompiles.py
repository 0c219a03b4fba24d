"""A captured graph is used again only where its assumptions hold: never a wrong answer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert a.dtype == b.dtype and a.requires_grad == b.requires_grad


def check(compiled, fn, *args):
    same(compiled(*args), fn(*args))


def test_dtype_shape_stride_requires_grad(capture):
    def fn(x):
        return (x * 2).transpose(0, 1) + 1

    c = capture(fn)
    check(c, fn, torch.randn(3, 4))
    check(c, fn, torch.randn(3, 4))
    assert len(c.graphs) == 1
    check(c, fn, torch.randn(3, 4, dtype=torch.float64))
    check(c, fn, torch.randint(0, 9, (3, 4)))
    check(c, fn, torch.randn(4, 3).t())
    check(c, fn, torch.randn(3, 4, requires_grad=True))
    check(c, fn, torch.randn(5, 4))
    assert len(c.graphs) == 6


def test_grad_mode(capture):
    def fn(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    c = capture(fn)
    x = torch.randn(3, requires_grad=True)
    check(c, fn, x)
    with torch.no_grad():
        check(c, fn, x)
    with torch.inference_mode():
        same(c(x), fn(x))
    check(c, fn, x)


def test_default_dtype(capture):
    def fn(x):
        return x + torch.ones(3)

    c = capture(fn)
    x = torch.ones(3, dtype=torch.float16)
    check(c, fn, x)
    torch.set_default_dtype(torch.float64)
    try:
        check(c, fn, x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast(capture):
    lin = nn.Linear(4, 4)

    def fn(x):
        return lin(x)

    c = capture(fn)
    x = torch.randn(2, 4)
    check(c, fn, x)
    with torch.autocast("cpu", torch.bfloat16):
        check(c, fn, x)
    assert len(c.graphs) == 2


SCALE = 2
TABLE = {"a": 1.0, "b": 2.0}


def test_globals(capture):
    global SCALE

    def fn(x):
        return x * SCALE + TABLE["a"]

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    SCALE = 5
    check(c, fn, x)
    SCALE = 2
    TABLE["a"] = 7.0
    check(c, fn, x)
    TABLE["b"] = 9.0
    n = len(c.graphs)
    check(c, fn, x)
    assert len(c.graphs) == n, "an entry that is not read is not guarded"
    TABLE["a"], TABLE["b"] = 1.0, 2.0


def helper(x):
    return x + 1


def test_redefined_helper(capture):
    global helper

    def fn(x):
        return helper(x) * 2

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    original = helper

    def helper(x):
        return x - 1

    try:
        check(c, fn, x)
    finally:
        helper = original


def test_closure(capture):
    k = 3

    def fn(x):
        return x * k

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    k = 4
    check(c, fn, x)
    assert len(c.graphs) == 2


def test_defaults_and_keyword_defaults(capture):
    def inner(x, k=2, *, j=3):
        return x * k + j

    def fn(x):
        return inner(x)

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    inner.__defaults__ = (5,)
    check(c, fn, x)
    inner.__kwdefaults__ = {"j": 9}
    check(c, fn, x)


class Config:
    scale = 2.0

    def __init__(self):
        self.bias = 1.0

    def apply(self, x):
        return x * self.scale + self.bias


def test_attributes(capture):
    config = Config()

    def fn(x):
        return config.apply(x)

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    config.bias = 2.0
    check(c, fn, x)
    config.scale = 4.0  # shadows the class attribute
    check(c, fn, x)
    del config.scale
    check(c, fn, x)
    config.apply = lambda x: x - 1
    check(c, fn, x)


def test_class_method_replaced(capture):
    class Local(Config):
        def apply(self, x):
            return x + 10

    config = Local()

    def fn(x):
        return config.apply(x)

    c = capture(fn)
    x = torch.randn(3)
    check(c, fn, x)
    Local.apply = lambda self, x: x - 10
    check(c, fn, x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.flag = False

    def forward(self, x):
        y = self.drop(self.lin(x)) * self.scale
        return y.relu() if self.flag else y


def test_module_state(capture):
    net = Net()
    c = capture(net)
    x = torch.randn(64, 4)
    for _ in range(2):
        torch.manual_seed(0)
        got = c(x)
        torch.manual_seed(0)
        same(got, net(x))
    net.eval()
    check(c, net, x)
    net.drop.train()
    torch.manual_seed(0)
    got = c(x)
    torch.manual_seed(0)
    same(got, net(x))
    net.drop.eval()
    net.scale = 3.0
    check(c, net, x)
    net.flag = True
    check(c, net, x)
    net.lin = nn.Linear(4, 4, bias=False)
    check(c, net, x)
    net.lin.register_forward_hook(lambda mod, args, out: out + 1)
    check(c, net, x)
    net.lin.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
    check(c, net, x)


def test_parameter_values_are_not_baked_in(capture):
    net = Net().eval()
    c = capture(net)
    x = torch.randn(2, 4)
    check(c, net, x)
    with torch.no_grad():
        net.lin.weight.add_(1)
    check(c, net, x)
    net.lin.weight.data = torch.zeros(4, 4)
    check(c, net, x)
    net.lin.weight = nn.Parameter(torch.ones(4, 4))
    check(c, net, x)
    assert len(c.graphs) == 1
    net.lin.weight.requires_grad_(False)
    net.lin.bias.requires_grad_(False)
    check(c, net, x)
    assert len(c.graphs) == 2


def test_list_and_dict_arguments(capture):
    def fn(xs, table):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        for key in table:
            total = total * table[key]
        return total

    c = capture(fn)
    a, b = torch.randn(3), torch.randn(3)
    for xs, table in (([a, b], {"k": a}), ([a, b, a], {"k": a}), ([a, b], {"k": a, "j": b}), ([a], {}), ((a, b), {})):
        same(c(xs, table), fn(xs, table))


def test_same_tensor_twice(capture):
    def fn(x, y):
        return x * 2 if x is y else x * 3

    c = capture(fn)
    x, y = torch.randn(3), torch.randn(3)
    same(c(x, x), fn(x, x))
    same(c(x, y), fn(x, y))
    same(c(y, x), fn(y, x))
    same(c(x, x), fn(x, x))


def test_different_then_same_tensor_mutated(capture):
    def fn(x, y):
        x.add_(1)
        return x + y

    c = capture(fn)
    same(c(torch.zeros(3), torch.ones(3)), torch.full((3,), 2.0))
    z = torch.zeros(3)
    same(c(z, z), torch.full((3,), 2.0))
    base = torch.zeros(6)
    got = c(base[:3], base[1:4])
    base2 = torch.zeros(6)
    same(got, fn(base2[:3], base2[1:4]))


def test_same_list_twice(capture):
    def fn(xs, ys, t):
        xs.append(t)
        return t * len(ys)

    c = capture(fn)
    t = torch.ones(3)
    same(c([], [], t), t * 0)
    shared = []
    same(c(shared, shared, t), t * 1)
    assert len(shared) == 1


def test_number_arguments(capture):
    def fn(x, n):
        return x * n

    c = capture(fn)
    x = torch.randn(3)
    for n in (2, 3, 2.0, True, 0, -1, 7, 1, 2.5, float("inf"), 10**12):
        check(c, fn, x, n)
    assert len(c.graphs) <= 9


def test_float_nan_and_zero_sign(capture):
    def fn(x, n):
        return torch.copysign(x, torch.tensor(n))

    c = capture(fn)
    x = torch.ones(3)
    for n in (0.0, -0.0, 0.0):
        check(c, fn, x, n)


def test_type_change(capture):
    def fn(x, other):
        return x + (1 if isinstance(other, str) else 2 if other is None else 3)

    c = capture(fn)
    x = torch.randn(3)
    for other in ("a", None, 5, [1], "a", "b"):
        check(c, fn, x, other)


def test_recompile_limit_then_eager(capture):
    def fn(x, s):
        return x + len(s)

    c = capture(fn, recompile_limit=3)
    x = torch.randn(3)
    for i in range(6):
        check(c, fn, x, "s" * i)
    assert len(c.graphs) == 3
    assert any("limit" in f.reason for f in c.report.fallbacks)
    assert len(c.report.recompiles) == 3
    assert "s" in c.report.recompiles[0].reason


def test_sizes_that_become_symbolic_do_not_use_up_the_limit(capture):
    """Each of these captures serves what the ones before served, and more."""

    def fn(x, y):
        return x.sum() * y

    c = capture(fn, recompile_limit=2)
    for shape, length in (((2, 3), 4), ((5, 3), 4), ((5, 7), 4), ((6, 8), 9), ((7, 9), 10)):
        check(c, fn, torch.randn(shape), torch.randn(length))
    assert len(c.graphs) == 4 and not c.report.fallbacks


def test_unused_arguments_are_not_guarded(capture):
    def inner(x, step):
        return x + 1

    def fn(x, step):
        return inner(x, step)

    c = capture(fn)
    x = torch.randn(3)
    for step in range(5):
        check(c, fn, x, step)
    assert len(c.graphs) == 1


def test_module_counter_compiles_twice(capture):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    net, twin = Counting(), Counting()
    c = capture(net)
    x = torch.randn(3)
    for _ in range(8):
        same(c(x), twin(x))
    assert net.calls == 8
    assert len(c.graphs) <= 4


FLOATS = (0.5, 0.75, 1.25, -2.25, -0.0, 0.0, 1e30, 3.0, 1e-30, 0.5)


def float_programs():
    def arithmetic(x, a):
        return x * (a * 2 + 1) / 3 - a, a * 2

    def attribute(x, a):
        return torch.full((3,), a) + torch.add(x, x, alpha=a), a

    def rounding(x, a):
        return x.clamp(min=min(a, 1.0)), abs(a), -a

    return arithmetic, attribute, rounding


@pytest.mark.parametrize("fn", float_programs(), ids=lambda fn: fn.__name__)
def test_a_float_that_changes_becomes_an_input(capture, fn):
    c = capture(fn)
    x = torch.randn(3)
    for a in FLOATS:
        got, expected = c(x, a), fn(x, a)
        same(got[0], expected[0])
        assert repr(got[1:]) == repr(expected[1:])
    assert len(c.graphs) == 2 and len(c.report.recompiles) == 1


def test_a_float_that_decides_is_guarded_by_the_decision(capture):
    def fn(x, a):
        if a > 0.7:
            return x * a
        return x - a if a else x + 7

    c = capture(fn)
    x = torch.randn(3)
    for a in (0.5, 0.9, 0.8, 0.6, 0.0, -0.0, 0.1, 5.0, float("inf"), -3.5, 0.3):
        check(c, fn, x, a)
    assert len(c.graphs) <= 5
    check(c, fn, x, float("nan"))
    check(c, fn, x, 3)
    check(c, fn, x, True)


def test_a_float_that_is_read_is_specialised(capture):
    def fn(x, a):
        return x * math.exp(a), f"{a:.2f}"

    c = capture(fn)
    x = torch.randn(3)
    for a in (0.5, 0.9, -0.0, 0.0, 0.5, 0.9):
        got, expected = c(x, a), fn(x, a)
        same(got[0], expected[0])
        assert got[1] == expected[1]


def test_a_float_attribute_that_counts(capture):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 0.0

        def forward(self, x):
            self.scale += 0.5
            return x * self.scale

    net = Net()
    c = capture(net)
    x = torch.ones(3)
    for i in range(12):
        same(c(x), torch.full((3,), 0.5 * (i + 1)))
    assert net.scale == 6.0 and len(c.graphs) == 2


def test_a_float_stays_a_constant_where_nothing_is_dynamic(capture):
    c = capture(lambda x, a: x * a, dynamic=False)
    for a in (0.5, 0.9, 1.5):
        same(c(torch.ones(2), a), torch.full((2,), a))
    assert len(c.graphs) == 3


def test_a_number_below_the_least_that_is_symbolic_is_named(capture):
    compiled = capture(lambda x, steps: x + 1 if steps > 0 else x)
    for steps in (9, 8, 7, 0):
        compiled(torch.ones(3), steps)
    assert compiled.report.recompiles[-1].reason.startswith("steps >= 2 [a number that changes]")
