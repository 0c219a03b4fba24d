"""StableHLO as a target: every primitive has a row, or a reason why it has none."""

from __future__ import annotations

from compile_api.deploy.interchange.stablehlo import composites, elementwise, indexing, reduction, structure
from compile_api.deploy.interchange.stablehlo.builder import DTYPES
from compile_api.deploy.interchange.walk import Target

__all__ = ["STABLEHLO"]

_NO_RANDOM = "what numbers StableHLO's generators give is left to the implementation"

STABLEHLO = Target(
    name="StableHLO",
    rows={**elementwise.ROWS, **structure.ROWS, **indexing.ROWS, **reduction.ROWS},
    unmapped={"random_bits": _NO_RANDOM, "random_uniform": _NO_RANDOM, "random_normal": _NO_RANDOM},
    composites=composites.ROWS,
    takes=composites.TAKES,
    dtypes=DTYPES,
)
