"""Elementwise overloads: one row per op, by the rule that gives the result's dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes, converted, iterate
from prims.spec.promote import real_dtype, result_dtype, to_float_dtype
from prims.spec.rules.creation import with_format
from prims.spec.tensorspec import TensorSpec

DtypeRule = Callable[[Any], torch.dtype]


def _same(operands: Any) -> torch.dtype:
    return result_dtype(operands)


def _float(operands: Any) -> torch.dtype:
    return to_float_dtype(result_dtype(operands))


def _bool(operands: Any) -> torch.dtype:
    return torch.bool


def _first(operands: Any) -> torch.dtype:
    return operands[0].dtype  # type: ignore[no-any-return]


# Unary functions whose other arguments (numbers, strings) do not matter.
UNARY: dict[DtypeRule, str] = {
    _float: """sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 log10 log1p sqrt
        rsqrt reciprocal erf erfc erfinv lgamma digamma sigmoid logit i0 special_i0e special_i1 special_i1e
        special_ndtri special_log_ndtr special_entr special_erfcx special_airy_ai special_bessel_j0
        special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0
        special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 sinc""",
    _same: """neg sign sgn floor ceil trunc round frac positive bitwise_not relu silu mish hardswish hardsigmoid
        elu celu selu leaky_relu softplus hardshrink threshold""",
    _bool: "isnan isposinf isneginf signbit logical_not",
}
# Those whose result eager makes beforehand, by `empty_like`: it keeps the strides of dimensions of one element.
MADE_ALIKE = {_float: "deg2rad rad2deg", _same: "hardtanh nan_to_num conj_physical _conj_physical"}
# Overloads of those that are not `default`.
UNARY_OVERLOADS = {_same: "round.decimals"}


def _unary(name: str, dtype: DtypeRule) -> None:
    @meta_rule(f"aten.{name}")
    def rule(x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
        return iterate((x,), dtype((x,)))


for _rule, _text in UNARY.items():
    for _name in _text.split():
        _unary(f"{_name}.default", _rule)
for _rule, _text in UNARY_OVERLOADS.items():
    _unary(_text, _rule)


def _made_alike(name: str, dtype: DtypeRule) -> None:
    @meta_rule(f"aten.{name}.default")
    def rule(x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
        return with_format(x, None, dtype((x,)), x.device)


for _rule, _text in MADE_ALIKE.items():
    for _name in _text.split():
        _made_alike(_name, _rule)


def _against_infinity(x: TensorSpec) -> TensorSpec:
    size = absolute(x)
    return iterate((size, math.inf), torch.bool, wraps=True, common=size.dtype)


@meta_rule("aten.isinf.default")
def isinf(x: TensorSpec) -> TensorSpec:
    """Of numbers that may be infinite, what their sizes compare with; of others it is filled."""
    if x.dtype.is_complex:  # of one part, into which the other's is written
        return isinf(TensorSpec(x.shape, real_dtype(x.dtype), x.device, tuple(2 * stride for stride in x.strides)))
    return _against_infinity(x) if x.dtype.is_floating_point else with_format(x, None, torch.bool, x.device)


@meta_rule("aten.isfinite.default")
def isfinite(x: TensorSpec) -> TensorSpec:
    """A number that is one, and whose size is not infinite; of integers it is filled."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return with_format(x, None, torch.bool, x.device)
    return iterate((iterate((x, x), torch.bool, common=x.dtype), _against_infinity(x)), torch.bool)


@meta_rule("aten.abs.default")
def absolute(x: TensorSpec) -> TensorSpec:
    if x.dtype.is_complex:
        return with_format(x, None, real_dtype(x.dtype), x.device)
    return iterate((x,), x.dtype)


@meta_rule("aten.log_sigmoid.default")
def log_sigmoid(x: TensorSpec) -> TensorSpec:
    return log_sigmoid_forward(x)[0]


@meta_rule("aten.gelu.default")
def gelu(x: TensorSpec, *, approximate: str = "none") -> TensorSpec:
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return iterate((x,), x.dtype)


@meta_rule("aten.softshrink.default")
def softshrink(x: TensorSpec, lambd: Any = 0.5) -> TensorSpec:
    if isinstance(lambd, (int, float)) and not lambd >= 0:
        raise RuntimeError(f"lambda must be at least 0, but found {lambd}")
    return iterate((x,), x.dtype)


@meta_rule("aten.polygamma.default")
def polygamma(n: int, x: TensorSpec) -> TensorSpec:
    return iterate((x,), to_float_dtype(x.dtype))


@meta_rule("aten.angle.default")
def angle(x: TensorSpec) -> TensorSpec:
    if x.dtype.is_complex:  # eager's result begins as an empty tensor, which is made larger
        return TensorSpec(x.shape, real_dtype(x.dtype), x.device)
    return iterate((x,), to_float_dtype(real_dtype(x.dtype)))


