"""One profiled call: when each kernel and each call of a library ran, for how long, and what it moved."""

from __future__ import annotations

from collections.abc import Mapping

from prims.records import record

__all__ = ["CallRecord", "Group", "StepRecord"]

#: Groups that a text names.
_NAMED = 8


@record
class StepRecord:
    """A kernel or a library call that ran.

    Attributes:
        kind: ``"kernel"`` or ``"library"``.
        name: the kernel's or the operator's.
        start: seconds since the call began.
        seconds: for which it ran, what is nested in it included.
        depth: how many others it ran in (a branch's or a loop's body runs in a step).
        device: where it ran.
        ops: the operators fused into it.
        read: bytes that it reads, each element once, for likely sizes.
        written: bytes that it writes.
        lines: the user's lines that it computes.
    """

    kind: str
    name: str
    start: float
    seconds: float
    depth: int = 0
    device: str = "cpu"
    ops: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    lines: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes from and to memory."""
        return self.read + self.written


@record
class Group:
    """The runs of one kernel, or of one operator: how many, their seconds and bytes, and the first of them."""

    first: StepRecord
    count: int
    seconds: float
    bytes: int

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds if self.seconds else 0.0


@record
class CallRecord:
    """A call that was profiled.

    Attributes:
        what: what was measured, and how.
        seconds: of the call, with the clock of the steps.
        undisturbed: seconds of a call in which nothing was timed, by the wall clock.
        steps: the kernels and library calls, in order.
        bandwidth: bytes per second of each device's main memory (its ``Device`` record).
    """

    what: str
    seconds: float
    undisturbed: float
    steps: tuple[StepRecord, ...]
    bandwidth: Mapping[str, float]

    def seconds_in(self, kind: str) -> float:
        """The seconds of the steps of a kind that ran in no other one."""
        return sum(step.seconds for step in self.steps if step.kind == kind and not step.depth)

    @property
    def elsewhere(self) -> float:
        """The seconds of the call that no step took: guards, Python, allocations, waiting."""
        return max(self.seconds - self.seconds_in("kernel") - self.seconds_in("library"), 0.0)

    def groups(self) -> list[Group]:
        """What ran, those of one name together, the longest first."""
        found: dict[tuple[str, str], list[StepRecord]] = {}
        for step in self.steps:
            found.setdefault((step.kind, step.name), []).append(step)
        groups = [
            Group(some[0], len(some), sum(s.seconds for s in some), sum(s.bytes for s in some))
            for some in found.values()
        ]
        return sorted(groups, key=lambda group: -group.seconds)

    def share(self, seconds: float) -> float:
        """The share of the call, 0 to 1."""
        return seconds / self.seconds if self.seconds else 0.0

    def rate(self, group: Group) -> str:
        """The bytes per second of a group beside its device's, for people."""
        most = self.bandwidth.get(group.first.device, 0.0)
        beside = f", {group.rate / most:.0%} of main memory's" if most else ""
        return f"{group.rate / 1e9:.3g} GB/s{beside}" if group.bytes else ""

    def __str__(self) -> str:
        kinds = {"kernel": "kernels", "library": "library calls"}
        parts = [
            f"{sum(s.kind == kind for s in self.steps)} {text} {self.share(self.seconds_in(kind)):.0%}"
            for kind, text in kinds.items()
        ]
        lines = [
            f"profiled call: {1e3 * self.seconds:.3g} ms ({self.what}), undisturbed {1e3 * self.undisturbed:.3g} ms: "
            f"{', '.join(parts)}, elsewhere {self.share(self.elsewhere):.0%}"
        ]
        for group in self.groups()[:_NAMED]:
            rate = self.rate(group)
            lines.append(
                f"  {self.share(group.seconds):.0%} {group.count} x {group.first.name}: {1e3 * group.seconds:.3g} ms"
                + (f", {rate}" if rate else "")
            )
        return "\n".join(lines)
