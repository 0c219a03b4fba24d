"""Whether abstract tensors have been written to, where their version counters tell."""

from __future__ import annotations

import math

import torch

__all__ = ["version_of"]


def version_of(tensor: torch.Tensor) -> float:
    """The version counter of a tensor. One of inference mode has none: it may have been written to at any time, so that
    it is true, as the counter of what was written, and is equal to no version, not even to itself."""
    return math.nan if tensor.is_inference() else tensor._version
