"""What the generated function that runs a graph calls, beside kernels and operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.extern.attention import as_the_forward, note
from inductor_gen.runtime.launch import UNALIGNED
from inductor_gen.runtime.products import unusual
from inductor_gen.runtime.steps import Parts, note_parts
from inductor_gen.unit import BAD_DIVISOR, BAD_INDEX
from prims.errors import InternalError, InvalidData, Unsupported
from prims.spec.expr import FLOAT_BINARY, FLOAT_UNARY, bits_of_float

__all__ = ["FRESH", "HELPERS", "agrees", "function_of_text", "on_device", "refuse", "relayout", "retyped"]


def refuse(bad: int) -> None:
    """Say what a kernel met in the program's data.

    Raises:
        InvalidData: always.
    """
    what = [text for bit, text in _REFUSED.items() if bad & bit]
    raise InvalidData(f"a generated kernel met {' and '.join(what)}")


_REFUSED = {BAD_INDEX: "an index out of range", BAD_DIVISOR: "an integer division by zero"}


def retyped(
    x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A tensor of another dtype in the same memory; ``offset`` counts its elements."""
    return torch.empty(0, dtype=dtype, device=x.device).set_(x.untyped_storage(), offset, shape, strides)


def relayout(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor with the strides that were planned, copied unless they differ in dimensions of size 1 only."""
    if all(a == b or n <= 1 for a, b, n in zip(x.stride(), strides, x.shape, strict=True)) or not x.numel():
        return x
    once = x
    for dim, step in enumerate(strides):
        if step == 0:  # all along it is one element
            once = once.narrow(dim, 0, 1)
    return torch.empty_strided(once.shape, strides, dtype=x.dtype, device=x.device).copy_(once).expand(x.shape)


def agrees(x: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    """In the first call: is an operator's result what the kernels that read it were written for?

    Raises:
        InternalError: it is not.
    """
    if tuple(x.shape) != shape or x.dtype != dtype:
        found, planned = (f"{t} {list(n)}" for t, n in ((x.dtype, x.shape), (dtype, shape)))
        rule = "metadata rule" if name.startswith("aten.") else "fake implementation (register_fake)"
        raise InternalError(f"{name} gave a result of {found}, where its {rule} says {planned}")


def _too_large() -> None:
    raise Unsupported("a size grew beyond what kernels compiled with 32-bit positions for smaller sizes can address")


def _relaunch(
    run: Callable[..., int], code: int, tensors: Sequence[torch.Tensor], rest: Sequence[int], written: Sequence[int]
) -> None:
    """Launch again with aligned copies of operands that do not begin at a multiple of 16 bytes; what the kernels write
    of these (inputs that they update) is brought back."""
    if code == UNALIGNED:
        aligned = list(map(_aligned, tensors))
        code = run(*aligned, *rest)
        for k in written:
            if aligned[k] is not tensors[k]:
                tensors[k].data.copy_(aligned[k])  # who asked for the write counts it
    if code:
        raise InternalError(f"the CUDA driver refused to launch a generated kernel (error {code})")


def _aligned(t: torch.Tensor) -> torch.Tensor:
    if t.data_ptr() % 16 == 0:
        return t
    reach = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)) + 1 if t.numel() else 0
    return t.as_strided((reach,), (1,)).clone().as_strided(t.shape, t.stride(), 0)  # with elements that views share


def on_device(call: Callable[[list[Any]], list[Any]], index: int) -> Callable[[list[Any]], list[Any]]:
    """``call`` with a GPU made current where another is."""
    current = torch._C._cuda_getDevice
    below_autograd = torch._C._AutoDispatchBelowAutograd  # a graph's operators record nothing

    def on_device(args: list[Any]) -> list[Any]:
        with below_autograd():
            if current() == index:
                return call(args)
            with torch.cuda.device(index):
                return call(args)

    return on_device


def labelled(label: str, run: Callable[..., Any], *args: Any) -> Any:
    """A call that the profiler, which is on, sees under a label."""
    with torch.autograd.profiler.record_function(label):
        return run(*args)


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


#: The name of the list that is empty once a call has ended.
FRESH = "fresh"

#: The names that the text of such a function finds, whatever the graph.
HELPERS: dict[str, Any] = {
    "__name__": "inductor_gen.runtime.wrapper",  # by which capture knows that this is not the user's code
    "torch": torch, "empty_strided": torch.empty_strided, "as_strided": torch.as_strided, "retyped": retyped,
    "refuse": refuse, "pack_float": bits_of_float, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "ite": _chosen, "relayout": relayout, "note": note, "as_the_forward": as_the_forward, "relaunch": _relaunch,
    "cuda_stream": getattr(torch._C, "_cuda_getCurrentRawStream", None), "too_large": _too_large, "unusual": unusual,
    "agrees": agrees, "profiled": torch._C._autograd._profiler_enabled, "labelled": labelled,
    "mm": torch.mm, "addmm": torch.addmm, "bmm": torch.bmm,
    **FLOAT_UNARY, **FLOAT_BINARY,
}  # fmt: skip


def function_of_text(text: str, space: dict[str, Any], parts: Parts) -> Callable[[list[Any]], list[Any]]:
    """The function ``call`` of a text, which finds the names of ``space``, and a list, full until a call has ended."""
    space[FRESH] = [True]
    exec(compile(text, "<quintet wrapper>", "exec"), space)
    note_parts(space["call"], parts)
    return space["call"]  # type: ignore[no-any-return]
