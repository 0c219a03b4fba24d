"""What keeps kernels from being generated or run on a GPU: one clear message, and the program still runs."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from on_gpu import DEVICE
from torch import nn

import compile_api
from compile_api import environment
from inductor_gen import compiled as generated
from inductor_gen.runtime import triton_check

GIB = 1 << 30


def runs_eagerly(words, **kw):
    """Train a small model compiled: right gradients, one warning with all the words, no kernel."""
    environment._warned.clear()
    model = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 3)).to(DEVICE)
    compiled = compile_api.compile(model, **kw)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            x = torch.randn(4, 16, device=DEVICE)
            grads = [
                torch.autograd.grad(call(x).square().sum(), list(model.parameters())) for call in (compiled, model)
            ]
            torch.testing.assert_close(*grads)
    messages = {str(w.message) for w in caught if isinstance(w.message, compile_api.CompileWarning)}
    assert len(messages) == 1, messages
    for word in words:
        assert word in next(iter(messages))
    report = compiled.report()
    assert report.fallbacks and not report.kernels
    assert all(words[0] in f.reason for f in report.fallbacks)


def test_gpu_too_old(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    runs_eagerly(("7.5", "8.0 and newer", torch.cuda.get_device_name()))


def test_triton_missing(monkeypatch):
    monkeypatch.setattr(triton_check, "triton_version", lambda: None)
    runs_eagerly(("Triton is not installed", "pip install triton"))


@pytest.mark.parametrize("workers", ["1", "4"])
def test_triton_broken(tmp_path, workers):
    """A Triton that cannot be imported; one that cannot compile is a test of inductor_gen."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('libtriton.so: broken by a test')\n")
    script = """
        import warnings, torch, compile_api
        f = lambda x: x.sin() + 1
        x = torch.randn(100, device="cuda")
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            c = compile_api.compile(f)
            for _ in range(2):
                torch.testing.assert_close(c(x), f(x))
        found = [str(w.message) for w in caught if isinstance(w.message, compile_api.CompileWarning)]
        assert len(found) == 1, found
        assert len(c.report().fallbacks) == 1 and not c.report().kernels
        print(found[0])
    """
    environment = {
        **os.environ, "QUINTET_CACHE_DIR": str(tmp_path / "cache"), "QUINTET_COMPILE_WORKERS": workers,
        "TRITON_CACHE_DIR": str(tmp_path / "triton-cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"Triton .* is installed but does not work", done.stdout), done.stdout
    assert "force-reinstall" in done.stdout


def test_a_kernel_that_the_driver_refuses(monkeypatch):
    monkeypatch.setattr(generated, "as_launcher", lambda address: lambda program: lambda *args: 701)
    compiled = compile_api.compile(lambda x: x.sin() + 1)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(100, device=DEVICE)
            torch.testing.assert_close(compiled(x), x.sin() + 1)
    (fallback,) = compiled.report().fallbacks
    assert "701" in fallback.reason


class Allowance:
    """The most memory that PyTorch may reserve: about a GiB more than when it was set."""

    def __init__(self):
        self.bytes = torch.cuda.memory_reserved() + GIB
        self.set(self.bytes / torch.cuda.get_device_properties(DEVICE).total_memory)

    def set(self, share):
        torch.cuda.set_per_process_memory_fraction(share)

    def lift(self):
        self.set(1.0)


@pytest.fixture
def little_memory():
    compile_api.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allowance = Allowance()
    yield allowance
    allowance.lift()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune"])
def test_out_of_memory(little_memory, mode):
    def function(x, total):
        total.add_(1)
        return torch.outer(x, x) + total

    compiled = compile_api.compile(function, mode=mode)
    x, total = torch.ones(1 << 15, device=DEVICE), torch.zeros(1, device=DEVICE)
    with torch.no_grad():
        with pytest.raises(torch.OutOfMemoryError):
            function(x, total.clone())
        for _ in range(4):
            with pytest.raises(torch.OutOfMemoryError):
                compiled(x, total)
        assert float(total) == 4, "the call runs eagerly, which adds one and then fails as eager does"
        small = torch.ones(100, device=DEVICE)
        for count in range(1, 4):
            torch.testing.assert_close(compiled(small, total), torch.full((100, 100), 5.0 + count, device=DEVICE))
        little_memory.lift()
        count = float(total)
        for step in range(1, 4):
            result = compiled(x, total)
            assert float(result[-1, -1]) == 1 + count + step
            del result


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_out_of_memory_while_autotuning(little_memory, mode, caplog, monkeypatch, tmp_path):
    """Memory for what eager needs, too little to measure anything: the program runs, says so once, and later too."""
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))  # nothing was measured before
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    model = nn.Sequential(nn.Linear(8192, 8192), nn.GELU()).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        model(a)  # PyTorch keeps cuBLAS's workspace from now on
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        wanted = model(a).cpu()
        needed = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        spare = 64 << 20
        hog = torch.empty(little_memory.bytes - before - needed - spare, dtype=torch.uint8, device=DEVICE)
        compiled = compile_api.compile(model, mode=mode)
        for _ in range(3):
            torch.testing.assert_close(compiled(a).cpu(), wanted, rtol=2e-2, atol=2e-2)
        said = [r.getMessage() for r in caplog.records if "out of memory" in r.getMessage()]
        assert len(said) == 1 and "8192x8192" in said[0] and "usual kernels are used" in said[0], said
        assert compiled.report().kernels
        assert {f.stage for f in compiled.report().fallbacks} <= {"autotune", "cudagraphs"}, compiled.report().fallbacks
        del hog
        little_memory.lift()
        for _ in range(3):
            torch.testing.assert_close(compiled(a).cpu(), wanted, rtol=2e-2, atol=2e-2)
