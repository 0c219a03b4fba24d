"""The default devices of the thread, which are torch-function modes: read, left and entered at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext

__all__ = ["change_devices", "entered_devices", "run_without_devices", "without_function_modes"]


def entered_devices() -> tuple[torch.device, ...] | None:
    """The default devices of this thread, the innermost last; None under a torch-function mode of another kind."""
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._get_function_stack_at(i) for i in range(count)]
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    return tuple(mode.device for mode in modes)


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Torch-function modes of this thread are off meanwhile."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def run_without_devices(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph, whose constructors name their devices, as it runs where there are default devices."""

    def run(*args: Any) -> Any:
        with without_function_modes():
            return compiled(*args)

    return run


def change_devices(left: int, entered: tuple[torch.device, ...]) -> None:
    """Runs in the emitted code: leave so many of the default devices and enter others."""
    for _ in range(left):
        _pop_mode()
    for device in entered:
        device.__enter__()  # type: ignore[attr-defined]
