"""The backward graph, compiled when it is first run, and once more for each pattern of absent tangents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from aot_autograd.runtime.stored import outside_autocast
from aot_autograd.runtime.variants import MOST, Variants
from prims.artefact import Artefact, child_of, restore
from prims.background import Job, is_worker, submit
from prims.coding import decoded, encoded
from prims.debug import keep
from prims.eager import run_instead
from prims.errors import NotCompiled, StoredGraphError, Unsupported, UserError
from prims.forking import compiling, why_cut_off
from prims.options import Options
from prims.records import record
from prims.report import Report
from prims.spec.unbacked import asks_data
from prims.stance import raises_defects

if TYPE_CHECKING:  # what a stored program need not import
    from prims.ir import Envelope
    from prims.ir.conditions import Conditional

__all__ = [
    "BACKWARD", "PARTIAL", "Compiler", "LazyBackward", "Store", "compile_or_run", "load_backward", "load_partial",
]  # fmt: skip

Compiler = Callable[["Envelope", "Report | None"], Callable[..., Sequence[Any]]]
_Boxed = Callable[[list[Any]], Sequence[Any]]
BACKWARD, PARTIAL = "aot_autograd.backward", "aot_autograd.partial_backward"
_VERSION = "2"
_PARTIAL_NAME = "backward for some outputs"
#: What the graph's text does not say of its nodes.
_META = ("called_by", "beside_zeros", "late")


class Store(Protocol):
    """Where a compiler keeps what it has compiled: the attribute ``store`` of a compiler that does."""

    def digest(self, env: Envelope) -> str:
        """The name of a graph: graphs of one name are compiled to the same."""

    def find(self, digest: str) -> Any:
        """What is kept under a name; None where nothing is that serves here."""

    def keep(self, digest: str, compiled: Any) -> None:
        """Keep something that has an artefact (:mod:`prims.artefact`), where it can be."""


def _called(node: torch.fx.Node) -> str:
    """What a node is called in reports: ``aten.add.Tensor``, ``getitem``."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else getattr(node.target, "__name__", "")


def compile_or_run(
    env: Envelope, compiler: Compiler, options: Options, report: Report | None, name: str
) -> Callable[..., Sequence[Any]]:
    """The compiled graph, or the graph run operator by operator if the compiler fails (recorded).

    Raises:
        UserError: from the compiler, as it is.
        NotCompiled: the compiler fails, under ``options.fullgraph``.
        Exception: from the compiler, under ``options.strict``.
    """
    if report is not None:
        report.graph_of(name, list(env.op_nodes), _called, dialect="aten")
    reads_data = any(entry.binding is None for entry in env.symbols)
    keep(options, report, f"aten {name}", lambda: str(env))
    try:
        cut_off = why_cut_off()
        if cut_off is not None:
            raise Unsupported(cut_off)
        if options.verify != "off":
            env.verify(options.verify)
        if reads_data:
            from aot_autograd.runtime.sections import Sections

            return Sections(env, lambda part, _: compiler(part, report))
        return compiler(env, report)
    except (UserError, NotCompiled):
        raise
    except Exception as error:
        if raises_defects(options, report, error) or reads_data and asks_data(error, env):
            raise
        reason = f"the {name} graph runs uncompiled: {type(error).__name__}: {error}"
        return run_instead(env.module(), report, options, "aot_autograd", reason, cause=error)


@record
class PartialBackward:
    """What a store knows of the backward graph for a pattern of absent tangents, beside the compiled graph.

    Attributes:
        digest: the name of the graph.
        places: which outputs of the whole backward graph it has.
    """

    digest: str
    places: tuple[int, ...]

    def artefact(self) -> Artefact:
        """It as an artefact."""
        return Artefact(PARTIAL, _VERSION, {"digest": self.digest, "places": list(self.places)})


