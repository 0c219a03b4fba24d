"""What the user promises of functions: that the result is always the same, that another function does the same.

No guard watches a promise. It is to be given before the functions are first captured (or ``reset()`` after it).
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from prims.errors import UserError
from prims.records import record

__all__ = ["assume_constant_result", "is_assumed_constant", "is_disabled_by_torch", "substitute_in_graph",
           "substitute_of", "why_disabled_by_torch"]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

_constant: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def assume_constant_result(fn: F) -> F:
    """Promise that a function, or method, gives what it gave before, for equal arguments.

    It is called once, when it is captured, and its result stands in the program from then on. The arguments are
    guarded: they are equal, or the same objects. That the result is the same is not checked, nor anything else that the
    function reads. No tensor may be among the arguments.

    Raises:
        UserError: no Python function.
    """
    function = fn.__func__ if isinstance(fn, types.MethodType) else fn
    if type(function) is not types.FunctionType:
        raise UserError(f"cannot assume a constant result of {fn!r}", todo="Pass a Python function.")
    _constant.add(function)
    return fn


def is_assumed_constant(fn: types.FunctionType) -> bool:
    """Whether the result of a function is promised to be constant, here or by PyTorch's function of that name."""
    return fn in _constant or fn.__dict__.get("_dynamo_marked_constant") is True


@record
class Substitute:
    """A function that is captured in the place of another."""

    original: Any
    polyfill: Any


_substitutes: dict[int, Substitute] = {}  # by the identity of the original, which each keeps alive


def substitute_in_graph(
    original: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[F], F]:
    """A decorator: the decorated Python function is captured wherever a region calls ``original``.

    That the two do the same is the user's promise. Outside of regions ``original`` runs, also where the decorated
    function is called.

    Args:
        original: a function, usually one in C that capture does not know.
        can_constant_fold_through: taken, for PyTorch's sake; whatever is constant is folded anyway.
        skip_signature_check: do not compare the parameters.

    Raises:
        UserError: no function; parameters that differ; another function is there already.
    """
    if not isinstance(original, (types.FunctionType, *_C_FUNCTIONS)):
        raise UserError(f"cannot substitute {original!r}: it is no function", todo="Pass the function that is called.")

    def register(polyfill: F) -> F:
        if not isinstance(polyfill, types.FunctionType):
            raise UserError(f"cannot substitute by {polyfill!r}", todo="Decorate a Python function.")
        known = _substitutes.get(id(original))
        if known is not None and known.polyfill is not polyfill:
            raise UserError(f"{original!r} is substituted by {known.polyfill!r} already", todo="Substitute it once.")
        if not skip_signature_check:
            _compare(original, polyfill)
        _substitutes[id(original)] = Substitute(original, polyfill)
        return polyfill

    return register


def _compare(original: Callable[..., Any], polyfill: Callable[..., Any]) -> None:
    try:
        theirs = inspect.signature(original)
    except ValueError:  # many functions in C have none
        return
    ours = inspect.signature(polyfill)
    if _parameters(theirs) != _parameters(ours):
        raise UserError(
            f"{original!r} takes {theirs}, and {polyfill!r} {ours}",
            todo="Give both the same parameters, or skip_signature_check=True.",
        )


def _parameters(signature: inspect.Signature) -> list[Any]:
    return [(p.kind, p.default, p.kind is p.POSITIONAL_ONLY or p.name) for p in signature.parameters.values()]


def substitute_of(fn: Any) -> types.FunctionType | None:
    """The function that is captured in the place of ``fn``, by our registry or the program's part of PyTorch's."""
    known = _substitutes.get(id(fn))
    if known is not None:
        return known.polyfill  # type: ignore[no-any-return]
    module = sys.modules.get("torch._dynamo.variables.functions")
    if module is None:  # (it may also be half imported, on another thread)
        return None
    handlers: Any = getattr(getattr(module, "PolyfilledFunctionVariable", None), "_get_polyfill_handlers", dict)()
    try:
        found = getattr(handlers.get(fn), "__torch_dynamo_polyfill__", None)
    except TypeError:  # not hashable
        return None
    own: Any = found
    if type(own) is not types.FunctionType or str(own.__module__).partition(".")[0] == "torch":
        return None  # PyTorch's own are for its capture; what ours knows it knows exactly
    return own


# --- torch.compiler.disable -----------------------------------------------------------------------------------------


def is_disabled_by_torch(fn: types.FunctionType) -> bool:
    """Whether PyTorch's ``disable()`` has made a function of one of the program's.

    Its wrapper is told by where its code lives: ``functools.wraps`` copies the attributes to other functions. What
    PyTorch keeps from its own compiler in this way is no business of ours.
    """
    if "_torchdynamo_disable" not in fn.__dict__ or str(fn.__module__).partition(".")[0] == "torch":
        return False
    module = sys.modules.get("torch._dynamo")
    folder = None if module is None else module.__path__[0]
    return folder is not None and fn.__code__.co_filename.startswith(folder)


def why_disabled_by_torch(fn: types.FunctionType) -> str:
    """The reason that was given, if any."""
    return str(fn.__dict__.get("_torchdynamo_disable_msg") or "")
