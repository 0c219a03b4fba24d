"""Graph breaks inside loops: the rounds run captured, the program's own iterators go on where they were."""

from __future__ import annotations

import itertools

import pytest
import torch

from dynamo_capture import graph_break


def note(value):
    """Breaks the graph."""
    graph_break()
    return value


def prints(x):
    y = x + 1
    for _ in range(20):
        y = y.sin() * 2
        graph_break()
        y = y + 1
    return y * 3


def branches(x):
    for i, scale in enumerate([1.0, 2.0, 1.0, 2.0]):
        x = x * scale
        if x.sum() > 0:
            x = x - 3
        else:
            x = x + i
    return x.cos()


def items(x):
    out = []
    for a, b in zip(range(5), [x, x + 1, x + 2, x + 3, x + 4], strict=True):
        z = (a + 1) * b
        out.append(z.sum().item())
        x = x + z
    return x, out


def while_on_data(x):
    n = 0
    while x.sum() < 100:
        x = x * 2 + 1
        n += 1
    return x - n


def nested(x):
    for i in range(3):
        for j in range(4):
            x = x + i * j
            if x.sum() > 1e9:
                return x
        x = x.sin()
        graph_break()
    return x


def rows(x):
    for row in x:
        if row.max() > 0.5:
            continue
        x = x + row
    return x


def rows_until(x):
    for row in x:
        if row.max() > 0.5:
            break
        x = x + row
    else:
        x = x - 1
    return x


def inside_no_grad(x):
    for _ in range(5):
        with torch.no_grad():
            y = x * 2
            graph_break()
            x = x + y
    return x, torch.is_grad_enabled()


def handled(x):
    for i in range(5):
        try:
            x = x + 1
            if i == 3:
                raise ValueError("three")
            graph_break()
        except ValueError as error:
            x = x - len(str(error))
        x = x * 2
    return x


def finally_runs(x):
    log = []
    for i in range(4):
        try:
            x = x + 1
            if i == 2:
                return x, log
            graph_break()
        finally:
            log.append(i)
    return x, log


def comprehension(x):
    return [float(x.sum() + i) for i in range(6)], x + 1


def break_late(x):
    for i in range(6):
        x = x * 2
        if i == 3:
            graph_break()
        x = x + 1
    return x


def grows(x):
    todo = [1, 2]
    for k in todo:
        x = x + k
        graph_break()
        if len(todo) < 5:
            todo.append(k * 2)
    return x, todo


def infinite(x):
    for i in itertools.count(start=2):
        x = x + i
        if x.sum() > 1000:
            return x, i


def mapped(x):
    for y in map(torch.sin, [x, x + 1, x + 2]):
        x = x + y
        graph_break()
    return x


def dictionary(x):
    table = {"a": x, "b": x + 1}
    for name, value in table.items():
        x = x + value * len(name)
        graph_break()
    return x


def closure(x):
    total = torch.zeros(())

    def add(t):
        nonlocal total
        total = total + t.sum()

    for _ in range(4):
        add(x)
        graph_break()
        x = x + total
    return x, total


def in_a_helper(x):
    for _ in range(3):
        x = note(x * 2) + 1
    return x


PROGRAMS = [prints, branches, items, while_on_data, nested, rows, rows_until, inside_no_grad, handled, finally_runs,
            comprehension, break_late, grows, infinite, mapped, dictionary, closure, in_a_helper]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_program(capture, fn):
    c = capture(fn)
    for x in (torch.full((3, 4), 0.3), torch.rand(3, 4), torch.full((3, 4), 0.9)):
        torch.testing.assert_close(c(x), fn(x), rtol=0, atol=0)
    assert c.graphs and not c.report.fallbacks
    assert 1 <= len(c.report.breaks) <= 2


def test_rounds_share_graphs(capture):
    c = capture(prints)
    c(torch.ones(3))
    # Before the loop with the first round's start, a round's end, the next one's start, and what follows the loop.
    assert len(c.graphs) == 4 and len(c.report.breaks) == 1
    assert not c.report.recompiles
    c(torch.zeros(3))
    assert len(c.graphs) == 4


def test_stack_stays_flat(capture):
    def fn(x):
        for _ in range(3000):
            x = x * 0.5 + 1
            graph_break()
        return x

    c = capture(fn)
    torch.testing.assert_close(c(torch.ones(2)), fn(torch.ones(2)), rtol=0, atol=0)


def test_the_users_iterator_is_advanced_as_in_python(capture):
    def fn(x, it):
        for k in it:
            x = x + k
            graph_break()
            if k == 2:
                break
        return x

    c = capture(fn)
    for _ in range(2):
        ours, theirs = iter([1, 2, 3]), iter([1, 2, 3])
        torch.testing.assert_close(c(torch.ones(2), ours), fn(torch.ones(2), theirs))
        assert list(ours) == list(theirs) == [3]
    assert not c.report.fallbacks


def test_exceptions_leave_the_loop(capture):
    def fn(x, limit):
        for i in range(10):
            x = x * 2
            if x.sum() > limit:
                raise RuntimeError(f"round {i}")
        return x

    c = capture(fn)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="round 3") as caught:
            c(torch.ones(1), 15)
        lines = [entry for entry in caught.traceback if entry.path.name == "test_loops.py"]
        assert lines[-1].lineno + 1 == fn.__code__.co_firstlineno + 4
    torch.testing.assert_close(c(torch.ones(1), 1e9), torch.full((1,), 1024.0))


def test_one_break_is_reported_per_place(capture):
    import dynamo_capture

    explanation = dynamo_capture.explain(prints)(torch.ones(2))
    assert explanation.graph_break_count == 1
    assert explanation.breaks[0].where.function == "prints"
    assert explanation.breaks[0].where.line == prints.__code__.co_firstlineno + 4


def test_fullgraph_names_the_line_in_the_loop(capture):
    from prims.errors import Unsupported

    c = capture(prints, fullgraph=True)
    with pytest.raises(Unsupported, match=f"test_loops.py:{prints.__code__.co_firstlineno + 4} in prints"):
        c(torch.ones(2))


# ---------------------------------------------------------------- breaks under autocast


def once(x, w):
    y = x @ w
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ w
        graph_break()
        z = z @ w
    return y, z, z.float() @ w


def in_rounds(x, w):
    for i in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i != 1):
            x = (x @ w).float()
            if x.sum() > 1e9:
                return x
    return x @ w


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x, w):
    y = x @ w
    graph_break()
    return y @ w


def refuse(y):
    graph_break()
    raise ValueError


def left_by_an_exception(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            y = x @ w
            graph_break()
            y = y @ w
        graph_break()
        z = y @ w
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = y @ w
            refuse(y)
    except ValueError:
        y = y.float() + 1
    return y, z


@pytest.mark.parametrize("fn", [once, in_rounds, decorated, left_by_an_exception], ids=lambda f: f.__name__)
def test_autocast(capture, fn):
    c = capture(fn)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(3):
        torch.testing.assert_close(c(x, w), fn(x, w), rtol=0, atol=0)
        assert not torch.is_autocast_enabled("cpu")
        assert torch.autocast_increment_nesting() == 1
        assert torch.autocast_decrement_nesting() == 0
    assert len(c.graphs) >= 2
    assert not [f for f in c.report.fallbacks if "raises" not in f.reason]
