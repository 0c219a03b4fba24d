"""A report as one self-contained HTML page: nothing is loaded from elsewhere, every text of the program is escaped."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from prims.report import many

if TYPE_CHECKING:
    from prims.calls import CallRecord, Group
    from prims.report import ExternRecord, GraphRecord, KernelRecord, Report

__all__ = ["page"]

#: Rows of a table that are shown at once.
_SHOWN = 12
#: Pixels that a row of a graph is high.
_ROW = 40
#: Arrows beyond so many lanes share the outermost.
_MOST_LANES = 13
_PLACE = re.compile(r"(.+):(\d+)(?: in .*)?")

_STYLE = """
:root { color-scheme: light dark; --text: #222; --back: #fff; --faint: #6a6a6a; --line: #ddd; --code: #f5f5f5;
--user: #065f46; --good: #05603a; --hint: #8a4b00; --bad: #b00020; --kernel: #4c8bd0; --library: #d08a3c; --gap: #fff }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --back: #16181b; --faint: #9a9a9a; --line: #363a3f;
--code: #212429; --user: #6fcfa3; --good: #6fcf97; --hint: #e5b567; --bad: #ff8a80; --kernel: #4c84c0;
--library: #b87a36; --gap: #16181b } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: var(--text);
background: var(--back); overflow-wrap: anywhere }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--line) }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; vertical-align: top;
padding: .2em .8em .2em 0; border-bottom: 1px solid var(--line) } td { min-width: 8em }
th { color: var(--faint); font-weight: normal; white-space: nowrap }
td:last-child { min-width: 14em }
.many td:last-child:not(.n) { min-width: 26em } td.n, th.n { text-align: right; white-space: nowrap; min-width: 0 }
.wide { overflow-x: auto } .wide svg { min-width: 700px; display: block }
.name { display: block; border-left: .8em solid; padding-left: .4em; min-width: 14em }
.name.of-kernel { border-color: var(--kernel) } .name.of-library { border-color: var(--library) }
pre, code { font: 12px/1.4 ui-monospace, monospace }
pre { background: var(--code); padding: .6em; overflow-x: auto; overflow-wrap: normal }
code.line { color: var(--user) } .where { color: var(--faint) } .hint { color: var(--hint) }
.good { color: var(--good) } .bad { color: var(--bad) }
summary { cursor: pointer; padding: .15em 0 } svg text { font: 11px system-ui, sans-serif; fill: #fff }
.kernel { fill: var(--kernel) } .library { fill: var(--library) } rect { stroke: var(--gap); stroke-width: .4 }
.graph { display: flex; margin: .4em 0 } .graph svg { flex: none } .graph path { fill: none; stroke: var(--kernel) }
.graph path.head { fill: var(--kernel); stroke: none } .graph table { table-layout: fixed }
.graph tr { height: 40px } .graph td { height: 40px; box-sizing: border-box; padding: 0 .8em 0 .4em; min-width: 0;
vertical-align: middle; line-height: 17px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
.key { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin: 0 .3em 0 .8em }
.key.kernel { background: var(--kernel) } .key.library { background: var(--library) }
@media (max-width: 40em) { body { margin: 1em auto; padding: 0 .6em } td, th { padding-right: .5em } }
"""


def page(report: Report, title: str = "Compilation report") -> str:
    """The page's text."""
    parts = [
        _head(report, title), _findings(report), _stances(report), _background(report), _policies(report),
        _breaks(report), _recompiles(report), _graphs(report), _guards(report), _moved(report), _kernels(report),
        _externs(report), _calls(report), _memory(report), _timeline(report), _caches(report),
    ]  # fmt: skip
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


def _head(report: Report, title: str) -> str:
    verdict = report.verdict
    kind = "good" if verdict == "compiled" else "bad" if verdict.startswith("eager") else "hint"
    return f"<h1>{escape(title)}</h1><p class='{kind}'><b>{escape(verdict)}</b></p><p>{report.counts}</p>"


def _section(name: str, body: str) -> str:
    return f"<section id='{name.lower().replace(' ', '-')}'><h2>{escape(name)}</h2>{body}</section>" if body else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; one that begins with a digit stands to the right."""
    cells = [*rows]
    if not cells:
        return ""
    body = "".join("<tr>" + "".join(f"<td{_number(cell)}>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    head = "".join(f"<th{_number(cell)}>{escape(head)}</th>" for head, cell in zip(heads, cells[0], strict=True))
    kind = " class='many'" if len(heads) > 4 else ""
    return f"<div class='wide'><table{kind}><tr>{head}</tr>{body}</table></div>"


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


def _background(report: Report) -> str:
    rows = [
        (escape(b.code), escape(f"{b.status}: {b.reason}" if b.reason else b.status), str(b.calls), str(b.programs),
         f"{b.seconds:.1f}", _line(b.where))
        for b in report.background
    ]  # fmt: skip
    columns = ("function", "its newest program", "calls that ran eagerly meanwhile", "programs in use", "s", "where")
    return _section("Compiled in the background", _table(columns, rows))


def _policies(report: Report) -> str:
    rows = [
        (escape(p.policy), "yes" if p.held else "<b>not known</b>", escape(f"{p.op}: {p.what}"), str(p.count),
         _line(p.where))
        for p in report.policies
    ]  # fmt: skip
    rows += [
        ("numerics='eager_exact'", "<b>not known</b>", escape(f"{record.op}: {record.reason}"), f"{count}",
         _line(record.where))
        for record, count in Counter(report.inexact).items()
    ]  # fmt: skip
    return _section("Policies about bits", _table(("policy", "holds", "at", "times", "where"), rows))


def _breaks(report: Report) -> str:
    rows = [
        (f"{escape(b.reason)}<br><span class='hint'>{escape(b.hint)}</span>", _line(b.where)) for b in report.breaks
    ]
    left = [
        (f"{'left to eager' if f.eager else 'not as asked'} by {escape(f.stage)}: {escape(f.reason)}"
         f"<br><span class='hint'>{escape(f.todo)}</span>", _line(f.where))
        for f in report.fallbacks
    ]  # fmt: skip
    return _section("Breaks and what runs eagerly", _table(("why, and what to do", "where"), [*rows, *left]))


def _recompiles(report: Report) -> str:
    rows = [(escape(r.code), escape(r.reason), _line(r.where)) for r in report.recompiles]
    return _section("Recompilations", _table(("of", "what differed", "where"), rows))


def _graphs(report: Report) -> str:
    return _section("Graphs", "".join(map(_graph, report.graphs)))


def _graph(graph: GraphRecord) -> str:
    """The operators in order, those of one line of the program in one row, and arrows from row to row."""
    groups: list[tuple[str | None, list[str]]] = []
    row_of = []
    for op, line in zip(graph.ops, graph.lines or (None,) * len(graph.ops), strict=True):
        if not groups or groups[-1][0] != line:
            groups.append((line, []))
        groups[-1][1].append(op)
        row_of.append(len(groups) - 1)
    edges = {
        (row_of[taken], row_of[k])
        for k, operands in enumerate(graph.takes) for taken in operands if row_of[taken] < row_of[k]
    }  # fmt: skip
    rows = "".join(
        f"<tr><td>{_line(line)}</td><td title='{escape(' '.join(ops))}'><code>{escape(' '.join(ops))}</code></td></tr>"
        for line, ops in groups
    )
    opened = " open" if graph.dialect == "torch" and graph.nodes <= 60 else ""
    return (
        f"<details{opened}><summary><b>{escape(graph.name)}</b> ({escape(graph.dialect)}): "
        f"{many(graph.nodes, 'operator')} <span class='where'>{escape(graph.where or '')}</span></summary>"
        f"<div class='graph'>{_arrows(edges, len(groups))}<table>{rows}</table></div></details>"
    )


def _arrows(edges: Iterable[tuple[int, int]], rows: int) -> str:
    """Arrows from rows to later rows beside a list, each in the innermost lane that is free over its length."""
    lanes: list[int] = []  # the row up to which each is taken
    placed = []
    for start, end in sorted(edges):
        lane = next((k for k, taken in enumerate(lanes) if taken <= start), len(lanes))
        lanes[lane : lane + 1] = [end]
        placed.append((start, end, min(lane, _MOST_LANES)))
    width = 14 + 6 * min(len(lanes), _MOST_LANES + 1)
    drawn = []
    for start, end, lane in placed:
        out, top, bottom = width - 8 - 6 * lane, _ROW * start + _ROW // 2 + 3, _ROW * end + _ROW // 2 - 3
        drawn.append(
            f"<path d='M{width} {top}H{out + 4}Q{out} {top} {out} {top + 4}V{bottom - 4}Q{out} {bottom} {out + 4} "
            f"{bottom}H{width - 1}'/><path class='head' d='M{width} {bottom}l-5 -3v6z'/>"
        )
    return f"<svg width='{width}' height='{_ROW * rows}'>{''.join(drawn)}</svg>"


def _guards(report: Report) -> str:
    parts = []
    for name, guards in report.guards:
        texts = "\n".join(escape(str(guard)) for guard in guards)
        parts.append(f"<details><summary><b>{escape(name)}</b>: {len(guards)}</summary><pre>{texts}</pre></details>")
    return _section("Guards", "".join(parts))


def _kernels(report: Report) -> str:
    groups: dict[str, list[KernelRecord]] = {}
    for kernel in report.kernels:
        groups.setdefault(kernel.name, []).append(kernel)
    parts = []
    for kernels in groups.values():
        first, sources = kernels[0], dict.fromkeys(kernel.source for kernel in kernels if kernel.source)
        lines = dict.fromkeys(line for kernel in kernels for line in kernel.lines)
        names = ", ".join(first.launches)
        parts.append(
            f"<details><summary>{len(kernels)} x <b>{escape(names)}</b>: {escape(' '.join(first.ops))}"
            f"{_told_bytes(report, kernels)}</summary>"
            + "<br>".join(map(_line, lines))
            + "".join(f"<pre>{escape(source)}</pre>" for source in sources)
            + "</details>"
        )
    return _section("Kernels", "".join(parts))


def _told_bytes(report: Report, some: Sequence[KernelRecord | ExternRecord]) -> str:
    """What kernels or calls read and write, and their share of what their graphs move."""
    read, written = sum(one.read for one in some), sum(one.written for one in some)
    if not read + written:
        return ""
    graphs = {one.graph for one in some if one.graph is not None}
    whole = sum(report.moved[number].moved for number in graphs)
    share = f": {(read + written) / whole:.0%}" if whole else ""
    return f" <span class='where'>({_bytes(read)} read, {_bytes(written)} written{share})</span>"


def _moved(report: Report) -> str:
    """Bytes to and from memory beside the lower bound, a row for each compiled graph."""
    rows = [
        (f"{count}", _bytes(m.moved), _bytes(m.least), f"{m.moved / m.least:.3g}" if m.least else "",
         _bytes(m.inputs), _bytes(m.parameters), _bytes(m.outputs))
        for m, count in Counter(report.moved).items()
    ]  # fmt: skip
    heads = ("graphs", "moved", "at least", "times", "inputs", "parameters", "results")
    said = (
        "<p class='where'>Each kernel and library call reads and writes each of its elements once; the least is what a "
        "graph would move as a single kernel: inputs and parameters read once, results written once. Percentages below "
        "are shares of what the graphs of a kernel or call move.</p>"
    )
    return _section("Bytes moved", _table(heads, rows) + said if rows else "")


def _externs(report: Report) -> str:
    groups: dict[str, list[ExternRecord]] = {}
    for record in report.externs:
        groups.setdefault(record.name, []).append(record)
    rows = [
        (f"{len(some)}", f"<code>{escape(name)}</code>{_told_bytes(report, some)}")
        for name, some in sorted(groups.items())
    ]
    return _section("Library calls", _table(("calls", "operator"), rows))


def _calls(report: Report) -> str:
    """Each profiled call as bars over time, and what ran in it, the longest first."""
    return _section("A profiled call", "".join(map(_call, report.calls)))


def _call(call: CallRecord) -> str:
    kinds = {"kernel": "generated kernels", "library": "library calls"}
    spent = {kind: call.seconds_in(kind) for kind in kinds}
    keys = "".join(
        f"<span class='key {kind}'></span>{text} {1e3 * spent[kind]:.4g} ms ({call.share(spent[kind]):.0%})"
        for kind, text in kinds.items()
    )
    bars = [
        _bar(s.start / call.seconds, s.seconds / call.seconds, s.depth, s.kind, s.name,
             f"{s.name}: {1e6 * s.seconds:.1f} µs from {1e3 * s.start:.4f} ms, {_bytes(s.read)} read, "
             f"{_bytes(s.written)} written {' '.join(s.lines[:1])}")
        for s in call.steps
    ] if call.seconds else []  # fmt: skip
    heads = ("share", "ms", "times", "what", "moved", "GB/s", "of memory's", "line")
    rows = [_group(call, group) for group in call.groups()]
    more = f"<details><summary>{len(rows) - _SHOWN} more</summary>{_table(heads, rows[_SHOWN:])}</details>"
    return (
        f"<p>A profiled call of <b>{1e3 * call.seconds:.4g} ms</b> ({escape(call.what)}); one in which nothing was "
        f"timed took {1e3 * call.undisturbed:.4g} ms.</p><p>{keys}, elsewhere {1e3 * call.elsewhere:.4g} ms "
        f"({call.share(call.elsewhere):.0%}): guards, Python, allocations, waiting.</p>"
        f"{_bars(bars, max((s.depth for s in call.steps), default=0))}"
        f"{_table(heads, rows[:_SHOWN])}{more if len(rows) > _SHOWN else ''}"
    )


def _group(call: CallRecord, group: Group) -> tuple[str, ...]:
    """A row for the runs of one kernel or operator."""
    most = call.bandwidth.get(group.first.device, 0.0)
    rate = (f"{group.rate / 1e9:.3g}", f"{group.rate / most:.0%}" if most else "") if group.bytes else ("", "")
    return (
        f"{call.share(group.seconds):.1%}", f"{1e3 * group.seconds:.4f}", f"{group.count}",
        f"<code class='name of-{group.first.kind}'>{escape(group.first.name)}</code>",
        _bytes(group.bytes) if group.bytes else "", *rate, _line(next(iter(group.first.lines), None)),
    )  # fmt: skip


def _memory(report: Report) -> str:
    parts = []
    for memory, count in Counter(report.memory).items():
        rows = [(_bytes(size), f"<code>{escape(what)}</code>", _line(where)) for size, what, where in memory.held]
        parts.append(
            f"<details><summary>{f'{count} x ' if count > 1 else ''}<b>{_bytes(memory.peak)}</b> at most, "
            f"{_bytes(memory.bound)} needed, in {many(memory.pieces, 'piece')}"
            f"{escape(f'; {memory.note}' if memory.note else '')}</summary>"
            + _table(("at the peak", "value", "where"), rows)
            + "</details>"
        )
    for saved in report.saved:
        rows = [(_bytes(size), f"<code>{escape(what)}</code>", _line(where)) for size, what, where in saved.largest]
        parts.append(
            f"<details><summary>saved for the backward pass: <b>{_bytes(saved.bytes)}</b> in "
            f"{many(saved.count, 'value')}{f', {_bytes(saved.on_host)} of it in host memory' if saved.on_host else ''}"
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
    bars = [
        _bar(s.start / end, s.seconds / end, s.depth, "kernel", s.name,
             f"{s.name}: {s.seconds:.4f} s, from {s.start:.4f}")
        for s in spans
    ]  # fmt: skip
    rows = [(f"{spent:.4f}", escape(name)) for name, spent in sorted(report.seconds.items(), key=lambda x: -x[1])]
    return _section(
        "Time",
        f"<p>{end:.3f} s from the first phase to the end of the last.</p>"
        f"{_bars(bars, max(s.depth for s in spans))}"
        "<details><summary>seconds by phase, without what is nested in it</summary>"
        f"{_table(('seconds', 'phase'), rows)}</details>",
    )


def _bar(start: float, share: float, depth: int, kind: str, name: str, title: str) -> str:
    """A bar of a picture that is 1 wide."""
    x, width, y = 1000 * start, max(1000 * share, 0.5), 22 * depth
    label = f"<text x='{x + 3:.1f}' y='{y + 15}'>{escape(name)}</text>" if width > 7 * len(name) else ""
    return (
        f"<g><rect class='{kind}' x='{x:.1f}' y='{y + 2}' width='{width:.1f}' height='18'>"
        f"<title>{escape(title)}</title></rect>{label}</g>"
    )


def _bars(bars: Sequence[str], depth: int) -> str:
    box = f"0 0 1000 {22 * (depth + 1)}"
    return f"<div class='wide'><svg viewBox='{box}' width='100%'>{''.join(bars)}</svg></div>"


def _caches(report: Report) -> str:
    body = ""
    if report.caches:
        found, compiled = sum(c.found for c in report.caches), sum(c.compiled for c in report.caches)
        body += f"<p>{found} kernels found in memory or on disk, {compiled} compiled.</p>"
    tunings = [
        (escape(t.problem), escape(f"{t.winner}{', measured before' if t.cached else ''}"),
         escape(", ".join(f"{n} {ms:.4f}" for n, ms in _ranked(t.times)))
         + "".join(f"<br>dropped {escape(name)}: {escape(why)}" for name, why in t.dropped.items()))
        for t in report.tunings
    ]  # fmt: skip
    body += _table(("tuned", "winner", "ms, the fastest first"), tunings)
    body += _table(
        ("stored program", "status", "where"),
        [(f"<b>{escape(p.name)}</b>", escape(f"{p.status}: {p.reason}" if p.reason else p.status), _line(p.where))
         for p in report.programs],
    )
    told = [(f"loaded {part.what} {part.name}", part.key) for part in report.loaded]
    told += [(f"kept {kept.what}", kept.path) for kept in report.kept]
    body += "".join(f"<p>{escape(what)}: <code>{escape(value)}</code></p>" for what, value in told)
    return _section("Caches and files", body)


def _ranked(times: Any) -> list[tuple[str, float]]:
    return sorted(times.items(), key=lambda pair: pair[1])[:4]
