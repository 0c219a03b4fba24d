"""A report as one self-contained HTML page: nothing is loaded from elsewhere, every text of the program is escaped."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prims.report import GraphRecord, KernelRecord, Report

__all__ = ["page"]

_PLACE = re.compile(r"(.+):(\d+)(?: in .*)?")

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
padding: .2em .8em .2em 0; border-bottom: 1px solid #eee } th { color: #666; font-weight: normal }
td.n { text-align: right; white-space: nowrap }
pre, code { font: 12px/1.4 ui-monospace, monospace } pre { background: #f6f6f6; padding: .6em; overflow-x: auto }
code.line { color: #065 } .where { color: #777 } .hint { color: #850 } .good { color: #063 } .bad { color: #a00 }
summary { cursor: pointer } .span { fill: #7aa6d6; stroke: #fff } svg text { font: 11px system-ui, sans-serif }
"""


def page(report: Report, title: str = "Compilation report") -> str:
    """The page's text."""
    parts = [
        _head(report, title), _findings(report), _stances(report), _policies(report), _breaks(report),
        _recompiles(report), _graphs(report), _guards(report), _kernels(report), _externs(report), _memory(report),
        _timeline(report), _caches(report),
    ]  # fmt: skip
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


def _head(report: Report, title: str) -> str:
    verdict = report.verdict
    kind = "good" if verdict == "compiled" else "bad" if verdict.startswith("eager") else "hint"
    counts = ", ".join(
        f"{len(getattr(report, name))} {name}"
        for name in ("graphs", "breaks", "kernels", "externs", "fallbacks", "recompiles")
    )
    return f"<h1>{escape(title)}</h1><p class='{kind}'><b>{escape(verdict)}</b></p><p>{counts}</p>"


def _section(name: str, body: str) -> str:
    return f"<section id='{name.lower().replace(' ', '-')}'><h2>{escape(name)}</h2>{body}</section>" if body else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; one that begins with a digit stands to the right."""
    body = "".join(
        "<tr>" + "".join(f"<td{_number(cell)}>{cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{body}</table>" if body else ""


def _number(cell: str) -> str:
    return " class='n'" if cell[:1].isdigit() else ""


def _line(where: str | None) -> str:
    """A place, and the program's line there."""
    if not where:
        return ""
    found = _PLACE.fullmatch(where)
    text = linecache.getline(found[1], int(found[2])).strip() if found else ""
    return f"<span class='where'>{escape(where)}</span>" + (
        f"<br><code class='line'>{escape(text)}</code>" if text else ""
    )


def _findings(report: Report) -> str:
    rows = [
        (
            escape(f.check),
            f"<b>{escape(f.text)}</b>" + (f"<br>again by <code>{escape(f.path)}</code>" if f.path else ""),
            _line(f.where),
        )
        for f in report.findings
    ]
    return _section("Findings", _table(("check", "what", "where"), rows))


def _stances(report: Report) -> str:
    rows = [
        (escape(s.stance), escape(f"{s.done}: {s.reason}" if s.reason else s.done), str(s.count), _line(s.where))
        for s in report.stances
    ]
    return _section("Stances", _table(("stance", "what was done under it", "times", "where"), rows))


def _policies(report: Report) -> str:
    rows = [
        (escape(p.policy), "yes" if p.held else "<b>not known</b>", escape(f"{p.op}: {p.what}"), str(p.count),
         _line(p.where))
        for p in report.policies
    ]  # fmt: skip
    return _section("Policies about bits", _table(("policy", "holds", "at", "times", "where"), rows))


def _breaks(report: Report) -> str:
    rows = [
        (f"{escape(b.reason)}<br><span class='hint'>{escape(b.hint)}</span>", _line(b.where)) for b in report.breaks
    ]
    left = [
        (f"{'left to eager' if f.eager else 'not as asked'} by {escape(f.stage)}: {escape(f.reason)}", _line(f.where))
        for f in report.fallbacks
    ]
    return _section("Breaks and what runs eagerly", _table(("why, and what to do", "where"), [*rows, *left]))


def _recompiles(report: Report) -> str:
    rows = [(escape(r.code), escape(r.reason), _line(r.where)) for r in report.recompiles]
    return _section("Recompilations", _table(("of", "what differed", "where"), rows))


def _graphs(report: Report) -> str:
    return _section("Graphs", "".join(map(_graph, report.graphs)))


def _graph(graph: GraphRecord) -> str:
    """The operators in order, those of one line of the program together."""
    groups: list[tuple[str | None, list[str]]] = []
    for op, line in zip(graph.ops, graph.lines or (None,) * len(graph.ops), strict=True):
        if not groups or groups[-1][0] != line:
            groups.append((line, []))
        groups[-1][1].append(op)
    rows = [(_line(line), f"<code>{escape(' '.join(ops))}</code>") for line, ops in groups]
    opened = " open" if graph.dialect == "torch" and graph.nodes <= 60 else ""
    return (
        f"<details{opened}><summary><b>{escape(graph.name)}</b> ({escape(graph.dialect)}): {graph.nodes} operators "
        f"<span class='where'>{escape(graph.where or '')}</span></summary>"
        f"{_table(('line', 'operators'), rows)}</details>"
    )


