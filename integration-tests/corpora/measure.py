"""One program under one stack: inference and training, beside eager; a flat record of what became of it."""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from judge import rounded, to_float64
from sweeps.model_judge import leaves, loss_of, without_chance
from torch import nn
from torch.utils import _pytree as pytree

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
    what the stack tells (graphs, breaks, ...), and seconds of eager's call and of the compiled first and second."""
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
        seconds, got = [], []
        for _ in range(CALLS):
            start = time.perf_counter()
            got.append(ours())
            seconds.append(round(time.perf_counter() - start, 4))
    except Exception as error:
        places = [
            f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-8:]
        ]
        why = f"{type(error).__name__}: {_first_line(error)}"
        return {**record, "status": "crash", "why": why, "trace": places}
    record["seconds"] = seconds
    record |= compiler.facts()
    start = time.perf_counter()
    found = [
        judge_results(a, b, Beside(lambda n=n: before.exact(n), lambda seed, n=n: before.noisy(n, seed)))
        for n, (a, b) in enumerate(zip(got, expected, strict=True))
    ]
    record["judge_s"] = round(time.perf_counter() - start, 2)
    record["judged"] = found[0][0] if found[0] == found[-1] else [how for how, _ in found]
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
    """

    def __init__(self, program: Program, training: bool, function: Callable[..., Any] | None = None) -> None:
        self.program, self.training = program, training
        self.function = copied(program.function) if function is None else function
        self.args, self.kwargs = program.args, program.kwargs
        self.compiled: Callable[..., Any] | None = None
        if isinstance(self.function, nn.Module):
            self.function.train(training)

    def copy(self) -> Run:
        """The same with a module of its own, as it is now."""
        other = Run(self.program, self.training, copied(self.function))
        other.args, other.kwargs = self.args, self.kwargs
        return other

    def __call__(self) -> list[torch.Tensor]:
        function = self.function if self.compiled is None else self.compiled
        args, kwargs = pytree.tree_map(self._leaf, (self.args, self.kwargs))
        torch.manual_seed(1)
        if not self.training:
            with torch.no_grad():
                return [*map(_kept, leaves(function(*args, **kwargs))), *leaves((args, kwargs))]
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

    def exact(self, call: int) -> list[torch.Tensor] | None:
        """The results of that call in float64, or None where there are none."""
        if not self.program.double:
            return None
        try:
            other = Run(self.program, self.training, to_float64(self.function))
            other.args, other.kwargs = to_float64((self.args, self.kwargs))
            return [other() for _ in range(call + 1)][-1]
        except Exception:  # a model that names a dtype, say
            return None

    def noisy(self, call: int, seed: int) -> list[torch.Tensor] | None:
        """The results of that call on numbers that are off by a rounding, or None where eager refuses them."""
        generator = torch.Generator().manual_seed(seed)
        try:
            other = Run(self.program, self.training, rounded(self.function, generator))
            other.args, other.kwargs = rounded((self.args, self.kwargs), generator)
            return [other() for _ in range(call + 1)][-1]
        except Exception:  # numbers that must be exact: probabilities that add up to one
            return None


def _kept(t: torch.Tensor) -> torch.Tensor:
    """A result without its graph, which still says whether it has one."""
    return t.detach().requires_grad_(t.requires_grad)


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """A module's copy; a function is its own."""
    return copy.deepcopy(function) if isinstance(function, nn.Module) else function


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else ""
