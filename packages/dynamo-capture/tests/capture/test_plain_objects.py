"""Dates, patterns and matches; context variables and attributes of a thread; lazy modules: in one graph."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import decimal
import re
import sys
import threading

import pytest
import torch
from torch import nn

PATTERN = re.compile(r"(?P<name>\w+)\.(\d+)\.")


def names(x, name):
    found = PATTERN.match(name)
    layer = int(found.group(2)) if found else 0
    parts = found and (found["name"], found.groups(), found.span(), found.groupdict(), found.re is PATTERN)
    if re.search(r"bias$", name):
        x = x + 1
    return x * layer, parts, re.sub(r"\d+", "N", name), PATTERN.findall(name), PATTERN.pattern, re.split(r"\.", name)


def dates(x, name):
    step = datetime.timedelta(seconds=90) + datetime.timedelta(minutes=1)
    day = datetime.date(2020, 1, 31) + 3 * step
    when = datetime.datetime(2020, 1, 31, 12, tzinfo=datetime.timezone.utc) - step
    text = f"{day:%Y-%m}", day.isoformat(), when.isoformat(), str(step), {step: 1}[step * 1]
    return x * step.total_seconds(), text, step > datetime.timedelta(0), -step, when.replace(hour=3) if step else None


@pytest.mark.parametrize("program", [names, dates], ids=lambda fn: fn.__name__)
def test_plain_objects(capture, program):
    compiled = capture(program)
    for _ in range(2):
        for name in ("layer.3.bias", "head", "layer.4.weight"):
            assert repr(compiled(torch.ones(2), name)) == repr(program(torch.ones(2), name))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == (3 if program is names else 1)


def test_what_is_refused(capture):
    def fn(x):
        try:
            datetime.timedelta(1) / 0
        except ZeroDivisionError:
            x = x + 1
        try:
            return datetime.date(2020, 2, 31)
        except ValueError as error:
            return x, str(error)

    compiled = capture(fn)
    assert repr(compiled(torch.ones(2))) == repr(fn(torch.ones(2))) and compiled.report.breaks == []


@pytest.mark.parametrize(
    "values",
    [
        [datetime.timedelta(1), datetime.timedelta(1), datetime.timedelta(2)],
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
        [re.compile("a"), re.compile("b"), re.compile("a", re.IGNORECASE)],
        [datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)],
        [decimal.Decimal("1.0"), decimal.Decimal("1.00")],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_from_outside(capture, values):
    def fn(x, value):
        return x + 1, str(value)

    compiled = capture(fn, strict=False)
    for value in [*values, *values]:
        assert repr(compiled(torch.ones(2), value)) == repr(fn(torch.ones(2), value))


def handled_by_nobody(x, log):
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        x = x - stack.enter_context(contextlib.nullcontext(1))
    return x, sys.exc_info(), sys.exception()


def test_what_callers_handle(capture):
    compiled = capture(handled_by_nobody)
    assert repr(compiled(torch.ones(2), [])) == repr(handled_by_nobody(torch.ones(2), []))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1
    try:
        raise ValueError("outside")
    except ValueError as error:
        found = compiled(torch.ones(2), [])
        assert found[2] is error and found[1][1] is error
    assert compiled(torch.ones(2), [])[2] is None


# --- what a thread or a context holds ---------------------------------------------------------------------------------

SCALE = contextvars.ContextVar("scale", default=2.0)
UNSET = contextvars.ContextVar("unset")
HELD = threading.local()
HELD.factor = 3.0


def of_context(x):
    return x * SCALE.get() + UNSET.get(1.0), UNSET.get(None)


def of_thread(x):
    return x * HELD.factor + getattr(HELD, "missing", 1.0), hasattr(HELD, "missing")


def test_context_variables(capture):
    compiled = capture(of_context)
    for value in (2.0, 5.0, 2.0):
        token = SCALE.set(value)
        assert repr(compiled(torch.ones(2))) == repr(of_context(torch.ones(2)))
        SCALE.reset(token)
    token = UNSET.set(4.0)
    assert repr(compiled(torch.ones(2))) == repr(of_context(torch.ones(2)))
    UNSET.reset(token)
    assert repr(contextvars.Context().run(compiled, torch.ones(2))) == repr(of_context(torch.ones(2)))
    assert compiled.report.breaks == []


def test_attributes_of_a_thread(capture):
    compiled, found = capture(of_thread), {}

    def work(at):
        HELD.factor = float(at)
        if at % 2:
            HELD.missing = 7.0
        found[at] = repr(compiled(torch.ones(2))), repr(of_thread(torch.ones(2)))

    for at in range(3):
        thread = threading.Thread(target=work, args=(at,))
        thread.start()
        thread.join()
    assert repr(compiled(torch.ones(2))) == repr(of_thread(torch.ones(2)))
    assert len(found) == 3 and all(ours == theirs for ours, theirs in found.values())
    assert compiled.report.breaks == []


def test_what_changes_after_clean_checks(capture):
    def fn(x):
        return x * HELD.factor + SCALE.get() + (1 if hasattr(HELD, "late") else 0)

    compiled, before = capture(fn), HELD.factor

    def agree():
        for _ in range(4):
            assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2)))

    def elsewhere(value):
        HELD.factor = value
        agree()

    agree()
    HELD.factor = 9.0
    agree()
    token = SCALE.set(6.0)
    agree()
    for value in (1.5, 9.0):
        thread = threading.Thread(target=elsewhere, args=(value,))
        thread.start()
        thread.join()
        agree()
    HELD.late = 1
    agree()
    SCALE.reset(token)
    agree()
    del HELD.late
    HELD.factor = before
    agree()


def test_lazy_modules(capture):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    compiled, x = capture(ours, strict=False), torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), ours(x))
    assert type(ours[0]) is nn.Linear and compiled.report.breaks == []
    assert sum(graph.name == "Sequential.forward" for graph in compiled.report.graphs) == 1
