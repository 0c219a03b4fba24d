"""The functions that generated code calls for operators, and how a file tells which they are.

A function is one of a closed list, by its name; an operator, by its; or what a *maker* of a closed list makes of such
functions and plain values. Nothing that a file names is imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from inductor_gen.extern import cpu, cuda, ordered
from prims.artefact import NotPortable
from prims.coding import decoded, encoded
from prims.eager import warn_user
from prims.errors import StoredGraphError

__all__ = [
    "checked", "cloned", "deterministic", "function_from", "function_told", "twin_in_place", "with_dense_rows",
    "with_own_memory", "without_shared",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Callable[..., Any]])

_MAKERS: dict[str, Callable[..., Callable[..., Any]]] = {}


def _maker(make: F) -> F:
    """Note on each function that ``make`` makes of what it was made."""

    @functools.wraps(make)
    def noted(*args: Any) -> Callable[..., Any]:
        made = make(*args)
        if made is not args[0]:
            made.made_by = (make.__name__, args)  # type: ignore[attr-defined]
        return made

    _MAKERS[make.__name__] = noted
    return noted  # type: ignore[return-value]


@_maker
def without_shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """The program may well have copied an expanded tensor first: here such a copy is no operator of its own."""

    def call(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(x.contiguous() if 0 in x.stride() else x, *args, **kwargs)

    return call


@_maker
def with_dense_rows(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The CPU's flash kernels take a stride of 1 in the last dimension for granted and read past the end without it.

    PyTorch itself chooses them only then; after fusion and layout planning an operand may be strided otherwise.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        dense = [x if x.stride(-1) == 1 else x.contiguous() for x in args[:count]]
        return function(*dense, *args[count:], **kwargs)

    return call


@_maker
def cloned(target: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one result, which is copied."""
    return lambda *args: target(*args).clone()


@_maker
def twin_in_place(
    operator: Any, same: tuple[tuple[int, int], ...], lengths: tuple[int | None, ...], owned: tuple[int, ...]
) -> Callable[..., Any]:
    """What an operator's functional twin computes, on the memory of the operands at the positions ``owned``."""
    from prims.twins import run_of_twin

    return run_of_twin(operator, same, lengths, frozenset(owned))


@_maker
def with_own_memory(target: Any) -> Callable[..., Any]:
    """An overload whose results are views, as copies: the memory of what it is given may be used anew."""
    if not isinstance(target, torch._ops.OpOverload) or all(r.alias_info is None for r in target._schema.returns):
        return target

    def call(*args: Any, **kwargs: Any) -> Any:
        out = target(*args, **kwargs)
        return out.clone() if isinstance(out, torch.Tensor) else [x.clone() for x in out]

    return call


@_maker
def deterministic(function: Callable[..., Any]) -> Callable[..., Any]:
    """As under ``torch.use_deterministic_algorithms``, whose error names the operator that has no such algorithm."""

    def call(*args: Any, **kwargs: Any) -> Any:
        before = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
        if before == (True, False):
            return function(*args, **kwargs)
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])

    return call


@_maker
def checked(function: Callable[..., Any], name: str, owned: tuple[int, ...]) -> Callable[..., Any]:
    """``function`` with a look at what its schema promises: results of their own memory, untouched arguments.

    Memory that a result shares with an argument may be written again by the kernels that follow; such a result is
    copied.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        operands = _tensors((args, kwargs))
        before = [-1 if x.is_inference() else x._version for x in operands]
        out = function(*args, **kwargs)
        for i, (x, version) in enumerate(zip(operands, before, strict=True)):
            if version >= 0 and x._version != version and i not in owned:
                _warn(name, "writes to an argument")
        taken = {_memory(x) for i, x in enumerate(operands) if i not in owned}
        return _apart(out, taken, name)

    return call


def _apart(out: Any, taken: set[int], name: str) -> Any:
    if isinstance(out, torch.Tensor):
        memory = _memory(out)
        if memory in taken and out.numel():
            _warn(name, "returns memory that it was given or has returned already")
            return out.clone()
        taken.add(memory)
        return out
    if isinstance(out, (tuple, list)):
        return type(out)([_apart(x, taken, name) for x in out])
    return out


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


@functools.cache
def _warn(name: str, what: str) -> None:
    warn_user(
        f"the custom operator {name} {what}, which its schema does not say. The compiled program works on copies and "
        "may differ from the eager one; correct the operator's schema (mutates_args) or clone the result."
    )


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among nested arguments, in order and with repetitions."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _tensors(value)
        elif isinstance(value, dict):
            found += _tensors(value.values())
    return found


# ---- in files ---------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch.mm": torch.mm, "torch.bmm": torch.bmm, "torch.convolution": torch.convolution, "torch.matmul": torch.matmul,
    "torch.addmm": torch.addmm, "torch.baddbmm": torch.baddbmm, "torch._addmm_activation": torch._addmm_activation,
    "torch.nn.functional.linear": torch.nn.functional.linear, **cpu.FUNCTIONS, **cuda.FUNCTIONS, **ordered.FUNCTIONS,
}  # fmt: skip
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def function_told(function: Callable[..., Any]) -> dict[str, Any]:
    """A function that generated code calls, as JSON.

    Raises:
        NotPortable: it is none that a file can tell of.
    """
    name = _NAMES.get(function)
    if name is not None:
        return {"function": name}
    if isinstance(function, torch._ops.OpOverload):
        return {"operator": encoded(function)}
    if type(function).__name__ == "PrimOp" and type(function).__module__.startswith("prims."):
        return {"primitive": function.name}  # type: ignore[attr-defined]
    made_by = getattr(function, "made_by", None)
    if made_by is None:
        raise NotPortable(f"{getattr(function, '__qualname__', function)}, called for an operator, cannot be stored")
    maker, args = made_by
    return {"maker": maker, "args": [function_told(a) if callable(a) else {"value": encoded(a)} for a in args]}


def function_from(told: Any) -> Callable[..., Any]:
    """The function of :func:`function_told`'s JSON.

    Raises:
        StoredGraphError: there is none of these names here.
    """
    kind, name = next(iter(told.items()))
    if kind == "function" and name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if kind == "operator":
        found = decoded(name)
        if isinstance(found, torch._ops.OpOverload):
            return found
    if kind == "primitive":
        from prims.ops import TABLE

        if name in TABLE:
            return TABLE[name]
    if kind == "maker" and name in _MAKERS:
        return _MAKERS[name](*(decoded(a["value"]) if "value" in a else function_from(a) for a in told["args"]))
    raise StoredGraphError("ART-C5", f"generated code calls no {str(kind)[:80]} {str(name)[:80]!r}")