# Functions of two tensors or numbers: overloads, then the functions.
BINARY: tuple[tuple[tuple[str, ...], DtypeRule, str], ...] = (
    (
        ("Tensor", "Scalar"),
        _same,
        "add sub mul fmod bitwise_and bitwise_or bitwise_xor __lshift__ __rshift__",
    ),
    (("Tensor", "Scalar"), _same, "__and__ __or__ __xor__"),
    (("Tensor", "Tensor_Scalar", "Scalar_Tensor"), _same, "bitwise_left_shift bitwise_right_shift"),
    (("Scalar_Tensor",), _same, "bitwise_and bitwise_or bitwise_xor remainder"),
    (("Tensor", "Scalar"), _same, "remainder"),
    (("Tensor_Tensor", "Tensor_Scalar"), _same, "pow"),
    (("Tensor", "Scalar"), _bool, "eq ne lt le gt ge"),
    (("default",), _bool, "logical_and logical_or logical_xor"),
    (("default",), _same, "maximum minimum fmax fmin nextafter hypot gcd lcm heaviside"),
    (("default", "Scalar"), _same, "floor_divide"),
    (("default",), _float, "atan2"),
    (("Tensor", "Scalar"), _float, "div true_divide"),
    (("Tensor", "Scalar_Self", "Scalar_Other"), _float, "xlogy"),
    (("default", "self_scalar", "other_scalar"), _float, "special_xlog1py special_zeta"),
    (
        ("default", "x_scalar", "n_scalar"),
        _float,
        """special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h
        special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w""",
    ),
    (("default",), _float, "special_gammainc special_gammaincc igamma igammac"),
    (("Tensor", "Scalar"), _float, "copysign"),
)


def _binary(name: str, dtype: DtypeRule) -> None:
    @meta_rule(name)
    def rule(x: Any, y: Any, *args: Any, **kwargs: Any) -> TensorSpec:
        operands = (x, y)
        common = result_dtype(operands) if dtype is _bool else None
        return iterate(operands, dtype(operands), wraps=not name.startswith("aten.pow"), common=common)


for _overloads, _rule, _text in BINARY:
    for _name in _text.split():
        for _overload in _overloads:
            _binary(f"aten.{_name}.{_overload}", _rule)


@meta_rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(x: TensorSpec, y: Any, alpha: Any = 1) -> TensorSpec:
    """``y - x``, which is the order in which their strides count."""
    return iterate((y, x), result_dtype((y, x)), wraps=True)


@meta_rule("aten._prelu_kernel.default")
def prelu(x: TensorSpec, weight: TensorSpec) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> TensorSpec:
    dtype = result_dtype((x, y))
    return iterate((x, y), dtype if rounding_mode else to_float_dtype(dtype), wraps=True)


@meta_rule("aten.pow.Scalar")
def pow_of_a_number(x: Any, y: TensorSpec) -> TensorSpec:
    """Row-major, whatever the exponent's strides."""
    return TensorSpec(y.shape, result_dtype((x, y)), y.device)


@meta_rule("aten.float_power.Tensor_Tensor", "aten.float_power.Tensor_Scalar", "aten.float_power.Scalar")
def float_power(x: Any, y: Any) -> TensorSpec:
    wide = torch.complex128 if result_dtype((x, y)).is_complex else torch.float64
    return iterate((x, y), wide)


#: Since torch 2.13 a product by an integer power of two is a kernel of its own, whose result has the factor's type.
_LDEXP_OF_INTEGERS = not torch.ops.aten.ldexp.Tensor.has_kernel_for_dispatch_key(
    torch._C.DispatchKey.CompositeImplicitAutograd
)


@meta_rule("aten.ldexp.Tensor")
def ldexp(x: TensorSpec, y: TensorSpec) -> TensorSpec:
    powers = not (y.dtype.is_floating_point or y.dtype.is_complex)
    if _LDEXP_OF_INTEGERS and x.dtype.is_floating_point and powers:
        if y.dtype == torch.bool:
            raise NotImplementedError("ldexp of a power that is a bool")
        if broadcast_shapes((x.shape, y.shape)) == x.shape:
            return with_format(x, None, x.dtype, x.device)
        return iterate((x, y), x.dtype)
    power = pow_of_a_number(2.0, y)
    dtype = result_dtype((x, power))
    inexact = x.dtype.is_floating_point or x.dtype.is_complex
    if _LDEXP_OF_INTEGERS and inexact and x.dtype != torch.float32:
        return iterate((x, y), dtype)
    return iterate((x, power), dtype)  # the power is row-major


@meta_rule("aten.logaddexp.default", "aten.logaddexp2.default")
def logaddexp(x: TensorSpec, y: TensorSpec) -> TensorSpec:
    return iterate((x, y), to_float_dtype(result_dtype((x, y))))


