"""Backends: what turns a captured graph into a callable. Any ``f(gm, example_inputs)`` is one.

A backend that fails is replaced by the captured graph itself, run eagerly, with the reason in the report.
"""

from __future__ import annotations

import difflib
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from compile_api.environment import unsupported_device
from prims.collectives import exchanges
from prims.eager import leave_to_eager
from prims.errors import InvalidData, NotCompiled, QuintetError, Refused, UserError
from prims.generators import RandomState
from prims.ir import Envelope
from prims.ir.blame import blaming
from prims.ir.reference import drawn_devices
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec
from prims.spec.unbacked import asks_data

__all__ = ["Backend", "list_backends", "lookup_backend", "make_backend", "raw_backend", "register_backend"]

log = logging.getLogger("quintet")

#: ``backend(gm, example_inputs) -> callable``.
Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
_Factory = Callable[[Options, Report], Backend]

_REGISTERED: dict[str, Backend] = {}


def register_backend(backend: Backend | None = None, name: str | None = None) -> Any:
    """Register ``backend(gm, example_inputs) -> callable`` under ``name`` (its ``__name__`` by default).

    Usable as a decorator, with or without arguments. A backend whose results serve every size sets the attribute
    ``supports_dynamic_shapes = True``; else each size that changes has a graph of its own (see
    :func:`dynamo_capture.supports_dynamic_shapes`).

    Raises:
        UserError: not callable, or the name is taken.
    """
    if backend is None:
        return lambda fn: register_backend(fn, name)
    if not callable(backend):
        raise UserError(f"backend {backend!r} is not callable", todo="Give a function f(gm, example_inputs).")
    key = name or getattr(backend, "__name__", None)
    if not isinstance(key, str):
        raise UserError(f"backend {backend!r} has no name", todo="Give one: register_backend(fn, name='mine').")
    if key in _BUILTIN or _REGISTERED.get(key, backend) is not backend:
        raise UserError(f"a backend named {key!r} exists", todo="Choose another name.")
    _REGISTERED[key] = backend
    return backend


def list_backends() -> list[str]:
    """The names of all backends."""
    return sorted([*_BUILTIN, *_REGISTERED])


def lookup_backend(name: str) -> Backend:
    """The backend of that name, with default options.

    Raises:
        UserError: no such backend.
    """
    return make_backend(name, Options.from_environment(), Report())


