"""What Quintet runs on. Anything else gives one clear message, and the program runs eagerly."""

from __future__ import annotations

import re
import sys
import sysconfig
from typing import Any

import torch

from prims.eager import warn_user

__all__ = [
    "SUPPORTED_DEVICES",
    "unsupported_device",
    "unsupported_environment",
    "unsupported_kind",
    "warn_once",
]

SUPPORTED_PYTHON = ((3, 11), (3, 14))
SUPPORTED_TORCH = ((2, 11), (2, 13))
SUPPORTED_DEVICES = ("cpu", "cuda")


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn with ``message`` the first time it is given in this process."""
    if message not in _warned:
        _warned.add(message)
        warn_user(message)


def unsupported_environment() -> str | None:
    """Why this interpreter and torch cannot compile, and what to install; None when they can."""
    low, high = SUPPORTED_PYTHON
    if not low <= sys.version_info[:2] <= high or sys.implementation.name != "cpython":
        return (
            f"Python {sys.version.split()[0]} ({sys.implementation.name}) is not supported: Quintet compiles on "
            f"CPython {_show(low)} to {_show(high)}. The program runs eagerly; install one of these to compile it."
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"Python {sys.version.split()[0]} is a free-threaded build, which is not supported: compiled code's guards "
            "rest on the interpreter lock. The program runs eagerly; install the default build of this Python to "
            "compile it."
        )
    version = str(torch.__version__)
    match = re.match(r"(\d+)\.(\d+)", version)
    found = tuple(map(int, match.groups())) if match else (0, 0)
    low, high = SUPPORTED_TORCH
    if not low <= found <= high:
        return (
            f"torch {version} is not supported: Quintet compiles with torch {_show(low)} to {_show(high)}. "
            f"The program runs eagerly; pip install 'torch>={_show(low)},<{high[0]}.{high[1] + 1}' to compile it."
        )
    return None


def unsupported_kind(model: Any) -> str | None:
    """Why this callable has nothing to capture; None when it has."""
    # By the class's module, so that TorchScript need not be imported.
    kind = next((base for base in type(model).__mro__ if base.__module__ == "torch.jit._script"), None)
    if kind is None and type(model).__name__ != "ScriptFunction":
        return None
    return (
        f"compile() got a TorchScript object (a {type(model).__name__}), which has no Python bytecode to capture. It "
        "runs as it is; compile the Python module or function that it was made from."
    )


def unsupported_device(device_types: set[str]) -> str | None:
    """Why a program on these devices cannot be compiled; None when it can."""
    for kind in sorted(device_types):
        if kind not in SUPPORTED_DEVICES:
            return (
                f"device {kind!r} is not supported: kernels are generated for {' and '.join(SUPPORTED_DEVICES)}. "
                "This region runs eagerly; move the model and its inputs to one of these to compile it."
            )
    return None


def _show(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
