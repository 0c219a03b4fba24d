"""The random numbers of a compiled call, drawn again while its program runs eagerly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from aot_autograd.trace import seeded
from prims.spec import TensorSpec, spec_of

__all__ = ["Redraw"]


class Redraw(TorchDispatchMode):
    """Random operators as the functions of a seed that the tracer made of them (:mod:`aot_autograd.trace.seeded`).

    The program makes its draws in the order in which they were traced, so that each has its counters again.

    Args:
        seeds: by device, the seed that the compiled call has drawn.
    """

    seeded = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the base class wraps the handler so that its first call imports torch._dynamo.
        return False

    def __init__(self, seeds: Mapping[torch.device, torch.Tensor]) -> None:
        super().__init__()
        self._seeds = seeds
        self._counter = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = seeded.HANDLERS.get(func)
        if handler is not None:
            result = handler(self, func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """A tensor's metadata."""
        return spec_of(tensor)

    def seed(self, device: torch.device) -> torch.Tensor:
        """The call's seed for random numbers on ``device``."""
        return self._seeds[device]

    def counter_of(self, func: OpOverload, args: Any, kwargs: dict[str, Any], count: int) -> int:
        """The first Philox counter of a draw that takes ``count`` of them."""
        first = self._counter
        self._counter += count
        return first

    def emit(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> tuple[torch.Tensor, TensorSpec]:
        """A call's result with its metadata."""
        result = func(*args, **kwargs)
        return result, spec_of(result)

    def pure(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call's result."""
        return func(*args, **kwargs)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of a tensor: itself."""
        return tensor

    def wrap(self, value: torch.Tensor, spec: TensorSpec, wanted: TensorSpec) -> torch.Tensor:
        """The value in the layout that eager gives it."""
        if value.stride() == tuple(wanted.strides):
            return value
        made = torch.empty_strided(wanted.shape, wanted.strides, dtype=wanted.dtype, device=wanted.device)
        return made.copy_(value)

    def write(self, target: torch.Tensor, value: torch.Tensor, spec: TensorSpec) -> None:
        """Give ``target`` the value."""
        target.copy_(value)
