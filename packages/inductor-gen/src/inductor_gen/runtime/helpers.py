"""What the generated function that runs a graph calls, beside kernels and operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_gen.extern.attention import as_the_forward, note
from inductor_gen.unit import BAD_DIVISOR, BAD_INDEX
from prims.errors import InvalidData
from prims.spec.expr import FLOAT_BINARY, FLOAT_UNARY, bits_of_float

__all__ = ["HELPERS", "function_of_text", "refuse", "relayout", "retyped"]


def refuse(bad: int) -> None:
    """Say what a kernel met in the program's data.

    Raises:
        InvalidData: always.
    """
    what = [text for bit, text in _REFUSED.items() if bad & bit]
    raise InvalidData(f"a generated kernel met {' and '.join(what)}")


_REFUSED = {BAD_INDEX: "an index out of range", BAD_DIVISOR: "an integer division by zero"}


def retyped(
    x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A tensor of another dtype in the same memory; ``offset`` counts its elements."""
    return torch.empty(0, dtype=dtype, device=x.device).set_(x.untyped_storage(), offset, shape, strides)


def relayout(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with the strides that were planned, copied unless they differ in dimensions of size 1 only."""
    if all(a == b or n <= 1 for a, b, n in zip(x.stride(), strides, x.shape, strict=True)) or not x.numel():
        return x
    once = x
    for dim, step in enumerate(strides):
        if step == 0:  # all along it is one element
            once = once.narrow(dim, 0, 1)
    return torch.empty_strided(once.shape, strides, dtype=x.dtype, device=x.device).copy_(once).expand(x.shape)


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


#: The names that the text of such a function finds, whatever the graph.
HELPERS: dict[str, Any] = {
    "__name__": "inductor_gen.runtime.wrapper",  # by which capture knows that this is not the user's code
    "torch": torch, "empty_strided": torch.empty_strided, "as_strided": torch.as_strided, "retyped": retyped,
    "refuse": refuse, "pack_float": bits_of_float, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "ite": _chosen, "relayout": relayout, "note": note, "as_the_forward": as_the_forward, **FLOAT_UNARY,
    **FLOAT_BINARY,
}  # fmt: skip


def function_of_text(text: str, space: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
    """The function ``call`` of a text, which finds the names of ``space``."""
    exec(compile(text, "<quintet wrapper>", "exec"), space)
    return space["call"]  # type: ignore[no-any-return]
