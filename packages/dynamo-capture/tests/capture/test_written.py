"""``print`` and logging: what is written, by capture as by eager, and in which order, whatever is raised."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings

import pytest
import torch

import dynamo_capture

LOG = logging.getLogger("written")
LOG.propagate = False


class Sink(io.StringIO):
    """Writes as a program of Python's."""

    def write(self, text):
        return super().write(text.upper())


class Stream(io.StringIO):
    handler: logging.Handler


@pytest.fixture
def output():
    """One text for both streams and the log, so that their order shows."""
    stream = Stream()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(module)s %(funcName)s %(lineno)d %(message)s"))
    stream.handler = handler
    LOG.setLevel(logging.INFO)
    yield stream
    LOG.setLevel(logging.NOTSET)


def run(output, fn, *args):
    """What ``fn`` gives or raises, and what it writes."""
    start = output.tell()
    others = LOG.handlers[:]
    LOG.handlers[:] = [output.handler, *(handler for handler in others if isinstance(handler, Collects))]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            result = fn(*args)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    LOG.handlers[:] = others  # pytest's own
    output.seek(start)
    # What logs natively after a break does so in a resume function.
    text = re.sub(r"resume_in_(\w+?)_at_\d+", r"\1", output.read())
    return result.tolist() if isinstance(result, torch.Tensor) else result, text


class Named:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"


def helper(x, text):
    print("in helper", text)
    return x * 2


def changes_a_list(x):
    seen = [1]
    print(seen)
    seen.append(x.shape[0])
    print(seen, tuple(seen), {"a": seen[0]})
    return x + len(seen)


def changes_an_object(x):
    named = Named("before")
    print(named, f"{named!r:>10}")
    named.name = "after"
    print(named)
    return x + 1


def in_a_loop(x):
    for i in range(3):
        x = x * 2
        print(i, end=", " if i < 2 else "\n")
    return x


def both(x):
    print("out")
    print("err", file=sys.stderr)
    LOG.info("logged %d of %s", x.shape[0], "text")
    print("out again", sep="-", flush=True)
    LOG.warning("a shape: %s", x.shape)
    LOG.debug("nobody wants this")
    return x - 1


def around_a_break(x):
    print("before")
    y = helper(x, x.shape)
    dynamo_capture.graph_break()
    print("between")
    y = y + 1
    dynamo_capture.graph_break()
    y = y * 2
    print("after")
    return y


def tensors(x):
    y = x * 2
    print(x, y)
    z = y.clone()
    print("z:", z)
    return z + 1


def tensor_changed_later(x):
    y = x * 2
    print(y)
    y.add_(1)
    print(y)
    return y


def with_gradient(x):
    w = torch.ones(3, requires_grad=True)
    print(w, w.sum() if x.shape[0] > 100 else None)
    return (w * x).detach()


def logs_for_its_caller(x):
    def inner(y):
        LOG.info("of the caller", stacklevel=2)
        return y + 1

    return inner(x)


def under_no_grad(x):
    with torch.no_grad():
        print("in", torch.is_grad_enabled())
        y = x * 2
    print("out")
    return y


def warns(x):
    print("a")
    warnings.warn("look", stacklevel=1)
    print("b")
    return x + 1


FINE = [changes_a_list, changes_an_object, in_a_loop, both, tensors, logs_for_its_caller, under_no_grad,
        around_a_break, warns]  # fmt: skip


@pytest.mark.parametrize("fn", FINE, ids=lambda fn: fn.__name__)
@pytest.mark.filterwarnings("always:look")
def test_it_costs_no_break(capture, output, fn):
    c = capture(fn)
    for x in (torch.ones(3), torch.zeros(3), torch.ones(4), torch.ones(5)):
        expected = run(output, fn, x)
        assert run(output, c, x) == expected
        assert expected[1]
    explicit = [brk for brk in c.report.breaks if "QB20" not in brk.reason]
    assert not explicit and not c.report.fallbacks


