"""Which cluster must run before which: a topological order that is kept while clusters grow, merge and disappear.

The clusters stand in a line, each behind all that it reads, with labels that compare any two places. Letting a cluster
read more, or making one of two, is legal where no path leads from it to what it then reads; only clusters that stand
between the two can be on such a path. They are looked through from both ends at once, and the end that is through
first decides which ones move in the line (after Pearce and Kelly, "A dynamic topological sort algorithm for directed
acyclic graphs", 2006). A search that takes more than ``BUDGET`` steps counts as a path: the cost of each question is
bounded, and what lies so far apart is better left apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Move", "Order"]

#: Edges looked at to tell whether a path leads from one cluster to another.
BUDGET = 1024

_GAP = 1 << 32


class Move(NamedTuple):
    """How a cluster comes to stand behind more sources: ``moved`` go before it, or it and they go behind ``behind``."""

    moved: tuple[int, ...] = ()
    behind: int | None = None


class Order:
    """The line of clusters, by their numbers. ``steps`` counts the edges looked at."""

    def __init__(self) -> None:
        self.steps = 0
        self._before: dict[int, dict[int, None]] = {}
        self._after: dict[int, dict[int, None]] = {}
        self._into: dict[int, int] = {}  # what was merged -> where it went
        self._label: dict[int, int] = {}
        self._next: dict[int, int] = {-1: -1}
        self._previous: dict[int, int] = {-1: -1}  # -1 is both ends of the line

    def find(self, c: int) -> int:
        """The cluster that a cluster is part of by now."""
        root = c
        while root in self._into:
            root = self._into[root]
        while c != root:
            self._into[c], c = root, self._into[c]
        return root

    def label(self, c: int) -> int:
        """A number that is smaller than that of all clusters which stand behind it in the line."""
        return self._label[c]

    def sources(self, c: int) -> list[int]:
        """The clusters that a cluster reads, each once."""
        return self._live(self._before, c)

    def readers(self, c: int) -> list[int]:
        """The clusters that read a cluster, each once."""
        return self._live(self._after, c)

    def _live(self, edges: dict[int, dict[int, None]], c: int) -> list[int]:
        return list(dict.fromkeys(x for x in map(self.find, edges[c]) if x != c and x in self._label))

    # ---- the line ---------------------------------------------------------------------------------------

    def _insert(self, some: Iterable[int], behind: int) -> None:
        some = list(some)
        after = self._next[behind]
        low = self._label.get(behind, 0)
        gap = (_GAP if after == -1 else (self._label[after] - low) // (len(some) + 1)) if some else 1
        if gap < 1:
            self._relabel()
            return self._insert(some, behind)
        for k, c in enumerate(some, 1):
            self._label[c] = low + k * gap
            self._next[behind], self._previous[c] = c, behind
            behind = c
        self._next[behind], self._previous[after] = after, behind
        return None

    def _remove(self, c: int) -> None:
        before, after = self._previous.pop(c), self._next.pop(c)
        self._next[before], self._previous[after] = after, before
        del self._label[c]

    def _relabel(self) -> None:
        c, label = self._next[-1], _GAP
        while c != -1:
            self._label[c] = label
            c, label = self._next[c], label + _GAP

    # ---- changes ----------------------------------------------------------------------------------------

    def append(self, c: int, sources: Iterable[int]) -> None:
        """A new cluster at the end of the line."""
        self._before[c], self._after[c] = {}, {}
        self._insert([c], self._previous[-1])
        self.link(c, sources)

    def link(self, c: int, sources: Iterable[int]) -> None:
        """Let ``c`` read what stands before it."""
        for s in sources:
            if s != c:
                self._before[c][s] = None
                self._after[s][c] = None

    def admit(self, c: int, sources: Iterable[int]) -> Move | None:
        """How ``c`` may read ``sources`` too; None where a path leads, or may lead, from it to one of them."""
        place = self._label[c]
        late = {s: None for s in sources if self._label[s] > place}
        if not late:
            return Move()
        last = max(late, key=self._label.__getitem__)
        limit = self._label[last]
        back, forth = dict(late), {c: None}
        walks = (
            (self._walk(back, self._before, place, limit), back, forth),
            (self._walk(forth, self._after, place, limit), forth, back),
        )
        for _ in range(BUDGET // 2):
            for walk, found, others in walks:
                self.steps += 1
                met = next(walk, None)
                if met is None:
                    moved = tuple(sorted((x for x in found if x != c), key=self._label.__getitem__))
                    return Move(moved, last if found is forth else None)
                if met in others:
                    return None
        return None

    def _walk(self, found: dict[int, None], edges: dict[int, dict[int, None]], low: int, high: int) -> Iterator[int]:
        """Fill ``found`` with what can be reached from it between two labels; each edge's other end is given out."""
        todo, into, label = list(found), self._into, self._label
        while todo:
            x = todo.pop()
            for y in edges[x]:
                if y in into:
                    y = self.find(y)
                inside = y != x and low <= label.get(y, -1) <= high
                yield y if inside else -1
                if inside and y not in found:
                    found[y] = None
                    todo.append(y)

    def extend(self, c: int, sources: Iterable[int], move: Move) -> None:
        """Let ``c`` read ``sources`` too, as ``admit`` has said it may."""
        for x in move.moved:
            self._remove(x)
        if move.behind is None:
            self._insert(move.moved, self._previous[c])
        else:
            self._remove(c)
            self._insert((c, *move.moved), move.behind)
        self.link(c, sources)

    def together(self, a: int, b: int) -> Move | None:
        """How two clusters may become one; None where a third stands, or may stand, on a path between them."""
        first, last = self._in_line(a, b)
        return self.admit(first, (s for s in self.sources(last) if s != first))

    def merge(self, kept: int, gone: int, move: Move) -> None:
        """Make one cluster of two, as ``together`` has said it may be done."""
        first, last = self._in_line(kept, gone)
        self.extend(first, [s for s in self.sources(last) if s != first], move)
        if first == gone:
            self._remove(kept)
            self._insert([kept], gone)
        self._remove(gone)
        for edges in (self._before, self._after):
            small, large = sorted((edges.pop(gone), edges[kept]), key=len)
            large.update(small)
            edges[kept] = large
        self._into[gone] = kept

    def drop(self, c: int) -> None:
        """Take out a cluster that its readers compute themselves: they read what it did."""
        sources, readers = self.sources(c), self.readers(c)
        for r in readers:
            self.link(r, sources)
        for s in sources:
            self._after[s].pop(c, None)
        del self._before[c], self._after[c]
        self._remove(c)

    def _in_line(self, a: int, b: int) -> tuple[int, int]:
        return (a, b) if self._label[a] < self._label[b] else (b, a)
