"""Rewrites applied while the prim graph is built, besides the identities of `prims.handlers.rewrites`.

Each is data: a name, the primitive that it looks at, and a function of the primitive's (already rewritten)
arguments. Because they run as nodes are made, the whole pass stays linear in the number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.decomp.common import REDUCED, rounded
from prims.handlers import REWRITES, Rewrite
from prims.lower.ranges import Bounds, bounds_of
from prims.ops import TABLE

Args = tuple[Any, ...]

LOWER_REWRITES: dict[str, list[Rewrite]] = {op: list(found) for op, found in REWRITES.items()}
"""Primitive name to rewrites, those of the handler first."""

FAST_REWRITES: dict[str, list[Rewrite]] = {}
"""Those that are allowed under ``numerics="fast"`` only: they drop roundings."""


def rewrite(name: str, *ops: str, fast: bool = False) -> Callable[[Any], Any]:
    """Register ``fn(p, args, spec) -> value | None`` on primitives."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        table = FAST_REWRITES if fast else LOWER_REWRITES
        for op in ops:
            table.setdefault(op, []).append(Rewrite(name, op, fn))
        return fn

    return register


def rewrites_for(numerics: str) -> dict[str, list[Rewrite]]:
    """The rewrites that a setting of `Options.numerics` allows."""
    if numerics != "fast":
        return LOWER_REWRITES
    ops = {**LOWER_REWRITES, **FAST_REWRITES}
    return {op: LOWER_REWRITES.get(op, []) + FAST_REWRITES.get(op, []) for op in ops}


def made_by(value: Any, name: str) -> Args | None:
    """The arguments of the node behind a value, when it is that primitive."""
    op = getattr(value, "op", None)
    return tuple(value.node.args) if op is not None and getattr(op, "name", None) == name else None


def constant(value: Any) -> tuple[Any] | None:
    """The number (in a 1-tuple) that a value holds everywhere, or None when it is not a constant.

    A symbolic one is none of 16 bits, to which it is rounded when it is known.
    """
    args = made_by(value, "full")
    if args is not None and args[2] in REDUCED and not isinstance(args[1], (bool, int, float)):
        return None
    return None if args is None else (rounded(args[1], args[2]),)


def _is_tensor(x: Any) -> bool:
    return hasattr(x, "spec")


# ---- constants ------------------------------------------------------------------------------------------


def _fold_constant(op: Any) -> Callable[..., Any]:
    """An elementwise primitive of constants is a constant; one constant operand becomes a number."""

    def fold(p: Any, args: Args, spec: Any) -> Any:
        found = [constant(a) if _is_tensor(a) else (a,) for a in args]
        constants = [c for a, c in zip(args, found, strict=True) if c is not None and _is_tensor(a)]
        if not constants:
            return None
        if all(c is not None and isinstance(c[0], (bool, int, float)) for c in found):
            return _evaluated(p, op, args, spec, [c[0] for c in found if c is not None])
        if any(_is_tensor(a) and c is None for a, c in zip(args, found, strict=True)):
            return p.prim(op, *(a if c is None else c[0] for a, c in zip(args, found, strict=True)))
        return None

    return fold


def _evaluated(p: Any, op: Any, args: Args, spec: Any, numbers: list[Any]) -> Any:
    """The primitive's reference, run on 0-dim tensors."""
    dtype = next(a.dtype for a in args if _is_tensor(a))
    tensors = [torch.full((), n, dtype=dtype) if _is_tensor(a) else n for a, n in zip(args, numbers, strict=True)]
    result = op.torch_ref(*tensors)
    return p.full(spec.shape, result.item(), spec.dtype, spec.device)


for _op in TABLE.values():
    if _op.kind in ("unary", "binary"):
        rewrite("fold_constant", _op.name)(_fold_constant(_op))


@rewrite("convert_full", "convert")
def _convert_full(p: Any, args: Args, spec: Any) -> Any:
    x, dtype = args
    value = constant(x)
    if value is None or not isinstance(value[0], (bool, int, float)):
        return None
    if not dtype.is_floating_point and isinstance(value[0], float) and not math.isfinite(value[0]):
        return None
    number = torch.full((), value[0], dtype=x.dtype).to(dtype).item()
    return p.full(spec.shape, number, dtype, spec.device)


@rewrite("move_full", "permute", "slice", "flip")
def _move_full(p: Any, args: Args, spec: Any) -> Any:
    full = made_by(args[0], "full")
    return p.full(spec.shape, full[1], full[2], full[3]) if full else None


