"""Unbacked symbols: numbers and sizes that only the data of a call tells.

The symbol stands in the metadata of the call that makes it (``.item()``, ``nonzero``), which binds it when the graph
runs. It has a range and no hint: a question about it that neither its range nor a recorded fact decides raises
:class:`DataDependentError`, and nothing is ever guarded. Ranges of sizes begin at 0: no rule may take such a size to be
two or more, as it may of one that a call has shown.

They are made only inside :func:`making_symbols`, by a caller that will have them bound; elsewhere the same calls raise
:class:`DataDependentError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from prims.errors import DataDependentError
from prims.spec import expr as E
from prims.spec.context import SymbolContext
from prims.spec.sym import SymFloat, to_torch
from prims.spec.tensorspec import TensorSpec

__all__ = [
    "MAKERS", "OF_TENSORS", "CustomSizes", "asks_data", "columns", "count", "is_making", "making_symbols", "number",
    "of_tensors", "positions", "with_symbols",
]  # fmt: skip

aten = torch.ops.aten
#: Operators whose results, or the sizes of those, are unbacked symbols in the aten dialect.
MAKERS = frozenset(
    (aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.unique_consecutive.default,
     aten.repeat_interleave.Tensor, aten.bincount.default)
)  # fmt: skip
#: Operators that are asked about by their tensors rather than by their metadata alone.
OF_TENSORS = frozenset((aten._local_scalar_dense.default, aten.nonzero.default, aten.index.Tensor))

_CONTEXT: ContextVar[SymbolContext | None] = ContextVar("the context that makes unbacked symbols", default=None)


@contextmanager
def making_symbols(context: SymbolContext | None) -> Iterator[None]:
    """What depends on data becomes a symbol of ``context`` in here; with None it raises, as it does elsewhere."""
    token = _CONTEXT.set(context)
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def is_making() -> bool:
    """Whether somebody makes symbols now."""
    return _CONTEXT.get() is not None


def asks_data(error: Exception, env: Any) -> bool:
    """Whether a stage failed because it cannot do without a value that only the data tells.

    The front end then ends its graph before such values are read: stages hand the error on to it.

    Args:
        env: the envelope of the graph in hand, or None.
    """
    context = None if env is None else env.symbols.context
    return isinstance(error, DataDependentError) and with_symbols(context) is not None


def with_symbols(context: SymbolContext | None) -> SymbolContext | None:
    """The context, if the front end has made unbacked symbols of it: then a later stage may make them too."""
    return context if context is not None and any(info.hint is None for info in context) else None


def count(low: int, high: Any, what: str) -> Any:
    """A new size between ``low`` and ``high`` (an ``int | Sym``, or None), told by the data.

    Raises:
        DataDependentError: nobody makes symbols.
    """
    context = _CONTEXT.get()
    if context is None:
        raise DataDependentError(f"the size of the result of {what} depends on the values of a tensor")
    return context.new_symbol(None, what, low, high if type(high) is int else None)


class CustomSizes:
    """What ``torch.library.get_ctx()`` gives to the fake implementation of an operator: sizes that the data tells."""

    def __init__(self, name: str) -> None:
        self._name = name

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        """A new size from ``min`` to ``max``.

        Raises:
            ValueError: a bound is no number, or below 0.
            DataDependentError: nobody makes symbols.
        """
        if type(min) is not int or type(max) not in (int, type(None)):
            raise ValueError(f"new_dynamic_size(min={min}, max={max}): the bounds of a size are plain numbers")
        if min < 0:
            raise ValueError(f"new_dynamic_size(min={min}): no size is below 0")
        return to_torch(count(min, max, self._name))  # type: ignore[no-any-return]

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> torch.SymInt:
        """The former name, by which a size without bounds was said to be 2 at least, which it need not be."""
        return self.new_dynamic_size(min=0 if min == 2 else min, max=max)


def number(x: TensorSpec) -> Any:
    """The number that a tensor of one element holds: a ``Sym``, or a ``SymFloat`` over its bits.

    Raises:
        DataDependentError: nobody makes symbols, or it is neither an integer nor a real number.
    """
    context = _CONTEXT.get()
    if context is None or x.dtype == torch.bool or x.dtype.is_complex:
        raise DataDependentError("a Python number is read from a tensor of which only metadata is known here")
    if x.dtype.is_floating_point:
        bits = context.new_symbol(None, "item", -(2**63), 2**63 - 1, prefix="f")
        return SymFloat(E.from_bits(bits.expr), context)
    info = torch.iinfo(x.dtype)
    return context.new_symbol(None, "item", int(info.min), int(info.max))


def positions(x: TensorSpec, size: Any = None) -> TensorSpec:
    """What ``nonzero`` gives: a row of positions for each element, laid out column by column.

    Args:
        size: the number of rows, where it is known already.
    """
    if not x.ndim:
        raise DataDependentError("nonzero of a tensor without dimensions")
    rows = count(0, x.numel(), "nonzero") if size is None else size
    return TensorSpec((rows, x.ndim), torch.int64, x.device, (1, rows))


def columns(rows: TensorSpec) -> list[TensorSpec]:
    """The columns of :func:`positions`, as ``x.nonzero(as_tuple=True)`` gives them."""
    size = rows.shape[0]
    return [TensorSpec((size,), torch.int64, rows.device, (1,), dim * size) for dim in range(rows.shape[1])]


def of_tensors(func: Any, args: tuple[Any, ...], rule: Any) -> Any:
    """Metadata of what ``func`` makes of abstract tensors, where it depends on their data; None where it does not.

    A tensor that nobody has written to since has the same number, and as many elements that are not zero, as before:
    ``x[mask]`` and ``y[mask]`` are of one size.
    """
    context = _CONTEXT.get()
    if context is None:
        return None
    x = args[0]
    if func is aten._local_scalar_dense.default:
        return _once(context, func, x, number)
    if func is aten.nonzero.default:
        return positions(x.spec, _once(context, func, x, lambda spec: positions(spec).shape[0]))
    masks = [i for i in args[1] if i is not None and i.dtype == torch.bool] if func is aten.index.Tensor else []
    if not masks:
        return None
    places: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype == torch.bool:
            places += columns(of_tensors(aten.nonzero.default, (index,), rule))
        else:
            places.append(None if index is None else index.spec)
    return rule(x.spec, places)


def _once(context: SymbolContext, func: Any, x: Any, make: Any) -> Any:
    if x.is_inference():
        return make(x.spec)  # without a count of what is written to it
    key = (func, id(x), x._version)
    if key not in context.made:
        context.made[key] = (x, make(x.spec))  # kept alive, so that no other tensor has its identity
    return context.made[key][1]
