"""Strides: contiguity, memory formats, and how PyTorch lays out a new tensor like an old one."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from prims.errors import DataDependentError
from prims.spec import expr as E
from prims.spec import ranges

Size = Any  # int | Sym
CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


@functools.lru_cache(maxsize=8192)
def _static_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def contiguous_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides in elements of a fresh contiguous tensor; a size of zero counts as one.

    A symbolic size stands for itself: where it turns out zero, there is no element and strides do not matter.
    """
    for s in shape:
        if type(s) is not int:
            cache = s.ctx.layouts
            found = cache.get(shape)
            if found is None:
                found = strides_in_order(shape, range(len(shape) - 1, -1, -1))
                cache[shape] = found
            return found  # type: ignore[no-any-return]
    return _static_strides(shape)


def strides_in_order(shape: tuple[Size, ...], order: Iterable[int]) -> tuple[Size, ...]:
    """Dense strides where ``order`` lists the dimensions from the fastest to the slowest."""
    return products_in_order(tuple(max(size, 1) if type(size) is int else size for size in shape), order)


def products_in_order(shape: tuple[Size, ...], order: Iterable[int]) -> tuple[Size, ...]:
    """As :func:`strides_in_order`, but with strides of 0 beyond a dimension without elements."""
    strides: list[Size] = [1] * len(shape)
    step: Size = 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def channels_last_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides of a dense channels_last tensor of 4 or 5 dimensions."""
    return products_in_order(shape, CHANNELS_LAST_ORDER[len(shape)])


def known_equal(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for all values the guards allow. Never guards."""
    if a is b:
        return True
    if type(a) is int and type(b) is int:
        return a == b
    ctx = (b if type(a) is int else a).ctx
    return ctx.statically_known(E.eq(_expr(a), _expr(b))) is True


