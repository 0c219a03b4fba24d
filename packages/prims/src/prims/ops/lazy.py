"""NumPy, imported when a reference first runs (it must not cost anything at import time)."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["np"]


class _Lazy:
    """A module that is imported on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


np: Any = _Lazy("numpy")
