"""Dialect versions: what this package reads and writes, negotiation between stages, and version steps.

A minor version adds; a major version may remove. A consumer reads the last two majors; a producer can write the
last two minors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prims.errors import QuintetError

if TYPE_CHECKING:
    from prims.ir.envelope import Envelope

__all__ = [
    "CURRENT",
    "Version",
    "VersionError",
    "consumable",
    "convert",
    "negotiate",
    "producible",
    "readable",
    "register_step",
]

Version = tuple[int, int]

#: The newest version of each dialect.
CURRENT: dict[str, Version] = {"torch": (1, 0), "aten": (1, 0), "prim": (1, 0)}

#: Every released version of each dialect, oldest first.
RELEASED: dict[str, tuple[Version, ...]] = {"torch": ((1, 0),), "aten": ((1, 0),), "prim": ((1, 0),)}

_Step = Callable[["Envelope"], "Envelope"]
_STEPS: dict[tuple[str, Version, Version], _Step] = {}


class VersionError(QuintetError):
    """Two stages have no dialect version in common, or no conversion is known."""


def readable(dialect: str, version: Version) -> bool:
    """Whether this package reads ``version``: any minor, up to the current one, of the last two majors."""
    current = CURRENT.get(dialect)
    if current is None:
        return False
    major, minor = version
    if major == current[0]:
        return 0 <= minor <= current[1]
    return major == current[0] - 1 and major >= 1


def consumable(dialect: str) -> tuple[Version, ...]:
    """The released versions that this package reads."""
    return tuple(version for version in RELEASED[dialect] if readable(dialect, version))


def producible(dialect: str) -> tuple[Version, ...]:
    """The released versions that this package writes: the last two minors of the current major."""
    major, minor = CURRENT[dialect]
    return tuple(v for v in RELEASED[dialect] if v[0] == major and v[1] >= minor - 1)


def negotiate(producer_versions: Iterable[Version], consumer_versions: Iterable[Version]) -> Version:
    """The highest version that both sides know.

    Raises:
        VersionError: none in common; names both lists.
    """
    produced, consumed = sorted(set(producer_versions)), sorted(set(consumer_versions))
    common = set(produced) & set(consumed)
    if not common:
        raise VersionError(
            f"no dialect version in common: the producer writes {_show(produced)}, the consumer reads "
            f"{_show(consumed)}. Install versions of the two packages that overlap."
        )
    return max(common)


def register_step(dialect: str, source: Version, target: Version) -> Callable[[_Step], _Step]:
    """Register the pure function that rewrites an envelope from one version to a neighbouring one.

    The step may leave ``version`` alone; :func:`convert` sets it.
    """

    def add(step: _Step) -> _Step:
        key = (dialect, source, target)
        if key in _STEPS:
            raise ValueError(f"a step {dialect} {source} -> {target} exists")
        _STEPS[key] = step
        return step

    return add


def convert(env: Envelope, target: Version) -> Envelope:
    """Upgrade or downgrade ``env`` to ``target`` by the shortest chain of registered steps.

    Raises:
        VersionError: no chain of steps leads there.
    """
    paths: dict[Version, list[Version]] = {env.version: []}
    frontier = [env.version]
    while frontier and target not in paths:
        here = frontier.pop(0)
        for dialect, source, neighbour in sorted(_STEPS):
            if dialect == env.dialect and source == here and neighbour not in paths:
                paths[neighbour] = [*paths[here], neighbour]
                frontier.append(neighbour)
    if target not in paths:
        raise VersionError(
            f"no conversion of dialect {env.dialect} from {_show([env.version])} to {_show([target])} is registered"
        )
    for version in paths[target]:
        env = _STEPS[(env.dialect, env.version, version)](env).replace(version=version)
    return env


def _show(versions: Iterable[Version]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in versions) or "nothing"
