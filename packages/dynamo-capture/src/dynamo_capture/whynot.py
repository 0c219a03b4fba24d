"""Why a call of a compiled callable, or a frame of it, runs without compiled code."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import torch
from torch.autograd import forward_ad

from dynamo_capture.device_modes import entered_devices
from dynamo_capture.rules import GENERATOR_FLAGS, skip_reason
from dynamo_capture.wrappers import is_disabled
from prims.forking import why_cut_off
from prims.records import record

__all__ = ["NOTHING", "Why", "place_of", "why_before", "why_disabled", "why_never", "why_not_now", "why_plain"]


@record
class Why:
    """A reason for the report and the user: what, where, what to do (None: what there is to do about its cause).

    Attributes:
        chosen: the user has asked for it by a stance: neither warned of nor refused.
    """

    reason: str
    where: object = None
    todo: str | None = ""
    chosen: bool = False


#: Not the program's loss, and so neither warned of nor refused.
NOTHING = Why("there is no tensor operation to compile")


def place_of(code: types.CodeType | None) -> str | None:
    """A function's place as reports show it."""
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"


def why_not_now() -> str | None:
    """Why a call runs eagerly: a mode sees every operator, or tensors are other than they look. None if neither.

    In a process that was forked in the middle of a compilation, every call does.
    """
    cut_off = why_cut_off()
    if cut_off is not None:
        return cut_off
    if entered_devices() is None:
        return "called under a torch-function mode (other than a default device), which sees eager's calls"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "called under a dispatch mode, which sees eager's operators"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "called inside a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "called with forward-mode differentiation"
    if torch._C._dispatch_tls_is_dispatch_key_excluded("AutogradOther") and torch.is_grad_enabled():
        return "called below autograd (by a __torch_dispatch__), where nothing is recorded"  # a compiled graph would
    return None


def why_plain(code: types.CodeType | None) -> Why | None:
    """Why no call of a function of this code can run compiled code; None when one may."""
    if code is None or not code.co_flags & GENERATOR_FLAGS:
        return None
    if code.co_flags & inspect.CO_COROUTINE:
        kind, todo = "a coroutine (async def)", "Compile the plain functions that it calls."
    elif code.co_flags & inspect.CO_ASYNC_GENERATOR:
        kind, todo = "an async generator", "Compile the plain functions that it calls."
    else:
        kind, todo = "a generator function", "Compile the function that computes one step, and call that in the loop."
    return Why(f"{kind} runs after its call has returned, bit by bit, and is not captured", place_of(code), todo)


def why_before(plain: Why | None, code: types.CodeType | None) -> Why:
    """Why a call will run eagerly, seen before it."""
    if plain is not None:
        return plain
    if sys.gettrace() is not None:
        what = "a trace function is set (sys.settrace: a debugger, or coverage), which is to see every line"
    else:
        what = "a debugger has its place in sys.monitoring, and is to see every line"
    return Why(what, place_of(code), "Run without it; profilers (cProfile, sys.setprofile) do see compiled code.")


def why_disabled(code: types.CodeType | None) -> Why:
    """Why a call runs eagerly whose function is under ``disable()``."""
    return Why("it is marked by disable()", place_of(code), "Remove the disable() to have it compiled.")


def why_never(target: Any, function: types.FunctionType | None) -> Why:
    """Why a call runs eagerly where translation is not asked, or has nothing to say."""
    if is_disabled(target):
        return why_disabled(getattr(function or inspect.unwrap(target), "__code__", None))
    if function is None:
        text = f"a {type(target).__name__} has no Python code to capture"
        return Why(text, None, "Compile the Python function that calls it.")
    reason = skip_reason(function.__code__, function.__globals__)
    text = "no frame that it runs was captured" + (f": it is {reason}" if reason else "")
    return Why(text, place_of(function.__code__), "Compile the function that computes with tensors itself.")
