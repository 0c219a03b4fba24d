"""Attention masks of any size: what their elements are, as far as they are the same everywhere or on either side of a
line.

Where sizes are symbols a mask cannot be evaluated. Instead the element at a place ``i0, i1 ...`` of each value that it
is computed of is described, if it can be:

- ``Same(v)``: it is ``v`` at every place;
- ``Place(e)``: it is the integer ``e``, an index expression of the place;
- ``Split(e, inside, outside)``: it is ``inside`` where ``e >= 0``, else ``outside``.

Views and indices move places (:func:`inductor_gen.loops.views.pull`), a comparison of two splits, and what is computed
element by element is computed for each side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from inductor_gen.loops.graph import Node, reached
from inductor_gen.loops.index import ONE, ZERO, Ranges, lower, nonneg, substitute, upper
from inductor_gen.loops.views import Index, pull
from prims.ops import PrimOp
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Place", "Same", "Split", "Unknown", "described", "diagonal", "has_both", "hides", "split"]

_INTEGERS = (torch.int32, torch.int64)


class Unknown(Exception):
    """There is no such description, or no value."""


@record
class Same:
    """One number everywhere."""

    value: Any


@record
class Place:
    """An integer that follows from the place."""

    at: Expr


@record
class Split:
    """One number where an index expression is at least 0, another elsewhere."""

    test: Expr
    inside: Any
    outside: Any


Form = Same | Place | Split
Shape = tuple[Expr, ...]


def described(node: Node, known: Mapping[Node, Form]) -> Form | None:
    """The elements of a node's value, given those of others; None where they cannot be described."""
    forms = dict(known)
    try:
        for x in sorted(reached([node], lambda x: () if x in known else x.ins), key=lambda x: x.id):
            if x not in known:
                forms[x] = _form(x, forms)
    except Unknown:
        return None
    return forms[node]


def _place(shape: Shape) -> Index:
    """The place of an element: a variable for each dimension of several."""
    return tuple(ZERO if n is ONE else ex.symbol(f"i{d}") for d, n in enumerate(shape))


def _ranges(shape: Shape) -> Ranges:
    return dict(zip(_place(shape), shape, strict=True))


def split(test: Expr, inside: Any, outside: Any, shape: Shape) -> Form:
    """``inside`` where ``test >= 0``, else ``outside``: one of two ways to write it, or one number if that is known.

    Raises:
        Unknown: the line depends on a size.
    """
    ranges = _ranges(shape)
    if any(symbol not in ranges for symbol in test.symbols):
        raise Unknown
    if nonneg(lower(test, ranges)):
        return Same(inside)
    high = upper(test, ranges)
    if high is not None and nonneg(ex.sub(ex.neg(high), ONE)):
        return Same(outside)
    rises = next(coeff for mono, coeff in test.terms if mono) > 0
    return Split(test, inside, outside) if rises else Split(ex.sub(ex.neg(test), ONE), outside, inside)


def diagonal(shape: Shape, inside: Any, outside: Any) -> Form:
    """``inside`` for what is not later, ``outside`` for what is, in the last two dimensions."""
    row, column = _place(shape)[-2:]
    return split(ex.sub(row, column), inside, outside, shape)


def hides(form: Form, shape: Shape, is_hidden: Callable[[Any], bool]) -> str | None:
    """``"free"`` for a mask of zeros, ``"causal"`` for one that hides just what comes later, else None."""
    if isinstance(form, Same):
        return "free" if form.value == 0 else None
    line = diagonal(shape, True, False)
    if not isinstance(form, Split) or not isinstance(line, Split):
        return None
    if form.inside == form.outside == 0:
        return "free"
    seen, hidden = (form.inside, form.outside) if line.inside else (form.outside, form.inside)
    return "causal" if form.test is line.test and seen == 0 and is_hidden(hidden) else None


def has_both(form: Split, shape: Shape) -> bool:
    """Are there certainly places on both sides?"""
    ranges = _ranges(shape)
    low, high = lower(form.test, ranges), upper(form.test, ranges)
    if low is None or high is None or not low.is_const or not high.is_const:
        return False
    linear = all(not mono or mono in [((v, 1),) for v in ranges] for mono, _ in form.test.terms)
    return bool(linear and low.value < 0 <= high.value)  # it is all that lies between


