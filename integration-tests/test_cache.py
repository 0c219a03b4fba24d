"""The kernel cache through compile(): a second process compiles nothing, a killed one does no harm.

What damage and concurrency do to it is tested in inductor-gen.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

PROGRAM = """
import torch, compile_api
def f(x):
    for _ in range(3):
        x = torch.softmax(x.sin() * 2 + x.cos(), -1)
    return torch.nn.functional.layer_norm(x, (8,))
c = compile_api.compile(f)
x = torch.randn(16, 8)
with torch.no_grad():
    torch.testing.assert_close(c(x), f(x), rtol=1e-4, atol=1e-4)
report = c.report()
print(len(report.kernels), len(report.fallbacks))
"""


def start(cache: pathlib.Path | str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "QUINTET_CACHE_DIR": str(cache), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def kernels_and_fallbacks(process: subprocess.Popen[str]) -> tuple[int, int]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    kernels, fallbacks = map(int, out.split())
    return kernels, fallbacks


def files(cache: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_a_second_process_compiles_nothing(tmp_path):
    for _ in range(2):
        before = {path: path.read_bytes() for path in files(tmp_path)}
        kernels, fallbacks = kernels_and_fallbacks(start(tmp_path))
        assert kernels >= 1 and fallbacks == 0
    assert before and {path: path.read_bytes() for path in files(tmp_path)} == before


def test_killed_while_compiling(tmp_path):
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while process.poll() is None and not files(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kernels, fallbacks = kernels_and_fallbacks(start(tmp_path))
    assert kernels >= 1 and fallbacks == 0