def make_backend(backend: str | Backend, options: Options, report: Report) -> Backend:
    """The backend for one ``compile()`` call, made to fall back to eager when it fails.

    Raises:
        UserError: an unknown name, neither a name nor a callable, or ``check="nan"`` with one that makes no ATen graph.
    """
    if options.check == "nan" and backend not in ("inductor", "aot_eager"):
        raise UserError(
            f"check='nan' with backend {backend!r}, which makes no ATen graphs to look into",
            todo="Use the backend 'inductor' or 'aot_eager'.",
        )
    if isinstance(backend, str):
        if backend in _BUILTIN:
            made: Any = _BUILTIN[backend](options, report)
            made.supports_dynamic_shapes = True
            return _soft(made, backend, options, report)
        if backend not in _REGISTERED:
            near = difflib.get_close_matches(backend, list_backends(), n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise UserError(
                f"unknown backend {backend!r}",
                todo=f"{hint}Backends are: {', '.join(list_backends())}; any f(gm, example_inputs) works too.",
            )
        return _soft(_REGISTERED[backend], backend, options, report)
    if not callable(backend):
        raise UserError(
            f"backend {backend!r} (a {type(backend).__name__}) is neither a name nor callable",
            todo=f"Give one of {', '.join(list_backends())}, or a function f(gm, example_inputs).",
        )
    return _soft(backend, getattr(backend, "__name__", type(backend).__name__), options, report)


def raw_backend(backend: str | Backend, options: Options, report: Report) -> Backend:
    """The backend as it is: what it raises is raised.

    Raises:
        UserError: an unknown name.
    """
    if isinstance(backend, str) and backend in _BUILTIN:
        made: Any = _BUILTIN[backend](options, report)
        made.supports_dynamic_shapes = True
        return made  # type: ignore[no-any-return]
    make_backend(backend, options, report)  # for its errors
    return _REGISTERED[backend] if isinstance(backend, str) else backend


def _soft(backend: Backend, name: str, options: Options, report: Report) -> Backend:
    says_itself = getattr(backend, "reports_status", False)

    def compile_or_run_eagerly(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        try:
            compiled = backend(gm, example_inputs)
            if not callable(compiled):
                raise TypeError(f"backend {name!r} returned {compiled!r}, which is not callable")
        except NotCompiled:
            raise
        except Exception as error:
            if asks_data(error, gm.meta.get("envelope")):
                raise
            _fall_back(f"backend {name}", error, options, report)
            return gm.forward
        if not says_itself:
            report.status("graph", "compiled")
        if options.check == "shadow":
            from compile_api.shadow import shadowed

            return shadowed(compiled, gm, options, report, name)
        return compiled

    compile_or_run_eagerly.reports_status = True  # type: ignore[attr-defined]
    for declaration in ("supports_dynamic_shapes", "symbolic_example_inputs"):
        if getattr(backend, declaration, False) is True:
            setattr(compile_or_run_eagerly, declaration, True)
    return compile_or_run_eagerly


def _fall_back(stage: str, error: Exception, options: Options, report: Report, *, refuses: bool = True) -> None:
    """Record and warn why a region runs eagerly; raises instead under ``strict``, and ``fullgraph`` (``refuses``).

    A stage's ``UserError`` (no C compiler, say) is something that the user can mend, and says how.
    """
    if options.strict:
        raise error
    reason = str(error) if isinstance(error, QuintetError) else f"{type(error).__name__}: {error}"
    log.info("%s failed, running eagerly: %s", stage, reason, exc_info=error)
    leave_to_eager(
        report, options if refuses else None, stage, reason, getattr(error, "where", None), cause=error
    )


def _eager(options: Options, report: Report) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return blaming(gm)

    return backend


def _aot_eager(options: Options, report: Report) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        import aot_autograd

        def run_as_it_is(env: Envelope, _: Report | None = None) -> Callable[..., Any]:
            return _looked_at(blaming(env.module()), env, options, report)

        with report.phase("aot"):
            return aot_autograd.aot_function(
                gm,
                example_inputs,
                fw_compiler=run_as_it_is,
                bw_compiler=run_as_it_is,
                options=options,
                report=report,
            )

    return backend


def _inductor(options: Options, report: Report) -> Backend:
    if torch.cuda.is_initialized():
        import inductor_gen

        inductor_gen.get_ready(options)

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        import aot_autograd

        problem = unsupported_device({x.device.type for x in example_inputs if isinstance(x, torch.Tensor)})
        if problem is not None:
            leave_to_eager(report, options, "inductor", problem)
            return gm.forward
        generate = _Generator(options, report)
        with report.phase("aot"):
            return aot_autograd.aot_function(
                gm,
                example_inputs,
                fw_compiler=generate,
                bw_compiler=generate,
                in_place_compiler=_Generator(options, report, in_place=options.check != "nan"),
                partition_fn=lambda joint, options: aot_autograd.min_cut_partition(joint, options),
                options=options,
                report=report,
            )

    backend.reports_status = True  # type: ignore[attr-defined]
    return backend


class _Generator:
    """Lower an aten graph and generate its kernels; a graph that defeats either runs eagerly.

    ``in_place``: kernels may write inputs that the graph changes, as nobody needs their old values.
    """

    def __init__(self, options: Options, report: Report, in_place: bool = False) -> None:
        self.in_place = in_place
        self.options = options
        self.report = report

    def __call__(self, env: Envelope, report: Report | None = None) -> Callable[..., Sequence[Any]]:
        import inductor_gen
        from prims.lower import UPDATES, lower

        stage = "lower"
        try:
            claims = frozenset().union(*(inductor_gen.claims(kind) for kind in _device_types(env)))
            if self.in_place:
                claims |= {UPDATES}
            with self.report.phase("lower"):
                lowered = lower(env, claims=claims, options=self.options, report=self.report)
            stage = "codegen"
            with self.report.phase("codegen"):
                compiled = inductor_gen.compile_graph(
                    lowered, options=self.options, report=self.report, in_place=self.in_place
                )
        except Exception as error:
            if asks_data(error, env):
                raise
            _fall_back(stage, error, self.options, self.report)
            return _eager_graph(env)
        return _looked_at(_Guarded(compiled, env, self.options, self.report), env, self.options, self.report)


def _looked_at(compiled: Any, env: Envelope, options: Options, report: Report) -> Callable[..., Any]:
    """The compiled graph, under ``check="nan"`` with its results looked at."""
    if options.check != "nan":
        return compiled  # type: ignore[no-any-return]
    from compile_api.nans import nan_checked

    return nan_checked(compiled, env, report)


def _device_types(env: Envelope) -> set[str]:
    specs = [desc.spec for desc in env.inputs] + [desc.spec for desc in env.outputs]
    return {spec.device.type for spec in specs if isinstance(spec, TensorSpec)} or {"cpu"}


def _eager_graph(env: Envelope) -> Callable[..., Any]:
    """The graph run operator by operator.

    A compiled forward graph may have laid out images that it saved otherwise than eager does, which neither a view nor
    a library's kernel in this graph may take: they are given the strides with which the graph was traced.
    """
    forward = blaming(env.module())
    saved = [k for k, desc in enumerate(env.inputs) if desc.kind == "saved" and _is_row_major(desc.spec)]
    if not saved:
        return forward

    def relaid(*inputs: Any) -> Any:
        given = list(inputs)
        for k in saved:
            given[k] = given[k].contiguous()
        return forward(*given)

    return relaid


def _is_row_major(spec: Any) -> bool:
    return isinstance(spec, TensorSpec) and all(isinstance(s, int) for s in spec.shape) and spec.is_contiguous()


class _Guarded:
    """A compiled graph that is given up for the eager one when it fails where eager does not.

    A compiled graph applies no mutations (the ahead-of-time runtime does) but those that may be applied twice, so that
    running the region again is safe.
    An error that eager raises too is the program's own and is raised as eager raises it.
    """

    __slots__ = ("compiled", "drawn", "env", "filled", "options", "proved", "report")

    def __init__(self, compiled: Callable[..., Any], env: Envelope, options: Options, report: Report) -> None:
        self.compiled = compiled
        self.env = env
        self.drawn = drawn_devices(env)
        self.options = options
        self.report = report
        self.proved = False
        self.filled = False  # memory was full once, which the report then says

    def boxed(self, inputs: list[Any]) -> Any:
        """Run on a list of inputs that is given up, so that each can be freed after its last use.

        The first call keeps the inputs, so that the region can be run again if it fails. A later failure is mended so
        too, unless inputs were freed by then: the error is raised, and the region runs eagerly from the next call on.
        """
        direct = getattr(self.compiled, "boxed", None)
        if not self.proved or direct is None:
            results = self(*inputs)
            inputs.clear()
            return results
        before = RandomState(self.drawn)
        try:
            return direct(inputs)
        except Exception as error:
            if self._raises(error):
                raise
            before.put_back()
            kept = self.compiled.surviving_inputs(error) if hasattr(self.compiled, "surviving_inputs") else None
            if kept is None and not isinstance(error, (torch.OutOfMemoryError, InvalidData)):
                self.compiled = _eager_graph(self.env)
                _fall_back("run", error, self.options, self.report, refuses=False)
                error.add_note(
                    "This came from a compiled graph whose inputs were partly freed by then, so that this call cannot "
                    "be repeated eagerly. The next ones run eagerly."
                )
            if kept is None:
                raise
            failure = error
        return self._instead(failure, kept)

    def __call__(self, *inputs: Any) -> Any:
        before = RandomState(self.drawn)
        try:
            results = self.compiled(*inputs)
        except Exception as error:
            if self._raises(error):
                raise
            before.put_back()
            failure = error
        else:
            if not self.proved:
                self.proved = True
                self.report.status("graph", "compiled")
            return results
        # Outside the handler: what eager raises is the program's own error, not one that came of handling this one.
        return self._instead(failure, inputs)

    def _raises(self, error: Exception) -> bool:
        """Whether the error is to be seen as it is. Other processes do not run a region again because this one does."""
        if exchanges(self.env.graph):
            return True
        return isinstance(error, Refused) or (self.options.strict and not isinstance(error, InvalidData))

    def _instead(self, error: Exception, inputs: Sequence[Any]) -> Any:
        """The results by the eager graph, which takes over if it succeeds; its error is the program's own.

        After running out of memory it serves for this call only: there may be more the next time.
        """
        full = isinstance(error, torch.OutOfMemoryError)
        _let_go(error)
        if full:
            generated = sys.modules.get("inductor_gen")  # no import here: another thread may be compiling
            if generated is not None:
                generated.free_memory()
        eager = _eager_graph(self.env)
        with torch.no_grad():
            results = eager(*inputs)
        if not full:
            self.compiled = eager
            self.proved = True
        if not (full and self.filled):
            _fall_back("run", error, self.options, self.report, refuses=not full)
        self.filled = self.filled or full
        return results


def _let_go(error: BaseException | None) -> None:
    """Free the tensors that the frames of a failed run hold, those that closures and looked-up locals in them hold too;
    where the error came from is logged now."""
    if log.isEnabledFor(logging.INFO):
        log.info("a compiled graph failed:\n%s", "".join(traceback.format_exception(error)))
    outside = sys.exception()  # what the program is handling
    while error is not None and error is not outside:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


_BUILTIN: dict[str, _Factory] = {"inductor": _inductor, "eager": _eager, "aot_eager": _aot_eager}
