"""Whole programs, forward and backward, with every kernel generated for the GPU and run in Triton's interpreter.

A process of its own runs each script: the interpreter is chosen when Triton is imported.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
KERNEL_TESTS = HERE.parent / "packages" / "inductor-gen" / "tests" / "gpu"
RUN = "import folded, runpy, sys; folded.fold_by_halves(); runpy.run_path(sys.argv[1], run_name='__main__')"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("script", ["triton_programs.py", "triton_attention.py", "triton_policies.py"])
def test_programs(script):
    path = os.pathsep.join([str(KERNEL_TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(HERE / script)], capture_output=True, text=True, timeout=900, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("ok ") >= 8, done.stdout
