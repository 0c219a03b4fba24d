"""Operators of a program's own, for tests of stored graphs; defined by importing this."""

from __future__ import annotations

import torch

__all__: list[str] = []


@torch.library.custom_op("storedops::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("storedops::add_one_", mutates_args=("x",))
def add_one_(x: torch.Tensor) -> None:
    x += 1
