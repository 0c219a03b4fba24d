"""What all elementwise rows share: metadata rule, reference wrappers, samples, and the short constructors
`unary`, `binary` that `elementwise.py` uses.

Elementwise operands have one shape, one dtype and one device; a Python number or `Sym` stands for a constant
in the compute dtype (float32 for float16 and bfloat16, else the tensors' dtype). float16 and bfloat16 are
computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from prims.dtypes import compute_dtype
from prims.ops.check import array_spec, is_spec, require, same_shape
from prims.ops.lazy import np
from prims.ops.row import PrimOp, Sample, Template, define

__all__ = ["binary", "edge_values", "shaped_samples", "torch_elementwise", "unary"]


# ---- metadata -------------------------------------------------------------------------------------------


def elementwise_constraints(name: str, arity: int) -> dict[str, str]:
    """The labelled constraints of an elementwise primitive."""
    up = name.upper()
    labels = {
        f"{up}-C3": "the operand dtype is one the primitive is defined for",
        f"{up}-C4": "at least one operand is a tensor",
    }
    if arity > 1:
        labels[f"{up}-C1"] = "tensor operands have one shape"
        labels[f"{up}-C2"] = "tensor operands have one dtype"
        labels[f"{up}-C5"] = "a number operand is of a kind the dtype holds (no float beside integers)"
        labels[f"{up}-C6"] = "tensor operands are on one device"
    return labels


def check_number(value: Any, dtype: torch.dtype, label: str) -> None:
    """A number operand beside a tensor of `dtype`."""
    if isinstance(value, bool) or dtype.is_floating_point:
        fits = not isinstance(value, complex)
    elif dtype == torch.bool:
        fits = type(value).__name__ == "SymBool" or (type(value) is int and value in (0, 1))
    else:
        fits = type(value).__name__ not in ("float", "SymFloat", "complex")
    require(fits, label, f"number {value!r} does not fit {dtype}")


def elementwise_meta(name: str, dtypes: tuple[torch.dtype, ...], rule: str) -> Callable[..., Any]:
    """The metadata rule: the operands' common shape and device, dtype by `rule`."""
    up = name.upper()

    def meta(*operands: Any) -> Any:
        first = next((x for x in operands if is_spec(x)), None)
        require(first is not None, f"{up}-C4", f"{name} needs a tensor operand")
        assert first is not None
        require(first.dtype in dtypes, f"{up}-C3", f"{name} is not defined for {first.dtype}")
        for x in operands:
            if x is first:
                continue
            if not is_spec(x):
                check_number(x, first.dtype, f"{up}-C5")
                continue
            same = same_shape(x.shape, first.shape)
            require(same, f"{up}-C1", f"{name} of shapes {tuple(first.shape)} and {tuple(x.shape)}")
            require(x.dtype == first.dtype, f"{up}-C2", f"{name} of {first.dtype} and {x.dtype}")
            require(x.device == first.device, f"{up}-C6", f"{name} of {first.device} and {x.device}")
        dtype = first.dtype if rule == "same" else torch.bool
        return array_spec(first.shape, dtype, first.device)

    return meta


# ---- references -----------------------------------------------------------------------------------------


