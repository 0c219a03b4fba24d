"""Generated reductions in Triton's interpreter, in a file of their own: they take as long as all other kernels."""

import importlib.util

import pytest
from interpreted import run_cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("which", ["variance", "not variance"])
def test_reductions_in_the_interpreter(which):
    run_cases("reduction_cases.py", which)
