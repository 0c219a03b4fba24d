"""Writes whose operands lie in the memory that is written: which of them a functional twin may stand for.

Eager reads and writes such memory in an order of its own, or raises. A twin reads everything first, so that it agrees
only where no element is read after another one's write: operands beside the target, and, for pointwise operators,
operands that are the very same view of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from aot_autograd.trace.opinfo import OpInfo, bind
from aot_autograd.trace.views import TensorState, same_strides
from prims.errors import Unsupported
from prims.spec.layout import known_equal, sort_dims

if TYPE_CHECKING:
    from aot_autograd.trace.tracer import Tracer
    from prims.spec import TensorSpec

__all__ = ["refuse_overlap"]

#: Read and write element by element, in step, though they are not tagged so.
_IN_STEP = frozenset({"aten::copy_", "aten::where", "aten::masked_fill_", "aten::copysign_", "aten::copysign"})


def refuse_overlap(tracer: Tracer, func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Leave a write to eager where an operand may be another part of the memory that is written.

    Raises:
        Unsupported: there is such an operand, or two of the written tensors share memory.
    """
    in_step = torch.Tag.pointwise in func.tags or func._schema.name in _IN_STEP
    lists = func._schema.name.startswith("aten::_foreach_")
    operands = [
        (position, index, _state(x))
        for position, argument in enumerate((*args, *kwargs.values()))
        for index, x in _tensors(argument)
    ]
    for position, name in info.written:
        target = bind(info, args, kwargs, name, position)
        if isinstance(target, list):  # of an operator on lists, which writes to one after the other
            _refuse_repeated(tracer, [x for _, x in _tensors(target)])
        is_argument = position if position < len(args) else len(args) + list(kwargs).index(name)
        for place, x in _tensors(target):
            state = _state(x)
            for at, index, other in operands:
                if (at, index) == (is_argument, place) or other is None or state is None:
                    continue
                if other.storage is not state.storage or _apart(state.spec, other.spec):
                    continue
                same = (in_step or lists) and index == place and _same_view(state.spec, other.spec)
                if not same:
                    raise Unsupported(
                        "an in-place write with an operand that shares part of the written memory",
                        where=tracer._current_source(),
                    )


def _refuse_repeated(tracer: Tracer, targets: list[torch.Tensor]) -> None:
    states = [state for state in map(_state, targets) if state is not None]
    by_storage: dict[int, list[TensorSpec]] = {}
    for state in states:
        before = by_storage.setdefault(id(state.storage), [])
        if not all(_apart(spec, state.spec) for spec in before):
            raise Unsupported("a write to a list of tensors of which some share memory", where=tracer._current_source())
        before.append(state.spec)


def _tensors(argument: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors of an argument, each with its place in a list (0 for one that stands alone)."""
    for index, x in enumerate(argument if isinstance(argument, (list, tuple)) else [argument]):
        if isinstance(x, torch.Tensor):
            yield index, x


def _state(x: torch.Tensor) -> TensorState | None:
    return getattr(x, "_aot_state", None)


def _same_view(a: TensorSpec, b: TensorSpec) -> bool:
    return (
        a.dtype == b.dtype
        and tuple(a.shape) == tuple(b.shape)
        and same_strides(a, b)
        and bool(a.storage_offset == b.storage_offset)
    )


def _apart(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two views of one storage are known to share no element; guards where that depends on a symbol."""
    if a.dtype != b.dtype:
        return False
    if any(type(n) is int and n == 0 for n in (*a.shape, *b.shape)):
        return True
    if bool(_last(a) < b.storage_offset) or bool(_last(b) < a.storage_offset):
        return True
    return _in_separate_boxes(a, b)


def _in_separate_boxes(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether the views, as boxes of the grid that all their strides span, have no cell in common.

    Columns, alternate rows and the like, whose memory lies interleaved.
    """
    steps: list[Any] = []
    for step in (*_strides(a), *_strides(b), 1):
        if not any(known_equal(step, other) for other in steps):
            steps.append(step)
    grid = [steps[i] for i in reversed(sort_dims(range(len(steps)), [2] * len(steps), steps))]
    if bool(grid[-1] < 1):
        return False  # expanded
    start = b.storage_offset if bool(b.storage_offset < a.storage_offset) else a.storage_offset
    boxes = []
    for spec in (a, b):
        box = _box(spec, grid, spec.storage_offset - start)
        if box is None:
            return False
        reach: Any = 0
        for i in range(len(grid) - 1, 0, -1):
            reach = reach + grid[i] * box[i][1]
            if bool(reach >= grid[i - 1]):
                return False  # a cell has more than one address
        boxes.append(box)
    return any(bool(p[1] < q[0]) or bool(q[1] < p[0]) for p, q in zip(*boxes, strict=True))


def _box(spec: TensorSpec, grid: list[Any], offset: Any) -> list[tuple[Any, Any]] | None:
    """The first and last cell of a view along each step of the grid; None where its offset is no known cell."""
    box: list[tuple[Any, Any]] = []
    for step in grid:
        if type(offset) is int and type(step) is int:
            first, offset = divmod(offset, step)
        elif bool(offset < step):
            first = 0
        else:
            return None
        sizes = [n - 1 for n, stride in zip(spec.shape, spec.strides, strict=True) if known_equal(stride, step)]
        box.append((first, sum(sizes, first)))
    return box


def _strides(spec: TensorSpec) -> list[Any]:
    return [stride for n, stride in zip(spec.shape, spec.strides, strict=True) if not (type(n) is int and n == 1)]


def _last(spec: TensorSpec) -> Any:
    """The address of a view's last element."""
    last = spec.storage_offset
    for n, stride in zip(spec.shape, spec.strides, strict=True):
        last = last + (n - 1) * stride
    return last
