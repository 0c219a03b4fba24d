"""Lowering from the aten dialect to the prim dialect: one readable list of named passes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from prims.debug import keep
from prims.defaults import under_default_dtype
from prims.forking import compiling
from prims.ir.envelope import Envelope
from prims.ir.passes import Observer, Pass, run_passes
from prims.lower.clean import remove_dead_code
from prims.lower.context import LowerContext, LowerPass
from prims.lower.decompose import decompose
from prims.lower.regions import UPDATES
from prims.options import Options
from prims.report import Report

__all__ = ["PASSES", "UPDATES", "LowerContext", "LowerPass", "lower"]

PASSES: tuple[LowerPass, ...] = (
    # aten ops to primitives, simplified as they are made (`prims.lower.rewrites`: identities, constants,
    # shapes); claimed composites and what has no decomposition stay one node each
    LowerPass("decompose", decompose, required=True, takes_fuel=True),
    # nodes that no output needs
    LowerPass("dead_code", remove_dead_code),
)


@compiling()
def lower(
    env_aten: Envelope,
    *,
    claims: Iterable[str] = frozenset(),
    options: Options | None = None,
    report: Report | None = None,
    observer: Observer | None = None,
    passes: Iterable[LowerPass] = PASSES,
) -> Envelope:
    """Lower an aten envelope to the prim dialect.

    Args:
        claims: overload names (``"aten.mm.default"``) that the backend implements itself: they stay one node.
        options: `verify` sets how often envelopes are verified, `fuel` limits the rewrites, `numerics`
            ``"fast"`` allows intermediate roundings to be dropped, `debug` keeps the result's text.
        report: collects seconds per pass and, per op that is neither claimed nor decomposable, a fallback.
        observer: called after each pass with its name and result.

    Raises:
        VerifierError: the input or a result breaks a constraint of its dialect.
        Unsupported: an op depends on a memory layout that a logical array cannot express.
    """
    context = LowerContext(frozenset(claims), options or Options(), report)
    steps = [
        Pass(
            step.name,
            functools.partial(step.fn, context=context),
            required=step.required,
            takes_fuel=step.takes_fuel,
        )
        for step in passes
    ]
    with under_default_dtype(env_aten.default_dtype):
        lowered = run_passes(env_aten, steps, options=context.options, report=report, observer=observer)
    keep(context.options, report, "prim", lambda: str(lowered))
    return lowered
