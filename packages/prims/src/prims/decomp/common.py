"""What every family of decompositions needs: torch's type promotion, broadcasting, size arithmetic.

Values are whatever the handler works on (`TensorSpec`, graph nodes, tensors, arrays); here they are only
asked for ``shape``, ``dtype``, ``device`` and ``ndim``. Sizes are ``int`` or `Sym`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.defaults import default_dtype
from prims.dtypes import HALVES, REAL_FLOATS, compute_dtype
from prims.errors import LeftWhole, Unsupported
from prims.spec import expr as ex
from prims.spec.tensorspec import as_device

Value = Any
Size = Any

REDUCED = frozenset(HALVES)
_FLOATS = frozenset(REAL_FLOATS)
_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})


def is_value(x: object) -> bool:
    """Is this a tensor value (and not a Python number, a `Sym` or None)?"""
    return hasattr(x, "dtype")


def is_float(dtype: torch.dtype) -> bool:
    """Is this a real floating-point dtype?"""
    return dtype in _FLOATS


def is_integral(dtype: torch.dtype) -> bool:
    """Is this an integer dtype or bool?"""
    return not (dtype.is_floating_point or dtype.is_complex)


#: The dtype eager computes in.
opmath = compute_dtype


def unsupported(reason: str) -> Unsupported:
    """The error for what no decomposition can express; lowering turns it into an extern call."""
    return Unsupported(reason)


def whole(reason: str) -> LeftWhole:
    """The error for a call that PyTorch's own kernel computes better than primitives could."""
    return LeftWhole(reason)


# ---- type promotion -------------------------------------------------------------------------------------


def scalar_dtype(x: object) -> torch.dtype:
    """The dtype a Python number (or `Sym`) stands for in type promotion."""
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, int):
        return torch.int64
    if isinstance(x, float):
        return default_dtype()
    if isinstance(x, complex):
        raise unsupported("complex numbers")
    kind = type(x).__name__
    if kind == "SymFloat":
        return default_dtype()
    if kind == "SymBool":
        return torch.bool
    return torch.int64


def _merge(a: torch.dtype | None, b: torch.dtype | None) -> torch.dtype | None:
    if a is None or a == b:
        return b
    return a if b is None else torch.promote_types(a, b)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """A higher-priority group's dtype, raised by a lower group only to a higher category."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_floating_point:
        return higher
    if higher == torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def result_dtype(*operands: Any) -> torch.dtype:
    """torch's result type of the operands: tensors with dimensions come first, then 0-dim tensors, then
    numbers; a later group matters only where its category (bool < integer < float) is higher.

    Source: "Type Promotion Doc", https://pytorch.org/docs/stable/tensor_attributes.html.
    """
    dims: torch.dtype | None = None
    zero: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for x in operands:
        if x is None:
            continue
        if not is_value(x):
            wrapped = _merge(wrapped, scalar_dtype(x))
        elif x.dtype.is_complex:
            raise unsupported("complex tensors")
        elif x.ndim:
            dims = _merge(dims, x.dtype)
        else:
            zero = _merge(zero, x.dtype)
    result = _combine(dims, _combine(zero, wrapped))
    if result is None:
        raise unsupported("an operation without operands")
    return result


def float_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a float-valued function gives for an input dtype: integers become the default dtype."""
    if dtype.is_complex:
        raise unsupported("complex tensors")
    return dtype if dtype.is_floating_point else default_dtype()


def to_dtype(p: Any, x: Value, dtype: torch.dtype | None) -> Value:
    """The value in a dtype (itself when it already is, or when `dtype` is None)."""
    return x if dtype is None or x.dtype == dtype else p.convert(x, dtype)


def number(x: Any, dtype: torch.dtype) -> Any:
    """A Python number as the kind of number a dtype holds; a `Sym` stays as it is."""
    if not isinstance(x, (bool, int, float)):
        return x
    if dtype == torch.bool:
        return bool(x)
    return float(x) if dtype.is_floating_point else int(x)


def real(x: Any) -> Any:
    """A number as a float; one that is a symbol stays one."""
    if type(x).__name__ == "SymFloat":
        return x
    return x.sym_float() if type(x).__name__ == "Sym" else float(x)


def element(x: Any, dtype: torch.dtype) -> Any:
    """A number as an element of a tensor: of a float that is a symbol a whole type takes the whole part."""
    if type(x).__name__ == "SymFloat" and not dtype.is_floating_point:
        if dtype == torch.bool:
            raise unsupported("a float that changes as an element of a tensor of bools")
        return x.trunc()
    return number(x, dtype)


