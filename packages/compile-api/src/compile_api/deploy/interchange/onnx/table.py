"""ONNX as a target: every primitive has a row, or a reason why it has none."""

from __future__ import annotations

import torch

from compile_api.deploy.interchange.onnx import composites, elementwise, indexing, reduction, structure
from compile_api.deploy.interchange.onnx.builder import DTYPES
from compile_api.deploy.interchange.walk import Target

__all__ = ["ONNX"]

_NO_SERIES = "ONNX has no such operator, and none of which its value could be computed to the last digits"
_NO_RANDOM = "ONNX's random operators draw other numbers, and take no seed as an input"

ONNX = Target(
    name="ONNX",
    rows={**elementwise.ROWS, **structure.ROWS, **indexing.ROWS, **reduction.ROWS},
    unmapped={
        "erfc": _NO_SERIES, "erfinv": _NO_SERIES, "lgamma": _NO_SERIES, "digamma": _NO_SERIES,
        "nextafter": "ONNX has no such operator, and reads no bits before opset 26",
        "random_bits": _NO_RANDOM, "random_uniform": _NO_RANDOM, "random_normal": _NO_RANDOM,
    },
    composites=composites.ROWS,
    takes=composites.TAKES,
    dtypes={dtype: kind for dtype, kind in DTYPES.items() if dtype != torch.uint64},
)  # fmt: skip
