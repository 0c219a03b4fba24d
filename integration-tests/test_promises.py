"""What the product promises those who look into it and lean on it, a row each: the promise, and what shows it holding.

A row is a check of its own, or names the row of ``test_guard_rails.py`` that is one, or the test elsewhere that goes
deeper.
"""

from __future__ import annotations

import inspect
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
    assert data["guards"][0]["graph"] == "program"
    assert data["guards"][0]["guards"][0].startswith("x is a tensor: float32 [4, 4] cpu  # ")


@promise(
    "report().to_html(): one page with graphs and the user's lines, breaks and fixes, guards, recompiles, kernels with "
    "bytes and sources, library calls, memory at the peak, a timeline, caches",
    elsewhere=(f"{PAGE}::test_everything_is_there",
               "packages/compile-api/tests/test_report_in_browser.py::test_lists_of_a_deep_model_are_short"),
)  # fmt: skip
def _(patch, tmp):
    called().report().to_html(tmp / "page.html")
    text = (tmp / "page.html").read_text()
    for part in ("Breaks", "Recompilations", "Graphs", "Guards", "Kernels", "Library calls", "Memory", "Time", "<svg"):
        assert part in text, part
    assert "test_promises.py" in text and " read, " in text and "at the peak" in text
    assert not re.search(r"(src|href)=['\"]?http", text)


@promise("each record of a report is in the terminal's text (sources and guards counted), the JSON and the page",
         f"{PAGE}::test_each_record_is_in_the_text_the_json_and_the_page")  # fmt: skip
def _(patch, tmp):
    text = str(called().report())
    for part in ("  break: ", "    hint: Compute both sides", "guards of program: ", "    at the peak: ", "kernels in the cache: "):
        assert part in text, part


@promise("graphs are drawn: a row for each of the user's lines, arrows from operands to operators",
         f"{PAGE}::test_rows_of_a_graph_are_joined_by_arrows")  # fmt: skip
def _(patch, tmp):
    report = called().report()
    captured = next(graph for graph in report.graphs if graph.dialect == "torch" and len(graph.ops) == 4)
    assert captured.ops == ("sin", "mul", "sum", "gt") and captured.takes == ((), (0,), (1,), (2,))
    report.to_html(tmp / "page.html")
    assert "<div class='graph'><svg" in (tmp / "page.html").read_text()


MESSAGES = "integration-tests/test_messages.py"


@promise("each message says what, where (the user's line) and what to do, and each id is provoked",
         (f"{MESSAGES}::test_a_break_says_what_where_and_what_to_do", f"{MESSAGES}::test_every_id_is_provoked",
          f"{MESSAGES}::test_a_recompilation_says_what_differed",
          f"{MESSAGES}::test_a_call_that_is_left_to_eager_says_why_where_and_what_to_do"))  # fmt: skip
def _(patch, tmp):
    left = compile_api.compile(lambda x: x.sin() * len(locals()))
    with pytest.warns(compile_api.CompileWarning) as said:
        left(torch.ones(3))
    (message,) = (str(warning.message) for warning in said)
    what, where, todo = message.splitlines()
    assert "looks at its own frame: locals() [QB21]" in what and __file__ in where and "as arguments" in todo


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
    wanted = {"aten inference", "prim", "rewritten", "fused", "kernels", "memory", "generated code", "sources"}
    assert wanted <= set(kept), kept
    assert all(path.exists() and tmp in path.parents for path in kept.values()) and any(kept["sources"].iterdir())
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


PROGRESS = "packages/compile-api/tests/test_progress.py"