def rounded(x: Any, dtype: torch.dtype) -> Any:
    """A Python number rounded to a reduced-precision dtype, as eager does before it compares."""
    if dtype in REDUCED and isinstance(x, (int, float)):
        return float(torch.tensor(x, dtype=dtype).item())
    return number(x, dtype)


# ---- shapes ---------------------------------------------------------------------------------------------


def prod(sizes: Sequence[Size]) -> Size:
    """Product of sizes (1 for none)."""
    return functools.reduce(operator.mul, sizes, 1)


def norm_dim(dim: int, ndim: int) -> int:
    """A dimension as a non-negative number. A 0-dim tensor accepts 0 and -1, as in torch."""
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise IndexError(f"dimension {dim} is out of range for a tensor with {ndim} dimensions")
    return dim % span


def norm_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Reduction dimensions, sorted; None or empty means all of them."""
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, int):
        dims = (dims,)
    if len(dims) == 0 or ndim == 0:
        return tuple(range(ndim))
    return tuple(sorted({norm_dim(d, ndim) for d in dims}))


def surely_equal(a: Size, b: Size) -> bool:
    """Are two sizes the same number or the same expression? Never records a guard."""
    if a is b:
        return True
    if isinstance(a, int):
        return isinstance(b, int) and a == b
    return not isinstance(b, int) and a.expr is b.expr


def surely_at_most(a: Size, b: Size) -> bool:
    """Is one size at most another, for all sizes that the guards so far allow? Never records a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    ctx = (b if isinstance(a, int) else a).ctx
    below, above = (size if isinstance(size, int) else size.expr for size in (a, b))
    return ctx.statically_known(ex.le(below, above)) is True


