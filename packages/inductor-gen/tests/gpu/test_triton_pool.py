"""The process that compiles Triton kernels, without a GPU: machine code comes back, refusals and losses are told apart."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
from test_triton_runtime import softmax, sources

from inductor_gen.runtime import cubins, triton_build
from inductor_gen.runtime.triton_pool import shared_pool
from prims.errors import InternalError
from prims.options import Options

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]

CAPABILITY = (9, 0)


@pytest.fixture
def no_device(monkeypatch, tmp_path):
    """Kernels are compiled for a GPU that is not there and "loaded" by counting their bytes."""
    monkeypatch.setattr(triton_build, "check_gpu", lambda device: CAPABILITY)
    load = lambda cubin, entry, device: triton_build.Loaded(len(cubin), entry["threads"], entry["shared"])
    monkeypatch.setattr(cubins, "load", load)
    triton_build.forget_loaded()
    yield Options(cache_dir=str(tmp_path), compile_workers=2)
    triton_build.forget_loaded()


def build(found, options):
    made = triton_build.Build(torch.device("cuda", 0), options)
    for source in found:
        made.add(source)
    return made


def kernels():
    return sources(softmax, [torch.randn(64, 100)]) + sources(lambda p, a: p.tanh(a), [torch.randn(50)])


def test_kernels_come_back_and_are_kept(no_device):
    found = kernels()
    made = build(found, no_device)
    assert len(made.begun) == 2, "compiled elsewhere, not here"
    loaded, compiled = made.collect()
    assert compiled == 2 and set(loaded) == {s.name for s in found}
    assert all(k.function > 1000 for k in loaded.values()), "bytes of machine code"
    triton_build.forget_loaded()
    again = build(found, no_device)
    assert not again.begun and again.collect() == (loaded, 0)


def test_a_refused_kernel_says_what_is_wrong(no_device):
    bad = replace(kernels()[1], name="k_bad", text="@triton.jit\ndef KERNEL(a):\n    tl.store(a, tl.no_such(1))\n")
    bad = replace(bad, signature=(("a", "*fp32", True),))
    with pytest.raises(InternalError, match=r"(?s)k_bad.*no_such"):
        build([bad], no_device).collect()


def test_a_lost_worker_is_replaced_and_its_kernels_compiled_here(no_device):
    pool = shared_pool(CAPABILITY)
    assert pool is not None
    found = kernels()
    made = build(found, no_device)
    pool.process.kill()
    loaded, compiled = made.collect()
    assert compiled == 2 and len(loaded) == 2
    pool.process.wait(10)
    new = shared_pool(CAPABILITY)
    assert new is not None and new is not pool and new.usable()


def test_a_crash_of_the_compiler_harms_one_kernel(no_device, tmp_path):
    pool = shared_pool(CAPABILITY)
    assert pool is not None
    crash = tmp_path / "crash.py"
    crash.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    future = pool.submit(crash, "k", (), {}, tmp_path / "out", 2)
    with pytest.raises(InternalError, match="signal 11"):
        future.result(60)
    assert build(kernels(), no_device).collect()[1] == 2 and shared_pool(CAPABILITY) is pool


def test_the_worker_ends_with_its_program(tmp_path):
    program = textwrap.dedent("""
        from inductor_gen.runtime.triton_pool import shared_pool
        print(shared_pool((9, 0)).process.pid)
    """)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    for _ in range(100):
        try:
            with open(f"/proc/{int(done.stdout)}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        import time

        time.sleep(0.1)
    raise AssertionError("the worker outlived its program")