def _guards(report: Report) -> str:
    parts = []
    for name, guards in report.guards:
        texts = "\n".join(escape(str(guard)) for guard in guards)
        parts.append(f"<details><summary><b>{escape(name)}</b>: {len(guards)}</summary><pre>{texts}</pre></details>")
    return _section("Guards", "".join(parts))


def _kernels(report: Report) -> str:
    groups: dict[str, list[KernelRecord]] = {}
    for kernel in report.kernels:
        groups.setdefault(kernel.source or kernel.name, []).append(kernel)
    parts = []
    for source, kernels in groups.items():
        first = kernels[0]
        lines = dict.fromkeys(line for kernel in kernels for line in kernel.lines)
        moved = sum(kernel.bytes for kernel in kernels)
        parts.append(
            f"<details><summary>{len(kernels)} x <b>{escape(first.name)}</b>: {escape(' '.join(first.ops))}"
            f"{f' <span class=where>({_bytes(moved)} moved)</span>' if moved else ''}</summary>"
            + "<br>".join(map(_line, lines))
            + (f"<pre>{escape(source)}</pre>" if first.source else "")
            + "</details>"
        )
    return _section("Kernels", "".join(parts))


def _externs(report: Report) -> str:
    rows = [(f"{count}", f"<code>{escape(name)}</code>") for name, count in sorted(report.extern_counts().items())]
    return _section("Library calls", _table(("calls", "operator"), rows))


def _memory(report: Report) -> str:
    parts = []
    for memory, count in Counter(report.memory).items():
        rows = [(_bytes(size), f"<code>{escape(what)}</code>", _line(where)) for size, what, where in memory.held]
        parts.append(
            f"<details><summary>{f'{count} x ' if count > 1 else ''}<b>{_bytes(memory.peak)}</b> at most, "
            f"{_bytes(memory.bound)} needed, in {memory.pieces} pieces {escape(memory.note or '')}</summary>"
            + _table(("at the peak", "value", "where"), rows)
            + "</details>"
        )
    for saved in report.saved:
        rows = [(_bytes(size), f"<code>{escape(what)}</code>", _line(where)) for size, what, where in saved.largest]
        parts.append(
            f"<details><summary>saved for the backward pass: <b>{_bytes(saved.bytes)}</b> in {saved.count} values"
            f"</summary>{_table(('largest', 'value', 'where'), rows)}</details>"
        )
    return _section("Memory", "".join(parts))


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def _timeline(report: Report) -> str:
    """Phases as bars over time, a row for each depth of nesting."""
    spans = report.spans
    if not spans:
        return ""
    end = max(max(s.start + s.seconds for s in spans), 1e-9)
    depth = max(s.depth for s in spans)
    bars = []
    for s in spans:
        x, width = 1000 * s.start / end, max(1000 * s.seconds / end, 0.5)
        label = f"<text x='{x + 3:.1f}' y='{22 * s.depth + 15}'>{escape(s.name)}</text>"
        text = label if width > 9 * len(s.name) else ""
        bars.append(
            f"<g><rect class='span' x='{x:.1f}' y='{22 * s.depth + 2}' width='{width:.1f}' height='18'>"
            f"<title>{escape(s.name)}: {s.seconds:.4f} s, from {s.start:.4f}</title></rect>{text}</g>"
        )
    rows = [(f"{spent:.4f}", escape(name)) for name, spent in sorted(report.seconds.items(), key=lambda x: -x[1])]
    return _section(
        "Time",
        f"<p>{end:.3f} s from the first phase to the end of the last.</p>"
        f"<svg viewBox='0 0 1000 {22 * (depth + 1)}' width='100%'>{''.join(bars)}</svg>"
        "<details><summary>seconds by phase, without what is nested in it</summary>"
        f"{_table(('seconds', 'phase'), rows)}</details>",
    )


def _caches(report: Report) -> str:
    body = ""
    if report.caches:
        found, compiled = sum(c.found for c in report.caches), sum(c.compiled for c in report.caches)
        body += f"<p>{found} kernels found in memory or on disk, {compiled} compiled.</p>"
    tunings = [
        (escape(t.problem), escape(t.winner), escape(", ".join(f"{n} {ms:.4f}" for n, ms in _ranked(t.times))))
        for t in report.tunings
    ]
    body += _table(("tuned", "winner", "ms"), tunings)
    body += "".join(f"<p>kept {escape(k.what)}: <code>{escape(k.path)}</code></p>" for k in report.kept)
    return _section("Caches and files", body)


def _ranked(times: Any) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda pair: pair[1])[:4]
