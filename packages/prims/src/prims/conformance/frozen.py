"""One frozen text instance per primitive and dialect version.

``snapshots/prim-1.0/<name>.txt`` holds the text form of a one-node envelope. Every later version must still read it and
give it the same meaning; the tests compare both. `write_snapshots` makes those that are missing, and never changes one
that is there: a changed text is an incompatible change of the dialect.
"""

from __future__ import annotations

import pathlib
from typing import Any

import torch
import torch.fx

from prims.handlers import GraphHandler
from prims.handlers.base import map_values
from prims.ir import Envelope, InputDesc, OutputDesc, parse_text, print_text
from prims.ir.versions import CURRENT
from prims.ops import TABLE, PrimOp
from prims.spec import TensorSpec

__all__ = ["example", "instance", "read_snapshot", "snapshot_names", "write_snapshots"]

FOLDER = pathlib.Path(__file__).parent / "snapshots"


def example(op: PrimOp) -> tuple[Any, ...]:
    """The canonical arguments of a row's first sample in its first dtype."""
    return op.bind(*next(iter(op.samples(op.dtypes[0]))).args)


def instance(op: PrimOp, args: tuple[Any, ...]) -> tuple[Envelope, list[torch.Tensor]]:
    """A prim-dialect envelope of the one call ``op(*args)``, and the tensors to run it on."""
    graph = torch.fx.Graph()
    handler = GraphHandler(graph, rewrites={})
    inputs: list[InputDesc] = []
    tensors: list[torch.Tensor] = []

    def placeholder(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        name = f"x{len(inputs)}"
        spec = TensorSpec(tuple(arg.shape), arg.dtype, arg.device, arg.stride())
        inputs.append(InputDesc(name, "input", spec))
        tensors.append(arg)
        return handler.placeholder(name, spec)

    result = handler.prim(op, *map_values(placeholder, args))
    graph.output((result.node,))
    outputs = (OutputDesc("output", result.spec),)
    env = Envelope("prim", CURRENT["prim"], "prims.conformance", "1", graph, tuple(inputs), outputs)
    return env, tensors


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
