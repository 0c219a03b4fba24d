"""One worker process: programs in, outcomes out, one JSON object a line."""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

__all__ = ["KINDS", "examine", "main", "write_program"]

#: The kinds of programs, and the modules whose ``generate(seed, device)`` writes their text.
KINDS = {
    "tensor": "fuzz.tensors", "python": "fuzz.pythons", "training": "fuzz.training", "mutation": "fuzz.mutation",
    "sizes": "fuzz.sizes",
}  # fmt: skip
_SILLY = re.compile(r"NameError|UnboundLocalError|is not defined|unexpected keyword|positional argument")


def write_program(kind: str, seed: int, device: str, asserting: Collection[str] = ()) -> Any:
    """The program of a kind and seed, without the statements at which a kernel's assertion failed."""
    from fuzz.program import Program

    more = {"asserting": asserting} if asserting else {}
    return Program(kind, seed, importlib.import_module(KINDS[kind]).generate(seed, device, **more))


class TooSlow(BaseException):
    """Raised where the program is when its time is up; no program catches it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise :class:`TooSlow` in the main thread after that time."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def interpret() -> None:
    """Have this process's compiled graphs computed by the kernels that an H200 would get, in Triton's interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    import inductor_gen
    from inductor_gen.device.record import known

    inductor_gen.compile_graph = functools.partial(
        inductor_gen.compile_graph, triton=True, devices=lambda _: known("H200")
    )


def examine(
    kind: str, seed: int, device: str = "cpu", shrinking: float = 40.0, limit: float = 60.0,
    asserting: Sequence[str] = (), alone: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Generate, compare and (on a difference) shrink one program; a record for the driver. Seeds take turns at the CPUs
    that decisions are made for: this machine's own, then those of ``processors.py``.

    Where something ran out of time or a kernel's assertion failed, the record says ``retire``: the process should do
    nothing more. With ``again`` it says how a new process is to go on with the program: without some statements that are
    ``asserting``, or without eager's run (``alone``), which ended with an assertion.
    """
    from processors import PROCESSORS, pretended

    choices = [None, *PROCESSORS.values()]
    chosen = choices[seed % len(choices)]
    with nullcontext() if chosen is None else pretended(chosen):
        return _examined(kind, seed, device, shrinking, limit, asserting, alone)


def _examined(
    kind: str, seed: int, device: str, shrinking: float, limit: float, asserting: Sequence[str], alone: bool
) -> dict[str, Any]:  # fmt: skip
    from fuzz.program import AssertedError, check, clean

    start = time.monotonic()
    try:
        with deadline(limit):
            program = write_program(kind, seed, device, asserting)
            outcome = check(program, alone=alone)
    except AssertedError as error:
        here = {"alone": True} if error.who == "eager" else {"asserting": [*asserting, error.who]}
        again = {"asserting": list(asserting), "alone": alone, **here}
        return {"kind": kind, "seed": seed, "again": again, "retire": True}
    except TooSlow:
        where = traceback.format_exc()[-3000:]
        return {"kind": kind, "seed": seed, "failed": "hang", "broken": where, "retire": True}
    record: dict[str, Any] = {"kind": kind, "seed": seed, **asdict(outcome)}
    record["difference"] = None
    if outcome.difference is not None:
        record["difference"] = asdict(outcome.difference)
        record["source"] = program.source
        if shrinking and outcome.difference.kind != "assertion":
            record["shrunk"], record["retire"] = _smaller(program, outcome.difference, shrinking)
    if outcome.asserted:
        record["retire"] = True
    else:
        clean()
    record["seconds"] = round(time.monotonic() - start, 3)
    return record


def _smaller(program: Any, difference: Any, seconds: float) -> tuple[str, bool]:
    """The program made small, and whether a candidate ran out of time (one that no longer counts its rounds, say) or a
    kernel's assertion failed: the process does no more then."""
    from fuzz.program import AssertedError, check
    from fuzz.shrink import shrink

    silly = bool(_SILLY.search(difference.eager))
    slow: list[str] = []
    ended: list[str] = []

    def fails(source: str) -> bool:
        if ended:
            return False
        print(source, file=sys.stderr, flush=True)  # the last words of a process that it ends
        try:
            with deadline(5.0):
                outcome = check(replace(program, source=source))
        except TooSlow:
            slow.append(source)
            return False
        except AssertedError:
            ended.append(source)
            return False
        except Exception:
            return False
        found = outcome.difference
        if outcome.asserted:
            ended.append(source)
        return found is not None and found.kind == difference.kind and bool(_SILLY.search(found.eager)) <= silly

    return shrink(program.source, fails, seconds), bool(slow or ended)


def main() -> None:
    """Read lines of :func:`examine`'s arguments, answer each; anything programs print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    if "--interpreted" in sys.argv:
        interpret()
    if torch.cuda.is_available():
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    answers.write(json.dumps({"ready": True}) + "\n")
    for number, line in enumerate(sys.stdin):
        task = json.loads(line)
        if number in (1, 10, 50):
            gc.freeze()  # the packages' own objects, a million, need not be looked through after every program
        try:
            record = examine(**task)
        except Exception:
            # A new process comes next: after an assertion of a kernel, say, a GPU does nothing more for this one.
            broken = traceback.format_exc()[-3000:]
            record = {"kind": task["kind"], "seed": task["seed"], "broken": broken, "retire": True}
        answers.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
