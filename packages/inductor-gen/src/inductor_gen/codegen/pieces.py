"""Loops over the pieces of a range in which tests of places do not change: a side of a seam, the inside of a border."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from inductor_gen.kernel.body import Body, Val, linear
from inductor_gen.loops.index import ONE
from prims.spec import expr as ex
from prims.spec.expr import Expr

if TYPE_CHECKING:
    from inductor_gen.codegen.c import _Kernel

__all__ = ["in_pieces", "seams"]

#: Kinds of pieces, and statements in all of them: each is compiled by itself.
KINDS, STATEMENTS = 5, 256

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


def in_pieces(
    kernel: _Kernel, found: Sequence[Seam], start: str, stop: str, emit: Callable[[str, str, Mapping[int, bool]], None]
) -> None:
    """Cut the range ``start <= i < stop`` of a loop at its seams: ``emit`` writes the loop over a piece, given its two
    ends and which tests hold in it, by their values' numbers. The text has a loop for each kind of piece."""
    w, names = kernel.w, {place: f"p{n}_" for n, (place, _) in enumerate(found)}
    w.open("")
    for place, name in names.items():
        w.line(f"const int64_t {name} = {kernel.names.index(place)};")
    w.open(f"for (int64_t s_ = {start}, u_; s_ < {stop}; s_ = u_)")
    w.line(f"u_ = {stop};")
    for name in names.values():
        w.line(f"if ({name} > s_ && {name} < u_) u_ = {name};")
    _branch(kernel, names, list(found), {}, emit)
    w.close(2)


def _branch(
    kernel: _Kernel, names: Mapping[Expr, str], left: list[Seam], holds: Mapping[int, bool],
    emit: Callable[[str, str, Mapping[int, bool]], None],
) -> None:  # fmt: skip
    if not left:
        emit("s_", "u_", holds)
        return
    for place, after, others, more in _sides(left):
        kernel.w.open(f"if (s_ >= {names[place]})" if after else "else")
        _branch(kernel, names, others, {**holds, **more}, emit)
        kernel.w.close()
