"""Graph breaks, resume functions, skipped frames, and what is told about them."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from torch import nn

import dynamo_capture
from prims.errors import Unsupported, UserError


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_branch_on_data(capture):
    def fn(x, y):
        if x.sum() < 0:
            return -y
        return y

    c = capture(fn)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        y = torch.randn(3)
        same(c(x, y), fn(x, y))


def test_branch_with_or_and(capture):
    def fn(x, y):
        z = x * 2
        if x.sum() > 0 and y.sum() > 0 or not z.max() < 5:
            z = z + 1
        return z * (y if y.min() > 0 else x)

    c = capture(fn)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3) * 4):
        for y in (torch.ones(3), -torch.ones(3)):
            same(c(x, y), fn(x, y))


def test_item_print_numpy(capture, capsys):
    def fn(x):
        y = x * 2
        n = y.sum().item()
        print("n is", n)
        z = torch.from_numpy(y.numpy() + 1)
        return z * n

    c = capture(fn)
    x = torch.ones(3)
    same(c(x), fn(x))
    assert capsys.readouterr().out == "n is 6.0\n" * 2
    assert len(c.graphs) >= 2


def test_break_in_callee(capture):
    def helper(x):
        y = x.sin()
        k = y.sum().item()
        return y * k

    def fn(x):
        return helper(x + 1).cos() + 2

    c = capture(fn)
    x = torch.randn(3)
    same(c(x), fn(x))
    names = [gm.meta["name"] for gm in c.graphs]
    assert any("helper" in n for n in names) and any("resume_in_fn" in n for n in names)


def test_break_in_submodule(capture):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            y = self.lin(x)
            if y.sum() > 1e9:
                y = y * 0
            return self.lin(y)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            return self.lin(self.inner(x)).relu()

    net = Outer()
    c = capture(net)
    x = torch.randn(2, 3)
    for _ in range(2):
        same(c(x), net(x))
    assert c.report.breaks and len(c.graphs) >= 3


def test_stack_values_survive(capture):
    def fn(x, y):
        return torch.add(x * 2, (y + 1) * (x.sum().item()), alpha=2) + [x, y.sum().item()][1]

    c = capture(fn)
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(2):
        same(c(x, y), fn(x, y))


def test_keyword_call_breaks(capture):
    def fn(x):
        y = x + 1
        print("hello", end="!\n", file=sys.stderr)
        return y * 2

    c = capture(fn)
    same(c(torch.ones(2)), torch.full((2,), 4.0))


def test_break_under_no_grad(capture):
    def fn(x, w):
        y = x * w
        with torch.no_grad():
            z = y * 2
            k = z.sum().item()
            z = z + w
            inside = torch.is_grad_enabled()
        assert not inside
        return y + z * k, torch.is_grad_enabled()

    c = capture(fn)
    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    for _ in range(2):
        got, enabled = c(x, w)
        expected, _ = fn(x, w)
        same(got, expected)
        assert enabled and torch.is_grad_enabled()
    (g1,) = torch.autograd.grad(c(x, w)[0].sum(), w)
    (g2,) = torch.autograd.grad(fn(x, w)[0].sum(), w)
    same(g1, g2)


def test_exception_under_no_grad_restores_the_mode(capture):
    def fail(x):
        raise ValueError(f"sum {x.sum().item()}")

    def fn(x):
        with torch.no_grad():
            y = x * 2
            fail(y)
        return y

    c = capture(fn)
    for _ in range(4):
        with pytest.raises(ValueError, match=r"sum 6\.0"):
            c(torch.ones(3, requires_grad=True))
        assert torch.is_grad_enabled()


def test_break_in_try(capture):
    def fn(x, limit):
        log = []
        try:
            y = x * 2
            if y.sum().item() > limit:
                raise RuntimeError("too big")
            y = y + 1
        except RuntimeError as e:
            log.append(str(e))
            y = x - 1
        finally:
            log.append("done")
        return y, log

    c = capture(fn)
    x = torch.ones(3)
    for limit in (1, 100, 1, 100):
        got, log = c(x, limit)
        expected, log2 = fn(x, limit)
        same(got, expected)
        assert log == log2


def test_native_exception_reaches_the_handler(capture):
    def fn(x, table):
        y = x + 1
        try:
            k = int(table)
        except ValueError:
            k = -1
        return y * k

    c = capture(fn)
    x = torch.ones(3)
    for table in ("3", "zzz", "4"):
        same(c(x, table), fn(x, table))

    def through_break(x, path):
        y = x + 1
        try:
            with open(path) as f:
                k = len(f.read())
        except FileNotFoundError:
            k = -1
        return y * k

    c = capture(through_break)
    same(c(x, "/nonexistent/file"), through_break(x, "/nonexistent/file"))
    same(c(x, __file__), through_break(x, __file__))


def test_closures_across_a_break(capture):
    def fn(x):
        k = 2

        def scale(t):
            return t * k

        y = scale(x)
        n = y.sum().item()
        k = 3
        return scale(y) + n

    c = capture(fn)
    x = torch.randn(3)
    for _ in range(2):
        same(c(x), fn(x))


def test_nonlocal_across_a_break(capture):
    def fn(x):
        total = 0

        def add(n):
            nonlocal total
            total += n

        add(1)
        y = x * 2
        add(y.sum().item())
        add(1)
        return y + total

    c = capture(fn)
    x = torch.ones(3)
    for _ in range(2):
        same(c(x), fn(x))


def test_super_after_a_break(capture):
    class Base:
        def scale(self, x):
            return x * 2

    class Derived(Base):
        def run(self, x):
            y = x + 1
            k = y.sum().item()
            return super().scale(y) + k

        def scale(self, x):
            return x * 100

    d = Derived()
    c = capture(d.run)
    x = torch.randn(3)
    for _ in range(2):
        same(c(x), d.run(x))


def test_side_effects_before_a_break_are_visible(capture):
    seen = []

    class Box:
        pass

    box = Box()

    def look(value):
        seen.append((list(value), box.n))

    def fn(x, xs):
        xs.append(1)
        box.n = 7
        y = x + 1
        dynamo_capture.graph_break()
        look(xs)
        xs.append(2)
        return y

    c = capture(fn)
    xs = []
    c(torch.ones(2), xs)
    assert xs == [1, 2] and seen == [([1], 7)]


def test_nothing_runs_twice(capture):
    calls = []

    def note(tag):
        calls.append(tag)
        return 1

    note = dynamo_capture.disable(note)

    def fn(x):
        y = x + note("a")
        y = y * note("b")
        if y.sum() > 0:
            y = y + note("c")
        return y

    c = capture(fn)
    c(torch.ones(3))
    assert calls == ["a", "b", "c"]
    c(torch.ones(3))
    assert calls == ["a", "b", "c"] * 2


def test_disable(capture):
    def inner(x):
        return x * 3

    @dynamo_capture.disable
    def outer(x):
        return inner(x) + 1

    def fn(x):
        return outer(x.sin()).cos()

    c = capture(fn)
    x = torch.randn(3)
    same(c(x), fn(x))
    assert len(c.graphs) == 2
    assert any("disable" in b.reason for b in c.report.breaks)


def test_disable_one_frame(capture):
    def conjugate(z):
        return z.conj().resolve_conj() * 2

    @dynamo_capture.disable(recursive=False)
    def part(a, b):
        return conjugate(torch.complex(a, b))

    def fn(a, b):
        return part(a + 1, b * 2).real + 1

    c = capture(fn)
    a, b = torch.randn(3), torch.randn(3)
    same(c(a, b), fn(a, b))
    assert any("conjugate" in gm.meta["name"] for gm in c.graphs)


def test_fullgraph_names_the_line(capture):
    def fn(x):
        y = x + 1
        if y.sum() > 0:
            return y
        return x

    c = capture(fn, fullgraph=True)
    line = fn.__code__.co_firstlineno + 2
    with pytest.raises(Unsupported, match=f"{__file__}:{line}") as caught:
        c(torch.ones(3))
    assert "if y.sum() > 0:" in str(caught.value)
    assert "hint" in str(caught.value)


def _logs(x):
    logging.getLogger("quintet.test").error("message")
    return x + 1


def _asks_for_a_break(x):
    dynamo_capture.graph_break("here")
    return x + 1


def _reads(x):
    return x * x.sum().item()


def _masks(x):
    return x[x > 0]


def _unique(x):
    return torch.unique(x)


def _disabled(x):
    return DISABLED(x)


DISABLED = dynamo_capture.disable(lambda x: x)


@pytest.mark.parametrize(
    "fn,line,reason,hint",
    [
        (_logs, 1, "input or output (print, files, logging): logging by a handler, ", "Read, write, print or log outside"),
        (_asks_for_a_break, 1, "graph_break() was called: here [QB20]", "Remove the call"),
        (_reads, 1, "data-dependent read of a tensor's value: Tensor.item() [QB02]", "Keep the value a tensor"),
        (_masks, 1, "data-dependent read of a tensor's value: getitem [QB02]", "torch.where or a fixed size"),
        (_unique, 1, "data-dependent read of a tensor's value: unique [QB02]", "torch.where or a fixed size"),
        (_disabled, 1, "call of a function under disable() [QB04]", "Remove the disable()"),
    ],
)
def test_messages_say_what_where_and_what_to_do(capture, fn, line, reason, hint):
    line += fn.__code__.co_firstlineno
    with pytest.raises(Unsupported) as caught:
        capture(fn, fullgraph=True)(torch.ones(3))
    text = str(caught.value)
    assert f"the graph breaks in {fn.__name__}: {reason}" in text
    assert f"at {__file__}:{line} in {fn.__name__}" in text
    assert hint in text.partition("hint: ")[2]


def test_a_message_below_the_level_costs_no_break(capture, caplog):
    logger = logging.getLogger("quintet.test")

    def fn(x):
        logger.debug("size %s", x.shape)
        return x + 1

    c = capture(fn)
    logger.setLevel(logging.WARNING)
    c(torch.ones(3))
    assert not c.report.breaks and not caplog.records
    logger.setLevel(logging.DEBUG)
    try:
        c(torch.ones(3))
    finally:
        logger.setLevel(logging.NOTSET)
    assert [r.getMessage() for r in caplog.records] == ["size torch.Size([3])"]


def test_explain(capture):
    def fn(x):
        y = x + 1
        dynamo_capture.graph_break("now")
        return y * 2

    e = dynamo_capture.explain(fn)(torch.ones(2))
    assert e.graph_count == 2 and e.graph_break_count == 1
    assert f"{__file__}:{fn.__code__.co_firstlineno + 2}" in str(e.breaks[0].where)
    assert 'graph_break("now")' in str(e)
    same(e.result, torch.full((2,), 4.0))
    assert e.guards


def test_a_break_without_operators_before_it_makes_no_graph(capture):
    def fn(x):
        dynamo_capture.graph_break()
        return x + 1

    c = capture(fn)
    c(torch.ones(2))
    assert len(c.graphs) == 1


def test_export_graph():
    envelope = dynamo_capture.export_graph(lambda x: x.sin() + 1, torch.ones(3)).envelope
    assert envelope.dialect == "torch" and len(envelope.op_nodes) == 2
    with pytest.raises(Unsupported):
        dynamo_capture.export_graph(lambda x: x.sum().item(), torch.ones(3))


def test_bad_input():
    with pytest.raises(UserError, match="not callable"):
        dynamo_capture.optimize(3, lambda gm, xs: gm.forward)
    with pytest.raises(UserError, match="not callable"):
        dynamo_capture.optimize(len, 3)


def test_backend_errors_are_the_users(capture):
    def backend(gm, inputs):
        raise KeyError("mine")

    compiled = dynamo_capture.optimize(lambda x: x + 1, backend)
    with pytest.raises(KeyError, match="mine"):
        compiled(torch.ones(2))


def test_user_exceptions_are_the_programs_own(capture):
    def fn(x, n):
        y = x + 1
        if n > 2:
            raise ValueError(f"n is {n}")
        assert n != 2, "two"
        return y[n]

    c = capture(fn)
    x = torch.ones(2)
    for _ in range(5):
        with pytest.raises(ValueError, match="n is 3"):
            c(x, 3)
        with pytest.raises(AssertionError, match="two"):
            c(x, 2)
    same(c(x, 1), fn(x, 1))


def test_errors_of_operators_are_the_programs_own(capture):
    def fn(x, y):
        return x @ y

    c = capture(fn, strict=False)
    with pytest.raises(RuntimeError, match="mat1 and mat2|size|shape"):
        c(torch.ones(2, 3), torch.ones(2, 3))
    same(c(torch.ones(2, 3), torch.ones(3, 2)), fn(torch.ones(2, 3), torch.ones(3, 2)))


def test_no_compiler_of_torch_is_imported():
    import subprocess

    code = (
        "import torch, sys, dynamo_capture as d\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.l = torch.nn.Linear(3, 3)\n"
        "    def forward(self, x):\n"
        "        y = self.l(x).relu()\n"
        "        return y * y.sum().item()\n"
        "m = M()\n"
        "d.optimize(m, lambda gm, xs: gm.forward)(torch.ones(2, 3))\n"
        "bad = [n for n in ('torch._dynamo', 'torch._inductor', 'torch._functorch.aot_autograd') if n in sys.modules]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_break_in_nested_functions_is_listed_once():
    def inner(x):
        y = x.sin()
        dynamo_capture.graph_break()
        return y * 2

    def middle(x):
        return inner(x) + 1

    def outer(x):
        return middle(x) * 3

    explanation = dynamo_capture.explain(outer)(torch.ones(3))
    assert explanation.graph_count > 1
    assert explanation.graph_break_count == len(explanation.report.breaks) == 1
    assert explanation.breaks[0].where.function.endswith("inner")
