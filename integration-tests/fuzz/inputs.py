"""What programs are given: tensors of a seed, with every kind of layout."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["LAYOUTS", "make", "ramp"]

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "offset", "channels_last", "reversed_dims", "overlapping")


def values(sizes: Sequence[int], dtype: torch.dtype, generator: torch.Generator, exact: bool) -> torch.Tensor:
    """Contiguous random numbers: of a normal distribution, or multiples of 1/4 up to 4 (``exact``)."""
    if dtype == torch.bool:
        return torch.rand(sizes, generator=generator) > 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0 if dtype == torch.uint8 else -4, 6, sizes, generator=generator).to(dtype)
    if exact and not dtype.is_complex:
        return (torch.randint(-16, 17, sizes, generator=generator) / 4).to(dtype)
    return torch.randn(sizes, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(
        dtype
    )


def undisturbed(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Keep the making of inputs from a reference's shadows: they are what they are, in every run."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> torch.Tensor:
        with _disable_current_modes():
            return fn(*args, **kwargs)

    return inner


@undisturbed
def make(
    sizes: Sequence[int], dtype: str = "float32", layout: str = "contiguous", *, seed: int = 0, grad: bool = False,
    exact: bool = False, device: str = "cpu",
) -> torch.Tensor:  # fmt: skip
    """A random tensor, always the same for equal arguments; contiguous where its shape does not allow the layout."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    sizes = list(sizes)

    def base(shape: Sequence[int]) -> torch.Tensor:
        return values(shape, kind, generator, exact).to(device)

    if layout == "transposed" and len(sizes) >= 2:
        x = base(sizes[::-1]).permute(*range(len(sizes) - 1, -1, -1))
    elif layout == "reversed_dims" and len(sizes) >= 2:
        x = base([*sizes[1:], sizes[0]]).movedim(-1, 0)
    elif layout == "sliced" and sizes:
        x = base([*sizes[:-1], sizes[-1] * 2 + 1])[..., 1::2][..., : sizes[-1]]
    elif layout == "expanded" and sizes and sizes[0] > 0:
        x = base([1, *sizes[1:]]).expand(sizes)
    elif layout == "offset":
        x = base([3, *sizes])[1]
    elif layout == "channels_last" and len(sizes) == 4:
        x = base(sizes).to(memory_format=torch.channels_last)
    elif layout == "part":  # of a buffer that is longer by a number of its own
        pick = random.Random(seed)
        more = [(pick.choice((0, 0, 1, 3)), pick.choice((0, 1, 2, 5))) for _ in sizes]
        whole = base([low + size + high for size, (low, high) in zip(sizes, more, strict=True)])
        x = whole[tuple(slice(low, low + size) for size, (low, _) in zip(sizes, more, strict=True))]
    elif layout == "overlapping" and len(sizes) == 2 and min(sizes) > 0:
        x = base([sizes[0] + sizes[1]]).as_strided(sizes, (1, 1), 1)
    else:
        x = base(sizes)
    return x.requires_grad_() if grad and (kind.is_floating_point or kind.is_complex) else x


def ramp(like: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Weights for a program's products: exact multiples of 1/4 between -1.25 and 1.25."""
    count = math.prod(sizes)
    dtype = like.dtype if like.dtype.is_floating_point else torch.float32
    return ((torch.arange(count, device=like.device) * 7 % 11 - 5).to(dtype) / 4).reshape(sizes)
