"""Programs of one primitive each, for the tests of forms for other runtimes: made from the rows' own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.program import Argument, Program
from prims.handlers import GraphHandler
from prims.ops import PrimOp
from prims.spec import TensorSpec

#: Kept by NumPy only as another type: such tensors go in and out as float32, with conversions that lose nothing.
CARRIED = {torch.bfloat16: torch.float32}

#: Relative error beside eager, of the dtype that the primitive's result has: a few roundings.
ROUNDING = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


#: Samples that differ from others only in where elements lie in memory.
_LAYOUTS = ("transposed", "strided", "expanded")


def samples_of(op: PrimOp, dtype: torch.dtype) -> list[tuple[Any, ...]]:
    """The row's samples, bound; those of float8 are left out, which no form takes."""
    found = []
    for sample in op.samples(dtype):
        if sample.note in _LAYOUTS and op.elementwise:
            continue
        args = op.bind(*sample.args)
        if not any(isinstance(a, torch.dtype) and "float8" in str(a) for a in args):
            found.append(args)
    if op.kind == "binary" and dtype == torch.uint8 and "shift" not in op.name:
        x = torch.arange(1, 6, dtype=dtype)
        found += [(x, -2), (-2, x)]  # a number that wraps
    return found


def program_of_samples(op: PrimOp, samples: Sequence[tuple[Any, ...]]) -> tuple[Program, list[torch.Tensor]]:
    """A program that computes the primitive on all samples, and its arguments."""
    graph = torch.fx.Graph()
    p = GraphHandler(graph, rewrites={})
    given: list[torch.Tensor] = []
    carried: list[Any] = []

    def placed(fn: Callable[[torch.Tensor], Any], a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return fn(a)
        return tuple(placed(fn, x) for x in a) if isinstance(a, tuple) else a

    def take(t: torch.Tensor) -> int:
        given.append(t.contiguous())
        return len(given) - 1

    calls = [placed(lambda t: _Place(take(t)), args) for args in samples]
    for at, t in enumerate(given):
        given[at] = t.to(CARRIED.get(t.dtype, t.dtype))
        value = p.placeholder(f"x{at}", TensorSpec(tuple(t.shape), given[at].dtype, torch.device("cpu")))
        carried.append((value, t.dtype))
    arguments = tuple(
        Argument(f"x{at}", t.dtype, tuple(t.shape), carried[at][0].node) for at, t in enumerate(given)
    )  # fmt: skip
    values = [value if value.dtype == dtype else p.convert(value, dtype) for value, dtype in carried]

    def valued(a: Any) -> Any:
        if isinstance(a, _Place):
            return values[a.at]
        return tuple(map(valued, a)) if isinstance(a, tuple) else a

    outputs = []
    for at, call in enumerate(calls):
        out = getattr(p, op.name)(*map(valued, call))
        out = p.convert(out, CARRIED[out.dtype]) if out.dtype in CARRIED else out
        outputs.append((f"y{at}", out.node))
    graph.output(tuple(node for _, node in outputs))
    return Program(arguments, (), graph, tuple(outputs), (), {}, {}), given


class _Place:
    def __init__(self, at: int) -> None:
        self.at = at


def difference(got: Any, want: torch.Tensor, error: float | None = None) -> str:
    """What is wrong with a result beside eager's, or nothing."""
    expected = want.to(CARRIED.get(want.dtype, want.dtype))
    found = torch.from_numpy(got.copy())
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{tuple(found.shape)} for {expected.dtype}{tuple(expected.shape)}"
    if not expected.is_floating_point():
        return "" if torch.equal(found, expected) else f"{found.flatten()[:8]} for {expected.flatten()[:8]}"
    error = ROUNDING[want.dtype] if error is None else error
    close = torch.isclose(found, expected, rtol=error, atol=error * 0.1, equal_nan=True)
    if bool(close.all()):
        return ""
    bad = (~close).flatten().nonzero()[:4, 0]
    return f"{found.flatten()[bad].tolist()} for {expected.flatten()[bad].tolist()}"
