"""Cases of the zoo on a GPU, run and judged the way the CPU's are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from judge import assert_as_good, error, to_float64
from reports import CUDA_LIBRARY_CALLS, assert_all_generated, captured, extern_names
from torch import nn
from torch.utils import _pytree as pytree
from zoo import Case, build, tensors

DEVICE = torch.device("cuda")


def move(tree: Any, dtype: torch.dtype | None = None) -> Any:
    """Every tensor on the GPU, floating ones in ``dtype``."""
    return pytree.tree_map(
        lambda t: t.to(DEVICE, dtype if dtype is not None and t.is_floating_point() else None)
        if isinstance(t, torch.Tensor) else t,
        tree,
    )  # fmt: skip


def gpu_case(name: str, dtype: torch.dtype | None = None, **settings: Any) -> Case:
    """A case of the zoo with its model and arguments on the GPU."""
    case = build(name, **settings)
    if isinstance(case.model, nn.Module):
        case.model.to(DEVICE, dtype)
    case.args, case.kwargs = move(case.args, dtype), move(case.kwargs, dtype)
    return case


def all_generated(report: Any, **wanted: Any) -> None:
    """Nothing fell back, and only matmuls, convolutions, attention and pooling's indices are library calls."""
    assert_all_generated(report, allowed=CUDA_LIBRARY_CALLS, **wanted)


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with every dropout's probability 0, so that results are comparable."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if type(module).__name__ == "StochasticDepth":
            module.p = 0.0
        for name in ("dropout", "attention_dropout", "dropout_p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def loss_of(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A loss that every output contributes to, with a gradient that is not constant; at least float32."""
    wide = [t if t.dtype == torch.float64 else t.float() for t in outputs if t.requires_grad]
    return sum((t.square().mean() for t in wide[1:]), wide[0].square().mean())


Around = Callable[[], Any]


def inference(case: Case, *, calls: int = 3, around: Around = contextlib.nullcontext, **compile_kw: Any) -> Any:
    """Compile a case, judge ``calls`` calls with fresh inputs against float64 and eager, return the report."""
    import compile_api

    compiled = compile_api.compile(case.model, fullgraph=True, **compile_kw)
    exact_model = to_float64(case.model)
    held = []
    with torch.no_grad():
        for _ in range(calls):
            args, kwargs = fresh(case.args), fresh(case.kwargs)
            with around():
                ours, eager = tensors(compiled(*args, **kwargs)), tensors(case.model(*args, **kwargs))
            exact = tensors(exact_model(*to_float64(args), **to_float64(kwargs)))
            assert_as_good(ours, eager, exact)
            held.append((ours, eager, exact))
        for results in held:  # a later call must not have written into an earlier one's results
            assert_as_good(*results)
    return compiled.report()


def fresh(tree: Any) -> Any:
    """Other values of the same shapes and dtypes; masks and other constant integer tensors stay as they are."""

    def other(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if t.is_floating_point():
            return torch.randn_like(t)
        return t if bool((t == t.reshape(-1)[0]).all()) else torch.randint_like(t, 0, 1000)

    return pytree.tree_map(other, tree)


def training(
    case: Case, *, steps: int = 1, around: Around = contextlib.nullcontext, working: torch.dtype | None = None,
    **compile_kw: Any,
) -> Any:  # fmt: skip
    """Losses, gradients and buffers of ``steps`` training steps with fresh inputs; returns the report.

    Judged per step: weights do not change, so that an error shows in the step that makes it. ``working`` is the dtype
    that matmuls round to where it is not the parameters' (autocast, TF32 counting as float16).
    """
    import compile_api

    eps = 0.0 if working is None else torch.finfo(working).eps
    without_dropout(case.model).train()
    exact = to_float64(case.model)
    eagers = [copy.deepcopy(case.model), *(nudged(case.model, eps) for _ in range(NUDGED))]
    compiled = compile_api.compile(case.model, fullgraph=True, **compile_kw)
    for step in range(steps):
        args, kwargs = (case.args, case.kwargs) if step == 0 else (fresh(case.args), fresh(case.kwargs))
        losses = []
        for model in (compiled, *eagers, exact):
            model.zero_grad(set_to_none=True)
            a, k = to_float64((args, kwargs)) if model is exact else (args, kwargs)
            with around() if model is not exact else contextlib.nullcontext():
                loss = loss_of(tensors(model(*a, **k)))
            loss.backward()
            losses.append(loss.detach())
        as_good_gradient(losses[0], losses[1:-1], losses[-1], f"the loss of step {step}", eps)
        nets = (case.model, *eagers, exact)
        for (name, ours), *others, reference in zip(
            case.model.named_parameters(), *(net.parameters() for net in nets[1:]), strict=True
        ):
            assert (ours.grad is None) == (reference.grad is None), name
            if reference.grad is not None:
                theirs = [other.grad for other in others]
                as_good_gradient(ours.grad, theirs, reference.grad, f"{name}, step {step}", eps)
        for (name, ours), *others, reference in zip(
            case.model.named_buffers(), *(net.buffers() for net in nets[1:]), strict=True
        ):
            if ours.is_floating_point():
                as_good_gradient(ours, others, reference, name, eps)
            else:
                assert torch.equal(ours, others[0]), name
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert report.kernels and len(captured(report)) == 1
    assert extern_names(report) <= CUDA_LIBRARY_CALLS, extern_names(report) - CUDA_LIBRARY_CALLS
    return report


#: Eager runs with weights moved by a rounding, beside the one with the weights as they are.
NUDGED = 3


def nudged(model: nn.Module, eps: float) -> nn.Module:
    """A copy with each weight moved by about a rounding: how far its gradients move is what rounding does to them.

    In nets with rectifiers or batch norms over few values one run's error says little: a value next to zero that falls
    on the other side moves many gradients.
    """
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            if parameter.is_floating_point():
                step = max(torch.finfo(parameter.dtype).eps, eps) / 2
                parameter.mul_(1 + step * torch.randn_like(parameter))
    return copied


def as_good_gradient(
    ours: torch.Tensor, theirs: Sequence[torch.Tensor], exact: torch.Tensor, what: str, working: float = 0.0
) -> None:
    """About as close to float64 as the worst of some eager runs, at the worst element and over all elements.

    Their errors can be small by luck where there are few elements: a part of the rounding of the dtype that was worked
    in is allowed on top.
    """
    assert ours.dtype == theirs[0].dtype and ours.shape == theirs[0].shape, what
    eps = max(torch.finfo(ours.dtype).eps, working / 32)
    scale, norm = float(exact.abs().max()), float(exact.norm())
    got, allowed = error(ours, exact), 4 * max(error(t, exact) for t in theirs) + 16 * eps * scale
    assert got <= allowed, f"{what}: largest error {got:.3e}, allowed {allowed:.3e}"
    distances = [float((t.double() - exact).norm()) for t in (ours, *theirs)]
    allowed = 2 * max(distances[1:]) + 4 * eps * norm
    assert distances[0] <= allowed, f"{what}: error's norm {distances[0]:.3e}, allowed {allowed:.3e}"
