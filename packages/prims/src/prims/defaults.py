"""The default dtype that a program was captured under, whatever the process's own has become since.

Backward passes are lowered when they first run, exported programs where they are loaded. What becomes of Python's
floats, and of quotients of whole numbers, was settled when the graph was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

__all__ = ["default_dtype", "under_default_dtype"]

_CAPTURED: ContextVar[torch.dtype | None] = ContextVar("captured default dtype", default=None)


def default_dtype() -> torch.dtype:
    """The default dtype of the graph at work, else the process's."""
    return _CAPTURED.get() or torch.get_default_dtype()


@contextmanager
def under_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let :func:`default_dtype` be that in here."""
    token = _CAPTURED.set(dtype)
    try:
        yield
    finally:
        _CAPTURED.reset(token)
