"""Modes of the thread around what is differentiated while it is traced, and around what has its casts in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.autograd.graph import _engine_run_backward

__all__ = ["differentiate", "differentiating", "no_autocast"]


@contextmanager
def no_autocast() -> Iterator[None]:
    """Without autocast: a backward pass computes in the types that the forward has used; a graph's casts are in it."""
    enabled = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    try:
        for device in enabled:
            torch.set_autocast_enabled(device, False)
        yield
    finally:
        for device in enabled:
            torch.set_autocast_enabled(device, True)


@contextmanager
def differentiating() -> Iterator[None]:
    """Around autograd's run over abstract tensors: in this thread, without autocast, and without the look at each
    gradient for what is no number by which a program has anomalies detected (in its own passes it goes on)."""
    quiet = torch.autograd.set_detect_anomaly(False, torch.is_anomaly_check_nan_enabled())
    with torch.autograd.set_multithreading_enabled(False), no_autocast(), quiet:
        yield


def differentiate(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """What ``torch.autograd.grad(results, inputs, cotangents, allow_unused=True)`` gives. That imports symbolic
    shapes of PyTorch, and sympy, to compare each cotangent's shape with its result's: 0.3 s, for shapes that are equal.

    Raises:
        RuntimeError: as the autograd engine.
    """
    keep = create = False
    return _engine_run_backward(
        tuple(results), tuple(cotangents), keep, create, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
