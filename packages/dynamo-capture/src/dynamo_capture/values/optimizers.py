"""Optimizers of ``torch.optim``: their steps are captured as the Python that they are.

What they ask PyTorch's compiler for is left out: the decorator of every ``step`` imports it.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.device_steps import DEVICE_STEPS
from dynamo_capture.values.fused_steps import adafactor
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import Handler, special, special_by_code, special_by_name

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["counts_on_device", "step_with_grad"]


def step_with_grad(step: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``step(self, ...)`` with gradients where the optimizer is differentiable, as its decorator runs it."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(self.defaults["differentiable"])
        return step(self, *args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


@special_by_code(torch._disable_dynamo(step_with_grad))
def _kept_from_compiler(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function that its decorator keeps from PyTorch's compiler: an optimizer's (``zero_grad``) is captured."""
    if not fn.__module__.startswith("torch.optim."):
        return _inline(tx, fn, args, kwargs)
    return tx.from_python(_of_closure(fn, "fn")).realize().call(tx, args, kwargs)


def _adafactor(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tx.eager_bits:
        raise GraphBreak("QB03", "Adafactor's step, whose bits only eager's operators give")
    return tx.from_python(adafactor).realize().call(tx, args, kwargs)


for _name in ("_single_tensor_adafactor", "_multi_tensor_adafactor"):
    special_by_name("torch.optim._adafactor", _name)(_adafactor)


def counts_on_device(tensor: torch.Tensor) -> bool:
    """Whether reading a step count would wait for a device."""
    return tensor.device.type != "cpu"


def _on_device(name: str, step: Any, unless: tuple[str, ...]) -> Handler:
    """The handler of a function that makes a step, in whose place ``step`` is captured if the counts are on a device.

    Args:
        unless: the options with which the library's own function is captured.
    """

    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        library = getattr(sys.modules[f"torch.optim.{name.rpartition('_')[2]}"], name)
        library = library.__dict__.get("_torchdynamo_orig_callable", library)
        parameters = inspect.signature(library).parameters
        given = dict(zip(parameters, args, strict=False)) | kwargs
        options = (given.get(option, ConstantValue(False)).realize() for option in unless)
        counts, params = (_tensors(given.get(key)) for key in ("state_steps", "params"))
        if (
            counts and all(option.is_const and not option.const() for option in options)
            and all(counts_on_device(count.example) for count in counts)
            and {count.example.device for count in counts} == {param.example.device for param in params}
        ):  # fmt: skip
            return tx.from_python(step).realize().call(tx, args, kwargs)
        return _inline(tx, library, args, kwargs)

    return handler


def _inline(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.interpreted(tx.function(fn, None), args, kwargs)  # type: ignore[arg-type]


def _tensors(value: Value | None) -> list[TensorValue]:
    """The tensors of a list; none if it has anything else."""
    items = getattr(None if value is None else value.realize(), "items", None)
    found = [item.realize() for item in items] if isinstance(items, (list, tuple)) else []
    return found if all(isinstance(item, TensorValue) for item in found) else []  # type: ignore[return-value]


for _name, (_step, _unless) in DEVICE_STEPS.items():
    for _kind in ("single", "multi"):
        _function = f"_{_kind}_tensor_{_name}"
        special_by_name(f"torch.optim.{_name}", _function)(_on_device(_function, _step, _unless))


def _of_closure(fn: Any, name: str) -> Any:
    return fn.__closure__[fn.__code__.co_freevars.index(name)].cell_contents


def _check_graph_capture(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Eager refuses, or warns of, a step that a CUDA graph does or does not record."""
    recording = torch.cuda.is_current_stream_capturing
    if torch.cuda.is_available():
        if tx.guards.now(recording, "a CUDA graph records"):
            raise GraphBreak("QB03", "an optimizer's step that a CUDA graph records")
    return ConstantValue(None)


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    special(getattr(optimizer.Optimizer, _name, None))(_check_graph_capture)


@special_by_name("torch.optim.lr_scheduler", "step")
def _schedule(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A schedule's step computes a rate of its own counts in Python: captured, it would be fixed to each of them."""
    raise GraphBreak("QB06", "the step of a learning rate schedule, which goes by counts of its own")


@special_by_code(optimizer._use_grad_for_differentiable(step_with_grad))
def _use_grad(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    step = tx.from_python(_of_closure(fn, "func"))
    return tx.from_python(step_with_grad).realize().call(tx, [step, *args], kwargs)
