"""The states of torch's random generators, around calls that are made again when they raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

__all__ = ["RandomState", "is_random", "may_draw", "rewinding"]


def may_draw(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an overload may advance a random generator.

    Operators that others have registered do not say, and count as such that do.
    """
    if func.namespace not in ("aten", "prims"):
        return True
    if not is_random(func):
        return False
    for k, argument in enumerate(func._schema.arguments):  # the tag is also that of attention that drops nothing out
        if argument.name == "dropout_p":
            return bool((args[k] if k < len(args) else kwargs.get("dropout_p", 0.0)) != 0.0)
    return True


def is_random(func: Any) -> bool:
    """Whether there are calls of an overload that may advance a random generator."""
    return func.namespace not in ("aten", "prims") or torch.Tag.nondeterministic_seeded in func.tags


class RandomState:
    """The default generators of these devices as they are now; a CUDA device's is left out while a graph records."""

    __slots__ = ("_kept",)

    def __init__(self, devices: Iterable[torch.device]) -> None:
        generators = [generator for device in devices if (generator := _generator(device)) is not None]
        self._kept = [(generator, generator.get_state()) for generator in generators]

    def put_back(self) -> None:
        """What was drawn since will be drawn again."""
        for generator, state in self._kept:
            generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator | None:
    if device.type == "cpu":
        return torch.default_generator
    if device.type != "cuda" or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def rewinding(run: Callable[..., Any], devices: Iterable[torch.device]) -> Callable[..., Any]:
    """``run``, with the random generators of ``devices`` put back when it raises."""
    devices = tuple(devices)

    def call(*args: Any) -> Any:
        before = RandomState(devices)
        try:
            return run(*args)
        except Exception:
            before.put_back()
            raise

    return call
