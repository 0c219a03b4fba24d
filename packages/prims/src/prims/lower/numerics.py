"""Which operators stay eager's own under ``numerics="eager_exact"`` and ``"eager_close"``.

``eager_exact``: what is decomposed, and so may be fused into generated kernels, is in :data:`EXACT`: its primitives,
each rounded once, give eager's bits whatever the loop around them. Everything else is one call of eager's own kernel
on operands that lie as in eager. ``eager_close``: every result is rounded where eager rounds it, and what eager adds
up in a wider type than generated kernels do, or rounds after every addition, stays eager's call (:data:`ACCUMULATES`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from prims.decomp.common import REDUCED
from prims.spec import TensorSpec

__all__ = ["ACCUMULATES", "EXACT", "not_exact", "stays_eager"]

# Values are moved, chosen or made, never computed.
_MOVES = """
_reshape_alias _reshape_copy _unsafe_view alias alias_copy as_strided as_strided_copy as_strided_scatter block_diag
broadcast_tensors cat chunk clone
concat concatenate contiguous copy detach detach_copy diag_embed diagonal diagonal_backward diagonal_copy
diagonal_scatter empty.memory_format empty_like empty_permuted empty_strided expand expand_as expand_copy eye eye.m
fill.Scalar fill.Tensor flatten.using_ints flip full full_like gather index.Tensor _unsafe_index.Tensor index_copy
index_fill.int_Scalar index_fill.int_Tensor index_select lift lift_fresh lift_fresh_copy masked_fill.Scalar
masked_fill.Tensor masked_scatter movedim.int narrow narrow_copy new_empty new_empty_strided new_full new_ones
new_zeros numpy_T one_hot ones ones_like constant_pad_nd permute permute_copy pixel_shuffle pixel_unshuffle
channel_shuffle embedding reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d repeat repeat_interleave.self_int reshape resolve_conj resolve_neg roll rot90 scalar_tensor
scatter.src scatter.value select.int select_backward select_copy.int select_scatter slice.Tensor slice_backward
slice_copy.Tensor slice_scatter split.Tensor split_copy.Tensor split_with_sizes split_with_sizes_copy squeeze
squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim squeeze_copy.dims stack t t_copy take take_along_dim
transpose.int transpose_copy.int tril triu unbind.int unbind_copy.int unfold unfold_copy unsafe_chunk
unsafe_split.Tensor unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_nearest1d upsample_nearest2d
upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
value_selecting_reduction_backward view view.dtype view_copy where.Scalar where.ScalarOther where.ScalarSelf
where.self zero zeros zeros_like im2col
"""

# One rounding, which IEEE 754 fixes; comparisons and bits; integers, which wrap.
_ROUNDED = """
__lshift__.Scalar __lshift__.Tensor __rshift__.Scalar __rshift__.Tensor _to_copy abs add.Scalar add.Tensor
bitwise_and.Scalar bitwise_and.Scalar_Tensor bitwise_and.Tensor bitwise_left_shift.Scalar_Tensor
bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_not bitwise_or.Scalar bitwise_or.Scalar_Tensor
bitwise_or.Tensor bitwise_right_shift.Scalar_Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar
bitwise_xor.Scalar bitwise_xor.Scalar_Tensor bitwise_xor.Tensor ceil clamp clamp.Tensor clamp_max clamp_max.Tensor
clamp_min clamp_min.Tensor conj_physical copysign.Scalar copysign.Tensor div.Scalar div.Tensor eq.Scalar eq.Tensor
floor fmax fmin ge.Scalar ge.Tensor gt.Scalar gt.Tensor hardtanh hardtanh_backward heaviside isfinite isinf isnan
isneginf isposinf le.Scalar le.Tensor leaky_relu leaky_relu_backward logical_and logical_not logical_or logical_xor
lt.Scalar lt.Tensor maximum minimum mul.Scalar mul.Tensor nan_to_num ne.Scalar ne.Tensor neg positive
pow.Tensor_Scalar reciprocal relu sqrt
relu6 round rsub.Scalar rsub.Tensor sgn sign signbit square sub.Scalar sub.Tensor threshold threshold_backward
to.dtype trunc hardshrink hardshrink_backward _prelu_kernel
"""

# Reductions in which the order of the operands makes no difference.
_ORDERLESS = " all all.dim all.dims amax amin any any.dim any.dims count_nonzero count_nonzero.dim_IntList "

#: Reductions that are exact for integers, which wrap whatever the order.
_OF_INTEGERS = "sum sum.dim_IntList prod prod.dim_int cumsum cumprod"


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in text.split())


EXACT = _names(_MOVES + _ROUNDED + _ORDERLESS)
"""Overloads (``"aten.add.Tensor"``) whose generated form gives eager's bits; some not with every argument."""

