"""What a program lets others see: results, errors, arguments afterwards, as trees that can be compared.

Every value becomes a small tree at the moment at which it is seen, for it may change later. Containers and objects met
twice become a reference to their first place, so that identity is compared too. Tensors become leaves with a copy.
"""

from __future__ import annotations

import collections
import enum
import re
import types
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

__all__ = ["Leaf", "Observer"]

_PLAIN = (int, bool, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice)


#: What ``object.__repr__`` says of a place in memory, which two runs do not share.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
#: How the note begins by which an error from a compiled graph names the user's line, as eager's traceback does.
_LINE_NOTE = "In the program, this is\n  File "


@dataclass
class Leaf:
    """A tensor as it was when seen: ``meta`` must be eager's exactly, ``data`` is judged.

    In ``meta`` stands which of the tensors seen was the first in its memory (``place``: it itself). A ``gradient`` may
    have memory of its own where eager's lies in another's.
    """

    meta: tuple[Any, ...]
    data: torch.Tensor
    place: int
    gradient: bool = False


class Observer:
    """Collects what is seen, in order: ``trees`` of ``(label, tree)``.

    ``first``: the observer of eager's run, whose steps this run shares (:meth:`step`).
    """

    def __init__(self, first: Observer | None = None) -> None:
        self.trees: list[tuple[str, Any]] = []
        self._first = first
        self._steps: list[list[torch.Tensor]] = []
        self._kept: list[Any] = []
        self._places: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._leaves = 0
        #: How much was seen when autograd met a defect of its own: a function that writes to what `sgn` gives as zeros.
        self.defect: int | None = None

    def __call__(self, label: str, value: Any) -> None:
        """See a value now."""
        self.trees.append((label, self._tree(value, 0)))

    def call(self, label: str, fn: Any, *args: Any, backward: bool = False, **kwargs: Any) -> Any:
        """Call ``fn`` and see its result or error, its arguments afterwards, and (``backward``) their gradients."""
        before = [(a, a._version, a.detach().clone()) for a in args if isinstance(a, torch.Tensor)]
        result = None
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self(f"{label}: error", error)
        else:
            self(f"{label}: result", result)
        self(f"{label}: arguments", [*args, kwargs] if kwargs else list(args))
        self(f"{label}: counted", [a._version > version or not changed(a, old) for a, version, old in before])
        if backward and result is not None:
            self.gradients(label, result, [a for a in args if isinstance(a, torch.Tensor)])
        return result

    def step(self, net: torch.nn.Module, opt: torch.optim.Optimizer) -> None:
        """Take an optimiser's step, and go on from the numbers to which eager's run came.

        Where rounding decides a gradient, it decides the direction of an adaptive optimiser's whole step, and of what
        comes after nothing could be told. The gradients that led to the step have been seen.
        """
        opt.step()
        state = [value for kept in opt.state.values() for value in kept.values()]
        tensors = [t for t in (*net.parameters(), *state) if isinstance(t, torch.Tensor)]
        with torch.no_grad():
            self._steps.append([t.detach().clone() for t in tensors])
            number = len(self._steps) - 1
            theirs = (self._first or self)._steps
            for t, kept in zip(tensors, theirs[number] if number < len(theirs) else (), strict=False):
                if t.shape == kept.shape and t.dtype == kept.dtype:
                    t.copy_(kept)

    def gradients(self, label: str, result: Any, leaves: list[torch.Tensor]) -> None:
        """Run a backward pass in which every element of the result counts with another weight, and see the gradients."""
        loss = weigh([result, leaves])
        if loss is None:
            return
        try:
            loss.backward()
        except RuntimeError as error:
            if self.defect is None and "ZeroTensors are immutable" in str(error):
                self.defect = len(self.trees)
            self(f"{label}: backward's error", type(error).__name__)
            return
        for i, leaf in enumerate(leaves):
            if leaf.is_leaf:
                self(f"{label}: gradient {i}", leaf.grad)
                seen = self.trees[-1][1]
                if isinstance(seen, Leaf):
                    seen.gradient = True

    def _tree(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._leaf(value)
        if kind in _PLAIN:
            return (kind.__name__, _ADDRESS.sub(" at 0x", repr(value)))
        if depth > 12:
            return ("deep", kind.__name__)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            return (kind.__name__, getattr(value, "__qualname__", "?"))
        if isinstance(value, (torch.dtype, torch.device, types.ModuleType, enum.Enum)):
            return (kind.__name__, str(value))
        if not isinstance(value, (tuple, frozenset, str, int, float, bytes)):  # which CPython may share or copy
            if id(value) in self._places:
                return ("again", self._places[id(value)])
            self._places[id(value)] = len(self._places)
            self._kept.append(value)
        return (kind.__name__, *self._parts(value, depth + 1))

    def _parts(self, value: Any, depth: int) -> list[Any]:
        parts: list[Any] = []
        if isinstance(value, BaseException):
            parts += [
                _ADDRESS.sub(" at 0x", str(value)),
                self._tree(list(value.args), depth),
                self._tree(value.__cause__, depth),
            ]
            parts += [self._tree(value.__context__, depth), value.__suppress_context__]
            parts += [[note for note in getattr(value, "__notes__", []) if not note.startswith(_LINE_NOTE)]]
        elif isinstance(value, (dict, types.MappingProxyType)):
            parts += [(self._tree(k, depth), self._tree(v, depth)) for k, v in value.items()]
            parts += (
                [repr(getattr(value, "default_factory", None))] if isinstance(value, collections.defaultdict) else []
            )
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            parts += [
                self._tree(v, depth) for v in (_told_apart(value) if isinstance(value, (set, frozenset)) else value)
            ]
            parts += [value.maxlen] if isinstance(value, collections.deque) else []
        elif isinstance(value, str | int | float | bytes):
            parts += [value.__class__.__mro__[1].__name__, str(value)]
        if isinstance(value, torch.nn.Module):
            parts += [(k, self._tree(v, depth)) for k, v in value.state_dict(keep_vars=True).items()]
            parts += [value.training]
        elif not isinstance(value, BaseException):
            state = getattr(value, "__dict__", None) or {}
            parts += [(k, self._tree(v, depth)) for k, v in state.items()]
            for name in getattr(type(value), "__slots__", ()):
                parts += [(name, self._tree(getattr(value, name, "unset"), depth))]
        return parts

    def _leaf(self, t: torch.Tensor) -> Leaf:
        self._kept.append(t)
        self._leaves += 1
        shared = -1
        if t.numel():
            storage = t.untyped_storage()
            self._kept.append(storage)  # the tensor may be given other memory, and its own be used again
            shared = self._storages.setdefault(storage._cdata, self._leaves)
        # Those of dimensions of one element lead nowhere; where they have a say in what follows, that is compared.
        strides = tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) if t.numel() else ()
        meta = (
            type(t).__name__, tuple(t.shape), str(t.dtype), t.device.type, ("strides", strides), ("memory", shared),
            ("requires_grad", t.requires_grad), ("leaf", t.is_leaf),
        )  # fmt: skip
        return Leaf(meta, t.detach().clone(), self._leaves)


