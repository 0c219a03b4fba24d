"""Dates, patterns and matches; context variables and attributes of a thread; lazy modules: in one graph."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import decimal
import re
import sys
import threading
import time
import warnings

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


class Counted:
    made: list[str] = []

    def __new__(cls, match):
        cls.made.append(match.group())
        return "x" * len(cls.made)


@pytest.mark.parametrize(
    "replacement",
    [Counted, print, lambda match: match.group() * 2, r"<\g<0>>"],
    ids=["class", "print", "lambda", "text"],
)
def test_what_a_pattern_calls_is_called_in_every_call(capture, capsys, replacement):
    def fn(x, text):
        return x + 1, re.sub(r"\d", replacement, text)

    shown = []
    for run in (capture(fn, strict=False), fn):
        Counted.made.clear()
        results = repr([run(torch.ones(2), "a1b2") for _ in range(3)])
        shown.append((results, [*Counted.made], re.sub("0x[0-9a-f]+", "", capsys.readouterr().out)))
    assert shown[0] == shown[1]


def test_what_has_a_state_is_made_anew(capture):
    def fn(x, text):
        scanner, found = re.compile(r"\d").scanner(text), []
        while (match := scanner.search()) is not None:
            found.append(match.group())
        return x + 1, found, [match.span() for match in re.finditer("b", text)]

    compiled = capture(fn, strict=False)
    for text in ("1b2", "", "1b2"):
        assert repr(compiled(torch.ones(2), text)) == repr(fn(torch.ones(2), text))


def test_each_call_has_its_own_match(capture):
    def fn(x, text):
        match = re.match(r"(\d)(\w)?", text)
        return x + 1, match, match, [match]

    compiled = capture(fn)
    first, second = (compiled(torch.ones(2), "1a") for _ in range(2))
    assert first[1] is first[2] is first[3][0] and first[1] is not second[1] and first[1] != second[1]
    assert first[1].groups() == second[1].groups() == ("1", "a")
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


def test_warnings_of_a_pattern_name_the_users_line(capture):
    def fn(x, text):
        return x + 1, re.compile(text).pattern

    compiled, found = capture(fn, strict=False), []
    for run in (compiled, compiled, fn):
        re.purge()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(torch.ones(2), "[[a]]")
        found.append([(str(each.message), each.filename, each.lineno) for each in seen if "nested" in str(each.message)])
    assert found[0] == found[1] == found[2] and len(found[0]) == 1


def test_formats_that_ask_the_process(capture, monkeypatch):
    def fn(x):
        when = datetime.datetime(2020, 6, 1, 12)
        texts = f"{when:%s}", format(when, "%s"), f"{when:%Y-%m-%d}", "{:%s}".format(when)  # noqa: UP032
        return x + 1, texts, when.__format__("%s"), f"{'a':>3}", "{:%}".format(0.5)  # noqa: UP032

    compiled = capture(fn, strict=False)
    try:
        for zone in ("UTC", "JST-9", "UTC"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert repr(compiled(torch.ones(2))) == repr(fn(torch.ones(2)))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("make", [lambda: datetime.timedelta(5), lambda: datetime.date(2020, 1, 1)], ids=["delta", "date"])
def test_equal_objects_are_two(capture, make):
    def fn(x, a, b):
        return x + (1 if a is b else 2), a, [b], a == b

    compiled, a, b = capture(fn), make(), make()
    for left, right in ((a, b), (a, a), (b, a), (b, b), (a, b)):
        found, wanted = compiled(torch.ones(2), left, right), fn(torch.ones(2), left, right)
        assert repr(found) == repr(wanted) and found[1] is left and found[2][0] is right
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 2


def test_what_an_error_knows(capture):
    def fn(x, value):
        try:
            value.nonsense  # noqa: B018
        except AttributeError as error:
            return x + 1, str(error), error.name, error.obj is value
        return x

    compiled = capture(fn, strict=False)
    for value in (datetime.date(2020, 1, 1), re.compile("a"), HELD):
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


def of_nothing(x):
    UNSET.get()
    return x + 1


def what_is_held(x):
    return x + 1, UNSET.get()


def what_is_held_if_anything(x):
    try:
        return x + UNSET.get()
    except LookupError:
        return x


@pytest.mark.parametrize("program", [of_nothing, what_is_held, what_is_held_if_anything], ids=lambda fn: fn.__name__)
def test_a_variable_that_holds_nothing_later(capture, program):
    compiled = capture(program, strict=False)

    def outcome(run, *value):
        for each in value:
            UNSET.set(each)
        try:
            return repr(run(torch.ones(2)))
        except LookupError as error:
            return type(error)

    for value in ((3.0,), (), (4.0,), ()):
        found = [contextvars.copy_context().run(outcome, run, *value) for run in (compiled, program)]
        assert found[0] == found[1]


class Holder:
    __slots__ = ("__dict__", "slot")


def read_of_holder(x):
    HOLDER.value  # noqa: B018
    return x + 1


def slot_of_holder(x):
    HOLDER.slot  # noqa: B018
    return x + 1


def read_of_thread(x):
    HELD.passing  # noqa: B018
    return x + 1


def read_of_global(x):
    LATE  # noqa: B018
    return x + 1


HOLDER = Holder()
LATE = [1]


@pytest.mark.parametrize(
    ("program", "owner", "name"),
    [(read_of_holder, HOLDER, "value"), (slot_of_holder, HOLDER, "slot"), (read_of_thread, HELD, "passing"),
     (read_of_global, sys.modules[__name__], "LATE")],
    ids=["attribute", "slot", "thread", "global"],
)  # fmt: skip
def test_what_is_read_and_not_used_has_to_be_there(capture, program, owner, name):
    compiled = capture(program, strict=False)
    for value in ([1], None, [2]):
        if value is None:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
        found = []
        for run in (compiled, program):
            try:
                found.append(repr(run(torch.ones(2))))
            except (AttributeError, NameError) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1]
    assert len(compiled.report.graphs) == 1


def test_lazy_modules(capture):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    compiled, x = capture(ours, strict=False), torch.randn(2, 4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), ours(x))
    assert type(ours[0]) is nn.Linear and compiled.report.breaks == []
    assert sum(graph.name == "Sequential.forward" for graph in compiled.report.graphs) == 1
