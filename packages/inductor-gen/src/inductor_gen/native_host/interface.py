"""What a library without Python takes and gives."""

from __future__ import annotations

import torch

from prims.errors import Unsupported
from prims.records import record

__all__ = ["CODES", "Interface", "Output", "Tensor", "code_of"]

#: PyTorch's numbers of dtypes, which ``quintet.h`` has too.
CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


def code_of(dtype: torch.dtype | None) -> int:
    """The number of a dtype.

    Raises:
        Unsupported: ``quintet.h`` has none.
    """
    if dtype not in CODES:
        raise Unsupported(f"a tensor has the dtype {dtype}, which the C interface does not have")
    return CODES[dtype]


@record
class Tensor:
    """An input, whose sizes that may differ are names of dimensions, or a weight."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]


@record
class Output:
    """One result.

    Attributes:
        kind: ``"output"`` or ``"input"`` of the graph at ``index``, or ``"size"``, the expression ``value``.
        strides: of a view of that, with its ``shape`` and ``offset`` as texts of expressions; None for all of it.
    """

    name: str
    kind: str
    index: int = -1
    value: str = ""
    dtype: torch.dtype | None = None
    shape: tuple[int | str, ...] = ()
    strides: tuple[int | str, ...] | None = None
    offset: int | str = 0


@record
class Interface:
    """What a graph's inputs and outputs are to a caller.

    Attributes:
        inputs, weights: tensors that come with a call, and with the model.
        dims: ``(name, least, largest | None)`` of the sizes that may differ.
        sources: of each input of the graph ``("argument" | "weight", place among them)``.
        outputs: the results.
        mutations: ``(input, output)`` of the graph: the new value of an input.
    """

    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    dims: tuple[tuple[str, int, int | None], ...]
    sources: tuple[tuple[str, int], ...]
    outputs: tuple[Output, ...]
    mutations: tuple[tuple[int, int], ...] = ()
