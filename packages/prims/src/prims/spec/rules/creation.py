"""Factories, copies and conversions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.defaults import default_dtype
from prims.registry import define_operator
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.iterator import iterate
from prims.spec.promote import number_dtype, result_dtype
from prims.spec.sym import Sym, SymFloat, from_torch, sym_max, to_torch
from prims.spec.tensorspec import TensorSpec, as_device

Size = Any  # int | Sym


def _device(device: Any) -> torch.device:
    # Operators know the device of the default tensor type alone: torch.set_default_device is about torch's functions.
    return as_device(torch._C._get_default_device() if device is None else device)


def fresh(shape: Sequence[Size], dtype: torch.dtype | None, device: Any, memory_format: Any = None) -> TensorSpec:
    """A new dense tensor; ``dtype`` None means the default one."""
    shape = tuple(shape)
    dtype = default_dtype() if dtype is None else dtype
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return TensorSpec(shape, dtype, _device(device), layout.channels_last_strides(shape))
    return TensorSpec(shape, dtype, _device(device))


@meta_rule(
    "aten.empty.memory_format",
    "aten.zeros.default",
    "aten.ones.default",
    "aten.rand.default",
    "aten.randn.default",
    "aten.rand.generator",
    "aten.randn.generator",
)
def filled(
    size: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
    generator: Any = None,
) -> TensorSpec:
    return fresh(size, dtype, device, memory_format)


@meta_rule("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def kaiser_window(
    window_length: Size,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    """Its kernel writes into the memory of a tensor that it makes, which an abstract one does not have."""
    return fresh((window_length,), dtype, device)


@meta_rule("aten.full.default")
def full(
    size: Sequence[Size],
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    return fresh(size, number_dtype(fill_value) if dtype is None else dtype, device)


@meta_rule("aten.empty_strided.default")
def empty_strided(
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    return TensorSpec(size, dtype or default_dtype(), _device(device), stride)


@meta_rule("aten.empty_permuted.default")
def empty_permuted(
    size: Sequence[Size],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    if len({d % len(size) for d in physical_layout}) != len(size):
        raise RuntimeError(f"Duplicate dim in the physical layout {list(physical_layout)}")
    strides = strides_in_order(tuple(size), reversed(physical_layout))
    return TensorSpec(size, dtype or default_dtype(), _device(device), strides)


strides_in_order = layout.strides_in_order
_like_strides = layout.like_strides
_channels_last_strides = layout.channels_last_strides
_contiguous_strides = layout.contiguous_strides


def with_format(x: TensorSpec, memory_format: Any, dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """A new tensor shaped as ``x``; None and ``preserve_format`` keep the order of its strides."""
    if memory_format is None or memory_format is torch.preserve_format:
        strides = _like_strides(x.shape, x.strides)
    elif memory_format is torch.contiguous_format:
        strides = _contiguous_strides(x.shape)
    else:
        if x.ndim != (rank := 4 if memory_format is torch.channels_last else 5):
            raise RuntimeError(f"required rank {rank} tensor to use {memory_format}")
        strides = _channels_last_strides(x.shape)
    return TensorSpec(x.shape, dtype, device, strides)


def _like(
    x: TensorSpec,
    *args: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
    generator: Any = None,
    **kwargs: Any,
) -> TensorSpec:
    return with_format(x, memory_format, dtype or x.dtype, x.device if device is None else _device(device))


for _name in "empty zeros ones rand randn".split():
    meta_rule(f"aten.{_name}_like.default")(_like)
meta_rule("aten.full_like.default")(_like)
for _overload in "default low_dtype Tensor".split():
    meta_rule(f"aten.randint_like.{_overload}")(_like)


def _new(
    x: TensorSpec,
    size: Sequence[Size],
    *args: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    return TensorSpec(size, dtype or x.dtype, x.device if device is None else _device(device))


for _name in "empty zeros ones full".split():
    meta_rule(f"aten.new_{_name}.default")(_new)


@meta_rule("aten.new_empty_strided.default")
def new_empty_strided(
    x: TensorSpec,
    size: Sequence[Size],
    stride: Sequence[Size],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    return TensorSpec(size, dtype or x.dtype, x.device if device is None else _device(device), stride)


def arange_length(start: Any, end: Any, step: Any) -> Size:
    """How many numbers there are from ``start`` before ``end`` in steps of ``step``; any may be symbolic.

    Raises:
        RuntimeError: the step is 0, or leads away from the end.
    """
    whole = [_as_whole(v) for v in (start, end, step)]
    if any(v is None for v in whole):
        start, end, step = (torch.sym_float(to_torch(v)) for v in (start, end, step))
        if step == 0 or (end < start if step > 0 else start < end):
            raise RuntimeError(f"arange from {start} to {end} in steps of {step}")
        return from_torch(math.ceil((end - start) / step))
    start, end, step = whole
    if step == 0 or (layout.is_surely_less(end, start) if step > 0 else layout.is_surely_less(start, end)):
        raise RuntimeError(f"arange from {start} to {end} in steps of {step}")
    if step == 1 and any(isinstance(v, Sym) and v.hint is None for v in (start, end)):
        return end - start  # of fewer than none there is no tensor
    return sym_max(-((start - end) // step), 0)


def _as_whole(number: Any) -> Any:
    """A number as an integer, where it is one whatever its symbols are."""
    if isinstance(number, SymFloat):
        return number.ctx.make(number.expr.args[0]) if number.expr.kind == "tofloat" else None
    if isinstance(number, float):
        return int(number) if number.is_integer() else None
    return number


def _arange(start: Any, end: Any, step: Any, dtype: torch.dtype | None, device: Any) -> TensorSpec:
    if dtype is None:
        integral = all(isinstance(v, (int, Sym)) for v in (start, end, step))
        dtype = torch.int64 if integral else default_dtype()
    return TensorSpec((arange_length(start, end, step),), dtype, _device(device))


@meta_rule("aten.arange.default")
def arange(
    end: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorSpec:
    return _arange(0, end, 1, dtype, device)


@meta_rule("aten.arange.start")
def arange_start(
    start: Any, end: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorSpec:
    return _arange(start, end, 1, dtype, device)


@meta_rule("aten.arange.start_step")
def arange_step(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> TensorSpec:
    return _arange(start, end, step, dtype, device)


define_operator(
    "linspace(Scalar start, Scalar end, SymInt steps, *, ScalarType dtype, Device device) -> Tensor", torch.linspace
)


@meta_rule("quintet.linspace.default")
def linspace_of_steps(start: Any, end: Any, steps: Size, *, dtype: Any, device: Any) -> TensorSpec:
    return fresh((steps,), dtype, device)


@meta_rule("aten.linspace.default", "aten.logspace.default")
def linspace(
    start: Any, end: Any, steps: Size, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any
) -> TensorSpec:
    if dtype is None and (isinstance(start, complex) or isinstance(end, complex)):
        dtype = number_dtype(1j)
    return fresh((steps,), dtype, device)


@meta_rule(
    "aten.linspace.Tensor_Tensor",
    "aten.linspace.Tensor_Scalar",
    "aten.linspace.Scalar_Tensor",
    "aten.logspace.Tensor_Tensor",
    "aten.logspace.Tensor_Scalar",
    "aten.logspace.Scalar_Tensor",
)
def linspace_tensor(
    start: Any, end: Any, steps: Size, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any
) -> TensorSpec:
    if device is None:
        device = next(v.device for v in (start, end) if isinstance(v, TensorSpec))
    return fresh((steps,), dtype, device)


@meta_rule("aten.eye.default")
def eye(n: Size, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> TensorSpec:
    return fresh((n, n), dtype, device)


@meta_rule("aten.eye.m")
def eye_m(
    n: Size, m: Size, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorSpec:
    return fresh((n, m), dtype, device)


@meta_rule("aten.scalar_tensor.default")
def scalar_tensor(
    s: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorSpec:
    return fresh((), dtype, device)


@meta_rule("aten.tril_indices.default")
def tril_indices(
    row: Size, col: Size, offset: int = 0, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> TensorSpec:
    cols = int(col)
    count = sum(min(max(i + offset + 1, 0), cols) for i in range(int(row)))
    return fresh((2, count), dtype or torch.int64, device)


@meta_rule("aten.triu_indices.default")
def triu_indices(
    row: Size, col: Size, offset: int = 0, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> TensorSpec:
    cols = int(col)
    count = sum(cols - min(max(i + offset, 0), cols) for i in range(int(row)))
    return fresh((2, count), dtype or torch.int64, device)


@meta_rule("aten.randint.default", "aten.randint.generator")
def randint(
    high: Any, size: Sequence[Size], *, dtype: Any = torch.int64, device: Any = None, **kwargs: Any
) -> TensorSpec:
    return fresh(size, dtype or torch.int64, device)


@meta_rule("aten.randint.low", "aten.randint.low_generator")
def randint_low(
    low: Any, high: Any, size: Sequence[Size], *, dtype: Any = torch.int64, device: Any = None, **kwargs: Any
) -> TensorSpec:
    return fresh(size, dtype or torch.int64, device)


@meta_rule("aten.randperm.default", "aten.randperm.generator")
def randperm(n: Size, *, dtype: Any = torch.int64, device: Any = None, **kwargs: Any) -> TensorSpec:
    return fresh((n,), dtype or torch.int64, device)


# ---- copies ------------------------------------------------------------------------------------------------


@meta_rule("aten.clone.default")
def clone(x: TensorSpec, *, memory_format: Any = None) -> TensorSpec:
    return with_format(x, memory_format, x.dtype, x.device)


@meta_rule("aten.contiguous.default")
def contiguous(x: TensorSpec, *, memory_format: Any = torch.contiguous_format) -> TensorSpec:
    out = with_format(x, memory_format, x.dtype, x.device)
    if memory_format is torch.contiguous_format:
        return x if x.is_contiguous() else out
    return x if layout.is_channels_last_contiguous(x.shape, x.strides) else out


@meta_rule("aten._to_copy.default")
def to_copy(
    x: TensorSpec,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> TensorSpec:
    device = x.device if device is None else _device(device)
    return with_format(x, memory_format, dtype or x.dtype, device)


@meta_rule("aten.lift.default", "aten.lift_fresh_copy.default")
def lift(x: TensorSpec) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.copy.default")
def copy(x: TensorSpec, src: TensorSpec, non_blocking: bool = False) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


# ---- random, shaped as an argument ---------------------------------------------------------------------------


@meta_rule("aten.bernoulli.default", "aten.bernoulli.p")
def bernoulli_contiguous(x: TensorSpec, *args: Any, generator: Any = None) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("quintet.probabilities.default")
def probabilities(x: TensorSpec) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.normal_functional.default")
def normal_functional(x: TensorSpec, *args: Any, generator: Any = None) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.native_dropout.default")
def native_dropout(x: TensorSpec, p: float, train: bool | None) -> tuple[TensorSpec, TensorSpec]:
    out = with_format(x, None, x.dtype, x.device)
    return out, TensorSpec(x.shape, torch.bool, x.device, out.strides)


@meta_rule("aten.native_dropout_backward.default")
def native_dropout_backward(grad: TensorSpec, mask: TensorSpec, scale: float) -> TensorSpec:
    dtype = result_dtype((grad, scale))
    if grad.device.type == "cuda":
        last = layout.is_channels_last_strides(grad.shape, grad.strides)
        return TensorSpec(grad.shape, dtype, grad.device, layout.channels_last_strides(grad.shape) if last else None)
    return iterate((grad, mask), dtype)


@meta_rule("aten.exponential.default", "aten.geometric.default", "aten.cauchy.default", "aten.log_normal.default")
@meta_rule("aten.uniform.default", "aten.random.default", "aten.random.to", "aten.random.from")
@meta_rule("aten.bernoulli.Tensor")
def random_like(x: TensorSpec, *args: Any, generator: Any = None) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.fill.Scalar", "aten.fill.Tensor", "aten.zero.default")
def fill(x: TensorSpec, *args: Any) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.multinomial.default")
def multinomial(x: TensorSpec, num_samples: Size, replacement: bool = False, *, generator: Any = None) -> TensorSpec:
    return TensorSpec((*x.shape[:-1], num_samples), torch.int64, x.device)
