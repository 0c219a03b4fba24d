"""Whether compiled results are eager's: bit-equal or close, else no further from a float64 run than eager's own are.

>>> import torch
>>> ours = Ran((torch.tensor([1.0, 2.5]),))
>>> eager = Ran((torch.tensor([1.0, 2.0]),))
>>> [found] = judge(ours, eager, lambda: None)
>>> found.what, found.index
('output', 0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prims.records import record

__all__ = ["Difference", "Ran", "judge"]

#: Closer than this many roundings of the largest value is not looked at further.
CLOSE = 2.0
#: The error against float64 may be this many times eager's own ...
RATIO = 4.0
#: ... plus this many roundings of the largest value, for eager may be exact by luck.
ROUNDINGS = 8.0
#: Where there is no float64 run, or eager's own is that: the difference from eager, in shares of the largest value. A
#: batch norm of PyTorch's is off by some thousand roundings of float64, a result that went through float32 by 1e-7.
ALONE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
#: Whole numbers and conditions that come of rounded values may flip: so many times as eager's do against float64,
#: and one in so many.
FLIPS, ONE_IN = 4, 1000


@record(eq=False)
class Ran:
    """What a run gave.

    Attributes:
        outputs: the results, tensors and numbers.
        gradients: of the inputs that need one; None where none came.
        state: the tensors given, as they were afterwards.
        drew: it took random numbers from PyTorch's generators.
    """

    outputs: tuple[Any, ...]
    gradients: tuple[torch.Tensor | None, ...] = ()
    state: tuple[Any, ...] = ()
    drew: bool = False


@record
class Difference:
    """A result that is not eager's.

    Attributes:
        what: ``"output"``, ``"gradient"`` or ``"state"``, with ``index`` among those; ``"call"`` where it raises.
        detail: how it differs.
    """

    what: str
    index: int
    detail: str


def judge(ours: Ran, eager: Ran, exact: Callable[[], Ran | None]) -> list[Difference]:
    """The differences, the first of each kind first.

    Args:
        exact: runs the program in float64, asked only where results are not close; None where that cannot be done.
    """
    known: list[Ran | None] = []

    def reference(kind: str, index: int) -> Any:
        if not known:
            known.append(exact())
        values = getattr(known[0], kind, ())
        return values[index] if index < len(values) else None

    found = []
    floating = any(_is_floating(x) for x in (*eager.outputs, *eager.state))
    for what, kind in (("output", "outputs"), ("gradient", "gradients"), ("state", "state")):
        mine, theirs = getattr(ours, kind), getattr(eager, kind)
        if len(mine) != len(theirs):
            found.append(Difference(what, min(len(mine), len(theirs)), f"{len(mine)} instead of {len(theirs)}"))
            continue
        for index, (x, y) in enumerate(zip(mine, theirs, strict=True)):
            detail = _difference(x, y, lambda kind=kind, index=index: reference(kind, index), floating)  # type: ignore[misc]
            if detail is not None:
                found.append(Difference(what, index, detail))
    return found


def _is_floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _difference(x: Any, y: Any, exact: Callable[[], Any], floating: bool) -> str | None:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        same = type(x) is type(y) and (x == y or (x != x and y != y))
        return None if same else f"{_shown(x)}, eager gives {_shown(y)}"
    for name in ("dtype", "device", "requires_grad"):
        if getattr(x, name) != getattr(y, name):
            return f"{name} is {getattr(x, name)}, eager's is {getattr(y, name)}"
    if x.shape != y.shape:
        return f"shape is {tuple(x.shape)}, eager's is {tuple(y.shape)}"
    x, y = x.detach(), y.detach()
    if not _is_floating(y):
        return _whole(x, y, exact, floating)
    rounding = torch.finfo(y.dtype).eps
    scale = _largest(y)
    apart = _error(x, y)
    if apart <= CLOSE * rounding * scale:
        return None
    reference = exact()
    known = isinstance(reference, torch.Tensor) and reference.shape == y.shape and _is_floating(reference)
    if not known or (y.dtype == _wide(y).dtype and _error(y, reference) == 0.0):
        allowed = ALONE.get(y.dtype, 16 * rounding) * max(scale, rounding)
        return None if apart <= allowed else f"{apart:.3g} from eager's, {allowed:.3g} is allowed"
    got, own = _error(x, reference), _error(y, reference)
    allowed = RATIO * own + ROUNDINGS * rounding * _largest(reference)
    return None if got <= allowed else f"the error against float64 is {got:.3g}, eager's own {own:.3g}"


def _whole(x: torch.Tensor, y: torch.Tensor, exact: Callable[[], Any], floating: bool) -> str | None:
    """For integers and conditions: equal, but where they may come of values that round otherwise."""
    apart = int((x != y).sum())
    if apart == 0:
        return None
    if floating:
        reference = exact()
        if isinstance(reference, torch.Tensor) and reference.shape == y.shape:
            own = int((y != reference).sum())
            if apart <= FLIPS * own + y.numel() // ONE_IN:
                return None
    return f"{apart} of {y.numel()} values are not eager's"


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64)


def _largest(x: torch.Tensor) -> float:
    """The largest finite absolute value."""
    return float(_wide(x).abs().nan_to_num(nan=0.0, posinf=0.0).max()) if x.numel() else 0.0


def _error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest absolute difference; NaNs in the same places count as equal, others as infinite."""
    x, y = _wide(value), _wide(reference)
    if not x.numel():
        return 0.0
    same = (x == y) | (x.isnan() & y.isnan())
    apart = (x - y).abs().masked_fill(same, 0.0)
    return float(apart.nan_to_num(nan=float("inf")).max())


def _shown(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)
