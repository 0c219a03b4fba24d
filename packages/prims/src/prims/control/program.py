"""Control flow in the torch dialect: callables that hold graphs, and run on tensors without any compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from prims.control.form import Form, run
from prims.records import record
from prims.spec import AbstractTensor, TensorSpec, abstract_from_spec

__all__ = ["Body", "ControlFlow"]


@record(eq=False)
class Body:
    """A graph and the positions, among the arguments that the body is given, of those that it takes."""

    graph: torch.fx.GraphModule
    reads: tuple[int, ...]

    def __call__(self, *args: Any) -> Any:
        return self.graph(*[args[at] for at in self.reads])


class ControlFlow:
    """A branch or a loop: the target of a graph node.

    Called with tensors it runs as the program says, and autograd with it. Called with abstract tensors it gives
    abstract results: no data, no branch taken.

    Args:
        name: how the program calls it (``torch.cond``).
        results: the metadata of what it returns, a tuple of tensors in memory of their own.
    """

    def __init__(self, name: str, form: Form, bodies: Sequence[Body], results: Sequence[TensorSpec]) -> None:
        self.__name__ = self.__qualname__ = name.rpartition(".")[2]
        self.__module__ = __name__
        self.name = name
        self.form = form
        self.bodies = tuple(bodies)
        self.results = tuple(results)
        self._contiguous = [spec == TensorSpec(spec.shape, spec.dtype, spec.device) for spec in self.results]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if any(isinstance(x, AbstractTensor) for x in args):
            return tuple(_Abstract.apply(self.results, *args))
        taken = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        found = []
        for value, contiguous in zip(run(self.form, self.bodies, args), self._contiguous, strict=True):
            if value.untyped_storage().data_ptr() in taken:
                value = value.clone()
            taken.add(value.untyped_storage().data_ptr())
            found.append(value.contiguous() if contiguous else value)
        return tuple(found)

    def __repr__(self) -> str:
        return self.__name__


class _Abstract(torch.autograd.Function):
    """Results without data; whatever is of a floating-point type needs a gradient where an argument does."""

    @staticmethod
    def forward(ctx: Any, specs: Sequence[TensorSpec], *args: Any) -> Any:
        results = [abstract_from_spec(spec) for spec in specs]
        ctx.mark_non_differentiable(*[x for x in results if not x.is_floating_point() and not x.is_complex()])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("abstract results of control flow have no derivative")