def surely_same(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """`surely_equal` of all sizes."""
    return len(a) == len(b) and all(map(surely_equal, a, b))


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Are two shapes equal (a size comparison that cannot be decided statically records a guard)?"""
    return surely_same(a, b) or (len(a) == len(b) and all(x == y for x, y in zip(a, b, strict=True)))


def broadcast_shapes(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    """The shape all shapes broadcast to, by NumPy's rules."""
    first = shapes[0]
    if all(surely_same(s, first) for s in shapes[1:]):
        return tuple(first)
    ndim = max(len(s) for s in shapes)
    out: list[Size] = [1] * ndim
    for shape in shapes:
        for i, size in enumerate(shape, ndim - len(shape)):
            have = out[i]
            if surely_equal(have, size) or (isinstance(size, int) and size == 1):
                continue
            if not isinstance(have, int) and not isinstance(size, int) and have == size:
                continue  # asked first, as either may be one
            if (isinstance(have, int) and have == 1) or have == 1:
                out[i] = size
            elif size != 1 and have != size:
                raise ValueError(f"shapes {[tuple(s) for s in shapes]} do not broadcast")
    return tuple(out)


def expand(p: Any, x: Value, shape: Sequence[Size]) -> Value:
    """Broadcast a value to a shape by NumPy's rules (itself when it has that shape)."""
    if surely_same(x.shape, shape):
        return x
    return p.broadcast(x, tuple(shape), tuple(range(len(shape) - x.ndim, len(shape))))


def operands(p: Any, *xs: Any, dtype: torch.dtype | None = None) -> list[Any]:
    """Operands of an elementwise primitive: one shape, one dtype (torch's result type unless given).

    Numbers stay numbers; when there is no tensor among them the first becomes a 0-dim value.
    """
    if dtype is None:
        dtype = result_dtype(*xs)
    if not any(map(is_value, xs)):
        xs = (p.full((), number(xs[0], dtype), dtype, torch.device("cpu")), *xs[1:])
    shapes = [x.shape for x in xs if is_value(x)]
    shape = broadcast_shapes(*shapes)
    return [expand(p, to_dtype(p, x, dtype), shape) if is_value(x) else number(x, dtype) for x in xs]


def keep(p: Any, x: Value, shape: Sequence[Size], dims: Sequence[int]) -> Value:
    """A reduced value with its reduced dimensions put back as size 1. `shape` is the input's."""
    return p.reshape(x, tuple(1 if i in dims else s for i, s in enumerate(shape)))


def spread(p: Any, x: Value, shape: Sequence[Size], dims: Sequence[int]) -> Value:
    """A value reduced over `dims`, broadcast back to the input's `shape`."""
    kept = tuple(i for i in range(len(shape)) if i not in dims)
    return p.broadcast(x, tuple(shape), kept)


def from_zero(p: Any, total: Value) -> Value:
    """A float sum as it is in memory that begins with 0 and is added to, as in eager's kernels: never -0.0."""
    return p.add(total, 0.0)


def widened(p: Any, x: Value) -> Value:
    """What eager's kernels of variances and batch norms compute with in float64 on a CPU: float32 numbers."""
    return p.convert(x, torch.float64) if x.dtype == torch.float32 and x.device.type == "cpu" else x


def along(p: Any, x: Value, shape: Sequence[Size], dim: int) -> Value:
    """A one-dimensional value laid along dimension `dim` of `shape`."""
    return p.broadcast(x, tuple(shape), (dim,))


def numel(x: Value) -> Size:
    """Number of elements."""
    return prod(x.shape)


def is_empty(x: Value) -> bool:
    """Is a size known to be 0?"""
    return any(isinstance(s, int) and s == 0 for s in x.shape)


def chosen_device(device: Any) -> torch.device:
    """The device that a factory function's argument names: the CPU without one, ``cuda`` with its index."""
    return torch.device("cpu") if device is None else as_device(device)


def full_like(p: Any, x: Value, value: Any, dtype: torch.dtype | None = None) -> Value:
    """A constant of a value's shape, dtype and device."""
    dtype = dtype or x.dtype
    return p.full(tuple(x.shape), element(value, dtype), dtype, x.device)


def required(p: Any, x: Value, holds: Value) -> Value:
    """``x``, whose elements eager refuses where ``holds`` is not true: there an index out of range stops the kernel."""
    one = p.full((1,), 1, x.dtype, x.device)
    at = p.where(holds, p.full(x.shape, 0, torch.int64, x.device), p.full(x.shape, 1, torch.int64, x.device))
    return p.mul(x, p.index(one, (at,), (0,)))


def select(p: Any, x: Value, dim: int, index: Size) -> Value:
    """Slice of index `index` along `dim`, that dimension dropped."""
    starts = [0] * x.ndim
    stops = list(x.shape)
    starts[dim], stops[dim] = index, index + 1
    taken = p.slice(x, tuple(starts), tuple(stops), (1,) * x.ndim)
    return p.reshape(taken, tuple(s for i, s in enumerate(x.shape) if i != dim))


def slice_dim(p: Any, x: Value, dim: int, start: Size, stop: Size, step: int = 1) -> Value:
    """Slice along one dimension, with bounds already in range."""
    if isinstance(start, int) and start == 0 and step == 1 and stop is x.shape[dim]:
        return x
    starts = [0] * x.ndim
    stops = list(x.shape)
    steps = [1] * x.ndim
    starts[dim], stops[dim], steps[dim] = start, stop, step
    return p.slice(x, tuple(starts), tuple(stops), tuple(steps))


def iota_along(p: Any, shape: Sequence[Size], dim: int, device: torch.device) -> Value:
    """int64 index of each element along `dim`, of a whole shape."""
    return along(p, p.iota(shape[dim], 0, 1, torch.int64, device), shape, dim)


# ---- reduced precision ----------------------------------------------------------------------------------


def _tensors(args: Sequence[Any]) -> list[Value]:
    return [x for x in args if is_value(x)]


def in_one_shape(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Broadcast the tensor operands of an elementwise decomposition, as eager's kernels do.

    Autograd gives operands of one shape; batching rules leave it to the kernel.
    """

    @functools.wraps(fn)
    def wrapper(p: Any, *args: Any, **kwargs: Any) -> Any:
        shape = broadcast_shapes(*(a.shape for a in args if is_value(a)))
        return fn(p, *[expand(p, a, shape) if is_value(a) else a for a in args], **kwargs)

    return wrapper


def in_opmath(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Run an elementwise formula as eager's kernels do: reduced-precision inputs are widened to float32
    once, and the results rounded once. Integer inputs are promoted to the default float dtype.
    """

    @functools.wraps(fn)
    def wrapper(p: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = _tensors(args)
        if not tensors:
            tensors = _tensors(tuple(kwargs.values()))
        out = float_dtype(result_dtype(*tensors))
        compute = opmath(out)

        def widen(x: Any) -> Any:
            return to_dtype(p, x, compute) if is_value(x) else x

        result = fn(p, *map(widen, args), **{k: widen(v) for k, v in kwargs.items()})
        if isinstance(result, tuple):
            return tuple(to_dtype(p, r, out) if r is not None and is_float(r.dtype) else r for r in result)
        return to_dtype(p, result, out)

    return wrapper


SQRT1_2 = math.sqrt(0.5)
SQRT_2_PI = math.sqrt(2.0 / math.pi)
