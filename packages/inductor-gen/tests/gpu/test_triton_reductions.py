"""Generated reductions in Triton's interpreter, in a file of their own: two processes share the kernels' tests."""

import importlib.util

import pytest
from interpreted import run_cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_reductions_in_the_interpreter():
    run_cases("reduction_cases.py")
