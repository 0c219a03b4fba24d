"""``compare()``: does the compiled program compute what eager computes? And if not, which stage's doing is it?"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from compile_api.backends import Backend, raw_backend
from compile_api.function import original_of
from compile_api.judge import Difference, Ran, judge
from compile_api.modes import make_options
from compile_api.module import CompiledModule
from compile_api.shadow import compared, place_of
from compile_api.surroundings import Modes
from compile_api.trial import Copies, copies_of, keeping_random_state, tangents_for
from prims.forking import compiling
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = [
    "Comparison", "Region", "check_region", "checking_options", "compare", "compare_with",
    "plain_of", "run_captured",
]


#: What is said of a program of which nothing can be said.
UNREPEATABLE = (
    "the program gives other results when it is run eagerly once more: something keeps state that is not in its "
    "arguments (a custom operator, a counter), and there is nothing to compare with"
)
#: What to do where nothing is wrong.
GIVE_IT = (
    "Give the arguments and options with which it is wrong; where that is a later call only, the arguments of the "
    "calls before it too (before=[(x,)]). "
)


@record(eq=False)
class Region:
    """A captured graph, the inputs that came to it, and how its compiled form differs from it.

    Attributes:
        args: copies of the inputs of its first call.
        differences: what is not eager's; empty where an error came instead.
        error: what compiling or running it raised.
        told: whether anything could be compared: not where other random numbers are drawn.
        modes: those in which it ran.
    """

    gm: torch.fx.GraphModule
    args: tuple[Any, ...]
    differences: tuple[Difference, ...] = ()
    error: Exception | None = None
    told: bool = True
    modes: Modes | None = None

    @property
    def fails(self) -> bool:
        """Whether it differs or raises."""
        return bool(self.differences) or self.error is not None

    @property
    def name(self) -> str:
        """The captured function's name."""
        return str(self.gm.meta.get("name", "graph"))

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {type(self.error).__name__}: {self.error}"
        if not self.told:
            return f"{self.name}: not compared, as it draws random numbers (fallback_random=True makes them eager's)"
        texts = []
        for difference in self.differences:
            name, where = place_of(self.gm, difference)
            texts.append(f"{self.name}: {name}: {difference.detail}" + (f" at {where}" if where else ""))
        return "\n".join(texts) or f"{self.name}: as eager"


@record(eq=False)
class Comparison:
    """What :func:`compare` found.

    Attributes:
        capture: how the captured graphs, run eagerly, differ from the program: capture's doing.
        regions: each captured graph.
        error: what capture raised.
        repeats: whether the program gives what it gave when it is run eagerly once more; asked where ``capture``
            differs.
    """

    capture: tuple[Difference, ...]
    regions: tuple[Region, ...]
    error: Exception | None = None
    repeats: bool = True

    @property
    def same(self) -> bool:
        """Nothing differs and nothing was raised."""
        return not self.capture and self.error is None and self.failing is None

    @property
    def failing(self) -> Region | None:
        """The first graph that differs, or fails."""
        return next((r for r in self.regions if r.fails), None)

    def __str__(self) -> str:
        lines = [f"capture: {type(self.error).__name__}: {self.error}"] if self.error is not None else []
        if not self.repeats:
            lines.append(UNREPEATABLE)
        lines += [f"capture: {d.what} {d.index}: {d.detail}" for d in self.capture if self.repeats]
        return "\n".join([*lines, *map(str, self.regions)]) or "nothing was captured"


def compare(
    fn: Callable[..., Any], *args: Any, backend: str | Backend = "inductor", options: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None, before: Sequence[Sequence[Any]] = (),
) -> Comparison:  # fmt: skip
    """Run one call compiled and eagerly, on copies, and compare values, gradients and what was written.

    Results that are not close are judged by their distance from a float64 run, against eager's own. Each captured graph
    is compared by itself, on the inputs that eager gives it. A module is copied; other state that a function changes
    (globals, closures) is changed by each of the runs.

    Args:
        fn: a function, method or module; a compiled one stands for its original.
        kwargs: keyword arguments of the call.
        before: arguments of calls that are made before that one, compiled and eagerly alike. What is compared is the
            last call: what it takes from earlier captures, and what is symbolic because calls differ.

    Raises:
        UserError: a bad backend or option.
        Unsupported: an argument cannot be copied.
        Exception: what the program itself raises.
    """
    return compare_with(plain_of(fn), args, kwargs or {}, backend, checking_options(options), before)


