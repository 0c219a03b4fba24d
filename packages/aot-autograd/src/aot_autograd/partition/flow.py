"""Maximum flow and minimum cut on small directed graphs (Dinic's algorithm, 1970)."""

from __future__ import annotations

from collections import deque

__all__ = ["INFINITE", "FlowNetwork"]

INFINITE = 1 << 62


class FlowNetwork:
    """A capacitated directed graph over vertices ``0 .. count-1``."""

    def __init__(self, count: int) -> None:
        self.edges_of: list[list[int]] = [[] for _ in range(count)]
        self.target: list[int] = []
        self.capacity: list[int] = []

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge; its reverse, with capacity 0, is the next index."""
        self.edges_of[start].append(len(self.target))
        self.target.append(end)
        self.capacity.append(capacity)
        self.edges_of[end].append(len(self.target))
        self.target.append(start)
        self.capacity.append(0)

    def max_flow(self, source: int, sink: int) -> int:
        """The value of a maximum flow; capacities become residual ones.

        Takes O(V² E) steps at worst; the partitioner's graphs are shallow and need few phases.
        """
        total = 0
        while True:
            level = self._levels(source, sink)
            if level[sink] < 0:
                return total
            total += self._blocking_flow(source, sink, level)

    def _levels(self, source: int, sink: int) -> list[int]:
        level = [-1] * len(self.edges_of)
        level[source] = 0
        queue = deque([source])
        target, capacity = self.target, self.capacity
        while queue:
            vertex = queue.popleft()
            for edge in self.edges_of[vertex]:
                end = target[edge]
                if capacity[edge] > 0 and level[end] < 0:
                    level[end] = level[vertex] + 1
                    queue.append(end)
            if level[sink] >= 0 and level[vertex] >= level[sink]:
                break
        return level

    def _blocking_flow(self, source: int, sink: int, level: list[int]) -> int:
        target, capacity, edges_of = self.target, self.capacity, self.edges_of
        position = [0] * len(edges_of)
        total = 0
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                amount = min(capacity[edge] for edge in path)
                total += amount
                cut = 0
                for i in range(len(path) - 1, -1, -1):
                    edge = path[i]
                    capacity[edge] -= amount
                    capacity[edge ^ 1] += amount
                    if capacity[edge] == 0:
                        cut = i
                vertex = target[path[cut] ^ 1]
                del path[cut:]
                continue
            edges = edges_of[vertex]
            at = position[vertex]
            while at < len(edges):
                edge = edges[at]
                if capacity[edge] > 0 and level[target[edge]] == level[vertex] + 1:
                    break
                at += 1
            position[vertex] = at
            if at < len(edges):
                path.append(edges[at])
                vertex = target[edges[at]]
            elif vertex == source:
                return total
            else:
                edge = path.pop()
                vertex = target[edge ^ 1]
                position[vertex] += 1

    def reaches(self, sink: int) -> list[bool]:
        """After :meth:`max_flow`: which vertices still reach ``sink``. The cut next to the sink is at their border."""
        seen = [False] * len(self.edges_of)
        seen[sink] = True
        stack = [sink]
        while stack:
            vertex = stack.pop()
            for edge in self.edges_of[vertex]:
                start = self.target[edge]
                if not seen[start] and self.capacity[edge ^ 1] > 0:
                    seen[start] = True
                    stack.append(start)
        return seen
