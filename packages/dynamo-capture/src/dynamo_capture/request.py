"""A frame to translate, as the hook hands it over."""

from __future__ import annotations

import types
from typing import Any

import torch

__all__ = ["FrameRequest"]


class FrameRequest:
    """A frame to translate, as the hook hands it over."""

    __slots__ = ("args", "builtins", "closure", "code", "devices", "exporting", "func", "globals")

    def __init__(
        self,
        code: types.CodeType,
        func: Any,
        args: dict[str, Any],
        globals_: dict[str, Any],
        builtins: dict[str, Any],
        closure: tuple[Any, ...],
        devices: tuple[torch.device, ...] = (),
        exporting: bool = False,
    ) -> None:
        self.code = code
        self.func = func
        self.args = args
        self.globals = globals_
        self.builtins = builtins
        self.closure = closure
        #: The default devices, the innermost last.
        self.devices = devices
        #: What is captured is to run without the program's code.
        self.exporting = exporting
