"""How the emitted code runs a compiled graph: what has to be around each call of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynamo_capture.device_modes import run_without_devices
from prims.generators import rewinding
from prims.records import record
from prims.undo import undoing

__all__ = ["Running"]


@record
class Running:
    """What is around a call of a compiled graph.

    Attributes:
        undone: arguments that the graph writes, of which copies are put back when it raises.
        drawn: devices from whose generators the graph may draw, which are put back when it raises.
        without_devices: it runs without the thread's default devices.
        settings: ``(setter, arguments)`` by which the thread's modes are made what they were when it raises.
        inference: it runs in inference mode, which the frame has entered.
        checked: results of one bool that are true, or the frame is run again.
    """

    undone: tuple[int, ...] = ()
    drawn: tuple[str, ...] = ()
    without_devices: bool = False
    settings: tuple[tuple[Any, tuple[Any, ...]], ...] = ()
    inference: bool = False
    checked: tuple[int, ...] = ()

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph with all that."""
        if self.checked:
            compiled = _checking(compiled, self.checked)
        if self.undone:
            compiled = undoing(compiled, self.undone)
        if self.drawn:
            compiled = rewinding(compiled, map(torch.device, self.drawn))
        if self.without_devices:
            compiled = run_without_devices(compiled)
        if self.settings:
            compiled = _restoring(compiled, self.settings)
        return _in_inference_mode(compiled) if self.inference else compiled


class NotAsAssumed(Exception):
    """The program raises, by a tensor's value."""


def _checking(compiled: Callable[..., Any], checked: tuple[int, ...]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        results = compiled(*args)
        for at in checked:
            if not results[at]:
                raise NotAsAssumed
        return results

    return run


def _restoring(compiled: Callable[..., Any], settings: tuple[tuple[Any, tuple[Any, ...]], ...]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except BaseException:
            for setter, arguments in settings:
                setter(*arguments)
            raise

    return run


def _in_inference_mode(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with torch.inference_mode():
            return compiled(*args)

    return run
