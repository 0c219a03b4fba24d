"""Decompositions: ATen overloads in terms of primitives.

A decomposition is a function ``(p, *args, **kwargs)`` written once against the handler interface: under
`MetaHandler` it gives metadata, under `GraphHandler` a graph, under `TorchHandler` numbers. The families:

- `elementwise`, `conversions`, `activations`, `special`: pointwise formulas
- `reductions`, `softmax`, `normalisation`, `losses`: what reduces
- `views`, `indexing`, `factory`: shapes, gathers and scatters, constants
- `matmul`, `attention`: matrix products, attention and fused transformer layers
- `pooling`, `windows`, `padding`, `resampling`, `sampling`: windows, borders and interpolation
- `weights`: weight normalisation, distances, bilinear forms
- `backward`: gradients of the above that are not beside their forward
- `quantized`: fake quantisation
- `foreach`, `optimisers`: ops over lists of tensors
- `seeded`: random numbers as functions of a seed

Those that few programs meet (`registry.RARE`) are imported when one of their overloads is asked for.
"""

from prims.decomp import (  # noqa: F401  (each registers its family)
    activations,
    conversions,
    elementwise,
    factory,
    indexing,
    matmul,
    normalisation,
    reductions,
    softmax,
    views,
)
from prims.decomp.registry import by_name, call, covered, decomposition, get, overload

__all__ = ["by_name", "call", "covered", "decomposition", "get", "overload"]
