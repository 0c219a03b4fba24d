"""Attention masks of any size: what their elements are, as far as they are the same everywhere or on either side of a
diagonal.

Where sizes are symbols a mask cannot be evaluated. Instead each value that it is computed of is described, if it can
be:

- ``Same(v)``: every element is ``v``;
- ``Along(d, step, start)``: an element at place ``i`` along dimension ``d`` is ``step * i + start``;
- ``Split(p, q, c, inside, outside)``: an element is ``inside`` where ``i_p - i_q <= c``, else ``outside``; ``p > q``.

A comparison of places along two dimensions splits, and what is computed element by element is computed for each side.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from inductor_gen.loops.graph import Node, reached
from prims.ops import PrimOp
from prims.records import record
from prims.spec.expr import Expr

__all__ = ["Along", "Same", "Split", "Unknown", "described", "hides"]


class Unknown(Exception):
    """There is no such description, or no value."""


@record
class Same:
    """One number everywhere."""

    value: Any


@record
class Along:
    """Places along a dimension."""

    dim: int
    step: int
    start: int


@record
class Split:
    """One number on each side of a diagonal."""

    p: int
    q: int
    c: int
    inside: Any
    outside: Any


Form = Same | Along | Split


class _Forms(dict[Node, Form]):
    """What is known of nodes, and when two sizes are equal."""

    equal: Callable[[Expr, Expr], bool]


def described(
    node: Node, known: Mapping[Node, Form], equal: Callable[[Expr, Expr], bool] = operator.is_
) -> Form | None:
    """The elements of a node's value, given those of others; None where they cannot be described.

    ``equal`` says whether two sizes are, which symbols of two inputs may be.
    """
    forms = _Forms(known)
    forms.equal = equal
    try:
        for x in sorted(reached([node], lambda x: () if x in known else x.ins), key=lambda x: x.id):
            if x not in known:
                forms[x] = _form(x, forms)
    except Unknown:
        return None
    return forms[node]


def hides(form: Form, ndim: int, is_hidden: Callable[[Any], bool]) -> str | None:
    """``"free"`` for a mask of zeros, ``"causal"`` for one that hides just what comes later, else None."""
    if isinstance(form, Same):
        return "free" if form.value == 0 else None
    if not isinstance(form, Split) or form.inside != 0:
        return None
    if form.outside == 0:
        return "free"
    at = (form.p, form.q, form.c) == (ndim - 1, ndim - 2, 0)
    return "causal" if at and is_hidden(form.outside) else None


def _form(x: Node, forms: _Forms) -> Form:
    if not isinstance(x.target, PrimOp) or x.op.startswith("random_"):
        raise Unknown
    rule = _RULES.get(x.op)
    if rule is not None:
        return rule(x, forms)
    if x.kind != "pointwise":
        raise Unknown
    return _elementwise(x, forms)


def _of(value: Any, forms: _Forms) -> Form:
    if isinstance(value, Node):
        return forms[value]
    if isinstance(value, (bool, int, float)):
        return Same(value)
    raise Unknown


# ---- made and moved -------------------------------------------------------------------------------------


def _iota(x: Node, forms: _Forms) -> Form:
    _, start, step, dtype, _ = x.args
    if dtype.is_floating_point or type(start) is not int or type(step) is not int or step == 0:
        raise Unknown
    return Along(0, step, start)


def _broadcast(x: Node, forms: _Forms) -> Form:
    source, _, dims = x.args
    return _moved(forms[source], {d: to for d, to in enumerate(dims) if forms.equal(source.shape[d], x.shape[to])})


def _permute(x: Node, forms: _Forms) -> Form:
    source, dims = x.args
    return _moved(forms[source], {d: to for to, d in enumerate(dims)})


def _reshape(x: Node, forms: _Forms) -> Form:
    source = x.args[0]
    before, after = ([d for d, s in enumerate(n.shape) if not (s.is_const and s.value == 1)] for n in (source, x))
    same = len(before) == len(after) and all(
        forms.equal(source.shape[a], x.shape[b]) for a, b in zip(before, after, strict=True)
    )
    return _moved(forms[source], dict(zip(before, after, strict=True)) if same else {})


def _slice(x: Node, forms: _Forms) -> Form:
    source, starts, _, steps = x.args
    form = forms[source]
    if isinstance(form, Along):
        start, step = starts[form.dim], steps[form.dim]
        if type(start) is not int or type(step) is not int:
            raise Unknown
        return Along(form.dim, form.step * step, form.start + form.step * start)
    if isinstance(form, Split) and any((starts[d], steps[d]) != (0, 1) for d in (form.p, form.q)):
        raise Unknown
    return form


def _moved(form: Form, to: Mapping[int, int]) -> Form:
    """With its dimensions at other places."""
    if isinstance(form, Same):
        return form
    if isinstance(form, Along):
        if form.dim not in to:
            raise Unknown
        return Along(to[form.dim], form.step, form.start)
    if form.p not in to or form.q not in to:
        raise Unknown
    return _split(to[form.p], to[form.q], form.c, form.inside, form.outside)


def _split(p: int, q: int, c: int, inside: Any, outside: Any) -> Form:
    if p > q:
        return Split(p, q, c, inside, outside)
    return Split(q, p, -c - 1, outside, inside)  # i_p - i_q <= c just where not i_q - i_p <= -c - 1


def _index(x: Node, forms: _Forms) -> Form:
    source, indices, dims = x.args
    form = forms[source]
    if isinstance(form, Same):
        return form
    if not isinstance(form, Along) or form.dim not in dims:
        raise Unknown
    places = forms[indices[dims.index(form.dim)]]
    # A negative place counts from the end, which is not known.
    if not isinstance(places, Along) or places.step < 0 or places.start < 0:
        raise Unknown
    return Along(places.dim, form.step * places.step, form.step * places.start + form.start)


def _gather(x: Node, forms: _Forms) -> Form:
    form = forms[x.args[0]]
    if not isinstance(form, Same):
        raise Unknown
    return form


# ---- element by element ---------------------------------------------------------------------------------


def _elementwise(x: Node, forms: _Forms) -> Form:
    parts = [_of(a, forms) if isinstance(a, (Node, bool, int, float)) else a for a in x.args]
    if any(isinstance(part, Along) for part in parts):
        return _places(x, parts)
    lines = {(s.p, s.q, s.c) for s in parts if isinstance(s, Split)}
    if len(lines) > 1:
        raise Unknown

    def side(name: str) -> Any:
        given = []
        for arg, part in zip(x.args, parts, strict=True):
            if isinstance(part, (Same, Split)):
                number = part.value if isinstance(part, Same) else getattr(part, name)
                given.append(torch.tensor(number, dtype=arg.dtype) if isinstance(arg, Node) else arg)
            elif isinstance(part, (torch.dtype, str)) or part is None:
                given.append(part)
            else:
                raise Unknown
        return x.target.torch_ref(*given).item()  # type: ignore[union-attr]

    if not lines:
        return Same(side("inside"))
    return Split(*lines.pop(), side("inside"), side("outside"))


def _where(x: Node, forms: _Forms) -> Form:
    condition = forms[x.args[0]]
    if isinstance(condition, Same):
        return _of(x.args[1] if condition.value else x.args[2], forms)
    return _elementwise(x, forms)


def _convert(x: Node, forms: _Forms) -> Form:
    form = forms[x.args[0]]
    if isinstance(form, Along) and x.dtype in (torch.int64, torch.int32) and x.args[0].dtype == torch.int64:
        return form
    return _elementwise(x, forms)


def _and(x: Node, forms: _Forms) -> Form:
    """With what is true everywhere, the other."""
    for one, other in (x.args, x.args[::-1]):
        if x.dtype == torch.bool and _of(one, forms) == Same(True) and isinstance(other, Node):
            return forms[other]
    return _elementwise(x, forms)


def _places(x: Node, parts: list[Any]) -> Form:
    """Sums and comparisons of places."""
    if len(parts) != 2 or any(isinstance(part, Same) and type(part.value) is not int for part in parts):
        raise Unknown
    left, right = parts[::-1] if x.op in ("ge", "gt") or (x.op == "add" and isinstance(parts[0], Same)) else parts
    if x.op in ("add", "sub") and isinstance(left, Along) and isinstance(right, Same):
        return Along(left.dim, left.step, left.start + (right.value if x.op == "add" else -right.value))
    both = isinstance(left, Along) and isinstance(right, Along)
    if not both or left.dim == right.dim or (left.step, right.step) != (1, 1) or x.op not in ("le", "lt", "ge", "gt"):
        raise Unknown
    by = right.start - left.start - (x.op in ("lt", "gt"))  # i_left <= i_right + by
    return _split(left.dim, right.dim, by, True, False)


_RULES: dict[str, Callable[[Node, _Forms], Form]] = {
    "full": lambda x, forms: _of(x.args[1], forms), "iota": _iota, "broadcast": _broadcast, "permute": _permute,
    "reshape": _reshape, "slice": _slice, "index": _index, "gather": _gather, "where": _where, "convert": _convert,
    "logical_and": _and, "bitwise_and": _and,
}  # fmt: skip
