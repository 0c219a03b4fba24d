"""Cases for generated Triton kernels, run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["run_cases"]

HERE = os.path.dirname(__file__)


def run_cases(cases: str) -> None:
    """Run a file of cases in a process of its own: the interpreter is chosen when Triton is imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([HERE, os.path.dirname(HERE), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "folded",
         "--import-mode=importlib", os.path.join(HERE, cases)],
        env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
