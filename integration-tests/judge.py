"""How a compiled result is judged: against eager where that is exact, against float64 where it is close.

``assert_as_good`` asks whether the compiled result is about as close to a float64 run as eager's own result is. A fixed
tolerance would either hide a wrong fusion in a well-conditioned model or fail a right one in a deep one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from zoo import Case, tensors

#: The compiled error may be this many times eager's own error against float64 ...
RATIO = 3.0
#: ... plus this many float32 roundings of the largest reference value (eager may be exact by luck).
ROUNDINGS = 8.0


def to_float64(value: Any) -> Any:
    """``value`` with every floating tensor (a module's included) in float64; the original is left alone."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, value
    )


#: Runs of eager on rounded numbers beside which a result is judged that one rounding can turn: a sum that cancels, a
#: gradient behind a relu whose operand is as good as 0.
RUNS = 8


def rounded(value: Any, generator: torch.Generator) -> Any:
    """``value`` with each floating-point number (a module's included) at random one unit up, one down, or as it is, as
    any rounding may have left it; the original is left alone. What is run on it errs as eager itself might have."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            made = copy.deepcopy(leaf)
            with torch.no_grad():
                for tensor in (*made.parameters(), *made.buffers()):
                    tensor.copy_(move(tensor))
            return made
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        x = leaf.detach()
        way = torch.randint(-1, 2, x.shape, generator=generator)
        ends = (torch.full_like(x, sign * float("inf")) for sign in (1, -1))
        up, down = (torch.nextafter(x, end) for end in ends)
        return torch.where(way > 0, up, torch.where(way < 0, down, x)).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(move, value)


def float64_outputs(case: Case) -> list[torch.Tensor]:
    """The outputs of ``case`` computed in float64."""
    with torch.no_grad():
        return tensors(to_float64(case.model)(*to_float64(case.args), **to_float64(case.kwargs)))


def error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest absolute difference to ``reference``, NaNs and infinities in the same places counting as equal."""
    value, reference = value.detach().double(), reference.detach().double()
    same = (value == reference) | (value.isnan() & reference.isnan())
    difference = torch.where(same, torch.zeros_like(reference), (value - reference).abs())
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0


def assert_as_good(
    compiled: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]
) -> None:
    """Assert that ``compiled`` equals ``eager`` in metadata and is about as close to ``reference``.

    Raises:
        AssertionError: counts, shapes, dtypes, devices, strides or ``requires_grad`` differ, or an error is larger than
            ``RATIO`` times eager's plus ``ROUNDINGS`` units in the last place of the largest value.
    """
    assert len(compiled) == len(eager) == len(reference)
    for index, (ours, theirs, exact) in enumerate(zip(compiled, eager, reference, strict=True)):
        assert_same_metadata(ours, theirs, f"output {index}")
        scale = float(exact.detach().abs().nan_to_num(posinf=0.0).max()) if exact.numel() else 0.0
        slack = ROUNDINGS * torch.finfo(theirs.dtype).eps * scale if theirs.is_floating_point() else 0.0
        allowed = RATIO * error(theirs, exact) + slack
        got = error(ours, exact)
        assert got <= allowed, f"output {index}: error {got:.3e} against float64, allowed {allowed:.3e}"


def assert_same_metadata(ours: torch.Tensor, theirs: torch.Tensor, what: str = "output") -> None:
    """Assert equal shape, dtype, device, layout, names of dimensions, stride (where there is one), ``requires_grad``."""
    for name in ("shape", "dtype", "device", "requires_grad", "layout"):
        assert getattr(ours, name) == getattr(theirs, name), f"{what}: {name}"
    assert getattr(ours, "names", None) == getattr(theirs, "names", None), f"{what}: names"  # up to PyTorch 2.12
    if theirs.layout is torch.strided and not theirs.is_nested and theirs.numel():
        significant = [d for d, size in enumerate(theirs.shape) if size > 1]
        assert [ours.stride(d) for d in significant] == [theirs.stride(d) for d in significant], f"{what}: strides"


def assert_matches(compiled: Callable[..., Any], eager: Callable[..., Any], *args: Any, exact: bool = False) -> None:
    """Run both on copies of ``args``, compare outputs (and the arguments afterwards, which may have been mutated)."""
    ours_args, theirs_args, double_args = pytree.tree_map(_clone, args), pytree.tree_map(_clone, args), to_float64(args)
    ours, theirs = compiled(*ours_args), eager(*theirs_args)
    if exact:
        for a, b in zip(tensors(ours) + tensors(ours_args), tensors(theirs) + tensors(theirs_args), strict=True):
            assert_same_metadata(a, b)
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        return
    reference = eager(*double_args)
    assert_as_good(
        tensors(ours) + tensors(ours_args), tensors(theirs) + tensors(theirs_args), tensors(reference) + tensors(double_args)
    )


def _clone(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf
