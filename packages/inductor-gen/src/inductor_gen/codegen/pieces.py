"""Loops over the pieces of a range in which tests of places do not change (a side of a seam, the inside of a border),
over its runs in which a quotient of places does not, and over stretches for which random numbers are made before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

import torch

from inductor_gen.kernel.body import Body, Store, Val, linear
from inductor_gen.loops.index import ONE, ZERO, lift
from prims.ops import TABLE, templates
from prims.spec import expr as ex
from prims.spec.expr import Expr

if TYPE_CHECKING:
    from inductor_gen.codegen.c import _Kernel

__all__ = [
    "Emit", "Seam", "draws", "halves", "in_pieces", "in_rows", "in_runs", "in_stretches", "masked", "run_along",
    "seams",
]  # fmt: skip

#: Kinds of pieces, and statements in all of them: each is compiled by itself.
KINDS, STATEMENTS = 5, 256

#: Steps of a run from which on it is worth a loop: a division of 64 bits takes as long as some of them, in every step.
RUN = 8

#: Steps of a stretch that halves are converted for at once: what is kept of some operands stays in the first cache.
ROW = 256

_DRAWN = ("random_uniform", "random_normal")

#: What writes the loop over a piece, given its two ends; of tests in the kernel's ``held`` it knows the outcome.
Emit = Callable[[str, str], None]

#: The place from which on, or up to which, tests hold, and these: each with whether it holds from there on.
Seam = tuple[Expr, list[tuple[Val, bool]]]


def seams(body: Body, vals: Sequence[Val], loop: Expr) -> list[Seam]:
    """Where along a loop tests among values change, for as many places as are worth a loop each."""
    found: dict[Expr, list[tuple[Val, bool]]] = {}
    for v in vals:
        stride = linear(body, v.at, loop) if v.op == "test" and v.at is not None else None
        if stride is ONE or stride is ex.const(-1):
            rest = ex.sub(v.at, ex.mul(stride, loop))  # type: ignore[arg-type]
            if not any(s in body.atoms for s in rest.symbols):
                place = ex.sub(ex.const(0), rest) if stride is ONE else ex.add(rest, ex.const(1))
                found.setdefault(place, []).append((v, stride is ONE))
    kept: list[Seam] = []
    for seam in found.items():
        kinds = len(_kinds([*kept, seam]))
        if kinds <= KINDS and kinds * len(vals) <= STATEMENTS:
            kept.append(seam)
    return kept


def masked(body: Body, loop: Expr, held: Set[int] = frozenset()) -> bool:
    """Whether loads are under conditions that change along a loop, but for the tests ``held``, by their numbers.

    Such a loop is no place for an unrolled one that stores: what its steps store lies side by side, gcc takes their
    loads for one of a group, and of the masks of a group that fills several vectors it uses the first for all of them
    (12.2 and 13.3, ``vectorizable_load``; seen with any number of steps, and of lanes from two on).
    """

    def changes(v: Val) -> bool:
        return v.id not in held and loop in v.deps and (not v.args or v.op == "load" or any(map(changes, v.args)))

    return any(changes(v.args[0]) for v in body.vals if v.op == "load" and v.args)


def _kinds(left: Sequence[Seam]) -> list[Mapping[int, bool]]:
    """What holds in each kind of piece: of seams whose order is known, fewer sides meet."""
    if not left:
        return [{}]
    return [{**holds, **rest} for _, after, others, holds in _sides(left) for rest in _kinds(others)]


def _sides(left: Sequence[Seam]) -> list[tuple[Expr, bool, list[Seam], dict[int, bool]]]:
    """The two sides of the first seam: which, the seams of which it says nothing, and what it says of tests."""
    place = left[0][0]
    sides = []
    for after in (True, False):
        others: list[Seam] = []
        holds: dict[int, bool] = {}
        for other, tests in left:
            gap = ex.sub(other, place)
            if gap.is_const and (gap.value <= 0 if after else gap.value >= 0):
                holds |= {v.id: rising == after for v, rising in tests}
            else:
                others.append((other, tests))
        sides.append((place, after, others, holds))
    return sides


def in_pieces(kernel: _Kernel, found: Sequence[Seam], start: str, stop: str, emit: Emit) -> None:
    """Cut the range ``start <= i < stop`` of a loop at its seams. The text has a loop for each kind of piece."""
    if not found:
        emit(start, stop)
        return
    w, names = kernel.w, {place: f"p{n}_" for n, (place, _) in enumerate(found)}
    w.open("")
    for place, name in names.items():
        w.line(f"const int64_t {name} = {kernel.names.index(place)};")
    w.open(f"for (int64_t s_ = {start}, u_; s_ < {stop}; s_ = u_)")
    w.line(f"u_ = {stop};")
    for name in names.values():
        w.line(f"if ({name} > s_ && {name} < u_) u_ = {name};")
    _branch(kernel, names, list(found), emit)
    w.close(2)


def run_along(body: Body, places: Iterable[Expr], loop: Expr, hint: Callable[[Expr], int]) -> tuple[Expr, Expr] | None:
    """The dividend and the divisor of all quotients and remainders that change along a loop, where these are the same
    in all of them, and each is that of some steps in a row: dimensions that a reshape regroups."""
    found: set[tuple[Expr, Expr]] = set()
    for place in places:
        for mono, _ in place.terms:
            for atom, _ in mono:
                if loop not in atom.symbols or atom is loop:
                    continue
                if atom.kind not in ("floordiv", "mod") or any(s in body.atoms for s in atom.symbols):
                    return None
                found.add((atom.args[0], atom.args[1]))
    if len(found) != 1:
        return None
    ((dividend, divisor),) = found
    whole = lift(dividend, divisor, body.space) is ZERO and not any(s in body.space for s in divisor.symbols)
    steps = whole and linear(body, dividend, loop) is ONE and min(hint(divisor), hint(body.space[loop])) >= RUN
    return (dividend, divisor) if steps else None


def in_runs(kernel: _Kernel, run: tuple[Expr, Expr], loop: Expr, emit: Emit) -> Emit:
    """A loop over runs of steps in which a quotient stays the same and its remainder counts them."""
    dividend, divisor = run

    def over(start: str, stop: str) -> None:
        w, names = kernel.w, kernel.names
        rest, by = names.index(ex.sub(dividend, loop)), names.index(divisor)
        w.open("")
        w.line(f"const int64_t d_ = {rest}, k_ = {by};")
        w.open(f"for (int64_t g_ = {start}, z_; g_ < {stop}; g_ = z_)")
        w.line("const int64_t q_ = (d_ + g_) / k_, m_ = q_ * k_ - d_;")
        w.line(f"z_ = m_ + k_ < {stop} ? m_ + k_ : {stop};")
        atoms = ex.floordiv(dividend, divisor), ex.mod(dividend, divisor)
        names.known |= dict(zip(atoms, ("q_", f"({names.var(loop)} - m_)"), strict=True))
        emit("g_", "z_")
        for atom in atoms:
            del names.known[atom]
        w.close(2)

    return over


def draws(body: Body, vals: Sequence[Val], loop: Expr) -> list[Val]:
    """Values among those of a loop that are draws, one after the other, of 32-bit words."""
    inside = {v.id for v in vals}
    return [v for v in vals if v.op in _DRAWN and v.dtype.itemsize <= 4 and _one_by_one(body, v, loop, inside)]


def _one_by_one(body: Body, v: Val, loop: Expr, inside: Set[int]) -> bool:
    seed, offset, place = v.args
    if {seed.id, offset.id} & inside or place.op != "index" or place.at is None:
        return False
    return linear(body, place.at, loop) is ONE and not any(s in body.atoms for s in place.at.symbols)


def in_stretches(kernel: _Kernel, drawn: Sequence[Val], loop: Expr, emit: Emit) -> Emit:
    """A loop whose random numbers are made before each stretch of it: four come of the work for one."""

    def over(start: str, stop: str) -> None:
        w, names, most = kernel.w, kernel.names, templates.DRAWN_TOGETHER
        w.open(f"for (int64_t r_ = {start}; r_ < {stop}; r_ += {most})")
        w.line(f"const int64_t t_ = {stop} - r_ < {most} ? {stop} : r_ + {most};")
        for n, v in enumerate(drawn):
            seed, offset = (names.val(a) for a in v.args[:2])
            rest = names.index(ex.sub(v.args[2].at, loop))  # type: ignore[arg-type]
            w.line(f"const int64_t f{n}_ = {rest} + r_, k{n}_ = (f{n}_ & 3) - r_;")
            for line in templates.c_draws(TABLE[v.op], seed, offset, f"f{n}_", "t_ - r_", f"w{n}_"):
                w.line(line)
            names.words[v.id] = f"w{n}_[{names.var(loop)} + k{n}_]"
        emit("r_", "t_")
        for v in drawn:
            del names.words[v.id]
        w.close()

    return over


def halves(body: Body, vals: Sequence[Val], loop: Expr) -> tuple[list[Val], list[Store]]:
    """Loads and stores of float16 in a loop that go through memory one by one: converted some at once, they take a
    third of the time that they take in the loop, where a compiler calls a function for each vector.

    A store of what was only moved is none, nor a load that is nothing else.
    """
    moved: set[int] = set()
    for v in body.vals:
        if v.dtype != torch.float16:
            continue
        if v.op in ("load", "bitcast", "const") or v.op == "where" and {a.id for a in v.args[1:]} <= moved:
            moved.add(v.id)
    stores = [s for s in body.stores if s.mode == "set" and s.value.dtype == torch.float16 and s.value.id not in moved]
    stores = [s for s in stores if linear(body, s.at, loop) is ONE and _is_plain(body, s.at)]
    read = {a.id for v in body.vals for a in v.args}
    loads = [
        v for v in vals
        if v.op == "load" and v.dtype == torch.float16 and not v.args and v.id in read and v.at is not None
        and linear(body, v.at, loop) is ONE and _is_plain(body, v.at)
    ]  # fmt: skip
    return loads, stores


def _is_plain(body: Body, at: Expr) -> bool:
    return not any(s in body.atoms for s in at.symbols)


def in_rows(kernel: _Kernel, found: tuple[Sequence[Val], Sequence[Store]], loop: Expr, emit: Emit) -> Emit:
    """A loop whose halves are converted before and behind each stretch of it; a pass that stores none writes none."""
    loads, stores = found

    def place(at: Expr) -> str:
        return kernel.names.index(ex.sub(at, loop))

    def over(start: str, stop: str) -> None:
        w, names = kernel.w, kernel.names
        w.open(f"for (int64_t r_ = {start}; r_ < {stop}; r_ += {ROW})")
        w.line(f"const int64_t t_ = {stop} - r_ < {ROW} ? {stop} : r_ + {ROW};")
        step = f"[{names.var(loop)} - r_]"
        for n, v in enumerate(loads):
            w.line(f"float h{n}_[{ROW}];")
            w.line(f"q_row_from_f16(h{n}_, {names.pointer(v.attr)} + ({place(v.at)}) + r_, t_ - r_);")  # type: ignore[arg-type]
            names.rows[v.id] = f"h{n}_{step}"
        for n, s in enumerate(stores):
            w.line(f"float m{n}_[{ROW}];")
            names.made[id(s)] = f"m{n}_{step}"
        names.filled -= {id(s) for s in stores}
        emit("r_", "t_")
        for n, s in enumerate(stores):
            if id(s) in names.filled:
                w.line(f"q_row_to_f16({names.pointer(s.buffer)} + ({place(s.at)}) + r_, m{n}_, t_ - r_);")
            del names.made[id(s)]
        for v in loads:
            del names.rows[v.id]
        w.close()

    return over


def _branch(kernel: _Kernel, names: Mapping[Expr, str], left: list[Seam], emit: Emit) -> None:
    if not left:
        emit("s_", "u_")
        return
    known = kernel.held
    for place, after, others, more in _sides(left):
        kernel.w.open(f"if (s_ >= {names[place]})" if after else "else")
        kernel.held = {**known, **more}
        _branch(kernel, names, others, emit)
        kernel.w.close()
    kernel.held = known
