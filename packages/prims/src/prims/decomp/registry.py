"""The table of decompositions: which ATen overload is written in terms of primitives, and how."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from prims.registry import Definitions

Decomposition = Callable[..., Any]
"""``(p, *args, **kwargs) -> value | tuple of values``: arguments as in the overload's schema."""

F = TypeVar("F", bound=Decomposition)

_TABLE: Definitions[Decomposition] = Definitions()
_BY_OVERLOAD: dict[torch._ops.OpOverload, Decomposition | None] = {}

#: Families (modules of this package) that are imported on use, with their operators; ``*`` stands for any ending.
RARE = {
    "attention": "_native_multi_head_attention _scaled_dot_product_* _transformer_encoder_layer_fwd",
    "backward": "_fused_rms_norm_backward batch_norm_backward diagonal_backward native_batch_norm_backward "
    "select_backward native_dropout_backward native_group_norm_backward native_layer_norm_backward slice_backward "
    "unfold_backward",
    "foreach": "_foreach_*",
    "losses": "binary_cross_entropy* huber_loss* kl_div l1_loss mse_loss* nll_loss* smooth_l1_loss* soft_margin_loss*",
    "optimisers": "_amp_* _fused_adam* _fused_sgd",
    "padding": "constant_pad_nd pad reflection_pad* replication_pad*",
    "pooling": "_adaptive_avg_pool* adaptive_avg_pool* avg_pool* max_pool*",
    "quantized": "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams fake_quantize_per_tensor_affine_cachemask",
    "resampling": "_upsample_* upsample_*",
    "sampling": "_unsafe_masked_index* adaptive_max_pool* affine_grid_generator bucketize grid_sampler_2d put "
    "searchsorted",
    "seeded": "probabilities random_normal random_uniform",
    "special": "_efficientzerotensor angle channel_shuffle isin ldexp linalg_cross logspace masked_scatter_backward "
    "nansum renorm special_entr special_xlog1py trace",
    "weights": "_cdist_forward _trilinear _weight_norm_*",
    "windows": "col2im im2col",
}
_FAMILIES = {operator: family for family, operators in RARE.items() for operator in operators.split()}
_BEGINNINGS = tuple((operator[:-1], family) for operator, family in _FAMILIES.items() if operator.endswith("*"))


def decomposition(*names: str) -> Callable[[F], F]:
    """Register a function as the decomposition of the named overloads (``"aten.gelu.default"``).

    Raises `ValueError` when a name already has one: two meanings for one op are a mistake.
    """

    def register(fn: F) -> F:
        for name in names:
            _TABLE.define(name, fn, "the decomposition of")
        _BY_OVERLOAD.clear()
        return fn

    return register


def get(op: torch._ops.OpOverload) -> Decomposition | None:
    """The decomposition of an overload, or None when there is none."""
    try:
        return _BY_OVERLOAD[op]
    except KeyError:
        found = _BY_OVERLOAD[op] = _find(str(op))
        return found


def _find(name: str) -> Decomposition | None:
    found = _TABLE.get(name)
    if found is None and (family := family_of(name)) is not None:
        importlib.import_module(f"prims.decomp.{family}")
        found = _TABLE.get(name)
    return found


def family_of(name: str) -> str | None:
    """The family of `RARE` that would define an overload, if any."""
    operator = name.split(".")[1]
    beginning = next((family for start, family in _BEGINNINGS if operator.startswith(start)), None)
    return _FAMILIES.get(operator, beginning)


def by_name(name: str) -> Decomposition:
    """The decomposition registered under a name; `KeyError` when there is none."""
    found = _find(name)
    if found is None:
        raise KeyError(name)
    return found


def covered() -> tuple[str, ...]:
    """Names of all overloads that have a decomposition, sorted."""
    for family in RARE:
        importlib.import_module(f"prims.decomp.{family}")
    return tuple(sorted(_TABLE))


def added_to() -> bool:
    """Whether somebody else's functions are among the decompositions, which this package's text does not tell of."""
    return any(not str(getattr(fn, "__module__", "")).startswith("prims.") for fn in _TABLE.values())


def overload(name: str) -> torch._ops.OpOverload:
    """The overload object of a name such as ``"aten.mm.default"``."""
    namespace, packet, variant = name.split(".")
    op: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), variant)
    return op


def call(p: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Use another overload inside a decomposition: one node where the handler's backend claims it or
    where it has no decomposition, its primitives otherwise.
    """
    fn = _find(name)
    if fn is None or name in p.claims:
        return p.aten(overload(name), *args, **kwargs)
    return fn(p, *args, **kwargs)
