"""Instructions of a call, counted by callgrind: `python benchmarks/instructions.py [--out FILE]`, one JSON line per case.

Counts are the same on a busy machine and on a quiet one. valgrind must be installed, with its headers. It knows no
AVX-512: generated kernels are compiled for AVX2 here, and libraries choose theirs for it.

- `guards`: a call whose graph is a constant (see `guards.py`): the cache lookup and handing over the parameters;
- `call`: compiled by `compile_api.compile`, gradients off, beside eager: a Linear and ReLU of 32 rows of 64, fifty
  products of 8 x 8 with a kernel after each, a BERT of two layers of 64.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = 20
WARM = 6
CLIENT = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def cases() -> Iterator[tuple[str, str, str, Callable[[], Any]]]:
    """``(benchmark, model, stack, call)``."""
    import guards
    import torch
    from torch import nn

    import compile_api
    import dynamo_capture

    class Fifty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(8, 8) * 0.3) for _ in range(50)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = (x @ weight).tanh() + 1
            return x

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name, make, layers in (*(("linear", guards.linear, n) for n in (1, 10, 100)), ("bert", guards.bert, 12)):
        model, x = make(layers)
        compiled = dynamo_capture.optimize(model, guards.constant_backend)
        yield "guards", f"{name} {layers}", "quintet", lambda compiled=compiled, x=x: compiled(x)
    layer = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    for name, model, x in (("Linear and ReLU", layer, torch.randn(32, 64)), ("fifty kernels", Fifty(), torch.randn(4, 8)),
                           ("bert 2", *guards.bert(2))):  # fmt: skip
        compiled = compile_api.compile(model)
        yield "call", name, "quintet", lambda compiled=compiled, x=x: compiled(x)
        yield "call", name, "eager", lambda model=model, x=x: model(x)


def count(library: str) -> None:
    """In the process under valgrind: a dump for each case."""
    client = ctypes.CDLL(library)
    for benchmark, model, stack, call in cases():
        for _ in range(WARM):
            call()
        client.begin()
        call()  # its code is translated anew
        client.end(b"first")
        client.begin()
        for _ in range(CALLS):
            call()
        client.end(f"{benchmark}|{model}|{stack}".encode())


def run(folder: Path) -> Iterator[dict[str, Any]]:
    (folder / "client.c").write_text(CLIENT)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "client.c", "-o", "client.so"], cwd=folder, check=True)
    compiler = folder / "cc"
    compiler.write_text('#!/bin/bash\nexec gcc "${@/-march=native/-march=x86-64-v3}"\n')
    compiler.chmod(0o755)
    environment = {**os.environ, "CC": str(compiler), "QUINTET_CACHE_DIR": str(folder / "cache")}
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'counts'}",
               sys.executable, __file__, "--under", str(folder / "client.so")]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    for path in sorted(folder.glob("counts.*"), key=lambda path: int(path.suffix[1:])):
        text = path.read_text()
        trigger = re.search(r"^desc: Trigger: Client Request: (\w+)\|([^|]+)\|(.+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if trigger and total:
            benchmark, model, stack = trigger.groups()
            yield {"benchmark": benchmark, "model": model, "stack": stack, "instructions": int(total[1]) // CALLS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="append the lines to this file too")
    parser.add_argument("--under", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.under:
        count(given.under)
        return
    import torch

    with tempfile.TemporaryDirectory() as folder:
        for line in run(Path(folder)):
            line |= {
                "python": platform.python_version(), "torch": torch.__version__, "hardware": "2-core x86-64 machine",
                "command": "python benchmarks/instructions.py", "date": time.strftime("%Y-%m-%d"),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            if given.out:
                with open(given.out, "a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
