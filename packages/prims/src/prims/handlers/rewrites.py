"""Local identities applied while a graph is built: data, one named `Rewrite` each.

All of them keep every bit of a result (so ``x + 0.0`` is not among them: it turns -0.0 into 0.0), except that
`pow_small` multiplies, as eager's own ``pow`` kernels do, where the primitive's ``pow`` may round differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from prims.records import record

__all__ = ["REWRITES", "Rewrite"]


@record
class Rewrite:
    """``fn(p, args, spec)`` gives the value that ``op(*args)`` (metadata `spec`) is equal to, or None."""

    name: str
    op: str
    fn: Callable[[Any, tuple[Any, ...], Any], Any]


REWRITES: dict[str, list[Rewrite]] = {}
"""Primitive name to the rewrites tried on it, in order."""


def _rewrite(name: str, *ops: str) -> Callable[[Any], Any]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            REWRITES.setdefault(op, []).append(Rewrite(name, op, fn))
        return fn

    return register


def _is(arg: Any, number: float) -> bool:
    return type(arg) in (int, float) and arg == number


def _negative_zero(arg: Any) -> bool:
    return type(arg) is float and arg == 0 and math.copysign(1.0, arg) < 0


def _made_by(value: Any, name: str) -> tuple[Any, ...] | None:
    """The arguments of the node behind a value, when it is that primitive."""
    op = value.op
    return tuple(value.node.args) if op is not None and getattr(op, "name", None) == name else None


def _tensor(arg: Any) -> bool:
    return hasattr(arg, "spec")


@_rewrite("add_zero", "add")
def _add_zero(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, y = args
    if not _tensor(x):
        x, y = y, x
    if spec.dtype.is_floating_point:
        return x if _negative_zero(y) else None
    return x if _is(y, 0) else None


@_rewrite("sub_zero", "sub")
def _sub_zero(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, y = args
    return x if _tensor(x) and _is(y, 0) and not _negative_zero(y) else None


@_rewrite("mul_one", "mul")
def _mul_one(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, y = args
    if not _tensor(x):
        x, y = y, x
    return x if _is(y, 1) else None


@_rewrite("div_one", "div")
def _div_one(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, y = args
    return x if _tensor(x) and _is(y, 1) else None


@_rewrite("pow_small", "pow")
def _pow_small(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, y = args
    if not _tensor(x) or _tensor(y) or not spec.dtype.is_floating_point:
        return None
    if _is(y, 1):
        return x
    if _is(y, 2):
        return p.mul(x, x)
    if _is(y, 3):
        return p.mul(p.mul(x, x), x)
    if _is(y, -1):
        return p.reciprocal(x)
    return None


@_rewrite("neg_neg", "neg")
def _neg_neg(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    inner = _made_by(args[0], "neg")
    return p.value(inner[0]) if inner else None


@_rewrite("not_not", "logical_not", "bitwise_not")
def _not_not(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    for name in ("logical_not", "bitwise_not"):
        inner = _made_by(args[0], name)
        if inner and p.value(inner[0]).dtype == spec.dtype == args[0].dtype:
            return p.value(inner[0])
    return None


@_rewrite("convert_same", "convert", "bitcast")
def _convert_same(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, dtype = args
    return x if x.dtype == dtype else None


@_rewrite("reshape_same", "reshape")
def _reshape_same(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, shape = args
    return x if _known_equal(x.shape, shape) else None


@_rewrite("reshape_reshape", "reshape")
def _reshape_reshape(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    inner = _made_by(args[0], "reshape")
    return p.reshape(p.value(inner[0]), args[1]) if inner else None


@_rewrite("permute_same", "permute")
def _permute_same(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, dims = args
    return x if dims == tuple(range(x.ndim)) else None


@_rewrite("permute_permute", "permute")
def _permute_permute(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    inner = _made_by(args[0], "permute")
    if not inner:
        return None
    source, first = inner
    return p.permute(p.value(source), tuple(first[d] for d in args[1]))


@_rewrite("broadcast_same", "broadcast")
def _broadcast_same(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, shape, dims = args
    return x if len(dims) == len(shape) and _known_equal(x.shape, shape) else None


@_rewrite("broadcast_broadcast", "broadcast")
def _broadcast_broadcast(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    inner = _made_by(args[0], "broadcast")
    if not inner:
        return None
    source, _, first = inner
    return p.broadcast(p.value(source), args[1], tuple(args[2][d] for d in first))


@_rewrite("broadcast_full", "broadcast", "reshape")
def _of_full(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    inner = _made_by(args[0], "full")
    return p.full(args[1], inner[1], inner[2], inner[3]) if inner else None


@_rewrite("slice_all", "slice")
def _slice_all(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, starts, stops, steps = args
    whole = all(_is(s, 0) for s in starts) and all(_is(s, 1) for s in steps)
    return x if whole and _known_equal(x.shape, stops) else None


@_rewrite("pad_nothing", "pad")
def _pad_nothing(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, _, low, high = args
    return x if all(_is(s, 0) for s in (*low, *high)) else None


@_rewrite("concat_one", "concat")
def _concat_one(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    xs, _ = args
    return xs[0] if len(xs) == 1 else None


@_rewrite("flip_nothing", "flip")
def _flip_nothing(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, dims = args
    return x if not dims else None


@_rewrite("reduce_nothing", "sum", "prod", "amax", "amin", "any", "all")
def _reduce_nothing(p: Any, args: tuple[Any, ...], spec: Any) -> Any:
    x, dims = args
    return x if not dims else None


def _known_equal(a: Any, b: Any) -> bool:
    """Equal shapes, decided without a guard: sizes are hash-consed, so equal ones are the same expression."""
    if len(a) != len(b):
        return False
    return all(x is y or _size_key(x) == _size_key(y) for x, y in zip(a, b, strict=True))


def _size_key(size: Any) -> Any:
    return getattr(size, "expr", size)

