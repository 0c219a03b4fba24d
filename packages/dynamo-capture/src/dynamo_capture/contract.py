"""What capture may hand to a backend, by what the backend declares about itself.

A backend that traces the graph with its example inputs, or tunes for them, bakes their sizes into what it returns. A
graph with symbolic sizes would then be run for sizes that nobody has asked it about. So a backend gets static graphs,
one for each size, unless it says that it reads symbolic sizes as such.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from prims.options import Options
from prims.records import record
from prims.spec import AbstractTensor, abstract_from_spec

if TYPE_CHECKING:
    from dynamo_capture.graph_builder import GraphInput

__all__ = ["Contract", "supports_dynamic_shapes"]

B = TypeVar("B", bound=Callable[..., Any])


def supports_dynamic_shapes(backend: B) -> B:
    """Declare that what a backend returns serves every size for which its graph is symbolic. Usable as a decorator.

    Sets ``backend.supports_dynamic_shapes = True``. Such a backend gets a graph whose sizes become symbolic once they
    change: they are computed in the graph, and ``gm.meta["envelope"]`` and each placeholder's ``node.meta["spec"]``
    state them. Its example inputs are the tensors of the call, with the sizes of this call alone; a backend that sets
    ``symbolic_example_inputs = True`` gets abstract tensors of symbolic sizes instead, and what it asks of a size
    becomes a guard.
    """
    backend.supports_dynamic_shapes = True  # type: ignore[attr-defined]
    return backend


@record
class Contract:
    """What a backend gets under some options.

    Attributes:
        dynamic: ``Options.dynamic`` as capture is to take it.
        symbolic_inputs: the example inputs are abstract.
        each_size: sizes that change have a graph each, for want of a declaration.
        unbacked: what only the data tells (``.item()``, ``nonzero``) may stay in the graph, as symbols without a value.
        takes_numbers: so may numbers that Python gives when the graph runs (draws of ``random``, readings of a clock).
        copies_written: what the graph writes into is copied for the backend, which may run the graph to trace it: the
            program's own tensor would be written twice.
    """

    dynamic: bool | None
    symbolic_inputs: bool
    each_size: bool
    unbacked: bool = False
    takes_numbers: bool = False
    copies_written: bool = False

    @classmethod
    def of(cls, backend: Any, options: Options) -> Contract:
        """By the declarations of a backend, which are its attributes, and the user's wish.

        ``dynamic=True`` stands for any backend. One that declares nothing gets abstract inputs then: a size that it
        makes a number of becomes a guard, and what it cannot do with abstract tensors fails.
        """
        symbolic = getattr(backend, "symbolic_example_inputs", False) is True
        if symbolic or getattr(backend, "supports_dynamic_shapes", False) is True:
            unbacked = options.data_dependent and not symbolic
            return cls(options.dynamic, symbolic, each_size=False, unbacked=unbacked, takes_numbers=not symbolic)
        if options.dynamic:
            return cls(True, symbolic_inputs=True, each_size=False)
        return cls(False, symbolic_inputs=False, each_size=options.dynamic is None, copies_written=True)

    def example(self, graph_input: GraphInput) -> Any:
        """The example of one input: as it comes into the graph, though the program may change its shape in place."""
        if not self.symbolic_inputs:
            if not self.copies_written:
                return graph_input.real
            from dynamo_capture.graph_builder import is_written

            return _copy(graph_input.real) if is_written(graph_input) else graph_input.real
        example, came = graph_input.value.example, graph_input.node.meta["spec"]
        if isinstance(example, AbstractTensor) and example.spec != came:
            return abstract_from_spec(came, example.requires_grad)
        return example

    @property
    def about_the_limit(self) -> str:
        """What to do about too many captures."""
        if self.each_size:
            return (
                "The backend does not declare supports_dynamic_shapes, so each size has a graph of its own: "
                "declare it, or raise the option recompile_limit."
            )
        return "Keep what changes out of the region, or raise the option recompile_limit."


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same elements, strides, offset and place in autograd, in memory of its own."""
    with torch.no_grad():
        storage = tensor.untyped_storage().clone()
        twin = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        twin.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[call-overload]
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(twin, tensor.requires_grad)
    twin.requires_grad_(tensor.requires_grad)
    if tensor.is_leaf:
        return twin
    with torch.enable_grad():
        return twin.detach().copy_(twin)  # no leaf, and no view of one, which could not be written
