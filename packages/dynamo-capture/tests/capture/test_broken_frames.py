"""Breaks where a generator has been started or an exception is handled: positions x kinds of break x outcomes.

Compared with eager: result or exception (with its context), the order of all events, and what is handled at each.
"""

from __future__ import annotations

import io
import sys
import textwrap
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

import dynamo_capture
from prims.report import Report

_SETUP = '''
def note(log, name):
    error = sys.exception()
    log.append((name, None if error is None else (type(error).__name__, str(error))))

@contextmanager
def cm(log, name):
    note(log, "enter " + name)
    try:
        yield name
    finally:
        note(log, "leave " + name)

@contextmanager
def swallow(log):
    try:
        yield
    except KeyError as error:
        note(log, "swallowed")

@contextmanager
def plain():
    yield

def gen(x, log, n=3):
    note(log, "started")
    for i in range(n):
        yield x * i
        note(log, "went on")
    return 7

def outer(x, log):
    got = yield from gen(x, log)
    note(log, got)
    yield x

def in_handler(x, log):
    try:
        raise IndexError("inside")
    except IndexError as error:
        yield x
        note(log, "in handler")
        yield x * 2
        note(log, str(error))
    yield x * 3

def closing(x, log):
    try:
        for i in range(3):
            yield x * i
    finally:
        note(log, "closed")

def tied(x, log):
    def inner():
        return x * 2 + k
    k = 1
    yield inner()
    k = 2
    yield inner()
    k = 3
    yield inner()

class Manager:
    def __init__(self, log, result):
        self.log, self.result = log, result
    def __enter__(self):
        note(self.log, "enter")
        return self
    def __exit__(self, cls, error, tb):
        note(self.log, ("exit", cls, str(error), tb is None))
        opaque(self.log)
        return self.result
'''

POSITIONS = {
    "contextmanager": """
        with cm(log, "a"):
            {here}
    """,
    "plain contextmanager": """
        with plain():
            {here}
    """,
    "nested contextmanagers": """
        with cm(log, "a") as a, cm(log, "b") as b:
            note(log, a + b)
            {here}
    """,
    "swallowing": """
        with cm(log, "a"), swallow(log):
            {here}
        note(log, "behind")
    """,
    "ExitStack": """
        with ExitStack() as stack:
            stack.enter_context(cm(log, "a"))
            stack.callback(note, log, "callback")
            x = x + 1
            {here}
    """,
    "generator": """
        for v in gen(x, log):
            x = x + v
            {here}
    """,
    "genexpr": """
        for v in (x * i for i in range(3)):
            x = x + v
            {here}
    """,
    "yield from": """
        for v in outer(x, log):
            x = x + v
            {here}
    """,
    "enumerate": """
        for i, v in enumerate(gen(x, log)):
            x = x + v * i
            {here}
    """,
    "zip": """
        for u, v in zip(gen(x, log), gen(x, log, 2)):
            x = x + v * u
            {here}
    """,
    "map": """
        for v in map(torch.neg, gen(x, log)):
            x = x + v
            {here}
    """,
    "held": """
        gens = [gen(x, log), gen(x + 1, log)]
        same = gens[0]
        for g in gens:
            x = x + next(g)
        {here}
        x = x + next(same) + next(gens[1])
        note(log, same is gens[0])
        note(log, (same.gi_code.co_name, same.__name__, same.__qualname__))
    """,
    "cells": """
        g = tied(x, log)
        x = x + next(g)
        {here}
        x = x + next(g) * next(g)
    """,
    "generator in a handler": """
        g = in_handler(x, log)
        x = x + next(g)
        {here}
        for v in g:
            x = x + v
    """,
    "closed": """
        g = closing(x, log)
        x = x + next(g)
        {here}
        g.close()
        note(log, "behind")
    """,
    "thrown": """
        g = in_handler(x, log)
        x = x + next(g)
        {here}
        try:
            g.throw(TypeError("thrown"))
        except TypeError as error:
            note(log, repr(error.__context__))
    """,
    "except": """
        try:
            raise ValueError("first")
        except ValueError:
            note(log, "handling")
            {here}
            note(log, "still handling")
        note(log, "behind")
    """,
    "except as": """
        try:
            raise ValueError("first")
        except (TypeError, ValueError) as error:
            {here}
            note(log, (str(error), error.args, repr(error.__context__)))
        try:
            error
        except UnboundLocalError:
            note(log, "error is gone")
    """,
    "except in except": """
        try:
            raise ValueError("first")
        except ValueError:
            try:
                raise TypeError("second")
            except TypeError as error:
                {here}
                note(log, repr(error.__context__))
            note(log, "between")
            opaque(log)
        note(log, "behind")
    """,
    "bare raise": """
        try:
            try:
                raise ValueError("first")
            except ValueError:
                {here}
                raise
        except ValueError as error:
            note(log, (str(error), repr(error.__context__)))
    """,
    "raised from": """
        try:
            try:
                raise ValueError("first")
            except ValueError as first:
                {here}
                raise TypeError("second") from first
        except TypeError as error:
            note(log, (str(error), repr(error.__context__), repr(error.__cause__)))
    """,
    "finally": """
        try:
            x = x * 2
        finally:
            {here}
            note(log, "finally")
    """,
    "finally with an error": """
        try:
            try:
                raise ValueError("first")
            finally:
                x = x + 1
                {here}
                note(log, "finally")
        except ValueError:
            note(log, "caught")
    """,
    "with in except": """
        try:
            raise ValueError("first")
        except ValueError:
            with cm(log, "a"):
                {here}
            note(log, "after")
    """,
    "except in with": """
        with Manager(log, True):
            try:
                raise ValueError("first")
            except ValueError:
                {here}
                raise KeyError("second")
        note(log, "behind")
    """,
    "loop in except": """
        try:
            raise ValueError("first")
        except ValueError:
            for i in range(3):
                x = x + i
                {here}
        note(log, "behind")
    """,
    "generator in except": """
        try:
            raise ValueError("first")
        except ValueError:
            for v in gen(x, log):
                x = x + v
                {here}
        note(log, "behind")
    """,
    "except in loop": """
        for i in range(3):
            try:
                if i == 1:
                    raise ValueError(str(i))
            except ValueError as error:
                {here}
                note(log, str(error))
            x = x + i
    """,
}

