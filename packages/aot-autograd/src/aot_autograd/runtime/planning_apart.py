"""Which results of a region lead to which of its inputs, as far as somebody can see it (:mod:`.apart`)."""

from __future__ import annotations

from aot_autograd.partition.split import Partition
from aot_autograd.trace.outcome import Joint
from prims.records import record

__all__ = ["Ways", "ways_of"]


@record
class Ways:
    """The gates of a region's inputs, and the parts of its results.

    Attributes:
        gates: by gate, the gradients (by place) of its inputs.
        parts: the tangents of results, and the gates that these lead to.
    """

    gates: tuple[tuple[int, ...], ...]
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def ways_of(joint: Joint, partition: Partition) -> Ways | None:
    """How the gates and parts are, or None where one of each does: all inputs but parameters have all results.

    Inputs that the same results are computed from share a gate. Parameters are leaves: those with no gate like that
    share one more, and hear of nothing that does not come to them (:mod:`.hush`).
    """
    every = frozenset(range(len(joint.tangents)))
    gradients = partition.gradients
    results = [frozenset(k for k in every if i in joint.reached[k]) for i in gradients]
    others = [n for n, i in enumerate(gradients) if joint.envelope.inputs[i].kind != "parameter"]
    if all(results[n] == every for n in others):
        return None
    found = dict.fromkeys(results[n] for n in others)
    gates = {through: [n for n, one in enumerate(results) if one == through] for through in found}
    rest = [n for n, one in enumerate(results) if one not in found]
    rows = [(through, tuple(places)) for through, places in gates.items()]
    if rest:
        rows.append((frozenset().union(*(results[n] for n in rest)), tuple(rest)))
    parts: dict[tuple[int, ...], list[int]] = {}
    for k in sorted(every):
        parts.setdefault(tuple(j for j, (through, _) in enumerate(rows) if k in through), []).append(k)
    return Ways(
        gates=tuple(places for _, places in rows),
        parts=tuple((tuple(tangents), led) for led, tangents in parts.items()),
    )
