"""What an operator gives of tensors like those that it was given before in the same capture.

The layers of a model make the same calls of tensors of the same metadata. The abstract run of such a call goes through
PyTorch's dispatch, its autograd and our rule, which takes ten times as long as all that is looked at here. Only the
spec of the result is kept, of calls that do nothing but make one new tensor:

- of a C function of PyTorch's, whose result on abstract tensors follows from what the key holds;
- all of whose operators make new tensors and views, without writing, drawing or looking at data;
- whose result is the very object that the last of them made (:attr:`prims.spec.AbstractMode.made`), without a history.

The key is complete, as nothing else is seen by such a function: the function itself, what its tensors say of themselves
(sizes, strides, place, dtype, device, ``requires_grad``, dispatch keys) and which of them are the same, its other
arguments by type and value, and the modes of the thread. It is kept for one capture, in which the program sets no mode
without our knowing. Sizes are numbers: with symbols a rule may ask, and what it asks is to be recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from prims.spec import AbstractMode, AbstractTensor, TensorSpec, abstract_from_spec

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["key_of", "made_alone"]

#: Types of arguments that are equal where they are the same object or number.
_CONSTANTS = frozenset((int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


class _NoKeyError(Exception):
    """An argument that is not told by type and value, or has a say in more than metadata."""


def key_of(tx: Capture, fn: Any, method: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """All that the metadata of the result follow from; None where it is not known to be all."""
    state = _state(tx)
    if state is None:
        return None
    seen: dict[int, int] = {}
    try:
        given = tuple([_part(arg, seen) for arg in args])
        named = tuple([(name, _part(arg, seen)) for name, arg in kwargs.items()]) if kwargs else ()
    except _NoKeyError:
        return None
    return (fn, method, state, given, named) if seen else None


def _state(tx: Capture) -> Any:
    """The modes of the thread; None where a mode is on under which operators do more than they say."""
    if tx.levels or tx.index_modes or tx.devices.now or torch.is_inference_mode_enabled():
        return None
    if torch._C._is_any_autocast_enabled() or forward_ad._current_level >= 0:
        return None
    set_here = tuple([now for _, now in tx.modes.values()])  # of ever the same settings in the same order, or more
    return torch.is_grad_enabled(), torch.get_default_dtype(), set_here


def _part(arg: Any, seen: dict[int, int]) -> Any:
    kind = type(arg)
    if kind is AbstractTensor:
        return seen.setdefault(id(arg), len(seen)), _of_tensor(arg)
    if kind in _CONSTANTS:
        return kind, arg
    if kind is float:
        return kind, arg.hex()  # 0.0 is not -0.0, and no number is equal to itself that is none
    if kind is list or kind is tuple:
        return kind, *[_part(item, seen) for item in arg]
    raise _NoKeyError


def _of_tensor(x: AbstractTensor) -> Any:
    if x.requires_grad and torch.is_grad_enabled():
        raise _NoKeyError  # its result may have a history
    spec = x.spec
    keys = torch._C._dispatch_keys(x).raw_repr()
    return spec.shape, spec.strides, spec.storage_offset, spec.dtype, spec.device, x.requires_grad, keys


def made_alone(mode: AbstractMode, result: Any) -> TensorSpec | None:
    """The spec of a result that a tensor made of it alone is like; None where the call did, or gives, more.

    Args:
        mode: what the call ran in.
    """
    if mode.had_effects or type(result) is not AbstractTensor or result is not mode.made:
        return None
    if result.requires_grad or result.is_inference():
        return None
    alike = abstract_from_spec(result.spec)
    same = torch._C._dispatch_keys(alike).raw_repr() == torch._C._dispatch_keys(result).raw_repr()
    return result.spec if same and not result._version and not result._is_view() else None
