"""What eager's kernels are known to do, by the names of operators: how they round, add and choose, and in which order."""

from __future__ import annotations

import torch

#: Parts of the names of operators whose result comes from many roundings inside.
ACCUMULATING = (
    "sum", "mean", "prod", "var", "std", "norm", "softmax", "mm", "matmul", "bmm", "dot", "mv", "conv", "loss", "linear",
    "attention", "cum", "scatter", "index_add", "index_put", "embedding", "pool", "interpol", "upsample", "cdist", "dist",
    "gelu", "softplus", "sigmoid", "silu", "mish", "elu", "selu", "celu", "erf", "gamma", "tan", "sinh", "asin", "acos",
    "log", "exp", "pow", "lerp", "addc", "logit", "lstm", "gru", "fft", "linalg", "renorm", "cross", "trace", "cov",
    "polygamma", "hypot", "atan", "remainder", "fmod", "floor_divide", "backward", "entr", "sinc", "xlogy", "cosine",
    "grid", "bilinear", "baddbmm", "einsum", "trapezoid", "vander", "kron", "std_mean", "var_mean", "nansum", "native",
    "foreach", "fused", "div", "rsqrt", "foreach", "unfold", "col2im", "im2col", "roll", "sort", "bucketize", "ldexp",
)  # fmt: skip
#: Parts of the names of those that update a running mean (Welford): they divide at every step, and so round even where all
#: sums are exact.
RUNNING_MEAN = ("var", "std", "batch_norm", "layer_norm", "group_norm")
#: Those that the rounded runs give their numbers in another order, of which a running mean of 64 bits has another error; a
#: wider type to compute it in there is none.
ANY_ORDER = frozenset(f"aten::{name}" for name in ("var", "std", "var_mean", "std_mean"))
#: Normalisations by a running mean: the order of what they normalise, along all dimensions but the second, counts too.
#: These, and how many operands have the numbers.
NORMALISING = {
    "aten::native_batch_norm": 1, "aten::_native_batch_norm_legit": 1, "aten::native_batch_norm_backward": 2,
}  # fmt: skip
#: Parts of the names of others that round inside all the same: series, exponentials, weights that are no exact numbers.
INEXACT = (*RUNNING_MEAN, "softmax", "gamma", "upsample", "logaddexp", "avg_pool", "mish_backward", "silu_backward")
#: Functions whose kernels err by a fraction of a unit to one side more than to the other, which a sum of many collects.
ONE_SIDED = frozenset(f"aten::{name}" for name in ("exp", "log", "xlogy", "_softmax", "_log_softmax"))
#: Operators whose kernels take numbers of this size from each other, whatever the result's: the digamma function of a small
#: number is the logarithm of about ten less the steps of a recurrence (S. L. Moshier, Cephes); the logarithm that a
#: log-softmax takes from a number, or that is added to the largest, is that of a sum of at least one, and has its error.
INNER_SIZES = {"aten::digamma": 2.3, "aten::_log_softmax": 1.0, "aten::logsumexp": 1.0}
#: Operators whose kernels add 1 to a number that may lie next to -1, or terms of about that size, and the operand by which
#: they multiply the sum: its relative error is not small, however well the number is known, and nearly the same for
#: neighbouring operands.
ADDING_ONE = {"aten::gelu": 0, "aten::gelu_backward": 0, "aten::mish_backward": 0, "aten::silu_backward": 0}
#: Products of matrices and vectors, and which of their operands are multiplied.
PRODUCTS = {f"aten::{name}": (0, 1) for name in ("mm", "bmm", "mv", "dot", "vdot")} | {
    f"aten::{name}": (1, 2) for name in ("addmm", "baddbmm", "addmv")
}
#: Terms of a product, and additions in all, up to which it is also added up one by one.
LONGEST, MOST = 4096, 1 << 22
#: Operators that add several terms: where all are zeros, the order in which a kernel adds them decides about the sum's sign,
#: and of a single term whether the kernel begins with it or with 0.
TERMS = frozenset(PRODUCTS) | frozenset(f"aten::{name}" for name in (
    "native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward", "_weight_norm_interface_backward",
    "convolution", "convolution_backward", "_trilinear", "_efficientzerotensor",
))  # fmt: skip
#: Gradients of normalisations, which a compiled region may take of a second computation of what was normalised, with other
#: roundings than those of the mean that was kept: what is nearly all mean is then shifted by its whole error.
NORM_GRADIENTS = frozenset(f"aten::native_{name}_norm_backward" for name in ("layer", "group", "batch"))
#: Extrema of which a kernel's order decides whose sign a zero has, where there are zeros of both among what it looks at.
#: Those along a dimension that tell a place as well are not among them: the first is promised.
EXTREMA = frozenset(f"aten::{name}" for name in ("amax", "amin", "max", "min", "aminmax"))
#: Operators that are extrema where they are told so.
EXTREMA_BY_NAME = frozenset(f"aten::{name}" for name in ("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"))
#: Gradients of a softmax, in which a row's kernel adds without a zero to begin with and a column's with one.
SOFTMAX_GRADIENTS = ("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
#: Parts of the names of writes that leave some elements as they are.
PARTIAL = ("index", "scatter", "put", "fill")
#: Sums that may come to an infinity, or to none, by the order of what they add.
SUMS = frozenset(f"aten::{name}" for name in ("sum", "mean", "nansum", "cumsum"))
#: Sums of products of three numbers, of which two are shared by many terms: only the third, an exact one too, moves each
#: term by itself, as its rounding does.
OF_THREE = frozenset(("aten::_trilinear",))
#: Operators whose way rounds more than their operands' last places can tell: |x|^2 + |y|^2 - 2xy for the distance of x and y.
DETOURS = ("aten::_euclidean_dist",)
#: Products, which a compiler may add to what follows without rounding them (fma); what may stand between, and the additions.
#: A product beyond the largest number is then no infinity, from which another would make NaN.
PRODUCTS_BETWEEN = frozenset(f"aten::{name}" for name in ("mul", "mul_", "neg", "clone"))
ADDITIONS = frozenset(f"aten::{name}" for name in ("add", "add_", "sub", "sub_", "rsub"))
#: Comparisons, of numbers that may be equal or not by rounding.
COMPARISONS = frozenset(f"aten::{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
#: Where twins are: eager's kernels for a GPU compute some functions of 64 bits with constants of 32.
HOME = torch.device("cpu")
#: Operators that pass numbers on as they are.
MOVING = frozenset(
    f"aten::{name}"
    for name in (
        "clone cat stack flip roll repeat index index_select gather where constant_pad_nd masked_fill select_backward "
        "slice_backward neg abs relu clamp clamp_min clamp_max maximum minimum fmax fmin amax amin max min sort topk "
        "masked_select take tril triu select_scatter slice_scatter diagonal_scatter contiguous copy copy_ fill_ zero_ "
        "masked_fill_ index_fill index_copy detach alias as_strided _reshape_copy new_zeros zeros_like unfold_backward"
    ).split()
)
