"""Which sizes and ints are symbolic: by request, by mark, or because they changed since the last capture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynamo_capture.sources import Source
from prims.errors import UserError
from prims.spec.abstract import free_strides
from prims.spec.expr import bits_of_float

__all__ = ["DynamicSizes", "asked_for", "mark_dynamic", "mark_static", "mark_unbacked", "maybe_mark_dynamic",
           "said_of"]  # fmt: skip

_DYNAMIC_MARK = "_quintet_dynamic_dims"
_STATIC_MARK = "_quintet_static_dims"
_SAID_MARK = "_quintet_said_dims"
#: Dimensions that were asked for, and are to be told of where the program fixes them.
_ASKED_MARK = "_quintet_asked_dims"
#: The marks that PyTorch's functions of the same names leave on a tensor, honoured where they are.
_TORCH_ASKED = "_dynamo_dynamic_indices"
_TORCH_UNBACKED = ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")
_TORCH_DYNAMIC = (_TORCH_ASKED, "_dynamo_weak_dynamic_indices", *_TORCH_UNBACKED)
_TORCH_STATIC = "_dynamo_static_indices"
#: What is said of a size of which nothing is said: the least, the largest, and its name.
_NOTHING_SAID = (2, None, None)
#: Values of one integer in a tensor that are captured, before it counts as one that goes on changing.
_MOST_HELD = 4

Dims = int | list[int] | tuple[int, ...]


def mark_dynamic(
    tensor: torch.Tensor, dims: Dims, *, min: int = 2, max: int | None = None, name: str | None = None,
) -> None:  # fmt: skip
    """Make dimensions of an input symbolic from the first capture on.

    Where the program fixes such a size all the same, the report and a warning say which line does.

    Args:
        tensor: a tensor that will be passed to a compiled function.
        dims: dimension index or indices; negative ones count from the end.
        min, max: between which the sizes are, both ends included; capture counts on it, and guards it.
        name: sizes of dimensions of one name are equal, which capture counts on and guards too.

    Raises:
        UserError: no tensor, or its size is not in that range.
    """
    maybe_mark_dynamic(tensor, dims, min=min, max=max, name=name)
    _mark(tensor, _ASKED_MARK, dims)


def maybe_mark_dynamic(
    tensor: torch.Tensor, dims: Dims, *, min: int = 2, max: int | None = None, name: str | None = None,
) -> None:  # fmt: skip
    """The same as :func:`mark_dynamic`, but that nothing is said where the program fixes the size.

    Raises:
        UserError: no tensor, or its size is not in that range.
    """
    marked = _mark(tensor, _DYNAMIC_MARK, dims)
    if (min, max, name) != _NOTHING_SAID:
        _say(tensor, marked, min, max, name)


def mark_unbacked(tensor: torch.Tensor, dims: Dims, *, min: int = 0, max: int | None = None) -> None:
    """Make dimensions of an input symbolic from the first capture on, and let them be 0 and 1 as well.

    What the program asks about such a size is answered by the size of the call, and guarded: another size that would
    answer differently is captured anew. (PyTorch refuses such questions.)

    Args:
        min, max: between which the sizes are, both ends included; guarded.

    Raises:
        UserError: no tensor, or its size is not in that range.
    """
    _say(tensor, _mark(tensor, _DYNAMIC_MARK, dims), min, max, None)


def mark_static(tensor: torch.Tensor, dims: Dims | None = None) -> None:
    """Keep dimensions of an input (all, by default) specialised, also when they change and under ``dynamic=True``.

    Inside a compiled region it fixes the sizes of any tensor, by a guard.

    Raises:
        UserError: no tensor.
    """
    _mark(tensor, _STATIC_MARK, tuple(range(tensor.dim())) if dims is None and _is_tensor(tensor) else dims)


def _is_tensor(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor)


def _say(tensor: torch.Tensor, dims: frozenset[int], low: int, high: int | None, name: str | None) -> None:
    said = dict(getattr(tensor, _SAID_MARK, {}))
    for dim in dims:
        size = tensor.shape[dim]
        if size < low or (high is not None and size > high):
            raise UserError(
                f"dimension {dim} is {size}, outside of [{low}, {'inf' if high is None else high}]",
                todo="Give an example of a size in the range.",
            )
        said[dim] = (low, high, name)
    setattr(tensor, _SAID_MARK, said)


def said_of(tensor: torch.Tensor, dim: int) -> tuple[int, int | None, str | None]:
    """The least and largest size of a dimension and its name, as the functions that mark it were told."""
    said = getattr(tensor, _SAID_MARK, {}).get(dim)
    return _said_to_torch(tensor, dim) if said is None else said


def _said_to_torch(tensor: torch.Tensor, dim: int) -> tuple[int, int | None, str | None]:
    """The same of PyTorch's functions, by the attributes that they leave."""
    held, ndim = tensor.__dict__, tensor.dim()
    for index in (dim, dim - ndim):
        if any(index in held.get(mark, ()) for mark in _TORCH_UNBACKED):
            low, high = held.get("_dynamo_unbacked_bounds", {}).get(index, (None, None))
            name = held.get("_dynamo_shape_ids", {}).get(index)
            return low or 0, high, None if name is None else str(name)
        for told in held.get("_dynamo_dynamic_range", ()):
            if told.dim == index:
                return 2 if told.min is None else told.min, told.max, None
    return _NOTHING_SAID