@pytest.mark.parametrize("fn", [tensor_changed_later, with_gradient], ids=lambda fn: fn.__name__)
def test_it_breaks_where_it_must(capture, output, fn):
    c = capture(fn)
    for x in (torch.ones(3), torch.zeros(3)):
        expected = run(output, fn, x)
        assert run(output, c, x) == expected
    assert c.graphs and not c.report.fallbacks


# --- exceptions -------------------------------------------------------------------------------------------------------


def index_after(x, i):
    print("first")
    y = x[i]
    LOG.info("second")
    return y


def index_in_between(x, i):
    print("first")
    LOG.info("second")
    y = x.index_select(0, i) * 2
    print("third", y.shape)
    z = y.index_select(0, i)
    print("fourth")
    return z


def after_a_write(x, i):
    print("first")
    x.add_(1)
    print("second")
    y = x.index_select(0, i)
    print("third")
    return y


def write_last(x, i):
    print("first")
    y = x.index_select(0, i)
    x.mul_(2)
    print("second")
    return y


def caught(x, i):
    try:
        print("first")
        y = x.index_select(0, i)
        print("second")
    except IndexError as error:
        print("caught", type(error).__name__)
        y = x
    finally:
        print("finally")
    return y + 1


def raises(x, i):
    print("first")
    if x.shape[0] == 3:
        LOG.info("bad")
        raise ValueError(f"shape {tuple(x.shape)}")
    print("second")
    return x + 1


def with_state(x, i):
    seen.append(1)
    print("first", len(seen))
    y = x.index_select(0, i)
    seen.append(2)
    print("second", len(seen))
    return y


seen: list[int] = []


