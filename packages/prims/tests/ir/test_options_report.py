"""Options, report and errors."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from pathlib import Path

import pytest

from prims.calls import CallRecord, StepRecord
from prims.debug import keep
from prims.eager import leave_to_eager, warn_user
from prims.errors import (
    CompileWarning,
    DataDependentError,
    NotCompiled,
    QuintetError,
    Unsupported,
    UserError,
    VerifierError,
)
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
        ("memory_budget", True), ("memory_budget", "lots"), ("memory_budget", "6 iB"), ("cache_dir", ""),
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
    line = SourceLoc("a.py", 3, "f")
    report.graph("f", nodes=3, ops=["sin", "add"], where=line)
    report.graph_break("data-dependent branch", SourceLoc("a.py", 4, "f"))
    report.kernel("k0", ["sin", "add"], 2)
    report.kernel("k1", ["cos"], parts=2, lines=[line, "a.py:4", line], source="void k1() {}", read=48, written=16,
                  launches=["k1", "k1_rest"])  # fmt: skip
    report.extern("aten.mm.default")
    report.extern("aten.mm.default")
    report.fallback("lower", "no rule for aten.foo", "a.py:5")
    report.recompile("f", "x.shape[0] changed")
    text = str(report)
    for part in ("a.py:3 in f", "data-dependent branch at a.py:4 in f", "k0 (2 loops): sin add",
                 "aten.mm.default x 2", "no rule for aten.foo at a.py:5", "x.shape[0] changed"):  # fmt: skip
        assert part in text, part
    assert text.startswith("partly: a graph break: data-dependent branch at a.py:4 in f; eager in part: no rule for")
    data = json.loads(report.to_json())
    assert data["verdict"] == report.verdict
    assert data["kernels"] == [
        {"name": "k0", "ops": ["sin", "add"], "loops": 2, "parts": 1, "lines": [], "source": "", "read": 0,
             "written": 0, "graph": None, "launches": ["k0"]},
        {"name": "k1", "ops": ["cos"], "loops": 1, "parts": 2, "lines": ["a.py:3 in f", "a.py:4"],
         "source": "void k1() {}", "read": 48, "written": 16, "graph": None, "launches": ["k1", "k1_rest"]},
    ]  # fmt: skip
    assert report.extern_counts() == {"aten.mm.default": 2}
    report.clear()
    assert not report.graphs and not report.seconds


def test_what_moves_and_what_a_call_took():
    report = Report()
    assert [report.moves(10, 20, 30, moved) for moved in (60, 90)] == [0, 1]
    step = StepRecord("kernel", "k0", 0.001, 0.003, read=48, written=16)
    report.profiled(CallRecord("a clock", 0.01, 0.02, (step, step), {"cpu": 1e6}))
    text = str(report)
    assert "moved: 90 bytes, at least 60 needed (10 inputs, 20 parameters, 30 results), 1.5 times as many" in text
    assert "profiled call: 10 ms (a clock), undisturbed 20 ms: 2 kernels 60%, 0 library calls 0%, elsewhere 40%" in text
    assert "60% 2 x k0: 6 ms, 2.13e-05 GB/s, 2% of main memory's" in text
    data = json.loads(report.to_json())
    assert data["moved"][1] == {"inputs": 10, "parameters": 20, "outputs": 30, "moved": 90}
    assert data["calls"][0]["steps"][0]["written"] == 16
    report.clear()
    assert not report.moved and not report.calls


def test_errors_say_what_where_and_what_to_do():
    error = UserError("bad thing", where=SourceLoc("a.py", 1), todo="Do better.")
    assert str(error) == "bad thing\n  at a.py:1\n  Do better."
    assert isinstance(error, QuintetError) and isinstance(error, ValueError)
    unsupported = DataDependentError("needs a value", where="a.py:2")
    assert isinstance(unsupported, Unsupported) and unsupported.reason == "needs a value"
    assert str(VerifierError("ATEN-C4", "writes", node="add_", after="fuse")) == (
        "[ATEN-C4] writes (at add_) (after pass 'fuse')"
    )


def test_equal_lines_are_one_and_no_time_is_left_out():
    report = Report()
    for _ in range(3):
        report.kernel("k_sin", ["sin"])
    report.kernel("k_cos", ["cos"])
    for _ in range(2):
        report.graph_break("a reason", "a.py:3")
    report.seconds.update(capture=0.0123, nothing=0.0004)
    text = str(report)
    assert "  3 x kernel k_sin (1 loops): sin\n" in text and "  kernel k_cos (1 loops): cos\n" in text
    assert len(report.breaks) == 1 and len(report.kernels) == 4
    assert "capture: 0.012 s" in text and "nothing" not in text


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        ([], "not called yet"),
        ([("frame", "compiled", None), ("graph", "compiled", None)], "compiled"),
        ([("frame", "compiled", None)], "compiled"),
        ([("frame", "compiled", None), ("graph", "eager", "why")], "eager: why"),
        ([("graph", "compiled", None), ("graph", "eager", "why")], "partly: eager in part: why"),
        ([("call", "eager", "why"), ("call", "eager", "because")], "eager: why"),
        ([("frame", "compiled", None), ("call", "eager", "why"), ("call", "eager", "because")],
         "partly: eager in 2 parts, the first: why"),
        ([("frame", "refused", "why")], "eager: why"),
        ([("call", "raised", "an error")], "eager: an error"),
        ([("call", "raised", "an error"), ("frame", "compiled", None)], "compiled"),
        ([("call", "nothing", "no operation")], "eager: no operation"),
        ([("call", "nothing", "no operation"), ("frame", "compiled", None)], "compiled"),
    ],
)  # fmt: skip
def test_verdicts(records, verdict):
    report = Report()
    for subject, status, reason in records:
        assert report.status(subject, status, reason)
        assert not report.status(subject, status, reason)
    assert report.verdict == verdict and str(report).splitlines()[0] == verdict
    assert len(report.statuses) == len(records)


def test_what_is_compiled_otherwise_than_asked_is_not_eager():
    report = Report()
    report.status("graph", "compiled")
    report.fallback("cudagraphs", "inputs live on several devices", eager=False)
    assert report.verdict == "compiled" and "several devices" in str(report)


def test_leaving_to_eager():
    report, options = Report(), Options()
    with pytest.warns(CompileWarning, match="why\n  at a.py:3\n  Do better.") as caught:
        for where in ("a.py:3", "b.py:4"):  # once for a reason, wherever
            leave_to_eager(report, options, "stage", "why", where, todo="Do better.")
    assert len(caught) == 1 and caught[0].filename == __file__
    assert [f.stage for f in report.fallbacks] == ["stage"] and len(report.statuses) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leave_to_eager(report, options, "stage", "in part", subject="frame", quiet=True)
        with pytest.raises(NotCompiled, match="fullgraph=True, but this runs eagerly: other") as raised:
            leave_to_eager(report, options.replace(fullgraph=True), "stage", "other", cause=KeyError("behind"))
    assert isinstance(raised.value.__cause__, KeyError) and isinstance(raised.value, Unsupported)
    with pytest.warns(CompileWarning):
        leave_to_eager(None, None, "stage", "why")


def test_a_warning_is_at_the_users_line_whoever_calls_between():
    @contextlib.contextmanager
    def around():
        yield

    ours: dict[str, object] = {"__name__": "prims.inner", "warn_user": warn_user, "around": around}
    exec("@around()\ndef warns():\n    warn_user('now')", ours)
    with pytest.warns(CompileWarning) as caught:
        ours["warns"]()  # by way of contextlib's
    assert [warning.filename for warning in caught] == [__file__]


def test_no_variable_is_ignored_in_silence():
    with pytest.raises(UserError, match="QUINTET_MEMORY_BUDGET"):
        Options.from_environment({"QUINTET_MEMRY_BUDGET": "0.5"})
    with pytest.raises(UserError, match="QUINTET_VERIFY"):
        Options.from_environment({"quintet_verify": "off"})
    with pytest.warns(CompileWarning, match="QUINTET_COLOUR has no effect"):
        assert Options.from_environment({"QUINTET_COLOUR": "red", "QUINTETS": "5"}) == Options()


def test_debug_keeps_texts(tmp_path, capsys):
    report, options = Report(), Options(debug=True, cache_dir=str(tmp_path))
    keep(options, report, "a graph of <f>", lambda: "text")
    keep(options, report, "broken", lambda: 1 / 0)
    keep(options.replace(debug=False), report, "unasked", lambda: 1 / 0)
    first, second = report.kept
    assert Path(first.path).read_text() == "text\n" and Path(first.path).is_relative_to(tmp_path / "debug")
    assert "ZeroDivisionError" in Path(second.path).read_text()
    assert f"a graph of <f>: {first.path}" in capsys.readouterr().err and first.path in str(report)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.warns(CompileWarning, match="cannot make the folder"):
        keep(options.replace(cache_dir=str(blocked)), report, "lost", lambda: "text")