# Ternary and more: which operands are promoted is the same as which are iterated over.
@meta_rule("aten.addcmul.default", "aten.addcdiv.default", "aten.lerp.Tensor")
def ternary(x: Any, y: Any, z: Any, *, value: Any = 1) -> TensorSpec:
    return iterate((x, y, z), result_dtype((x, y, z)))


@meta_rule("aten.lerp.Scalar")
def lerp_scalar(x: TensorSpec, y: TensorSpec, weight: Any) -> TensorSpec:
    return iterate((x, y), result_dtype((x, y)))


@meta_rule("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def clamp(x: TensorSpec, min: Any = None, max: Any = None) -> TensorSpec:
    return iterate((x, min, max), result_dtype((x, min, max)))


@meta_rule("aten.clamp_min.default", "aten.clamp_min.Tensor", "aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_one(x: TensorSpec, bound: Any) -> TensorSpec:
    return iterate((x, bound), result_dtype((x, bound)))


@meta_rule("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(condition: TensorSpec, x: Any, y: Any) -> TensorSpec:
    # The numbers become 0-d tensors, and the iterator sees all three in this order; the condition keeps its type.
    tensors = [v for v in (x, y) if type(v) is TensorSpec]
    if len(tensors) == 2 and tensors[0].dtype is tensors[1].dtype:
        dtype = tensors[0].dtype
    else:
        dtype = result_dtype((x, y))
    x, y = (converted(v, dtype) if type(v) is TensorSpec else v for v in (x, y))
    return iterate((condition.replace(dtype=dtype), x, y), dtype, wraps=True)


@meta_rule("aten.isclose.default")
def isclose(x: TensorSpec, y: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return iterate((x, y), torch.bool, common=result_dtype((x, y)))


def _complex_of(x: TensorSpec, y: TensorSpec) -> TensorSpec:
    wide = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
    return iterate((x, y), wide[x.dtype])


meta_rule("aten.complex.default", "aten.polar.default")(_complex_of)


@meta_rule("aten.frexp.Tensor")
def frexp(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    return with_format(x, None, x.dtype, x.device), with_format(x, None, torch.int32, x.device)


# Backwards that are elementwise: op, and the positions of the gradient and the input (or result) in the order in which
# their strides count.
BACKWARD = {
    **dict.fromkeys(
        """tanh_backward sigmoid_backward gelu_backward silu_backward mish_backward hardswish_backward
        hardsigmoid_backward hardtanh_backward softplus_backward hardshrink_backward softshrink_backward
        logit_backward""".split(),
        (0, 1),
    ),
    **dict.fromkeys("threshold_backward leaky_relu_backward".split(), (1, 0)),
}


def _backward(name: str, order: tuple[int, int]) -> None:
    @meta_rule(f"aten.{name}.default")
    def rule(*args: Any, **kwargs: Any) -> TensorSpec:
        operands = [args[i] for i in order]
        return iterate(operands, result_dtype(operands))


for _name, _order in BACKWARD.items():
    _backward(_name, _order)


@meta_rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(grad: TensorSpec, *args: Any) -> TensorSpec:
    return with_format(grad, None, grad.dtype, grad.device)


@meta_rule("aten._prelu_kernel_backward.default")
def prelu_backward(grad: TensorSpec, x: TensorSpec, weight: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    out = iterate((x, weight, grad), x.dtype)
    return out, out


@meta_rule("aten.elu_backward.default")
def elu_backward(grad: TensorSpec, *args: Any) -> TensorSpec:
    return iterate((grad, args[-1]), result_dtype((grad, args[-1])))


@meta_rule("aten.rrelu_with_noise_backward.default")
def rrelu_backward(
    grad: TensorSpec, x: TensorSpec, noise: TensorSpec, lower: Any, upper: Any, training: bool, *args: Any
) -> TensorSpec:
    first = noise if training and upper - lower > 1e-6 else x  # else it is leaky_relu's
    return iterate((first, grad), result_dtype((first, grad)))


@meta_rule("aten.mvlgamma.default")
def mvlgamma(x: TensorSpec, p: int) -> TensorSpec:
    """A sum over a new last dimension, contiguous as sums are."""
    return TensorSpec(x.shape, _float((x,)), x.device)


@meta_rule("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    if x.device.type != "cpu":
        return with_format(x, None, x.dtype, x.device), TensorSpec((0,), x.dtype, x.device)
    out = TensorSpec(x.shape, x.dtype, x.device)  # the CPU's kernel takes no strides over
    return out, out


@meta_rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: TensorSpec, mask: TensorSpec, value: Any) -> TensorSpec:
    """A contiguous copy of the expanded input, filled in place."""
    if isinstance(value, TensorSpec) and value.ndim:
        raise RuntimeError(f"masked_fill only supports a 0-dimensional value tensor, but got {value.ndim} dimensions")
    return TensorSpec(broadcast_shapes((x.shape, mask.shape)), x.dtype, x.device)
