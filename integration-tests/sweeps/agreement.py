"""When results of a compiled program agree with eager's: within a tolerance, as close to float64, or bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

#: What a run of an operator is compared by, in order.
WHICH = ("result", "gradient", "second gradient")

#: In the errors by which compiled code declines a second derivative.
DECLINED = "needs second derivatives eagerly"


def clone(tree: Any) -> Any:
    return pytree.tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, tree
    )


def double(tree: Any) -> Any:
    return pytree.tree_map(
        lambda t: t.detach().double().requires_grad_(t.requires_grad)
        if isinstance(t, torch.Tensor) and t.is_floating_point() else t,
        tree,
    )  # fmt: skip


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def gradients(outputs: Any, inputs: Any) -> list[torch.Tensor]:
    outs = [t for t in tensors(outputs) if t.requires_grad]
    ins = [t for t in tensors(inputs) if t.requires_grad]
    if not outs or not ins:
        return []
    grads = torch.autograd.grad(outs, ins, [weights(t) for t in outs], allow_unused=True)
    return [torch.empty(0, dtype=torch.bool) if g is None else g for g in grads]


def second_gradients(outputs: Any, inputs: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients, and the gradients of those of them that have any, which are empty where eager's are none."""
    outs = [t for t in tensors(outputs) if t.requires_grad]
    ins = [t for t in tensors(inputs) if t.requires_grad]
    if not outs or not ins:
        return [], []
    first = torch.autograd.grad(outs, ins, [weights(t) for t in outs], allow_unused=True, create_graph=True)
    again = [g for g in first if g is not None and g.requires_grad]
    found = torch.autograd.grad(again, ins, [weights(g) for g in again], allow_unused=True) if again else ()
    nothing = torch.empty(0, dtype=torch.bool)
    return [nothing if g is None else g.detach() for g in first], [nothing if g is None else g for g in found]


def weights(t: torch.Tensor) -> torch.Tensor:
    """A gradient for a result that is not the same everywhere: with ones, errors may cancel."""
    return ((torch.arange(t.numel(), device=t.device) % 7 + 4) / 8).to(t.dtype).reshape(t.shape)


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference; infinities and NaNs in the same places are equal."""
    value = value.to(exact.dtype)
    difference = torch.where((value == exact) | (value.isnan() & exact.isnan()), 0, (value - exact).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0


def as_good(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    """Is our result about as close to float64's as eager's is?"""
    if exact.dtype != torch.float64 or exact.shape != ours.shape or not exact.numel():
        return False
    scale = float(exact.abs().nan_to_num(posinf=0.0).max())
    return error(ours, exact) <= 3 * error(theirs, exact) + 8 * torch.finfo(theirs.dtype).eps * scale


def difference(
    ours: list[torch.Tensor], theirs: list[torch.Tensor], exact: Any, which: int, tolerance: float
) -> str | None:
    """What differs, or None. ``exact()[which]`` are the float64 results, computed only where they are asked for."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return f"{a.dtype} {tuple(a.shape)} on {a.device} instead of {b.dtype} {tuple(b.shape)} on {b.device}"
        try:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as reason:
            if b.is_floating_point():
                reference = exact()
                if reference is not None and as_good(a, b, reference[which][k]):
                    continue
            return f"{WHICH[which]} {k}: " + " ".join(str(reason).split())[:160]
    return None


def other_flags(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> str | None:
    """What differs in whether results need gradients, are leaves or of inference mode, or None."""
    flags = [[(t.requires_grad, t.is_leaf, t.is_inference()) for t in given] for given in (ours, theirs)]
    return None if flags[0] == flags[1] else f"(requires_grad, is_leaf, is_inference) {flags[0]} instead of {flags[1]}"


def other_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor], which: int) -> str | None:
    """What differs in its bits (but for those of a NaN) or its strides, or None."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        what = f"{WHICH[which]} {k}"
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return (
                f"{what}: {a.dtype} {tuple(a.shape)} on {a.device} instead of {b.dtype} {tuple(b.shape)} on {b.device}"
            )
        if not which and a.numel() and significant_strides(a) != significant_strides(b):
            return f"{what}: strides {a.stride()} instead of {b.stride()}"
        if not same_bits(a, b):
            return f"{what}: other bits"
    return None


def significant_strides(t: torch.Tensor) -> list[int]:
    return (
        [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1] if t.layout is torch.strided else []
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Are all values equal, signs of zeros included, NaNs counting as one?"""
    if a.is_complex():
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    if a.layout is not torch.strided:
        return a.layout == b.layout and same_bits(a.to_dense(), b.to_dense())
    if not a.is_floating_point():
        return torch.equal(a, b)
    same = (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())
    return bool(same.all())


def chosen(samples: list[Any], count: int) -> list[Any]:
    """``count`` samples spread over all of them: the first ones are often the simplest."""
    return samples if len(samples) <= count else [samples[k * len(samples) // count] for k in range(count)]


def reasons(report: Any) -> list[str]:
    """Why something was left to eager, in one line each."""
    return [" ".join(item.reason.split())[:200] for item in (*report.fallbacks, *report.breaks)]
