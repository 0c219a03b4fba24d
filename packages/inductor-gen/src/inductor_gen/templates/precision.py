"""How precise products of float32 matrices are to be."""

from __future__ import annotations

import torch

__all__ = ["float32_precision"]


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