@promise(
    "long work shows how far it is on a terminal (kernels compiled k of n, autotuning with the time left), and nothing "
    "elsewhere, nor of what is short",
    (f"{PROGRESS}::test_kernels_so_many_of_so_many_on_a_terminal",
     f"{PROGRESS}::test_nothing_where_standard_error_is_no_terminal",
     f"{PROGRESS}::test_short_work_is_not_shown_and_starts_no_display",
     "packages/inductor-gen/tests/test_gen_edited.py::test_kernels_for_a_gpu_are_counted_as_they_come"),
)  # fmt: skip
def _(patch, tmp):
    from compile_api import progress

    class Terminal:
        def isatty(self):
            return True

    assert progress.watcher(compile_api.Options()) is None or sys.stderr.isatty()
    patch.setattr(progress.sys, "stderr", Terminal())
    patch.setenv("TERM", "xterm")
    assert isinstance(progress.watcher(compile_api.Options()), progress.Bar)
    assert progress.watcher(compile_api.Options(progress=False)) is None
    patch.undo()
    seen = []
    watching = lambda what, done, total: seen.append((what.partition(":")[0], done, total))
    patch.setattr(sys.modules["compile_api.compile"], "watcher", lambda options: watching)
    made = compile_api.compile(lambda x: x.sin() * 2.015625, options={"cache": False})
    made(torch.ones(7))
    compiled = made.report().caches[0].compiled
    assert seen[0] == ("compiling kernels", 0, compiled) and seen[-1] == ("compiling kernels", compiled, compiled)
    seen.clear()
    # A folder of its own: what another test of the process has measured would be found there, not measured again.
    made = compile_api.compile(torch.mm, mode="max-autotune-no-cudagraphs", options={"cache_dir": str(tmp)})
    made(torch.randn(65, 66), torch.randn(66, 67))
    tuned = [(done, total) for what, done, total in seen if what == "autotuning"]
    assert tuned[0][0] == 0 < tuned[-1][0] == tuned[-1][1] and tuned == sorted(tuned)
    assert progress.time_left(10, 2, 6) == ", about 20 s left"


PROFILING = "packages/compile-api/tests/test_profiling.py"


@promise(
    "the page has a timeline of one profiled call: each kernel and library call, once for each launch, with its time",
    (f"{PROFILING}::test_every_launch_once_and_times_that_add_up", f"{PROFILING}::test_nothing_stays",
     "packages/compile-api/tests/test_report_in_browser.py::test_what_is_drawn",
     "integration-tests/gpu/test_gpu_profile.py::test_device_time_of_each_launch"),
)  # fmt: skip
def _(patch, tmp):
    made = compile_api.compile(lambda x, w: (torch.softmax(x @ w, -1) @ w).sin(), options={"cache": False})
    call = compile_api.profile(made, torch.randn(400, 400), torch.randn(400, 400))
    launches = [kernel.name for kernel in made.report().kernels] + [call.name for call in made.report().externs]
    assert sorted(step.name for step in call.steps) == sorted(launches) and len(launches) == 4
    assert call.seconds / 2 < sum(step.seconds for step in call.steps) <= call.seconds
    made.report().to_html(tmp / "page.html")
    text = (tmp / "page.html").read_text().partition("<section id='a-profiled-call'>")[2].partition("</section>")[0]
    assert text.count("<rect") == len(launches) and all(name in text for name in launches) and "wall clock" in text


@promise(
    "bytes that each kernel reads and writes, beside the least that the graph has to move, and the rate of a profiled call",
    "packages/inductor-gen/tests/test_gen_traffic.py::test_what_lies_between_kernels_and_calls_is_no_part_of_the_least",
)
def _(patch, tmp):
    made = compile_api.compile(lambda x, w: (x.sin() @ w).cos(), options={"cache": False})
    x, w = torch.randn(20, 30), torch.randn(30, 40)
    call = compile_api.profile(made, x, w)
    report = made.report()
    a, b, c = 20 * 30 * 4, 30 * 40 * 4, 20 * 40 * 4
    assert [(k.read, k.written) for k in report.kernels] == [(a, a), (c, c)]
    (moved,) = report.moved
    assert (moved.least, moved.moved) == (a + b + c, 2 * a + (a + b + c) + 2 * c)
    report.to_html(tmp / "page.html")
    text = (tmp / "page.html").read_text()
    assert "at least" in text and f"{2 * a / moved.moved:.0%})" in text and "of memory" in text
    assert all(f"{group.rate / 1e9:.3g}" in text for group in call.groups())


EDITED = "packages/compile-api/tests/test_edited_sources.py"


