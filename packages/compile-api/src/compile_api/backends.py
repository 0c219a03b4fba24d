"""Backends: what turns a captured graph into a callable. Any ``f(gm, example_inputs)`` is one.

A backend that fails is replaced by the captured graph itself, run eagerly, with the reason in the report.
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from compile_api.environment import unsupported_device
from compile_api.guarded import Guarded, eager_graph, eagerly_instead
from compile_api.programs import DiskGraphs, graphs_of
from prims.artefact import Artefact, NotPortable
from prims.eager import leave_to_eager
from prims.errors import NotCompiled, StoredGraphError, UserError
from prims.forking import compiling
from prims.ir import Envelope
from prims.ir.blame import blaming
from prims.ir.reference import drawn_devices
from prims.ir.serial import from_json, to_json
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec
from prims.spec.unbacked import asks_data
from prims.undo import undoing

__all__ = ["Backend", "list_backends", "lookup_backend", "make_backend", "raw_backend", "register_backend"]

log = logging.getLogger("quintet")

#: ``backend(gm, example_inputs) -> callable``.
Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
_Factory = Callable[[Options, Report], Backend]

#: Bytes of inputs up to which a region is written as a script.
_SCRIPTED = 1 << 28

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
            f"backend {backend!r} (of type {type(backend).__name__}) is neither a name nor callable",
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
            of_the_users = f"It is an error of the backend {name!r}: options={{'strict': True}} raises it."
            todo = None if name in _BUILTIN else of_the_users
            return eagerly_instead(gm.forward, f"backend {name}", error, options, report, todo)
        if not says_itself:
            report.status("graph", "compiled")
        if options.debug:
            _reproduced(gm, example_inputs, options, report, name)
        if options.check == "shadow":
            from compile_api.shadow import shadowed

            return shadowed(compiled, gm, options, report, name)
        return compiled

    compile_or_run_eagerly.reports_status = True  # type: ignore[attr-defined]
    for declaration in ("supports_dynamic_shapes", "symbolic_example_inputs", "gives_writes_when_done", "prepare"):
        if getattr(backend, declaration, False):
            setattr(compile_or_run_eagerly, declaration, getattr(backend, declaration))
    # A script that runs the region again has its inputs, and shadow runs nothing before there is a call.
    compile_or_run_eagerly.reads_no_data = getattr(backend, "reads_no_data", False) and not options.debug  # type: ignore[attr-defined]
    return compile_or_run_eagerly


def _reproduced(
    gm: torch.fx.GraphModule, example_inputs: list[Any], options: Options, report: Report, backend: str
) -> None:
    """Write a script that runs the region again, compiled and eagerly, into the debug folder, with its inputs."""
    from compile_api.script import write_script

    size = sum(x.numel() * x.element_size() for x in example_inputs if isinstance(x, torch.Tensor))
    if size > _SCRIPTED:
        log.info("debug: a region of %d bytes of inputs is not written as a script", size)
        return
    name = str(gm.meta.get("name", "graph"))
    known = backend if backend in list_backends() else "inductor"
    try:
        why = f"The captured graph {name}"
        script = write_script(f"region {name}", why, gm, example_inputs, options, known, sources=True)
    except Exception as error:  # inputs that no file takes; the region itself is compiled
        log.info("debug: the region %s is not written as a script", name, exc_info=error)
        return
    if script is not None:
        report.keep(f"region {name}", script.path)


def _eager(options: Options, report: Report) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return blaming(gm)

    return backend


def _aot_eager(options: Options, report: Report) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        import aot_autograd

        run_as_it_is = _AsItIs(options, report)
        with report.phase("aot"):
            return aot_autograd.aot_function(
                gm,
                example_inputs,
                fw_compiler=run_as_it_is,
                bw_compiler=run_as_it_is,
                options=options,
                report=report,
            )

    return _ahead_of_time(backend)


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
        graphs = graphs_of(options, report)
        generate = _Generator(options, report, graphs)
        with report.phase("aot"):
            compiled = aot_autograd.aot_function(
                gm,
                example_inputs,
                fw_compiler=generate,
                bw_compiler=generate,
                in_place_compiler=_Generator(options, report, graphs, in_place=options.check != "nan"),
                partition_fn=lambda joint, options: aot_autograd.min_cut_partition(joint, options),
                options=options,
                report=report,
            )
        if graphs is not None and hasattr(compiled, "writes_when_done"):
            compiled.artefact = functools.partial(_runtime_or_captured, compiled.artefact, gm)  # type: ignore[attr-defined]
        return compiled

    backend.reports_status = True  # type: ignore[attr-defined]
    return _ahead_of_time(backend)


def _ahead_of_time(backend: Any) -> Backend:
    """Declare what holds of backends that trace ahead of time, for those who compile in the background: nothing is read
    of an example input but its class, type, device and place in autograd; what is made writes its inputs when it is
    done; and ``prepare()`` imports what compiling needs."""
    backend.reads_no_data = backend.gives_writes_when_done = True
    backend.prepare = _prepare
    return backend  # type: ignore[no-any-return]


def _prepare() -> None:
    import prims.lower  # noqa: F401


class _AsItIs:
    """A compiler that compiles nothing."""

    def __init__(self, options: Options, report: Report) -> None:
        self.options = options
        self.report = report

    def __call__(self, env: Envelope, report: Report | None = None) -> Callable[..., Any]:
        module = env.module()
        module.meta["envelope"] = env
        return _looked_at(blaming(module), env, self.options, self.report)

    eager = staticmethod(eager_graph)

    def artefact(self) -> Artefact:
        """The compiler itself, for a backward graph that another process runs."""
        return Artefact(_COMPILER, _VERSION, {"in_place": None})


class _Store:
    """The compiled graphs of one compiler (``aot_autograd.runtime.lazy.Store``)."""

    def __init__(self, graphs: DiskGraphs, in_place: bool) -> None:
        self.digest = graphs.digest
        self._graphs = graphs
        self._in_place = in_place

    def find(self, digest: str) -> Any:
        return self._graphs.find(digest, self._in_place)

    def keep(self, digest: str, compiled: Any) -> None:
        self._graphs.keep(digest, self._in_place, compiled)


class _Generator:
    """Lower an aten graph and generate its kernels; a graph that defeats either runs eagerly.

    ``in_place``: kernels may write inputs that the graph changes, as nobody needs their old values.
    """

    def __init__(
        self, options: Options, report: Report, graphs: DiskGraphs | None = None, in_place: bool = False
    ) -> None:
        self.in_place = in_place
        self.options = options
        self.report = report
        self.store = None if graphs is None else _Store(graphs, in_place)

    def __call__(self, env: Envelope, report: Report | None = None) -> Callable[..., Sequence[Any]]:
        store = self.store
        if store is None:
            return self._compiled(env)
        from prims.ir.conditions import Conditional

        digest, context = store.digest(env), env.symbols.context
        compiled = store.find(digest)
        if isinstance(compiled, Conditional):
            compiled = compiled.run if compiled.assumed_in(context) else None
        if compiled is None:
            known = 0 if context is None else len(context.guards)
            compiled = self._compiled(env)
            new = () if context is None else context.guards[known:]
            store.keep(digest, Conditional.of(compiled, env, new) if new else compiled)
        return compiled  # type: ignore[no-any-return]

    eager = staticmethod(eager_graph)  # on what a compiled forward graph has saved

    def artefact(self) -> Artefact:
        """The compiler itself, for a backward graph that another process compiles when it first runs."""
        return Artefact(_COMPILER, _VERSION, {"in_place": self.in_place})

    def _compiled(self, env: Envelope) -> Callable[..., Sequence[Any]]:
        import inductor_gen
        from prims.lower import UPDATES, lower

        stage = "lower"
        try:
            claims = frozenset().union(*(inductor_gen.claims(kind, self.options) for kind in _device_types(env)))
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
            return eagerly_instead(eager_graph(env), stage, error, self.options, self.report)
        guarded = Guarded(compiled, env, drawn_devices(env), self.options, self.report)
        return _looked_at(guarded, env, self.options, self.report)


#: What a compiler is stored as, and a captured graph whose runtime cannot be.
_COMPILER, _CAPTURED, _VERSION = "compile_api.compiler", "compile_api.captured", "1"


def load_compiler(artefact: Artefact, options: Options, report: Report | None) -> Callable[..., Any]:
    """The compiler of an artefact of one (a loader).

    Raises:
        StoredGraphError: it is of another version.
    """
    in_place = artefact.text["in_place"]
    if artefact.version != _VERSION or type(in_place) not in (bool, type(None)):
        raise StoredGraphError("ART-C4", f"a {_COMPILER} of version {artefact.version!r}")
    report = Report() if report is None else report
    if in_place is None:
        return _AsItIs(options, report)
    return _Generator(options, report, graphs_of(options, report), in_place)


def _runtime_or_captured(runtime: Callable[[], Artefact], gm: torch.fx.GraphModule) -> Artefact:
    """The runtime, or the captured graph where something of the runtime cannot be stored (graphs that read data)."""
    try:
        return runtime()
    except (NotPortable, StoredGraphError) as reason:
        try:
            return _captured(gm)
        except (NotPortable, StoredGraphError):
            raise reason from None


def _captured(gm: torch.fx.GraphModule) -> Artefact:
    """The graph as capture has left it: another process traces it again, and finds the graphs that come of it."""
    env = gm.meta.get("envelope")
    if env is None or env.constants:
        raise NotPortable("a graph with constants, or without its description, is not stored")
    return Artefact(_CAPTURED, _VERSION, {}, {"graph": to_json(env, indent=None).encode()})


class _Captured:
    """A captured graph of another process, which is traced with the arguments of its first call."""

    def __init__(self, gm: torch.fx.GraphModule, options: Options, report: Report) -> None:
        self._gm = gm
        self._options = options
        self._report = report
        self._run: Callable[..., Any] | None = None

    def artefact(self) -> Artefact:
        return _captured(self._gm)

    def __call__(self, *args: Any) -> Any:
        if self._run is None:
            with compiling():
                if self._run is None:
                    run = make_backend("inductor", self._options, self._report)(self._gm, list(args))
                    if not hasattr(run, "writes_when_done"):  # as the code around it counts on
                        run = undoing(run, [k for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)])
                    self._run = run
        return self._run(*args)


def load_captured(artefact: Artefact, options: Options, report: Report | None) -> Callable[..., Any]:
    """The graph of an artefact of a captured graph, compiled when it is first called (a loader).

    Raises:
        StoredGraphError: it is of another version, or no graph.
    """
    if artefact.version != _VERSION:
        raise StoredGraphError("ART-C4", f"a {_CAPTURED} of version {artefact.version!r}")
    gm = from_json(artefact.files["graph"].decode()).module()
    return _Captured(gm, options, Report() if report is None else report)


def _looked_at(compiled: Any, env: Envelope, options: Options, report: Report) -> Callable[..., Any]:
    """The compiled graph, under ``check="nan"`` with its results looked at."""
    if options.check != "nan":
        return compiled  # type: ignore[no-any-return]
    from compile_api.nans import nan_checked

    return nan_checked(compiled, env, report)


def _device_types(env: Envelope) -> set[str]:
    specs = [desc.spec for desc in env.inputs] + [desc.spec for desc in env.outputs]
    return {spec.device.type for spec in specs if isinstance(spec, TensorSpec)} or {"cpu"}


_BUILTIN: dict[str, _Factory] = {"inductor": _inductor, "eager": _eager, "aot_eager": _aot_eager}
