"""Processes, two if not told otherwise, that talk over gloo on this machine: ``results = run_ranks("data_parallel_cases")``.

The named module is run by each process with the functions of its ``CASES`` in their order, so that one start serves many
tests. A case that fails ends both processes: their collectives would no longer match.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RANKS = 2
#: Seconds that a collective waits for the other process, and the processes together have.
COLLECTIVE, ALTOGETHER = 100, 540


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_ranks(module: str, *only: str, ranks: int = RANKS) -> dict[str, list[Any]]:
    """By case what each rank gave: what the case returned, or the text of what went wrong.

    Args:
        only: the cases to run; all without.
        ranks: how many processes there are.

    Raises:
        AssertionError: a process was not done in time, or died of something else than a case.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # fmt: skip
            command = [sys.executable, str(HERE / "ranks.py"), module, f"{folder}/{rank}.json", *only]
            with open(f"{folder}/{rank}.txt", "w") as text:
                processes.append(subprocess.Popen(command, env=env, stdout=text, stderr=subprocess.STDOUT))
        try:
            for process in processes:
                process.wait(ALTOGETHER)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done after {ALTOGETHER} s:\n{_said(folder, ranks)}") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        found = []
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{_said(folder, ranks)}"
            found.append(json.loads(Path(folder, f"{rank}.json").read_text()))
    return {name: [one.get(name, "not run: an earlier case failed") for one in found] for name in found[0]}


def _said(folder: str, ranks: int) -> str:
    return "\n".join(f"rank {rank}: " + Path(folder, f"{rank}.txt").read_text()[-3000:] for rank in range(ranks))


def check(results: dict[str, list[Any]], case: str) -> list[Any]:
    """What a case's ranks returned.

    Raises:
        AssertionError: it did not hold on one of them.
    """
    given = results[case]
    for rank, result in enumerate(given):
        assert not isinstance(result, str), f"rank {rank}: {result}"
    return given


def names(module: str) -> list[str]:
    """The names of a module's cases."""
    return [case.__name__ for case in importlib.import_module(module).CASES]


def _main(module: str, out: str, *only: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE))
    cases = importlib.import_module(module).CASES
    results: dict[str, Any] = {case.__name__: "not run: an earlier case failed" for case in cases}
    for case in cases:
        if only and case.__name__ not in only:
            continue
        torch.manual_seed(0)
        try:
            results[case.__name__] = case(dist.get_rank())
        except BaseException:
            results[case.__name__] = traceback.format_exc()
            break
    Path(out).write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # the other rank may be waiting for this one in a collective that will not come


if __name__ == "__main__":
    _main(*sys.argv[1:])
