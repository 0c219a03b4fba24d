"""Generated sources can be edited and run again, by the debug folder's script and by the option ``sources``; nobody else
gets what was edited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import compile_api
from inductor_gen.runtime.libraries import forget_loaded
from prims.errors import UserError


def program(x):
    return x.sin() * 2.5


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def folder(tmp_path, capfd):
    """The debug folder of a compiled program."""
    made = compile_api.compile(program, options={"debug": True, "cache_dir": str(tmp_path)})
    made(X)
    (kept,) = (Path(k.path) for k in made.report().kept if k.what == "sources")
    assert [path.name for path in kept.iterdir()] == [f"{k.name}.c" for k in made.report().kernels]
    return kept


def edit(folder, old, new):
    (path,) = folder.iterdir()
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    return path


def compiled(tmp_path, **options):
    forget_loaded()  # the disk is asked again
    made = compile_api.compile(program, options={"cache_dir": str(tmp_path), **options})
    return made(X), made.report()


def test_an_edited_source_runs_and_no_other_compilation_finds_it(folder, tmp_path):
    before, plain = compiled(tmp_path)
    torch.testing.assert_close(before, program(X))
    path = edit(folder, "2.5f", "3.5f")
    for _ in range(2):  # compiled, then from the disk
        after, report = compiled(tmp_path, sources=str(folder))
        torch.testing.assert_close(after, X.sin() * 3.5)
        (kernel,) = report.kernels
        assert kernel.name.startswith(plain.kernels[0].name + "_edited_") and str(path) in kernel.source
        assert kernel.lines == plain.kernels[0].lines and report.verdict == "compiled"
    assert report.caches[0].compiled == 0
    again, report = compiled(tmp_path)
    torch.testing.assert_close(again, before, rtol=0, atol=0)
    assert report.kernels == plain.kernels and report.caches[0].compiled == 0


STORED = """
import sys, torch, compile_api
from test_edited_sources import X, program
folder, *sources = sys.argv[1:]
made = compile_api.compile(program, options={"cache_dir": folder, "program_cache": True, **dict(zip(["sources"], sources))})
print(f"{(made(X) / X.sin()).mean():.2f}", *(p.status for p in made.report().programs))
"""


def test_no_stored_program_has_it(folder, tmp_path):
    edit(folder, "2.5f", "3.5f")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])}

    def run(*sources):
        command = [sys.executable, "-c", STORED, str(tmp_path / "programs"), *sources]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()

    assert run(str(folder)) == ["3.50"]  # neither stored nor looked for
    first, statuses = run(), run()
    assert first[0] == "2.50" and first[-1] == "stored" and statuses == ["2.50", "loaded"]
    assert run(str(folder)) == ["3.50"]


def test_what_is_not_edited_is_as_generated(folder, tmp_path):
    _, plain = compiled(tmp_path)
    result, report = compiled(tmp_path, sources=str(folder))
    assert report.kernels == plain.kernels and report.caches[0].compiled == 0 and not report.fallbacks
    torch.testing.assert_close(result, program(X))


def test_the_folders_script_runs_what_is_in_it(folder):
    (script,) = folder.parent.glob("*region*.py")
    run = lambda: subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    done = run()
    assert (done.returncode, done.stdout) == (0, "program: as eager\n"), done.stderr
    edit(folder, "2.5f", "3.5f")
    done = run()
    assert done.returncode == 1 and "the error against float64" in done.stdout
    edit(folder, "3.5f", "(1.0f + 1.5f)")
    assert run().returncode == 0


def test_a_debug_folder_of_an_edited_run_has_the_edited_source(folder, tmp_path):
    path = edit(folder, "2.5f", "3.5f")
    _, report = compiled(tmp_path / "other", sources=str(folder), debug=True)
    (kept,) = (Path(k.path) for k in report.kept if k.what == "sources")
    assert (kept / path.name).read_text() == path.read_text()


def test_a_mistake_is_named_by_file_and_line(folder, tmp_path):
    path = edit(folder, "2.5f", "oops")
    line = 1 + path.read_text().split("\n").index(next(row for row in path.read_text().split("\n") if "oops" in row))
    with pytest.warns(compile_api.CompileWarning, match="refused"):
        result, report = compiled(tmp_path, sources=str(folder))
    torch.testing.assert_close(result, program(X))
    assert f"{path}:{line}:" in report.verdict
    path.write_text("int other;\n")
    with pytest.warns(compile_api.CompileWarning, match="defines no k_sin_mul"):
        compiled(tmp_path, sources=str(folder))
    path.unlink()
    result, report = compiled(tmp_path, sources=str(folder))
    assert report.verdict == "compiled" and report.fallbacks[0].stage == "sources" and path.name in str(report.fallbacks)
    with pytest.raises(UserError, match="a folder that is there"):
        compile_api.compile(program, options={"sources": str(tmp_path / "nowhere")})
