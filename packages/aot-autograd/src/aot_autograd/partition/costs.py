"""What it costs to keep a value and to compute it again."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from aot_autograd.partition.split import is_random, is_view
from prims.ir.symbols import expr_of
from prims.spec import TensorSpec

__all__ = ["is_fusible", "is_slow", "name_of", "size_in_bytes", "work"]

#: Operators that are no pointwise ones but that a code generator still fuses into its consumers' kernels.
_FUSIBLE = frozenset(
    {
        "clone",
        "_to_copy",
        "copy",
        "expand",
        "full",
        "full_like",
        "ones_like",
        "zeros_like",
        "zeros",
        "ones",
        "empty_like",
        "empty",
        "empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "scalar_tensor",
        "arange",
        "constant_pad_nd",
        "cat",
        "stack",
        "where",
        "tril",
        "triu",
        "flip",
        "roll",
        "repeat",
        "sum",
        "mean",
        "amax",
        "amin",
        "any",
        "all",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "logsumexp",
        "_softmax",
        "_log_softmax",
        "native_layer_norm",
        "native_group_norm",
        "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit_functional",
        "rms_norm",
        "_fused_rms_norm",
        "embedding",
        "index",
        "index_select",
        "gather",
        "slice_scatter",
        "select_scatter",
        "diagonal_scatter",
        "masked_fill",
        "one_hot",
        "linalg_vector_norm",
        "_unsafe_view",
        "glu",
        "eye",
        "logical_not",
        "upsample_nearest2d",
        "random_uniform",
        "random_normal",
    }
)
_EXPENSIVE = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_convolution",
        "matmul",
        "linear",
        "addbmm",
        "mv",
        "addmv",
        "dot",
    }
)


#: Functions that a CPU computes one number at a time, in some hundred operations and more.
_SLOW = frozenset(
    "erfinv lgamma mvlgamma digamma polygamma igamma igammac i0 special_i0e special_i1 special_i1e special_zeta "
    "special_ndtri special_log_ndtr special_erfcx special_bessel_j0 special_bessel_j1 special_bessel_y0 "
    "special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_spherical_bessel_j0 special_airy_ai".split()
)
#: And of complex numbers.
_SLOW_COMPLEX = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sqrt rsqrt pow "
    "sigmoid sinc angle abs polar".split()
)
#: How much more work they are than a sum, about.
_MORE = 50.0


def is_slow(node: torch.fx.Node) -> bool:
    """Whether a pointwise operator costs far more than to read what it makes: on a CPU, without vector instructions."""
    spec = node.meta.get("spec")
    if not isinstance(spec, TensorSpec) or spec.device.type != "cpu":
        return False
    name = name_of(node)
    if name in _SLOW:
        return True
    if name not in _SLOW_COMPLEX:
        return False
    operands = (operand.meta.get("spec") for operand in node.all_input_nodes)
    return any(isinstance(x, TensorSpec) and x.dtype.is_complex for x in (spec, *operands))


def name_of(node: torch.fx.Node) -> str:
    """The operator's name without its namespace and overload; empty of what is no operator."""
    target = node.target
    return target._schema.name.split("::")[1] if isinstance(target, torch._ops.OpOverload) else ""


def is_fusible(node: torch.fx.Node) -> bool:
    """Whether computing a node again costs about as little as reading its operands."""
    target = node.target
    if target is operator.getitem:
        return is_fusible(node.args[0])  # type: ignore[arg-type]
    if not isinstance(target, torch._ops.OpOverload):
        return False
    known = _LIGHT.get(id(target))
    if known is None:
        light = is_view(node) or torch.Tag.pointwise in target.tags or name_of(node) in _FUSIBLE
        known = _LIGHT[id(target)] = light, target
    return known[0] and not is_random(node)


#: Whether operators are light, by identity (their hash is computed in Python), with the operators.
_LIGHT: dict[int, tuple[bool, Any]] = {}


def number(size: Any, hints: Mapping[str, Any]) -> int:
    """A size as a number: its value, or its value for the first sizes seen."""
    expr = expr_of(size)
    return int(size if expr is None else expr.evaluate(hints))


def elements(spec: Any, hints: Mapping[str, Any]) -> int:
    """The number of elements of a spec, or of all specs in a tuple."""
    if isinstance(spec, TensorSpec):
        total = 1
        for size in spec.shape:
            total *= number(size, hints)
        return total
    return sum(elements(item, hints) for item in spec) if isinstance(spec, (tuple, list)) else 0


def size_in_bytes(spec: Any, hints: Mapping[str, Any]) -> int:
    """The bytes that a value takes."""
    return elements(spec, hints) * spec.dtype.itemsize if isinstance(spec, TensorSpec) else 0


def work(node: torch.fx.Node, hints: Mapping[str, Any]) -> float:
    """A rough count of the operations of a node: for contractions, outputs times the length of the sums."""
    name = name_of(node)
    outputs = elements(node.meta["spec"], hints)
    if name in _EXPENSIVE or "attention" in name:
        operands = [elements(n.meta["spec"], hints) for n in node.all_input_nodes]
        largest = sorted(operands)[-2:]
        product = 1.0
        for operand in largest:
            product *= operand
        # For [m, k] @ [k, n]: sqrt(mk * kn * mn) = m k n.
        return 2.0 * (product * max(outputs, 1)) ** 0.5
    return float(outputs) * (_MORE if is_slow(node) else 1.0)
