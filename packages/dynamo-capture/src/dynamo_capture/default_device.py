"""The default device: what ``torch.set_default_device`` and ``with torch.device(...)`` give to tensors made under them.

PyTorch keeps it as a stack of torch-function modes, which see every call of torch: one that makes a tensor and names no
device gets the innermost one's. Capture knows such a stack: its devices are guarded, the constructors in the graph name
theirs, and graphs are made and run without the modes. Modes of any other kind see eager's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext, _device_constructors

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["DefaultDevices", "entered_devices", "run_without_devices", "without_function_modes"]

#: In PyTorch's list of constructors, but its binding asks no mode.
_UNSEEN = frozenset((torch.range,))


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


class DefaultDevices:
    """The stack of one capture, in which no real mode is on.

    Args:
        at_entry: the stack as the frame found it.
    """

    __slots__ = ("at_entry", "now")

    def __init__(self, at_entry: tuple[torch.device, ...]) -> None:
        self.at_entry = at_entry
        self.now = at_entry

    @contextmanager
    def as_at_entry(self) -> Iterator[None]:
        """The frame's real modes meanwhile, as its guards will find them."""
        change_devices(0, self.at_entry)
        try:
            yield
        finally:
            change_devices(len(self.at_entry), ())

    def enter(self, tx: Capture, device: torch.device) -> None:
        """``device.__enter__()``."""
        tx.side.epoch += 1
        self.now = (*self.now, device)

    def leave(self, tx: Capture) -> None:
        """``device.__exit__(...)``, whichever device it is."""
        if not self.now:
            raise GraphBreak("QB03", "leaving a torch.device that is not the default device")
        tx.side.epoch += 1
        self.now = self.now[:-1]

    def named(self, fn: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
        """The keywords with which ``fn``, a function of torch, is called in the end."""
        if not self.now or not fn.__hash__ or fn not in _device_constructors() or fn in _UNSEEN:
            return kwargs
        given = kwargs.get("device")
        if given is not None and given.realize().pytype is not type(None):
            return kwargs
        return kwargs | {"device": ConstantValue(self.now[-1])}

    def overridden(self, tx: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function of torch in Python that lets modes have a look first: its own calls are not seen by any."""
        kwargs = self.named(fn.realize().real(), kwargs)
        before, self.now = self.now, ()
        try:
            return fn.call(tx, args, kwargs)
        finally:
            self.now = before

    def changes(self) -> tuple[int, tuple[torch.device, ...]] | None:
        """What takes the stack from what it was to what it is, as :func:`change_devices` takes it."""
        kept = 0
        while kept < min(len(self.at_entry), len(self.now)) and self.at_entry[kept] == self.now[kept]:
            kept += 1
        found = len(self.at_entry) - kept, self.now[kept:]
        return found if found != (0, ()) else None
