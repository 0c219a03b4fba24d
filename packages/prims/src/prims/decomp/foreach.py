"""Ops over lists of tensors, as optimisers use them: the same op on every element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prims.decomp.common import Value
from prims.decomp.reductions import power_sum
from prims.decomp.registry import by_name, decomposition

Values = tuple[Value, ...]

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal "
    "round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()

# foreach name -> the op on one tensor (its maximum and minimum take numbers too, as clamps do)
_BINARY = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "clamp_min": "clamp_min",
    "clamp_max": "clamp_max",
    "maximum": "clamp_min",
    "minimum": "clamp_max",
}


def _each(single: str) -> Callable[..., Values]:
    fn = by_name(single)

    def run(p: Any, self: Sequence[Value], *args: Any, **kwargs: Any) -> Values:
        return tuple(fn(p, x, *args, **kwargs) for x in self)

    return run


def _together(single: str) -> Callable[..., Values]:
    fn = by_name(single)

    def run(p: Any, *lists: Sequence[Any], **kwargs: Any) -> Values:
        return tuple(fn(p, *xs, **kwargs) for xs in zip(*lists, strict=True))

    return run


for _name in _UNARY:
    decomposition(f"aten._foreach_{_name}.default")(_each(f"aten.{_name}.default"))
for _name, _single in _BINARY.items():
    _number = f"aten.{_single}.default" if "clamp" in _single else f"aten.{_single}.Scalar"
    decomposition(f"aten._foreach_{_name}.Scalar")(_each(_number))
    decomposition(f"aten._foreach_{_name}.ScalarList")(_together(_number))
    decomposition(f"aten._foreach_{_name}.List")(_together(f"aten.{_single}.Tensor"))
for _name in ("add", "mul", "div"):
    decomposition(f"aten._foreach_{_name}.Tensor")(_each(f"aten.{_name}.Tensor"))
decomposition("aten._foreach_max.default")(_each("aten.max.default"))
decomposition("aten._foreach_clone.default")(_each("aten.clone.default"))
decomposition("aten._foreach_mm.default")(_together("aten.mm.default"))
decomposition("aten._foreach_pow.Scalar")(_each("aten.pow.Tensor_Scalar"))
decomposition("aten._foreach_pow.ScalarList")(_together("aten.pow.Tensor_Scalar"))
decomposition("aten._foreach_pow.List")(_together("aten.pow.Tensor_Tensor"))


@decomposition("aten._foreach_pow.ScalarAndTensor")
def foreach_pow_scalar(p: Any, self: Any, exponent: Sequence[Value]) -> Values:
    """self ** each exponent"""
    fn = by_name("aten.pow.Scalar")
    return tuple(fn(p, self, y) for y in exponent)


def _ternary(name: str) -> None:
    fn = by_name(f"aten.{name}.default")

    def scalar(
        p: Any, self: Sequence[Value], tensor1: Sequence[Value], tensor2: Sequence[Value], value: Any = 1
    ) -> Values:
        return tuple(fn(p, *xs, value=value) for xs in zip(self, tensor1, tensor2, strict=True))

    def scalars(
        p: Any, self: Sequence[Value], tensor1: Sequence[Value], tensor2: Sequence[Value], scalars: Sequence[Any]
    ) -> Values:
        rows = zip(self, tensor1, tensor2, scalars, strict=True)
        return tuple(fn(p, x, a, b, value=value) for x, a, b, value in rows)

    decomposition(f"aten._foreach_{name}.Scalar")(scalar)
    decomposition(f"aten._foreach_{name}.ScalarList")(scalars)


_ternary("addcmul")
_ternary("addcdiv")


@decomposition("aten._foreach_lerp.Scalar")
def foreach_lerp_scalar(p: Any, self: Sequence[Value], tensors1: Sequence[Value], weight: Any) -> Values:
    """lerp of each pair with one number."""
    fn = by_name("aten.lerp.Scalar")
    return tuple(fn(p, x, y, weight) for x, y in zip(self, tensors1, strict=True))


decomposition("aten._foreach_lerp.ScalarList")(_together("aten.lerp.Scalar"))
decomposition("aten._foreach_lerp.List")(_together("aten.lerp.Tensor"))


@decomposition("aten._foreach_norm.Scalar")
def foreach_norm(p: Any, self: Sequence[Value], ord: Any = 2, dtype: Any = None) -> Values:
    """The norm of each tensor."""
    fn = by_name("aten.linalg_vector_norm.default")
    return tuple(fn(p, x, ord, None, False, dtype=dtype) for x in self)


@decomposition("aten._foreach_powsum.Scalar")
def foreach_powsum(p: Any, self: Sequence[Value], ord: Any = 2, dtype: Any = None) -> Values:
    """The sum of each tensor's sizes to a power: its norm to that power."""
    return tuple(power_sum(p, x, ord, dtype) for x in self)


@decomposition("aten._foreach_zero.default")
def foreach_zero(p: Any, self: Sequence[Value]) -> Values:
    """0 in each tensor's shape."""
    fn = by_name("aten.zero.default")
    return tuple(fn(p, x) for x in self)


@decomposition("aten._foreach_copy.default")
def foreach_copy(p: Any, self: Sequence[Value], src: Sequence[Value], non_blocking: bool = False) -> Values:
    """Each source in the shape and dtype of its target."""
    fn = by_name("aten.copy.default")
    return tuple(fn(p, x, y) for x, y in zip(self, src, strict=True))
