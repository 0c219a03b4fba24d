"""``minify()``: from a compiled call that is wrong, fails or is slow, to a small stand-alone script that is, too.

The first captured graph that differs from eager, or raises, is cut down: to its first operators, to its last ones (what
comes before is computed eagerly and given as inputs), to fewer in between, to one result and to smaller sizes. A step
is kept where the smaller program still fails in the same way, compared with eager on the very same inputs; what it
computes beside that is of no interest. Of slow graphs the one that loses most is cut down, to what still takes as
many times as long as eager and loses at least a quarter as many seconds: a call's own cost, which the smallest programs
come to, is not what was looked for. The script is written by :mod:`compile_api.script`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from compile_api.backends import Backend, raw_backend
from compile_api.comparison import (
    GIVE_IT,
    UNREPEATABLE,
    Comparison,
    Region,
    check_region,
    checking_options,
    compare,
    compare_with,
    plain_of,
)
from compile_api.script import symbolic_dims, write_script
from compile_api.trial import copies_of, keeping_random_state
from prims.debug import place_for
from prims.errors import UserError
from prims.options import Options
from prims.records import record
from prims.report import Report
from prims.spec import spec_of

__all__ = ["Minified", "minify"]


@record
class Minified:
    """What :func:`minify` found.

    Attributes:
        path: the script; None where none can stand alone.
        nodes: operators in it, of ``of`` in the captured graph; statements of a function that capture gets wrong.
        text: the program.
        detail: what is wrong with it.
        tried: how many programs were compiled.
        counted: what ``nodes`` are: ``"operators"`` or ``"statements"``.
    """

    path: str | None
    nodes: int
    of: int
    text: str
    detail: str
    tried: int
    counted: str = "operators"

    def __str__(self) -> str:
        at = f"python {self.path}" if self.path else "no script can stand alone"
        return f"{self.nodes} of {self.of} {self.counted} ({at}): {self.detail}\n{self.text}"


def minify(
    fn: Callable[..., Any], *args: Any, backend: str | Backend = "inductor", options: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, seconds: float = 300.0, slow: float | None = None,
    before: Sequence[Sequence[Any]] = (),
) -> Minified:  # fmt: skip
    """Write a small script that shows how the compiled ``fn(*args, **kwargs)`` differs from eager, or fails; or, with
    ``slow``, that it takes so many times as long.

    Args:
        seconds: how long smaller programs are looked for.
        slow: look for a graph that takes over so many times as long compiled as eagerly, first calls not counted.
        before: arguments of calls that are made first, as of :func:`compile_api.compare`.

    Raises:
        UserError: it neither differs nor fails, or no graph of it is slow.
    """
    opts = checking_options(options)
    if slow is not None:
        return _of_slow(fn, args, kwargs or {}, backend, opts, time.monotonic() + seconds, slow)
    found = compare(fn, *args, backend=backend, options=options, kwargs=kwargs, before=before)
    if not found.repeats:
        raise UserError(UNREPEATABLE, todo="Put the state into the arguments, or leave it out of the program.")
    if found.capture or found.error is not None:
        return _of_capture(fn, found, args, kwargs or {}, opts, time.monotonic() + seconds)
    region = found.failing
    if region is None:
        raise UserError(
            "the compiled program does what eager does: there is nothing to minify",
            todo=GIVE_IT + str(found),
        )
    search = (_SymbolicSearch if _is_symbolic(region.gm) else _Search)(
        region, backend, opts, time.monotonic() + seconds
    )
    least = search.run()
    name = backend if isinstance(backend, str) else "inductor"
    detail = str(search.last).splitlines()[0]
    script = write_script("minified", detail, least.module(), least.args, opts, name, modes=region.modes)
    own = isinstance(backend, str)
    return Minified(
        script.path if script is not None and own else None, least.size, search.first.size,
        str(least.graph).strip(), detail, search.tried,
    )  # fmt: skip


def _of_slow(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], backend: str | Backend, options: Options, deadline: float,
    slow: float,
) -> Minified:  # fmt: skip
    from compile_api.comparison import run_captured
    from compile_api.slow import Slowness, recording_times

    found: list[Slowness] = []
    run_captured(plain_of(fn), args, kwargs, recording_times(backend, options, found), options)
    slowest = max((r for r in found if r.error is None), key=lambda r: r.lost, default=None)
    if slowest is None or slowest.ratio <= slow:
        told = "; ".join(map(str, found)) or "nothing was captured"
        raise UserError(
            f"no captured graph takes over {slow:g} times as long compiled as eagerly: {told}",
            todo="What is between graphs (breaks, in report()) and the first call are not looked at.",
        )
    search = _SlowSearch(slowest, backend, options, deadline, slow)
    least = search.run()
    detail = str(search.last)
    name = backend if isinstance(backend, str) else "inductor"
    script = write_script(
        "minified", detail, least.module(), least.args, options, name, slow, modes=slowest.modes
    )
    path = script.path if script is not None and isinstance(backend, str) else None
    return Minified(path, least.size, search.first.size, str(least.graph).strip(), detail, search.tried)


class _Program:
    """A graph of the torch dialect and its inputs."""

    def __init__(self, graph: torch.fx.Graph, args: Sequence[Any], root: torch.nn.Module, name: str) -> None:
        self.graph = graph
        self.args = tuple(args)
        self.root = root
        self.name = name
        self.nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
        self.size = len(self.nodes)
        for node in graph.nodes:  # before ``annotated`` puts the sizes of this call in their place
            node.meta["symbolic"] = symbolic_dims(node)

    def module(self) -> torch.fx.GraphModule:
        gm = torch.fx.GraphModule(self.root, self.graph)
        gm.meta["name"] = self.name
        return gm

    def values(self, until: int, args: Sequence[Any]) -> dict[torch.fx.Node, Any]:
        """What the inputs and the first ``until`` operators come to."""
        given, left = iter(args), until
        known: dict[torch.fx.Node, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
                continue
            if node.op == "output" or left == 0:
                break
            left -= 1
            known[node] = self._call(node, known)
        return known

    def _call(self, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "get_attr":
            value: Any = self.root
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def annotated(self) -> _Program:
        """With the metadata of every value, by running it eagerly.

        Raises:
            Exception: it does not run.
        """
        with keeping_random_state(self.args):
            for node, value in self.values(self.size, copies_of(self.args).args).items():
                node.meta["spec"] = _spec(value)
        return self

    def cut(self, start: int, stop: int, given: Iterable[torch.fx.Node] = (), results: Any = None) -> _Program | None:
        """The operators from ``start`` to ``stop`` without ``given``: the values of others that they need are inputs.

        Args:
            results: the nodes to return; by default those that nothing in the part reads.
        """
        given = set(given)
        kept = [n for n in self.nodes[start:stop] if n not in given]
        with keeping_random_state(self.args):
            # What comes before has written what it writes; what is left out has not.
            before = self.values(start, copies_of(self.args).args)
            whole = self.values(stop, copies_of(self.args).args) if given else {}
        needed = {x for n in kept for x in n.all_input_nodes}.difference(kept)
        order = [n for n in self.graph.nodes if n in needed]
        values = copies_of([before[n] if n in before else whole[n] for n in order]).args
        graph, mapping, args = torch.fx.Graph(), {}, []
        for node, value in zip(order, values, strict=True):
            if isinstance(value, torch.Tensor) or node.meta["symbolic"] is True:
                mapping[node] = graph.placeholder(node.name)
                mapping[node].meta["symbolic"] = node.meta["symbolic"]
                args.append(value)
            elif value is None or isinstance(value, (int, float, bool, str, torch.dtype, torch.device, torch.Size)):
                mapping[node] = tuple(value) if isinstance(value, torch.Size) else value
            else:
                return None
        if not args:
            return None
        for node in kept:
            taken = torch.fx.node.map_arg((node.args, node.kwargs), mapping.__getitem__)
            new = graph.create_node(node.op, node.target, taken[0], taken[1], name=node.name)
            new.meta = {"source": node.meta.get("source"), "symbolic": node.meta["symbolic"]}
            mapping[node] = new
        found = [n for n in kept if n in results] if results is not None else _unread(kept)
        graph.output(tuple(mapping[n] for n in found))
        return _Program(graph, args, self.root, self.name)

    def smaller(self, old: int, new: int) -> _Program:
        """Every dimension and literal of ``old`` becomes ``new``."""
        graph = torch.fx.Graph()
        mapping: dict[torch.fx.Node, torch.fx.Node] = {}

        def literal(value: Any) -> Any:
            return new if type(value) is int and value == old else value

        for node in self.graph.nodes:
            taken = torch.fx.node.map_aggregate((node.args, node.kwargs), lambda x: mapping.get(x, literal(x)))
            mapping[node] = graph.create_node(node.op, node.target, taken[0], taken[1], name=node.name)
            mapping[node].meta = {"source": node.meta.get("source"), "symbolic": node.meta["symbolic"]}
        return _Program(graph, [_cropped(x, old, new) for x in self.args], self.root, self.name)


def _cropped(x: Any, old: int, new: int) -> Any:
    if not isinstance(x, torch.Tensor) or old not in x.shape:
        return x
    with torch.no_grad():
        part = x.detach()[tuple(slice(new if n == old else n) for n in x.shape)]
        copy = torch.empty_like(part).copy_(part)  # as dense as it was, in the same order
    return copy.requires_grad_(x.requires_grad)


def _unread(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Those whose values nothing among them reads; of operators that write, too."""
    read = {x for n in nodes for x in n.all_input_nodes}
    return [n for n in nodes if n not in read]


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return tuple(map(_spec, value)) if isinstance(value, (tuple, list)) else value


