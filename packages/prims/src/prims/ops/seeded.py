"""Random numbers as functions of a seed, as overloads of the aten dialect.

ATen's random operators draw from a generator. ``quintet::random_uniform`` and ``quintet::random_normal`` are the
primitives of those names as dispatcher operators, so that an aten-dialect graph can hold them: the seed is an input
of kind ``rng_seed``, and a graph that computes a value again from the same seed and offset gets the same numbers.

``quintet::probabilities`` is what ``bernoulli`` asks of the probabilities that it is given, by itself.
"""

from __future__ import annotations

from typing import Any

import torch

from prims.ops.row import TABLE
from prims.registry import define_operator
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec


def _kernel(name: str) -> Any:
    def run(size: Any, seed: torch.Tensor, offset: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        made: torch.Tensor = TABLE[name](tuple(size), seed, offset, dtype, device)
        return made

    return run


for _name in ("random_uniform", "random_normal"):
    define_operator(
        f"{_name}(SymInt[] size, Tensor seed, SymInt offset, *, ScalarType dtype, Device device) -> Tensor",
        _kernel(_name),
    )


@meta_rule("quintet.random_uniform.default", "quintet.random_normal.default")
def random(size: Any, seed: TensorSpec, offset: Any, *, dtype: torch.dtype, device: torch.device) -> TensorSpec:
    return TensorSpec(size, dtype, device)


def _probabilities(x: torch.Tensor) -> torch.Tensor:
    """A copy of ``x``, whose elements are between 0 and 1.

    Raises:
        RuntimeError: one is not; on the CPU, with eager's words. On a GPU it is a device-side assertion, as in eager.
    """
    if x.device.type == "cpu":
        torch.bernoulli(x, generator=torch.Generator())
    else:
        torch._assert_async(((x >= 0) & (x <= 1)).all())
    return x.clone()


define_operator("probabilities(Tensor self) -> Tensor", _probabilities)