def torch_elementwise(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` on tensors of the compute dtype; numbers become 0-dim tensors, the result is rounded once."""

    @functools.wraps(fn)
    def reference(*operands: Any) -> torch.Tensor:
        first = next(x for x in operands if isinstance(x, torch.Tensor))
        compute = compute_dtype(first.dtype)
        tensors = [
            x.to(compute)
            if isinstance(x, torch.Tensor)
            else torch.full((), x, dtype=compute, device=first.device)
            for x in operands
        ]
        out = fn(*tensors)
        return (out.to(first.dtype) if out.dtype == compute else out).contiguous()

    return reference


def numpy_elementwise(fn: Callable[..., Any] | str) -> Callable[..., Any]:
    """`fn` (or NumPy's function of that name) on arrays of one dtype; numbers become 0-dim arrays."""

    def reference(*operands: Any) -> Any:
        call = getattr(np, fn) if isinstance(fn, str) else fn
        first = next(x for x in operands if isinstance(x, np.ndarray))
        arrays = [x if isinstance(x, np.ndarray) else np.asarray(x, dtype=first.dtype) for x in operands]
        return np.asarray(call(*arrays))

    return reference


# ---- samples --------------------------------------------------------------------------------------------


def edge_values(dtype: torch.dtype) -> list[Any]:
    """Values at which implementations differ."""
    if dtype == torch.bool:
        return [False, True]
    if dtype.is_floating_point:
        return [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -7.0, 100.0, 1e-3, float("inf"),
                float("-inf"), float("nan")]  # fmt: skip
    info = torch.iinfo(dtype)
    return [0, 1, 2, 3, 7, info.max, info.min] + ([-1, -2, -7] if info.min < 0 else [])


def _random(shape: Sequence[int], dtype: torch.dtype, lo: float, hi: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) < 0.5
    values = torch.rand(tuple(shape), generator=generator, dtype=torch.float64) * (hi - lo) + lo
    if not dtype.is_floating_point:
        values = values.floor().clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return values.to(dtype)


def shaped_samples(
    dtype: torch.dtype, arity: int, domains: Sequence[tuple[float, float]], seed: int = 0
) -> Iterator[Sample]:
    """Random operands in the domains: plain, zero-dim, empty, transposed, strided and expanded."""

    def operands(shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return tuple(_random(shape, dtype, *domains[i], seed + i) for i in range(arity))

    yield Sample(operands((3, 5)), "random")
    yield Sample(operands(()), "zero-dim")
    yield Sample(operands((0,)), "empty")
    yield Sample(operands((2, 0, 3)), "empty")
    yield Sample(operands((67,)), "longer than a vector, not a multiple of one")
    yield Sample(tuple(t.t() for t in operands((4, 3))), "transposed")
    yield Sample(tuple(t[::2] for t in operands((9, 2))), "strided")
    yield Sample(tuple(t.expand(4, 3) for t in operands((1, 3))), "expanded")


def _unary_samples(domain: tuple[float, float], edges: bool) -> Callable[[torch.dtype], Iterator[Sample]]:
    def samples(dtype: torch.dtype) -> Iterator[Sample]:
        lo = 0.0 if dtype == torch.uint8 else domain[0]
        yield from shaped_samples(dtype, 1, [(lo, domain[1])])
        if edges:
            yield Sample((torch.tensor(edge_values(dtype), dtype=dtype),), "edge values")

    return samples


def _binary_samples(
    domains: Sequence[tuple[float, float]], right: Sequence[Any] | None, edges: bool
) -> Callable[[torch.dtype], Iterator[Sample]]:
    def samples(dtype: torch.dtype) -> Iterator[Sample]:
        floor = 0.0 if dtype == torch.uint8 else float("-inf")
        bounds = [(max(lo, floor), hi) for lo, hi in domains]
        if right is not None and 0 not in right and not dtype.is_floating_point:
            bounds[1] = (1.0, bounds[1][1])
        yield from shaped_samples(dtype, 2, bounds)
        x = _random((3, 4), dtype, *bounds[0], 7)
        y = _random((3, 4), dtype, *bounds[1], 8)
        number: Any = True if dtype == torch.bool else (1.5 if dtype.is_floating_point else 2)
        yield Sample((x, number), "number on the right")
        yield Sample((number, y), "number on the left")
        if edges:
            rights = edge_values(dtype)
            if right is not None and not dtype.is_floating_point:
                rights = [r for r in right if dtype != torch.uint8 or r >= 0]
            pairs = list(itertools.product(edge_values(dtype), rights))
            if right is not None and not dtype.is_floating_point and 0 not in right:
                # The quotient of the least value by -1 overflows; torch gives no meaning to it.
                pairs = [(a, b) for a, b in pairs if not (b == -1 and a == torch.iinfo(dtype).min)]
            left, right_values = zip(*pairs, strict=True)
            yield Sample((torch.tensor(left, dtype=dtype), torch.tensor(right_values, dtype=dtype)), "edges")

    return samples


# ---- constructors ---------------------------------------------------------------------------------------


def _common(name: str, arity: int, dtypes: tuple[torch.dtype, ...], rule: str) -> dict[str, Any]:
    return {
        "meta": elementwise_meta(name, dtypes, rule),
        "dtypes": dtypes,
        "dtype_rule": rule,
        "constraints": elementwise_constraints(name, arity),
    }


def unary(
    name: str,
    doc: str,
    dtypes: tuple[torch.dtype, ...],
    torch_fn: Callable[..., Any],
    numpy_fn: Callable[..., Any] | str,
    c: Template,
    triton: Template,
    *,
    dtype_rule: str = "same",
    domain: tuple[float, float] = (-3.0, 3.0),
    edges: bool = True,
    since: tuple[int, int] = (1, 0),
) -> PrimOp:
    """Define an elementwise primitive of one operand."""
    return define(
        name,
        "x: T",
        "unary",
        doc=doc,
        c=c,
        triton=triton,
        since=since,
        torch_ref=torch_elementwise(torch_fn),
        numpy_ref=numpy_elementwise(numpy_fn),
        samples=_unary_samples(domain, edges),
        **_common(name, 1, dtypes, dtype_rule),
    )


def binary(
    name: str,
    doc: str,
    dtypes: tuple[torch.dtype, ...],
    torch_fn: Callable[..., Any],
    numpy_fn: Callable[..., Any] | str,
    c: Template,
    triton: Template,
    *,
    dtype_rule: str = "same",
    domains: Sequence[tuple[float, float]] = ((-5.0, 5.0), (-5.0, 5.0)),
    right: Sequence[Any] | None = None,
    edges: bool = True,
    since: tuple[int, int] = (1, 0),
) -> PrimOp:
    """Define an elementwise primitive of two operands.

    `right` are the integer edge values of the second operand when not all are allowed.
    """
    return define(
        name,
        "x: V, y: V",
        "binary",
        doc=doc,
        c=c,
        triton=triton,
        since=since,
        torch_ref=torch_elementwise(torch_fn),
        numpy_ref=numpy_elementwise(numpy_fn),
        samples=_binary_samples(domains, right, edges),
        **_common(name, 2, dtypes, dtype_rule),
    )


