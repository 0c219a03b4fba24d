"""Calls of overloads that PyTorch's operator database never makes at this level."""

from __future__ import annotations

from typing import Any

import torch

Sample = tuple[tuple[Any, ...], dict[str, Any]]

SAMPLES: dict[str, list[Sample]] = {}


def add(name: str, *args: Any, **kwargs: Any) -> None:
    SAMPLES.setdefault(name, []).append((args, kwargs))


def make() -> dict[str, list[Sample]]:
    """Overload name (``aten.relu6.default``) to sample arguments."""
    if not SAMPLES:
        torch.manual_seed(1)
        for build in (_elementwise, _shapes, _normalisation, _attention, _foreach, _optimisers, _rest):
            build()
    return SAMPLES


def f(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def i(*shape: int, low: int = -9, high: int = 9) -> torch.Tensor:
    return torch.randint(low, high, shape)


def b(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5


def _elementwise() -> None:
    for name in ("and", "or", "xor"):
        add(f"aten.bitwise_{name}.Scalar", i(3, 4), 5)
        add(f"aten.bitwise_{name}.Scalar", b(3, 4), True)
        add(f"aten.bitwise_{name}.Scalar_Tensor", 6, i(3, 4))
        add(f"aten.bitwise_{name}.Tensor", b(3, 1), b(4))
    for side in ("left", "right"):
        add(f"aten.bitwise_{side}_shift.Scalar_Tensor", 6, i(3, 4, low=0, high=5))
        add(f"aten.bitwise_{side}_shift.Tensor_Scalar", i(3, 4), 2)
        add(f"aten.bitwise_{side}_shift.Tensor", i(3, 4), i(4, low=0, high=5))
    for name in ("__lshift__", "__rshift__"):
        add(f"aten.{name}.Scalar", i(5), 3)
        add(f"aten.{name}.Tensor", i(5), i(5, low=0, high=4))
    for mode in (None, "trunc", "floor"):
        add("aten.div.Scalar_mode", f(5), 2, rounding_mode=mode)
        add("aten.div.Scalar_mode", i(5), -2, rounding_mode=mode)
        add("aten.div.Tensor_mode", f(5, dtype=torch.bfloat16), f(3, 5, dtype=torch.bfloat16), rounding_mode=mode)
    add("aten.floor_divide.Scalar", i(5), 3)
    add("aten.floor_divide.Scalar", f(5), -0.7)
    add("aten.fmod.Scalar", f(5), 0.7)
    add("aten.remainder.Scalar_Tensor", 5, f(5))
    add("aten.isfinite.default", torch.tensor([1.0, torch.inf, -torch.inf, torch.nan]))
    add("aten.isfinite.default", i(3))
    add("aten.positive.default", f(3))
    add("aten.relu6.default", 5 * f(9))
    add("aten.square.default", f(9))
    add("aten.square.default", i(9))
    add("aten.log_sigmoid.default", f(9))
    add("aten.kl_div.default", f(3, 4), f(3, 4).softmax(1), 1)
    add("aten.kl_div.default", f(3, 4), f(3, 4), 2, log_target=True)
    for reduction in range(3):
        add("aten.l1_loss.default", f(3, 4), f(3, 4), reduction)
    add("aten.clip.default", f(9), -0.5, 0.5)
    add("aten.clip.Tensor", f(9), f(9), None)
    add("aten.clamp_max.default", f(9), 0.3)
    add("aten.clamp_max.default", i(9), 1.5)
    add("aten.where.Scalar", b(5), 1.0, 2)
    add("aten.where.Scalar", b(5), 1, 2)
    add("aten.where.ScalarOther", b(5), f(5), 2)
    add("aten.where.ScalarSelf", b(5), 2.5, i(5))
    add("aten.xlogy.Scalar_Other", f(5), 2.0)
    add("aten.special_xlog1py.self_scalar", 2.0, torch.tensor([0.0, torch.nan, -1.0, 3.0]))
    add("aten.special_xlog1py.other_scalar", torch.tensor([0.0, torch.nan, -1.0, 3.0]), 2.0)
    add("aten.special_xlog1py.other_scalar", torch.tensor([0, 2]), 3)
    add("aten.isin.Tensor_Scalar", torch.tensor([[0, 2], [5, 2]]), 2)
    add("aten.isin.Tensor_Scalar", torch.tensor([0, 2]), 2.5, invert=True)
    add("aten.isin.Scalar_Tensor", 2, torch.tensor([0.5, 2.0]))
    add("aten.isin.Scalar_Tensor", 2.5, torch.tensor([], dtype=torch.int64))
    add("aten.xlogy.Scalar_Self", 0.0, f(5).abs())
    add("aten.xlogy.Scalar_Self", 2.0, torch.tensor([0.0, torch.nan, 1.0]))
    add("aten.add.Tensor", f(3, 4, dtype=torch.bfloat16), torch.tensor(0.3), alpha=2)
    add("aten.add.Tensor", i(3), f(dtype=torch.float64))
    add("aten.mul.Tensor", i(3), 2.5)
    add("aten.mul.Tensor", b(3), 2)
    add("aten.lt.Scalar", torch.tensor([0.1, 0.2], dtype=torch.bfloat16), 0.1)
    add("aten.pow.Tensor_Scalar", f(6, dtype=torch.float16).abs(), 0.3)


def _shapes() -> None:
    for size in ([2, 3, 5, 7], [2, 3, 1, 4], [1, 2, 4, 5, 6]):
        for align in (False, True):
            add("aten.affine_grid_generator.default", f(size[0], len(size) - 2, len(size) - 1), size, align)
    add("aten.affine_grid_generator.default", f(2, 2, 3, dtype=torch.bfloat16), [2, 1, 4, 8], False)
    x = f(2, 3, 4)
    add("aten._reshape_alias.default", x, [6, 4], [4, 1])
    add("aten._reshape_copy.default", x, [4, -1])
    add("aten.reshape.default", x, [-1])
    add("aten.broadcast_tensors.default", [f(3, 1), f(4), f()])
    add("aten.chunk.default", x, 2, 1)
    add("aten.chunk.default", f(7), 4)
    add("aten.unsafe_chunk.default", f(7), 3)
    for name in ("concat", "concatenate", "cat"):
        add(f"aten.{name}.default", [f(2, 3), i(1, 3)], 0)
    add("aten.cat.default", [f(0), f(2, 3)], 1)
    add("aten.contiguous.default", x.transpose(0, 2))
    add("aten.copy.default", f(3, 4), i(4))
    add("aten.detach_copy.default", x)
    add("aten.expand_as.default", f(3, 1), f(2, 3, 4))
    add("aten.fill.Tensor", i(3), torch.tensor(2.7))
    add("aten.flatten.using_ints", x, 1, 2)
    add("aten.flatten.using_ints", f())
    add("aten.lift.default", x)
    add("aten.lift_fresh_copy.default", x)
    add("aten.movedim.int", x, 0, 2)
    add("aten.narrow.default", x, 1, -2, 2)
    add("aten.numpy_T.default", x)
    add("aten.pad.default", x, [1, 2])
    add("aten.pad.default", x, [1, 2], "reflect")
    add("aten.pad.default", x, [5, 1], "replicate")
    add("aten.pad.default", x, [1, 2], "circular")
    add("aten.pad.default", x, [-1, 2, 3, 0], "constant", 1.5)
    add("aten.repeat_interleave.self_int", x, 3, 1)
    add("aten.repeat_interleave.self_int", x, 2)
    add("aten.resolve_conj.default", x)
    add("aten.resolve_neg.default", x)
    add("aten.select_copy.int", x, 1, -1)
    add("aten.slice_copy.Tensor", x, 2, 1, 100, 2)
    add("aten.slice.Tensor", x, 2, -3, -1)
    add("aten.slice.Tensor", x, 1, 2, 1)
    add("aten.split_copy.Tensor", x, 2, 2)
    add("aten.squeeze_copy.dims", f(1, 3, 1), [0, 1])
    add("aten.to.dtype", x, torch.int32)
    add("aten.unsafe_split_with_sizes.default", f(7), [3, 0, 4])
    add("aten.view.dtype", x, torch.int32)
    add("aten.zero.default", x)
    for step in (1, 2):
        add("aten.slice_scatter.default", x, f(2, 3, 2)[..., : 4 // 2], 2, 0, 4 if step == 2 else 2, step)
    add("aten.slice_backward.default", f(2, 2, 4), [2, 3, 4], 1, 0, 9, 2)
    add("aten.roll.default", x, [1, -5], [0, 2])


def _normalisation() -> None:
    x = f(4, 3, 5)
    w, bias, mean, var = f(3), f(3), f(3), f(3).abs()
    half = torch.bfloat16
    add("aten._batch_norm_no_update.default", x, w, bias, mean, var, 0.1, 1e-5)
    add("aten._native_batch_norm_legit_no_training.default", x, w, bias, mean, var, 0.1, 1e-5)
    add("aten._native_batch_norm_legit_no_training.default", x, None, None, mean, var, 0.1, 1e-5)
    add("aten._native_batch_norm_legit_no_training.default", x.to(half), w, bias, mean, var, 0.1, 1e-5)
    for training in (True, False):
        add("aten._native_batch_norm_legit_functional.default", x, w, bias, mean, var, training, 0.1, 1e-5)
    add("aten._batch_norm_with_update_functional.default", x, w, bias, mean, var, 0.1, 1e-5)
    add("aten._fused_rms_norm.default", f(4, 8), [8], f(8), None)
    add("aten._fused_rms_norm.default", f(4, 8), [8], None, 1e-3)
    add("aten.layer_norm.default", f(4, 8), [8], f(8), f(8))
    add("aten.native_layer_norm.default", f(4, 8, dtype=half), [8], f(8, dtype=half), f(8, dtype=half), 1e-5)
    add("aten.native_layer_norm.default", f(4, 8, dtype=half), [8], f(8), f(8), 1e-5)
    add("aten.native_layer_norm.default", 1e2 + f(4, 64), [64], None, None, 1e-5)
    add("aten.var_mean.correction", 1e2 + f(4, 64), [1], correction=1)
    add("aten.norm.Scalar", f(3, 4), 3)
    add("aten.norm.ScalarOpt_dim_dtype", f(3, 4), None, [0], False, dtype=torch.float64)
    add("aten.softmax.int", f(3, 4), 1)
    add("aten.log_softmax.int", i(3, 4), 1, torch.float32)
    add("aten._softmax.default", torch.tensor([[1e4, -1e4, 0.0], [-torch.inf, 1.0, 2.0]]), 1, False)
    add("aten._safe_softmax.default", torch.tensor([[-torch.inf, -torch.inf], [0.0, 1.0]]), 1)


def _attention() -> None:
    x = f(2, 6, 32)
    qkv, proj = (f(96, 32), f(96)), (f(32, 32), f(32))
    source = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    for mask, kind in ((None, None), (source, 0), (padding, 1)):
        for need in (False, True):
            add(
                "aten._native_multi_head_attention.default",
                *(x, x, x, 32, 4, *qkv, *proj, mask, need, True, kind),
            )
        for gelu in (False, True):
            layer = (*qkv, *proj, gelu, not gelu, 1e-5, f(32), f(32), f(32), f(32), f(64, 32), f(64), f(32, 64), f(32))
            add("aten._transformer_encoder_layer_fwd.default", x, 32, 4, *layer, mask, kind)
    q, k = f(2, 4, 5, 8), f(2, 4, 7, 8)
    name = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    add(name, q, k, k)
    add(name, q, q, q, 0.0, True)
    add(name, q, k, k, attn_mask=f(5, 7), scale=0.3)
    add(name, q, k, k, attn_mask=torch.where(b(2, 1, 5, 7), 0.0, -torch.inf))
    add("aten.linear.default", f(2, 3, 8), f(5, 8), f(5))
    add("aten.linear.default", f(8), f(5, 8))
    for left, right in (((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2))):
        add("aten.matmul.default", f(*left), f(*right))


def _foreach() -> None:
    def tensors() -> list[torch.Tensor]:
        return [f(3).abs() * 0.4 + 0.1, f(2, 2).abs() * 0.4 + 0.1]

    for op in FOREACH_UNARY:
        add(f"aten._foreach_{op}.default", tensors())
    for op in ("add", "sub", "mul", "div", "clamp_min", "clamp_max", "maximum", "minimum", "pow"):
        add(f"aten._foreach_{op}.Scalar", tensors(), 0.3)
        add(f"aten._foreach_{op}.ScalarList", tensors(), [0.3, 2.0])
        add(f"aten._foreach_{op}.List", tensors(), tensors())
    for op in ("add", "mul", "div"):
        add(f"aten._foreach_{op}.Tensor", tensors(), torch.tensor(0.7))
    for op in ("addcmul", "addcdiv"):
        add(f"aten._foreach_{op}.Scalar", tensors(), tensors(), tensors(), 0.5)
        add(f"aten._foreach_{op}.ScalarList", tensors(), tensors(), tensors(), [0.5, 2.0])
    add("aten._foreach_lerp.Scalar", tensors(), tensors(), 0.1)
    add("aten._foreach_lerp.List", tensors(), tensors(), tensors())
    add("aten._foreach_lerp.ScalarList", tensors(), tensors(), [0.1, 0.7])
    add("aten._foreach_max.default", tensors())
    add("aten._foreach_clone.default", [x.t() for x in (f(3, 2), f(2, 2))])
    add("aten._foreach_mm.default", [f(3, 2), f(2, 2)], [f(2, 4), f(2, 3)])
    for order in (0, 1, 2, 2.5, -1, float("inf")):
        add("aten._foreach_powsum.Scalar", tensors(), order)
    add("aten._foreach_norm.Scalar", tensors())
    add("aten._foreach_norm.Scalar", tensors(), 1)
    add("aten._foreach_pow.ScalarAndTensor", 2.0, tensors())
    add("aten._foreach_zero.default", tensors())
    add("aten._foreach_copy.default", tensors(), tensors())


def _optimisers() -> None:
    def tensors(scale: float = 1.0) -> list[torch.Tensor]:
        return [scale * f(5), scale * f(2, 3)]

    def adam(name: str, lr: Any, amsgrad: bool, maximize: bool, step: float) -> None:
        steps = [torch.tensor(step), torch.tensor(step)]
        squares = [t.square() for t in tensors(0.1)]
        largest = [t.square() for t in tensors(0.1)] if amsgrad else []
        lists = (tensors(), tensors(), tensors(0.1), squares, largest, steps)
        rates = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
        add(name, *lists, lr=lr, amsgrad=amsgrad, maximize=maximize, **rates)

    for name in ("_fused_adam", "_fused_adamw"):
        adam(f"aten.{name}.default", 1e-2, False, False, 1.0)
        adam(f"aten.{name}.default", 1e-2, True, True, 1000.0)
        adam(f"aten.{name}.tensor_lr", torch.tensor(1e-2), False, False, 3.0)
    for first, nesterov, lr in ((True, False, 0.1), (False, True, 0.1), (False, False, torch.tensor(0.1))):
        add(
            "aten._fused_sgd.tensor_lr" if isinstance(lr, torch.Tensor) else "aten._fused_sgd.default",
            *(tensors(), tensors(), tensors()),
            **{"weight_decay": 0.01, "momentum": 0.9, "lr": lr, "dampening": 0.0, "nesterov": nesterov},
            **{"maximize": False, "is_first_step": first},
        )


FOREACH_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal "
    "round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()


def _rest() -> None:
    for kind in ("uniform", "normal"):
        options = {"dtype": torch.float32, "device": torch.device("cpu")}
        add(f"quintet.random_{kind}.default", [3, 5], torch.tensor(7), 4, **options)
    add("aten._weight_norm_interface.default", f(4, 3, 2), f(4, 1, 1))
    add("aten._weight_norm_interface.default", f(4, 3, 2), f(2), 2)
    norms = torch.rand(4, 1, 1) + 1
    add("aten._weight_norm_interface_backward.default", f(4, 3, 2), f(4, 3, 2), f(4, 1, 1), norms, 0)
    add("aten.conj_physical.default", f(3))
    add("aten.put.default", f(3, 4), i(2, 3, low=-12, high=12), f(2, 3), True)
    for value in (torch.nan, torch.inf, 0.5):
        boundaries = torch.tensor([0.0, 0.5, 0.5, 1.0])
        add("aten.bucketize.Tensor", torch.tensor([value]), boundaries, right=True, out_int32=True)
        add("aten.searchsorted.Tensor", boundaries, torch.tensor([[value]]), side="left")
    add("aten._unsafe_index.Tensor", f(4, 5, 6), [None, i(2, 3, low=0, high=5), i(3, low=0, high=6)])
    add("aten.index.Tensor", f(4, 5, 6), [i(3, low=-4, high=4), None, i(2, 3, low=0, high=6) % 4])
    add("aten._unsafe_index_put.default", f(4, 5), [i(3, low=0, high=4)], f(3, 5), True)
    add("aten.index_put.default", f(4, 5), [b(4, 5)], torch.tensor(2.0))
    add("aten.one_hot.default", i(3, 4, low=0, high=5), 5)
    add("quintet.linspace.default", -1.0, 2.5, 7, dtype=torch.float64, device=torch.device("cpu"))
    add("aten.scatter.value_reduce", f(4, 5), 0, i(2, 5, low=0, high=4), 2.0, reduce="add")
    add("aten.scatter.reduce", f(4, 5), 1, i(4, 3, low=0, high=5), f(4, 3), reduce="multiply")
    add("aten.take_along_dim.default", f(4, 5), i(4, 2, low=0, high=5), 1)
    add("aten.take_along_dim.default", f(4, 5), i(3, low=0, high=20))
    add("aten.value_selecting_reduction_backward.default", f(3), 1, i(3, low=0, high=4), [3, 4], False)
    add("aten.adaptive_avg_pool1d.default", f(2, 3, 10), [4])
    add("aten._adaptive_avg_pool2d.default", f(2, 3, 10, 7), [4, 7])
    add("aten._adaptive_avg_pool2d.default", f(2, 3, 8, 8), [2, 1])
    add("aten.avg_pool1d.default", f(2, 3, 10), [3], [2], [1], True)
    add("aten.avg_pool2d.default", f(2, 3, 9, 9), [3, 2], [2, 2], [1, 1], True, False)
    x = f(1, 2, 9, 9)
    add("aten.max_pool2d_with_indices.default", x, [3, 3], [2, 2], [1, 1])
    add("aten.max_pool2d_with_indices.default", x, [2, 2], [2, 2], [0, 0], [2, 2], True)
    add("aten._upsample_nearest_exact3d.default", f(1, 2, 3, 3, 3), [5, 4, 7])
    size = [1, 2, 3, 3, 3]
    add("aten._upsample_nearest_exact3d_backward.default", f(1, 2, 5, 4, 7), [5, 4, 7], size)
    add("aten.upsample_nearest2d.default", f(1, 2, 4, 4), [8, 12], 2.0, 3.0)
    add("aten.upsample_bilinear2d.default", f(1, 2, 4, 5), [7, 3], False)
    add("aten.upsample_bicubic2d.default", f(1, 2, 4, 5), [7, 3], True)
