"""Where no kernels can be generated for a GPU, one message says why and what to do."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from inductor_gen.runtime import triton_build, triton_check
from inductor_gen.runtime.triton_check import broken_triton, check_gpu
from prims.errors import InternalError, UserError

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Imaginary 9000")
    monkeypatch.setattr(triton_check, "triton_version", lambda: "3.7.1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(UserError, match=r"no usable CUDA device(.|\n)*nvidia-smi"):
        check_gpu(GPU)


def test_a_gpu_that_will_do(gpu):
    assert check_gpu(GPU) == (9, 0)


def test_a_gpu_too_old(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    with pytest.raises(UserError, match=r"Imaginary 9000 of compute capability 7\.5(.|\n)*8\.0 and newer"):
        check_gpu(GPU)


def test_triton_missing(gpu, monkeypatch):
    monkeypatch.setattr(triton_check, "triton_version", lambda: None)
    with pytest.raises(UserError, match=r"Triton is not installed(.|\n)*pip install triton"):
        check_gpu(GPU)


def test_triton_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    problem = broken_triton.__wrapped__((9, 0))
    assert isinstance(problem, UserError)
    assert "does not work" in str(problem) and "force-reinstall" in str(problem)


def test_a_kernel_that_fails_is_tritons_fault_only_where_all_fail(monkeypatch, tmp_path):
    settings = {"warps": 1, "stages": 0, "registers": 0, "contract": True}
    source = type("Source", (), {"name": "k_x", "signature": (), "text": "text", **settings})()

    def fails(*args):
        raise RuntimeError("ptxas: not found")

    monkeypatch.setattr(triton_build, "compile_function", fails)
    monkeypatch.setattr(triton_build, "broken_triton", lambda capability: None)
    module = type("Module", (), {"k_x": None})
    with pytest.raises(InternalError, match="k_x: RuntimeError: ptxas"):
        triton_build.compile_kernel(module, source, (9, 0))
    monkeypatch.setattr(triton_build, "broken_triton", broken_triton.__wrapped__)
    monkeypatch.setattr(triton_check, "compile_function", fails)
    with pytest.raises(UserError, match="does not work"):
        triton_build.compile_kernel(module, source, (9, 0))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_probe_compiles():
    assert broken_triton.__wrapped__((9, 0)) is None
