"""The aten overloads that stay single nodes in the prim dialect, per device."""

from __future__ import annotations

__all__ = ["FUSED_ATTENTION", "claims"]

_COMMON = """
mm addmm bmm baddbmm convolution convolution_backward
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
adaptive_max_pool2d adaptive_max_pool3d
sort sort.stable topk kthvalue mode median median.dim nanmedian nanmedian.dim
_fft_r2c _fft_c2r _fft_c2c
linalg_inv_ex linalg_cholesky_ex linalg_qr linalg_eigh _linalg_svd _linalg_solve_ex _linalg_det linalg_lu_factor_ex
triangular_solve linalg_solve_triangular cholesky_solve
_cdist_forward grid_sampler_2d grid_sampler_3d
nonzero _unique2 unique_dim multinomial bincount searchsorted.Tensor bucketize.Tensor histc
_embedding_bag _ctc_loss
"""

# Eager's generators stay the source of random numbers, drawn in the graph's order.
_RANDOM = """
bernoulli bernoulli.p bernoulli.Tensor uniform normal_functional exponential geometric log_normal cauchy
random random.from random.to rand randn randint randint.low randperm rand_like randn_like
randint_like randint_like.low_dtype normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor normal.float_float
native_dropout rrelu_with_noise_functional
"""

_CPU = """
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
"""

_CUDA = """
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
"""

#: The GPU's fused attention kernels, forward and backward.
FUSED_ATTENTION = frozenset(f"aten.{name}.default" for name in _CUDA.split())


def claims(device_type: str) -> frozenset[str]:
    """Names (``aten.mm.default``) of the overloads that this back end calls as they are on ``"cpu"`` or ``"cuda"``.

    Everything else is to be decomposed into primitives, for which kernels are generated.
    """
    text = _COMMON + _RANDOM + (_CUDA if device_type == "cuda" else _CPU)
    return frozenset(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in text.split())
