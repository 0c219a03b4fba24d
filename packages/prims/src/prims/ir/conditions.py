"""What a compiled graph takes for granted of its sizes beyond what the graph says.

A decomposition may go by a question about sizes, like whether 7 divides ``s0``. While a program is captured, the answer
is one of its guards. But a backward graph is compiled when it first runs, long after; and what a store finds by a
graph's text was compiled for another program. So the answers stay with the compiled graph, and whoever uses it asks
whether they hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prims.artefact import Artefact, child_of, restore
from prims.errors import StoredGraphError
from prims.ir.envelope import SymbolBinding
from prims.spec import exprtext
from prims.spec.expr import Expr, bits_of_float

if TYPE_CHECKING:
    from prims.ir.envelope import Envelope
    from prims.options import Options
    from prims.report import Report
    from prims.spec import SymbolContext
    from prims.spec.context import SizeGuard

__all__ = ["KIND", "Conditional", "facts", "learn", "load", "read_sizes"]

KIND = "prims.conditional"
_VERSION = "1"


def facts(env: Envelope) -> list[str]:
    """What guards say of the symbols that an envelope's inputs bind: a compilation does not ask about it again."""
    context, names = env.symbols.context, env.symbols.names()
    known = () if context is None else (guard.expr for guard in context.guards)
    return sorted({exprtext.to_python(expr) for expr in known if names & expr.free_symbols()})


def learn(env: Envelope, texts: Iterable[str]) -> None:
    """Tell the context of an envelope that was read what :func:`facts` said of the one that was written.

    Raises:
        StoredGraphError: a text is no condition.
    """
    try:
        exprs = [exprtext.parse(text) for text in texts]
    except (TypeError, ValueError, AttributeError) as error:
        raise StoredGraphError("ART-C5", f"a fact about sizes: {error}") from error
    if not all(expr.is_bool for expr in exprs):
        raise StoredGraphError("ART-C5", "a fact about sizes that is a number")
    for expr in exprs:
        if env.symbols.context is not None and env.symbols.context.statically_known(expr) is None:
            env.symbols.context.add_guard(expr, "a guard of the program")


def read_sizes(places: Mapping[str, SymbolBinding], inputs: Sequence[Any]) -> dict[str, int]:
    """The symbols' values in a call; a float by its bits."""
    values = {}
    for name, place in places.items():
        value = inputs[place.input_index]
        value = value if place.dim is None else value.shape[place.dim]
        values[name] = bits_of_float(value) if isinstance(value, float) else int(value)
    return values

#: The words before brackets: what is called, and operators. No syntax tree is made of the text: in Python 3.11 threads
#: that make one each at a time may get an error, also where one is the program's ("recursion depth mismatch").
_BEFORE_A_BRACKET = re.compile(r"([\w.]+|[\])])\s*\(")
_CALLED = frozenset(("min", "max", "and", "or", "not"))


class Conditional:
    """A compiled graph and the conditions under which it may run: calling it is for those who have asked.

    Args:
        run: the compiled graph.
        conditions: boolean expressions over symbols, and why each was asked.
        places: where an input tells each symbol of the graph.
    """

    def __init__(
        self, run: Callable[..., Any], conditions: Iterable[tuple[Expr, str]], places: Mapping[str, SymbolBinding]
    ) -> None:
        self.run = run
        self.conditions = tuple(conditions)
        names = frozenset[str]().union(*(expr.free_symbols() for expr, _ in self.conditions))
        self._told = names <= places.keys()
        self._places = {name: places[name] for name in sorted(names & places.keys())}
        self._asks = self._written() if self._told else lambda inputs: False

    @classmethod
    def of(cls, run: Callable[..., Any], env: Envelope, guards: Iterable[SizeGuard]) -> Conditional:
        """What was compiled of an envelope, and the guards that came up meanwhile."""
        places = {entry.name: entry.binding for entry in env.symbols if entry.binding is not None}
        return cls(run, [(guard.expr, guard.reason) for guard in guards], places)

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether it may run on these inputs; False where they do not tell."""
        return self._asks(inputs)

    def _evaluated(self, inputs: Sequence[Any]) -> bool:
        sizes = read_sizes(self._places, inputs)
        return all(expr.evaluate(sizes) for expr, _ in self.conditions)

    def _written(self) -> Callable[[Sequence[Any]], bool]:
        """The conditions as a function of Python, which takes a tenth of the time, where they are plain arithmetic."""
        asked = " and ".join(f"({exprtext.to_python(expr)})" for expr, _ in self.conditions)
        at = {
            name: f"x[{place.input_index}]" + ("" if place.dim is None else f".shape[{place.dim}]")
            for name, place in self._places.items()
        }
        try:
            if not _CALLED.issuperset(_BEFORE_A_BRACKET.findall(asked)):
                return self._evaluated
            text = f"lambda x: (lambda {', '.join(at)}: {asked})({', '.join(at.values())})"
            return eval(text, {"__builtins__": {}, "min": min, "max": max})  # type: ignore[no-any-return]
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a long one
            return self._evaluated

    def assumed_in(self, context: SymbolContext | None) -> bool:
        """Whether the conditions hold for the call that is being compiled; they are guards of its program then."""
        exprs = [] if context is None else [context.simplify(expr) for expr, _ in self.conditions]
        if context is None or any(context.hint(expr) is not True for expr in exprs):
            return False
        for expr, (_, reason) in zip(exprs, self.conditions, strict=True):
            if context.statically_known(expr) is None:
                context.add_guard(expr, reason)
        return True

    def artefact(self) -> Artefact:
        """It as an artefact.

        Raises:
            NotPortable: the compiled graph has none.
        """
        conditions = [[exprtext.to_python(expr), reason] for expr, reason in self.conditions]
        places = {name: [place.input_index, place.dim] for name, place in self._places.items()}
        return Artefact(KIND, _VERSION, {"conditions": conditions, "places": places}, {}, {"run": child_of(self.run)})


def load(artefact: Artefact, options: Options, report: Report | None) -> Conditional:
    """What an artefact of :meth:`Conditional.artefact` was made of (a loader).

    Raises:
        StoredGraphError: it is of another version, or its parts have other types.
    """
    if artefact.version != _VERSION:
        raise StoredGraphError("ART-C4", f"a {KIND} of version {artefact.version!r}")
    try:
        conditions = [(exprtext.parse(text), str(reason)) for text, reason in artefact.text["conditions"]]
        places = {str(name): SymbolBinding(*_place(place)) for name, place in artefact.text["places"].items()}
        run = artefact.children["run"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoredGraphError("ART-C5", f"the conditions of a graph: {error}") from error
    if not all(expr.is_bool for expr, _ in conditions):
        raise StoredGraphError("ART-C5", "a condition of a graph that is a number")
    return Conditional(restore(run, options=options, report=report), conditions, places)


def _place(place: Any) -> tuple[int, int | None]:
    index, dim = place
    if type(index) is not int or index < 0 or not (dim is None or type(dim) is int and dim >= 0):
        raise ValueError(f"an input's place {place!r}")
    return index, dim
