"""Cases of the zoo on a GPU, run and judged the way the CPU's are."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from anchored import assert_judged, judged
from judge import assert_as_good, assert_same_metadata, error, to_float64
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
    """Compile a case, judge ``calls`` calls with fresh inputs against float64 and eager, return the report.

    The calls are judged together: what eager's greatest error of a few numbers is, one call leaves to chance.
    """
    import compile_api

    compiled = compile_api.compile(case.model, fullgraph=True, **compile_kw)
    exact_model = to_float64(case.model)
    held, copies = [], []
    with torch.no_grad():
        for _ in range(calls):
            args, kwargs = fresh(case.args), fresh(case.kwargs)
            with around():
                ours, eager = tensors(compiled(*args, **kwargs)), tensors(case.model(*args, **kwargs))
            exact = tensors(exact_model(*to_float64(args), **to_float64(kwargs)))
            for index, (mine, theirs) in enumerate(zip(ours, eager, strict=True)):
                assert_same_metadata(mine, theirs, f"output {index}")
            held.append((ours, eager, exact))
            copies.append([t.clone() for t in ours])
        for (ours, _, _), before in zip(held, copies, strict=True):  # a later call must not have written into them
            assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(ours, before, strict=True))
        assert_as_good(*([torch.stack(calls) for calls in zip(*kind, strict=True)] for kind in zip(*held, strict=True)))
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

    Judged per step: weights do not change, so that an error shows in the step that makes it. In 16 bits this sees gross
    damage only, for rounding grows through a deep network; :func:`blockwise` looks closer. ``working`` is the dtype
    that matmuls and convolutions round to where it is not the parameters' (autocast, TF32 counting as float16).
    """
    import compile_api

    eps = 0.0 if working is None else torch.finfo(working).eps
    without_dropout(case.model).train()
    exact = to_float64(case.model)
    eagers = [copy.deepcopy(case.model), *(nudged(case.model, eps) for _ in range(NUDGED))]
    compiled = compile_api.compile(case.model, fullgraph=True, **compile_kw)
    for step in range(steps):
        args, kwargs = (case.args, case.kwargs) if step == 0 else (fresh(case.args), fresh(case.kwargs))
        ours = after_a_step(compiled, args, kwargs, around)
        theirs = [after_a_step(model, args, kwargs, around) for model in eagers]
        with summands_of_biases(exact) as summands:
            wanted = after_a_step(exact, *to_float64((args, kwargs)))
        assert ours.keys() == theirs[0].keys() == wanted.keys()
        doubtful = worse(ours, theirs, wanted, summands, eps)
        assert not doubtful, f"step {step}: {'; '.join(doubtful[:5])}"
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert report.kernels and len(captured(report)) == 1
    assert extern_names(report) <= CUDA_LIBRARY_CALLS, extern_names(report) - CUDA_LIBRARY_CALLS
    return report


def blockwise(
    case: Case, *, steps: int = 1, around: Around = contextlib.nullcontext, working: torch.dtype | None = None,
    **compile_kw: Any,
) -> Any:  # fmt: skip
    """Judge a training step block by block (``anchored``), by a judge that sees damage; returns the report."""
    import compile_api

    without_dropout(case.model).train()
    judgement, compiled = judged(
        case.model, lambda model: compile_api.compile(model, fullgraph=True, **compile_kw), case.args, case.kwargs,
        steps=steps, around=around, working=working,
    )  # fmt: skip
    assert_judged(judgement)
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert report.kernels and len(captured(report)) == 1
    print(f"{case.name}: {judgement.power:.3f} of {judgement.planted} damaged gradients seen")
    return report


def working_dtype(case: Case) -> torch.dtype | None:
    """The dtype that a float32 case works in as PyTorch starts: its convolutions use TF32, which rounds like float16."""
    convolves = any(isinstance(module, nn.Conv2d) for module in case.model.modules())  # type: ignore[attr-defined]
    return torch.float16 if convolves and torch.backends.cudnn.allow_tf32 else None


def after_a_step(model: Any, args: Any, kwargs: Any, around: Around = contextlib.nullcontext) -> dict[str, torch.Tensor]:
    """The loss, the gradients and the buffers after one forward and backward pass, by name."""
    model.zero_grad(set_to_none=True)
    with around():
        loss = loss_of(tensors(model(*args, **kwargs)))
    loss.backward()
    found = {"the loss": loss.detach()}
    found |= {f"the gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {f"the buffer {name}": buffer.detach().clone() for name, buffer in model.named_buffers()}


@contextlib.contextmanager
def summands_of_biases(exact: nn.Module) -> Any:
    """Per bias of a ``Linear`` layer the sum of the absolute values of what its gradient sums up, by name.

    The bias of an attention's keys shifts all scores of a query alike, which softmax does not see: its gradient is a sum
    of terms that cancel, zero in exact arithmetic and made of roundings alone in any other.
    """
    found: dict[str, torch.Tensor] = {}
    rows = lambda grad: grad.reshape(-1, grad.shape[-1])

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda grad: found.update({name: found.get(name, 0) + rows(grad).abs().sum(0)}))

        return hook

    hooks = [
        module.register_forward_hook(watch(f"the gradient of {name}.bias"))
        for name, module in exact.named_modules() if isinstance(module, nn.Linear) and module.bias is not None
    ]  # fmt: skip
    yield found
    for hook in hooks:
        hook.remove()


#: Eager runs with weights moved by a rounding, beside the one with the weights as they are. A rectifier's input next to
#: zero falls on the other side in some runs only, and then moves one element of a bias's gradient by a whole summand.
NUDGED = 7


def worse(
    ours: dict[str, torch.Tensor], theirs: Sequence[dict[str, torch.Tensor]], exact: dict[str, torch.Tensor],
    summands: dict[str, torch.Tensor], eps: float,
) -> list[str]:  # fmt: skip
    """What is further from float64 than eager's runs are, in words."""
    found = []
    for name, reference in exact.items():
        if not reference.is_floating_point():
            assert torch.equal(ours[name], theirs[0][name]), name
            continue
        others = [run[name] for run in theirs]
        floor = 0.0
        if name in summands and float(reference.norm()) <= 1e-9 * float(summands[name].norm()):
            floor = torch.finfo(ours[name].dtype).eps * float(summands[name].norm())
        problem = not_as_good(ours[name], others, reference, eps, floor)
        if problem is not None:
            found.append(f"{name}: {problem}")
    return found


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


def not_as_good(
    ours: torch.Tensor, theirs: Sequence[torch.Tensor], exact: torch.Tensor, working: float = 0.0, floor: float = 0.0
) -> str | None:
    """None if it is about as close to float64 as the worst of some eager runs, at the worst element and over all.

    Their errors can be small by luck where there are few elements: a part of the rounding of the dtype that was worked
    in is allowed on top. ``floor`` is an error that no run can be blamed for: where the exact value is zero, one rounding
    of each summand.
    """
    assert ours.dtype == theirs[0].dtype and ours.shape == theirs[0].shape
    eps = max(torch.finfo(ours.dtype).eps, working / 32)
    scale, norm = float(exact.abs().max()), float(exact.norm())
    got, allowed = error(ours, exact), 4 * max(floor, *(error(t, exact) for t in theirs)) + 16 * eps * scale
    if not got <= allowed:
        return f"largest error {got:.3e}, allowed {allowed:.3e}"
    distances = [float((t.double() - exact).norm()) for t in (ours, *theirs)]
    allowed = 2 * max(floor, *distances[1:]) + 4 * eps * norm
    return None if distances[0] <= allowed else f"error's norm {distances[0]:.3e}, allowed {allowed:.3e}"
