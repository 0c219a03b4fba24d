"""Loop bodies: what a cluster computes at one point of its iteration space, as hash-consed SSA values.

Every value knows which loop variables it depends on and its *stage*: 0 before any reduction, one more after each
reduction on its way. A renderer emits one inner loop per stage; everything device-specific is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import field
from typing import Any, TypeAlias

import torch

from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import coefficient, range_atoms, substitute
from prims.records import record
from prims.spec.expr import Expr

__all__ = ["Body", "Store", "Val", "linear", "meets_itself", "narrowed", "rounds_apart", "split_request"]


class Val:
    """One SSA value.

    ``op`` is a primitive's name, or one of: ``const`` (``attr`` the number), ``size`` (``attr`` an expression over
    sizes), ``index`` (``attr`` an index, as int64), ``test`` (``attr`` an index; is it >= 0?), ``load`` (``attr`` the
    buffer's node, ``at`` the element; a second argument is a condition without which it gives 0), ``reduce`` and
    ``scan`` (``attr`` the primitive's name, or ``deviations``, whose ``mean`` is another value), ``bounded`` and
    ``nonzero`` (its argument, which the kernel reports where it is no index below ``attr``, an extent, or where it is
    0; a second argument says where it matters at all), ``rounded`` (its argument as its 16-bit dtype holds it).
    """

    __slots__ = ("args", "at", "attr", "deps", "dtype", "id", "node", "number", "op", "stage")

    def __init__(self, op: str, args: tuple[Val, ...], dtype: torch.dtype, attr: Any, at: Expr | None) -> None:
        self.op = op
        self.args = args
        self.dtype = dtype
        self.attr = attr
        self.at = at
        self.id = -1
        self.deps: frozenset[Expr] = frozenset()
        self.stage = 0
        self.node: Node | None = None  # what the cluster computes
        self.number: Node | None = None  # whose operation it is, at whatever place

    def __repr__(self) -> str:
        return f"v{self.id}={self.op}{[a.id for a in self.args]}"


_Test = Callable[[Val], bool]
Change: TypeAlias = Callable[[Val, Mapping[int, Val], Callable[[Val], None]], Val | None]


def _always(_: Val) -> bool:
    return True


@record(frozen=False)
class Store:
    """``buffer[at] = value``, or combined as ``mode`` says (``set add mul max min``)."""

    buffer: Node
    at: Expr
    value: Val
    mode: str = "set"


@record(frozen=False)
class Body:
    """Loop variables with their sizes, outer before inner, the values in topological order and the stores."""

    outer: list[Expr]
    inner: list[Expr]
    space: dict[Expr, Expr]
    vals: list[Val] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    atoms: dict[Expr, Val] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    parts: int = 1

    def accesses(self) -> list[tuple[Node, Expr]]:
        """The buffers that are read and written, and where, with repetitions."""
        loads = [(v.attr, v.at) for v in self.vals if v.op == "load" and v.at is not None]
        return loads + [(s.buffer, s.at) for s in self.stores]

    def indices(self) -> list[Expr]:
        """Every index expression, with repetitions."""
        found = [v.at for v in self.vals if v.at is not None]
        return found + [s.at for s in self.stores]

    def refresh(self) -> None:
        """Recompute dependences and stages after index expressions changed."""
        inner = frozenset(self.inner)
        for v in self.vals:
            inputs = self.inputs_of(v)
            deps = {s for s in v.at.symbols if s in self.space} if v.at is not None else set()
            deps = deps.union(*(a.deps for a in inputs))
            stage = max((a.stage for a in inputs), default=0)
            if v.op == "reduce":
                deps -= inner
                stage += 1
            elif v.op == "scan":
                deps |= inner
            v.deps = frozenset(deps)
            v.stage = stage

    def inputs_of(self, v: Val) -> list[Val]:
        """The values that ``v`` needs, those inside its index included."""
        if v.at is None or not self.atoms:
            return list(v.args)
        return [*v.args, *(self.atoms[s] for s in sorted(v.at.symbols, key=str) if s in self.atoms)]

    def of_store(self, s: Store) -> list[Val]:
        """The values that a store needs, those inside its index included."""
        return [s.value, *(self.atoms[a] for a in s.at.symbols if a in self.atoms)]

    def cone(self, roots: Iterable[Val], into: _Test = _always, through: _Test = _always) -> list[Val]:
        """The values that these are made of, themselves among them, in order: those that ``into`` takes, and what they
        in turn are made of where ``through`` says so."""
        found: dict[int, Val] = {}
        todo = list(roots)
        while todo:
            v = todo.pop()
            if v.id not in found and into(v):
                found[v.id] = v
                if through(v):
                    todo += self.inputs_of(v)
        return [found[i] for i in sorted(found)]

    # ---- passes over a row --------------------------------------------------------------------------------

    def is_inner(self, v: Val) -> bool:
        """Does the value change along the row?"""
        return v.op == "scan" or not v.deps.isdisjoint(self.inner)

    def stores_inside(self, s: Store) -> bool:
        """Does a store belong in the loops along the row?"""
        return self.is_inner(s.value) or any(v in self.inner for v in s.at.symbols)

    def passes(self) -> int:
        """The number of passes over the row."""
        ends = [v.args[0].stage if v.op == "reduce" else v.stage for v in self.vals if v.op in ("reduce", "scan")]
        return max([-1, *ends, *(s.value.stage for s in self.stores if self.stores_inside(s))]) + 1

    def reduces(self, stage: int) -> list[Val]:
        """The reductions that a pass makes."""
        return [v for v in self.vals if v.op == "reduce" and v.args[0].stage == stage]

    def inside(self, stage: int) -> list[Store]:
        """The stores within a pass."""
        return [s for s in self.stores if s.value.stage == stage and self.stores_inside(s)]

    def along(self, stage: int, kept: Container[int] = ()) -> list[Val]:
        """The values along the row that a pass computes, in order; those ``kept``, by number, later passes read."""
        roots = [a for r in self.reduces(stage) for a in r.args]
        roots += [v for v in self.vals if v.stage == stage and (v.op == "scan" or v.id in kept)]
        roots += [v for s in self.inside(stage) for v in self.of_store(s)]
        return self.cone(roots, self.is_inner, lambda v: v.id not in kept or v.stage == stage)

    def rewritten(
        self, stores: Iterable[Store], change: Change, outer: Iterable[Expr] | None = None,
        inner: Iterable[Expr] | None = None,
    ) -> Body:  # fmt: skip
        """A new body of some of the stores, over these loops, whose values are copies but where ``change`` gives one.

        ``change(v, copies, add)`` is told of the copies of the values before it, by number, and may ``add`` others.
        """
        made = Body(
            list(self.outer if outer is None else outer), list(self.inner if inner is None else inner),
            dict(self.space), nodes=self.nodes, parts=self.parts,
        )  # fmt: skip
        copies: dict[int, Val] = {}

        def add(v: Val) -> None:
            v.id = len(made.vals)
            made.vals.append(v)

        for v in self.vals:
            copy = change(v, copies, add)
            if copy is None:
                copy = Val(v.op, tuple(copies[a.id] for a in v.args), v.dtype, v.attr, v.at)
            if copy.id < 0:
                copy.node, copy.number = v.node, v.number
                add(copy)
            copies[v.id] = copy
        made.atoms = {e: copies[v.id] for e, v in self.atoms.items()}
        made.stores = [Store(s.buffer, s.at, copies[s.value.id], s.mode) for s in stores]
        made.prune()
        return made

    def prune(self) -> None:
        """Leave out what no store needs."""
        self.vals = self.cone(v for s in self.stores for v in self.of_store(s))
        live = {v.id for v in self.vals}
        self.atoms = {e: v for e, v in self.atoms.items() if v.id in live}
        self.refresh()

    def replace_index(self, mapping: Mapping[Expr, Expr]) -> None:
        """Substitute loop variables everywhere."""
        for v in self.vals:
            if v.at is not None:
                v.at = substitute(v.at, mapping)
        for s in self.stores:
            s.at = substitute(s.at, mapping)


def linear(body: Body, at: Expr, variable: Expr) -> Expr | None:
    """The stride of a variable in an index, None where it is not linear or goes through loaded values."""
    for s in at.symbols:
        if s in body.atoms and variable in body.atoms[s].deps:
            return None
    return coefficient(at, variable)


def _takes_product(v: Val) -> bool:
    """Is it a product, or a sum into which one may go unrounded?"""
    if not v.dtype.is_floating_point or v.op not in ("mul", "add", "sub"):
        return False
    terms = v.args if v.op != "mul" else (v,)
    return any(a.op == "mul" or (a.op == "neg" and a.args[0].op == "mul") for a in terms)


def rounds_apart(body: Body, looped: bool) -> bool:
    """Whether a compiler's choice of which products go into sums unrounded may give one number of the graph two values
    in a kernel; ``looped``: its stages compute again what they take of earlier ones along the row."""
    return meets_itself(body) or (looped and _rounds_by_stage(body))


def meets_itself(body: Body, form: Callable[[Val], Any] | None = None) -> bool:
    """Whether a sum takes a number of the graph that is computed at two places: ``y - y[i]`` of ``y = a * b + c * d``.

    Which product goes into a sum unrounded, if any, is chosen for each place. Where the places are one, what is left of
    the number and itself were its rounding error and not 0. ``form`` tells what was chosen at a place: numbers that are
    rounded in one way at all of theirs count for nothing; without it, a compiler is going to choose.
    """
    places: dict[Node, list[Val]] = {}
    for v in body.vals:
        if v.number is not None and v.op in ("mul", "add", "sub"):
            places.setdefault(v.number, []).append(v)
    several = [vals for vals in places.values() if len(vals) > 1 and any(map(_takes_product, vals))]
    if form is not None:
        several = [vals for vals in several if len(set(map(form, vals))) > 1]
    if not several:
        return False
    number = {v.id: 1 << k for k, vals in enumerate(several) for v in vals}
    place = {i: 1 << k for k, i in enumerate(number)}
    numbers: dict[int, int] = {}  # which of them a value depends on, as bits, and on which of their places
    found: dict[int, int] = {}
    for v in body.vals:
        numbers[v.id], found[v.id] = number.get(v.id, 0), place.get(v.id, 0)
        for a in body.inputs_of(v):
            numbers[v.id] |= numbers[a.id]
            found[v.id] |= found[a.id]
        if v.op in ("add", "sub") and v.dtype.is_floating_point:
            left, right = v.args
            if numbers[left.id] & numbers[right.id] and found[left.id] != found[right.id]:
                return True
    return False


def _rounds_by_stage(body: Body) -> bool:
    """Whether several stages make a number again of which a product is a term, and only some can leave it unrounded.

    A compiler adds a product unrounded where all that takes it are sums. A number that is one thing in a row's sums and
    another in what is made of these does not cancel where it should: a normalisation's gradient of its operand.
    """
    rounded: dict[int, bool] = {}
    for stage in range(body.passes()):
        vals = body.along(stage)
        whole = {a.id for v in vals if not _is_sum(v) for a in body.inputs_of(v)}
        whole |= {a.id for r in body.reduces(stage) if r.attr != "sum" for a in r.args}
        whole |= {s.value.id for s in body.inside(stage)}
        for v in vals:
            product = v.op == "mul" and v.dtype.is_floating_point
            if product and rounded.setdefault(v.id, v.id in whole) != (v.id in whole):
                return True
    return False


def _is_sum(v: Val) -> bool:
    return v.op in ("add", "sub", "neg") and v.dtype.is_floating_point


def narrowed(body: Body) -> set[int]:
    """The sums in double, by number, of converted floats, of which nothing is kept but what is scaled and converted
    back: a mean.

    Added one after the other, they lose less of any number of terms than the conversion does: no sum is in parts.
    """
    seen = {s.value.id for s in body.stores}  # the double itself, or what may cancel
    found = set()
    for v in reversed(body.vals):
        if v.op == "convert" and v.dtype.is_floating_point and v.dtype.itemsize < 8:
            continue
        if v.id in seen or v.dtype != torch.float64 or v.op not in ("mul", "div", "neg", "reduce"):
            seen.update(a.id for a in body.inputs_of(v))
        elif v.op == "reduce" and v.attr == "sum" and v.args[0].op == "convert":
            source = v.args[0].args[0].dtype
            if source.is_floating_point and source.itemsize < 8:
                found.add(v.id)
    return found


def split_request(indices: list[Expr], space: Mapping[Expr, Expr]) -> tuple[Expr, Expr] | None:
    """A variable and divisor whose split would remove a division from an index."""
    for at in indices:
        for variable, divisor in range_atoms(at, space):
            return variable, divisor
    return None
