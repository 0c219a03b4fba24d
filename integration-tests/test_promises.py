"""What the product promises those who look into it and lean on it, a row each: the promise, and what shows it holding.

A row is a check of its own, or names the row of ``test_guard_rails.py`` that is one, or the test elsewhere that goes
deeper. What does not hold yet is a row too: it is probed, and expected to fail.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import docs_tables
import planted
import pytest
import test_guard_rails
import torch

import compile_api
from prims import logs

ROOT = Path(__file__).resolve().parents[1]
ROWS = {}
PAGE = "packages/compile-api/tests/test_report_page.py"
LOGS = "packages/compile-api/tests/test_logs.py"


def promise(text, elsewhere=()):
    """Register a row; ``elsewhere``: tests that show more of it, as ``path::name``."""

    def register(show):
        assert text not in ROWS
        ROWS[text] = (show, (elsewhere,) if isinstance(elsewhere, str) else elsewhere)
        return show

    return register


def guarded(text, *rails):
    """A promise that rows of ``test_guard_rails.py`` show, by how they begin; those rows run there."""

    def show(patch, tmp):
        for rail in rails:
            found = [name for name in test_guard_rails.ROWS if name.startswith(rail)]
            assert len(found) == 1, (rail, found)

    ROWS[text] = (show, ("integration-tests/test_guard_rails.py::test_promise",))


def program(x, n=2):
    y = x.sin() * n
    if y.sum() > 0:
        y = y + 1
    return torch.softmax(y @ y.t(), -1)


def called(**options):
    made = compile_api.compile(program, options={"cache": False, **options})
    made(torch.ones(4, 4))
    made(torch.ones(4, 4), n=3)
    return made


# --- seeing ---------------------------------------------------------------------------------------------------------


@promise("report() in the terminal, plain and by rich")
def _(patch, tmp):
    from rich.console import Console

    report = called().report()
    text = str(report)
    assert text.splitlines()[0] == report.verdict and report.verdict.startswith("partly: a graph break")
    for part in ("graph ", "break: ", "kernel k_", "extern aten.mm.default", "recompile of", "memory: ", "capture: "):
        assert part in text, part
    plain, coloured = (Console(record=True, width=400, file=io.StringIO(), force_terminal=c) for c in (False, True))
    for console in (plain, coloured):
        console.print(report)
    shown = plain.export_text(clear=False)
    assert [line.rstrip() for line in shown.splitlines()] == [line.rstrip() for line in text.splitlines()]
    assert "\x1b[" in coloured.export_text(styles=True)


@promise("report().to_json()")
def _(patch, tmp):
    data = json.loads(called().report().to_json())
    assert data["verdict"].startswith("partly") and data["kernels"] and data["breaks"] and data["seconds"]


@promise(
    "report().to_html(): one page with graphs and the user's lines, breaks and fixes, guards, recompiles, kernels with "
    "bytes and sources, library calls, memory at the peak, a timeline, caches",
    elsewhere=f"{PAGE}::test_everything_is_there",
)
def _(patch, tmp):
    called().report().to_html(tmp / "page.html")
    text = (tmp / "page.html").read_text()
    for part in ("Breaks", "Recompilations", "Graphs", "Guards", "Kernels", "Library calls", "Memory", "Time", "<svg"):
        assert part in text, part
    assert "test_promises.py" in text and " moved)" in text and "at the peak" in text
    assert not re.search(r"(src|href)=['\"]?http", text)


@promise("kernel lists are summarised", f"{PAGE}::test_kernels_that_compute_the_same_are_one_line")
def _(patch, tmp):
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(12)))
    made = compile_api.compile(model)
    made(torch.randn(2, 8))
    assert len(made.report().kernels) >= 12
    assert len([line for line in str(made.report()).splitlines() if line.lstrip().startswith(("kernel", "12 x"))]) <= 3


@promise("QUINTET_LOGS by eight names, through logging", f"{LOGS}::test_every_stage_says_something_with_the_users_line")
def _(patch, tmp):
    names = "breaks recompiles guards graphs schedule code cache perf".split()
    assert list(logs.LOGS) == names
    script = "import torch, compile_api\ncompile_api.compile(lambda x: x.sin() * 2)(torch.ones(3))\n"
    environment = {**os.environ, "QUINTET_LOGS": "code,graphs"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert "quintet.code" in done.stderr and "quintet.graphs" in done.stderr and "quintet.cache" not in done.stderr


@promise("each message once")
def _(patch, tmp):
    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.name, record.getMessage()))
    root = logging.getLogger("quintet")
    root.addHandler(handler)
    try:
        compile_api.set_logs("breaks")
        made = called()
        made(torch.ones(5, 5))
    finally:
        compile_api.set_logs()
        root.removeHandler(handler)
    assert seen and len(seen) == len(set(seen))


@promise("Options.debug: a folder with every stage's text and a script that runs the region again")
def _(patch, tmp):
    made = compile_api.compile(lambda x: x.sin() * 2, options={"debug": True, "cache_dir": str(tmp)})
    made(torch.randn(4, 4))
    kept = {k.what: Path(k.path) for k in made.report().kept}
    wanted = {"aten inference", "prim", "rewritten", "fused", "kernels", "memory", "generated code"}
    assert wanted <= set(kept), kept
    assert all(path.is_file() and tmp in path.parents for path in kept.values())
    (script,) = (path for what, path in kept.items() if what.startswith("region"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "program: as eager\n")
    assert planted.run_with_bug(str(script), "codegen").returncode == 1


@promise("kernels carry the user's lines in profilers and traces")
def _(patch, tmp):
    made = compile_api.compile(lambda x: x.sin() * 2)
    x = torch.randn(4)
    made(x)
    with torch.autograd.profiler.profile() as profiled:
        made(x)
    (kernel,) = made.report().kernels
    (event,) = (e.key for e in profiled.key_averages() if e.key.startswith(kernel.name))
    assert kernel.lines[0] in event and "test_promises.py" in event
    profiled.export_chrome_trace(str(tmp / "trace.json"))
    assert kernel.name in (tmp / "trace.json").read_text()


@promise("worth_it(): eager, ours and torch.compile (handed over) side by side, when it pays, what limits it",
         "integration-tests/test_worth.py::test_torch_compile_beside_ours")  # fmt: skip
def _(patch, tmp):
    found = compile_api.worth_it(torch.nn.Linear(64, 64), torch.randn(64, 64), rounds=1, beside={"other": lambda f: f})
    assert [way.name for way in found.ways] == ["eager", "quintet", "other"]
    assert any(re.search(r"stay the library's \(.*addmm", limit) for limit in found.limits)


@promise("autotuning shows how far it is on a terminal, and nothing elsewhere")
def _(patch, tmp):
    from compile_api import progress

    class Terminal:
        def isatty(self):
            return True

    assert progress.watcher() is None or sys.stderr.isatty()
    patch.setattr(progress.sys, "stderr", Terminal())
    assert isinstance(progress.watcher(), progress.Bar)
    patch.undo()
    seen = []
    watching = lambda what, done, total: seen.append((done, total))
    patch.setattr(sys.modules["compile_api.compile"], "watcher", lambda: watching)
    made = compile_api.compile(torch.mm, mode="max-autotune-no-cudagraphs", options={"cache": False})
    made(torch.randn(65, 66), torch.randn(66, 67))
    assert seen and seen[-1][0] == seen[-1][1] and [done for done, _ in seen] == sorted(done for done, _ in seen)


# --- guard rails ----------------------------------------------------------------------------------------------------

guarded("shadow: sampled calls against eager and float64, values, gradients, state; reverts, once, with a script",
        "check='shadow'")  # fmt: skip
guarded("nan: the first operator is named", "check='nan'")
guarded("minifier: exception, wrong result, slow", "minify: a wrong result", "minify: an exception", "minify(slow=...)")
guarded("bisector by fuel: which pass, rewrite or fusion", "bisect: the stage")
guarded("stances as function and context", "set_stance is a function", "stance 'eager'", "stance 'fail_on_recompile'",
        "stance 'eager_on_recompile'", "stance 'strict'", "set_stance inside a compiled region")  # fmt: skip
guarded("what users of torch.compiler look for", "allow_in_graph", "assume_constant_result", "substitute_in_graph",
        "error_on_graph_break", "mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked",
        "nested_compile_region", "cudagraph_mark_step_begin", "is_compiling", "reset", "list_backends", "disable",
        "compile_(module)", "torch._dynamo.graph_break()")  # fmt: skip
guarded("out of memory: what was planned, what held it, eager for that call", "out of memory")


@promise("deterministic and batch_invariant: a row's bits for five models",
         ("integration-tests/test_policies.py::test_rows_of_five_models",
          "integration-tests/test_policies.py::test_without_the_policy_rows_differ"))  # fmt: skip
def _(patch, tmp):
    model = torch.nn.Sequential(torch.nn.Linear(70, 300), torch.nn.GELU(), torch.nn.Linear(300, 11))
    x = torch.randn(32, 70)
    made = compile_api.compile(model, options={"deterministic": True, "batch_invariant": True, "strict": True})
    with torch.no_grad():
        whole = made(x)
        assert all(torch.equal(made(x[k : k + n]), whole[k : k + n]) for n in (1, 2, 7) for k in (0, 5, 25))
    assert all(p.held for p in made.report().policies)


# --- documentation --------------------------------------------------------------------------------------------------


@promise("every option, mode, stance, log and message id is in the documentation",
         ("integration-tests/test_docs.py::test_tables", "integration-tests/test_docs.py::test_examples"))  # fmt: skip
def _(patch, tmp):
    pages = "\n".join(page.read_text() for page in docs_tables.DOCS.glob("*.md"))
    for names in (compile_api.list_options(), compile_api.list_modes(), logs.LOGS):
        assert all(f"`{name}`" in pages or f"quintet.{name}" in pages for name in names)


@promise("every name of torch.compiler is answered in the migration page")
def _(patch, tmp):
    text = (docs_tables.DOCS / "migration.md").read_text()
    missing = [name for name in torch.compiler.__all__ if name not in text]
    assert not missing


@pytest.mark.parametrize("text", ROWS)
def test_promise(text, monkeypatch, tmp_path):
    ROWS[text][0](monkeypatch, tmp_path)


def test_tests_elsewhere_exist():
    for _, elsewhere in ROWS.values():
        for test in elsewhere:
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), flags=re.M), test


# --- what does not hold yet -----------------------------------------------------------------------------------------


def test_open_kernels_compiled_so_many_of_so_many(monkeypatch):
    """Progress while kernels are compiled, without autotuning."""
    seen = []
    monkeypatch.setattr(sys.modules["compile_api.compile"], "watcher", lambda: lambda *told: seen.append(told))
    compile_api.compile(lambda x: x.sin() * 2, options={"cache": False})(torch.ones(7))
    if not seen:
        pytest.xfail("only autotuning shows progress")


def test_open_a_profiled_call_on_the_page(tmp_path):
    """The page's timeline is of compiling."""
    called().report().to_html(tmp_path / "page.html")
    if "profiled call" not in (tmp_path / "page.html").read_text():
        pytest.xfail("the page has a timeline of compile phases, none of a call")


def test_open_moved_bytes_against_the_least(tmp_path):
    """Of a kernel its bytes are told, each element once; the graph's least, to compare them with, is not."""
    called().report().to_html(tmp_path / "page.html")
    if "at least" not in (tmp_path / "page.html").read_text():
        pytest.xfail("bytes moved have no lower bound beside them")


def test_open_edited_sources(tmp_path):
    """Generated sources lie in the debug folder as texts; nothing runs what was edited."""
    made = compile_api.compile(lambda x: x.sin() * 2, options={"debug": True, "cache_dir": str(tmp_path)})
    made(torch.ones(3))
    if not any(k.path.endswith((".c", ".so")) for k in made.report().kept):
        pytest.xfail("generated code cannot be edited and run again")
