"""Tensors that wait in host memory: operators that copy them there and back beside the computation.

``quintet::to_host`` and ``quintet::to_device`` begin a copy on a stream of their own, ``quintet::at_host`` and
``quintet::at_device`` have the computation wait for it: from then on the memory that was copied may be used again, or
what was copied may be read. Each pair stands around what is computed meanwhile. Copies run in the order in which they
begin. On a device without streams they are plain copies.

Source: vDNN (Rhu et al., "Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design",
2016).
"""

from __future__ import annotations

import torch

from prims.registry import define_operator
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec

__all__ = ["AT_DEVICE", "AT_HOST", "TO_DEVICE", "TO_HOST"]

#: A stream for each GPU, which copies both ways: so nothing is read back before it was written.
_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    found = _streams.get(device)
    if found is None:
        found = _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return found


def _copied(x: torch.Tensor, onto: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``onto``, which will have been filled when the event is reached that it carries."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        onto.copy_(x, non_blocking=True)
        onto.copied = stream.record_event()  # type: ignore[attr-defined]
    return onto


def _await(copied: torch.Tensor, device: torch.device) -> None:
    stream = torch.cuda.current_stream(device)
    event = getattr(copied, "copied", None)
    if event is None:
        stream.wait_stream(_stream(device))
    else:
        stream.wait_event(event)


def _to_host(self: torch.Tensor) -> torch.Tensor:
    if self.device.type != "cuda":
        return self.clone()
    layout = {"dtype": self.dtype, "device": "cpu", "pin_memory": True}
    return _copied(self, torch.empty_strided(self.shape, self.stride(), **layout), self.device)  # type: ignore[arg-type]


def _at_host(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if source.device.type == "cuda":
        _await(self, source.device)
    return self.detach()


def _to_device(self: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type != "cuda":
        return self.clone()
    device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
    onto = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=device)
    return _copied(self, onto, device)


def _at_device(self: torch.Tensor) -> torch.Tensor:
    if self.device.type == "cuda":
        _await(self, self.device)
    return self.detach()


define_operator("to_host(Tensor self) -> Tensor", _to_host)
define_operator("at_host(Tensor self, Tensor source) -> Tensor", _at_host)
define_operator("to_device(Tensor self, Device device) -> Tensor", _to_device)
define_operator("at_device(Tensor self) -> Tensor", _at_device)
TO_HOST, AT_HOST = torch.ops.quintet.to_host.default, torch.ops.quintet.at_host.default
TO_DEVICE, AT_DEVICE = torch.ops.quintet.to_device.default, torch.ops.quintet.at_device.default


@meta_rule("quintet.to_host.default")
def _of_host(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, torch.device("cpu"), x.strides)


@meta_rule("quintet.to_device.default")
def _of_device(x: TensorSpec, device: torch.device) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, device, x.strides)


@meta_rule("quintet.at_host.default", "quintet.at_device.default")
def _as_it_is(x: TensorSpec, source: TensorSpec | None = None) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device, x.strides)
