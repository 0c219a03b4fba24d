"""What capture makes of the program's objects, for guards to look into; another process makes it anew."""

from __future__ import annotations

import inspect
import types
from typing import Any

__all__ = ["signature_of"]


def signature_of(fn: Any, bound: bool) -> inspect.Signature:
    """The signature of a callable, or of a method that a function makes.

    Raises:
        TypeError, ValueError: it has none.
    """
    return inspect.signature(types.MethodType(fn, object()) if bound else fn)
