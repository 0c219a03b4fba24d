"""The heap keeps its pages between calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from inductor_gen.runtime.heap import keep_heap

if sys.argv[1] == "keep":
    keep_heap()

def call():
    blocks = [torch.empty(1 << 20, dtype=torch.uint8).fill_(1) for _ in range(50)]  # 50 MB, freed together

for _ in range(5):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif("glibc" not in __import__("platform").libc_ver()[0], reason="the rule is glibc's")
def test_freed_pages_stay_mapped():
    assert faults("keep") < 1000 < faults("leave")
