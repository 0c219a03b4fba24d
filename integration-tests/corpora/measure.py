"""One program under one stack: inference and training, beside eager; a flat record of what became of it."""

from __future__ import annotations

import copy
import functools
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from judge import RUNS, rounded, to_float64
from sweeps.model_judge import leaves, loss_of, without_chance
from torch import nn
from torch.utils import _pytree as pytree

from corpora.lots import Lots
from corpora.programs import Program, Unbuilt, build
from corpora.stacks import make_stack
from corpora.verdict import Beside, judge_results

__all__ = ["measure", "measured"]

#: Calls of a compiled function: the first compiles, the second meets the guards.
CALLS = 2


def measured(kind: str, name: str, stack: str, training: bool = True) -> dict[str, Any]:
    """Build and measure one program; ``status`` says what became of it.

    ``unbuilt``, ``ok``, ``idle`` (nothing to compile), ``eager`` (wholly left to eager), ``wrong`` or ``crash``, with
    ``why``. ``infer`` and ``train`` have the details: see :func:`measure`.
    """
    warnings.filterwarnings("ignore")
    begun = time.perf_counter()
    record: dict[str, Any] = {"kind": kind, "name": name, "stack": stack}
    try:
        program = build(kind, name)
    except Unbuilt as error:
        return {**record, "status": "unbuilt", "why": str(error)[:400]}
    except Exception as error:
        return {**record, "status": "unbuilt", "why": f"{type(error).__name__}: {_first_line(error)}"}
    record["detail"] = program.detail
    record["build_s"] = round(time.perf_counter() - begun, 2)
    if isinstance(program.function, nn.Module):
        without_chance(program.function)
    record["infer"] = measure(program, stack, training=False)
    if training and program.train and record["infer"]["status"] not in ("unbuilt", "crash"):
        record["train"] = measure(program, stack, training=True)
    record["status"], record["why"] = _overall(record)
    record["seconds"] = round(time.perf_counter() - begun, 2)
    return record


def _overall(record: dict[str, Any]) -> tuple[str, str]:
    """The worst of the parts; training that eager refuses says nothing, nor does what is idle beside what is not."""
    parts = {name: record[name] for name in ("infer", "train") if name in record}
    for status in ("crash", "wrong", "eager"):
        for name, part in parts.items():
            if part["status"] == status:
                return status, f"{name}: {part['why']}"
    first = parts["infer"]
    return first["status"], first.get("why", "")


def measure(program: Program, stack: str, *, training: bool) -> dict[str, Any]:
    """A program's record in inference or training: ``status``, ``why``, ``judged`` (how results were found right),
    what the stack tells (graphs of the first call and of later ones, breaks, ...), and seconds of eager's call and of
    the compiled first and second."""
    eager = Run(program, training)
    try:
        expected, before = [], eager.copy()
        start = time.perf_counter()
        for _ in range(CALLS):
            expected.append(eager())
        eager_s = (time.perf_counter() - start) / CALLS
    except Exception as error:
        return {"status": "unbuilt", "why": f"eager: {type(error).__name__}: {_first_line(error)}"}
    record: dict[str, Any] = {"eager_s": round(eager_s, 4)}
    compiler = make_stack(stack)
    ours = before.copy()
    try:
        ours.compiled = compiler.compile(ours.function)
        seconds, got, told = [], [], []
        for _ in range(CALLS):
            start = time.perf_counter()
            got.append(ours())
            seconds.append(round(time.perf_counter() - start, 4))
            told.append(compiler.facts())
    except Unbuilt as error:  # which eager's run was not
        return {**record, **compiler.facts(), "status": "wrong", "why": str(error)}
    except Exception as error:
        places = [
            f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]
        ]
        why = f"{type(error).__name__}: {_first_line(error)}"
        return {**record, "status": "crash", "why": why, "trace": places}
    record["seconds"] = seconds
    record |= told[0]
    record["graphs_later"] = told[-1]["graphs"] - told[0]["graphs"]
    record["recompiles"], record["left"], record["breaks"] = (
        told[-1][name] for name in ("recompiles", "left", "breaks")
    )
    start = time.perf_counter()
    found = Judge(before)(got, expected)
    record["judge_s"] = round(time.perf_counter() - start, 2)
    record["judged"] = found[0][0] if found[0] == found[-1] else [how for how, _ in found]
    if ours.plain != eager.plain:
        different = [f"{a} instead of {b}" for a, b in zip(ours.plain, eager.plain) if a != b]
        return {**record, "status": "wrong", "why": f"results that are no tensors: {different[0]}"[:400]}
    if any(how == "wrong" for how, _ in found):
        again = as_compiling(before, got)
        if again is not None:
            found, record["judged"] = again, "as compiling"
    wrong = [f"call {n + 1}: {why}" for n, (how, why) in enumerate(found) if how == "wrong"]
    if wrong:
        return {**record, "status": "wrong", "why": wrong[0]}
    if record["graphs"]:
        return {**record, "status": "ok", "why": ""}
    reasons = record["left"] + record["breaks"] or [record["verdict"]]
    return {**record, "status": "idle" if record["idle"] else "eager", "why": reasons[0]}


