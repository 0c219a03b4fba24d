"""Operators that a program brings with it: what a call of one may do besides giving tensors."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch

from dynamo_capture.breaks import GraphBreak

__all__ = ["check_custom", "is_changed", "mark_written", "visible_body"]

_OWN = ("aten", "prims", "prim")
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


@functools.lru_cache(maxsize=4096)
def _schemas(fn: Any) -> tuple[Any, ...]:
    """The schemas that a call of a custom operator may mean; none for any other function."""
    if isinstance(fn, torch._ops.OpOverload):
        found = (fn._schema,)
    elif isinstance(fn, torch._ops.OpOverloadPacket):
        found = tuple(getattr(fn, name)._schema for name in fn.overloads())
    else:
        return ()
    return tuple(s for s in found if s.name.partition("::")[0] not in _OWN)


def check_custom(fn: Any) -> None:
    """Refuse an operator whose call leaves nothing in a graph that would keep it.

    Raises:
        GraphBreak: it returns nothing and writes to no argument, so that it is called for some other effect; or it
            returns a number, which a graph on abstract tensors cannot know.
    """
    for schema in _schemas(fn) if isinstance(fn, _OPERATORS) else ():
        if not schema.returns and not schema.is_mutable:
            raise GraphBreak("QB03", f"the operator {schema.name}, which returns nothing and is run for its effect")
        for returned in schema.returns:
            if "Tensor" not in str(returned.type):
                raise GraphBreak("QB02", f"the operator {schema.name} returns a {returned.type}")


@functools.lru_cache(maxsize=4096)
def _writing(fn: Any) -> tuple[Any, ...]:
    """The schemas of PyTorch's own, of those that return nothing, that a function of ``torch`` may mean."""
    return tuple(schema for schema in _schemas_of(fn) if not schema.returns)


def _schemas_of(fn: Any) -> list[Any]:
    """The schemas of PyTorch's own that a function of ``torch``, or an operator, may mean."""
    if isinstance(fn, torch._ops.OpOverload):
        return [fn._schema]
    packet = fn
    if not isinstance(fn, torch._ops.OpOverloadPacket):
        packet = None if isinstance(fn, str) else getattr(torch.ops.aten, getattr(fn, "__name__", ""), None)
    return [] if packet is None else [getattr(packet, overload)._schema for overload in packet.overloads()]


def mark_written(fn: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> None:
    """Advance the version counters of the tensors that an operator's schema says it writes.

    PyTorch does so only for operators with an autograd kernel; capture tells by the counters what was written.
    Its own that return nothing may lack one, as ``torch._amp_foreach_non_finite_check_and_unscale_`` and those of lists
    (``torch._foreach_add_``) do, whose bindings return the list.
    """
    for schema in _schemas(fn) or (_writing(fn) if result is None or _is_first(args, result) else ()):
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = kwargs.get(argument.name, args[i] if i < len(args) else None)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                _count(tensor)
    names = _of_statistics(fn)
    if not names:
        return
    given = dict(zip(names, args, strict=False)) | kwargs
    flags = [given.get(flag, flag == "use_input_stats") for flag in _FLAGS if flag in names]
    for name in _STATISTICS if all(flags) else ():
        for tensor in (given.get(name), getattr(given.get(name), "_base", None)):
            if isinstance(tensor, torch.Tensor):
                tensor.__dict__["_written_uncounted"] = True


def is_changed(tensor: torch.Tensor) -> bool:
    """Whether an abstract tensor has been written to since it was made."""
    return bool(tensor._version) or "_written_uncounted" in tensor.__dict__


def _count(tensor: Any) -> None:
    if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


#: What a normalisation writes, which no schema of it says. No version counter tells either: autograd counts on that, as
#: it keeps them for the backward pass.
_STATISTICS = ("running_mean", "running_var")
#: By which it does; the second is true where it is not given.
_FLAGS = ("training", "use_input_stats")


@functools.lru_cache(maxsize=4096)
def _of_statistics(fn: Any) -> tuple[str, ...]:
    """The names of a function's arguments, if running statistics are among them."""
    name = fn._schema.name if isinstance(fn, torch._ops.OpOverload) else getattr(fn, "__name__", "")
    if "_norm" not in name:
        return ()
    if isinstance(fn, types.FunctionType):
        names = tuple(inspect.signature(fn).parameters)
    else:
        found = _schemas_of(fn)
        names = tuple(argument.name for argument in found[0].arguments) if found else ()
    return names if set(_STATISTICS) <= set(names) else ()


def _is_first(args: list[Any], result: Any) -> bool:
    """Whether the result is a list, and its elements those of the first argument."""
    first = args[0] if args else None
    if not isinstance(result, (list, tuple)) or not isinstance(first, (list, tuple)) or len(first) != len(result):
        return False
    return all(isinstance(a, torch.Tensor) and a is b for a, b in zip(first, result, strict=True))


def visible_body(fn: Any) -> Any:
    """The Python function behind a ``torch.library.triton_op``, which is captured in the operator's place.

    None for any other operator, and where a gradient formula is registered: then the operator stays whole.
    """
    if not isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return None
    name = fn._schema.name if isinstance(fn, torch._ops.OpOverload) else fn._qualified_op_name
    if name not in torch._library.triton.triton_ops_to_kernels:
        return None
    definition = torch._library.custom_ops.OPDEFS.get(name)
    if definition is None or definition._backward_fn is not None:
        return None
    return definition._abstract_fn
