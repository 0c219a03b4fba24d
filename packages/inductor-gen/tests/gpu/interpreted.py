"""Cases for generated Triton kernels, run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["run_cases"]

HERE = os.path.dirname(__file__)


def run_cases(cases: str, which: str = "") -> None:
    """Run a file of cases (of them those that pytest's expression ``which`` names) in a process of their own: the
    interpreter is chosen when Triton is imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([HERE, os.path.dirname(HERE), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib",
         os.path.join(HERE, cases), "-k", which],
        env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