def known_same(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two lists of sizes are equal for all values the guards allow. Never guards."""
    return len(a) == len(b) and all(x is y or known_equal(x, y) for x, y in zip(a, b))


def _expr(x: Size) -> E.Expr:
    return E.const(x) if type(x) is int else x.expr


def known_less(a: Size, b: Size) -> bool:
    """Whether a size is less than another for all values the guards allow. Never guards."""
    if type(a) is int and type(b) is int:
        return a < b
    ctx = (b if type(a) is int else a).ctx
    return ctx.statically_known(E.lt(_expr(a), _expr(b))) is True


def is_surely_less(a: Any, b: Any) -> bool:
    """Whether a number is less than another, which is asked, and guarded; not where only the data of a call tells."""
    if any(getattr(x, "hint", 0) is None for x in (a, b)):
        return known_less(a, b)
    return bool(a < b)


def divides(part: Size, whole: Size) -> bool:
    """Whether a size is a multiple of another for all values the guards allow. Never guards."""
    if type(part) is int and type(whole) is int:
        return whole % part == 0
    ctx = (whole if type(part) is int else part).ctx
    return E.exact_quotient(ctx.simplify(_expr(whole)), ctx.simplify(_expr(part))) is not None


def _is_one(size: Size) -> bool:
    """Whether a size is one. Asked, with a guard, where a call has shown that a symbol of it may be."""
    if type(size) is int:
        return size == 1
    one = E.eq(size.expr, E.const(1))
    known = size.ctx.statically_known(one)
    if known is not None:
        return bool(known)
    return _may_be_one(size) and bool(size.ctx.evaluate(one, "whether a dimension is of size one"))


def _may_be_one(size: Size) -> bool:
    return type(size) is not int and bool(size.ctx.may_be_one(size.expr))


def _is_step(stride: Size, step: Size) -> bool:
    """Whether a stride is what one steps over. Asked, with a guard, where that may depend on whether a size is one."""
    if known_equal(stride, step):
        return True
    if type(stride) is int and type(step) is int:
        return False
    ctx = (step if type(stride) is int else stride).ctx
    same = E.eq(_expr(stride), _expr(step))
    if not ctx.may_be_one(E.sub(_expr(stride), _expr(step))):
        return False
    return bool(ctx.evaluate(same, "whether a dimension follows another in memory"))


def is_contiguous_in_order(shape: Sequence[Size], strides: Sequence[Size], order: Iterable[int]) -> bool:
    """Whether the strides are the dense ones in that order; dimensions of size one do not matter.

    As all questions of layout here: False where it depends on a symbol, and no guard but what follows from whether a
    size is one, of a symbol that may be.
    """
    step: Size = 1
    for dim in order:
        size = shape[dim]
        if type(size) is int and size == 1:
            continue
        if not _is_step(strides[dim], step):
            if _is_one(size):
                continue
            return any(type(s) is int and s == 0 for s in shape)
        step = step * size
    return True


def is_known_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Row-major dense for all values the guards allow. Never guards."""
    made = contiguous_strides(tuple(shape))
    return all(type(n) is int and n == 1 or known_equal(a, b) for n, a, b in zip(shape, strides, made, strict=True))


def is_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Row-major dense, as ``Tensor.is_contiguous``."""
    return is_contiguous_in_order(shape, strides, range(len(shape) - 1, -1, -1))


def is_channels_last_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """As ``Tensor.is_contiguous(memory_format=torch.channels_last)`` (or its 3-d form for 5 dimensions)."""
    order = CHANNELS_LAST_ORDER.get(len(shape))
    return order is not None and is_contiguous_in_order(shape, strides, order)


def is_channels_last_strides(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether ``suggest_memory_format`` calls these strides channels_last (they need not be dense)."""
    order = CHANNELS_LAST_ORDER.get(len(shape))
    if order is None or (type(strides[1]) is int and strides[1] == 0):
        return False
    low: Size = 0
    for dim in order:
        if type(shape[dim]) is int and shape[dim] == 0 or is_surely_less(strides[dim], low):
            return False
        if dim == 0:
            return not _is_step(strides[1], low)
        low = strides[dim]
        if not _is_one(shape[dim]):
            low = low * shape[dim]
    return True


def is_dense(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Non-overlapping and dense: some permutation of the dimensions is contiguous."""
    if is_contiguous(shape, strides):
        return True
    dims = [d for d in range(len(shape)) if not (type(shape[d]) is int and shape[d] == 1)]
    if any(type(shape[d]) is int and shape[d] == 0 for d in dims):
        return True
    order = sort_dims(dims, shape, strides)
    step: Size = 1
    for d in order:
        if not _is_step(strides[d], step):
            if _is_one(shape[d]):
                continue
            return False
        step = step * shape[d]
    return True


def may_overlap(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether elements may share memory: some dimension does not step past what is inside it.

    Unlike the other questions of this module it guards where the answer depends on a symbol, for neither answer is
    the safe one to give without.
    """
    if any(type(n) is int and n == 0 for n in shape) or is_dense(shape, strides):
        return False
    dims = [d for d, n in enumerate(shape) if not _is_one(n)]
    if any(type(strides[d]) is int and strides[d] == 0 for d in dims):
        return True
    reach: Size = 0
    for d in sort_dims(dims, shape, strides):
        if bool(strides[d] <= reach):
            return True
        reach = reach + strides[d] * (shape[d] - 1)
    return False


def sort_dims(dims: Sequence[int], shape: Sequence[Size], strides: Sequence[Size]) -> list[int]:
    """Dimensions from the smallest stride to the largest; ties go to the later dimension."""
    if all(type(strides[d]) is int for d in dims):
        return sorted(dims, key=lambda d: (strides[d], -d))
    out: list[int] = []
    for d in reversed(dims):
        i = len(out)
        while i > 0 and _less(strides[d], strides[out[i - 1]]):
            i -= 1
        out.insert(i, d)
    return out


def like_strides(shape: tuple[Size, ...], strides: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides of ``torch.empty_like`` with ``preserve_format``: the same if dense, else dense strides in the
    order of the old ones (as ``infer_dense_strides`` of ATen's ``ExpandUtils``). Without elements, any are.
    """
    if any(type(n) is int and n == 0 for n in shape):
        return strides
    if any(_may_be_one(n) for n in shape) and not is_known_contiguous(shape, strides):
        made = strides_in_order(shape, permutation(shape, (strides,)))
        if is_known_contiguous(shape, made):
            return made  # the same where that size is one, but for the strides of such dimensions
    if is_contiguous(shape, strides) or is_dense(shape, strides):
        return strides  # of dimensions of one element too, which decide how results lie that are computed of it
    return strides_in_order(shape, permutation(shape, (strides,)))


def permutation(shape: Sequence[Size], operands: Sequence[Sequence[Size]]) -> list[int]:
    """The order of dimensions, fastest first, that ATen's TensorIterator iterates in.

    ``operands`` are strides already broadcast to ``shape`` (0 in a broadcast dimension). An insertion sort
    where operands vote in turn and a stride of zero abstains (``TensorIteratorBase::reorder_dimensions``).
    """
    ndim = len(shape)
    order = list(range(ndim - 1, -1, -1))
    for i in range(1, ndim):
        dim1 = i
        for dim0 in range(i - 1, -1, -1):
            vote = _compare(order[dim0], order[dim1], shape, operands)
            if vote > 0:
                order[dim0], order[dim1] = order[dim1], order[dim0]
                dim1 = dim0
            elif vote < 0:
                break
    return order


def _compare(a: int, b: int, shape: Sequence[Size], operands: Sequence[Sequence[Size]]) -> int:
    for strides in operands:
        x, y = strides[a], strides[b]
        if (type(x) is int and x == 0) or (type(y) is int and y == 0):
            continue
        if x is y:
            if shape[a] is not shape[b] and _less(shape[b], shape[a]):
                return 1
            continue
        if _less(x, y):
            return -1
        if _less(y, x):
            return 1
        if _less(shape[b], shape[a]):
            return 1
    return 0


def _less(x: Size, y: Size) -> bool:
    """Whether one size or stride is less than another. Where only the data tells, as it is of sizes of at least two: of
    fewer elements no order is another's."""
    try:
        return bool(x < y)
    except DataDependentError:
        low, high = ranges.interval(E.sub(_expr(y), _expr(x)), _at_least_two)
        if low > 0 or high <= 0:
            return low > 0
        raise


def _at_least_two(e: E.Expr) -> ranges.Interval | None:
    return (2, math.inf) if e.kind == "symbol" else None