@rewrite("extreme_full", "amax", "amin", "any", "all")
def _extreme_full(p: Any, args: Args, spec: Any) -> Any:
    full = made_by(args[0], "full")
    if not full or not all(isinstance(args[0].shape[d], int) and args[0].shape[d] > 0 for d in args[1]):
        return None
    return p.full(spec.shape, full[1], full[2], full[3])


@rewrite("where_constant", "where")
def _where_constant(p: Any, args: Args, spec: Any) -> Any:
    condition, x, y = args
    known = constant(condition)
    if known is not None:
        chosen = x if known[0] else y
        return chosen if _is_tensor(chosen) else p.full(spec.shape, chosen, spec.dtype, spec.device)
    if _is_tensor(x) and _is_tensor(y) and x is y:
        return x
    values = [constant(v) if _is_tensor(v) else None for v in (x, y)]
    if spec.dtype == torch.bool and _is_tensor(x) and _is_tensor(y):
        held = [v[0] if v is not None else None for v in values]
        if held == [True, False]:
            return condition
        if held == [False, True]:
            return p.logical_not(condition)
    # One operand has to stay a tensor.
    if values[1] is not None and _is_tensor(x):
        return p.where(condition, x, values[1][0])
    if values[0] is not None and _is_tensor(y) and values[1] is None:
        return p.where(condition, values[0][0], y)
    return None


def _logical_constant(absorbing: bool) -> Callable[..., Any]:
    """`and` with True and `or` with False are the other operand; the other constant wins."""

    def fn(p: Any, args: Args, spec: Any) -> Any:
        for known, other in ((args[0], args[1]), (args[1], args[0])):
            value = constant(known) if _is_tensor(known) else (known,)
            if value is None or not _is_tensor(other):
                continue
            if bool(value[0]) == absorbing:
                return p.full(spec.shape, absorbing, torch.bool, spec.device)
            return other if other.dtype == torch.bool else None
        return args[0] if args[0] is args[1] and spec.dtype == args[0].dtype else None

    return fn


LOWER_REWRITES.setdefault("logical_and", []).insert(
    0, Rewrite("logical_constant", "logical_and", _logical_constant(False))
)
LOWER_REWRITES.setdefault("logical_or", []).insert(
    0, Rewrite("logical_constant", "logical_or", _logical_constant(True))
)


# ---- dtypes ---------------------------------------------------------------------------------------------

