"""Ways to damage a right answer, to see whether the judges notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["DAMAGES", "Damaged"]


class Damaged:
    """A function whose results or effects are damaged; ``hits`` counts how often something was really changed."""

    def __init__(self, how: str, fn: Callable[..., Any], hits: list[int]) -> None:
        self.how = how
        self.fn = fn
        self.hits = hits

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result, damaged once."""
        if self.how == "effect":
            return self._without_effects(args, kwargs)
        try:
            result = self.fn(*args, **kwargs)
        except Exception as error:
            if self.how != "error":
                raise
            self.hits.append(1)
            raise (SystemError if isinstance(error, RuntimeError) else RuntimeError)(*error.args) from error.__cause__
        flat, spec = tree_flatten(result)
        for i, value in enumerate(flat):
            changed = DAMAGES[self.how](value)
            if changed is not None:
                flat[i] = changed
                self.hits.append(1)
                return tree_unflatten(flat, spec)
        return result

    def _without_effects(self, args: Any, kwargs: Any) -> Any:
        """Call it on copies, so that what it writes is lost."""
        copies, wrote = [], []
        for value in args:
            plain = isinstance(value, torch.Tensor) and not value.requires_grad and not _shares(value, args)
            copies.append(value.clone() if plain else list(value) if type(value) is list else value)
            wrote.append(value if plain or type(value) is list else None)
        result = self.fn(*copies, **kwargs)
        for before, after in zip(wrote, copies, strict=True):
            written = isinstance(before, torch.Tensor) and not _same(before, after)
            if written or isinstance(before, list) and len(before) != len(after):
                self.hits.append(1)
        return result


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())


def _shares(value: torch.Tensor, args: Any) -> bool:
    mine = value.untyped_storage()._cdata
    return sum(isinstance(a, torch.Tensor) and a.untyped_storage()._cdata == mine for a in args) > 1


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and bool((value.isfinite() & (value != 0)).any())
    )


def _zero(value: Any) -> Any:
    return value * 0 if _numbers(value) else None


def _scale(value: Any) -> Any:
    return value * 1.25 if _numbers(value) else None


def _swap(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.numel() < 2 or value.dim() == 0:
        return None
    changed = value.clone()
    flat = changed.reshape(-1)
    with torch.no_grad():
        turned = flat.roll(1)
        if _same(turned, flat) or (
            value.is_floating_point() and float((turned - flat).abs().nan_to_num().max()) < 1e-2
        ):
            return None
    return turned.reshape(value.shape).as_strided(value.shape, value.stride()) if value.is_contiguous() else None


def _strides(value: Any) -> Any:
    if (
        not isinstance(value, torch.Tensor)
        or value.dim() < 2
        or not value.is_contiguous()
        or value.layout != torch.strided
    ):
        return None
    changed = value.transpose(0, 1).contiguous().transpose(0, 1)
    return changed if value.numel() and changed.stride() != value.stride() and min(value.shape[:2]) > 1 else None


def _element(value: Any) -> Any:
    """One element, by 2%."""
    if not _numbers(value) or not value.is_contiguous():
        return None
    changed = value.clone()
    with torch.no_grad():
        place = int((value.abs().nan_to_num(posinf=0.0) > 0).reshape(-1).int().argmax())
        changed.view(-1)[place] *= 1.02
    return changed if not _same(changed, value) and value.dtype in (torch.float32, torch.float64) else None


def _sign(value: Any) -> Any:
    """The signs of all zeros."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not bool((value == 0).any()):
        return None
    return value.where(value != 0, -value)


def _number(value: Any) -> Any:
    return (
        value + 1
        if type(value) is int
        else value + "x"
        if type(value) is str
        else not value
        if type(value) is bool
        else None
    )


#: Name -> a function of a leaf of the result: the damaged leaf, or None where the damage does not apply.
DAMAGES: dict[str, Callable[[Any], Any]] = {
    "zero": _zero,
    "scale": _scale,
    "swap": _swap,
    "strides": _strides,
    "element": _element,
    "sign": _sign,
    "plain": _number,
    "error": lambda value: None,
    "effect": lambda value: None,
}
