"""Primitives that choose, convert, create and rearrange elements.

Views have no aliasing meaning here: a prim-dialect value is a logical array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prims.dtypes import HALVES, KEPT_FLOATS
from prims.ops.check import (
    ALL,
    NUMERIC,
    STORED,
    array_spec,
    ceil_div,
    is_spec,
    product,
    require,
    require_dims,
    same_shape,
)
from prims.ops.elementwise_rules import (
    check_number,
    edge_values,
    elementwise_constraints,
    elementwise_meta,
    numpy_elementwise,
    shaped_samples,
    torch_elementwise,
)
from prims.ops.lazy import np
from prims.ops.row import Sample, define
from prims.spec.layout import is_surely_less

__all__ = ["numpy_dtype"]


def numpy_dtype(dtype: torch.dtype) -> Any:
    """The NumPy dtype that holds a torch dtype's values in the references (float32 for narrow floats)."""
    if dtype in HALVES or dtype in KEPT_FLOATS:
        return np.float32
    return np.bool_ if dtype == torch.bool else getattr(np, str(dtype).removeprefix("torch."))


def ramp(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Distinct small values (as far as the dtype allows), to see where elements go."""
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(count) % (2 if dtype == torch.bool else 97)
    return values.to(dtype).reshape(tuple(shape))


# ---- where, fma -----------------------------------------------------------------------------------------


def _where_meta(c: Any, x: Any, y: Any) -> Any:
    require(is_spec(c) and c.dtype == torch.bool, "WHERE-C1", "the condition is a bool tensor")
    given = [v for v in (x, y) if is_spec(v)]
    require(bool(given), "WHERE-C2", "at least one of the two values is a tensor")
    first = given[0]
    for v in given:
        shapes = f"{tuple(c.shape)} and {tuple(v.shape)}"
        require(same_shape(v.shape, c.shape), "WHERE-C3", f"where of shapes {shapes}")
        require(v.dtype == first.dtype, "WHERE-C4", f"where of {first.dtype} and {v.dtype}")
        require(v.device == c.device, "WHERE-C6", f"where of {c.device} and {v.device}")
    require(first.dtype in ALL, "WHERE-C7", f"where is not defined for {first.dtype}")
    for v in (x, y):
        if not is_spec(v):
            check_number(v, first.dtype, "WHERE-C5")
    return array_spec(c.shape, first.dtype, c.device)


def _as_value(v: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return v if isinstance(v, torch.Tensor) else torch.full((), v, dtype=dtype, device=device)


def _where_torch(c: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    dtype = next(v.dtype for v in (x, y) if isinstance(v, torch.Tensor))
    return torch.where(c, _as_value(x, dtype, c.device), _as_value(y, dtype, c.device)).contiguous()


def _where_numpy(c: Any, x: Any, y: Any) -> Any:
    dtype = next(v.dtype for v in (x, y) if isinstance(v, np.ndarray))
    return np.where(c, np.asarray(x, dtype), np.asarray(y, dtype))


def _where_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for sample in shaped_samples(dtype, 2, [(-5.0, 5.0)] * 2):
        x, y = sample.args
        yield Sample((ramp(x.shape, torch.bool), x, y), sample.note)
    edges = torch.tensor(edge_values(dtype), dtype=dtype)
    mask = ramp(edges.shape, torch.bool)
    number: Any = edges[-1].item()
    yield Sample((mask, edges, edges.flip(0)), "edges")
    yield Sample((mask, edges, number), "number on the right")
    yield Sample((mask, number, edges), "number on the left")


define(
    "where", "c: T, x: V, y: V", "ternary", doc="x where c, else y",
    meta=_where_meta, torch_ref=_where_torch, numpy_ref=_where_numpy, samples=_where_samples,
    dtypes=ALL, c="({0} ? {1} : {2})", triton="tl.where({0}, {1}, {2})",
    constraints={
        "WHERE-C1": "the condition is a bool tensor",
        "WHERE-C2": "at least one of the two values is a tensor",
        "WHERE-C3": "condition and values have one shape",
        "WHERE-C4": "the values have one dtype",
        "WHERE-C5": "a number value is of a kind the dtype holds",
        "WHERE-C6": "all operands are on one device",
        "WHERE-C7": "the values' dtype is one the primitive is defined for",
    },
)  # fmt: skip


def _fma_samples(dtype: torch.dtype) -> Iterator[Sample]:
    yield from shaped_samples(dtype, 3, [(-4.0, 4.0)] * 3)
    x, y, z = next(iter(shaped_samples(dtype, 3, [(-4.0, 4.0)] * 3, seed=20))).args
    yield Sample((x, 2, z), "number in the middle")
    yield Sample((x, y, 3), "number at the end")


define(
    "fma", "x: V, y: V, z: V", "ternary", doc="x * y + z; the product may or may not be rounded",
    meta=elementwise_meta("fma", NUMERIC, "same"),
    torch_ref=torch_elementwise(lambda x, y, z: x * y + z),
    numpy_ref=numpy_elementwise(lambda x, y, z: x * y + z),
    samples=_fma_samples, dtypes=NUMERIC,
    c={"float": "({0} * {1} + {2})", "int": "(({T})({0} * {1} + {2}))"}, triton="({0} * {1} + {2})",
    constraints=elementwise_constraints("fma", 3),
)  # fmt: skip

# ---- convert, bitcast -----------------------------------------------------------------------------------


def _convert_meta(x: Any, dtype: torch.dtype) -> Any:
    known = x.dtype in STORED and dtype in STORED
    require(known, "CONVERT-C1", f"no conversion from {x.dtype} to {dtype}")
    return array_spec(x.shape, dtype, x.device)


def _convert_numpy(x: Any, dtype: torch.dtype) -> Any:
    return x.astype(numpy_dtype(dtype))


def _convert_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for target in STORED:
        lo = 0.0 if target == torch.uint8 else -100.0
        for sample in shaped_samples(dtype, 1, [(lo, 100.0)]):
            yield Sample((sample.args[0], target), sample.note)
        if target.is_floating_point or target == torch.bool or not dtype.is_floating_point:
            yield Sample((torch.tensor(edge_values(dtype), dtype=dtype), target), "edges")


define(
    "convert", "x: T, dtype: dtype", "cast", dtype_rule="attr",
    doc="to another dtype: floats round to nearest even, floats to integers truncate (out of range: any value), "
    "integers wrap, anything to bool is x != 0",
    meta=_convert_meta,
    torch_ref=lambda x, dtype: x.to(dtype, copy=True, memory_format=torch.contiguous_format),
    numpy_ref=_convert_numpy,
    samples=_convert_samples, dtypes=STORED,
    constraints={"CONVERT-C1": "both dtypes are real numbers or bool"},
)  # fmt: skip


def _bitcast_meta(x: Any, dtype: torch.dtype) -> Any:
    same = x.dtype.itemsize == dtype.itemsize
    require(same, "BITCAST-C1", f"{x.dtype} and {dtype} differ in size")
    usable = torch.bool not in (x.dtype, dtype) and x.dtype in ALL and dtype in ALL
    require(usable, "BITCAST-C2", f"no bit cast between {x.dtype} and {dtype}")
    return array_spec(x.shape, dtype, x.device)


def _bitcast_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for target in NUMERIC:
        if target.itemsize == dtype.itemsize:
            yield Sample((ramp((3, 5), dtype), target), "ramp")
            yield Sample((ramp((0,), dtype), target), "empty")
            yield Sample((ramp((4, 3), dtype).t(), target), "transposed")


def _bitcast_numpy(x: Any, dtype: torch.dtype, source: torch.dtype) -> Any:
    """Needs the source's torch dtype, as halves travel in float32 arrays."""
    if source == torch.bfloat16:
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    elif source == torch.float16:
        bits = x.astype(np.float16).view(np.uint16)
    else:
        bits = np.ascontiguousarray(x)
    if dtype == torch.bfloat16:
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == torch.float16:
        return bits.view(np.float16).astype(np.float32)
    return bits.view(numpy_dtype(dtype))


define(
    "bitcast", "x: T, dtype: dtype", "cast", dtype_rule="attr", doc="the same bits as another dtype of equal size",
    meta=_bitcast_meta, torch_ref=lambda x, dtype: x.contiguous().view(dtype).clone(),
    numpy_ref=_bitcast_numpy, samples=_bitcast_samples, dtypes=NUMERIC,
    constraints={
        "BITCAST-C1": "both dtypes have one size",
        "BITCAST-C2": "both dtypes are numeric (not bool)",
    },
)  # fmt: skip

# ---- creation -------------------------------------------------------------------------------------------


def _require_sizes(shape: Sequence[Any], label: str) -> None:
    for size in shape:
        require(not is_surely_less(size, 0), label, f"size {size} is negative")


def _full_meta(shape: Any, value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    require(dtype in STORED, "FULL-C1", f"full is not defined for {dtype}")
    _require_sizes(shape, "FULL-C2")
    check_number(value, dtype, "FULL-C3")
    return array_spec(shape, dtype, device)


def _full_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for value in edge_values(dtype):
        if dtype not in KEPT_FLOATS or abs(value) != float("inf"):  # which torch.full refuses
            yield Sample(((2, 3), value, dtype, "cpu"), "edge value")
    for shape in ((), (0,), (2, 0)):
        yield Sample((shape, edge_values(dtype)[1], dtype, "cpu"), f"shape {shape}")


define(
    "full", "shape: Ss, value: scalar, dtype: dtype, device: device", "create", dtype_rule="attr",
    doc="an array of one number",
    meta=_full_meta,
    torch_ref=lambda shape, value, dtype, device: torch.full(shape, value, dtype=dtype, device=device),
    numpy_ref=lambda shape, value, dtype, device: np.full(shape, value, dtype=numpy_dtype(dtype)),
    samples=_full_samples, dtypes=STORED,
    constraints={
        "FULL-C1": "the dtype is a real number's or bool",
        "FULL-C2": "sizes are not negative",
        "FULL-C3": "the number is of a kind the dtype holds",
    },
)  # fmt: skip


def _iota_meta(length: Any, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> Any:
    require(dtype in NUMERIC, "IOTA-C1", f"iota is not defined for {dtype}")
    _require_sizes((length,), "IOTA-C2")
    for value in (start, step):
        check_number(value, dtype, "IOTA-C3")
    return array_spec((length,), dtype, device)


def _iota_torch(length: int, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    compute = torch.float64 if dtype.is_floating_point else torch.int64
    return (torch.arange(length, dtype=compute, device=device) * step + start).to(dtype)


def _iota_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for length, start, step in ((5, 0, 1), (0, 0, 1), (7, 3, 2), (4, 9, -3 if dtype != torch.uint8 else 3)):
        yield Sample((length, start, step, dtype, "cpu"), "whole numbers")
    if dtype.is_floating_point:
        yield Sample((9, 0.5, 0.25, dtype, "cpu"), "fractions")


define(
    "iota", "length: S, start: scalar, step: scalar, dtype: dtype, device: device", "create", dtype_rule="attr",
    doc="start + i * step for i < length (floats: computed in float64, rounded once)",
    meta=_iota_meta, torch_ref=_iota_torch,
    numpy_ref=lambda length, start, step, dtype, device: (np.arange(length) * step + start).astype(numpy_dtype(dtype)),
    samples=_iota_samples, dtypes=NUMERIC,
    constraints={
        "IOTA-C1": "the dtype is numeric",
        "IOTA-C2": "the length is not negative",
        "IOTA-C3": "start and step are of a kind the dtype holds",
    },
)  # fmt: skip

# ---- rearrangement --------------------------------------------------------------------------------------


def _broadcast_meta(x: Any, shape: Any, dims: Any) -> Any:
    require(len(dims) == x.ndim, "BROADCAST-C1", f"{len(dims)} dims for an input of {x.ndim} dimensions")
    inside = all(0 <= d < len(shape) for d in dims)
    rising = all(a < b for a, b in itertools.pairwise(dims))
    require(inside and rising, "BROADCAST-C2", f"dims {dims} are not ascending below {len(shape)}")
    for size, d in zip(x.shape, dims, strict=True):
        target = shape[d]
        fits = size is target or (type(size) is int and size == 1) or size == target or size == 1
        require(fits, "BROADCAST-C3", f"size {size} does not broadcast to {target} at dimension {d}")
    _require_sizes(shape, "BROADCAST-C4")
    return array_spec(shape, x.dtype, x.device)


def _spread(x: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
    """A tensor or array with its dimensions placed at `dims` among ones, ready to repeat."""
    spread = [1] * len(shape)
    for size, d in zip(x.shape, dims, strict=True):
        spread[d] = size
    return x.reshape(spread)


def _broadcast_samples(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample((ramp((), dtype), (2, 3), ()), "scalar to matrix")
    yield Sample((ramp((3,), dtype), (2, 3), (1,)), "row")
    yield Sample((ramp((2,), dtype), (2, 3), (0,)), "column")
    yield Sample((ramp((2, 1, 4), dtype), (5, 2, 3, 4), (1, 2, 3)), "inner one")
    yield Sample((ramp((1,), dtype), (0,), (0,)), "to empty")
    yield Sample((ramp((4, 3), dtype).t(), (3, 4), (0, 1)), "same shape, transposed")


define(
    "broadcast", "x: T, shape: Ss, dims: ints", "view",
    doc="input dimension i becomes output dimension dims[i], repeated where its size is 1 (as StableHLO's "
    "broadcast_in_dim)",
    meta=_broadcast_meta,
    torch_ref=lambda x, shape, dims: _spread(x, shape, dims).expand(shape).clone(memory_format=torch.contiguous_format),
    numpy_ref=lambda x, shape, dims: np.broadcast_to(_spread(x, shape, dims), shape).copy(),
    samples=_broadcast_samples, dtypes=ALL,
    constraints={
        "BROADCAST-C1": "one output dimension is named per input dimension",
        "BROADCAST-C2": "the named dimensions are in range and ascending",
        "BROADCAST-C3": "each input size is 1 or equals the output's",
        "BROADCAST-C4": "sizes are not negative",
    },
)  # fmt: skip


def _reshape_meta(x: Any, shape: Any) -> Any:
    _require_sizes(shape, "RESHAPE-C2")
    have, want = product(x.shape), product(shape)
    equal = have is want or have == want
    require(equal, "RESHAPE-C1", f"{tuple(x.shape)} has {have} elements, {tuple(shape)} has {want}")
    return array_spec(shape, x.dtype, x.device)


def _reshape_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for before, after in (((2, 6), (3, 4)), ((4,), (2, 1, 2)), ((), (1, 1)), ((1, 1), ()), ((0, 3), (3, 0, 2))):
        yield Sample((ramp(before, dtype), after), f"{before} to {after}")
    yield Sample((ramp((4, 3), dtype).t(), (2, 6)), "transposed")
    yield Sample((ramp((3, 5), dtype), (1, 3, 1, 5)), "ones added")


define(
    "reshape", "x: T, shape: Ss", "view", doc="the same elements in row-major order under another shape",
    meta=_reshape_meta, torch_ref=lambda x, shape: x.reshape(shape).clone(),
    numpy_ref=lambda x, shape: x.reshape(shape).copy(), samples=_reshape_samples, dtypes=ALL,
    constraints={
        "RESHAPE-C1": "the number of elements stays",
        "RESHAPE-C2": "sizes are not negative",
    },
)  # fmt: skip


def _permute_meta(x: Any, dims: Any) -> Any:
    full = sorted(dims) == list(range(x.ndim))
    require(full, "PERMUTE-C1", f"{dims} is not an order of {x.ndim} dimensions")
    return array_spec(tuple(x.shape[d] for d in dims), x.dtype, x.device)


def _permute_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dims in (((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((), ()), ((0, 2), (1, 0)), ((3, 2), (0, 1))):
        yield Sample((ramp(shape, dtype), dims), f"{dims}")


define(
    "permute", "x: T, dims: perm", "view", doc="output dimension i is input dimension dims[i]",
    meta=_permute_meta, torch_ref=lambda x, dims: x.permute(dims).contiguous().clone(),
    numpy_ref=lambda x, dims: np.transpose(x, dims).copy(), samples=_permute_samples, dtypes=ALL,
    constraints={"PERMUTE-C1": "dims is an order of all dimensions"},
)  # fmt: skip


def _slice_meta(x: Any, starts: Any, stops: Any, steps: Any) -> Any:
    lengths = len(starts) == len(stops) == len(steps) == x.ndim
    require(lengths, "SLICE-C1", f"one start, stop and step for each of {x.ndim} dimensions")
    shape = []
    for i, (size, start, stop, step) in enumerate(zip(x.shape, starts, stops, steps, strict=True)):
        full = type(start) is int and start == 0 and stop is size
        inside = full or (start >= 0 and start <= stop and stop <= size)
        require(inside, "SLICE-C2", f"[{start}:{stop}] is not within size {size} of dimension {i}")
        require(step >= 1, "SLICE-C3", f"step {step} of dimension {i} is not positive")
        length = stop if type(start) is int and start == 0 else stop - start
        shape.append(ceil_div(length, step))
    return array_spec(shape, x.dtype, x.device)


def _slices(starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True))


def _slice_samples(dtype: torch.dtype) -> Iterator[Sample]:
    x = ramp((5, 7), dtype)
    yield Sample((x, (1, 0), (4, 7), (1, 1)), "rows")
    yield Sample((x, (0, 1), (5, 6), (2, 3)), "steps")
    yield Sample((x, (2, 0), (2, 7), (1, 1)), "empty")
    yield Sample((x.t(), (0, 0), (7, 5), (3, 1)), "transposed")
    yield Sample((ramp((), dtype), (), (), ()), "zero-dim")


define(
    "slice", "x: T, starts: Ss, stops: Ss, steps: Ss", "view", doc="x[start:stop:step] in every dimension",
    meta=_slice_meta,
    torch_ref=lambda x, starts, stops, steps: x[_slices(starts, stops, steps)].clone(
        memory_format=torch.contiguous_format
    ),
    numpy_ref=lambda x, starts, stops, steps: np.array(x[_slices(starts, stops, steps)]),
    samples=_slice_samples, dtypes=ALL,
    constraints={
        "SLICE-C1": "one start, stop and step per dimension",
        "SLICE-C2": "0 <= start <= stop <= size",
        "SLICE-C3": "steps are positive",
    },
)  # fmt: skip


def _pad_meta(x: Any, value: Any, low: Any, high: Any) -> Any:
    lengths = len(low) == len(high) == x.ndim
    require(lengths, "PAD-C1", f"one low and high for each of {x.ndim} dimensions")
    shape = [size + a + b for size, a, b in zip(x.shape, low, high, strict=True)]
    for i, size in enumerate(shape):
        require(size >= 0, "PAD-C2", f"dimension {i} would have size {size}")
    check_number(value, x.dtype, "PAD-C3")
    return array_spec(shape, x.dtype, x.device)


def _pad_torch(x: torch.Tensor, value: Any, low: Sequence[int], high: Sequence[int]) -> torch.Tensor:
    crop = tuple(slice(max(-a, 0), s - max(-b, 0)) for s, a, b in zip(x.shape, low, high, strict=True))
    shape = [s + a + b for s, a, b in zip(x.shape, low, high, strict=True)]
    out = torch.full(shape, value, dtype=x.dtype, device=x.device)
    if 0 not in shape:
        inner = x[crop]
        place = tuple(slice(max(a, 0), max(a, 0) + s) for s, a in zip(inner.shape, low, strict=True))
        out[place] = inner
    return out


def _pad_numpy(x: Any, value: Any, low: Sequence[int], high: Sequence[int]) -> Any:
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        for front, amount in ((True, a), (False, b)):
            size = x.shape[axis]
            if amount < 0:
                keep = range(-amount, size) if front else range(size + amount)
                x = np.take(x, list(keep), axis=axis)
            else:
                filler = np.full(x.shape[:axis] + (amount,) + x.shape[axis + 1 :], value, dtype=x.dtype)
                x = np.concatenate([filler, x] if front else [x, filler], axis=axis)
    return x


def _pad_samples(dtype: torch.dtype) -> Iterator[Sample]:
    x = ramp((3, 4), dtype)
    value = edge_values(dtype)[1]
    for low, high in (((1, 0), (0, 2)), ((0, 0), (0, 0)), ((-1, 2), (1, -3)), ((-2, -1), (-1, -1))):
        yield Sample((x, value, low, high), f"low {low}, high {high}")
    yield Sample((ramp((0, 2), dtype), value, (2, 0), (0, 1)), "empty grows")
    yield Sample((ramp((), dtype), value, (), ()), "zero-dim")


define(
    "pad", "x: T, value: scalar, low: Ss, high: Ss", "view", doc="adds elements at both ends; negative amounts crop",
    meta=_pad_meta, torch_ref=_pad_torch, numpy_ref=_pad_numpy, samples=_pad_samples, dtypes=ALL,
    constraints={
        "PAD-C1": "one low and one high amount per dimension",
        "PAD-C2": "no size becomes negative",
        "PAD-C3": "the number is of a kind the dtype holds",
    },
)  # fmt: skip


def _concat_meta(xs: Any, dim: int) -> Any:
    require(len(xs) > 0, "CONCAT-C1", "concat of nothing")
    first = xs[0]
    require_dims(first, (dim,), "CONCAT-C2")
    total: Any = 0
    for x in xs:
        require(x.ndim == first.ndim, "CONCAT-C3", f"concat of {first.ndim} and {x.ndim} dimensions")
        others = (d for d in range(x.ndim) if d != dim)
        equal = all(x.shape[d] is first.shape[d] or x.shape[d] == first.shape[d] for d in others)
        require(equal, "CONCAT-C3", f"concat of {tuple(first.shape)} and {tuple(x.shape)} along {dim}")
        require(x.dtype == first.dtype, "CONCAT-C4", f"concat of {first.dtype} and {x.dtype}")
        require(x.device == first.device, "CONCAT-C5", f"concat of {first.device} and {x.device}")
        total = total + x.shape[dim]
    shape = list(first.shape)
    shape[dim] = total
    return array_spec(shape, first.dtype, first.device)


def _concat_samples(dtype: torch.dtype) -> Iterator[Sample]:
    yield Sample(((ramp((2, 3), dtype), ramp((4, 3), dtype)), 0), "rows")
    yield Sample(((ramp((2, 3), dtype), ramp((2, 0), dtype), ramp((3, 2), dtype).t()), 1), "columns, one empty")
    yield Sample(((ramp((3,), dtype),), 0), "one")


define(
    "concat", "xs: Ts, dim: dim", "view", doc="the operands one after another along a dimension",
    meta=_concat_meta, torch_ref=lambda xs, dim: torch.cat(tuple(xs), dim),
    numpy_ref=lambda xs, dim: np.concatenate(tuple(xs), axis=dim), samples=_concat_samples, dtypes=ALL,
    constraints={
        "CONCAT-C1": "there is an operand",
        "CONCAT-C2": "the dimension is in range",
        "CONCAT-C3": "the operands' other sizes are equal",
        "CONCAT-C4": "the operands have one dtype",
        "CONCAT-C5": "the operands are on one device",
    },
)  # fmt: skip


def _flip_meta(x: Any, dims: Any) -> Any:
    require_dims(x, dims, "FLIP-C1")
    return array_spec(x.shape, x.dtype, x.device)


def _flip_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for shape, dims in (((2, 3), (1,)), ((2, 3, 4), (0, 2)), ((0, 2), (0, 1)), ((3,), ())):
        yield Sample((ramp(shape, dtype), dims), f"{dims}")


define(
    "flip", "x: T, dims: dims", "view", doc="reverses dimensions",
    meta=_flip_meta, torch_ref=lambda x, dims: torch.flip(x, dims).contiguous(),
    numpy_ref=lambda x, dims: np.flip(x, dims).copy(), samples=_flip_samples, dtypes=ALL,
    constraints={"FLIP-C1": "dims are in range and distinct"},
)  # fmt: skip