# dtype -> dtypes that hold all of its values
_HOLDS: dict[torch.dtype, frozenset[torch.dtype]] = {
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
    torch.bool: frozenset(
        {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
        | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    ),
    torch.uint8: frozenset({torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int8: frozenset({torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
}


@rewrite("convert_widened", "convert")
def _convert_widened(p: Any, args: Args, spec: Any) -> Any:
    """A conversion of a lossless conversion starts from the original."""
    x, dtype = args
    inner = made_by(x, "convert")
    if not inner:
        return None
    source = p.value(inner[0])
    return p.convert(source, dtype) if inner[1] in _HOLDS.get(source.dtype, ()) else None


ASKED_FOR = "asked_for"
"""``node.meta`` key of conversions that the program itself asks for, and name of the handler's attribute that
says so of the op being decomposed. A program may lean on the rounding that it asks for (``x - x.half().float()``).
"""


@rewrite("drop_rounding", "convert", fast=True)
def _drop_rounding(p: Any, args: Args, spec: Any) -> Any:
    """An op's float32 result, rounded to a reduced dtype only for the next op to widen it again: keep the
    float32 value, which is the more accurate one."""
    x, dtype = args
    inner = made_by(x, "convert")
    if not inner or dtype != torch.float32 or inner[1] not in REDUCED:
        return None
    if getattr(p, ASKED_FOR, False) or x.node.meta.get(ASKED_FOR):
        return None
    source = p.value(inner[0])
    return source if source.dtype == dtype else None


@rewrite("bool_through_number", "ne")
def _bool_through_number(p: Any, args: Args, spec: Any) -> Any:
    """(bool as a number) != 0 is the bool."""
    x, y = args
    inner = made_by(x, "convert") if _is_tensor(x) else None
    if not inner or _is_tensor(y) or y != 0:
        return None
    source = p.value(inner[0])
    return source if source.dtype == torch.bool else None


@rewrite("div_power_of_two", "div")
def _div_power_of_two(p: Any, args: Args, spec: Any) -> Any:
    """Division by a power of two is exact as a multiplication, which is several times faster."""
    x, y = args
    if not _is_tensor(x) or not isinstance(y, (int, float)) or y == 0 or not math.isfinite(y):
        return None
    mantissa, exponent = math.frexp(abs(y))
    return p.mul(x, 1.0 / y) if mantissa == 0.5 and abs(exponent) < 100 else None


# ---- shapes ---------------------------------------------------------------------------------------------


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


@rewrite("broadcast_unsqueezed", "broadcast")
def _broadcast_unsqueezed(p: Any, args: Args, spec: Any) -> Any:
    """A broadcast of a reshape that only adds or drops dimensions of size 1 is a broadcast of its input."""
    x, shape, dims = args
    inner = made_by(x, "reshape")
    if not inner:
        return None
    source = p.value(inner[0])
    real = [(d, s) for d, s in zip(dims, x.shape, strict=True) if not _is_one(s)]
    wanted = [s for s in source.shape if not _is_one(s)]
    if len(real) != len(wanted) or any(_key(a) != _key(b[1]) for a, b in zip(wanted, real, strict=True)):
        return None
    if len(wanted) != source.ndim:
        if source.ndim == x.ndim or len(wanted) == x.ndim:
            return None
        # Squeeze the rest away once, so that one form is left.
        return p.broadcast(p.reshape(source, tuple(wanted)), shape, tuple(d for d, _ in real))
    return p.broadcast(source, shape, tuple(d for d, _ in real))


def _key(size: Any) -> Any:
    return getattr(size, "expr", size)


@rewrite("scan_one", "cumprod")
def _scan_one(p: Any, args: Args, spec: Any) -> Any:
    x, dim = args
    return x if _is_one(x.shape[dim]) else None


@rewrite("scan_one", "cumsum")
def _add_up_one(p: Any, args: Args, spec: Any) -> Any:
    x, dim = args
    if not _is_one(x.shape[dim]):
        return None
    return _summed(p, x) if x.device.type == "cpu" else x  # a GPU's scan begins with the first term


def _summed(p: Any, x: Any) -> Any:
    """The sum of one term, which begins with 0: it is never -0.0."""
    return p.add(x, 0.0) if x.dtype.is_floating_point else x


def _reduce_ones(name: str) -> Callable[..., Any]:
    """Dimensions of size 1 need no reduction."""

    def fn(p: Any, args: Args, spec: Any) -> Any:
        x, dims = args
        rest = tuple(d for d in dims if not _is_one(x.shape[d]))
        if len(rest) == len(dims):
            return None
        left = [d for d in range(x.ndim) if d in rest or d not in dims]
        squeezed = p.reshape(x, tuple(x.shape[d] for d in left))
        if rest:
            return getattr(p, name)(squeezed, tuple(left.index(d) for d in rest))
        return _summed(p, squeezed) if name == "sum" else squeezed

    return fn


for _name in ("sum", "prod", "amax", "amin", "any", "all"):
    rewrite("reduce_ones", _name)(_reduce_ones(_name))


def _reduce_repeated(name: str) -> Callable[..., Any]:
    """What is repeated along a dimension is reduced to itself, its sum to that many times it."""

    def fn(p: Any, args: Args, spec: Any) -> Any:
        x, dims = args
        made = made_by(x, "broadcast")
        source = p.value(made[0]) if made else None
        if source is None or source.dtype in REDUCED or (name == "sum" and source.dtype != spec.dtype):
            return None
        sizes = dict(zip(made[2], source.shape, strict=True))  # type: ignore[index]
        gone = [d for d in dims if _is_one(sizes.get(d, 1)) and isinstance(x.shape[d], int) and x.shape[d] > 1]
        if not gone:
            return None
        kept = [d for d in sizes if d not in gone]
        left = [d for d in range(x.ndim) if d not in gone]
        y = source if len(kept) == len(sizes) else p.reshape(source, tuple(sizes[d] for d in kept))
        y = p.broadcast(y, tuple(x.shape[d] for d in left), tuple(left.index(d) for d in kept))
        rest = tuple(left.index(d) for d in dims if d not in gone)
        y = getattr(p, name)(y, rest) if rest else y
        if name != "sum":
            return y
        count = math.prod(x.shape[d] for d in gone)
        y = p.mul(y, float(count) if y.dtype.is_floating_point else count)
        return y if rest else _summed(p, y)

    return fn


rewrite("reduce_repeated", "sum", fast=True)(_reduce_repeated("sum"))
for _name in ("amax", "amin", "any", "all"):
    rewrite("reduce_repeated", _name)(_reduce_repeated(_name))


@rewrite("one_of_a_row", "sum")
def _one_of_a_row(p: Any, args: Args, spec: Any) -> Any:
    """The sum along a dimension of what is 0 but at one place, such as the gradient of a loss by its classes."""
    x, dims = args
    chosen = made_by(x, "where")
    equal = made_by(p.value(chosen[0]), "eq") if chosen is not None else None
    if chosen is None or equal is None or len(dims) != 1 or chosen[2] != 0:
        return None
    if not all(isinstance(a, torch.fx.Node) for a in (*equal, chosen[1])):
        return None
    kept = tuple(d for d in range(x.ndim) if d != dims[0])
    given, at, line = (made_by(p.value(a), "broadcast") for a in (chosen[1], *equal))
    if given is None or at is None or line is None:
        return None
    if tuple(given[2]) != kept or tuple(at[2]) != kept or tuple(line[2]) != dims:
        return None
    run = made_by(p.value(line[0]), "iota")
    if run is None or run[1] != 0 or run[2] != 1:
        return None
    place = p.value(at[0])
    inside = p.logical_and(p.ge(place, 0), p.lt(place, x.shape[dims[0]]))
    return _summed(p, p.where(inside, p.value(given[0]), chosen[2]))


@rewrite("slice_slice", "slice")
def _slice_slice(p: Any, args: Args, spec: Any) -> Any:
    x, starts, stops, steps = args
    inner = made_by(x, "slice")
    if not inner:
        return None
    source, first, _, stride = inner
    begin = tuple(a + b * s for a, b, s in zip(first, starts, stride, strict=True))
    end = tuple(
        a + (e - 1) * s + 1 if isinstance(e, int) and e > 0 else a + e * s
        for a, e, s in zip(first, stops, stride, strict=True)
    )
    if any(not isinstance(e, int) or e <= 0 for e in stops) and any(s != 1 for s in stride):
        return None
    return p.slice(p.value(source), begin, end, tuple(a * b for a, b in zip(stride, steps, strict=True)))


def _is_turned(p: Any, pieces: Sequence[Any]) -> bool:
    """Are they two slices of one tensor, as a ``roll`` makes them?"""
    sources = [made[0] for piece in pieces if (made := made_by(p.value(piece), "slice")) is not None]
    return len(pieces) == len(sources) == 2 and sources[0] is sources[1]


@rewrite("slice_of_concat", "slice")
def _slice_of_concat(p: Any, args: Args, spec: Any) -> Any:
    """The parts of a concatenation's pieces that a slice of it takes."""
    x, starts, stops, steps = args
    inner = made_by(x, "concat")
    if not inner:
        return None
    pieces, dim = inner
    start, stop = starts[dim], stops[dim]
    if _key(start) == _key(0) and _key(stop) == _key(x.shape[dim]) and _is_turned(p, pieces):
        return None  # a roll stays one, also where another along a second dimension takes it apart

    def part(piece: Any, low: Any, high: Any) -> Any:
        return p.slice(
            piece, (*starts[:dim], low, *starts[dim + 1 :]), (*stops[:dim], high, *stops[dim + 1 :]), steps
        )

    taken = []
    at: Any = 0
    for piece in map(p.value, pieces):
        end = at + piece.shape[dim]
        if _key(at) == _key(start) and _key(end) == _key(stop):
            return part(piece, 0, piece.shape[dim])
        if all(isinstance(v, int) for v in (at, end, start, stop)) and max(at, start) < min(end, stop):
            taken.append((piece, max(start - at, 0), min(stop, end) - at))
        at = end
    whole = sum(high - low for _, low, high in taken) == stop - start if taken else False
    if not whole or len(taken) > 1 and (steps[dim] != 1 or 2 * len(taken) > len(pieces) > 2):
        return None  # of most of several pieces others may take most too: the windows of a stencil share what is padded
    return p.concat(tuple(part(*piece) for piece in taken), dim)


# ---- integers whose range is known ----------------------------------------------------------------------

_DECIDE: dict[str, Callable[[Bounds, Bounds], bool | None]] = {
    "lt": lambda x, y: True if x.high < y.low else False if x.low >= y.high else None,
    "le": lambda x, y: True if x.high <= y.low else False if x.low > y.high else None,
    "gt": lambda x, y: True if x.low > y.high else False if x.high <= y.low else None,
    "ge": lambda x, y: True if x.low >= y.high else False if x.high < y.low else None,
    "eq": lambda x, y: False if x.high < y.low or y.high < x.low else None,
    "ne": lambda x, y: True if x.high < y.low or y.high < x.low else None,
}


def _decide(name: str) -> Callable[..., Any]:
    def fn(p: Any, args: Args, spec: Any) -> Any:
        tensor = next(a for a in args if _is_tensor(a))
        if tensor.dtype.is_floating_point or tensor.dtype == torch.bool:
            return None
        x, y = (bounds_of(a) for a in args)
        if x is None or y is None:
            return None
        known = _DECIDE[name](x, y)
        return None if known is None else p.full(spec.shape, known, torch.bool, spec.device)

    return fn


for _name in _DECIDE:
    rewrite("compare_ranges", _name)(_decide(_name))
