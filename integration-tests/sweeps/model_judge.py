"""Judges one real model or program: inference at two sizes and a training step at both, against eager and float64.

``judge(case)`` gives a flat record: verdicts, graphs, breaks, fallbacks, recompiles, worst error, seconds by phase.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import compile_api

#: A compiled result may be this many times as far from float64 as eager's ...
RATIO = 10.0
#: ... plus this share of its largest value, plus a hundredth of that of the largest value of all results.
SHARE = 1e-4


@dataclass
class Case:
    """What to compile, and on what.

    Attributes:
        model: a module, or a function of tensors.
        inputs: size (0 or 1) -> keyword arguments (a dict) or positional ones (a tuple).
        train: whether to take gradients too.
        loss: output -> scalar; by default ``output.loss`` where there is one, else a mean of squares.
        options: arguments of ``compile()``.
        run: replaces the whole judgement (generation, training loops); gives the record.
        exact: float64 has no meaning (integer results, its own dtype rules): compare with eager alone.
    """

    model: Any = None
    inputs: Callable[[int], Any] | None = None
    train: bool = True
    loss: Callable[[Any], torch.Tensor] | None = None
    options: dict[str, Any] | None = None
    run: Callable[[], dict[str, Any]] | None = None
    exact: bool = False


def leaves(value: Any) -> list[torch.Tensor]:
    """Every tensor in an output, caches and dataclasses included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "items"):
        return [t for _, v in value.items() for t in leaves(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in leaves(v)]
    if hasattr(value, "layers") and isinstance(value.layers, list):  # a transformers cache
        return [t for layer in value.layers for t in leaves(list(vars(layer).values()))]
    return []


def call(model: Any, given: Any) -> Any:
    """``model`` on copies of its arguments."""
    given = pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, given)
    return model(**given) if isinstance(given, dict) else model(*given)


def doubled(value: Any) -> Any:
    """A float64 copy of a module's parameters or of arguments."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if callable(value):
        return value
    return pytree.tree_map(
        lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, value
    )  # fmt: skip


def without_chance(model: Any) -> Any:
    """Set every probability of dropping something to zero."""
    if not isinstance(model, nn.Module):
        return model
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if ("drop" in name or "jitter" in name) and isinstance(value, float):
                setattr(module, name, 0.0)
        config = getattr(module, "config", None)
        for name, value in list(vars(config).items()) if config is not None else ():
            if ("drop" in name or name.startswith(("mask_time", "mask_feature"))) and isinstance(value, float):
                try:
                    setattr(config, name, 0.0)
                except Exception:  # a configuration may refuse; its models then draw, and differ
                    continue
    return model


def difference(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference, equal infinities and NaNs counting as none."""
    if value.is_complex() or reference.is_complex():
        value, reference = (
            torch.view_as_real(value.to(torch.complex128)),
            torch.view_as_real(reference.to(torch.complex128)),
        )
    value, reference = value.detach().double(), reference.detach().double()
    same = (value == reference) | (value.isnan() & reference.isnan())
    gap = torch.where(same, 0.0, (value - reference).abs())
    return float(gap.nan_to_num(nan=float("inf")).max()) if gap.numel() else 0.0


