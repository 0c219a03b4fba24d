"""What counts as a difference.

Everything but floating-point numbers is compared exactly. Floating-point numbers are judged against the reference
(:mod:`fuzz.reference`): with S0 its exact run and S1..Sn its randomly rounded ones, element ``i`` of ours is right when

    |ours - S0| <= 8 * max(|eager - S0|, max over k of |Sk - S0|) + 2 * max(unit * |S0|, least)

``unit`` being the relative distance of the type's neighbouring numbers, and ``least`` that of those around zero; 32
rounded runs stand behind every verdict "wrong". Where eager and all runs are NaN, or the same infinity, so must ours
be. Elements on which the runs do not agree whether they are finite, and integers and bools on which they differ, are
decided by rounding: they are counted as undecided and not judged. Nor is an infinity of ours where what was divided by
is nothing but a rounding: all runs are beyond ``1 / unit`` and not of one sign, or S0 is ``1 / unit`` times one of them.
A zero's sign is eager's, unless eager's own depends on whether its kernel takes elements by vectors or one by one.
Numbers within two units of eager's are not brought before the reference at all: eager's own number has |eager - S0| of
slack, so that they pass in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuzz.observe import Leaf
from fuzz.reference import Shadow, unit, wide

__all__ = ["Difference", "FACTOR", "SAMPLES", "Verdict", "compare_trees", "judge"]

FACTOR = 8.0
SAMPLES = 32


@dataclass(frozen=True)
class Difference:
    """One difference: its kind (``value``, ``strides``, ``exception``...), where it is, and both sides in words."""

    kind: str
    where: str
    eager: str
    ours: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}: eager {self.eager}, ours {self.ours}"


@dataclass
class Verdict:
    """The first difference (None: none), and how many elements were compared and how many rounding decides."""

    difference: Difference | None = None
    elements: int = 0
    undecided: int = 0


def compare_trees(eager: Any, ours: Any, where: str, pairs: list[tuple[str, Leaf, Leaf]]) -> Difference | None:
    """The first difference outside of numbers; ``pairs`` collects the tensors whose numbers are to be judged."""
    if isinstance(eager, Leaf) and isinstance(ours, Leaf):
        names = ("type", "shape", "dtype", "device", "strides", "memory", "requires_grad", "leaf")
        for name, a, b in zip(names, eager.meta, ours.meta, strict=True):
            apart = name == "memory" and eager.gradient and b == ("memory", ours.place)
            if a != b and not apart:
                return Difference(name, where, str(a), str(b))
        pairs.append((where, eager, ours))
        return None
    if isinstance(eager, tuple) and isinstance(ours, tuple):
        named = bool(eager) and isinstance(eager[0], str)
        label = f"{where}.{eager[0]}" if named else where
        for i, (a, b) in enumerate(zip(eager, ours, strict=False)):
            found = compare_trees(a, b, label if named else f"{label}[{i}]", pairs)
            if found is not None:
                return found
        if len(eager) != len(ours):
            return Difference("length", label, str(len(eager)), str(len(ours)))
        return None
    if type(eager) is not type(ours) or eager != ours:
        kind = "exception" if ": error" in where or "error]" in where else "object"
        return Difference(kind, where, _short(eager), _short(ours))
    return None


def _short(value: Any) -> str:
    text = str(value.meta) if isinstance(value, Leaf) else repr(value)
    return text if len(text) < 300 else text[:300] + "..."


def suspicious(eager: torch.Tensor, ours: torch.Tensor) -> torch.Tensor:
    """Where the numbers are not equal to within two units: what the reference has to decide."""
    if not (eager.dtype.is_floating_point or eager.dtype.is_complex):
        return eager != ours
    a, b = eager.to(wide(eager.dtype)), ours.to(wide(ours.dtype))
    if eager.dtype.is_complex:
        a, b = (torch.view_as_real(x.resolve_conj().resolve_neg()) for x in (a, b))
    near = (a - b).abs() <= 2 * unit(eager.dtype) * a.abs()
    same = near & a.isfinite() | (a == b) | (a.isnan() & b.isnan())
    signs = (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    bad = ~same | signs
    return bad.any(-1) if eager.dtype.is_complex else bad


def judge(eager: torch.Tensor, ours: torch.Tensor, runs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements are wrong, and which are undecided; ``runs`` are S0, S1, ... (see the module's text)."""
    if eager.dtype.is_complex:
        eager, ours = (torch.view_as_real(x.resolve_conj().resolve_neg()) for x in (eager, ours))
        runs = [torch.view_as_real(x.resolve_conj().resolve_neg()) for x in runs]
        wrong, undecided = judge(eager, ours, runs)
        return wrong.any(-1), undecided.any(-1)
    stack = torch.stack([*runs, eager.to(runs[0].dtype)])
    if not eager.dtype.is_floating_point:
        undecided = (stack != stack[:1]).any(0)
        return (eager != ours) & ~undecided, undecided
    kinds = stack.isnan() * 3 + (stack == float("inf")) + (stack == -float("inf")) * 2
    undecided = (kinds != kinds[:1]).any(0)
    exact, mine = runs[0], ours.double()
    noise = (stack[1:] - exact).abs().amax(0)
    apart = unit(eager.dtype)
    of_a_rounding = (stack.abs() * apart > 1).all(0) & (stack > 0).any(0) & (stack < 0).any(0)
    of_a_rounding |= exact.abs() * apart > stack.abs().amin(0).clamp_min(1)  # the reciprocal of rounding
    undecided |= mine.isinf() & of_a_rounding & stack.isfinite().all(0)
    bound = FACTOR * noise + 2 * (apart * exact.abs()).clamp_min(apart * torch.finfo(eager.dtype).smallest_normal)
    right = (mine - exact).abs() <= bound
    zero = (stack == 0).all(0) & (mine == 0)
    certain = (stack.signbit() == stack[:1].signbit()).all(0)
    right &= ~(zero & certain & (mine.signbit() != exact.signbit()))
    special = (kinds[0] == 3) & mine.isnan() | (kinds[0] != 3) & (mine == exact)
    wrong = torch.where(kinds[0] == 0, ~right, ~special) & ~undecided
    return wrong, undecided


def verdict(pairs: list[tuple[str, Leaf, Leaf]], shadow: Shadow, leaves: list[Leaf]) -> Verdict:
    """Judge the tensors ``pairs``, of which ``leaves`` are those of eager's run under ``shadow``."""
    result = Verdict()
    for (where, eager, ours), twin in zip(pairs, leaves, strict=True):
        result.elements += eager.data.numel()
        bad = suspicious(eager.data, ours.data)
        if not bool(bad.any()):
            continue
        runs = shadow.twins(twin.data)
        wrong, undecided = judge(eager.data.cpu(), ours.data.cpu(), runs)
        bad = bad.cpu()
        result.undecided += int((undecided & bad).sum())
        if bool((wrong & bad).any()) and result.difference is None:
            place = tuple(int(i) for i in (wrong & bad).nonzero()[0])
            exact = runs[0][place].item()
            result.difference = Difference(
                "value" if eager.data[place].item() != ours.data[place].item() else "sign of zero",
                f"{where}{list(place)} ({int((wrong & bad).sum())} of {wrong.numel()} elements)",
                f"{eager.data[place].item()!r} (float64: {exact!r})", repr(ours.data[place].item()),
            )  # fmt: skip
    return result
