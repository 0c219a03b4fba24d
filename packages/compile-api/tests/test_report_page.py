"""``report().to_html()``: one well-formed page with everything in it, nothing loaded, everything escaped.

It is read by Python's HTML parser, not drawn by a browser.
"""

from __future__ import annotations

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
    assert "tensor(x)" in sections["guards"]
    assert all(kernel.source in sections["kernels"] for kernel in report.kernels)
    assert all(line in sections["kernels"] for kernel in report.kernels for line in kernel.lines)
    assert "aten.sort" in sections["library-calls"] and "capture" in sections["time"]
    assert "at the peak" in sections["memory"] and "saved for the backward pass" in sections["memory"]
    assert "compiled" in sections["caches-and-files"]


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
