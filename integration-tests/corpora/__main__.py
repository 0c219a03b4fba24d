"""``python -m corpora``: see README.md."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from corpora.pool import Settings, Task, prepare, run
from corpora.programs import KINDS, names
from corpora.table import table


def main() -> int:
    """Run the corpora; the exit status is 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m corpora", description="Whole corpora, compiled, beside eager.")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="which corpora; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no program later than this")
    parser.add_argument("--shard", default="1/1", help="K/N: each Nth program, from the Kth on")
    parser.add_argument("--sample", type=int, help="so many programs of each corpus, spread over it")
    parser.add_argument("--only", default="", help="a regular expression that names contain")
    parser.add_argument("--stack", choices=["ours", "capture", "torch", "both", "eager"], default="ours")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a program")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB for a program")
    parser.add_argument("--no-training", action="store_true", help="inference alone")
    parser.add_argument("--out", type=Path, help="append records to this file, one JSON object a line")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of such files and run nothing")
    given = parser.parse_args()
    if given.table:
        rows = {}
        for line in itertools.chain.from_iterable(path.read_text().splitlines() for path in given.table):
            row = json.loads(line)
            rows[row["kind"], row["name"], row["stack"]] = row  # the last run of a program counts
        text, short = table(rows.values())
        print(text)
        return bool(short)
    kinds = given.kinds or list(KINDS)
    begun = time.monotonic()
    prepare(kinds)
    tasks = list(chosen(kinds, given))
    print(f"{len(tasks)} programs, ready after {time.monotonic() - begun:.0f} s", flush=True)
    settings = Settings(given.jobs, given.minutes, given.limit, given.memory, not given.no_training)
    rows, count, told = [], Counter(), time.monotonic()
    out = given.out.open("a") if given.out else None
    for row in run(tasks, settings):
        rows.append(row)
        count[row["status"]] += 1
        if out is not None:
            print(json.dumps(row), file=out, flush=True)
        if row["status"] not in ("ok", "idle", "unbuilt"):
            print(f"{row['status']:7} {row['stack']} {row['kind']}/{row['name']}: {row['why'][:250]}", flush=True)
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"[{told - begun:5.0f} s] {len(rows)} of {len(tasks)}: {dict(count)}", flush=True)
    text, short = table(rows)
    print(text)
    print(f"{len(rows)} of {len(tasks)} programs in {time.monotonic() - begun:.0f} s")
    return bool(short)


def chosen(kinds: list[str], given: argparse.Namespace) -> Iterator[Task]:
    """The programs asked for, the kinds in turn, so that a run that is cut short has some of each."""
    part, parts = map(int, given.shard.split("/"))
    stacks = ("ours", "torch") if given.stack == "both" else (given.stack,)
    columns = []
    for kind in kinds:
        found = [name for name in names(kind) if re.search(given.only, f"{kind}/{name}")]
        if given.sample and given.sample < len(found):
            found = [found[k * len(found) // given.sample] for k in range(given.sample)]
        columns.append([Task(kind, name, stack) for name in found[part - 1 :: parts] for stack in stacks])
    for row in itertools.zip_longest(*columns):
        yield from (task for task in row if task is not None)


if __name__ == "__main__":
    sys.exit(main())
