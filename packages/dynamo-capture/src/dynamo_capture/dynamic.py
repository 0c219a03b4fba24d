"""Which sizes and ints are symbolic: by request, by mark, or because they changed since the last capture."""

from __future__ import annotations

from typing import Any

import torch

from dynamo_capture.sources import Source
from prims.errors import UserError
from prims.spec.expr import bits_of_float

__all__ = ["DynamicSizes", "mark_dynamic", "mark_static", "said_of"]

_DYNAMIC_MARK = "_quintet_dynamic_dims"
_STATIC_MARK = "_quintet_static_dims"
_SAID_MARK = "_quintet_said_dims"
#: The marks of ``torch._dynamo.mark_dynamic`` and ``maybe_mark_dynamic``, honoured when present.
_TORCH_MARKS = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")


def mark_dynamic(
    tensor: torch.Tensor, dims: int | list[int] | tuple[int, ...], *, min: int = 2, max: int | None = None,
    name: str | None = None,
) -> None:  # fmt: skip
    """Make dimensions of an input symbolic from the first capture on.

    Args:
        tensor: a tensor that will be passed to a compiled function.
        dims: dimension index or indices; negative ones count from the end.
        min, max: between which the sizes are, both ends included; capture counts on it, and guards it.
        name: sizes of dimensions of one name are equal, which capture counts on and guards too.

    Raises:
        UserError: no tensor, or its size is not in that range.
    """
    _mark(tensor, _DYNAMIC_MARK, dims)
    if (min, max, name) != (2, None, None):
        said = dict(getattr(tensor, _SAID_MARK, {}))
        for dim in {dims} if isinstance(dims, int) else set(dims):
            size = tensor.shape[dim]
            if size < min or (max is not None and size > max):
                raise UserError(
                    f"dimension {dim} is {size}, outside of [{min}, {'inf' if max is None else max}]",
                    todo="Give an example of a size in the range.",
                )
            said[dim % tensor.dim()] = (min, max, name)
        setattr(tensor, _SAID_MARK, said)


def said_of(tensor: torch.Tensor, dim: int) -> tuple[int, int | None, str | None]:
    """The least and largest size of a dimension and its name, as :func:`mark_dynamic` was told."""
    return getattr(tensor, _SAID_MARK, {}).get(dim, (2, None, None))  # type: ignore[no-any-return]


def mark_static(tensor: torch.Tensor, dims: int | list[int] | tuple[int, ...]) -> None:
    """Keep dimensions of an input specialised, also when they change."""
    _mark(tensor, _STATIC_MARK, dims)


