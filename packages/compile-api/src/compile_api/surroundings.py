"""What surrounds a graph that is compiled: a thread's modes and the process's settings, for a script to bring about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field

import torch

from prims.records import record

__all__ = ["Modes"]


def _settings() -> tuple[tuple[str, str], ...]:
    """What programs may compute differently under: the call that sets it to what it is, and to what a process begins
    with. (How many threads there are is a machine's, and not among them.)"""
    level, precision = torch.get_deterministic_debug_mode(), torch.get_float32_matmul_precision()
    return (
        (f"torch.set_default_dtype({torch.get_default_dtype()})", "torch.set_default_dtype(torch.float32)"),
        (f"torch.set_deterministic_debug_mode({level})", "torch.set_deterministic_debug_mode(0)"),
        (f"torch.set_float32_matmul_precision({precision!r})", "torch.set_float32_matmul_precision('highest')"),
    )


def _changed() -> tuple[str, ...]:
    return tuple(now for now, first in _settings() if now != first)


@record
class Modes:
    """Gradients, inference mode and autocast of a thread, in which a graph was compiled, and settings of the process.

    Attributes:
        autocast: each kind of device with whether it is on and its dtype.
        settings: lines of Python that set what was not as a process begins with it.
    """

    gradients: bool
    inference: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    settings: tuple[str, ...] = field(default=())

    @classmethod
    def now(cls) -> Modes:
        """Those of this moment."""
        devices = ("cpu", "cuda")
        casts = ((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), tuple(casts), _changed())

    @contextmanager
    def again(self) -> Iterator[None]:
        """In these modes. (Settings are the process's, which is the same.)"""
        with ExitStack() as stack:
            for device, enabled, dtype in self.autocast:
                if enabled:
                    stack.enter_context(torch.autocast(device, dtype))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            yield

    def context(self) -> str:
        """What a ``with`` statement is to enter for these modes; empty where a program begins in them."""
        entered = [f"torch.autocast({d!r}, {dtype})" for d, enabled, dtype in self.autocast if enabled]
        if self.inference:
            entered.append("torch.inference_mode()")
        elif not self.gradients:
            entered.append("torch.no_grad()")
        return ", ".join(entered)
