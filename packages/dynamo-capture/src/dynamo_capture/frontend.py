"""The public entry points: ``optimize``, ``explain``, ``disable``, ``export_graph``, ``reset``."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from dynamo_capture import _native, hook
from dynamo_capture.breaks import BreakInfo, SkipFrame
from dynamo_capture.capture import FrameRequest
from dynamo_capture.dynamic import DynamicSizes
from dynamo_capture.rules import runs_without_hook, skip_reason
from dynamo_capture.translate import Backend, CapturedGraph, CodeState, translate
from dynamo_capture.values import autograd_functions, checkpoints, stand_ins  # noqa: F401  (register what calls mean)
from dynamo_capture.values.torch_calls import ALLOWED
from dynamo_capture.wrappers import compiled_from, is_disabled, is_wrapper, module_behind, register_disabled
from prims.errors import QuintetError, Unsupported, UserError
from prims.ir import Envelope, register_callable
from prims.options import Options
from prims.report import Report

__all__ = ["Explanation", "Optimizer", "allow_in_graph", "disable", "explain", "export_graph", "optimize", "reset"]

F = TypeVar("F", bound=Callable[..., Any])
_NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.MethodDescriptorType,
          types.WrapperDescriptorType, types.MethodWrapperType, functools.partial,
          functools._lru_cache_wrapper)  # fmt: skip


_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_lock = threading.RLock()


class Optimizer:
    """One compile configuration: a backend with options, its hook context and what it has captured.

    Args:
        backend: ``backend(gm, example_inputs) -> callable``.
        options: how to capture.
        report: collects graphs, breaks, fallbacks and recompilations.
    """

    def __init__(self, backend: Backend, options: Options, report: Report) -> None:
        self.backend = backend
        self.options = options
        self.report = report
        self.captured: list[CapturedGraph] = []
        self.states: dict[types.CodeType, CodeState] = {}
        self._breaks: set[BreakInfo] = set()
        #: Code that ran eagerly for now, with the reason, which is recorded once.
        self._left: set[tuple[types.CodeType, str]] = set()
        #: The code of the compiled function itself; ``fullgraph`` is about it.
        self.root_code: types.CodeType | None = None
        # The context must not keep the optimizer alive, nor the other way round through it.
        self_ref = weakref.ref(self)

        def translate_frame(*frame: Any) -> Any:
            optimizer = self_ref()
            return _native.RUN if optimizer is None else optimizer.translate_frame(*frame)

        hook.init_torch()
        self.context = _native.Context(_filter, translate_frame)
        _optimizers.add(self)

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
        why = _why_not_now()
        if why is not None:
            where = f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"
            if (code, why) not in self._left:
                self._left.add((code, why))
                self.report.fallback("capture", why, where)
            return _native.RUN
        before = self._looks(code)
        with _lock, self.report.phase("capture"):
            if self._looks(code) != before:
                return _native.TRACE  # another thread looked at it meanwhile: see whether its entry serves
            state = self._state(code)
            if state.left_alone:
                return _native.SKIP
            if state.wait_for(entries):
                return _native.TRACE
            try:
                answer = self._translate(FrameRequest(code, func, args, globals_, builtins, closure), entries)
            finally:
                state.looks += 1
            state.answered(answer)
            return answer

    def _looks(self, code: types.CodeType) -> int:
        state = self.states.get(code)
        return 0 if state is None else state.looks

    def _state(self, code: types.CodeType) -> CodeState:
        state = self.states.get(code)
        if state is None:
            state = self.states[code] = CodeState(DynamicSizes(self.options.dynamic))
        return state

    def _translate(self, request: FrameRequest, entries: list[Any]) -> Any:
        code = request.code
        state = self._state(code)
        where = f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"
        if entries:
            reason = _miss_reason(entries, request)
            self.report.recompile(code.co_qualname, reason)
            limit = self.options.recompile_limit
            if len(entries) >= limit + min(state.sizes.generalised, limit):
                text = f"recompile limit of {len(entries)} reached; last miss: {reason}"
                self.report.fallback("capture", text, where)
                return _native.SKIP
        try:
            result = translate(request, self._backend, self.options, self.report, state)
        except SkipFrame as skip:
            return self._skipped(state, skip, where)
        except UserError:
            raise
        except Unsupported as error:
            if self.options.fullgraph or self.options.strict:
                raise
            return self._failed(error, where)
        except QuintetError as error:
            return self._failed(error, where)
        except _BackendError as error:
            raise error.original from None
        except Exception as error:
            return self._failed(error, where)
        if result.captured.graph is None and not result.goes_on:
            # Nothing to compile in it: the frame runs as it is, and after a second look always does.
            state.empty += 1
            return _native.RUN if state.empty < 3 else _native.SKIP
        state.sizes.commit()
        self.captured.append(result.captured)
        brk = result.captured.brk
        if brk is not None and brk not in self._breaks:
            self._breaks.add(brk)
            self.report.graph_break(brk.reason, brk.where)
        return _native.Entry(result.code, result.tree, tag=result.captured)

    def forget(self) -> None:
        """Forget what was captured; the report keeps it."""
        self.states.clear()
        self.captured.clear()
        self._breaks.clear()
        self._left.clear()

    def _backend(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        try:
            return self.backend(gm, inputs)
        except (UserError, Unsupported):
            raise
        except Exception as error:
            raise _BackendError(error) from error

    def _skipped(self, state: CodeState, skip: SkipFrame, where: str) -> Any:
        at = skip.where or where
        if skip.once:
            state.raised += 1
            if state.raised < 3:
                return _native.RUN
        elif self.options.fullgraph:
            raise Unsupported(f"fullgraph=True, but the function runs eagerly: {skip.reason}", where=at)
        self.report.graph_break(skip.reason, at)
        self.report.fallback("capture", skip.reason, at)
        return _native.SKIP

    def _failed(self, error: Exception, where: str) -> Any:
        if self.options.strict:
            raise error
        self.report.fallback("capture", f"internal error: {type(error).__name__}: {error}", where)
        return _native.SKIP


class _BackendError(Exception):
    """Carries an exception of the backend past the fallback for our own defects."""

    def __init__(self, original: Exception) -> None:
        super().__init__(str(original))
        self.original = original


def _filter(code: types.CodeType, globals_: dict[str, Any]) -> int:
    if runs_without_hook(code, globals_):
        return _native.SKIP_RECURSIVE
    return _native.TRACE if skip_reason(code, globals_) is None else _native.SKIP


def _why_not_now() -> str | None:
    """Why a call runs eagerly: a mode sees every operator, or tensors are other than they look. None if neither."""
    if torch.overrides._get_current_function_mode() is not None:
        return "called under a torch-function mode (torch.device as a context, for example), which sees eager's calls"
    if torch._C._len_torch_dispatch_stack() > 0:
        return "called under a dispatch mode, which sees eager's operators"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "called inside a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "called with forward-mode differentiation"
    return None


def _miss_reason(entries: list[Any], request: FrameRequest) -> str:
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
    fn: Any, backend: Backend, *, options: Options | None = None, report: Report | None = None
) -> Callable[..., Any]:
    """Compile a function, method or module by capturing the tensor programs that it runs.

    Args:
        fn: a callable. A module is run through its ``__call__`` (hooks included); its ``forward`` is captured.
        backend: ``backend(gm, example_inputs) -> callable``; called once per captured graph.
        options: see :class:`prims.options.Options`.
        report: collects what happened.

    Returns:
        A callable with the signature of ``fn``.

    Raises:
        UserError: ``fn`` or ``backend`` is not callable.
    """
    if not callable(fn):
        raise UserError(f"cannot compile {fn!r}: it is not callable", todo="Pass a function, a method or a module.")
    if not callable(backend):
        raise UserError(f"backend {backend!r} is not callable", todo="Pass a function of (gm, example_inputs).")
    optimizer = Optimizer(backend, options or Options(), report if report is not None else Report())
    target = _unwrapped(fn)
    code = _code_of(target)
    if code is not None and _native.marked(code) != _native.TRACE and not is_disabled(target):
        optimizer.root_code = code
        if not code.co_flags & 0x2A0:
            _native.mark(code, _native.TRACE)
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


def _code_of(fn: Any) -> types.CodeType | None:
    if isinstance(fn, torch.nn.Module):
        fn = fn.forward
    while type(fn) is types.MethodType or is_wrapper(fn):
        fn = fn.__func__ if type(fn) is types.MethodType else fn.fn
    return fn.__code__ if type(fn) is types.FunctionType else None


def _named_like(wrapper: Any, fn: Any) -> None:
    """Give a wrapper a function's name, text and attributes; other objects are not asked for such things."""
    if type(fn) in _NAMED or isinstance(fn, type) or is_wrapper(fn):
        functools.update_wrapper(wrapper, fn, updated=() if isinstance(fn, type) else ("__dict__",))
    else:
        wrapper.__wrapped__ = fn


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """Keep a function out of captured graphs; usable as a decorator, with or without arguments.

    Args:
        recursive: also run what the function calls eagerly; otherwise its callees are captured on their own.
    """
    if fn is None:
        return lambda f: disable(f, recursive)
    if not callable(fn):
        raise UserError(f"cannot disable {fn!r}: it is not callable", todo="Pass a function.")
    fn = _unwrapped(fn)
    if recursive:
        wrapper: Any = _native.activate(fn, None)
        _named_like(wrapper, fn)
        return wrapper

    def not_captured(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    _named_like(not_captured, fn)
    for code in (_code_of(fn), _code_of(not_captured)):
        if code is not None:
            _native.mark(code, _native.SKIP)
    register_disabled(not_captured)
    return not_captured


def allow_in_graph(fn: F) -> F:
    """Put calls of a Python function into graphs whole, instead of inlining it. Stored graphs may name it then."""
    ALLOWED.add(fn)
    return register_callable(fn)


def reset() -> None:
    """Forget all captured graphs and guards, of every compiled function."""
    _native.reset_all()
    for optimizer in list(_optimizers):
        optimizer.forget()


@dataclass
class Explanation:
    """What capturing one call gave."""

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    breaks: list[BreakInfo] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    result: Any = None

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
        lines = [f"{self.graph_count} graphs, {self.graph_break_count} graph breaks, {self.op_count} operators"]
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

        def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            result.graphs.append(gm)
            return gm.forward

        compiled: Any = optimize(fn, backend, options=options, report=result.report)
        result.result = compiled(*args, **kwargs)
        optimizer: Optimizer = compiled.__quintet_optimizer__
        for captured in optimizer.captured:
            if captured.brk is not None and captured.brk not in result.breaks:
                result.breaks.append(captured.brk)
            result.guards.extend(map(str, captured.guards))
        return result

    return explained



def export_graph(fn: Any, *args: Any, options: Options | None = None, **kwargs: Any) -> Envelope:
    """The torch dialect envelope of one call, which must be a single graph.

    Raises:
        Unsupported: the graph breaks, or there is nothing to capture.
    """
    envelopes: list[Envelope] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        envelopes.append(gm.meta["envelope"])
        return gm.forward

    base = options or Options()
    compiled: Any = optimize(fn, backend, options=base.replace(fullgraph=True))
    compiled(*args, **kwargs)
    if len(envelopes) != 1:
        raise Unsupported(f"{fn!r} gave {len(envelopes)} graphs; export needs exactly one")
    return envelopes[0]
