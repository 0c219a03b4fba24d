"""The public entry points: ``optimize``, ``explain``, ``disable``, ``export_graph``, ``reset``."""

from __future__ import annotations

import functools
import re
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch

from dynamo_capture import _native, hook
from dynamo_capture.beside import Beside
from dynamo_capture.breaks import BreakInfo, GraphBreak, SkipFrame
from dynamo_capture.codemap import CodeMap
from dynamo_capture.contract import Contract, supports_dynamic_shapes
from dynamo_capture.device_modes import entered_devices, without_function_modes
from dynamo_capture.dynamic import DynamicSizes
from dynamo_capture.request import FrameRequest
from dynamo_capture.rules import runs_around, runs_without_hook, skip_reason
from dynamo_capture.state import Backend, CapturedGraph, CodeState
from dynamo_capture.stored.programs import Programs, store_program, stored_program
from dynamo_capture.whynot import NOTHING, Why, place_of, why_before, why_disabled, why_never, why_not_now, why_plain
from dynamo_capture.wrappers import (
    compiled_from,
    is_disabled,
    is_wrapper,
    module_behind,
    register_disabled,
    register_reason,
)
from prims.eager import leave_to_eager
from prims.errors import NotCompiled, Unsupported, UserError
from prims.forking import at_once, compiling
from prims.imports import forget_broken_imports
from prims.ir import register_callable
from prims.logs import show_logs
from prims.options import Options
from prims.records import record
from prims.report import Report, many
from prims.stance import current, raises_defects, watch

if TYPE_CHECKING:
    from dynamo_capture.graph_builder import GraphInput
    from dynamo_capture.stored.reading import Restored
    from dynamo_capture.translate import CompileGraph, Translation

__all__ = ["Explanation", "Optimizer", "allow_in_graph", "disable", "explain", "optimize", "reset"]

F = TypeVar("F", bound=Callable[..., Any])
_NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType,
          types.WrapperDescriptorType, types.MethodWrapperType, functools.partial,
          functools._lru_cache_wrapper)  # fmt: skip


_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
#: Stances under which nothing is captured.
_KEEPING = frozenset(("fail_on_recompile", "eager_on_recompile"))


@functools.cache
def _follow_stances() -> None:
    """The hook knows of the stance ``"eager"``."""
    watch(lambda stance: _native.set_eager(stance == "eager"))


def _is_rest(code: types.CodeType) -> bool:
    """Whether it is the rest of a function behind a break."""
    from dynamo_capture.resume import resume_info  # which needs what a stored program does without

    return resume_info(code) is not None


