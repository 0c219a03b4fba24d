"""Running a compiled graph by CUDA-graph replay: one launch from the host, whatever the number of kernels.

Parameters and buffers are read where they are; other inputs are copied into fixed places and results out of theirs,
so that a result may be held for as long as the caller likes. Nothing within a recording outlives its replay: the
recordings that are replayed on one stream, of whatever functions, share one pool of memory and take turns. A recording
serves as long as the parameters' addresses, the inputs' sizes and layouts and the stream stay; another is made, up to
``LIMIT``, for others. Seeds of random numbers are inputs, and the default generators advance with every replay.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from inductor_gen.extern.attention import note, noted
from inductor_gen.extern.cuda import distinct
from prims.forking import lock
from prims.ir import Envelope
from prims.records import record
from prims.report import Report
from prims.spec import TensorSpec
from prims.spec.layout import may_overlap
from prims.spec.tensorspec import as_device

__all__ = ["ALL", "LIMIT", "Replayed", "forget_recordings", "replayed"]

LIMIT = 16  # recordings per compiled graph; further kinds of calls run kernel by kernel
_HELD = ("parameter", "buffer", "constant")

Call = Callable[[Any], list[Any]]
_RECORDING = lock()  # a process records one graph at a time
_SHARED: dict[tuple[torch.device, int], _Shared] = {}  # by device and stream
#: The compiled graphs of the process that are replayed.
ALL: weakref.WeakSet[Replayed] = weakref.WeakSet()


@record(frozen=False)
class _Recording:
    graph: torch.cuda.CUDAGraph
    places: list[Any]
    outputs: list[Any]


class _Shared:
    """What the recordings share that are replayed on one stream.

    Attributes:
        turn: held by who fills places, replays and copies results.
        graphs: the recordings that there are.
    """

    def __init__(self) -> None:
        self.turn = lock()
        self.graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._pool: Any = None

    def pool(self) -> Any:
        """The pool of memory; a new one after all recordings have gone, with whom PyTorch gives it up."""
        if not self.graphs:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool


class Replayed:
    """``call`` by replay. A call that cannot be recorded runs as it is, with the reason in the report, once."""

    def __init__(self, call: Call, held: Sequence[bool], device: torch.device, report: Report) -> None:
        self.call = call
        self.held = tuple(held)
        self.device = device
        self.report = report
        self.seen: set[Any] = set()
        self.recordings: dict[Any, _Recording] = {}
        self.usable = True
        self.reasons: set[str] = set()
        self.lock = threading.Lock()
        ALL.add(self)

    def __call__(self, args: Any) -> list[Any]:
        if not self.usable or torch.cuda.is_current_stream_capturing():
            return self.call(args)
        inputs = list(args)
        # Two streams must not share places: each has its own recording.
        stream = torch.cuda.current_stream(self.device).cuda_stream
        key = (stream, *map(_kind, inputs, self.held))
        shared = _SHARED.get((self.device, stream)) or _SHARED.setdefault((self.device, stream), _Shared())
        # Filling the places, the replay and the copies of its results belong together.
        with self.lock, shared.turn:
            recording = self._recording(key, inputs, shared)
            results = None if recording is None else self._room(recording)
            if recording is not None and results is not None:
                _fill(recording.places, inputs)
                if type(args) is list:
                    args.clear()
                recording.graph.replay()
                _fill(results, recording.outputs)
                return results
        del inputs, recording  # what the call gives up is freed in it
        return self.call(args)

    def _room(self, recording: _Recording) -> list[Any] | None:
        """Where the results go, before anything is written; None where memory is full: it is not to be recordings."""
        try:
            return [_place(x) if isinstance(x, torch.Tensor) else x for x in recording.outputs]
        except torch.OutOfMemoryError:
            self.usable = False
        forget_recordings()
        self._refuse("no memory for results beside what a recording holds")
        return None

    def _recording(self, key: Any, inputs: list[Any], shared: _Shared) -> _Recording | None:
        """The recording for a kind of call, made at its second call; None where there is none."""
        found = self.recordings.get(key)
        if found is not None:
            return found
        if len(self.recordings) >= LIMIT:
            self._refuse(f"more than {LIMIT} kinds of calls (sizes, layouts, parameter addresses, streams)")
            return None
        if key not in self.seen:
            if len(self.seen) >= 4 * LIMIT:
                self.seen.clear()  # kinds that come only once must not pile up
            self.seen.add(key)  # the first call warms the libraries up, which a recording must not contain
            return None
        made = self._record(inputs, shared)
        if made is not None:
            self.recordings[key] = made
        return made

    def _record(self, inputs: list[Any], shared: _Shared) -> _Recording | None:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if any(x.device.type != self.device.type for x in tensors):
            self.usable = False
            self._refuse("an input lives on another device")
            return None
        moved = [isinstance(x, torch.Tensor) and not held for x, held in zip(inputs, self.held, strict=True)]
        once = [distinct(x) for x, m in zip(inputs, moved, strict=True) if m]
        if any(may_overlap(x.shape, x.stride()) for x in once):  # otherwise than by expansion
            self._refuse("an input's elements overlap in memory")
            return None
        graph = torch.cuda.CUDAGraph()
        try:
            with _RECORDING, torch.cuda.device(self.device):
                stream = _capture_stream(self.device)
                try:
                    with torch.cuda.graph(graph, shared.pool(), stream, "thread_local"):
                        places = [_place(x) if m else x for x, m in zip(inputs, moved, strict=True)]
                        outputs = self.call(tuple(places))
                finally:
                    # Libraries keep what they took for the stream; the next recording is to have that memory.
                    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        except Exception as error:
            self.usable = False
            self._refuse(f"recording a CUDA graph failed: {error}")
            return None
        shared.graphs.add(graph)
        kept = {x.untyped_storage().data_ptr() for x in places if any(x is given for given in tensors)}
        return _Recording(graph, [_alias(x, kept) for x in places], [_alias(x, kept) for x in outputs])

    def _refuse(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.add(reason)
            self.report.fallback("cudagraphs", reason, eager=False)


def _fill(places: list[Any], values: list[Any]) -> None:
    """Copy tensors to their places, where they are not there already; other values stand there."""
    both = zip(places, values, strict=True)
    moved = [(place, x) for place, x in both if isinstance(x, torch.Tensor) and place is not x and x.numel()]
    pairs = [(distinct(place), distinct(x)) for place, x in moved]
    if pairs:
        torch._foreach_copy_([place for place, _ in pairs], [x for _, x in pairs], non_blocking=True)


def _alias(x: Any, kept: Collection[int]) -> Any:
    """A tensor in the same memory, which it does not own: the pool may give it to the next recording. What lies in
    ``kept`` storages, and what is no tensor, is its own."""
    if not isinstance(x, torch.Tensor) or x.untyped_storage().data_ptr() in kept or not x.numel():
        return x
    reach = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    memory = torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, reach * x.element_size())
    return _noted(torch.empty(0, dtype=x.dtype, device=x.device).set_(memory, 0, x.shape, x.stride()), x)


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device's recordings; PyTorch's own is on the device of the first recording. Libraries keep a
    workspace for each stream."""
    return torch.cuda.Stream(device)


def _kind(x: Any, held: bool) -> Any:
    """What of an input a recording depends on."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.data_ptr() if held else (x.shape, x.stride(), x.device, noted(x))


def _place(x: torch.Tensor) -> torch.Tensor:
    return _noted(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device), x)


def _noted(copy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A copy with what an attention noted on the original, by which its backward goes."""
    verdict = noted(x)
    if verdict is not None:
        note(copy, verdict)
    return copy


def forget_recordings() -> None:
    """Give up all recordings of the process, and with them their memory; those still used are made again."""
    for call in list(ALL):
        call.recordings.clear()


def replayed(call: Call, env: Envelope, report: Report) -> Call:
    """``call`` by CUDA-graph replay where the envelope's inputs are on one GPU, else as it is."""
    specs = [d.spec for d in env.inputs] + [d.spec for d in env.outputs]
    devices = {spec.device for spec in specs if isinstance(spec, TensorSpec)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        if any(device.type == "cuda" for device in devices):
            report.fallback("cudagraphs", "inputs and results live on several devices", eager=False)
        return call
    return Replayed(call, [d.kind in _HELD for d in env.inputs], as_device(devices.pop()), report)
