"""Calls that leave what they write as it was when they raise, so that the program can go on in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from prims.spec.layout import may_overlap

__all__ = ["NotPutBackError", "undoing", "writes_when_done"]

F = TypeVar("F", bound=Callable[..., Any])


class NotPutBackError(BaseException):
    """What a call wrote before it raised could not be put back.

    No :class:`Exception`, for nobody may go on from there: what runs again would write a second time.
    """


def writes_when_done(compiled: F) -> F:
    """Declare that a compiled graph which raises has not written its inputs, but for what it would write again.

    Sets ``compiled.writes_when_done = True``. Capture then keeps no copies of what the graph writes.
    """
    compiled.writes_when_done = True  # type: ignore[attr-defined]
    return compiled


def undoing(run: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """``run``, with copies of the arguments at ``written`` that are put back when it raises.

    Autograd's history of an argument is not put back: writes that autograd sees must come after all that may raise. The
    function raises :class:`NotPutBackError` where an argument's values cannot be put back.
    """

    def call(*args: Any) -> Any:
        kept = [_Kept(args[at]) for at in written]
        try:
            return run(*args)
        except Exception as error:
            try:
                for each in kept:
                    each.put_back()
            except Exception as failed:
                raise NotPutBackError(f"inputs are left half written after {error!r}: {failed}") from error
            raise

    return call


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where its elements share memory all from the first of them to the last, each once."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return tensor
    if not torch._debug_has_internal_overlap(tensor) or not may_overlap(tensor.shape, tensor.stride()):
        return tensor
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach + 1 if tensor.numel() else 0,), (1,))


class _Kept:
    """What a tensor is before it is written: values, shape, memory and version counter."""

    __slots__ = ("alias", "tensor", "values", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        with torch.no_grad():
            self.alias = tensor.detach()
            self.values = _memory(self.alias).clone()

    def put_back(self) -> None:
        tensor, alias = self.tensor, self.alias
        if self.version is not None and tensor._version == self.version:
            return
        with torch.no_grad():
            if (tensor.shape, tensor.stride(), tensor.data_ptr()) != (alias.shape, alias.stride(), alias.data_ptr()):
                tensor.set_(alias.untyped_storage(), alias.storage_offset(), alias.shape, alias.stride())  # type: ignore[call-overload]
            _memory(tensor.detach()).copy_(self.values)
        if self.version is not None:
            torch._C._autograd._unsafe_set_version_counter((tensor,), (self.version,))
