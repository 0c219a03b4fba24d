"""Edited Triton kernels, and timing Triton kernels, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)
SCRIPT = """
import sys
from pathlib import Path

import torch
from gen_support import build

import inductor_gen
from inductor_gen.runtime.steps import timing
from prims.options import Options
from prims.report import Report

env = build(lambda p, x: p.mul(p.sin(x), 2.5), [torch.randn(40, 50)])


def run(x, **options):
    report = Report()
    graph = inductor_gen.compile_graph(env, options=Options(cache=False, **options), report=report, triton=True)
    with timing() as found:
        (y,) = graph(x)
    return y, report, found


x = torch.randn(40, 50)
y, report, found = run(x, debug=True, cache_dir=sys.argv[1])
torch.testing.assert_close(y, x.sin() * 2.5)
(kernel,) = report.kernels
assert [(f.step.kind, f.step.name, f.step.read, f.step.written) for f in found] == [("kernel", kernel.name, 8000, 8000)]
assert found[0].ended > found[0].began and found[0].events is None
(path,) = Path(next(k.path for k in report.kept if k.what == "sources")).iterdir()
assert path.name == kernel.name + ".py" and path.read_text().count("2.5") == 1
path.write_text(path.read_text().replace("2.5", "3.5"))
y, edited, found = run(x, sources=str(path.parent))
torch.testing.assert_close(y, x.sin() * 3.5)
assert edited.kernels[0].name.startswith(kernel.name + "_edited_") and found[0].step.name == edited.kernels[0].name
y, report, _ = run(x)
torch.testing.assert_close(y, x.sin() * 2.5)
assert report.kernels[0].name == kernel.name
print("done")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_kernels_are_edited_and_timed(tmp_path):
    """In a process of its own: the interpreter is chosen when Triton is imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-4000:]


def test_kernels_for_a_gpu_are_counted_as_they_come(monkeypatch):
    """Those that a process of their own has begun."""
    from concurrent.futures import Future

    from inductor_gen.runtime import triton_build
    from prims.errors import InternalError
    from prims.options import Options
    from prims.report import Report

    class Source:
        def __init__(self, name):
            self.name, self.warps, self.text = name, 4, ""

    def collected(*results):
        build = object.__new__(triton_build.Build)
        build.options, build.device, build.cache, build.folder, build.found = Options(), None, None, None, {}
        build.keys = build.missing = {f"k{k}": Source(f"k{k}") for k in range(len(results))}
        build.begun, build.capability = {name: Future() for name in build.missing}, (9, 0)
        for future, result in zip(build.begun.values(), results, strict=True):
            future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)
        seen = []
        try:
            return build.collect(Report(progress=lambda *told: seen.append(told)))[1], seen
        except InternalError:
            return None, seen

    monkeypatch.setattr(triton_build.cubins, "take_in", lambda *_: "loaded")
    monkeypatch.setattr(triton_build, "broken_triton", lambda _: None)
    made = (b"", "name", 0)
    what = "compiling kernels"
    assert collected(made, made) == (2, [(what, 0, 2), (what, 1, 2), (what, 2, 2)])
    count, seen = collected(made, InternalError("refused"))
    assert count is None and seen == [(what, 0, 2), (what, 1, 2), (f"{what}: ended", 2, 2)]
