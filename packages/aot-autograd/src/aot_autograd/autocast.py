"""Autocast around what has its casts in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["no_autocast"]


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
