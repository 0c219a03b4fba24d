"""What an optimizer has compiled beside the program: its answers to the hook while programs are to come."""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_capture import _native
from dynamo_capture.background import Later, Pending
from dynamo_capture.stored.programs import begin_storing
from dynamo_capture.whynot import place_of
from prims.background import Job, submit
from prims.eager import warn_user
from prims.forking import lock

if TYPE_CHECKING:
    import types

    from dynamo_capture.frontend import Optimizer
    from dynamo_capture.request import FrameRequest
    from dynamo_capture.state import CodeState
    from dynamo_capture.translate import Translation

__all__ = ["Beside"]

_LANGUAGE = "dynamo_capture.language"


class Beside:
    """The programs of one optimizer that are compiled in the background. See :mod:`dynamo_capture.background`."""

    def __init__(self, optimizer: Optimizer) -> None:
        # The optimizer has this; and a job must not keep alive what nobody calls any more.
        self._optimizer = weakref.ref(optimizer)
        self._taking = lock()
        self._imports: Job | None = None

    def answer(
        self, code: types.CodeType, args: Mapping[str, Any], globals_: dict[str, Any], builtins: dict[str, Any],
        closure: tuple[Any, ...], entries: list[Any],
    ) -> Any:  # fmt: skip
        """The answer to the hook by a program that is to come, or has come; None where no such program is for the call.

        Raises:
            Exception: what compiling it has come to, where that is to be raised.
        """
        optimizer = self._optimizer()
        state = None if optimizer is None else optimizer.states.get(code)
        if optimizer is None or state is None or not state.pending or state.left_alone:
            return None
        for pending in list(state.pending):
            ended = pending.ended  # before its guards are asked, which get more as it ends
            if ended and pending.outcome != "ready":
                answer = self._came_to_nothing(optimizer, state, pending)
            elif not _holds(pending.unbound.tree, list(args.values()), globals_, builtins, closure):
                continue
            else:
                answer = self._taken(optimizer, state, pending, entries) if ended else optimizer.waits(code)
            if answer is not None:
                return answer
        return None

    def begin(self, state: CodeState, request: FrameRequest, entries: list[Any], where: str | None) -> Any:
        """The answer to the hook for a frame that is to be captured now."""
        optimizer = self._optimizer()
        assert optimizer is not None
        code = request.code
        if _LANGUAGE not in sys.modules and (self._imports is None or not self._imports.done):
            if self._imports is None:
                prepare = getattr(optimizer.backend, "prepare", None)
                self._imports = submit(Job(lambda: _import(prepare)))
            return optimizer.waits(code, "waiting")
        later = Later(optimizer.backend, optimizer.contract, state.failed)

        def put_off(result: Translation) -> int:
            unfinished = None
            if optimizer.programs is not None and result.kept is not None:
                unfinished = begin_storing(optimizer.programs, result.kept, optimizer.options, state)
            assert result.unbound is not None
            pending = Pending(result.unbound, later, state, where, code.co_qualname, unfinished)
            pending.job = Job(lambda: _compile(self._optimizer, pending))
            state.pending.insert(0, pending)
            submit(pending.job)
            return optimizer.waits(code, "compiling")

        return optimizer.captured(state, request, entries, where, later, put_off)

    def answered(self, code: types.CodeType, state: CodeState, answer: Any) -> None:
        """The hook is about to be told what came of a frame without the background, or that a program is to come."""
        optimizer = self._optimizer()
        if optimizer is None or answer in (_native.LEAVE, _native.TRACE) or state.pending:
            return
        failed = state.failed and type(answer) is _native.Entry
        status = "failed" if failed else "in use" if type(answer) is _native.Entry else "nothing"
        reason = "the graph was left to eager" if failed else None
        optimizer.report.background_ended(code.co_qualname, place_of(code), status, reason)

    def _taken(self, optimizer: Optimizer, state: CodeState, pending: Pending, entries: list[Any]) -> Any:
        """The cache entry of a program that is ready."""
        if not self._remove(state, pending):
            return _native.TRACE  # another thread is about to put it into the cache
        _warn(pending)
        unbound = pending.unbound
        captured = replace(unbound.captured, outline=None) if pending.late else unbound.captured
        assert pending.code is not None
        optimizer.report.in_background(pending.name, pending.where, "in use", programs=1)
        return optimizer.take_over(state, pending.code, unbound.tree, captured, entries, pending.where)

    def _came_to_nothing(self, optimizer: Optimizer, state: CodeState, pending: Pending) -> Any:
        """The answer where there is one; None has the frame captured anew."""
        if not self._remove(state, pending):
            return None
        _warn(pending)
        error = pending.job.error if pending.job is not None else None
        if pending.outcome == "at once":
            state.at_once = True
        return None if error is None else optimizer.came_to(error, state, pending.where)

    def _remove(self, state: CodeState, pending: Pending) -> bool:
        with self._taking:
            found = next((k for k, each in enumerate(state.pending) if each is pending), None)
            if found is not None:
                del state.pending[found]
        return found is not None


def _import(prepare: Any) -> None:
    """What capturing and compiling need and has not been imported yet."""
    for name in ("dynamo_capture.stored.reading", "dynamo_capture.stored.writing", _LANGUAGE):
        importlib.import_module(name)
    if prepare is not None:
        prepare()


def _compile(ref: weakref.ref[Optimizer], pending: Pending) -> None:
    """The work in the background."""
    optimizer = ref()
    if optimizer is None:
        return
    report = optimizer.report
    try:
        pending.compile(optimizer.ask_backend)
    finally:
        del optimizer
        status = {"ready": "ready", "failed": "failed"}.get(pending.outcome, "waiting")
        error = sys.exception()
        reason = pending.reason if error is None else f"{type(error).__name__}: {error}"
        del error
        report.in_background(pending.name, pending.where, status, seconds=pending.spent(), reason=reason)


def _warn(pending: Pending) -> None:
    """Tell the user what compiling it had to tell."""
    for message in pending.job.warnings if pending.job is not None else ():
        warn_user(message)


def _holds(tree: Any, *frame: Any) -> bool:
    try:
        return tree.explain_failure(*frame) is None
    except Exception:  # as a guard that does not hold
        return False