@promise(
    "generated sources can be edited and run again, and no other compilation finds what was edited",
    (f"{EDITED}::test_an_edited_source_runs_and_no_other_compilation_finds_it",
     f"{EDITED}::test_the_folders_script_runs_what_is_in_it", f"{EDITED}::test_no_stored_program_has_it",
     "packages/inductor-gen/tests/test_gen_edited.py::test_triton_kernels_are_edited_and_timed"),
)  # fmt: skip
def _(patch, tmp):
    program, x, options = lambda x: x.sin() * 2.5, torch.randn(9), {"cache_dir": str(tmp)}
    made = compile_api.compile(program, options={"debug": True, **options})
    made(x)
    (folder,) = (Path(k.path) for k in made.report().kept if k.what == "sources")
    (source,) = folder.iterdir()
    source.write_text(source.read_text().replace("2.5f", "3.5f"))
    edited = compile_api.compile(program, options={"sources": str(folder), **options})
    torch.testing.assert_close(edited(x), x.sin() * 3.5)
    torch.testing.assert_close(compile_api.compile(program, options=options)(x), program(x))


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


@promise("a site of all documents, built without a network, whose links and examples hold",
         ("integration-tests/test_docs.py::test_links", "integration-tests/test_docs.py::test_examples",
          "integration-tests/test_docs.py::test_every_page_is_linked_and_on_the_site"))  # fmt: skip
def _(patch, tmp):
    site = (ROOT / "mkdocs.yml").read_text()
    for page in ("index", "how-it-works", "packages", "options", "messages", "troubleshooting", "migration", "torchscript",
                 "swapping", "devices", "numerics", "performance", "benchmarks", "decisions", "glossary"):  # fmt: skip
        assert f": {page}.md\n" in site, page
    assert "font: false" in site and 'session.run("mkdocs", "build", "--strict"' in (ROOT / "noxfile.py").read_text()


@promise("torch.compile is answered argument by argument, and TorchScript's names are",
         "integration-tests/test_docs.py::test_torch_compiles_options_are_answered")  # fmt: skip
def _(patch, tmp):
    arguments = (docs_tables.DOCS / "migration.md").read_text().partition("## Arguments")[2].partition("\n## ")[0]
    for name in inspect.signature(torch.compile).parameters:
        assert f"| `{name}` |" in arguments, name
    torchscript = (docs_tables.DOCS / "torchscript.md").read_text()
    for name in ("script", "trace", "save", "load", "freeze", "export", "ignore", "fork"):
        assert f"jit.{name}" in torchscript or f".{name}(" in torchscript, name


@promise("names follow the field, and the glossary has those that do not",
         "integration-tests/test_docs.py::test_words_of_our_own_are_in_the_glossary")  # fmt: skip
def _(patch, tmp):
    glossary = (docs_tables.DOCS / "glossary.md").read_text()
    sources = "\n".join(path.read_text() for path in ROOT.glob("packages/*/src/**/*.py")).lower()
    for name in ("persistent", "epilogue", "im2col", "liveness"):
        assert name in glossary and name in sources, name


@promise(
    "tried as a new user: a timm model, a transformers model, a training script, a break, a shape change, a wrong result "
    "of a bad custom operator, a missing compiler",
    ("integration-tests/test_vision_families.py::test_compiled_whole", "integration-tests/test_transformers.py::test_one_graph",
     "integration-tests/test_training.py::test_whole_training_step", "integration-tests/test_recompiles.py::test_other_input",
     "integration-tests/test_custom_ops.py::test_a_wrong_metadata_function_is_found_out",
     "integration-tests/test_bad_input.py::test_missing_compiler",
     "integration-tests/test_packaging.py::test_wheels_work_without_the_sources"),
)  # fmt: skip
def _(patch, tmp):
    assert (ROOT / "README.md").read_text().count("compile_api.compile(model)") >= 1
    made = called()
    made(torch.ones(5, 5))
    report = made.report()
    assert report.verdict.startswith("partly: a graph break") and report.breaks[0].hint
    assert any("size [4, 4], now [5, 5]" in record.reason for record in report.recompiles)


@promise("pictures of the documentation are of the real stages of a model, and of the benchmarks' records",
         ("integration-tests/test_docs.py::test_pictures",))
def _(patch, tmp):
    page = (docs_tables.DOCS / "how-it-works.md").read_text()
    assert all(f"pictures/{name}.svg" in page for name in ("stages", "fusion", "memory"))


@pytest.mark.parametrize("text", ROWS)
def test_promise(text, monkeypatch, tmp_path):
    ROWS[text][0](monkeypatch, tmp_path)


def test_tests_elsewhere_exist():
    for _, elsewhere in ROWS.values():
        for test in elsewhere:
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), flags=re.M), test
