"""The conformance kit: does a backend's implementation of the primitives mean what the table says?

    from prims.conformance import check_backend

    def run_op(op, args):                 # op: prims.ops.PrimOp, args: its arguments, CPU tensors among them
        return my_device.run(op.name, args)

    report = check_backend(run_op)
    print(report)
    assert report.ok

A backend that does not implement a primitive (or a dtype of it) raises `prims.errors.Unsupported`, which is counted
and reported, not a failure: a back end that lacks one can run it by the row's reference on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

import torch

from prims.conformance.judge import judge
from prims.errors import Unsupported, UserError
from prims.ops import TABLE, PrimOp, Sample, lookup
from prims.records import record

__all__ = ["ConformanceReport", "Failure", "check_backend", "dtypes_of", "samples_of"]

RunOp = Callable[[PrimOp, tuple[Any, ...]], Any]


@record
class Failure:
    """One sample on which a backend departs from the reference."""

    op: str
    dtype: torch.dtype
    sample: int
    note: str
    message: str

    def __str__(self) -> str:
        return f"{self.op} {str(self.dtype).removeprefix('torch.')} sample {self.sample} ({self.note}): {self.message}"


@record(frozen=False)
class ConformanceReport:
    """What was run, what failed, and what the backend said it lacks."""

    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    unsupported: dict[str, list[torch.dtype]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Did something run, and nothing fail?"""
        return self.passed > 0 and not self.failures

    def __str__(self) -> str:
        lines = [f"{self.passed} samples conform, {len(self.failures)} do not"]
        lines += [f"  {failure}" for failure in self.failures]
        for name, dtypes in self.unsupported.items():
            listed = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
            lines.append(f"  not implemented: {name} ({listed})")
        return "\n".join(lines)


def dtypes_of(op: PrimOp, dtypes: Iterable[torch.dtype] | None = None) -> list[torch.dtype]:
    """The dtypes a row is tested with: its own, or those of `dtypes` among them."""
    wanted = None if dtypes is None else set(dtypes)
    return [d for d in op.dtypes if wanted is None or d in wanted]


def samples_of(op: PrimOp, dtype: torch.dtype) -> Iterator[Sample]:
    """The row's samples: random, edge values, zero-size, zero-dim, strided, transposed and expanded operands."""
    return iter(op.samples(dtype))


def check_backend(
    run_op: RunOp,
    *,
    ops: Iterable[str | PrimOp] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
) -> ConformanceReport:
    """Run a backend on every sample of the rows and compare (`prims.conformance.judge`).

    Args:
        run_op: ``(op, args) -> tensor``; raises `Unsupported` for what the backend lacks. Any other exception
            counts as a failure of that sample.
        ops: rows or names; all by default.
        dtypes: all by default.

    Raises:
        UserError: `run_op` is not callable, or an op's name is unknown.
    """
    if not callable(run_op):
        raise UserError(f"run_op is {run_op!r}, not a callable", todo="give a function (op, args) -> tensor")
    wanted = None if dtypes is None else list(dtypes)
    rows = TABLE.values() if ops is None else [lookup(o) if isinstance(o, str) else o for o in ops]
    report = ConformanceReport()
    for op in rows:
        for dtype in dtypes_of(op, wanted):
            _check_row(op, dtype, run_op, report)
    return report


def _check_row(op: PrimOp, dtype: torch.dtype, run_op: RunOp, report: ConformanceReport) -> None:
    for i, sample in enumerate(samples_of(op, dtype)):
        try:
            result = run_op(op, op.bind(*sample.args))
        except Unsupported:
            known = report.unsupported.setdefault(op.name, [])
            if dtype not in known:
                known.append(dtype)
            continue
        except Exception as error:  # a backend's bug is a finding, not the end of the run
            report.failures.append(Failure(op.name, dtype, i, sample.note, f"{type(error).__name__}: {error}"))
            continue
        message = judge(op, sample.args, result)
        if message is None:
            report.passed += 1
        else:
            report.failures.append(Failure(op.name, dtype, i, sample.note, message))