GROUPS = {
    "except*": """
        try:
            raise ExceptionGroup("group", [ValueError(1)])
        except* ValueError as error:
            {here}
            note(log, repr(error.exceptions))
        note(log, "behind")
    """,
    "split except*": """
        try:
            try:
                raise ExceptionGroup("group", [ValueError(1), TypeError(2), ExceptionGroup("in", [KeyError(3)])])
            except* ValueError as error:
                {here}
                note(log, repr(error.exceptions))
            except* TypeError:
                x = x + 2
                note(log, "types")
        except ExceptionGroup as error:
            note(log, repr(error))
    """,
    "naked except*": """
        try:
            raise ValueError(1)
        except* ValueError as error:
            {here}
            note(log, repr(error))
    """,
    "no match": """
        try:
            try:
                raise ExceptionGroup("group", [ValueError(1)])
            except* TypeError:
                note(log, "never")
        except ExceptionGroup as error:
            {here}
            note(log, repr(error))
    """,
}

BREAKS = {
    "branch": "if x.sum() > 0: x = x + 1",
    "print": "print(x.sum(), file=sink)",
    "call": "opaque(log)",
}

OUTCOMES = {
    "normal": "pass",
    "raises": "raise KeyError('out')",
    "returns": "return x * 5",
    "breaks": "break",
}


def _opaque(log: list[Any]) -> None:
    error = sys.exception()
    log.append(("opaque", None if error is None else (type(error).__name__, str(error), repr(error.__context__))))


def _namespace() -> dict[str, Any]:
    namespace: dict[str, Any] = {
        "torch": torch, "sys": sys, "contextmanager": contextmanager, "ExitStack": ExitStack,
        "opaque": dynamo_capture.disable(_opaque), "sink": io.StringIO(), "__name__": "program",
    }  # fmt: skip
    exec(_SETUP, namespace)
    return namespace


def _function(position: str, brk: str, outcome: str) -> Any:
    here = f"{brk}\n{outcome}"
    body = textwrap.dedent(position).strip("\n")
    lines = []
    for line in body.split("\n"):
        if "{here}" in line:
            lines += textwrap.indent(here, line[: line.index("{")]).split("\n")
        else:
            lines.append(line)
    if outcome == "break" and "{here}" in position:
        lines = ["for turn in range(2):", *("    " + line for line in lines)]
    text = "\n".join(["def f(x, log):", "    x = x * 2 + 1", *("    " + line for line in lines), "    return x * 3"])
    namespace = _namespace()
    exec(text, namespace)
    return namespace["f"]


def _observe(f: Any, x: torch.Tensor) -> Any:
    log: list[Any] = []
    try:
        result = f(x, log)
    except Exception as error:
        context = error.__context__
        result = (type(error), str(error), repr(context), error.__suppress_context__, repr(error.__cause__))
    assert sys.exception() is None
    return result, log


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


#: A generator that closing would run code of, and that nobody uses any more: where it is closed only eager knows.
LEFT = ("generator in a handler", "closed", "thrown")


def check(position: str, brk: str, outcome: str, captured: bool = True) -> None:
    f = _function(position, brk, outcome)
    inputs = [torch.ones(3), -torch.ones(3) * 4, torch.ones(3) * 2]
    expected = [_observe(f, x) for x in inputs]
    dynamo_capture.reset()
    report = Report()
    compiled = dynamo_capture.optimize(f, lambda gm, inputs: gm.forward, report=report)
    for x, (result, log) in zip(inputs, expected, strict=True):
        got, got_log = _observe(compiled, x)
        assert got_log == log, (got_log, log)
        assert _same(result, got), (result, got)
    if not captured:
        return
    assert report.graphs
    left = [entry.reason for entry in report.fallbacks]
    assert not [reason for reason in left if "the program raises" not in reason], left


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("brk", BREAKS)
@pytest.mark.parametrize("position", [*POSITIONS, *GROUPS])
def test_breaks_in_every_position(position: str, brk: str, outcome: str) -> None:
    if position in GROUPS and "*" in position and outcome in ("returns", "breaks"):
        return  # a syntax error
    check((POSITIONS | GROUPS)[position], BREAKS[brk], OUTCOMES[outcome], outcome == "normal" or position not in LEFT)
