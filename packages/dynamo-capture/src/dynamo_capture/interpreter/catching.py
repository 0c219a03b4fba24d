"""Operators that raise when the graph runs, and the program's clauses that run then.

A graph runs at one place of the emitted code, not where its operators stand in the program. An operator whose
exception a handler of the program may catch is first tried on tensors like its own, so that a call which eager
refuses breaks the graph; and should the graph raise nevertheless, because of what its tensors hold, the whole frame
is run again eagerly (:class:`dynamo_capture.emitted.Again`): handlers, ``finally`` clauses and context managers see
it then, and what the program has changed before the operator is changed. That is possible as the graph comes first
and, when it raises, has changed nothing: either it says so (``prims.undo.writes_when_done``), or what it writes is
put back. So are the generators that it draws random numbers from. Autograd's history cannot be: where it sees a write
into an input, the graph breaks between that and operators inside such clauses.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.rules import is_library_class, is_library_name
from dynamo_capture.values.base import Value
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.interpreter.frame import Frame

__all__ = ["Raising", "is_refused", "may_be_caught", "may_be_met"]

#: Elements of all tensors of a call, above which it is not tried.
_MOST_ELEMENTS = 1 << 22


def may_be_caught(frames: list[Frame]) -> bool:
    """Whether an exception of the instruction that is being interpreted may meet a handler of the program."""
    for frame in frames:
        if frame.decoded.exceptions:
            catches, _, managers = frame.decoded.handlers_around(max(frame.ip - 1, 0))
            if catches:
                return True
            if managers and any(_may_swallow(frame.stack[at]) for at in managers if at < len(frame.stack)):
                return True
    return False


def may_be_met(tx: Capture) -> bool:
    """Whether code of the program may run when the instruction raises that is being interpreted.

    That is a handler, a ``finally`` clause, a context manager, or a generator that is closed.
    """
    if tx.generators and any(not started.frame.finished for started in tx.generators):
        return True
    for frame in tx.frames:
        if frame.decoded.exceptions:
            catches, cleans, managers = frame.decoded.handlers_around(max(frame.ip - 1, 0))
            if catches or cleans:
                return True
            if managers and not all(_is_torchs(frame.stack[at]) for at in managers if at < len(frame.stack)):
                return True
    return False


@record(frozen=False)
class Raising:
    """What a graph may do when it raises, as far as capture has come.

    Attributes:
        met: the root frame's step of the first operator whose exception may be met by code of the program, or that
            comes after changes of other objects.
        traced: the step of the first write into an input that autograd sees.
    """

    met: int | None = None
    traced: int | None = None

    def between(self) -> int | None:
        """The step at which to break, for one to be in another graph than the other."""
        return None if self.met is None or self.traced is None else max(self.met, self.traced)


def _is_torchs(leave: Value) -> bool:
    """Whether the ``__exit__`` of a context manager is torch's, which nobody sees."""
    owner: Any = getattr(leave.realize(), "owner", None)
    if owner is None:
        return False
    owner = owner.realize()
    cls = owner.pytype
    if cls is contextlib._GeneratorContextManager:
        made_by: Any = getattr(owner.attrs.get("gen"), "frame", None)
        return made_by is not None and _of_torch(made_by.globals.get("__name__"))
    return cls is contextlib.nullcontext or (is_library_class(cls) and cls.__module__.startswith("torch"))


def _of_torch(name: Any) -> bool:
    return is_library_name(name) and str(name).startswith("torch")


def _may_swallow(leave: Value) -> bool:
    """Whether the ``__exit__`` of a context manager may give a true value."""
    owner: Any = getattr(leave.realize(), "owner", None)
    if owner is None:
        return True
    owner = owner.realize()
    cls = owner.pytype
    if _is_torchs(leave):
        return False
    if cls is contextlib._GeneratorContextManager:
        made_by: Any = getattr(owner.attrs.get("gen"), "frame", None)
        if made_by is None:
            return True
        return any(made_by.decoded.handlers_around(i)[0] for i, inst in enumerate(made_by.decoded.instructions)
                   if inst.name == "YIELD_VALUE")  # fmt: skip
    function = getattr(cls, "__exit__", None)
    return not (isinstance(function, types.FunctionType) and _gives_none(function.__code__))


def _gives_none(code: types.CodeType) -> bool:
    """Whether a function returns nothing but None and False."""
    from dynamo_capture.interpreter.decode import decode

    before = None
    for inst in decode(code).instructions:
        if inst.name == "RETURN_CONST" and inst.arg:
            return False
        if inst.name == "RETURN_VALUE" and not (before is not None and before.name == "LOAD_CONST" and not before.arg):
            return False
        before = inst
    return True


def is_refused(call: Callable[[Any], Any], examples: Any) -> bool:
    """Whether a call raises on tensors of ones like the abstract ones among its arguments.

    Args:
        call: takes the arguments.
        examples: tuples, lists and dicts of abstract tensors, symbolic numbers and constants.
    """
    with _disable_current_modes(), _same_random_numbers():
        for make in (torch.zeros, torch.ones):  # of ints: indices that exist, divisors that are not zero
            try:
                call(_like(examples, make, [_MOST_ELEMENTS]))
            except _TooLarge:
                return False
            except Exception:
                continue
            return False
    return True


class _TooLarge(Exception):
    """The tensors of a call are too large to be made."""


def _like(example: Any, make_ints: Callable[..., Any], left: list[int]) -> Any:
    if isinstance(example, torch.Tensor):
        shape = [int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in example.shape]
        numel = 1
        for size in shape:
            numel *= size
        left[0] -= numel
        if left[0] < 0:
            raise _TooLarge
        make = torch.ones if example.is_floating_point() or example.is_complex() else make_ints
        made = make(shape, dtype=example.dtype, device=example.device)
        if not example.requires_grad or example.is_inference():
            return made
        with torch.enable_grad():
            return made.requires_grad_() if example.is_leaf else made.requires_grad_().clone()
    if isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return example.node.hint
    if type(example) in (tuple, list):
        return type(example)(_like(x, make_ints, left) for x in example)
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        return type(example)(*(_like(x, make_ints, left) for x in example))
    if type(example) is dict:
        return {key: _like(x, make_ints, left) for key, x in example.items()}
    if isinstance(example, slice):
        return slice(*(_like(x, make_ints, left) for x in (example.start, example.stop, example.step)))
    return example


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    state = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)