def changed(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a tensor's shape or numbers are others than they were."""
    if now.shape != before.shape:
        return True
    same = (now == before) | (now != now) & (before != before)
    return not bool(same.all())


def weigh(values: Any) -> torch.Tensor | None:
    """A number in which every differentiable element counts, each with another exact weight; None without any."""
    total: torch.Tensor | None = None
    stack, seen = [values], set()
    while stack:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not value.is_leaf and id(value) not in seen:
                seen.add(id(value))
                flat = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).double().reshape(-1)
                weights = (torch.arange(flat.numel(), device=flat.device) * 5 % 13 - 4).double() / 4
                part = (flat * weights).sum()
                total = part if total is None else total + part
        elif isinstance(value, (list, tuple)):
            stack.extend(reversed(value))
        elif isinstance(value, dict):
            stack.extend(reversed(list(value.values())))
    return total


#: How numbers that stand for an address are made.
_BY_ADDRESS = tuple(
    kind.__hash__ for kind in (object, torch.Tensor, types.MethodType, types.BuiltinMethodType)
)  # fmt: skip


def _told_apart(elements: Any) -> list[Any]:
    """The elements of a set in its order; where an address decides that, by their kinds and texts."""
    return sorted(elements, key=_told) if any(map(_by_address, elements)) else list(elements)


def _hashed(element: Any) -> tuple[Any, ...]:
    """What a number that stands for an element in a set is made of, beside its kind."""
    if isinstance(element, tuple | frozenset):
        return tuple(element)
    if is_dataclass(element) and not isinstance(element, type):
        return tuple(getattr(element, field.name, None) for field in fields(element))
    return ()


def _by_address(element: Any) -> bool:
    """Is the place of an element in a set another one in each run? It is where that of a part is."""
    return type(element).__hash__ in _BY_ADDRESS or any(map(_by_address, _hashed(element)))


def _told(element: Any) -> tuple[str, str]:
    """An element's kind and text, without addresses."""
    parts = map(repr, map(_told, _hashed(element)))
    if isinstance(element, tuple | frozenset):
        return type(element).__name__, " ".join(sorted(parts) if isinstance(element, frozenset) else parts)
    texts = (str, int, float, bytes, torch.Tensor)
    return type(element).__name__, str(element) if isinstance(element, texts) else " ".join(parts)