class _Search:
    """Ever smaller programs that fail as the first one does."""

    def __init__(self, region: Any, backend: str | Backend, options: Options, deadline: float) -> None:
        self.region = region
        self.options = options
        self.deadline = deadline
        self.backend = backend
        self.compiles = lambda: raw_backend(backend, options, Report())
        self.tried = 0
        self.last: Any = region
        self.first = _Program(region.gm.graph, region.args, region.gm, region.name)

    def run(self) -> _Program:
        """The smallest that was found."""
        assert self.region.modes is not None
        with self.region.modes.again():
            program = self._prefix(self.first)
            program = self._suffix(program)
            program = self._fewer(program)
            program = self._one_result(program)
            return self._sizes(program)

    def fails(self, program: _Program | None) -> bool:
        """Whether a program shows what is looked for."""
        if program is None or program.size == 0 or time.monotonic() > self.deadline:
            return False
        try:
            program.annotated()
            self.tried += 1
            found = self._seen(program)
        except Exception:  # it does not run eagerly
            return False
        if not self._is_it(found):
            return False
        self.last = found
        return True

    def _seen(self, program: _Program) -> Any:
        """What comes of a program."""
        return check_region(program.module(), program.args, self.compiles(), self.options)

    def _is_it(self, found: Any) -> bool:
        """Whether it fails in the way that is looked for."""
        wanted = self.region.error
        same = found.error is None if wanted is None else type(found.error) is type(wanted)
        return same and found.fails

    def _halved(self, low: int, high: int, made: Callable[[int], _Program | None], best: _Program) -> _Program:
        """By halving, the program of the number nearest to ``low`` that fails; ``high`` stands for ``best``."""
        while abs(high - low) > 0:
            middle = (low + high) // 2 if high > low else -((-low - high) // 2)
            tried = self._made(made, middle)
            if self.fails(tried):
                high, best = middle, tried  # type: ignore[assignment]
            else:
                low = middle + 1 if high > low else middle - 1
        return best

    @staticmethod
    def _made(made: Callable[[int], _Program | None], number: int) -> _Program | None:
        try:
            return made(number)
        except Exception:  # a part that cannot be cut out
            return None

    def _prefix(self, p: _Program) -> _Program:
        return self._halved(1, p.size, lambda stop: p.cut(0, stop), p)

    def _suffix(self, p: _Program) -> _Program:
        return self._halved(p.size - 1, 0, lambda start: p.cut(start, p.size), p)

    def _fewer(self, p: _Program) -> _Program:
        """Chunks of operators, ever smaller ones, are taken as given."""
        chunk = max(p.size // 2, 1)
        while p.size > 1:
            for at in range(0, p.size, chunk):
                tried = self._made(lambda at: p.cut(0, p.size, p.nodes[at : at + chunk]), at)  # noqa: B023
                if self.fails(tried):
                    p = tried  # type: ignore[assignment]
                    break
            else:
                if chunk == 1:
                    break
                chunk = max(chunk // 2, 1)
        return p

    def _one_result(self, p: _Program) -> _Program:
        results = list(p.graph.output_node().args[0])  # type: ignore[arg-type]
        for node in results if len(results) > 1 else ():
            tried = self._made(lambda _: p.cut(0, p.size, (), [node]), 0)  # noqa: B023
            if self.fails(tried):
                return tried  # type: ignore[return-value]
        return p

    def _sizes(self, p: _Program) -> _Program:
        sizes = sorted({n for x in p.args if isinstance(x, torch.Tensor) for n in x.shape if n > 2}, reverse=True)
        for size in sizes:
            for new in dict.fromkeys((2, 3, size // 4, size // 2)):
                if not 1 < new < size:
                    continue
                tried = self._made(lambda new: p.smaller(size, new), new)  # noqa: B023
                if self.fails(tried):
                    p = tried  # type: ignore[assignment]
                    break
        return p


def _is_symbolic(gm: torch.fx.GraphModule) -> bool:
    return any(symbolic_dims(node) for node in gm.graph.find_nodes(op="placeholder"))


class _SymbolicSearch(_Search):
    """Of a graph with symbolic sizes: smaller programs are captured as the script has them captured, with marks for
    those of their inputs' sizes that were symbolic, and integers that were so as sizes."""

    def _seen(self, program: _Program) -> Any:
        import dynamo_capture

        gm = program.module()
        inputs = gm.graph.find_nodes(op="placeholder")
        pairs = zip(inputs, program.args, strict=True)
        numbers = [node.meta["symbolic"] is True and type(x) is int for node, x in pairs]
        args = [torch.empty(1).expand(x) if number else x for x, number in zip(program.args, numbers, strict=True)]
        args = list(copies_of(args).args)
        for node, x in zip(inputs, args, strict=True):
            dims = (0,) if node.meta["symbolic"] is True else node.meta["symbolic"]
            if isinstance(x, torch.Tensor) and dims:
                dynamo_capture.maybe_mark_dynamic(x, list(dims))

        def run(*given: Any) -> Any:
            return gm(*(x.shape[0] if number else x for x, number in zip(given, numbers, strict=True)))

        found = compare_with(run, args, {}, self.backend, self.options)
        if found.error is not None:
            return Region(gm, program.args, error=found.error)
        region = found.failing or Region(gm, program.args)
        return replace(region, gm=gm) if len(found.regions) == 1 else region  # with the user's lines


class _SlowSearch(_Search):
    """Ever smaller programs that are as slow, and lose a quarter as many seconds by it as the first one at least."""

    def __init__(self, slowest: Any, backend: str | Backend, options: Options, deadline: float, slow: float) -> None:
        super().__init__(slowest, backend, options, deadline)
        self.slow, self.least = slow, slowest.lost / 4

    def _seen(self, program: _Program) -> Any:
        from compile_api.slow import time_region

        return time_region(program.module(), program.args, self.compiles())

    def _is_it(self, found: Any) -> bool:
        """Whether it is slow in the way that is looked for."""
        return found.error is None and found.ratio > self.slow and found.lost >= self.least


# ---- capture -----------------------------------------------------------------------------------------------------


def _of_capture(
    fn: Any, found: Comparison, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, deadline: float
) -> Minified:
    """Capture's own mistakes are about Python: what is cut down is the function's source, if it has one."""
    from compile_api.minify_source import begun, can_be_written, names_needed, smaller
    from compile_api.script import function_script

    detail, tried, first = str(found).splitlines()[0], 0, begun(plain_of(fn), args, kwargs)
    if first is None:
        return Minified(None, 0, 0, "", detail, 0, "statements")

    def wrong(cut: Any) -> bool:
        nonlocal detail, tried
        tried += 1
        again = compare_with(cut.function(), cut.args, {}, "eager", options)  # a back end has no part in it
        same = bool(again.capture) == bool(found.capture) and type(again.error) is type(found.error)
        if same and again.repeats:
            detail = str(again).splitlines()[0]
        return same and again.repeats

    least = first
    try:
        if wrong(first):
            least = smaller(first, wrong, deadline)
    except Exception:  # it does not run by itself
        least = first
    needed = names_needed(least)
    alone = needed is not None and all(map(can_be_written, least.args))
    path = place_for(options, "minified capture", ".py") if alone else None
    if path is not None:
        function_script(path, detail, "\n".join([*(needed or ()), "", "", least.text]), least.name, least.args)
    return Minified(path, least.size, first.size, least.text, detail, tried, "statements")