def compare_with(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], backend: str | Backend, options: Options,
    before: Sequence[Sequence[Any]] = (),
) -> Comparison:  # fmt: skip
    """:func:`compare` with options as the stages take them."""
    eager = run_captured(fn, args, kwargs, before=before)
    regions: list[Region] = []
    try:
        recording = _recording(backend, options, regions)
        captured = run_captured(fn, args, kwargs, recording, options, before=before)
    except Exception as error:
        return Comparison((), tuple(regions), error)
    differences = tuple(judge(captured, eager, lambda: None))
    repeats = not differences or not judge(run_captured(fn, args, kwargs, before=before), eager, lambda: None)
    return Comparison(differences, tuple(regions), repeats=repeats)


def checking_options(options: Mapping[str, Any] | None) -> Options:
    """The options of a run that is to show what goes wrong: errors are raised, nothing is checked twice."""
    given = {**(options or {}), "check": "off", "strict": True}
    return make_options(fullgraph=False, dynamic=None, mode=None, options=given)


def plain_of(fn: Any) -> Any:
    """The program's own callable behind a compiled one."""
    return fn._orig_mod if isinstance(fn, CompiledModule) else original_of(fn)


def check_region(gm: torch.fx.GraphModule, args: Sequence[Any], backend: Backend, options: Options) -> Region:
    """Compile a graph and compare one call of it; ``args`` stay as they are."""
    kept = copies_of(tuple(args)).args
    try:
        compiled = backend(gm, list(args))
        answer = compared(compiled, gm.forward, args, eager_random=options.eager_random)
    except Exception as error:
        return Region(gm, kept, error=error, modes=Modes.now())
    return Region(gm, kept, tuple(answer[0]) if answer else (), told=answer is not None, modes=Modes.now())


def _recording(backend: str | Backend, options: Options, regions: list[Region]) -> Backend:
    """A backend that compiles each graph and compares its first call, and goes on with eager's results. What earlier
    calls came to it can be made to forget."""
    inner = raw_backend(backend, options, Report())

    def record_graph(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled: Any = None
        failed: Exception | None = None
        try:
            compiled = inner(gm, example_inputs)
        except Exception as error:
            failed = error
        def run(*args: Any) -> Any:
            if all(region.gm is not gm for region in regions):
                known = (lambda *_: compiled) if failed is None else _raising(failed)
                regions.append(check_region(gm, args, known, options))
            return gm.forward(*args)

        return run

    record_graph.forget = regions.clear  # type: ignore[attr-defined]
    record_graph.supports_dynamic_shapes = getattr(inner, "supports_dynamic_shapes", False)  # type: ignore[attr-defined]
    return record_graph


def _raising(error: Exception) -> Backend:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        raise error

    return backend


def run_captured(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any], backend: Backend | None = None,
    options: Options | None = None, before: Sequence[Sequence[Any]] = (),
) -> Ran:  # fmt: skip
    """A run of the program on copies: captured for ``backend``, or eagerly where there is none; of calls with the
    arguments ``before``, too, of which nothing is told."""
    fn, model = _copied(fn)
    copies: Copies = copies_of((tuple(args), dict(kwargs)))
    run = fn
    if backend is not None:
        with compiling():
            import dynamo_capture

        run = dynamo_capture.optimize(fn, backend, options=options)
    for earlier in before:
        run(*copies_of(tuple(earlier)).args, **copies_of(dict(kwargs)).args)
    getattr(backend, "forget", lambda: None)()
    state = [] if model is None else [*model.parameters(), *model.buffers()]
    leaves = [*copies.leaves, *(x for x in state if x.requires_grad)]
    with keeping_random_state((args, state)) as moved:
        outputs = tuple(pytree.tree_leaves(run(*copies.args[0], **copies.args[1])))
        roots = [y for y in outputs if isinstance(y, torch.Tensor) and y.grad_fn is not None]
        gradients: tuple[Any, ...] = ()
        if leaves and roots:
            gradients = torch.autograd.grad(roots, leaves, tangents_for(roots), allow_unused=True)
        return Ran(outputs, gradients, (*pytree.tree_leaves(copies.args), *state), moved())


def _copied(fn: Any) -> tuple[Any, torch.nn.Module | None]:
    """The callable on a copy of the module that it belongs to, and that copy."""
    if isinstance(fn, torch.nn.Module):
        model = copy.deepcopy(fn)
        return model, model
    if isinstance(fn, types.MethodType) and isinstance(fn.__self__, torch.nn.Module):
        model = copy.deepcopy(fn.__self__)
        return types.MethodType(fn.__func__, model), model
    return fn, None
