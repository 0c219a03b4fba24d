"""Which products of a body go into sums without being rounded first, decided here and not by a compiler.

A C compiler that is free to contract does so place by place: a number that several loops of a kernel make could be one
thing in one of them and another in the next, versions of a compiler differ, and gcc 13 takes a wrong operand where it
contracts into a choice by a mask (AVX-512VL). So compilers are told to contract nothing, and a body says what to.
"""

from __future__ import annotations

from collections.abc import Mapping

from inductor_gen.kernel.body import Body, Val, meets_itself

__all__ = ["CONTRACTED", "contracted"]

#: The op of a value ``x * y + z`` of which only the sum is rounded, and of what ``attr`` makes of it: ``"+"`` that,
#: ``"-"`` ``x * y - z``, ``"r"`` ``z - x * y``.
CONTRACTED = "contracted"


def contracted(body: Body) -> Body:
    """The body with those products in sums that nothing but sums takes, or the body itself where there are none.

    A value has one form in all stages. Where a sum takes one number at two places (:func:`.meets_itself`) at which it
    has different forms, all products stay rounded, so that what is left of it and itself is 0.
    """
    chosen = _chosen(body)
    unrounded = {product.id for product in chosen.values()}

    def form(v: Val) -> object:
        product = chosen.get(v.id)
        return v.id in unrounded, product is not None, product is not None and v.args[0] is product

    if not chosen or meets_itself(body, form):
        return body

    def change(v: Val, copies: Mapping[int, Val], _: object) -> Val | None:
        product = chosen.get(v.id)
        if product is None:
            return None
        first = v.args[0] is product
        sign = "+" if v.op == "add" else "-" if first else "r"
        terms = (*product.args, v.args[1] if first else v.args[0])
        return Val(CONTRACTED, tuple(copies[a.id] for a in terms), v.dtype, sign, None)

    return body.rewritten(body.stores, change)


def _chosen(body: Body) -> dict[int, Val]:
    """The product that a sum, by number, takes unrounded: each in all sums that take it, or in none."""
    takers: dict[int, list[Val]] = {v.id: [] for v in body.vals if v.op == "mul" and v.dtype.is_floating_point}
    if not takers:
        return {}
    whole = {a.id for s in body.stores for a in body.of_store(s)}
    for v in body.vals:
        jumps = v.op in _JUMPING or (v.op == "convert" and not v.dtype.is_floating_point)
        for a in body.inputs_of(v):
            if a.id in takers:
                takers[a.id].append(v)
            if jumps and a.op in ("add", "sub"):
                whole.update(each.id for each in a.args)  # to the last place what eager's is
    chosen: dict[int, Val] = {}
    terms: dict[int, frozenset[object]] = {}  # products, and sums with some among their terms: what may be equal in two
    for v in body.vals:
        if v.op == "mul" and v.dtype.is_floating_point:
            terms[v.id] = _kinds(v)
        elif v.op in ("add", "sub", "neg") and any(a.id in terms for a in v.args):
            terms[v.id] = frozenset().union(*(terms.get(a.id, ()) for a in v.args))
    for v in body.vals:
        found = takers.get(v.id)
        if found and v.id not in whole and all(_takes(u, v, terms) and u.id not in chosen for u in found):
            chosen.update((u.id, v) for u in found)
    return chosen


#: What gives another number where its operand differs in the last place.
_JUMPING = frozenset(
    ("floor", "ceil", "round", "trunc", "sign", "eq", "ne", "remainder", "fmod", "floor_div", "trunc_div")
)


def _kinds(product: Val) -> frozenset[object]:
    """By what a product may equal another: ``"whole"`` where its factors are both as many as it is, else the factor
    that is read or given once for many."""
    many = [a for a in product.args if a.op != "const" and a.deps == product.deps]
    return frozenset(("whole",) if len(many) == 2 else (a.id for a in product.args if a not in many))


def _takes(v: Val, product: Val, terms: Mapping[int, frozenset[object]]) -> bool:
    """Is it a sum that may take a product unrounded?

    None of several products that may be equal, ``x * x - y * y``, the area of a triangle or ``x * c - y * c``: where
    the sum is to be 0 the rounding of one would be left. None that takes from each a number read from memory, for many
    of them: their mean, say, which another kernel made of rounded ones. Where they hardly differ, others' roundings
    would be most of what is left.
    """
    if v.op not in ("add", "sub") or not v.dtype.is_floating_point or _may_cancel(v, terms):
        return False
    return v.op == "add" or v.args[0] is not product or v.args[1].op != "load" or not v.args[1].deps < product.deps


def _may_cancel(v: Val, terms: Mapping[int, frozenset[object]]) -> bool:
    first, second = (terms.get(a.id, frozenset()) for a in v.args)
    return not first.isdisjoint(second)
