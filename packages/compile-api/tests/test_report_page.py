"""``report().to_html()``: one well-formed page with everything in it, nothing loaded, everything escaped.

It is read by Python's HTML parser, not drawn by a browser.
"""

from __future__ import annotations

import json
import re
import time
from html import unescape
from html.parser import HTMLParser

import pytest
import torch

import compile_api
from prims.page import page
from prims.report import Report

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The texts of a page by section; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, str] = {"": ""}
        self.at = ""
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "section":
            self.at = dict(attrs)["id"]
            self.sections[self.at] = ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "section":
            self.at = ""

    def handle_data(self, data):
        self.sections[self.at] += data


def program(x, n, text="<script>alert('&')</script>"):
    y = x.sin() * n
    if y.sum() > 0:  # <b>breaks</b> & more
        y = y + len(text)
    return torch.sort(y).values.cos() @ y.reshape(8, 8)[0].repeat(8)


@pytest.fixture(scope="module")
def report():
    made = compile_api.compile(program, options={"cache": False, "check": "nan"})
    x = torch.rand(64, requires_grad=True)
    made(x, 2).sum().backward()
    made(x, 2, text="<i>")
    with pytest.warns(compile_api.CompileWarning):
        made(x * float("inf"), 2)
    return made.report()


def test_everything_is_there(report, tmp_path):
    path = tmp_path / "report.html"
    report.to_html(path)
    text = path.read_text()
    found = Page(text)
    sections = found.sections
    assert report.verdict in sections[""]
    assert {"findings", "breaks-and-what-runs-eagerly", "recompilations", "graphs", "guards", "kernels",
            "library-calls", "memory", "time", "caches-and-files"} < set(sections)  # fmt: skip
    assert "if y.sum() > 0:  # <b>breaks</b> & more" in sections["breaks-and-what-runs-eagerly"]
    assert "torch.where" in sections["breaks-and-what-runs-eagerly"]  # the mending
    assert report.recompiles[0].reason in sections["recompilations"]
    assert "y = x.sin() * n" in sections["graphs"] and f"{__file__}:" in sections["graphs"]
    assert "x is a tensor: float32 [64]" in sections["guards"]
    assert all(kernel.source in sections["kernels"] for kernel in report.kernels)
    assert all(line in sections["kernels"] for kernel in report.kernels for line in kernel.lines)
    assert "aten.sort" in sections["library-calls"] and "capture" in sections["time"]
    assert "at the peak" in sections["memory"] and "saved for the backward pass" in sections["memory"]
    assert "compiled" in sections["caches-and-files"]


#: What only the page and the JSON show: in the text such lists would hide the rest.
ONLY_COUNTED_IN_THE_TEXT = {"graph op", "graph line", "kernel line", "kernel source", "guard", "program why",
                            "program place"}  # fmt: skip


def test_each_record_is_in_the_text_the_json_and_the_page():
    """A report of one record of each kind, whose texts are told apart by names of their own."""
    made = Report(asked=("deterministic",))
    said = []

    def told(*names):
        said.extend(names)
        return [f"<{name}>" for name in names]

    made.graph(*told("graph"), nodes=1, ops=told("graph op"), where=told("graph place")[0], lines=told("graph line"))
    made.graph_break(*told("break", "break place", "break hint"))
    made.kernel("k", told("kernel op"), lines=told("kernel line"), source=told("kernel source")[0])
    made.extern(*told("extern"))
    made.load(*told("loaded", "loaded name", "loaded key"))
    made.program("p", *told("program", "program why", "program place"))
    made.fallback(*told("fallback stage", "fallback", "fallback place"), todo=told("fallback todo")[0])
    made.not_exact(*told("inexact", "inexact why", "inexact place"))
    made.policy(*told("policy", "policy operator", "policy what", "policy place"))
    made.recompile(*told("recompiled", "recompiled why"))
    made.tuning(*told("tuned", "winner"), times={"a": 1.0}, dropped=dict([told("dropped", "dropped why")]))
    made.planned_memory(1, 1, 1, *told("memory note"), [(1, *told("holder", "holder place"))])
    made.saved_for_backward(1, 1, [(1, *told("saved", "saved place"))])
    made.keep(*told("kept", "kept path"))
    made.finding(*told("check", "finding", "finding place", "finding path"))
    made.under_stance(*told("stance", "stance done", "stance why", "stance place"))
    made.guarded("g", told("guard"))
    code, place, status, why = told("background", "background place", "background status", "background why")
    made.in_background(code, place, status, reason=why)
    with made.phase(*told("phase")):
        time.sleep(0.001)
    filled = {name for name, value in vars(made).items() if isinstance(value, list) and value}
    others = {"statuses", "caches", "spans", "moved", "calls"}  # without a text of their own, or tested elsewhere
    assert filled | others >= set(json.loads(made.to_json())) - {"verdict", "seconds"}
    text, data, html = str(made), made.to_json(), unescape(page(made))
    missing = {form: [name for name in said if f"<{name}>" not in shown]
               for form, shown in (("json", data), ("page", html), ("text", text))}  # fmt: skip
    assert missing == {"json": [], "page": [], "text": [n for n in said if n in ONLY_COUNTED_IN_THE_TEXT]}
    for counted in ("1 operator ", "kernel k", "guards of g: 1", "programs on disk: 1 <program>"):
        assert counted in text, counted


