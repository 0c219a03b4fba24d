"""Named passes over envelopes: verified at both ends, printable after each, stoppable by fuel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prims.errors import VerifierError
from prims.ir.envelope import Envelope
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["Fuel", "Observer", "Pass", "Steps", "counting_steps", "print_observer", "run_passes"]

#: Called after each pass with its name and result.
Observer = Callable[[str, Envelope], None]


class Fuel:
    """A budget of optional steps. Running out is how a miscompile is bisected.

    ``spend()`` is asked before every optional pass, and by rewriting passes before each rewrite. What a rewrite raises
    while it looks whether it applies counts as a step too, so that it is found.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.spent = 0
        self.last: str | None = None

    @property
    def left(self) -> bool:
        """Whether one more step may be taken."""
        return (self.limit is None or self.spent < self.limit) and (_counted is None or _counted.left)

    def spend(self, what: str) -> bool:
        """True when there was fuel left for ``what``, which is remembered as the last step taken."""
        if self.limit is not None and self.spent >= self.limit:
            return False
        if _counted is not None and not _counted.take(what):
            return False
        self.spent += 1
        self.last = what
        return True


class Steps:
    """The optional steps of all stages together, in their order; those from ``limit`` on are not taken."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.taken: list[str] = []

    @property
    def left(self) -> bool:
        """Whether one more may be taken."""
        return self.limit is None or len(self.taken) < self.limit

    def take(self, what: str) -> bool:
        """Take one more, if that may be."""
        if not self.left:
            return False
        self.taken.append(what)
        return True


_counted: Steps | None = None


@contextmanager
def counting_steps(limit: int | None = None) -> Iterator[Steps]:
    """Count the optional steps of whatever is compiled meanwhile, in this process, and stop after ``limit`` of them.

    ``Options.fuel`` limits each stage by itself; this numbers the steps of all stages, so that one number names one.
    A tool for one thread: what other threads compile counts too.
    """
    global _counted
    before, _counted = _counted, Steps(limit)
    try:
        yield _counted
    finally:
        _counted = before


@record
class Pass:
    """A pure function from envelope to envelope.

    Attributes:
        required: runs without fuel, for passes without which the result is not in its dialect.
        takes_fuel: ``fn`` is called as ``fn(env, fuel)`` and spends one unit per rewrite.
    """

    name: str
    fn: Callable[..., Envelope]
    required: bool = False
    takes_fuel: bool = False


def run_passes(
    env: Envelope,
    passes: Sequence[Pass],
    *,
    options: Options,
    report: Report | None = None,
    observer: Observer | None = None,
    fuel: Fuel | None = None,
) -> Envelope:
    """Run ``passes`` in order.

    Verifies the first and the last envelope unless ``options.verify`` is ``"off"``, and every one in between
    under ``"every_pass"`` and ``"reference"``. Each pass's time is reported as ``pass:<name>``, and so is what the
    reference could not compare.

    Raises:
        VerifierError: a constraint is broken; the error names the pass after which it was found.
    """
    level = options.verify
    each = level in ("every_pass", "reference")
    fuel = Fuel(options.fuel) if fuel is None else fuel
    if level != "off":
        env.verify("boundaries" if not each else level)
    after: str | None = None
    for one in passes:
        if not one.required and not one.takes_fuel and not fuel.spend(one.name):
            continue
        before = env
        if report is not None:
            with report.phase(f"pass:{one.name}"):
                env = one.fn(env, fuel) if one.takes_fuel else one.fn(env)
        else:
            env = one.fn(env, fuel) if one.takes_fuel else one.fn(env)
        after = one.name
        if observer is not None:
            observer(one.name, env)
        if each:
            _verify_after(env, level, one.name)
        if level == "reference":
            from prims.ir.reference import compare

            compare(before, env, one.name, report)
    if level != "off" and not each and after is not None:
        _verify_after(env, level, after)
    return env


def _verify_after(env: Envelope, level: str, name: str) -> None:
    try:
        env.verify(level)
    except VerifierError as error:
        raise VerifierError(error.label, error.message, node=error.node, after=name) from None


def print_observer(name: str, env: Envelope) -> None:
    """An observer that prints each pass's result."""
    print(f"# after {name}\n{env}")