def asked_for(tensor: torch.Tensor) -> set[int]:
    """The dimensions that :func:`mark_dynamic`, or PyTorch's, has marked."""
    return _marks(tensor, _ASKED_MARK, _TORCH_ASKED)


def _marks(tensor: torch.Tensor, *names: str) -> set[int]:
    held, ndim = tensor.__dict__, tensor.dim()
    return {dim % ndim for name in names for dim in held.get(name, ()) if -ndim <= dim < ndim}


def _mark(tensor: torch.Tensor, name: str, dims: Dims | None) -> frozenset[int]:
    if not _is_tensor(tensor):
        raise UserError(f"cannot mark sizes of {tensor!r}: it is not a tensor", todo="Pass a tensor, then dimensions.")
    if not isinstance(dims, (int, list, tuple)):
        raise UserError(f"cannot mark dimensions {dims!r}", todo="Pass a dimension, or a list of them.")
    wanted = {dims} if isinstance(dims, int) else set(dims)
    for dim in wanted:
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    marked = frozenset(dim % tensor.dim() for dim in wanted)
    setattr(tensor, name, marked | getattr(tensor, name, frozenset()))
    return marked


def _is_dense_in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides are those of a new tensor, also where a dimension of one may have any."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            return False
        step *= size
    return True


