"""Running one program: eagerly, compiled, and (where numbers differ) under the reference; what comes of comparing."""

from __future__ import annotations

import functools
import gc
import linecache
import marshal
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import compile_api
import inductor_gen
from fuzz.judge import SAMPLES, Difference, Verdict, compare_trees, suspicious, verdict
from fuzz.observe import Leaf, Observer
from fuzz.reference import Shadow
from prims.errors import Unsupported

__all__ = ["AssertedError", "Outcome", "Program", "check", "code_of", "settled"]

#: Fallback reasons that tell of a defect in a stage, though the program still gives eager's answer. What a program raises
#: of its own is none.
INTERNAL = re.compile(
    r"^codegen:|internal error|(?<!raises an exception here): "
    r"(Attribute|Type|Key|Index|Assertion|Value|Name|Recursion|Verifier|Internal|Syntax)Error:"
)
#: The error by which a second derivative is refused that would need inputs which are gone or written over; it says what to do.
REFUSAL = "the gradient of a compiled region's gradient was asked for"

#: Why a graph is not compiled in runs that are about what takes its place.
REFUSED = "refused, to see what takes its place"

#: What errors say after a kernel's assertion; the process can do nothing more on the GPU.
ASSERTION = "device-side assert"


class AssertedError(Exception):
    """A kernel met what it does not allow; ``who`` launched it: a statement, ``"eager"`` or ``"ours"``."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who


def settled(who: str, errors: Iterable[object] = ()) -> None:
    """Wait for the GPU, whose kernels tell of their errors at some later call.

    Raises:
        AssertedError: a kernel's assertion failed, now or as one of these errors says.
    """
    failed = any(ASSERTION in str(error) for error in errors)
    if not failed and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            if ASSERTION not in str(error):
                raise
            failed = True
    if failed:
        raise AssertedError(who)


@dataclass(frozen=True)
class Program:
    """The text of a module that defines ``program(compile, see)``."""

    kind: str
    seed: int
    source: str


@dataclass
class Outcome:
    """What a comparison found, and how much of the program was compiled."""

    difference: Difference | None = None
    graphs: int = 0
    kernels: int = 0
    externs: int = 0
    breaks: int = 0
    elements: int = 0
    undecided: int = 0
    unstable: bool = False
    raised: bool = False
    refused: bool = False
    asserted: bool = False
    idle: bool = False
    withheld: bool = False
    loaded: int = 0
    fallbacks: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=8)
def _compiled(source: str, name: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return marshal.dumps(compile(source, name, "exec"))


def code_of(source: str, name: str) -> types.CodeType:
    """The code of a program's module, new in every call: what is compiled of one run's functions is no other run's.

    Raises:
        SyntaxError: it is no Python.
    """
    return marshal.loads(_compiled(source, name))  # type: ignore[no-any-return]


def load(source: str, name: str) -> dict[str, Any]:
    """Execute a program's module."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    module = types.ModuleType("fuzzed")
    sys.modules["fuzzed"] = module
    scope: dict[str, Any] = module.__dict__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code_of(source, name), scope)
    return scope


def observe(program: Program, transform: Callable[..., Any], first: Observer | None = None) -> Observer:
    """One run, after eager's ``first``; an error that leaves the program is the last thing seen."""
    see = Observer(first)
    scope = load(program.source, f"<{program.kind} program {program.seed}>")
    torch.manual_seed(5)
    try:
        scope["program"](transform, see)
    except Exception as error:
        see("program: error", error)
    return see


def _errors(see: Observer) -> list[Any]:
    return [tree for label, tree in see.trees if "error" in label]


def _eagerly(fn: Any = None, **options: Any) -> Any:
    return (lambda f: f) if fn is None else fn


def _verified(seed: int) -> dict[str, Any]:
    """Every second run of programs has every step verified: a broken constraint is a difference, like any defect."""
    return {"verify": "every_pass"} if seed // 16 % 2 else {}


def _warm(program: Program) -> bool:
    """Whether a program is compared once more, by what its first run has left on disk for a later process."""
    return program.seed // 64 % 4 == 1


def _half(program: Program) -> bool:
    """Does half of a program's graphs run by other means, one operator after the other, as it is for every eighth run of
    programs? All of them round as eager does then: what one graph makes another makes again."""
    return program.kind != "python" and program.seed // 32 % 8 == 7


@contextmanager
def _refused(program: Program) -> Iterator[None]:
    """Some graphs are refused by the code generator: what takes their place, beside compiled ones, has to give the same
    results."""
    if not _half(program):
        yield
        return
    draw, whole = random.Random(program.seed), inductor_gen.compile_graph

    def compile_graph(*args: Any, **kwargs: Any) -> Any:
        if draw.random() < 0.5:
            raise Unsupported(REFUSED)
        return whole(*args, **kwargs)

    with mock.patch.object(inductor_gen, "compile_graph", compile_graph):
        yield


