"""Eager's runs in which what rounding leaves open is drawn by lot.

A relu passes a gradient or does not; where its operand is as good as 0, a rounding decides, and all gradients before it
hang on that. A network has thousands of relus' operands, of which some lie that near, each of them on its own side in a
run on rounded numbers with some chance: one that none of a few runs turns may well be turned by a compiler. So the
operands of what decides (relus and their like, comparisons, the largest of a window) are taken down in a float32 and in
a float64 run. Those that lie nearer to the limit than the farthest of them is off, twice, and that are off themselves,
are open. In a run by lot each open one goes either way; no other number is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Lots"]

aten = torch.ops.aten

#: So many times the farthest operand's error from the limit, an operand is open.
REACH = 2.0

_COMPARED = {
    getattr(getattr(aten, name), overload) for name in ("gt", "ge", "lt", "le") for overload in ("Scalar", "Tensor")
}

#: Operators whose result jumps where operand 0 (of gradients, 1) passes a limit: its limits.
_LIMITS: dict[Any, Callable[[tuple[Any, ...]], tuple[float, ...]]] = {
    aten.relu.default: lambda args: (0.0,),
    aten.relu_.default: lambda args: (0.0,),
    aten.sgn.default: lambda args: (0.0,),
    aten.sign.default: lambda args: (0.0,),
    aten.leaky_relu_backward.default: lambda args: (0.0,),
    aten.hardtanh_backward.default: lambda args: (float(args[2]), float(args[3])),
    aten.hardswish_backward.default: lambda args: (-3.0, 3.0),
    aten.hardsigmoid_backward.default: lambda args: (-3.0, 3.0),
}
_POOLS = {aten.max_pool2d_with_indices.default}


class Lots:
    """What is open in a program.

    Args:
        run: runs the program on float32 numbers.
        exact: runs it on float64 numbers.
    """

    def __init__(self, run: Callable[[], Any], exact: Callable[[], Any]) -> None:
        plain = _Recording()
        with plain:
            run()
        compared = _Comparing(plain.found)
        with compared:
            exact()
        #: For each decision in its order: which of its operands are open, with the error of the farthest.
        self.open = compared.open if len(compared.open) == len(plain.found) else []

    @contextmanager
    def drawn(self, seed: int) -> Iterator[None]:
        """The program's float32 run within goes either way where it is open."""
        with _Drawing(self.open, torch.Generator().manual_seed(seed)):
            yield


def _operand(func: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
    """What a limit is compared with, so that the limit itself is 0 in a comparison."""
    if func in _COMPARED:
        x, y = args[:2]
        floating = all(v.is_floating_point() for v in (x, y) if isinstance(v, torch.Tensor))
        return x - y if floating else None
    if func in _LIMITS:
        return args[1] if "backward" in func.name() else args[0]
    return args[0] if func in _POOLS else None


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operand = _operand(func, args)
        if operand is None or not operand.is_floating_point():
            return func(*args, **(kwargs or {}))
        return self.decide(func, args, kwargs or {}, operand)

    def decide(self, func: Any, args: Any, kwargs: Any, operand: torch.Tensor) -> Any:
        raise NotImplementedError


class _Recording(_Watching):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor | None] = []

    def decide(self, func: Any, args: Any, kwargs: Any, operand: torch.Tensor) -> Any:
        self.found.append(operand.detach().clone())
        return func(*args, **kwargs)


class _Comparing(_Watching):
    def __init__(self, found: list[torch.Tensor | None]) -> None:
        super().__init__()
        self.found = found
        self.open: list[tuple[torch.Tensor, float] | None] = []

    def decide(self, func: Any, args: Any, kwargs: Any, operand: torch.Tensor) -> Any:
        at = len(self.open)
        plain = self.found[at] if at < len(self.found) else None
        self.open.append(None if plain is None else self._open(func, args, operand, plain.double()))
        if plain is not None:
            self.found[at] = None
        return func(*args, **kwargs)

    def _open(self, func: Any, args: Any, exact: torch.Tensor, plain: torch.Tensor) -> tuple[torch.Tensor, float] | None:
        if plain.shape != exact.shape or not exact.numel():
            return None
        off = (plain - exact).abs()
        reach = REACH * float(off.nan_to_num(nan=0.0, posinf=0.0).max())
        near = off > 0
        if func not in _POOLS:
            limits = _LIMITS[func](args) if func in _LIMITS else (0.0,)
            near &= torch.stack([(exact - limit).abs() <= reach for limit in limits]).any(0)
        return (near, reach) if bool(near.any()) else None


class _Drawing(_Watching):
    def __init__(self, open: list[tuple[torch.Tensor, float] | None], generator: torch.Generator) -> None:
        super().__init__()
        self.open, self.generator, self.at = open, generator, 0

    def decide(self, func: Any, args: Any, kwargs: Any, operand: torch.Tensor) -> Any:
        found = self.open[self.at] if self.at < len(self.open) else None
        self.at += 1
        if found is None or found[0].shape != operand.shape:
            return func(*args, **kwargs)
        near, reach = found
        if func in _POOLS:
            noise = torch.rand(operand.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
            moved = torch.where(near, operand.double() + noise * reach, operand.double())
            _, places = func(moved, *args[1:], **kwargs)
            return operand.flatten(-2).gather(-1, places.flatten(-2)).view(places.shape), places
        lot = torch.randint(0, 2, operand.shape, generator=self.generator) > 0
        if func in _COMPARED:
            return func(*args, **kwargs) ^ (near & lot)
        if "backward" in func.name():
            return func(args[0], self._turned(func, args, operand, near & lot), *args[2:], **kwargs)
        turned = self._turned(func, args, operand, near & lot)
        if func is aten.relu_.default:
            return args[0].copy_(turned.relu())
        return func(turned, **kwargs)

    def _turned(self, func: Any, args: Any, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """The operand, on the other side of the nearest limit where it is drawn so."""
        limits = torch.tensor(_LIMITS[func](args), dtype=x.dtype)
        limit = limits[(x[..., None] - limits).abs().argmin(-1)]
        other = 2 * limit - x
        least = torch.finfo(x.dtype).tiny
        other = torch.where(other == limit, limit + least, other)
        return torch.where(which, other, x)