INTEGER_SUMS = _names(_OF_INTEGERS)
"""Overloads that give eager's bits for integers only."""

# On a CPU, in double precision; a GPU adds up in single precision as generated kernels do.
_WIDER = _names("""
var.correction var_mean.correction std.correction std_mean.correction cumsum cumprod native_batch_norm
native_batch_norm_backward batch_norm_backward _native_batch_norm_legit_functional _native_batch_norm_legit.no_stats
_batch_norm_with_update_functional
""")

# With a rounding after each addition, where the dtype has 16 bits.
_STEPWISE = _names("index_add index_put _unsafe_index_put embedding_dense_backward scatter_add scatter.reduce put")

ACCUMULATES = _WIDER | _STEPWISE
"""Overloads that eager's CPU kernels accumulate otherwise than generated ones."""


#: Factories whose kernels in eager round a product and a sum at once, as no generated one does but under ``"fast"``.
_ROUNDED_ONCE = frozenset({"aten.linspace.default", "quintet.linspace.default"})


_BATCH_NORM = _names("""
_native_batch_norm_legit_functional _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training
native_batch_norm native_batch_norm_backward
""")


def not_exact(node: torch.fx.Node) -> str | None:
    """Why eager's bits cannot be promised for an aten node under ``"eager_exact"``; None where they are."""
    if str(node.target) not in _BATCH_NORM:
        return None
    devices = {spec.device.type for spec in _specs(node) if isinstance(spec, TensorSpec)}
    return "eager may take cuDNN's kernel instead of PyTorch's own" if "cuda" in devices else None


def stays_eager(numerics: str, node: torch.fx.Node) -> bool:
    """Whether an aten node is to be eager's own call under a setting of ``Options.numerics``."""
    if numerics == "fast":
        return False
    name = str(node.target)
    if name in _ROUNDED_ONCE:
        return True
    if not name.startswith("aten."):
        return False  # custom operators stay calls in any case, random numbers from a seed are not eager's anyway
    specs = [spec for spec in _specs(node) if isinstance(spec, TensorSpec)]
    if numerics == "eager_exact":
        return not _is_exact(name, node, specs)
    if not any(spec.device.type == "cpu" for spec in specs):
        return False
    return (name in _WIDER and any(spec.dtype.is_floating_point and spec.dtype != torch.float64 for spec in specs)) or (
        name in _STEPWISE and any(spec.dtype in REDUCED for spec in specs)
    )


def _is_exact(name: str, node: torch.fx.Node, specs: list[TensorSpec]) -> bool:
    if any(spec.dtype.is_complex for spec in specs):
        return False
    if name in INTEGER_SUMS:
        return not any(spec.dtype.is_floating_point for spec in specs)
    condition = _CONDITIONS.get(name)
    return name in EXACT and (condition is None or condition(node))


def _on_gpu(node: torch.fx.Node) -> bool:
    """Rounded correctly there; on CPUs eager's roots may come from a vector library that is right to one unit."""
    spec = node.meta.get("spec")
    return isinstance(spec, TensorSpec) and spec.device.type == "cuda"


def _squares(node: torch.fx.Node) -> bool:
    return bool(node.args[1] == 2)


def _plain_sum(node: torch.fx.Node) -> bool:
    """A sum without a factor, which some kernels would round together with it, or a number known only at the call."""
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    known = all(isinstance(x, (int, float, torch.fx.Node)) for x in (alpha, *node.args[:2]))
    return known and bool(alpha == 1) and _one_dtype(node)


def _one_dtype(node: torch.fx.Node) -> bool:
    """Whether no 16-bit operation takes a wider 0-dim operand, which some kernels use unrounded."""
    dtypes = {spec.dtype for spec in _specs(node) if isinstance(spec, TensorSpec)}
    return len(dtypes) == 1 or not dtypes & REDUCED


_CONDITIONS: dict[str, Callable[[torch.fx.Node], bool]] = {
    **{f"aten.{name}.{kind}": _plain_sum for name in ("add", "sub", "rsub") for kind in ("Tensor", "Scalar")},
    **{f"aten.{name}.{kind}": _one_dtype for name in ("mul", "div") for kind in ("Tensor", "Scalar")},
    "aten.sqrt.default": _on_gpu,
    "aten.pow.Tensor_Scalar": _squares,
}


def _specs(node: torch.fx.Node) -> list[Any]:
    found: list[Any] = []
    for spec in (node.meta.get("spec"), *(n.meta.get("spec") for n in node.all_input_nodes)):
        found += spec if isinstance(spec, (tuple, list)) else [spec]
    return found
