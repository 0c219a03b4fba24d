"""What every lowering pass is given besides the envelope."""

from __future__ import annotations

from collections.abc import Callable

from prims.ir.envelope import Envelope
from prims.options import Options
from prims.records import record
from prims.report import Report


@record
class LowerContext:
    """The backend's claims, the user's options and the report of one lowering."""

    claims: frozenset[str]
    options: Options
    report: Report | None = None


@record
class LowerPass:
    """A named step: `fn(env, context=...)`, or `fn(env, fuel, context=...)` where it takes fuel."""

    name: str
    fn: Callable[..., Envelope]
    required: bool = False
    takes_fuel: bool = False