@pytest.mark.parametrize(
    "fn", [index_after, index_in_between, after_a_write, write_last, caught, raises, with_state],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_what_comes_before_an_exception_is_written(capture, output, fn):
    c = capture(fn)
    good, bad = torch.tensor([1]), torch.tensor([9])
    for i in (good, bad, good, bad):
        for size in (3, 3, 4):
            ours, theirs = torch.arange(float(size)), torch.arange(float(size))
            seen.clear()
            expected, state = run(output, fn, theirs, i), list(seen)
            seen.clear()
            assert run(output, c, ours, i) == expected
            assert seen == state
            assert torch.equal(ours, theirs)
    assert c.graphs


# --- who writes -------------------------------------------------------------------------------------------------------


def test_a_stream_of_the_programs(capture):
    def fn(x):
        print("text", x.shape[0])
        return x + 1

    c = capture(fn)
    for make in (io.StringIO, Sink, io.StringIO):
        ours, theirs = make(), make()
        with contextlib.redirect_stdout(ours):
            c(torch.ones(2))
        with contextlib.redirect_stdout(theirs):
            fn(torch.ones(2))
        assert ours.getvalue() == theirs.getvalue() != ""


def test_a_stream_changed_inside(capture, output):
    def fn(x):
        inner = io.StringIO()
        print("outside")
        with contextlib.redirect_stdout(inner):
            print("inside")
            y = x * 2
        print("outside again")
        return y, inner.getvalue()

    c = capture(fn)
    for _ in range(2):
        expected = run(output, lambda: fn(torch.ones(2))[1])
        assert run(output, lambda: c(torch.ones(2))[1]) == expected


class Collects(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append((record.getMessage(), record.funcName, len(seen)))


def test_a_handler_or_filter_of_the_programs(capture, output):
    def fn(x):
        LOG.info("with %d", x.shape[0])
        seen.append(1)
        return x + 1

    c = capture(fn)
    handler = Collects()
    for change in (None, "handler", "filter", None):
        for call in (fn, c):
            seen.clear()
            handler.found.clear()
            if change == "handler":
                LOG.addHandler(handler)
            elif change == "filter":
                LOG.addFilter(lambda record: not seen)
            text = run(output, call, torch.ones(2))[1]
            result = text, list(handler.found)
            LOG.removeHandler(handler)
            LOG.filters.clear()
            if call is fn:
                expected = result
        assert result == expected
        assert expected[0]


def test_levels_are_guarded(capture, output):
    def fn(x):
        LOG.info("informs")
        LOG.warning("warns")
        return x + 1

    c = capture(fn)
    for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.INFO):
        LOG.setLevel(level)
        expected = run(output, fn, torch.ones(2))
        assert run(output, c, torch.ones(2)) == expected


def test_a_level_changed_inside(capture, output):
    def fn(x):
        LOG.info("first")
        LOG.handlers[0].level = logging.ERROR
        LOG.info("second")
        LOG.handlers[0].level = logging.NOTSET
        LOG.info("third")
        return x + 1

    c = capture(fn)
    for _ in range(2):
        expected = run(output, fn, torch.ones(2))
        assert run(output, c, torch.ones(2)) == expected


@torch.library.custom_op("test_written::speaks", mutates_args=())
def speaks(x: torch.Tensor) -> torch.Tensor:
    print("an operator")
    return x.clone()


@speaks.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_that_prints(capture, output):
    def fn(x):
        print("before")
        y = speaks(x)
        print("after")
        return y + 1

    c = capture(fn)
    for _ in range(2):
        expected = run(output, fn, torch.ones(2))
        assert run(output, c, torch.ones(2)) == expected


def test_fullgraph(capture, output):
    c = capture(both, fullgraph=True)
    assert run(output, c, torch.ones(2)) == run(output, both, torch.ones(2))
    (graph,) = c.graphs
    assert [n.target.__name__ for n in graph.graph.nodes if n.op == "call_function"] == ["sub"]


# --- texts ------------------------------------------------------------------------------------------------------------


def joins(x):
    sizes = ", ".join(str(s) for s in x.shape)
    print("|".join(["a", sizes, f"{x.dim()}"]), "".join([]), "-".join("abc"), ",".join(("one",)))
    return x + len("/".join(["a", "b"]))


def joins_wrongly(x):
    try:
        return x, ", ".join(["a", x.dim()])
    except TypeError as error:
        return x, str(error)


def number_in_a_text(x):
    loss = (x * 2).sum()
    print(f"loss {loss:.3f}, {loss}, {x.numel():>5}", flush=True)
    LOG.info(f"{loss.long():05d}")
    return loss + 1


def number_of_a_leaf(x):
    w = torch.ones(3, requires_grad=True)
    loss = w.sum() * 2
    print(f"{loss:.1e}")
    return loss.detach()


def number_changed_later(x):
    loss = x.sum()
    text = f"{loss:.2f}"
    loss.add_(1)
    print(text, f"{loss:.2f}")
    return loss


def number_given_back(x):
    loss = x.sum()
    return loss * 2, f"{loss:.2f}", len(f"{x.shape}")


def asks_about_the_text(x):
    loss = x.sum()
    text = f"{loss:.2f}"
    return x * 2 if text.startswith("3") else x


def a_format_that_fails(x):
    return x + 1, f"{x.sum():d}"


def no_number(x):
    print(f"{x}", "{}".format(x * 2), f"{x.sum()!r}")
    return x + 1


@pytest.mark.parametrize(
    "fn", [joins, joins_wrongly, number_in_a_text, number_of_a_leaf, number_changed_later, number_given_back,
           asks_about_the_text, a_format_that_fails, no_number], ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_texts(capture, output, fn):
    c = capture(fn)
    for x in (torch.ones(3), torch.full((3,), 0.25), torch.ones(4), torch.ones(5)):
        results = [[], []]
        for call, found in zip((fn, c), results, strict=True):
            _, text = run(output, lambda call=call, found=found, x=x: found.append(call(x.clone())))
            found.append(text)
        theirs, ours = ([str(item) for item in found] for found in results)
        assert ours == theirs
    if fn in (joins, number_in_a_text, number_of_a_leaf, number_given_back):
        assert not c.report.breaks and not c.report.fallbacks and c.graphs