def compare(
    ours: list[torch.Tensor],
    eager: list[torch.Tensor],
    exact: list[torch.Tensor] | None,
    noisy: list[list[torch.Tensor]] | None = None,
) -> tuple[float, str]:
    """The worst of error over allowance, and a message where it is above one or metadata differ.

    ``noisy``: eager's results on inputs with a few roundings of noise, whose errors count as eager's own.
    """
    if len(ours) != len(eager):
        return float("inf"), f"{len(ours)} tensors, eager has {len(eager)}"
    if exact is not None and [t.shape for t in exact] != [t.shape for t in eager]:
        exact = None
    floating = [t for t in exact or eager if t.is_floating_point() and t.numel()]
    finite = [float(t.detach().double().abs().nan_to_num(0, 0, 0).max()) for t in floating]
    whole, worst, said = max(finite, default=0.0), 0.0, ""
    for index, (a, b) in enumerate(zip(ours, eager, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype or a.requires_grad != b.requires_grad:
            return (
                float("inf"),
                f"tensor {index}: {a.dtype} {tuple(a.shape)} {a.requires_grad}, eager {b.dtype} {tuple(b.shape)} {b.requires_grad}",
            )
        if not b.numel():
            continue
        if not (b.is_floating_point() or b.is_complex()):
            if not torch.equal(a, b):
                return float("inf"), f"tensor {index}: {b.dtype} values differ"
            continue
        reference = exact[index] if exact is not None else b
        scale = float(reference.detach().abs().double().nan_to_num(0, 0, 0).max())
        share = SHARE * (torch.finfo(b.dtype).eps / torch.finfo(torch.float32).eps)
        own = max(difference(x[index], reference) for x in [eager, *(noisy or [])])
        allowed = RATIO * own + share * (scale + 0.01 * whole) + 1e-12
        off = difference(a, reference)
        if off / allowed > worst:
            worst = off / allowed
            if worst > 1:
                said = f"tensor {index} {tuple(b.shape)}: error {off:.2e}, allowed {allowed:.2e}, scale {scale:.2e}"
    return worst, said


def loss_of(output: Any, own: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    """A scalar to differentiate."""
    if own is not None:
        return own(output)
    given = getattr(output, "loss", None)
    if isinstance(given, torch.Tensor):
        return given.sum()
    parts = [t for t in leaves(output) if t.is_floating_point() and t.requires_grad]
    total = parts[0].new_zeros(())
    for part in parts:
        total = total + (part.masked_fill(~part.isfinite(), 0.0)).square().mean()
    return total


def summary(report: Any) -> dict[str, Any]:
    """What the report says, in short."""
    return {
        "graphs": sum(1 for g in report.graphs if g.dialect == "torch"),
        "nodes": max((g.nodes for g in report.graphs if g.dialect == "torch"), default=0),
        "breaks": sorted({f"{b.reason} @ {b.where}" for b in report.breaks}),
        "fallbacks": sorted({f"{f.stage}: {f.reason} @ {f.where}" for f in report.fallbacks}),
        "recompiles": [f"{r.code}: {r.reason}" for r in report.recompiles],
        "kernels": len(report.kernels),
        "seconds": {k: round(v, 2) for k, v in report.seconds.items() if v >= 0.05},
    }


def gradients(model: Any, given: Any, case: Case) -> list[torch.Tensor]:
    """Outputs, loss, gradients and buffers of one step."""
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    for p in parameters:
        p.grad = None
    if not parameters:
        given = pytree.tree_map(
            lambda t: (
                t.detach().clone().requires_grad_() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
            ),
            given,
        )
        output = model(**given) if isinstance(given, dict) else model(*given)
        parameters = [t for t in leaves(given) if t.requires_grad]
    else:
        output = call(model, given)
    loss = loss_of(output, case.loss)
    loss.backward()
    grads = [p.grad if p.grad is not None else torch.zeros(0) for p in parameters]
    buffers = [b for b in model.buffers() if b.is_floating_point()] if isinstance(model, nn.Module) else []
    return [loss.detach(), *(g.detach().clone() for g in grads), *(b.detach().clone() for b in buffers)]


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    """Its result, or None where it raises (a model that float64 does not suit)."""
    try:
        return function(*args)
    except Exception:
        return None


def phase(ours: Any, eager: Any, case: Case, step: Callable[[Any, Any], list[torch.Tensor]]) -> dict[str, Any]:
    """Both sizes by ``step``, the first one again at the end; the record.

    Where results are not very close to eager's, float64 and eager with a little noise say how far they may be.
    """
    record: dict[str, Any] = {"worst": 0.0}
    wrong = []
    for turn, size in enumerate((0, 1, 0)):
        torch.manual_seed(size)
        given = case.inputs(size)
        start = time.perf_counter()
        torch.manual_seed(1)
        got = step(ours, given)
        spent = time.perf_counter() - start
        before = attempt(fresh, eager)  # None where the model keeps activations
        torch.manual_seed(1)
        expected = step(eager, given)
        worst, said = compare(got, expected, None)
        if said and not case.exact and before is not None:
            torch.manual_seed(1)
            reference = attempt(lambda model: step(doubled(model), doubled(given)), before)
            worst, said = compare(got, expected, reference)
            if said and reference is not None and isinstance(eager, nn.Module):
                worst, said = compare(got, expected, reference, with_noise(before, given, step))
        record["worst"] = max(record["worst"], round(worst, 3))
        if said:
            wrong.append(f"call {turn} (size {size}): {said}")
        if turn == 0:
            record["first_s"] = round(spent, 2)
            record |= summary(ours.report())
        if turn == 1:
            record["second_s"] = round(spent, 2)
    last = summary(ours.report())
    record |= {"graphs_both": last["graphs"], "breaks": last["breaks"], "fallbacks": last["fallbacks"]}
    record["recompiles"] = last["recompiles"]
    record["wrong"] = wrong
    record["status"] = "wrong" if wrong else "fallback" if last["fallbacks"] else "break" if last["breaks"] else "ok"
    return record


def with_noise(model: Any, given: Any, step: Callable[[Any, Any], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Results on inputs changed by a few roundings: where an activation sits on an edge, they differ by a lot."""
    found = []
    for seed in range(3):
        torch.manual_seed(100 + seed)
        noise = pytree.tree_map(
            lambda t: (
                t * (1 + 1e-6 * torch.randn_like(t)) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
            ),
            given,
        )
        if isinstance(model, nn.Module):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + 3e-7 * torch.randn_like(p))
        found.append(step(model, noise))
    return found


def fresh(model: Any) -> Any:
    """A copy of a module; a function is its own."""
    return copy.deepcopy(model) if isinstance(model, nn.Module) else model


def judge(case: Case) -> dict[str, Any]:
    """Inference and training of ``case``.

    Raises:
        Exception: whatever the program raises in eager, or compiled.
    """
    if case.run is not None:
        return {"run": case.run()}
    assert case.inputs is not None
    model = without_chance(case.model)
    if isinstance(model, nn.Module):
        model.eval()

    def infer(function: Any, given: Any) -> list[torch.Tensor]:
        with torch.no_grad():
            return leaves(call(function, given))

    torch.manual_seed(0)
    try:
        infer(model, case.inputs(0)), infer(model, case.inputs(1))
    except Exception as error:
        return {"unbuilt": f"{type(error).__name__}: {error}"[:300]}
    options = case.options or {}
    records = {"infer": phase(compile_api.compile(fresh(model), **options), model, case, infer)}
    if not case.train:
        return records
    compile_api.reset()
    if isinstance(model, nn.Module):
        model.train()
    probe = fresh(model)
    try:
        gradients(probe, case.inputs(0), case)
        gradients(probe, case.inputs(1), case)
    except Exception as error:
        return records | {"untrained": f"{type(error).__name__}: {error}"[:300]}
    records["train"] = phase(
        compile_api.compile(fresh(model), **options), model, case, lambda m, given: gradients(m, given, case)
    )
    return records
