"""How precise products of float32 matrices are to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prims.forking import compiling

__all__ = ["float32_precision", "while_precision"]

Call = Callable[[Any], list[Any]]


def float32_precision() -> str:
    """``"tf32"`` where the user allows it for matrix products on GPUs, else ``"ieee"``.

    PyTorch refuses one of its two settings after the other was used, so the newer is asked first.
    """
    setting = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if setting in ("tf32", "ieee"):
        return str(setting)
    try:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    except RuntimeError:
        return "ieee"


def while_precision(precision: str, call: Call, other: Callable[[], Call]) -> Call:
    """``call`` while float32 products are to have the precision that its kernels were made for, else what ``other()``
    makes, once."""
    made: list[Call] = []

    def run(args: Any) -> list[Any]:
        if float32_precision() == precision:
            return call(args)
        if not made:
            with compiling():
                if not made:
                    made.append(other())
        return made[0](args)

    return run
