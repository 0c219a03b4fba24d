"""Attention with masks as models make them, and batches whose padding changes from call to call."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

__all__ = ["BATCH", "CONTENTS", "LENGTH", "MASKS", "Attention", "batch", "contents", "worst_of_threads"]

BATCH, LENGTH, HEADS, HEAD = 3, 24, 2, 16


def _triangle(x: torch.Tensor) -> torch.Tensor:
    place = torch.arange(x.shape[1], device=x.device)
    return place[None, None, None, :] <= place[None, None, :, None]


def padding(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return given[:, None, None, :].to(torch.bool).expand(-1, 1, x.shape[1], -1)


def causal(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return padding(x, given) & _triangle(x)


def picked(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """As some libraries pick each element by its place."""
    rows = torch.arange(given.shape[0], device=x.device)[:, None, None, None]
    columns = torch.arange(x.shape[1], device=x.device)[None, None, None, :]
    return given.bool()[rows, columns] & _triangle(x)


def additive(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    lowest = torch.finfo(x.dtype).min
    return ((1.0 - given[:, None, None, :].to(x.dtype)) * lowest).expand(-1, 1, x.shape[1], -1)


def additive_causal(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    return torch.zeros((), dtype=x.dtype, device=x.device).masked_fill(~causal(x, given), float("-inf"))


def hidden_is_true(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """As ``nn.MultiheadAttention`` takes it, from what is hidden."""
    hidden = given == 0
    return torch.zeros(hidden.shape, dtype=x.dtype, device=x.device).masked_fill_(hidden, float("-inf"))[:, None, None, :]


#: By name: the function that makes the mask, and the causal flag that a batch without padding comes to.
MASKS: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "padding": (padding, False),
    "causal": (causal, True),
    "picked": (picked, True),
    "additive": (additive, False),
    "additive_causal": (additive_causal, True),
    "hidden_is_true": (hidden_is_true, False),
}


class Attention(nn.Module):
    """Two layers of attention under one mask; rows that are wholly hidden give NaN in eager too, and are zeroed."""

    def __init__(self, mask: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.mask = MASKS[mask][0]
        self.dropout = dropout
        self.projections = nn.ModuleList(nn.Linear(HEADS * HEAD, 3 * HEADS * HEAD) for _ in range(2))

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        mask = self.mask(x, given)
        for projection in self.projections:
            q, k, v = projection(x).view(x.shape[0], x.shape[1], 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)
            x = x + out.transpose(1, 2).reshape(x.shape).nan_to_num()
        return x


#: Ways to make a batch's padding, in an order in which guesses fail three times; after the second it takes four answers,
#: each seen a call later, until the last two batches without padding are guessed again.
CONTENTS = ("none", "none", "left", "none", "none", "none", "right", "data", "row", *["none"] * 7, "hole")


def contents(given: torch.Tensor) -> Iterator[str]:
    """Fill the same tensor anew for each call, also behind the back of its version counter."""
    for how in CONTENTS:
        given.fill_(1)
        if how == "left":
            given[0, :5] = 0
        elif how == "right":
            given[1, -7:] = 0
        elif how == "data":
            given.data[2, -3:] = 0
        elif how == "row":
            given[1] = 0
        elif how == "hole":
            given[0, 7] = 0
        yield how


def batch(dtype: torch.dtype, given: torch.dtype, device: Any, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, length, HEADS * HEAD, dtype=dtype, device=device)
    return x, torch.ones(BATCH, length, dtype=given, device=device)


def worst_of_threads(compiled: nn.Module, model: nn.Module, device: torch.device, calls: int) -> float:
    """The largest error in three threads, on a GPU each on a stream of its own, whose batches are padded now and then."""
    worst: list[float] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        stream = torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else contextlib.nullcontext()
        with torch.no_grad(), stream:
            for _ in range(calls):
                x, padding = batch(torch.float32, torch.int64, device)
                if torch.rand((), generator=generator) < 0.4:
                    padding[0, :3] = 0
                worst.append(float((compiled(x, padding) - model(x, padding)).abs().max()))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 3 * calls, "a thread failed"
    return float("nan") if any(math.isnan(error) for error in worst) else max(worst)
