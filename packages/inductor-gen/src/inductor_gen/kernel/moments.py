"""Variances in one pass over a row.

As programs have it, the sum of squared deviations waits for the mean. A device to which another read costs more than
some arithmetic takes both from the elements that it has, in one reduction ``deviations``, whose second result, the
mean, is the value ``mean`` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inductor_gen.kernel.body import Body, Val
from prims.spec import expr as ex

__all__ = ["one_pass"]


def one_pass(body: Body) -> Body | None:
    """The body with sums of squared deviations from the own mean as single reductions; None where there are none."""
    extent = ex.product(body.space[v] for v in body.inner)
    if not extent.is_const:
        return None
    found = {v.id: mean for v in body.vals if (mean := _mean_of(v, extent.value)) is not None}
    if not found:
        return None
    sums = {mean.id: Val("reduce", (), mean.dtype, "deviations", None) for mean in found.values()}

    def change(v: Val, copies: Mapping[int, Val], add: Callable[[Val], None]) -> Val | None:
        if v.id in sums:
            made = sums[v.id]
            made.args = (copies[v.args[0].args[0].id],)
            add(made)
            return Val("mean", (made,), v.dtype, None, None)
        return sums[found[v.id].id] if v.id in found else None

    return body.rewritten(body.stores, change)


def _mean_of(v: Val, count: int) -> Val | None:
    """The mean of which a value is the sum of squared deviations."""
    if v.op != "reduce" or v.attr != "sum" or not v.dtype.is_floating_point:
        return None
    square = v.args[0]
    if square.op != "mul" or square.args[0] is not square.args[1] or square.args[0].op != "sub":
        return None
    x, mean = square.args[0].args
    if mean.op != "div" or mean.args[0].op != "reduce" or mean.args[0].attr != "sum" or mean.args[0].args[0] is not x:
        return None
    by = mean.args[1]
    return mean if by.op == "const" and by.attr == count and x.dtype == v.dtype else None
