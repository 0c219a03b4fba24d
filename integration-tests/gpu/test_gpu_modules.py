"""PyTorch's own module database on a GPU (``module_cases.py``)."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("letters", ["A-C", "D-L", "M-Z"])
def test_modules(letters, dtype):
    """The modules whose names begin with these letters."""
    first, last = letters.split("-")
    names = " or ".join(f"nn_{chr(c)}" for c in range(ord(first), ord(last) + 1))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "-o", "addopts=", "-p", "no:cacheprovider",
         "-k", f"({names}) and {dtype}", str(HERE / "module_cases.py")],
        cwd=HERE.parent, capture_output=True, text=True, timeout=590, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