def _mark(tensor: torch.Tensor, name: str, dims: int | list[int] | tuple[int, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UserError(f"cannot mark sizes of {tensor!r}: it is not a tensor", todo="Pass a tensor, then dimensions.")
    wanted = {dims} if isinstance(dims, int) else set(dims)
    for dim in wanted:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    marked = {dim % tensor.dim() for dim in wanted}
    setattr(tensor, name, frozenset(marked | getattr(tensor, name, frozenset())))


class DynamicSizes:
    """What one code object's captures have seen, by source.

    Args:
        dynamic: ``True`` makes every size of at least 2 symbolic at once, ``False`` none, ``None`` those that
            changed between captures.

    Attributes:
        generalised: captures that made something symbolic which the ones before had fixed. They serve what those
            served, and so do not count as further variants of the code.
    """

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        self.stride_guards: list[tuple[Source, Any]] = []
        self.equal_numbers: list[tuple[Source, Source]] = []
        self.generalised = 0
        self._symbolic = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._changed: dict[str, set[int]] = {}
        self._ints: dict[str, int] = {}
        self._changed_ints: set[str] = set()
        self._floats: dict[str, int] = {}
        self._changed_floats: set[str] = set()
        self._now_shapes: dict[str, tuple[int, ...]] = {}
        self._now_ints: dict[str, int] = {}
        self._now_floats: dict[str, int] = {}
        self._sharing: dict[str, str] = {}
        self._now_sharing: dict[str, str] = {}
        self._now_first: dict[tuple[str, str | None, int], str] = {}

    def start(self) -> None:
        """A capture (or its restart) begins."""
        self.stride_guards = []
        self.equal_numbers = []
        self._now_shapes = {}
        self._now_ints = {}
        self._now_floats = {}
        self._now_sharing = {}
        self._now_first = {}

    def commit(self) -> None:
        """The capture is done: what it saw is what the next one compares with."""
        self._shapes.update(self._now_shapes)
        self._ints.update(self._now_ints)
        self._floats.update(self._now_floats)
        self._sharing.update(self._now_sharing)
        symbolic = sum(map(len, self._changed.values())) + len(self._changed_ints) + len(self._changed_floats)
        if symbolic > self._symbolic:
            self._symbolic = symbolic
            self.generalised += 1

    def known(self) -> dict[str, Any]:
        """What the captures have seen, as JSON."""
        return {
            "shapes": {source: list(shape) for source, shape in self._shapes.items()},
            "changed": {source: sorted(dims) for source, dims in self._changed.items() if dims},
            "ints": self._ints, "changed_ints": sorted(self._changed_ints),
            "floats": self._floats, "changed_floats": sorted(self._changed_floats),
            "sharing": self._sharing, "generalised": self.generalised,
        }  # fmt: skip

    def take(self, known: dict[str, Any]) -> None:
        """Go on from what the captures of another process have seen."""
        self._shapes |= {source: tuple(shape) for source, shape in known["shapes"].items()}
        for source, dims in known["changed"].items():
            self._changed.setdefault(source, set()).update(dims)
        self._ints |= known["ints"]
        self._changed_ints |= set(known["changed_ints"])
        self._floats |= known["floats"]
        self._changed_floats |= set(known["changed_floats"])
        self._sharing |= known["sharing"]
        self.generalised = max(self.generalised, known["generalised"])
        self._symbolic = sum(map(len, self._changed.values())) + len(self._changed_ints) + len(self._changed_floats)

    def dims(self, source: str, tensor: torch.Tensor, is_module_state: bool) -> list[int]:
        """The symbolic dimensions of a tensor input."""
        shape = tuple(tensor.shape)
        self._now_shapes[source] = shape
        marked: set[int] = set()
        static: frozenset[int] = frozenset()
        if tensor.__dict__:
            for name in (_DYNAMIC_MARK, *_TORCH_MARKS):
                marked |= set(getattr(tensor, name, ()))
            static = getattr(tensor, _STATIC_MARK, frozenset())
        if self.dynamic is False:
            return []
        if is_module_state:
            return []
        if self.dynamic:
            marked |= set(range(len(shape)))
        elif self.dynamic is None:
            before = self._shapes.get(source)
            changed = self._changed.setdefault(source, set())
            if before is not None and len(before) == len(shape):
                changed.update(d for d, (a, b) in enumerate(zip(before, shape, strict=True)) if a != b)
            marked |= changed
        return sorted(d for d in marked - static if d < len(shape) and shape[d] > 1)

    def float_is_dynamic(self, source: str, value: float) -> bool:
        """Whether a float input is symbolic: once it has changed. Not a number is always specialised."""
        bits = bits_of_float(value)
        before = self._floats.get(source)
        self._now_floats[source] = bits
        if self.dynamic is False or value != value:
            return False
        if before is not None and before != bits:
            self._changed_floats.add(source)
        return source in self._changed_floats

    def shared_number(self, source: str, value: float, kind: str) -> str | None:
        """The first source of the kind that has held the same float in every capture; None where it is this one."""
        before = self._sharing.get(source)
        first = self._now_first.setdefault((kind, before, bits_of_float(value)), source)
        self._now_sharing[source] = first
        return None if first == source else first

    def int_is_dynamic(self, source: str, value: int) -> bool:
        """Whether an int input is symbolic: once it has changed. 0 and negative ints are always specialised."""
        before = self._ints.get(source)
        self._now_ints[source] = value
        if self.dynamic is False or value < 1:
            return False
        if before is not None and before != value:
            self._changed_ints.add(source)
        return source in self._changed_ints
