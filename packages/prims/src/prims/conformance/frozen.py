"""One frozen text instance per primitive and dialect version.

``snapshots/prim-1.0/<name>.txt`` holds the text form of a one-node envelope. Every later version must still read it and
give it the same meaning; the tests compare both. `write_snapshots` makes those that are missing, and never changes one
that is there: a changed text is an incompatible change of the dialect.
"""

from __future__ import annotations

import pathlib
from typing import Any

from prims.conformance.compiled import instance
from prims.ir import Envelope, parse_text, print_text
from prims.ir.versions import CURRENT
from prims.ops import TABLE, PrimOp

__all__ = ["example", "read_snapshot", "snapshot_names", "write_snapshots"]

FOLDER = pathlib.Path(__file__).parent / "snapshots"


def example(op: PrimOp) -> tuple[Any, ...]:
    """The canonical arguments of a row's first sample in its first dtype."""
    return op.bind(*next(iter(op.samples(op.dtypes[0]))).args)


def _folder(version: tuple[int, int]) -> pathlib.Path:
    return FOLDER / f"prim-{version[0]}.{version[1]}"


def snapshot_names(version: tuple[int, int]) -> list[str]:
    """The primitives with a frozen text in a version."""
    return sorted(path.stem for path in _folder(version).glob("*.txt"))


def read_snapshot(name: str, version: tuple[int, int]) -> tuple[str, Envelope]:
    """A frozen text and the envelope that the current parser reads from it."""
    text = (_folder(version) / f"{name}.txt").read_text()
    return text, parse_text(text)


def write_snapshots() -> list[str]:
    """Write the missing snapshots of the current version; returns their names."""
    folder = _folder(CURRENT["prim"])
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for op in TABLE.values():
        path = folder / f"{op.name}.txt"
        if not path.exists():
            path.write_text(print_text(instance(op, example(op))[0]))
            written.append(op.name)
    return written


if __name__ == "__main__":
    print("\n".join(write_snapshots()))
