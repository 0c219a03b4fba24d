"""The aten overloads that stay single nodes in the prim dialect, per device."""

from __future__ import annotations

from inductor_gen.device.backends import backend
from prims.options import Options

__all__ = ["CUDNN_BACKWARD", "KERNELS", "claims"]

_COMMON = """
mm addmm bmm baddbmm convolution convolution_backward
adaptive_max_pool2d adaptive_max_pool3d
sort sort.stable topk kthvalue mode median median.dim nanmedian nanmedian.dim
_fft_r2c _fft_c2r _fft_c2c
linalg_inv_ex linalg_cholesky_ex linalg_qr linalg_eigh _linalg_svd _linalg_solve_ex _linalg_det linalg_lu_factor_ex
triangular_solve linalg_solve_triangular cholesky_solve
_cdist_forward grid_sampler_2d grid_sampler_3d
nonzero _unique2 unique_dim multinomial bincount repeat_interleave.Tensor searchsorted.Tensor bucketize.Tensor histc
_embedding_bag _ctc_loss
"""

# One kernel (or library call) each in PyTorch, with nothing that loops could do better.
_LINALG = """
cholesky cholesky_inverse linalg_eig _linalg_eigvals _linalg_eigh linalg_lstsq linalg_lu linalg_lu_solve lu_unpack
_linalg_slogdet linalg_matrix_exp linalg_pinv.atol_rtol_tensor linalg_householder_product ormqr geqrf
linalg_ldl_factor_ex linalg_ldl_solve _int_mm _scaled_mm _grouped_mm _weight_int8pack_mm
"""
_WHOLE = """
mkldnn_rnn_layer mkldnn_rnn_layer_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl
_thnn_fused_gru_cell _thnn_fused_gru_cell_backward _ctc_loss_backward
_embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward
_embedding_bag_per_sample_weights_backward segment_reduce _segment_reduce_backward
grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler cudnn_grid_sampler_backward
_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
adaptive_max_pool3d_backward max_unpool2d max_unpool3d
fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward
_cdist_backward _euclidean_dist _pdist_forward _pdist_backward multi_margin_loss multi_margin_loss_backward
multilabel_margin_loss_forward multilabel_margin_loss_backward
cummax cummin logcumsumexp index_reduce nonzero_static searchsorted.Scalar bucketize.Scalar unique_consecutive _unique
embedding_renorm histogram.bin_ct histogram.bins_tensor _histogramdd_bin_edges _histogramdd_from_bin_cts
_histogramdd_from_bin_tensors hash_tensor gcd lcm _chunk_cat mvlgamma
linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor
logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor
hann_window hann_window.periodic hamming_window hamming_window.periodic hamming_window.periodic_alpha
hamming_window.periodic_alpha_beta blackman_window blackman_window.periodic bartlett_window bartlett_window.periodic
kaiser_window kaiser_window.periodic kaiser_window.beta tril_indices triu_indices
"""
# Series and continued fractions whose length depends on the element.
_SPECIAL = """
i0 special_i0e special_i1 special_i1e polygamma igamma igammac frexp.Tensor special_erfcx special_ndtri
_standard_gamma_grad _dirichlet_grad
special_log_ndtr special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
special_spherical_bessel_j0 special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
special_modified_bessel_k1 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
"""
_POLYNOMIALS = """
special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h
special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p special_zeta
"""

# Eager's generators stay the source of random numbers, drawn in the graph's order.
_RANDOM = """
bernoulli bernoulli.p bernoulli.Tensor uniform normal_functional exponential geometric log_normal cauchy
random random.from random.to rand randn randint randint.low randperm rand_like randn_like
randint_like randint_like.low_dtype normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor normal.float_float
native_dropout rrelu_with_noise_functional poisson binomial _standard_gamma _sample_dirichlet
"""

#: Its plans hold for one layout of the result's gradient: eager's.
CUDNN_BACKWARD = "aten._scaled_dot_product_cudnn_attention_backward.default"


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in text.split())


#: Operators that are given their operands in eager's strides, as those that nobody claims are.
KERNELS = _names(_LINALG + _WHOLE + _SPECIAL + _POLYNOMIALS).union(
    f"aten.{name}.{scalar}" for name in _POLYNOMIALS.split()
    for scalar in (("self_scalar", "other_scalar") if name == "special_zeta" else ("x_scalar", "n_scalar"))
)  # fmt: skip

_OWN = KERNELS | {"complex"}


def claims(device_type: str, options: Options | None = None) -> frozenset[str]:
    """Names (``aten.mm.default``) of the overloads that this back end calls as they are on ``"cpu"`` or ``"cuda"``.
    The options' policies about bits leave out what is better computed by own kernels then, or add what is not.

    Everything else is to be decomposed into primitives, for which kernels are generated. ``"complex"`` stands for all
    calls on complex numbers that do not dissolve into real ones.

    Raises:
        Unsupported: no kernels are generated for such devices.
    """
    policies = () if options is None else options.policies
    found = _OWN | _names(_COMMON + _RANDOM) | frozenset(backend(device_type)["claims"]("deterministic" in policies))
    if "batch_invariant" in policies:  # products with own orders of their sums, and a softmax between them
        found = frozenset(name for name in found if "_attention" not in name)
    return found
