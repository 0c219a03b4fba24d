"""Matrix products by template in Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_templates_in_the_interpreter():
    """The cases of ``template_cases.py``, in a process of their own: the interpreter is chosen when Triton is imported."""
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join([HERE, os.path.dirname(HERE), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "--import-mode=importlib",
         os.path.join(HERE, "template_cases.py")],
        env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