def check(program: Program, instead: Callable[[Any], Any] | None = None, alone: bool = False) -> Outcome:
    """Compare the program's compiled run with eager's. ``instead``: what takes the compiler's place (for tests).

    ``alone``: eager's run ended with an assertion of a kernel, in another process; so should this one.

    Raises:
        AssertedError: that is how eager's run ended here.
    """
    outcome = Outcome()
    reports: list[Any] = []

    def compiled(fn: Any = None, **options: Any) -> Any:
        if fn is None:
            return lambda f: compiled(f, **options)
        if instead is not None:
            return instead(fn)
        kept: dict[str, Any] = {"program_cache": True} if _warm(program) else {}
        if _half(program):
            kept["numerics"] = "eager_close"
        asked = {**_verified(program.seed), **kept, **options.pop("options", {})}
        result = compile_api.compile(fn, options=asked, **options)
        reports.append(result.report())
        return result

    compile_api.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = Observer() if alone else observe(program, _eagerly)
        settled("eager", _errors(eager))
        with _refused(program):
            ours = observe(program, compiled, eager)
            if _warm(program) and instead is None and not alone and not _errors(ours):
                compile_api.reset()
                cold = len(reports)
                ours = observe(program, compiled, eager)
                outcome.loaded = sum(p.status == "loaded" for report in reports[cold:] for p in report.programs)
        try:
            settled("ours", _errors(ours))
        except AssertedError:
            outcome.asserted = True
        outcome.raised = bool(_errors(eager))
        outcome.refused = any(REFUSAL in str(tree) for tree in _errors(ours))
        if alone != outcome.asserted:
            words = ["an assertion of a kernel" if asserts else "none" for asserts in (alone, outcome.asserted)]
            outcome.difference = Difference("assertion", "run", *words)
        elif not alone and not outcome.refused:
            broken = any(report.breaks for report in reports)
            outcome.difference = _compare(program, eager, ours, outcome, broken)
    for report in {id(r): r for r in reports}.values():
        outcome.graphs += len(report.graphs)
        outcome.kernels += len(report.kernels)
        outcome.externs += len(report.externs)
        outcome.breaks += len(report.breaks)
        outcome.fallbacks += [f"{r.stage}: {r.reason}" for r in report.fallbacks]
    outcome.withheld = any(REFUSED in text for text in outcome.fallbacks)
    outcome.idle = program.kind == "python" and not outcome.graphs and not _computes(program)
    internal = [text for text in outcome.fallbacks if INTERNAL.search(text) and REFUSED not in text]
    if outcome.difference is None and internal:
        outcome.difference = Difference("internal", "report", "no defect", internal[0][:400])
    return outcome


class _Operators(TorchDispatchMode):
    """Counts operators that compute: views do not, nor does reading a number of a tensor that is there."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func is torch.ops.aten._local_scalar_dense.default)
        return func(*args, **(kwargs or {}))


def _computes(program: Program) -> bool:
    """Whether what the program compiles does anything on tensors, in a run without the compiler."""
    operators = _Operators()

    def counted(fn: Any = None, **options: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with operators:
                return fn(*args, **kwargs)

        return call

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observe(program, counted)
    return operators.count > 0


def _compare(
    program: Program, eager: Observer, ours: Observer, outcome: Outcome, broken: bool
) -> Difference | None:
    pairs: list[tuple[str, Leaf, Leaf]] = []
    found = None
    seen = slice(eager.defect)
    for (label, a), (other, b) in zip(eager.trees[seen], ours.trees[seen], strict=False):
        if label != other:
            found = Difference("exception" if "error" in label + other else "order", label, label, f"{other} {b}"[:300])
        else:
            found = compare_trees(a, b, label, pairs)
        if found is not None:
            break
    if found is None and len(eager.trees[seen]) != len(ours.trees[seen]):
        found = Difference("length", "observations", str(len(eager.trees)), str(len(ours.trees)))
    outcome.elements = sum(a.data.numel() for _, a, _ in pairs)
    doubtful = any(bool(suspicious(a.data, b.data).any()) for _, a, b in pairs)
    if not doubtful and (found is None or found.kind not in ("shape", "object", "length", "strides", "exception")):
        return found
    numbers = _settle(program, eager, pairs, outcome, found is not None, broken)
    if outcome.unstable:
        return None
    return numbers.difference or found


def _settle(
    program: Program, eager: Observer, pairs: list[tuple[str, Leaf, Leaf]], outcome: Outcome, differs: bool,
    broken: bool,
) -> Verdict:  # fmt: skip
    """Ask the reference about the numbers: without rounded runs, with few and, before a verdict "wrong", with many.

    More runs only widen what is right, so that what is right with fewer needs no more of them; but what ``differs``
    besides numbers may be decided by rounding in any of them.

    Raises:
        AssertionError: eager's run under the reference did not go eager's way: the reference is at fault.
    """
    result = Verdict()
    for samples in (0, 3, SAMPLES):
        shadow = Shadow(samples, seed=program.seed)
        with shadow:
            again = observe(program, _eagerly, eager)
        if [label for label, _ in again.trees] != [label for label, _ in eager.trees]:
            raise AssertionError(f"the reference's run differs from eager's: {str(again.trees[-1])[:1000]}")
        twins: list[Leaf] = []
        for _, tree in again.trees:
            _leaves(tree, twins)
        outcome.lost = sorted(shadow.lost)
        # A gradient that has a gradient is that of a second run, in which rounding may decide otherwise.
        outcome.unstable = shadow.unstable or shadow.split and "create_graph=True" in program.source
        # What one region saves and another writes by ``.data`` is the program's mistake: eager's gradient is wrong, too.
        outcome.unstable |= shadow.behind and broken
        if outcome.unstable:
            return Verdict()
        result = verdict(pairs, shadow, twins[: len(pairs)])
        outcome.undecided = result.undecided
        if result.difference is None and not differs:
            break
    return result


def _leaves(tree: Any, into: list[Leaf]) -> None:
    if isinstance(tree, Leaf):
        into.append(tree)
    elif isinstance(tree, tuple):
        for part in tree:
            _leaves(part, into)


def clean() -> None:
    """Forget a program's modules, graphs and source."""
    compile_api.reset()
    for name in [n for n in linecache.cache if n.startswith("<")]:
        del linecache.cache[name]
    gc.collect()
