"""Whatever a region asks of classes, functions, modules and other objects, changing those changes its answer.

The programs are generated: each question of a topic with each change of it (:mod:`mutation_table`). A region computes on
a tensor and asks; it is called, the change is made, and it is called twice more. It must answer as eager does each time,
errors included, and a graph must have been captured.

Every sixth program is run, a different sixth for each question; ``python test_mutations.py`` runs them all.
"""

from __future__ import annotations

import builtins
import contextvars
import gc
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from mutation_table import TOPICS, Topic

import dynamo_capture
from dynamo_capture import optimize
from prims.options import Options
from prims.report import Report

_SHARE = 6
_IMPORTS = """
import abc, builtins, collections, collections.abc, contextlib, contextvars, copy, dataclasses, enum, functools, gc
import importlib, inspect, itertools, logging, math, operator, os, sys, threading, types, typing, warnings, weakref
import torch
import torch.nn.functional as F
"""
_REGION = """
def region(x):
    x = x + 1
    answer = {question}
    return x * 2, answer
"""


@contextmanager
def undone() -> Iterator[None]:
    """Puts back what changes do to the process."""
    kept = (sys.argv, list(sys.argv)), (sys.path, list(sys.path)), (warnings.filters, list(warnings.filters))
    modules, limit = dict(sys.modules), sys.getrecursionlimit()
    try:
        yield
    finally:
        (sys.argv, argv), (sys.path, path), (filters, filtered) = kept
        sys.argv[:], sys.path[:], filters[:] = argv, path, filtered  # type: ignore[index]
        sys.setrecursionlimit(limit)
        gc.enable()
        os.environ.pop("LATE_VARIABLE", None)
        logging.getLogger("mutations").setLevel(logging.NOTSET)
        for module in (torch, torch.nn, torch.nn.functional, math, os.path, builtins):
            vars(module).pop("late_attribute", None)
        for name in set(sys.modules) - set(modules):
            if "changing" in name or "late" in name:
                del sys.modules[name]
        dynamo_capture.reset()


def outcome(fn: Callable[[Any], Any]) -> tuple[Any, ...]:
    try:
        result, answer = fn(torch.ones(()))
    except Exception as error:
        return type(error).__name__, str(error)
    return result.item(), repr(answer)


def differences(topic: Topic, question: str, change: str) -> list[str]:
    """Where a compiled region's answers are not eager's, or no graph was made."""
    namespace: dict[str, Any] = {"__name__": "mutated_program"}
    program = _IMPORTS + topic.setup + _REGION.format(question=question)
    exec(compile(program, "<mutated program>", "exec", dont_inherit=True), namespace)
    graphs: list[Any] = []

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    region = namespace["region"]
    compiled = optimize(region, backend, options=Options(), report=Report())
    found = []
    for step in ("before", "after", "after it again"):
        if step == "after":
            exec(compile(change, "<change>", "exec", dont_inherit=True), namespace)
        ours, eager = outcome(compiled), outcome(region)
        if ours != eager:
            found.append(f"{question} {step} {change}: {ours}, eager {eager}")
    if not graphs:
        found.append(f"{question}: no graph")
    return found


def check(topic: Topic, question: str, change: str) -> list[str]:
    with undone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return contextvars.copy_context().run(differences, topic, question, change)


@pytest.mark.parametrize("name", TOPICS)
def test_mutations(name):
    topic = TOPICS[name]
    found = []
    for number, question in enumerate(topic.questions):
        for change in topic.changes[number % _SHARE :: _SHARE]:
            found += check(topic, question, change)
    assert not found, "\n".join(found)


if __name__ == "__main__":
    for name, topic in TOPICS.items():
        wrong = [line for q in topic.questions for c in topic.changes for line in check(topic, q, c)]
        print(name, len(topic.questions) * len(topic.changes), "programs", *wrong, sep="\n  ")