def test_rows_of_a_graph_are_joined_by_arrows():
    """An arrow goes from the row of each operand to the row of the operator, none within a row."""
    made = Report()
    made.graph("g", nodes=4, ops="abcd", lines=("f.py:1", "f.py:1", "f.py:2", "f.py:3"), takes=((), (0,), (1,), (0, 2)))
    drawing = page(made).partition("<div class='graph'>")[2].partition("</svg>")[0]
    ends = [tuple(int(y) // 40 for y in found) for found in re.findall(r"d='M\d+ (\d+)H.*?V.*?(\d+)H\d+'", drawing)]
    assert ends == [(0, 1), (0, 2), (1, 2)]
    assert len({x for x in re.findall(r"H(\d+)Q", drawing)}) == 2  # those that run beside each other have lanes


def test_nothing_of_the_program_is_markup(report):
    text = page(report, title="<script>1</script>")
    found = Page(text)
    assert not any(tag in text for tag in ("<script", "<b>breaks", "<i>"))
    assert "<script>1</script>" in found.sections[""]
    hostile = Report()
    for name in ("<img src=x onerror=1>", "a' onload='1", '"><svg onload=1>'):
        hostile.graph(name, ops=[name], where=name, lines=[name])
        hostile.graph_break(name, name, name)
        hostile.kernel(name, [name], lines=[name], source=name)
        hostile.extern(name)
        hostile.fallback(name, name, name)
        hostile.recompile(name, name, name)
        hostile.finding(name, name, name, name)
        hostile.policy(name, name, name, name)
        hostile.planned_memory(1, 1, 1, name, [(1, name, name)])
        hostile.saved_for_backward(1, 1, [(1, name, name)])
        hostile.tuning(name, name, times={name: 1.0}, dropped={})
        hostile.keep(name, name)
        hostile.guarded(name, [name])
        with hostile.phase(name):
            pass
    assert not [a for a in Page(page(hostile)).attributes if a[1].startswith("on")]


def test_nothing_is_loaded(report):
    attributes = Page(page(report)).attributes
    assert not [a for a in attributes if a[1] in ("src", "href", "srcset", "data", "action")]
    assert "url(" not in page(report) and "@import" not in page(report)


def test_an_empty_report():
    assert "not called yet" in Page(page(Report())).sections[""]


def test_spans_are_the_phases(report):
    spans = {span.name for span in report.spans}
    assert {"capture", "aot", "lower", "codegen", "inductor.fuse", "backward"} <= spans
    total = sum(span.seconds for span in report.spans if span.depth == 0)
    assert abs(total - sum(report.seconds.values())) <= 0.05 * total


def test_who_holds_memory_at_the_peak():
    def wide(x):
        big = (x[:, None] * x).sort(0).values  # 64 times as large
        return big.sort(1).values.sum(0)

    made = compile_api.compile(wide, options={"cache": False})
    made(torch.randn(64))
    (memory,) = made.report().memory
    size, what, where = memory.held[0]
    assert size == 64 * 64 * 4 and "[64, 64]" in what
    assert f"{__file__}:{wide.__code__.co_firstlineno}" in where or f":{wide.__code__.co_firstlineno + 1}" in where


def test_kernels_that_compute_the_same_are_one_line():
    report = Report()
    for k in range(300):
        report.kernel(f"k_{k % 100}", ["add", "tanh"])
    report.kernel("other", ["exp"])
    lines = [line.strip() for line in str(report).splitlines() if "kernel " in line]
    assert lines == ["300 x kernel k_0 and 99 like it (1 loops): add tanh", "kernel other (1 loops): exp"]
