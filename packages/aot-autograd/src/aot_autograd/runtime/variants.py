"""A graph that was compiled when it first ran, and rests on what its sizes were then: a compiled form for each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prims.forking import compiling

if TYPE_CHECKING:  # what a stored program need not import
    from prims.ir import Envelope
    from prims.ir.conditions import Conditional

__all__ = ["MOST", "Variants"]

#: Compiled forms of one graph; other sizes run operator by operator.
MOST = 8

_Boxed = Callable[[list[Any]], Sequence[Any]]


class Variants:
    """The compiled forms of a graph: ``run(inputs) -> results``; the list of inputs is given up.

    Args:
        first: what there is, with the conditions under which each may run.
        another: compiles one more for a call's sizes.
        as_it_is: the graph run operator by operator, which is recorded.
    """

    def __init__(
        self, first: tuple[Conditional, _Boxed], another: Callable[[dict[str, int]], tuple[Conditional, _Boxed]],
        as_it_is: Callable[[], _Boxed], env: Callable[[], Envelope],
    ) -> None:  # fmt: skip
        self._forms = [first]
        self._another = another
        self._as_it_is = as_it_is
        self._env = env
        self._uncompiled: _Boxed | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return (self._fitting(inputs) or self._made(inputs))(inputs)

    def _fitting(self, inputs: list[Any]) -> _Boxed | None:
        return next((run for conditional, run in self._forms if conditional.holds(inputs)), None)

    def _made(self, inputs: list[Any]) -> _Boxed:
        from prims.ir.conditions import read_sizes

        with compiling():
            found = self._fitting(inputs)  # another thread's, meanwhile
            if found is not None:
                return found
            if len(self._forms) < MOST:
                places = {entry.name: entry.binding for entry in self._env().symbols if entry.binding is not None}
                conditional, run = self._another(read_sizes(places, inputs))
                if conditional.holds(inputs):
                    self._forms.append((conditional, run))
                    return run
            if self._uncompiled is None:
                self._uncompiled = self._as_it_is()
            return self._uncompiled
