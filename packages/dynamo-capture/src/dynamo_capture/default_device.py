"""The default device: what ``torch.set_default_device`` and ``with torch.device(...)`` give to tensors made under them.

PyTorch keeps it as a stack of torch-function modes, which see every call of torch: one that makes a tensor and names no
device gets the innermost one's. Capture knows such a stack: its devices are guarded, the constructors in the graph name
theirs, and graphs are made and run without the modes. Modes of any other kind see eager's calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.device_modes import change_devices
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["DefaultDevices"]

#: In PyTorch's list of constructors, but its binding asks no mode.
_UNSEEN = frozenset((torch.range,))


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
