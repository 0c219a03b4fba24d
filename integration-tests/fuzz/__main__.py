"""``python -m fuzz``: see README.md."""

from __future__ import annotations

import argparse
import sys
import time

from fuzz.driver import Settings, run
from fuzz.worker import KINDS


def main() -> int:
    """Run programs; the exit status is 1 when one differs or too few were compiled."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Random programs: compiled, compared with eager."
    )
    parser.add_argument("kind", choices=[*KINDS, "all"], help="the kind of programs, or all in turn")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1000, help="programs of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no program later than this")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--interpreted", action="store_true", help="the GPU's kernels, on the CPU by Triton's interpreter")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds that one program may take")
    parser.add_argument("--shrinking", type=float, default=40.0, help="seconds to spend on making a failure small")
    parser.add_argument("--out", help="append failures to this file, one JSON object a line")
    parser.add_argument("--show", action="store_true", help="print the program of --seed and do not run it")
    parser.add_argument("--one", action="store_true", help="run the program of --seed in this process and tell all")
    given = parser.parse_args()
    kinds = tuple(KINDS) if given.kind == "all" else (given.kind,)
    if given.show or given.one:
        return _single(kinds[0], given)
    names = ("seed", "count", "jobs", "minutes", "device", "limit", "shrinking", "out", "interpreted")
    begun = time.monotonic()
    totals, failures = run(Settings(kinds, **{name: getattr(given, name) for name in names}))
    spent = time.monotonic() - begun
    short = []
    for kind, t in totals.items():
        print(
            f"{kind}: {t.programs} programs, {t.idle} of them compute nothing on tensors ({t.graphs} with graphs, {t.eager:.1%} of those that do wholly eager, {t.kernels} with generated kernels, {t.breaks} with "
            f"breaks, {t.raised} raise), {t.undecided} of {t.elements} elements undecided, {t.unstable} programs decided "
            f"by rounding, {t.refused} refused a second derivative, {t.asserted} ended with a kernel's assertion; differences: {dict(t.failures) or 'none'}"
        )
        print("   fallbacks:", "; ".join(f"{n} x {text}" for text, n in t.fallbacks.most_common(8)) or "none")
        if t.lost:
            print("   not followed by the reference:", ", ".join(f"{name} ({n})" for name, n in t.lost.most_common(12)))
        short += t.shortfalls(kind)
    for line in short:
        print("BELOW THE FLOOR:", line)
    count = sum(t.programs for t in totals.values())
    print(f"{count} programs in {spent:.0f} s, {count / spent:.1f} a second; {len(failures)} failures")
    return 1 if failures or short else 0


def _single(kind: str, given: argparse.Namespace) -> int:
    from fuzz.driver import describe
    from fuzz.worker import examine, interpret, write_program

    if given.interpreted:
        interpret()

    print(write_program(kind, given.seed, given.device).source)
    if given.show:
        return 0
    record = examine(kind, given.seed, given.device, given.shrinking)
    print({k: v for k, v in record.items() if k not in ("source", "shrunk", "difference", "broken")})
    failed = record.get("difference") is not None or "graphs" not in record
    if failed:
        print(describe(record))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
