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
- `foreach`, `optimisers`: ops over lists of tensors
- `seeded`: random numbers as functions of a seed
"""

from prims.decomp import (  # noqa: F401  (each registers its family)
    activations,
    attention,
    backward,
    conversions,
    elementwise,
    factory,
    foreach,
    indexing,
    losses,
    matmul,
    normalisation,
    optimisers,
    padding,
    pooling,
    reductions,
    resampling,
    sampling,
    seeded,
    softmax,
    special,
    views,
    weights,
    windows,
)
from prims.decomp.registry import by_name, call, covered, decomposition, get, overload

__all__ = ["by_name", "call", "covered", "decomposition", "get", "overload"]
