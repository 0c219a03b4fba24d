"""Sweeps real programs through ``compile()``: transformers, timm, torchvision, and programs as tutorials write them.

    python integration-tests/sweeps/sweep_models.py --out sweep.jsonl [--groups hf timm tv program] [--only REGEX] [--limit 120] [--again STATUS ...]

Each case runs in a process of its own with a limit, inference and a training step at two sizes each, against eager and
float64. The output is one JSON line per case; a second run skips those that are in the file (``--again wrong crash``
repeats the ones with that status, ``--again all`` everything). ``--table`` only prints the table of a file.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import pkgutil
import re
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import zoo

GROUPS = ("hf", "timm", "tv", "program")


def cases(groups: set[str]) -> dict[str, Any]:
    """Every case of the groups by name."""
    zoo.import_torchvision()
    found: dict[str, Any] = {}
    if "hf" in groups:
        import cases_transformers

        found |= cases_transformers.cases()
    if groups & {"timm", "tv"}:
        import cases_vision

        found |= cases_vision.cases()
    if "program" in groups:
        import cases_programs

        found |= cases_programs.cases()
    return {name: make for name, make in found.items() if name.split("/")[0] in groups}


def import_everything() -> None:
    """Import every module of the packages, so that no child pays for it, and all see the same sources."""
    for package in ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            try:
                importlib.import_module(module.name)
            except ImportError as error:  # triton where there is none
                print(f"not imported: {module.name}: {error}")


def work(name: str, make: Any) -> dict[str, Any]:
    """One case, in the child."""
    from model_judge import judge

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    try:
        case = make()
    except Exception as error:
        return {"unbuilt": f"{type(error).__name__}: {error}"[:300]}
    try:
        return judge(case)
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in trace[-6:]]
        return {"crash": f"{type(error).__name__}: {error}"[:1500], "trace": places}


def status_of(record: dict[str, Any]) -> str:
    """The worst of a record's parts."""
    for word in ("unbuilt", "crash", "late", "died"):
        if word in record:
            return word
    parts = [part["status"] for part in record.values() if isinstance(part, dict) and "status" in part]
    return next((s for s in ("wrong", "fallback", "break", "recompiles") if s in parts), "ok")


def in_child(name: str, make: Any, limit: float) -> dict[str, Any]:
    """``work`` in a forked process that is ended after ``limit`` seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setpgid(0, 0)
        sink = os.open(os.devnull, os.O_WRONLY)
        if not os.environ.get("SWEEP_VERBOSE"):
            os.dup2(sink, 1), os.dup2(sink, 2)
        text = json.dumps(work(name, make), default=str).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    end, chunks = time.monotonic() + limit, []
    with os.fdopen(reading, "rb") as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                break
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
    late = not ready
    if late:
        os.killpg(child, signal.SIGKILL)
    _, state = os.waitpid(child, 0)
    if late:
        return {"late": f"over {limit:.0f} s"}
    try:
        return json.loads(b"".join(chunks))
    except ValueError:
        return {"died": f"exit state {state}"}


def table(path: Path) -> None:
    """Counts by group and status, then every case that is not ok."""
    records = {r["name"]: r for r in map(json.loads, path.read_text().splitlines())}
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, record in records.items():
        group = "/".join(name.split("/")[:2]) if name.startswith(("hf", "tv")) else name.split("/")[0]
        counts[group][record["status"]] += 1
    columns = sorted({s for c in counts.values() for s in c}, key=lambda s: (s != "ok", s))
    print(f"{'group':28}" + "".join(f"{c:>11}" for c in columns))
    for group, counter in sorted(counts.items()):
        print(f"{group:28}" + "".join(f"{counter[c]:11}" for c in columns))
    for name, record in records.items():
        if record["status"] in ("ok", "unbuilt"):
            continue
        print(f"\n{record['status']:9} {name}")
        for word in ("crash", "late", "died", "trace"):
            if word in record:
                print(f"    {word}: {str(record[word])[:700]}")
        for part, found in record.items():
            if isinstance(found, dict) and found.get("status", "ok") != "ok":
                for kind in ("wrong", "fallbacks", "breaks"):
                    for line in found.get(kind, [])[:4]:
                        print(f"    {part} {kind}: {line[:400]}")
    slow = sorted(
        ((part.get("first_s", 0.0), name, kind, part.get("nodes"), part.get("seconds"))
         for name, record in records.items() for kind, part in record.items() if isinstance(part, dict)),
        key=lambda row: -row[0],
    )  # fmt: skip
    print("\nslowest first calls")
    for row in slow[:12]:
        print("   ", *row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds per case")
    parser.add_argument("--again", nargs="*", default=[])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--groups", nargs="*", default=list(GROUPS))
    args = parser.parse_args()
    if args.table:
        table(args.out)
        return
    done = {}
    if args.out.exists():
        done = {r["name"]: r["status"] for r in map(json.loads, args.out.read_text().splitlines())}
    todo = {
        name: make for name, make in cases(set(args.groups)).items()
        if re.search(args.only, name)
        and (name not in done or done[name] in args.again or "all" in args.again)
    }  # fmt: skip
    import_everything()
    with args.out.open("a") as out:
        for name, make in todo.items():
            start = time.monotonic()
            record = in_child(name, make, args.limit)
            line = {"name": name, "status": status_of(record), "total_s": round(time.monotonic() - start, 1), **record}
            print(json.dumps(line), file=out, flush=True)
            print(f"{line['status']:9} {name:40} {line['total_s']:6.1f} s", flush=True)
    table(args.out)


if __name__ == "__main__":
    main()