def _form(x: Node, forms: Mapping[Node, Form]) -> Form:
    if not isinstance(x.target, PrimOp) or x.op.startswith("random_"):
        raise Unknown
    if x.kind == "view":
        branch, *others = pull(x, _place(x.shape), _ranges(x.shape))
        if others or branch.node is None:
            raise Unknown
        return _moved(forms[branch.node], branch.index, x.shape)
    match x.op:
        case "full":
            return _of(x.args[1], forms)
        case "iota" if x.dtype in _INTEGERS and type(x.args[1]) is type(x.args[2]) is int:
            return Place(ex.add(x.args[1], ex.mul(x.args[2], _place(x.shape)[0])))
        case "index" | "gather":
            return _picked(x, forms)
        case "where" if isinstance(condition := forms[x.args[0]], Same):
            return _of(x.args[1] if condition.value else x.args[2], forms)
        case "convert" if isinstance(forms[x.args[0]], Place) and x.dtype in _INTEGERS:
            return forms[x.args[0]]
        case "logical_and" | "bitwise_and" if x.dtype == torch.bool:
            for one, other in (x.args, x.args[::-1]):  # with what is true everywhere, the other
                if _of(one, forms) == Same(True) and isinstance(other, Node):
                    return forms[other]
    if x.kind != "pointwise":
        raise Unknown
    return _elementwise(x, forms)


def _of(value: Any, forms: Mapping[Node, Form]) -> Form:
    if isinstance(value, Node):
        return forms[value]
    if isinstance(value, (bool, int, float)):
        return Same(value)
    raise Unknown


def _moved(form: Form, index: Index, shape: Shape) -> Form:
    """The element at an index over the places of a shape."""
    to = {ex.symbol(f"i{d}"): i for d, i in enumerate(index)}
    if isinstance(form, Place):
        return Place(substitute(form.at, to))
    return split(substitute(form.test, to), form.inside, form.outside, shape) if isinstance(form, Split) else form


def _picked(x: Node, forms: Mapping[Node, Form]) -> Form:
    """What a gather or an index picks."""
    source, indices, dims = x.args
    if isinstance(forms[source], Same):
        return forms[source]
    place = _place(x.shape)
    rank = len(x.shape) if x.op == "gather" else len(indices[0].shape)
    given = {dims: indices} if x.op == "gather" else dict(zip(dims, indices, strict=True))
    others = iter(place[rank:] if x.op == "index" else (*place[:dims], *place[dims + 1 :]))
    index = [_integer(forms[given[d]]) if d in given else next(others) for d in range(len(source.shape))]
    if not all(nonneg(lower(index[d], _ranges(x.shape))) for d in given):
        raise Unknown  # a negative place counts from the end, which is not known
    return _moved(forms[source], tuple(index), x.shape)


def _integer(form: Any) -> Expr:
    if isinstance(form, Place):
        return form.at
    if isinstance(form, Same) and type(form.value) is int:
        return ex.const(form.value)
    raise Unknown


def _elementwise(x: Node, forms: Mapping[Node, Form]) -> Form:
    parts = [_of(a, forms) if isinstance(a, (Node, bool, int, float)) else a for a in x.args]
    if any(isinstance(part, Place) for part in parts):
        return _places(x, parts)
    tests = {part.test for part in parts if isinstance(part, Split)}
    if len(tests) > 1:
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

    if not tests:
        return Same(side("inside"))
    return Split(tests.pop(), side("inside"), side("outside"))


def _places(x: Node, parts: list[Any]) -> Form:
    """Sums and comparisons of places."""
    a, b = map(_integer, parts) if len(parts) == 2 else (ZERO, ZERO)
    gap = ex.sub(b, a)
    match x.op:
        case "add" | "sub" if x.dtype in _INTEGERS:
            return Place(ex.add(a, b) if x.op == "add" else ex.sub(a, b))
        case "le" | "lt":
            return split(gap if x.op == "le" else ex.sub(gap, ONE), True, False, x.shape)
        case "ge" | "gt":
            return split(ex.neg(gap) if x.op == "ge" else ex.sub(ex.neg(gap), ONE), True, False, x.shape)
    raise Unknown
