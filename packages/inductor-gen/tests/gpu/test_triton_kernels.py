"""Generated Triton kernels in Triton's interpreter, against the primitives' reference."""

import importlib.util

import pytest
from interpreted import run_cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("cases", ["triton_cases.py", "pooling_cases.py", "multitensor_cases.py", "float8_cases.py"])
def test_kernels_in_the_interpreter(cases):
    run_cases(cases)