class Optimizer:
    """One compile configuration: a backend with options, its hook context and what it has captured.

    Args:
        backend: ``backend(gm, example_inputs) -> callable``.
        options: how to capture.
        report: collects graphs, breaks, fallbacks and recompilations.
        programs: a store of captured frames, which is asked before a frame is interpreted.
    """

    def __init__(self, backend: Backend, options: Options, report: Report, programs: Programs | None = None) -> None:
        self.backend = backend
        self.programs = programs
        self.options = options
        self.report = report
        #: Is told of every captured region.
        self.on_capture: Callable[[CapturedGraph], None] = lambda captured: None
        self.states: CodeMap[CodeState] = CodeMap()
        self.contract = Contract.of(backend, options)
        self._calls = threading.local()
        #: What is captured is to run without the program's code.
        self.exporting = False
        #: The code of the compiled function itself; ``fullgraph`` is about it.
        self.root_code: types.CodeType | None = None
        self._plain: Why | None = None
        self._never = Why("no frame that it runs was captured")
        # The context must not keep the optimizer alive, nor the other way round through it.
        self_ref = weakref.ref(self)

        def translate_frame(*frame: Any) -> Any:
            optimizer = self_ref()
            return _native.RUN if optimizer is None else optimizer.translate_frame(*frame)

        def notice(when: int) -> None:
            optimizer = self_ref()
            if optimizer is not None:
                optimizer.ran_plainly(when)

        #: What is compiled beside the program, where that is asked for.
        self.beside = Beside(self) if options.background else None
        if programs is None and self.beside is None:
            with compiling():  # what it knows of torch it knows by the objects that are there now
                import dynamo_capture.language  # noqa: F401

        hook.init_torch()
        _follow_stances()
        self.context = _native.Context(_filter, translate_frame, notice=notice)
        _optimizers.add(self)

    def begins_with(self, target: Any, function: types.FunctionType | None) -> None:
        """What is compiled: ``target``, which runs this function."""
        self.root_code = None if function is None else function.__code__
        self._plain = why_plain(self.root_code)
        self._never = why_never(target, function)
        self.context.plain = self._plain is not None

    def translate_frame(
        self,
        code: types.CodeType,
        func: Any,
        args: dict[str, Any],
        globals_: dict[str, Any],
        builtins: dict[str, Any],
        closure: tuple[Any, ...],
        entries: list[Any],
    ) -> Any:
        """What the hook calls when no cache entry matches a frame."""
        now = why_not_now()
        if now is not None:
            why = Why(now, place_of(code), "Compiled code serves calls outside of that.")
            self._note(why)
            self._leave(why, "frame", quiet=True)
            return _native.RUN
        if self.beside is not None:
            with self._refusals(code):
                answer = self.beside.answer(code, args, globals_, builtins, closure, entries)
            if answer is not None:
                return answer
        before = self._looks(code)
        devices = entered_devices() or ()
        alone = compiling() if self.beside is None else at_once()
        with without_function_modes(), alone as is_alone:
            if is_alone is False:
                return self.waits(code)
            if self._looks(code) != before:
                return _native.TRACE  # another thread looked at it meanwhile: see whether its entry serves
            state = self._state(code)
            if state.left_alone:
                return _native.SKIP
            if state.wait_for(entries):
                return _native.TRACE
            request = FrameRequest(code, func, args, globals_, builtins, closure, devices, self.exporting)
            try:
                with self._refusals(code):
                    if current() in _KEEPING:
                        answer = self._kept(request, entries, current())
                    else:
                        answer = self._translate(request, entries)
            finally:
                state.looks += 1
            state.answered(answer)
            if self.beside is not None:
                self.beside.answered(code, state, answer)
            return answer

    @contextmanager
    def _refusals(self, code: types.CodeType) -> Iterator[None]:
        """What is raised in here takes the place of the call."""
        try:
            yield
        except _RefusedByStance as error:
            self._calls.refused = True
            raise NotCompiled(str(error), where=place_of(code)) from None
        except Unsupported as error:
            self._calls.refused = True
            self.report.status("frame", "refused", error.reason, error.where or place_of(code))
            raise

    def waits(self, code: types.CodeType, status: str | None = None) -> int:
        """The answer to the hook for a frame that runs eagerly, whole, because its program is to come."""
        self._calls.waits = True
        self.report.in_background(code.co_qualname, place_of(code), status, calls=1)
        return _native.LEAVE

    def ran_plainly(self, when: int) -> None:
        """What the hook calls about a call that comes, or came, to no compiled code.

        Raises:
            Unsupported: under ``fullgraph``.
        """
        calls = self._calls.__dict__
        noted, refused = calls.pop("why", None), calls.pop("refused", False)
        raising: list[CodeState] = calls.pop("raising", [])  # the callers first, of which each met the same exception
        if calls.pop("waits", False) and not refused and when != _native.BEFORE:
            return  # the report has counted it
        if when == _native.BEFORE:
            if current() == "eager":
                self.report.under_stance("eager", "ran eagerly", where=place_of(self.root_code))
                return
            self._leave(why_before(self._plain, self.root_code), "call")
            return
        if noted is not None and noted.chosen and current() not in _KEEPING:
            noted = None  # of a call before, which came to compiled code after all
        state = self.states.get(self.root_code) if self.root_code is not None else None
        why = noted or (state.why if state is not None else None)
        if when == _native.RAISED:
            for each in raising:
                each.raised -= 1  # capture was right about it
            if not refused:
                why = why or Why("the call ended in an exception", place_of(self.root_code))
                self.report.status("call", "raised", why.reason, why.where)
            return
        why = why or self._why_not_asked()
        if raising:
            why = Why(f"{why.reason}, while it is captured and not else", why.where, why.todo)
            for each in raising:
                each.why = why
        if why.chosen:
            return
        if why.reason == NOTHING.reason:
            self.report.status("call", "nothing", why.reason, why.where)
        else:
            self._leave(why, "call")

    def _why_not_asked(self) -> Why:
        """Why translation was not asked about a call, which ran eagerly."""
        if sys.gettrace() is not None:  # set while it ran
            return why_before(None, self.root_code)
        if self.root_code is not None and _native.marked(self.root_code) in (_native.SKIP, _native.SKIP_RECURSIVE):
            return why_disabled(self.root_code)
        return self._never

    def _note(self, why: Why) -> None:
        """The call that runs on this thread was left to eager here, if it turns out to come to no compiled code."""
        calls = self._calls.__dict__
        if "why" not in calls or calls["why"].chosen:
            calls["why"] = why

    def _leave(self, why: Why, subject: str, *, quiet: bool = False, cause: BaseException | None = None) -> None:
        leave_to_eager(
            self.report, self.options, "capture", why.reason, why.where,
            subject=subject, todo=why.todo, quiet=quiet, cause=cause,
        )  # fmt: skip

    def _looks(self, code: types.CodeType) -> int:
        state = self.states.get(code)
        return 0 if state is None else state.looks

    def _state(self, code: types.CodeType) -> CodeState:
        state = self.states.get(code)
        if state is None:
            state = self.states[code] = CodeState(DynamicSizes(self.contract.dynamic))
        return state

    def _translate(self, request: FrameRequest, entries: list[Any]) -> Any:
        code = request.code
        state = self._state(code)
        where = place_of(code)
        if entries or state.pending:
            reason = miss_reason(entries or state.pending, request)
            if self.exporting:
                raise _RefusedByStance(f"the graph of {code.co_qualname} is not for this call: {reason}")
            self.report.recompile(code.co_qualname, reason, where)
            limit = self.options.recompile_limit
            state.misses.append(reason)
            if len(entries) + len(state.pending) >= limit or state.replaced >= _MOST_REPLACED * limit:
                text = f"recompile limit of {limit} reached; {_what_differed(state.misses)}"
                if state.empty >= len(entries) + len(state.pending):  # nothing is lost that was ever there
                    self.report.status("frame", "nothing", f"{NOTHING.reason}: {text}", where)
                    state.why = Why(NOTHING.reason, where)
                    return _native.SKIP
                return self._left(state, Why(text, where, self.contract.about_the_limit))
        forget_broken_imports()
        if self.programs is not None:
            with self.report.phase("load"):
                stored = stored_program(self.programs, request, self.options, self.report, state)
            if stored is not None:
                return self._loaded(state, request.code, stored, where)
        if self.beside is not None and not state.at_once:
            return self.beside.begin(state, request, entries, where)
        state.at_once = False
        return self.captured(state, request, entries, where, self._backend)

    def captured(
        self, state: CodeState, request: FrameRequest, entries: list[Any], where: str | None,
        compile_graph: CompileGraph, put_off: Callable[[Translation], int] | None = None,
    ) -> Any:  # fmt: skip
        """The answer to the hook by a translation, which may take the place of entries."""
        with self.report.phase("capture"):
            answer = self._captured(state, request, where, compile_graph, self.report, put_off)
            if entries and type(answer) is _native.Entry:
                state.replaced += _replaced(answer, entries)
            return answer

    def take_over(
        self, state: CodeState, code: types.CodeType, tree: Any, captured: CapturedGraph, entries: list[Any],
        where: str | None,
    ) -> Any:  # fmt: skip
        """The cache entry of a program that the background has compiled."""
        answer = self._entry(state, code, tree, captured, True, where)
        if entries and captured.outline is not None:
            state.replaced += _replaced(answer, entries)
        state.looks += 1
        state.answered(answer)
        return answer

    def _kept(self, request: FrameRequest, entries: list[Any], stance: str) -> Any:
        """The answer to the hook under a stance that allows no capture: a stored program may serve.

        Raises:
            _RefusedByStance: under ``fail_on_recompile``.
        """
        code, where = request.code, place_of(request.code)
        state = self._state(code)
        if self.programs is not None:
            with self.report.phase("load"):
                stored = stored_program(self.programs, request, self.options, self.report, state)
            if stored is not None:
                return self._loaded(state, request.code, stored, where)
        missing = miss_reason(entries, request) if entries else "it has not been captured before"
        text = f"{code.co_qualname} would be captured{' again' if entries else ''}: {missing}"
        if stance == "eager_on_recompile":
            self.report.under_stance(stance, "ran eagerly", text, where)
            self._note(Why(text, where, chosen=True))
            return _native.RUN

        def refused(*_: Any) -> NoReturn:
            self.report.under_stance(stance, "refused", text, where)
            raise _RefusedByStance(f"the stance is {stance!r}, and {text}")

        if entries:
            refused()
        # Where there is nothing to compile, no graph comes.
        return self._captured(state, request, where, refused, None)

    def _loaded(self, state: CodeState, code: types.CodeType, stored: Restored, where: str | None) -> Any:
        """The answer to the hook where a program of the store serves."""
        entry = functools.partial(self._entry, state, stored.code, stored.tree, stored.captured, stored.compiled, where)
        return self._nothing(state, where, code=code, entry=entry) if stored.nothing else entry()

    def _captured(
        self, state: CodeState, request: FrameRequest, where: str | None, compile_graph: CompileGraph,
        report: Report | None, put_off: Callable[[Translation], int] | None = None,
    ) -> Any:  # fmt: skip
        """The answer to the hook by a translation.

        Args:
            put_off: gives the answer to one whose graph is not compiled yet.
        """
        try:
            from dynamo_capture.language import translate  # the interpreter, which a stored program does without

            keeps = self.programs is not None
            result = translate(request, compile_graph, self.options, report, state, self.contract, keeps)
        except SkipFrame as skip:
            return self._skipped(state, skip, where)
        except Exception as error:
            return self.came_to(error, state, where)
        captured = result.captured
        is_empty = captured.graph is None and not result.goes_on
        if not is_empty:
            state.sizes.commit()
        elif result.later is not None:  # what there is to compute is in its body; no store knows of that
            return self._nothing(state, where, why_plain(result.later))
        if result.unbound is not None and put_off is not None:
            return put_off(result)
        if self.programs is not None and result.kept is not None:
            store_program(self.programs, result.kept, self.options, state)
        compiled = captured.graph is not None
        entry = functools.partial(self._entry, state, result.code, result.tree, captured, compiled, where)
        return self._nothing(state, where, code=request.code, entry=entry) if is_empty else entry()

    def came_to(self, error: BaseException, state: CodeState, where: str | None) -> int:
        """The answer to the hook where capturing or compiling has come to an error, or the error, raised."""
        try:
            if isinstance(error, _BackendError):
                raise error.original from None
            if isinstance(error, (UserError, NotCompiled, _RefusedByStance)) or not isinstance(error, Exception):
                raise error
            if isinstance(error, Unsupported) and (
                self.options.fullgraph or raises_defects(self.options, self.report, error)
            ):
                raise error
            return self._failed(state, error, where)  # type: ignore[no-any-return]
        finally:
            del error  # which would hold the frame that holds it, and with it the inputs of the call

    def _nothing(
        self, state: CodeState, where: str | None, why: Why | None = None, code: types.CodeType | None = None,
        entry: Callable[[], Any] | None = None,
    ) -> Any:  # fmt: skip
        """Nothing to compile in it: the frame runs as it is, and after a second look always does.

        Not where it is the compiled function's own, or the rest of one behind a break: in another call there may be
        something (a warm-up, an update every few steps). That nothing is to be done is guarded there as all else is.

        Args:
            why: what it would have compiled and why that is not compiled.
            code: the frame's.
            entry: makes the entry of what it does.
        """
        state.empty += 1
        state.why = why or Why(NOTHING.reason, where)
        if entry is not None and code is not None and (code is self.root_code or _is_rest(code)):
            state.sizes.commit()
            return entry()
        return _native.RUN if state.empty < 3 else _native.SKIP

    def _entry(
        self, state: CodeState, code: types.CodeType, tree: Any, captured: CapturedGraph, compiled: bool,
        where: str | None,
    ) -> Any:  # fmt: skip
        """The cache entry of a program."""
        self.on_capture(captured)
        brk = captured.brk
        if brk is not None:
            self.report.graph_break(brk.reason, brk.where, brk.hint)
        if compiled:
            self.report.status("frame", "compiled", where=where)
        elif brk is not None:
            state.why = Why(brk.reason, brk.where, brk.hint)
        return _native.Entry(code, tree, tag=captured, compiled=compiled)

    def forget(self) -> None:
        """Forget what was captured, and what is being compiled; the report keeps it."""
        for state in self.states.values():
            for pending in state.pending:
                pending.drop()
        self.states.clear()

    def _backend(self, gm: torch.fx.GraphModule, inputs: list[GraphInput]) -> Callable[..., Any]:
        return self.ask_backend(gm, [self.contract.example(inp) for inp in inputs])

    def ask_backend(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        """What the backend makes of a graph.

        Raises:
            UserError: it is not callable.
        """
        try:
            compiled = self.backend(gm, examples)
        except (UserError, Unsupported):
            raise
        except Exception as error:
            raise _BackendError(error) from error
        if not callable(compiled):
            raise UserError(f"the backend returned {compiled!r}", todo="It must return a callable.")
        if not getattr(self.backend, "reports_status", False):
            self.report.status("graph", "compiled")
        return compiled

    def _skipped(self, state: CodeState, skip: SkipFrame, where: str | None) -> Any:
        why = Why(skip.reason, skip.where or where, skip.todo)
        if skip.once:
            state.raised += 1
            if state.raised < 3 or self.options.fullgraph:
                self._note(why)
                self._calls.__dict__.setdefault("raising", []).append(state)
                return _native.RUN
            if state.why is not None and state.why.reason.startswith(why.reason):
                why = state.why  # a call of it has shown that it does not raise
        elif self.options.fullgraph:
            self._leave(why, "frame")
        self.report.graph_break(skip.reason, why.where, skip.todo)
        return self._left(state, why, quiet=True)

    def _failed(self, state: CodeState, error: Exception, where: str | None) -> Any:
        if raises_defects(self.options, self.report, error):
            raise error
        if isinstance(error, RecursionError):  # the program's own recursion, which has no end or is too deep to follow
            stop = GraphBreak("QB13", "Python's limit was reached while it was followed")
            why = Why(stop.text, where, stop.hint)
        else:
            why = Why(f"internal error: {type(error).__name__}: {error}", where, None)
        return self._left(state, why, cause=error)

    def _left(self, state: CodeState, why: Why, *, quiet: bool = False, cause: BaseException | None = None) -> Any:
        """The frame is not looked at again; what is cached for it stays in use."""
        state.why = why
        self._leave(why, "frame", quiet=quiet, cause=cause)
        return _native.SKIP


class _RefusedByStance(Exception):
    """A frame would be captured, which the stance forbids, or again, for which an exported graph is not there."""


class _BackendError(Exception):
    """Carries an exception of the backend past the fallback for our own defects."""

    def __init__(self, original: Exception) -> None:
        super().__init__(str(original))
        self.original = original


def _filter(code: types.CodeType, globals_: dict[str, Any]) -> int:
    if runs_without_hook(code, globals_):
        return _native.SKIP_RECURSIVE
    return _native.TRACE if skip_reason(code, globals_) is None else _native.SKIP


def _what_differed(misses: list[str]) -> str:
    """What calls differed in, by the guards that failed: the last one, and what it was about how often."""
    about = Counter(_ENDS_SUBJECT.split(miss, maxsplit=1)[0] for miss in misses)
    often = ", ".join(f"{subject} ({times} times)" for subject, times in about.most_common(5) if times > 1)
    return f"last miss: {misses[-1]}" + (f"; what differed: {often}" if often else "")


#: So many times the limit may entries be replaced by more general ones, of which each is compiled.
_MOST_REPLACED = 4
_ENDS_SUBJECT = re.compile(r": | == | is | not in | in ")


def _replaced(new: Any, entries: list[Any]) -> int:
    """Let go of the entries whose calls the new one serves too. It is asked before them: they would not run again."""
    outline = new.tag.outline
    old = [entry for entry in entries if entry.valid and entry.tag.outline is not None]
    gone = [entry for entry in old if outline.covers(entry.tag.outline)]
    for entry in gone:
        entry.invalidate()
    return len(gone)


def miss_reason(entries: list[Any], request: FrameRequest) -> str:
    """Why the most recently used entry did not match."""
    tree = entries[0].guards
    if tree is None:
        return "the entry is no longer valid"
    try:
        reason = tree.explain_failure(list(request.args.values()), request.globals, request.builtins, request.closure)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return reason or "a guard failed"


def optimize(
    fn: Any, backend: Backend, *, options: Options | None = None, report: Report | None = None,
    programs: Programs | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Compile a function, method or module by capturing the tensor programs that it runs.

    Args:
        fn: a callable. A module is run through its ``__call__`` (hooks included); its ``forward`` is captured.
        backend: ``backend(gm, example_inputs) -> callable``; called once per captured graph. Unless it declares
            ``supports_dynamic_shapes`` (see :func:`supports_dynamic_shapes`), each size has a graph of its own.
        options: see :class:`prims.options.Options`.
        report: collects what happened.
        programs: where captured frames are kept from process to process: a
            :class:`dynamo_capture.stored.programs.Programs`.

    Returns:
        A callable with the signature of ``fn``.

    Raises:
        UserError: ``fn`` or ``backend`` is not callable.
    """
    if not callable(fn):
        raise UserError(f"cannot compile {fn!r}: it is not callable", todo="Pass a function, a method or a module.")
    if not callable(backend):
        raise UserError(f"backend {backend!r} is not callable", todo="Pass a function of (gm, example_inputs).")
    show_logs(options.logs if options is not None else "")
    optimizer = Optimizer(backend, options or Options(), report if report is not None else Report(), programs)
    target = _unwrapped(fn)
    function = _function_of(target)
    plain = function is None or why_plain(function.__code__) is not None or is_disabled(target)
    if function is not None and not plain and not runs_around(function.__code__):
        _native.mark(function.__code__, _native.TRACE)
    optimizer.begins_with(target, function)
    active = _native.activate(target, optimizer.context)
    wrapper: Any = active
    if not isinstance(target, torch.nn.Module):
        _named_like(wrapper, target)
    wrapper.__quintet_optimizer__ = optimizer
    return wrapper  # type: ignore[no-any-return]


def _unwrapped(fn: Any) -> Any:
    """The program's own callable behind a compiled one; every other object itself."""
    if type(fn) is types.MethodType:
        function = _unwrapped(fn.__func__)
        return fn if function is fn.__func__ else types.MethodType(function, fn.__self__)
    original = module_behind(fn) if isinstance(fn, torch.nn.Module) else compiled_from(fn)
    return fn if original is None else original


def _function_of(fn: Any) -> types.FunctionType | None:
    if isinstance(fn, torch.nn.Module):
        fn = fn.forward
    while type(fn) is types.MethodType or is_wrapper(fn):
        fn = fn.__func__ if type(fn) is types.MethodType else fn.fn
    return fn if type(fn) is types.FunctionType else None


def _code_of(fn: Any) -> types.CodeType | None:
    function = _function_of(fn)
    return None if function is None else function.__code__


def _named_like(wrapper: Any, fn: Any) -> None:
    """Give a wrapper a function's name, text and attributes; other objects are not asked for such things."""
    if type(fn) in _NAMED or isinstance(fn, type) or is_wrapper(fn):
        functools.update_wrapper(wrapper, fn, updated=() if isinstance(fn, type) else ("__dict__",))
    else:
        wrapper.__wrapped__ = fn


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Keep a function out of captured graphs; usable as a decorator, with or without arguments.

    Args:
        recursive: also run what the function calls eagerly; otherwise its callees are captured on their own.
        reason: why, for the report of the break at its calls.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    if not callable(fn):
        raise UserError(f"cannot disable {fn!r}: it is not callable", todo="Pass a function.")
    fn = _unwrapped(fn)
    if recursive:
        wrapper: Any = _native.activate(fn, None)
        _named_like(wrapper, fn)
        register_reason(wrapper, reason)
        return wrapper

    def not_captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _named_like(not_captured, fn)
    for code in (_code_of(fn), _code_of(not_captured)):
        if code is not None:
            _native.mark(code, _native.SKIP)
    register_disabled(cast(types.FunctionType, not_captured))
    register_reason(not_captured, reason)
    return not_captured


def allow_in_graph(fn: Any) -> Any:
    """Put calls of a function into graphs whole, instead of inlining it; of a list of functions, of each.

    The graph calls it as it is, and the stage behind traces its operators, gradients included. It takes and gives
    tensors, numbers, and tuples and lists of them. That it depends on its arguments alone, and changes nothing else, is
    the user's promise; it is not guarded. Stored graphs may name it.

    Raises:
        UserError: it is not callable.
    """
    from dynamo_capture.values.torch_calls import ALLOWED

    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(one) for one in fn]
    if not callable(fn):
        raise UserError(f"cannot allow {fn!r} in graphs: it is not callable", todo="Pass a function.")
    ALLOWED.add(fn)
    return register_callable(fn)


def reset() -> None:
    """Forget all captured graphs and guards, of every compiled function."""
    _native.reset_all()
    for optimizer in list(_optimizers):
        optimizer.forget()


@record(frozen=False)
class Explanation:
    """What capturing one call gave."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[BreakInfo] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    result: Any = None

    def add(self, captured: CapturedGraph) -> None:
        """Take over what capturing one region gave."""
        brk = captured.brk
        if brk is not None and all((brk.reason, brk.where) != (b.reason, b.where) for b in self.breaks):
            self.breaks.append(brk)
        self.guards.extend(map(str, captured.guards))

    @property
    def graph_count(self) -> int:
        """Number of graphs."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """Number of breaks."""
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        """Number of operators over all graphs."""
        return sum(1 for gm in self.graphs for n in gm.graph.nodes if n.op.startswith("call"))

    def __str__(self) -> str:
        counts = (self.graph_count, "graph"), (self.graph_break_count, "graph break"), (self.op_count, "operator")
        lines = [", ".join(many(*pair) for pair in counts)]
        lines.append(f"verdict: {self.report.verdict}")
        for i, item in enumerate(self.breaks):
            lines.append(f"break {i + 1}: {item.describe()}")
        for i, gm in enumerate(self.graphs):
            lines.append(f"graph {i + 1} ({gm.meta.get('name', '')}):")
            lines.extend("  " + line for line in str(gm.graph).strip().splitlines())
        lines.extend(f"guard: {text}" for text in self.guards)
        lines.extend(f"fallback: {f.reason} at {f.where}" for f in self.report.fallbacks)
        return "\n".join(lines)


def explain(fn: Any, *, options: Options | None = None) -> Callable[..., Explanation]:
    """``explain(fn)(*args)`` runs the call once under capture and tells what was captured and why it broke."""

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        result = Explanation()

        @supports_dynamic_shapes
        def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            result.graphs.append(gm)
            return gm.forward

        compiled: Any = optimize(fn, backend, options=options, report=result.report)
        compiled.__quintet_optimizer__.on_capture = result.add
        result.result = compiled(*args, **kwargs)
        return result

    return explained
