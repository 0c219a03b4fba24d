"""``tril_indices``, ``triu_indices`` of symbolic sizes and ``combinations``: how many there are follows from the sizes.

PyTorch's bindings take ints only, and the last looks at a mask; capture writes them as Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["combinations_of_two", "tril_indices", "triu_indices"]


def tril_indices(rows: int, columns: int, offset: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Row and column of each element on and below a diagonal, row by row."""
    counts = (torch.arange(rows, device=device) + (offset + 1)).clamp(0, columns)
    first = 1 + offset if offset > 0 else 1 if rows + offset > 0 else 0  # elements of the first row that has any
    first, last = min(columns, first), max(0, min(columns, rows + offset))
    sloping = last - first + 1
    whole = max(0, min(rows, rows + offset)) - sloping  # rows that have all their elements
    total = (first + last) * sloping // 2 + max(0, whole) * columns
    return _listed(counts, torch.zeros_like(counts), total, dtype)


def triu_indices(rows: int, columns: int, offset: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Row and column of each element on and above a diagonal, row by row."""
    skipped = (torch.arange(rows, device=device) + offset).clamp(0, columns)
    below = tril_indices(rows, columns, offset - 1, dtype, device)
    return _listed(columns - skipped, skipped, rows * columns - below.shape[1], dtype)


def _listed(counts: torch.Tensor, begins: torch.Tensor, total: int, dtype: torch.dtype) -> torch.Tensor:
    """The elements of rows of so many elements, from so many columns on."""
    ends = counts.cumsum(0)
    place = torch.arange(total, device=counts.device)
    row = torch.searchsorted(ends, place, right=True)
    column = place - (ends - counts)[row] + begins[row]
    return torch.stack([row, column]).to(dtype)


def combinations_of_two(input: torch.Tensor, offset: int) -> torch.Tensor:
    """Pairs of elements: of different ones (``offset`` 1), or also of each with itself (0)."""
    row, column = torch.triu_indices(len(input), len(input), offset, device=input.device)
    # ``gather`` keeps its input for the backward pass as the operator does: writes to it before then are noticed.
    return torch.stack([input.gather(0, row), input.gather(0, column)], 1)


_OPTIONS = ("dtype", "device", "layout")


def _indices(fn: Any, polyfill: Any) -> None:
    @builtin(fn)
    def handle(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        kwargs = tx.devices.named(fn, kwargs)
        given = dict(zip(("row", "col", "offset"), args, strict=False)) | kwargs
        given.setdefault("offset", ConstantValue(0))
        sizes = [given.get(name, ConstantValue(None)).realize() for name in ("row", "col", "offset")]
        options = {name: given[name].realize().const() for name in _OPTIONS if name in given}
        plain = len(given) == 3 + len(options) and all(size.pytype is int for size in sizes)
        plain = plain and options.get("layout") in (None, torch.strided) and _is_positive(sizes)
        if not plain or not any(isinstance(size, SymValue) for size in sizes[:2]):
            return tx.graph_call(fn, args, kwargs)
        dtype = torch.int64 if options.get("dtype") is None else options["dtype"]
        sizes[2] = ConstantValue(sizes[2].const())
        return tx.inline(polyfill, *sizes, ConstantValue(dtype), ConstantValue(options.get("device")))


def _is_positive(sizes: list[Value]) -> bool:
    return all(bool((s.example if isinstance(s, SymValue) else s.const()) > 0) for s in sizes[:2])


_indices(torch.tril_indices, tril_indices)
_indices(torch.triu_indices, triu_indices)


@builtin(torch.combinations)
def _combinations(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``combinations(input, r=2, with_replacement=False)``; others than pairs are eager's."""
    given = dict(zip(("input", "r", "with_replacement"), args, strict=False)) | kwargs
    tensor = given.pop("input").realize() if "input" in given else None
    known = {name: value.realize().const() for name, value in given.items()}
    if not isinstance(tensor, TensorValue) or tensor.example.dim() != 1 or known.get("r", 2) != 2:
        return tx.graph_call(torch.combinations, args, kwargs)
    return tx.inline(combinations_of_two, tensor, ConstantValue(0 if known.get("with_replacement") else 1))
