"""Options, report and errors."""

from __future__ import annotations

import json
import time

import pytest

from prims.errors import DataDependentError, QuintetError, Unsupported, UserError, VerifierError
from prims.ir import SourceLoc
from prims.options import CACHE_KEY_FIELDS, Options
from prims.report import Report


def test_options_are_immutable_and_replaceable():
    options = Options()
    with pytest.raises(AttributeError):
        options.fullgraph = True
    changed = options.replace(fullgraph=True, memory_budget=0.5)
    assert changed.fullgraph and changed.memory_budget == 0.5 and not options.fullgraph
    assert changed == Options(fullgraph=True, memory_budget=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fullgraph", 1), ("dynamic", "yes"), ("mode", "fastest"), ("verify", True), ("numerics", "exact"),
        ("fuel", -1), ("fuel", 1.5), ("threads", True), ("recompile_limit", 0), ("memory_budget", 1.5),
        ("memory_budget", True), ("cache_dir", ""),
    ],
)  # fmt: skip
def test_bad_values_name_the_option_and_the_value(name, value):
    with pytest.raises(UserError) as caught:
        Options().replace(**{name: value})
    assert name in str(caught.value) and repr(value) in str(caught.value)


def test_unknown_options_suggest_a_near_name():
    with pytest.raises(UserError, match="Did you mean 'memory_budget'"):
        Options().replace(memory_buget=0.5)


def test_environment():
    options = Options.from_environment(
        {
            "QUINTET_FULLGRAPH": "1", "QUINTET_DYNAMIC": "false", "QUINTET_FUEL": "12", "QUINTET_MEMORY_BUDGET": "0.25",
            "QUINTET_CACHE_DIR": "/somewhere", "QUINTET_VERIFY": "every_pass", "UNRELATED": "x",
        }
    )  # fmt: skip
    assert options.fullgraph is True and options.dynamic is False and options.fuel == 12
    assert options.memory_budget == 0.25 and options.cache_dir == "/somewhere" and options.verify == "every_pass"
    assert Options.from_environment({"QUINTET_DYNAMIC": "none", "QUINTET_FUEL": ""}).dynamic is None
    for value in ("maybe", "2.5"):
        with pytest.raises(UserError, match="QUINTET_FULLGRAPH"):
            Options.from_environment({"QUINTET_FULLGRAPH": value})


def test_cache_key_holds_what_changes_code():
    assert set(CACHE_KEY_FIELDS) <= set(Options.names())
    assert Options().cache_key() == Options(debug=True, cache_dir="/x", fullgraph=True).cache_key()
    assert Options().cache_key() != Options(numerics="eager_exact").cache_key()


def test_phases_subtract_nested_ones():
    report = Report()
    start = time.perf_counter()
    with report.phase("outer"):
        time.sleep(0.02)
        with report.phase("inner"):
            time.sleep(0.05)
        with report.phase("inner"):
            time.sleep(0.01)
    assert report.seconds["inner"] >= 0.06
    total = time.perf_counter() - start
    assert 0.02 <= report.seconds["outer"] <= total - report.seconds["inner"]


def test_report_text_and_json():
    report = Report()
    report.graph("f", nodes=3, ops=["sin", "add"], where=SourceLoc("a.py", 3, "f"))
    report.graph_break("data-dependent branch", SourceLoc("a.py", 4, "f"))
    report.kernel("k0", ["sin", "add"], 2)
    report.extern("aten.mm.default")
    report.extern("aten.mm.default")
    report.fallback("lower", "no rule for aten.foo", "a.py:5")
    report.recompile("f", "x.shape[0] changed")
    text = str(report)
    for part in ("a.py:3 in f", "data-dependent branch at a.py:4 in f", "k0 (2 loops): sin add",
                 "aten.mm.default x 2", "no rule for aten.foo at a.py:5", "x.shape[0] changed"):  # fmt: skip
        assert part in text, part
    data = json.loads(report.to_json())
    assert data["kernels"] == [{"name": "k0", "ops": ["sin", "add"], "loops": 2}]
    assert report.extern_counts() == {"aten.mm.default": 2}
    report.clear()
    assert not report.graphs and not report.seconds


def test_errors_say_what_where_and_what_to_do():
    error = UserError("bad thing", where=SourceLoc("a.py", 1), todo="Do better.")
    assert str(error) == "bad thing\n  at a.py:1\n  Do better."
    assert isinstance(error, QuintetError) and isinstance(error, ValueError)
    unsupported = DataDependentError("needs a value", where="a.py:2")
    assert isinstance(unsupported, Unsupported) and unsupported.reason == "needs a value"
    assert str(VerifierError("ATEN-C4", "writes", node="add_", after="fuse")) == (
        "[ATEN-C4] writes (at add_) (after pass 'fuse')"
    )
