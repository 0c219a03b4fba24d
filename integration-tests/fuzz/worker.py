"""One worker process: programs in, outcomes out, one JSON object a line."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any

__all__ = ["KINDS", "examine", "main", "write_program"]

#: The kinds of programs, and the modules whose ``generate(seed, device)`` writes their text.
KINDS = {"tensor": "fuzz.tensors", "python": "fuzz.pythons", "training": "fuzz.training", "mutation": "fuzz.mutation"}
_SILLY = re.compile(r"NameError|UnboundLocalError|is not defined|unexpected keyword|positional argument")


def write_program(kind: str, seed: int, device: str) -> Any:
    """The program of a kind and seed."""
    from fuzz.program import Program

    return Program(kind, seed, importlib.import_module(KINDS[kind]).generate(seed, device))


def examine(kind: str, seed: int, device: str = "cpu", shrinking: float = 40.0) -> dict[str, Any]:
    """Generate, compare and (on a difference) shrink one program; a record for the driver."""
    from fuzz.program import check, clean

    start = time.monotonic()
    program = write_program(kind, seed, device)
    outcome = check(program)
    record: dict[str, Any] = {"kind": kind, "seed": seed, **asdict(outcome)}
    record["difference"] = None
    if outcome.difference is not None:
        record["difference"] = asdict(outcome.difference)
        record["source"] = program.source
        if shrinking:
            record["shrunk"] = _smaller(program, outcome.difference, shrinking)
    clean()
    record["seconds"] = round(time.monotonic() - start, 3)
    return record


def _smaller(program: Any, difference: Any, seconds: float) -> str:
    from dataclasses import replace

    from fuzz.program import check
    from fuzz.shrink import shrink

    silly = bool(_SILLY.search(difference.eager))

    def fails(source: str) -> bool:
        try:
            found = check(replace(program, source=source)).difference
        except Exception:
            return False
        return found is not None and found.kind == difference.kind and bool(_SILLY.search(found.eager)) <= silly

    return shrink(program.source, fails, seconds)


def main() -> None:
    """Read ``{"kind", "seed", "device", "shrinking"}`` lines, answer each; anything programs print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        task = json.loads(line)
        try:
            record = examine(task["kind"], task["seed"], task["device"], task["shrinking"])
        except Exception:
            record = {"kind": task["kind"], "seed": task["seed"], "broken": traceback.format_exc()[-3000:]}
        answers.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