class Run:
    """A program to call, in inference or training, each time from the same seed; its results as a list of tensors.

    Attributes:
        compiled: what to call in place of ``function``.
        plain: the results of each call in inference that are no tensors.
        compiling: whether it is told that it is being compiled.
    """

    def __init__(self, program: Program, training: bool, function: Callable[..., Any] | None = None) -> None:
        self.program, self.training = program, training
        self.function = copied(program.function) if function is None else function
        self.args, self.kwargs = program.args, program.kwargs
        self.compiled: Callable[..., Any] | None = None
        self.plain: list[list[str]] = []
        self.compiling = False
        if isinstance(self.function, nn.Module):
            self.function.train(training)

    def copy(self) -> Run:
        """The same with a module of its own, as it is now."""
        other = Run(self.program, self.training, copied(self.function))
        other.args, other.kwargs, other.compiling = self.args, self.kwargs, self.compiling
        return other

    def __call__(self) -> list[torch.Tensor]:
        with mock.patch.object(torch.compiler, "is_compiling", lambda: True) if self.compiling else nullcontext():
            return self._call()

    def _call(self) -> list[torch.Tensor]:
        function = self.function if self.compiled is None else self.compiled
        args, kwargs = pytree.tree_map(self._leaf, (self.args, self.kwargs))
        torch.manual_seed(1)
        if not self.training:
            with torch.set_grad_enabled(self.program.grad):
                found, plain = results_of(function(*args, **kwargs))
            self.plain.append(plain)
            return [*map(_kept, found), *map(_kept, leaves((args, kwargs)))]
        return self._step(function, args, kwargs)

    def _step(self, function: Callable[..., Any], args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Results, gradients of parameters and floating inputs, and buffers."""
        module = self.function if isinstance(self.function, nn.Module) else None
        given = [t for t in leaves((args, kwargs)) if t.requires_grad]
        wanted = given + ([p for p in module.parameters() if p.requires_grad] if module is not None else [])
        for t in wanted:
            t.grad = None
        output = function(*args, **kwargs)
        results = leaves(output)
        if not any(t.requires_grad and t.dtype.is_floating_point for t in results):
            raise Unbuilt("no result has a gradient")
        loss_of(output, None).backward()
        gradients = [torch.zeros(0) if t.grad is None else t.grad.detach().clone() for t in wanted]
        buffers = [b.detach().clone() for b in module.buffers()] if module is not None else []
        return [*map(_kept, results), *gradients, *buffers]

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        needs = self.training and leaf.is_floating_point() or leaf.requires_grad
        return leaf.detach().clone().requires_grad_(needs)

    def exact(self) -> list[list[torch.Tensor]] | None:
        """The results of the calls in float64, or None where there are none."""
        if not self.program.double:
            return None
        return self._calls(to_float64)

    def noisy(self, seed: int) -> list[list[torch.Tensor]] | None:
        """The results of the calls on numbers that are off by a rounding, or None where eager refuses them."""
        generator = torch.Generator().manual_seed(seed)
        return self._calls(lambda value: rounded(value, generator))

    @functools.cached_property
    def lots(self) -> Lots:
        """What rounding leaves open in the calls."""
        return Lots(lambda: self._calls(copied_call), self.exact)

    def by_lot(self, seed: int) -> list[list[torch.Tensor]] | None:
        """The results of the calls where what rounding leaves open is drawn; None where nothing is."""
        if not any(self.lots.open):
            return None
        with self.lots.drawn(seed):
            return self._calls(copied_call)

    def _calls(self, change: Callable[[Any], Any]) -> list[list[torch.Tensor]] | None:
        """The results of the calls where the module and the arguments are changed."""
        try:
            other = Run(self.program, self.training, change(self.function))
            other.args, other.kwargs = change((self.args, self.kwargs))
            other.compiling = self.compiling
            return [other() for _ in range(CALLS)]
        except Exception:  # a model that names a dtype, numbers that must be exact as probabilities
            return None


class Judge:
    """Judges the calls of a program; what they are judged by is computed once for all of them."""

    def __init__(self, run: Run) -> None:
        self.exact = functools.cache(run.exact)
        self.noisy = functools.cache(lambda seed: run.noisy(seed) if seed < RUNS else run.by_lot(seed))

    def __call__(self, got: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> list[tuple[str, str]]:
        """The verdict on each call; a call like the one before it has the same."""
        found = [self.call(0, got[0], expected[0])]
        for n in range(1, len(got)):
            same = all(len(a[n]) == len(a[n - 1]) and all(map(_identical, a[n], a[n - 1])) for a in (got, expected))
            found.append(found[-1] if same else self.call(n, got[n], expected[n]))
        return found

    def call(self, n: int, got: list[torch.Tensor], expected: list[torch.Tensor]) -> tuple[str, str]:
        """The verdict on one call."""

        def of(calls: list[list[torch.Tensor]] | None) -> list[torch.Tensor] | None:
            return None if calls is None else calls[n]

        return judge_results(got, expected, Beside(lambda: of(self.exact()), lambda seed: of(self.noisy(seed))))


def as_compiling(run: Run, got: list[list[torch.Tensor]]) -> list[tuple[str, str]] | None:
    """The verdicts beside eager where ``torch.compiler.is_compiling()`` is true: some models mask in another way then,
    and give something else by themselves. None where those, too, are wrong."""
    other = run.copy()
    other.compiling = True
    try:
        own = other.copy()
        found = Judge(other)(got, [own() for _ in range(CALLS)])
    except Exception:  # a model that is not to be run so
        return None
    return None if any(how == "wrong" for how, _ in found) else found


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    same = (a.shape, a.dtype, a.layout, a.requires_grad) == (b.shape, b.dtype, b.layout, b.requires_grad)
    return same and a.layout is torch.strided and not a.is_nested and a.stride() == b.stride() and torch.equal(a, b)


def _kept(t: torch.Tensor) -> torch.Tensor:
    """A result without its graph, which still says whether it has one."""
    return t.detach().requires_grad_(t.requires_grad)


def results_of(value: Any) -> tuple[list[torch.Tensor], list[str]]:
    """The tensors of a result, floating-point numbers among them, and the texts of other plain values."""
    found, plain = leaves(value), []
    for leaf in pytree.tree_leaves(value):
        if type(leaf) is float:
            found.append(torch.tensor(leaf))
        elif isinstance(leaf, (int, complex, str, torch.dtype)):
            plain.append(repr(leaf))
    return found, plain


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A module's copy; a function is its own."""
    return copy.deepcopy(function) if isinstance(function, nn.Module) else function


def copied_call(value: Any) -> Any:
    """A module's copy, and arguments as they are: each call copies them."""
    return copied(value) if isinstance(value, nn.Module) else value


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else ""
