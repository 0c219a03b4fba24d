"""Storage, views of it, and how a write to a view reaches the storage.

Every traced tensor is a chain of view steps from the *base* of its storage. The functional graph holds one current
value per storage. A write through a view computes the view's new value and pushes it back step by step, each step
by its inverse (``select`` by ``select_scatter``, ``permute`` by the inverse permutation ...); the storage's
generation goes up, and every other view rebuilds its own value when it is next read.

The scheme is the one that PyTorch's functionalisation describes ("Functionalization in PyTorch", dev-discuss, 2022);
this is an implementation of its own, with the bases kept in the graph's terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx
from torch._ops import OpOverload

from prims.errors import Unsupported
from prims.spec import layout

if TYPE_CHECKING:
    from prims.spec import TensorSpec
    from prims.spec.tensorspec import Size

__all__ = ["Storage", "TensorState", "ViewStep", "is_dense", "memory_order", "same_strides", "undo"]

aten = torch.ops.aten

#: ``emit(func, args, kwargs) -> (node, spec)`` adds one functional call to the graph.
Emit = Callable[..., tuple[torch.fx.Node, Any]]


class Storage:
    """The memory behind one or more traced tensors.

    Attributes:
        spec: metadata of the base tensor.
        node: the graph value that the base has now.
        generation: number of writes so far.
        input_index: the graph input that owns the memory, if any.
        base: the base tensor itself, whose autograd history covers the whole storage.
        constant: the real tensor behind it while it has a known value and was never written.
        differentiable_write: a write happened that autograd tracked.
        viewed: there are views of it that autograd knows to be such.
        sealed: it was made in inference mode, outside of which nothing may write to it.
        reshaped: a tensor whose shape was changed in place, of which autograd makes another history after a write.
    """

    __slots__ = (
        "base", "constant", "differentiable_write", "generation", "input_index", "node", "reshaped", "sealed", "spec",
        "viewed",
    )  # fmt: skip

    def __init__(
        self,
        spec: TensorSpec,
        node: torch.fx.Node,
        *,
        base: torch.Tensor | None = None,
        input_index: int | None = None,
        constant: torch.Tensor | None = None,
    ) -> None:
        self.sealed = False
        self.spec = spec
        self.node = node
        self.generation = 0
        self.input_index = input_index
        self.base = base
        self.constant = constant
        self.differentiable_write = False
        self.viewed = False
        self.reshaped: torch.Tensor | None = None


class ViewStep(NamedTuple):
    """One view operation: ``func(source, *args, **kwargs)``; ``source`` and ``result`` are its metadata.

    ``aten.alias`` and ``aten.detach`` are steps too: the values are the same, the tensor is another one.
    """

    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: TensorSpec
    result: TensorSpec

    @property
    def changes_value(self) -> bool:
        """Whether the step needs a node in a functional graph."""
        return self.func not in _IDENTITY_VIEWS

    def args_on(self, value: torch.fx.Node) -> tuple[Any, ...]:
        """The step's arguments for a graph value that stands for the source.

        ``as_strided`` counts from the beginning of the memory, of which a value may take another part than the source.
        """
        if self.func is not aten.as_strided.default:
            return self.args
        size, stride, offset = self.args
        return size, stride, offset - self.source.storage_offset + value.meta["spec"].storage_offset


class TensorState:
    """What the tracer knows about one traced tensor: its storage, its views, and its value at some generation."""

    __slots__ = ("chain", "generation", "node", "spec", "storage")

    def __init__(
        self, storage: Storage, chain: tuple[ViewStep, ...], node: torch.fx.Node, generation: int, spec: TensorSpec
    ) -> None:
        self.storage = storage
        self.chain = chain
        self.node = node
        self.generation = generation
        self.spec = spec


_IDENTITY_VIEWS = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})


def is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill one gap-free block, each memory cell used once."""
    return spec.is_contiguous() or layout.is_dense(spec.shape, spec.strides)


def same_strides(a: TensorSpec, b: TensorSpec) -> bool:
    """Equal strides in every dimension that has more than one element (specs of one shape)."""
    return a.strides == b.strides or all(
        x == y or (type(n) is int and n == 1) for n, x, y in zip(a.shape, a.strides, b.strides, strict=True)
    )


def undo(step: ViewStep, base: torch.fx.Node, value: torch.fx.Node, spec: TensorSpec, emit: Emit) -> Any:
    """The new value of ``step``'s source, given its old value ``base`` and the view's new ``value``.

    Returns:
        ``(node, spec)`` of the source's new value.

    Raises:
        Unsupported: the view cannot be written through.
    """
    rule = _UNDO.get(step.func)
    if rule is None:
        raise Unsupported(f"in-place write through a view made by {step.func}")
    return rule(step, base, value, spec, emit)


def _reshaped(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    if not spec.is_contiguous():
        value, spec = emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return emit(aten.view.default, (value, list(step.source.shape)), {})


def _same(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    return value, spec


def _transposed(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    return emit(step.func, (value, *step.args), {})


def _permuted(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    order = [d % len(step.source.shape) for d in step.args[0]]
    inverse = [order.index(d) for d in range(len(order))]
    return emit(aten.permute.default, (value, inverse), {})


def _scatter(twin: OpOverload) -> Any:
    def rule(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
        return emit(twin, (base, value, *step.args_on(base)), dict(step.kwargs))

    return rule


def _expanded(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    if tuple(step.source.shape) != tuple(step.result.shape):
        raise Unsupported("in-place write through an expanded view, whose elements share memory")
    return value, spec


def _as_dtype(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    if step.source.dtype == torch.bool or step.result.dtype == torch.bool:  # as bools, bytes become 0 or 1
        raise Unsupported("an in-place write to the bytes of bools, through a view of another dtype")
    return emit(aten.view.dtype, (value, step.source.dtype), {})


def _as_complex(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    if not spec.is_contiguous():
        value, spec = emit(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
    return emit(aten.view_as_complex.default, (value,), {})


def _as_real(step: ViewStep, base: Any, value: Any, spec: TensorSpec, emit: Emit) -> Any:
    return emit(aten.view_as_real.default, (value,), {})


_UNDO: dict[OpOverload, Any] = {
    aten.view.default: _reshaped,
    aten.view.dtype: _as_dtype,
    aten._reshape_alias.default: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.lift_fresh.default: _same,
    aten.t.default: _transposed,
    aten.transpose.int: _transposed,
    aten.permute.default: _permuted,
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _scatter(aten.as_strided_scatter.default),
    aten.expand.default: _expanded,
    aten.view_as_real.default: _as_complex,
    aten.view_as_complex.default: _as_real,
}


def memory_order(spec: TensorSpec) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost; None if they are so already, if memory has gaps, or
    where that is not known for all sizes that the guards allow. Never guards on which dimension lies within another."""
    if spec.is_contiguous():
        return None
    if all(isinstance(stride, int) for stride in spec.strides):
        return sorted(range(spec.ndim), key=lambda d: -spec.strides[d]) if is_dense(spec) else None
    inner: list[int] = []
    step: Size = 1
    left = sorted(range(spec.ndim), key=lambda d: (_is_one(spec, d), d))
    while any(not _is_one(spec, d) for d in left):
        dim = next((d for d in reversed(left) if layout.known_equal(spec.strides[d], step)), None)
        if dim is None:
            return None
        left.remove(dim)
        inner.insert(0, dim)
        size = spec.shape[dim]
        step = step * (max(size, 1) if type(size) is int else size)
    return left + inner


def _is_one(spec: TensorSpec, dim: int) -> bool:
    return type(spec.shape[dim]) is int and spec.shape[dim] == 1
