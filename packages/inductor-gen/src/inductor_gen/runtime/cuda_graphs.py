"""Running a compiled graph by CUDA-graph replay: one launch from the host, whatever the number of kernels.

Parameters and buffers are read where they are; other inputs are copied into fixed places and results out of theirs,
so that a result may be held for as long as the caller likes. A recording serves as long as the parameters' addresses
and the inputs' sizes and layouts stay; another is made, up to ``LIMIT``, for others. The generators of random numbers
advance with every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prims.ir import Envelope
from prims.report import Report
from prims.spec import TensorSpec

__all__ = ["LIMIT", "Replayed", "replayed"]

LIMIT = 16  # recordings per compiled graph; further kinds of calls run kernel by kernel
_HELD = ("parameter", "buffer", "constant")

Call = Callable[[Any], list[Any]]


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    places: list[Any]
    outputs: list[Any]


class Replayed:
    """``call`` by replay. A graph that cannot be recorded runs as it is, with the reason in the report."""

    def __init__(self, call: Call, held: Sequence[bool], device: torch.device, report: Report | None) -> None:
        self.call = call
        self.held = tuple(held)
        self.device = device
        self.report = report
        self.seen: set[Any] = set()
        self.recordings: dict[Any, _Recording] = {}
        self.usable = True

    def __call__(self, args: Any) -> list[Any]:
        if not self.usable or torch.cuda.is_current_stream_capturing():
            return self.call(args)
        inputs = list(args)
        key = tuple(
            x.data_ptr() if held else (x.shape, x.stride(), x.device) if isinstance(x, torch.Tensor) else x
            for x, held in zip(inputs, self.held, strict=True)
        )
        recording = self.recordings.get(key)
        if recording is None:
            if key not in self.seen or len(self.recordings) >= LIMIT:
                self.seen.add(key)  # the first call warms the libraries up, which a recording must not contain
                return self.call(args)
            recording = self._record(inputs)
            if recording is None:
                return self.call(args)
            self.recordings[key] = recording
        else:
            self._fill(recording, inputs)
        if type(args) is list:
            args.clear()
        recording.graph.replay()
        return [x.clone() if isinstance(x, torch.Tensor) else x for x in recording.outputs]

    def _fill(self, recording: _Recording, inputs: list[Any]) -> None:
        targets, sources = [], []
        for place, x in zip(recording.places, inputs, strict=True):
            if place is not x and isinstance(x, torch.Tensor) and place.numel():
                targets.append(place)
                sources.append(x)
        if targets:
            torch._foreach_copy_(targets, sources, non_blocking=True)

    def _record(self, inputs: list[Any]) -> _Recording | None:
        places = [
            _place(x) if isinstance(x, torch.Tensor) and not held and x.device.type == "cuda" else x
            for x, held in zip(inputs, self.held, strict=True)
        ]
        if any(isinstance(x, torch.Tensor) and x.device.type != "cuda" for x in inputs):
            self._give_up("an input lives on the CPU")
            return None
        graph = torch.cuda.CUDAGraph()
        recording = _Recording(graph, places, [])
        self._fill(recording, inputs)
        torch.cuda.current_stream(self.device).synchronize()
        try:
            with torch.cuda.device(self.device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                recording.outputs = self.call(tuple(places))
        except Exception as error:
            self._give_up(f"recording a CUDA graph failed: {error}")
            return None
        return recording

    def _give_up(self, reason: str) -> None:
        self.usable = False
        if self.report is not None:
            self.report.fallback("cudagraphs", reason)


def _place(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def replayed(call: Call, env: Envelope, report: Report | None) -> Call:
    """``call`` by CUDA-graph replay where the envelope's inputs are on one GPU, else as it is."""
    specs = [d.spec for d in env.inputs] + [d.spec for d in env.outputs]
    devices = {spec.device for spec in specs if isinstance(spec, TensorSpec)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return call
    device = devices.pop()
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Replayed(call, [d.kind in _HELD for d in env.inputs], device, report)
