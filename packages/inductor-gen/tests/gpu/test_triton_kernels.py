"""Generated Triton kernels in Triton's interpreter, against the primitives' reference."""

import importlib.util
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("cases", ["triton_cases.py", "reduction_cases.py", "pooling_cases.py", "multitensor_cases.py", "float8_cases.py"])
def test_kernels_in_the_interpreter(cases):
    """In a process of their own: the interpreter is chosen when Triton is imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([HERE, os.path.dirname(HERE), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib",
         os.path.join(HERE, cases)],
        env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