class DynamicSizes:
    """What one code object's captures have seen, by source.

    Args:
        dynamic: ``True`` makes every size of at least 2 symbolic at once, ``False`` none, ``None`` those that
            changed between captures.
    """

    def __init__(self, dynamic: bool | None) -> None:
        self.dynamic = dynamic
        self.stride_guards: list[tuple[Source, dict[int, Any]]] = []
        self.equal_numbers: list[tuple[Source, Source]] = []
        #: Tensors of which some symbolic size may be less than 2, so that the others are guarded one by one.
        self.low_tensors: set[str] = set()
        #: Tensors with a symbolic dimension that may be 1.
        self.of_one: list[Source] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        #: Strides that do not follow from the sizes, by dimension: the last ones, and which have changed.
        self._strides: dict[str, dict[int, int]] = {}
        self._changed_strides: dict[str, set[int]] = {}
        self._changed: dict[str, set[int]] = {}
        self._ones: dict[str, set[int]] = {}
        self._ints: dict[str, int] = {}
        self._changed_ints: set[str] = set()
        self._floats: dict[str, int] = {}
        self._changed_floats: set[str] = set()
        self._now_shapes: dict[str, tuple[int, ...]] = {}
        self._now_strides: dict[str, dict[int, int]] = {}
        self._now_ints: dict[str, int] = {}
        self._now_floats: dict[str, int] = {}
        self._sharing: dict[str, str] = {}
        #: The integers that modules keep in tensors, and that captures took for such as stay, by source.
        self._held: dict[str, set[int]] = {}
        self._now_sharing: dict[str, str] = {}
        self._now_first: dict[tuple[str, str | None, int], str] = {}

    def start(self) -> None:
        """A capture (or its restart) begins."""
        self.stride_guards = []
        self.equal_numbers = []
        self.low_tensors = set()
        self.of_one = []
        self._now_shapes = {}
        self._now_strides = {}
        self._now_ints = {}
        self._now_floats = {}
        self._now_sharing = {}
        self._now_first = {}

    def commit(self) -> None:
        """The capture is done: what it saw is what the next one compares with."""
        self._shapes.update(self._now_shapes)
        for source, strides in self._now_strides.items():
            self._strides.setdefault(source, {}).update(strides)
        self._ints.update(self._now_ints)
        self._floats.update(self._now_floats)
        self._sharing.update(self._now_sharing)

    def known(self) -> dict[str, Any]:
        """What the captures have seen, as JSON."""
        return {
            "shapes": {source: list(shape) for source, shape in self._shapes.items()},
            "changed": {source: sorted(dims) for source, dims in self._changed.items() if dims},
            "strides": {source: list(strides.items()) for source, strides in self._strides.items()},
            "changed_strides": {source: sorted(dims) for source, dims in self._changed_strides.items()},
            "ints": self._ints, "changed_ints": sorted(self._changed_ints),
            "floats": self._floats, "changed_floats": sorted(self._changed_floats),
            "sharing": self._sharing, "ones": {source: sorted(dims) for source, dims in self._ones.items()},
        }  # fmt: skip

    def take(self, known: dict[str, Any], same: bool) -> None:
        """Go on from what the captures of another process have seen.

        Args:
            known: what :meth:`known` gave there.
            same: whether its function is this one, so that the next capture is compared with its last one too. Other
                functions have the same code with other numbers in their closures and other sizes: a loss's label
                smoothing, the width of another model. Only what changed in one of them may be expected to here.
        """
        for source, dims in known["changed"].items():
            self._changed.setdefault(source, set()).update(dims)
        for source, dims in known["changed_strides"].items():
            self._changed_strides.setdefault(source, set()).update(dims)
        self._changed_ints |= set(known["changed_ints"])
        self._changed_floats |= set(known["changed_floats"])
        for source, dims in known["ones"].items():
            self._ones.setdefault(source, set()).update(dims)
        if same:
            self._shapes |= {source: tuple(shape) for source, shape in known["shapes"].items()}
            self._strides |= {source: dict(strides) for source, strides in known["strides"].items()}
            self._ints |= known["ints"]
            self._floats |= known["floats"]
            self._sharing |= known["sharing"]

    def dims(self, source: str, tensor: torch.Tensor, is_module_state: bool) -> dict[int, int]:
        """The symbolic dimensions of a tensor input, each with the least size that it may have.

        That is 2, so that no size is taken for one that is broadcast; 1 where calls have shown both 1 and more. Then
        what depends on it is a guard, and where nothing does, one graph serves the batch of one too.
        """
        shape = tuple(tensor.shape)
        source = f"{source}, {len(shape)}-d"  # tensors of other ranks may come in turn, which have sizes of their own
        self._now_shapes[source] = shape
        marked: set[int] = set()
        said: set[int] = set()
        static: set[int] = set()
        if tensor.__dict__:
            theirs = _marks(tensor, *_TORCH_DYNAMIC)
            said = _marks(tensor, _DYNAMIC_MARK) | theirs
            static = _marks(tensor, _STATIC_MARK) | (_marks(tensor, _TORCH_STATIC) - theirs)
            marked |= said
        if self.dynamic is False or is_module_state:
            return {}
        if self.dynamic:
            marked |= set(range(len(shape)))
        elif self.dynamic is None:
            before = self._shapes.get(source)
            changed = self._changed.setdefault(source, set())
            if before is not None:
                changed.update(d for d, (a, b) in enumerate(zip(before, shape, strict=True)) if a != b)
                ones = {d for d in changed if d < len(shape) and 1 in (before[d], shape[d])}
                if ones:
                    self._ones.setdefault(source, set()).update(ones)
            marked |= changed
        may_be_one = self._ones.get(source, ())
        one_is_like_others = bool(may_be_one) and 0 not in shape and _is_dense_in_order(shape, tensor.stride())
        return {
            d: 1 if d in may_be_one and d not in said else 2
            for d in sorted(marked - static)
            if d < len(shape) and (shape[d] > 1 or (shape[d] == 1 and d in may_be_one and one_is_like_others))
        }

    def strides(self, source: str, tensor: torch.Tensor, is_module_state: bool) -> dict[int, int]:
        """The strides of a tensor input that are symbolic: those that no sizes tell, once they have changed."""
        free = free_strides(tuple(tensor.shape), tensor.stride())
        source = f"{source}, {tensor.dim()}-d"
        self._now_strides[source] = free
        if self.dynamic is False or is_module_state:
            return {}
        if tensor.__dict__:
            fixed = _marks(tensor, _STATIC_MARK, _TORCH_STATIC)
            free = {dim: stride for dim, stride in free.items() if dim not in fixed}
        if self.dynamic:
            return free
        before = self._strides.get(source, {})
        changed = {dim for dim, stride in free.items() if before.get(dim, stride) != stride}
        if changed:
            self._changed_strides.setdefault(source, set()).update(changed)
        changed = self._changed_strides.get(source, changed)
        return {dim: stride for dim, stride in free.items() if dim in changed}

    def lowest(self, source: str, tensor: torch.Tensor, dynamic: Any) -> int:
        """The least size that the guard of a tensor lets pass where a size is symbolic: 2, or what was said of one."""
        low = min((said_of(tensor, dim)[0] for dim in dynamic), default=2) if tensor.__dict__ else 2
        if low < 2:
            self.low_tensors.add(source)
            return max(low, 0)
        return 2

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

    def settles(self, source: str, value: int) -> bool:
        """Whether an integer that a module keeps in a tensor counts as one that stays, rather than goes on changing."""
        seen = self._held.setdefault(source, set())
        if value in seen or len(seen) < _MOST_HELD:
            seen.add(value)
            return True
        return False

    def int_is_dynamic(self, source: str, value: int) -> bool:
        """Whether an int input is symbolic: once it has changed. 0 is always specialised."""
        before = self._ints.get(source)
        self._now_ints[source] = value
        if self.dynamic is False or value == 0:
            return False
        if before is not None and before != value:
            self._changed_ints.add(source)
        return source in self._changed_ints
