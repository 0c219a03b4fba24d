"""The program's own backward of an ``autograd.Function``, called with a context that is put together for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.values.later import StillThere

__all__ = ["OwnBackward", "own_backward"]

#: What the context's methods leave in it, which autograd reads and a backward does not.
_FOR_AUTOGRAD = frozenset(("to_save", "non_differentiable", "dirty_tensors", "materialize_grads", "saved_tensors"))


class _At(NamedTuple):
    """In the place of a tensor or a size: which argument of the attaching call it is."""

    position: int


class _Context:
    """What the program's backward is given as ``ctx``."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Any, ...]


@record
class OwnBackward:
    """Calls the program's own backward, where what the captured one has read is no longer there.

    Attributes:
        still: whether it is.
        backward: the program's.
        places: of the results, among the values that the forward returns.
        count: of these values.
        saved: ``ctx.saved_tensors``.
        attributes: the context's other attributes.
        positions: the arguments of the attaching call that these need.
    """

    still: StillThere
    backward: Callable[..., Any]
    places: tuple[int, ...]
    count: int
    saved: Any
    attributes: dict[str, Any]
    positions: tuple[int, ...]

    def __call__(self, gradients: Sequence[Any], values: dict[int, Any], inputs: int) -> list[Any]:
        """The gradients of the function's inputs.

        Args:
            gradients: of the results.
            values: the arguments of the attaching call at ``positions``.
            inputs: how many the function has.
        """
        context = _Context()
        for name, told in self.attributes.items():
            setattr(context, name, _made(told, values))
        context.saved_tensors = _made(self.saved, values)
        given: list[Any] = [None] * self.count
        for place, gradient in zip(self.places, gradients, strict=True):
            given[place] = gradient
        found = self.backward(context, *given)
        found = list(found) if isinstance(found, tuple) else [found]
        if len(found) < inputs or any(one is not None for one in found[inputs:]):
            raise RuntimeError(f"a backward returned {len(found)} gradients, and the function has {inputs} inputs")
        wanted = zip(found, context.needs_input_grad, strict=False)
        return [one if isinstance(one, torch.Tensor) and is_wanted else None for one, is_wanted in wanted]


def _made(told: Any, values: dict[int, Any]) -> Any:
    if type(told) is _At:
        return values[told.position]
    return type(told)(_made(each, values) for each in told) if type(told) in (tuple, list) else told


def own_backward(
    function: Any, still: StillThere, attrs: dict[str, Value], position: Callable[[Value], int],
    places: Sequence[int], count: int, what: str,
) -> OwnBackward:  # fmt: skip
    """How the backward of a function can be called with a context of these attributes.

    Raises:
        GraphBreak: an attribute is nothing that can be made anew.
    """
    positions: set[int] = set()

    def told(value: Value) -> Any:
        value = value.realize()
        if isinstance(value, (TensorValue, SymValue)):
            at = position(value)
            positions.add(at)
            return _At(at)
        if isinstance(value, ConstantValue):
            return value.value
        if type(value) is TupleValue and value.pytype in (tuple, torch.Size):
            return tuple(map(told, value.items))
        if type(value) is ListValue and value.source is None:
            return list(map(told, value.items))
        try:
            return value.real()
        except GraphBreak:
            text = f"{what}, whose backward reads what may change until its call, and {value.describe()} of its context"
            raise GraphBreak("QB12", text) from None

    own = function.backward is not torch.autograd.Function.backward
    saved = attrs.get("to_save")
    found = told(saved) if saved is not None else ()
    attributes = {name: told(value) for name, value in attrs.items() if name not in _FOR_AUTOGRAD}
    backward = function.backward if own else function.vjp
    return OwnBackward(still, backward, tuple(places), count, found, attributes, tuple(sorted(positions)))
