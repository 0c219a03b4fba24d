"""``vars()`` of objects that a region makes, as a text, a constant and a dict: what was set on them is in it."""

from __future__ import annotations

import copy

import pytest
import torch

from dynamo_capture import optimize
from prims.report import Report


class Config:
    pass


def made():
    config = Config()
    config.a, config.b, config.c = 1, "t", [1, 2]
    del config.b
    return config


READS = {
    "str": lambda v: str(v),
    "repr": lambda v: repr(v),
    "f-string": lambda v: f"{v} {v!r}",
    "percent": lambda v: "%s" % (v,),
    "in a list": lambda v: str([v, (v,)]),
    "joined": lambda v: "-".join(str(q) for q in [v]),
    "length": lambda v: (len(v), bool(v), len(str(v))),
    "equal": lambda v: (v == {"a": 1, "c": [1, 2]}, "a" in v, "b" in v),
    "copies": lambda v: (dict(v), {**v}, v.copy(), copy.copy(v), v | {"z": 3}),
    "parts": lambda v: (list(v), list(v.items()), str(list(v.values())), sorted(v), max(v)),
}


@pytest.mark.parametrize("name", READS)
def test_what_was_set_is_there(name):
    def program(x):
        return x + 1, READS[name](vars(made())), READS[name](made().__dict__), str(vars(Config()))

    report = Report()
    compiled = optimize(program, lambda gm, inputs: gm.forward, report=report)
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == program(torch.ones(2))[1:]
    assert report.graphs


def test_in_a_log():
    def program(x, log):
        log.append(vars(made()))
        log.append("-".join(str(q) for q in log))
        return x + 1

    compiled = optimize(program, lambda gm, inputs: gm.forward)
    ours, theirs = [], []
    compiled(torch.ones(2), ours)
    program(torch.ones(2), theirs)
    assert ours == theirs
