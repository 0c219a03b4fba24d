"""What the forms' tables of whole calls share: which calls can be written at all, and how arguments are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

__all__ = ["Calls", "each", "is_lstm", "of_floats", "sorts"]


class Calls:
    """Rows of overloads that stay one call.

    Attributes:
        rows: overload -> ``fn(builder, *arguments)``.
        takes: overload -> whether a node's call can be written.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Callable[..., Any]] = {}
        self.takes: dict[str, Callable[[torch.fx.Node], bool]] = {}

    def __call__(self, *names: str, takes: Callable[[torch.fx.Node], bool]) -> Callable[[Any], Any]:
        """Register a row for overloads, for the calls that ``takes`` says."""

        def register(fn: Callable[..., Any]) -> Any:
            for name in names:
                self.rows[name], self.takes[name] = fn, takes
            return fn

        return register


def each(values: Sequence[int], count: int) -> list[int]:
    """One number for each dimension, where one may stand for all."""
    return [int(v) for v in values] * (count if len(values) == 1 else 1)


def of_floats(node: torch.fx.Node) -> bool:
    """Is the first operand one of floats?"""
    return bool(node.args[0].meta["spec"].dtype.is_floating_point)  # type: ignore[union-attr]


def sorts(node: torch.fx.Node) -> bool:
    """Is there a dimension to sort along, of numbers?"""
    spec = node.args[0].meta["spec"]  # type: ignore[union-attr]
    return bool(spec.ndim and spec.dtype != torch.bool)


_BATCH_SIZES, _MODE, _LSTM = 8, 9, 2


def is_lstm(node: torch.fx.Node) -> bool:
    """Is a call of ``aten.mkldnn_rnn_layer`` an LSTM over sequences of one length? ``train`` asks for what a backward
    pass reads, of which there is none."""
    plain = not node.args[_BATCH_SIZES] and node.args[_MODE] == _LSTM
    return plain and node.args[0].meta["spec"].ndim == 3 and of_floats(node)  # type: ignore[union-attr]