class LazyBackward:
    """Runs the backward graph: ``backward(inputs) -> gradients``; the list of inputs is given up.

    Tangents may be None where a result of the forward was not used; a graph without them is then derived, so that
    gradients that eager leaves None stay None.

    Args:
        env: the graph, or what reads it when it is first needed.
        tangents, outputs: how many it has.
        digest: its name in the compiler's store, where it is known.
    """

    def __init__(
        self, env: Envelope | Callable[[], Envelope], tangents: int, outputs: int, compiler: Compiler,
        options: Options, report: Report | None, digest: str | None = None,
    ) -> None:  # fmt: skip
        self._graph = env
        self._compiler = compiler
        self._store: Store | None = getattr(compiler, "store", None)
        self._options = options
        self._report = report
        self._digest = digest
        self._full: _Boxed | None = None
        self._partial: dict[tuple[bool, ...], tuple[_Boxed, Sequence[int]]] = {}
        #: What runs in their places while the background compiles them.
        self._derived: dict[tuple[bool, ...], tuple[_Boxed, Sequence[int], Job]] = {}
        self._tangents = tangents
        self._outputs = outputs

    @property
    def env(self) -> Envelope:
        """The backward graph."""
        if callable(self._graph):
            self._graph = self._graph()
        return self._graph

    def artefact(self) -> Artefact:
        """The graph, its name and its compiler: what is compiled of it is in the compiler's own store."""
        from prims.ir.conditions import facts
        from prims.ir.serial import to_json

        env = self.env
        meta = [
            [at, key, encoded(node.meta[key])]
            for at, node in enumerate(env.graph.nodes) for key in _META if key in node.meta
        ]  # fmt: skip
        text = {
            "tangents": self._tangents, "outputs": self._outputs, "digest": self._name(), "meta": meta,
            "facts": facts(env),
        }  # fmt: skip
        files = {"graph": to_json(env, indent=None).encode()}
        return Artefact(BACKWARD, _VERSION, text, files, {"compiler": child_of(self._compiler)})

    def _name(self) -> str | None:
        if self._digest is None and self._store is not None:
            self._digest = self._store.digest(self.env)
        return self._digest

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """The gradients, in the order of the envelope's outputs; None for those that no tangent reaches."""
        # No local variable may hold an input: the box is to be their only owner.
        if any(tangent is None for tangent in inputs[-self._tangents :]):
            return self._run_partial(inputs)
        return (self._full or self.prepare())(inputs)

    def prepare(self) -> _Boxed:
        """The compiled graph of a pass that all tangents come to, compiled now where it is not yet."""
        if self._full is None:
            with compiling():
                if self._full is None:
                    found = self._found(self._digest, lambda: self.env, "backward")
                    self._full = found or self.compile(self.env, "backward")
        return self._full

    def _run_partial(self, inputs: list[Any]) -> Sequence[Any]:
        absent = tuple(tangent is None for tangent in inputs[-self._tangents :])
        made = self._partial.get(absent)
        if made is None:
            beside = self._options.background and not is_worker()
            made = self._meanwhile(absent) if beside else self._prepare_partial(absent)
        compiled, places = made
        results: list[Any] = [None] * self._outputs
        inputs[-self._tangents :] = [tangent for tangent in inputs[-self._tangents :] if tangent is not None]
        for place, value in zip(places, compiled(inputs), strict=True):
            results[place] = value
        return results

    def _prepare_partial(self, absent: tuple[bool, ...]) -> tuple[_Boxed, Sequence[int]]:
        """The compiled graph without some tangents, compiled now, and the outputs that it has."""
        with compiling():
            if absent not in self._partial:
                self._partial[absent] = self._without(absent)
            return self._partial[absent]

    def _meanwhile(self, absent: tuple[bool, ...]) -> tuple[_Boxed, Sequence[int]]:
        """That graph run operator by operator, until the background has compiled it.

        Raises:
            NotCompiled: it could not be, under ``fullgraph``.
        """
        known = self._derived.get(absent)
        if known is None:
            env, kept = self._derive(absent)
            eager = getattr(self._compiler, "eager", run_as_it_is)
            job = submit(Job(lambda: self._beside(absent)))
            known = self._derived[absent] = self._ready(eager(env)), kept, job
        run, places, job = known
        if job.done and absent not in self._partial and job.error is not None:
            del self._derived[absent]
            raise job.error
        if self._report is not None:
            self._report.in_background(_PARTIAL_NAME, None, calls=1)
        return run, places

    def _beside(self, absent: tuple[bool, ...]) -> None:
        status, begun = "failed", time.perf_counter()
        try:
            self._prepare_partial(absent)
            status = "in use"
        finally:
            if self._report is not None:
                spent = time.perf_counter() - begun
                made = int(status == "in use")
                self._report.in_background(_PARTIAL_NAME, None, status, programs=made, seconds=spent)

    def _without(self, absent: tuple[bool, ...]) -> tuple[_Boxed, Sequence[int]]:
        """The compiled graph without some tangents, and the outputs that it has.

        A store knows it by the whole graph's name and the pattern, so that another process need not derive it again.
        """
        store = self._store
        name = f"{self._name()} without {''.join('01'[each] for each in absent)}"
        known = None if store is None else store.find(name)
        if isinstance(known, PartialBackward):
            compiled = self._found(known.digest, lambda: self._derive(absent)[0], _PARTIAL_NAME)
            if compiled is not None:
                return compiled, known.places
        env, places = self._derive(absent)
        made = self.compile(env, _PARTIAL_NAME)
        if store is not None:
            store.keep(name, PartialBackward(store.digest(env), tuple(places)))
        return made, places

    def _derive(self, absent: tuple[bool, ...]) -> tuple[Envelope, Sequence[int]]:
        """The graph without some tangents, and the outputs that it has."""
        from aot_autograd.runtime.absent import without_tangents

        return without_tangents(self.env, absent)

    def _found(self, digest: str | None, env: Callable[[], Envelope], name: str) -> _Boxed | None:
        """What the store has under the name of a graph."""
        found = None if self._store is None or digest is None else self._store.find(digest)
        if found is None or not hasattr(found, "conditions"):
            return None if found is None else self._ready(found)
        return self._variants(env, name, (found, self._ready(found.run)))

    def compile(self, env: Envelope, name: str) -> Callable[[list[Any]], Sequence[Any]]:
        """A compiled graph as a function of a list of inputs that is given up."""
        conditional, run = self._compiled(env, name)
        return self._variants(lambda: env, name, (conditional, run)) if conditional.conditions else run

    def _compiled(self, env: Envelope, name: str, sizes: Mapping[str, int] = {}) -> tuple[Conditional, _Boxed]:
        """A compiled graph, for ``sizes`` or those of the call that was captured, and what it takes for granted of
        them: its program's guards were asked before, and know nothing of it."""
        from prims.ir.conditions import Conditional

        context = env.symbols.context
        if context is None:
            return Conditional.of(run := self._run_of(env, name), env, ()), run
        with context.apart() as guards:
            for symbol, size in sizes.items():
                context.info(symbol).hint = size
            if sizes:
                entries = (replace(entry, hint=sizes.get(entry.name, entry.hint)) for entry in env.symbols)
                env = env.replace(symbols=replace(env.symbols, entries=tuple(entries)))
            run = self._run_of(env, name)
        return Conditional.of(run, env, guards), run

    def _run_of(self, env: Envelope, name: str) -> _Boxed:
        with nullcontext() if self._report is None else self._report.phase("backward"):
            return self._ready(compile_or_run(env, self._compiler, self._options, self._report, name))

    def _variants(self, env: Callable[[], Envelope], name: str, first: tuple[Conditional, _Boxed]) -> Variants:
        def as_it_is() -> _Boxed:
            cause = Unsupported(f"the {name} graph was compiled for {MOST} cases of its sizes, and fits no other")
            return self._ready(
                run_instead(env().module(), self._report, self._options, "aot_autograd", cause.reason, cause=cause)
            )

        return Variants(first, lambda sizes: self._compiled(env(), name, sizes), as_it_is, env)

    @staticmethod
    def _ready(compiled: Callable[..., Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
        """A backward pass may be asked for inside an autocast region or outside, each time anew."""
        plain, careful = _boxed(compiled), _boxed(outside_autocast(compiled))

        def call(inputs: list[Any]) -> Sequence[Any]:
            return careful(inputs) if torch._C._is_any_autocast_enabled() else plain(inputs)

        return call


def run_as_it_is(env: Envelope) -> Callable[..., Sequence[Any]]:
    """The graph run operator by operator."""
    return env.module().forward  # type: ignore[no-any-return]


def _boxed(compiled: Callable[..., Sequence[Any]]) -> _Boxed:
    """A compiled graph as a function of a list that it empties, so that inputs are freed after their last use.

    A compiler offers that as the attribute ``boxed`` of its result. Others run operators, some of which give back what
    they were given.
    """
    boxed = getattr(compiled, "boxed", None)
    return boxed if boxed is not None else lambda inputs: _apart(compiled(*inputs))


def _apart(results: Sequence[Any]) -> Sequence[Any]:
    """Gradients each in memory of its own: autograd keeps them as they are, and who writes one would write others."""
    seen, apart = set(), list(results)
    for at, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            place = result.untyped_storage()._cdata
            if place in seen:
                apart[at] = result.clone()
            seen.add(place)
    return apart


def load_backward(artefact: Artefact, options: Options, report: Report | None) -> LazyBackward:
    """The backward pass of an artefact of :meth:`LazyBackward.artefact` (a loader).

    Raises:
        StoredGraphError: it is of another version, or its parts have other types.
    """
    text, data = artefact.text, artefact.files["graph"]
    digest, counts, told = text["digest"], (text["tangents"], text["outputs"]), text["facts"]
    if artefact.version != _VERSION or not all(type(n) is int and n >= 0 for n in counts):
        raise StoredGraphError("ART-C4", f"a {BACKWARD} of version {artefact.version!r}")
    if digest is not None and type(digest) is not str:
        raise StoredGraphError("ART-C5", f"a backward graph is named {str(digest)[:80]!r}")

    def read() -> Envelope:
        from prims.ir.conditions import learn
        from prims.ir.serial import from_json

        env = from_json(data.decode())
        learn(env, told)
        nodes = list(env.graph.nodes)
        for at, key, value in text["meta"]:
            if key in _META:
                nodes[at].meta[key] = decoded(value)
        return env

    compiler = restore(artefact.children["compiler"], options=options, report=report)
    return LazyBackward(read, *counts, compiler, options, report, digest)


def load_partial(artefact: Artefact, options: Options, report: Report | None) -> Any:
    """The record of an artefact of :class:`PartialBackward` (a loader).

    Raises:
        StoredGraphError: it is of another version, or its parts have other types.
    """
    digest, places = artefact.text["digest"], artefact.text["places"]
    if artefact.version != _VERSION or type(digest) is not str or not all(type(at) is int for at in places):
        raise StoredGraphError("ART-C4", f"a {PARTIAL} of version {artefact.version!r}")
    return PartialBackward(digest, tuple(places))
