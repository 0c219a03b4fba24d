"""The reference: eager's own run of a program, shadowed in float64, exactly and with randomly rounded operations.

While a program runs eagerly under :class:`Shadow`, every storage has twins of 64-bit numbers (integers and bools keep
their types). Each ATen operator is computed on the twins too; a view of a storage is the same view of its twin, and a
write goes into the twin. Twin 0 is rounded nowhere but to float64, and neither is twin 1, whose pointwise operators
read their operands with gaps between the elements: then PyTorch's CPU kernels compute one by one rather than by
vectors, which some of them answer with the other zero (``softshrink``, and ``maximum`` of 0.0 and -0.0); of numbers too few
for a vector, twin 0 has the zeros that vectors would have. Of zeros of both signs among which one looks for the largest,
twin 0 takes 0.0 to be the larger, twin 1 takes -0.0, and each rounded run either of them for each result: which a kernel
meets first depends on the shape. Of zeros of one sign that is the answer in all of them. Twins are on the CPU, whatever
eager runs on: its kernels of 64 bits have constants of 64 bits.

Each other twin is a run of Monte Carlo arithmetic (D. S. Parker, 1997): each result that eager had to round, or that
follows from such, is moved by up to one unit in the last place of the result's type and rounded to a number of that type,
and operators that accumulate (:data:`ACCUMULATING`) also have their operands moved by one unit of the type they accumulate
in. Of eager's 64-bit numbers nobody knows which it had to round: all but small multiples of 1/4 count as rounded. Half of
these twins compute such pointwise operators on 32 bits with eager's own kernels, whose inner roundings (of 1 + erf(x), say)
then count too. Gradients that backward passes add up may be added in another order, since those of a compiled region come
as one: a sum's rounding is of the size of all that it adds. What a backward pass needs of the forward pass a compiled
region may compute a second time, and round otherwise: a quarter of these twins reads some of it from its neighbour. How far
the twins lie apart says how far any correct order of rounding may lie from eager's, and an integer or bool on which the twins
do not agree is one that rounding decides.

The rounded runs' numbers are those of the types: two may become equal, small ones zero, large ones infinite. The exact ones
keep to the range of 32 bits, but not of float16 before their end, for what lies between fused operators has 32 bits.
A tensor seen as one of another type has the twins' bits in that type.

Where an operator cannot be computed on the twins it is computed in its own operands' types, with operands and results
moved by a unit. Where not even that succeeds, the last twin becomes NaN, so that what depends on it is undecided.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.kernels import (
    ACCUMULATING,
    ADDING_ONE,
    ADDITIONS,
    ANY_ORDER,
    COMPARISONS,
    DETOURS,
    EXTREMA,
    EXTREMA_BY_NAME,
    HOME,
    INEXACT,
    INNER_SIZES,
    LONGEST,
    MOST,
    MOVING,
    NORM_GRADIENTS,
    NORMALISING,
    OF_THREE,
    ONE_SIDED,
    PARTIAL,
    PRODUCTS,
    PRODUCTS_BETWEEN,
    RUNNING_MEAN,
    SOFTMAX_GRADIENTS,
    SUMS,
    TERMS,
)  # fmt: skip

__all__ = ["ACCUMULATING", "Shadow", "overlaps"]

_WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDE |= {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of a twin's numbers."""
    return _WIDE.get(dtype, dtype)


def unit(dtype: torch.dtype) -> float:
    """The relative distance of neighbouring numbers."""
    return torch.finfo(dtype).eps


def _inner(dtype: torch.dtype) -> float:
    """The unit in which operators on this type accumulate."""
    return torch.finfo(torch.float32).eps if dtype in (torch.float16, torch.bfloat16) else torch.finfo(dtype).eps


def _floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


class Shadow(TorchDispatchMode):
    """Run eager code inside it; then ask for the twins of its tensors: two exact ones and ``samples`` rounded ones.

    With no ``samples`` there is one twin, which is a third of the work of three samples.

    Attributes:
        unstable: rounding decides a shape or a branch of the program, so that there is nothing to compare.
        split: rounding decides an integer or a bool somewhere.
        lost: operators that the twins could not follow: nothing that depends on their results is decided.
        behind: a gradient was taken of numbers that had been written behind autograd's back (by ``.data``) since.
        raced: threads of a GPU came to the same memory in eager's run; what they left there is not decided.
    """

    def __init__(self, samples: int, seed: int = 0) -> None:
        super().__init__()
        self.count = samples + 2 if samples else 1
        self.unstable = False
        self.split = False
        self.lost: set[str] = set()
        self.raced = False
        self.behind = False
        #: Whether twin 1 has products beyond the largest number, in place of infinities.
        self._beyond = False
        #: Storage -> a tensor in it that has gradients, and its version; then the nodes there were when another way was
        #: found to write there.
        self._watched: dict[int, tuple[torch.Tensor, int]] = {}
        self._behind: dict[int, int] = {}
        self._generators: dict[torch.device, torch.Generator] = {}
        self._seed = seed
        self._coin = random.Random(seed)
        #: Storage -> it (kept alive), its twins, and the type of what they stand for.
        self._storages: dict[int, tuple[Any, list[torch.Tensor], torch.dtype]] = {}
        #: Sums of gradients -> the sum of their parts' sizes, and whether each order gives the same.
        self._sums: dict[Any, tuple[torch.Tensor, bool]] = {}
        #: Storage that an operator has made -> the backward pass it did so in (-1: none), and which twins' backward passes
        #: read their neighbour's numbers there, as bits.
        self._made: dict[int, tuple[int, int]] = {}

    def _random(self, like: torch.Tensor) -> torch.Tensor:
        """Uniform numbers between -1 and 1."""
        generator = self._generators.get(like.device)
        if generator is None:
            generator = self._generators[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        return torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float64) * 2 - 1

    def _bases(self, t: torch.Tensor, written: bool = False) -> list[torch.Tensor]:
        """The twins of a tensor's storage, of its type; what is ``written`` is kept in that type from now on."""
        storage = t.untyped_storage()
        entry = self._storages.get(storage._cdata)
        count = storage.nbytes() // t.dtype.itemsize
        if entry is not None:
            _, bases, held = entry
            if held != t.dtype:
                bases = [_retyped(base, held, t.dtype, k % 2) for k, base in enumerate(bases)]
            if bases[0].numel() == count:
                if written and bases is not entry[1]:
                    self._storages[storage._cdata] = (storage, bases, t.dtype)
                return bases
        flat = _flat(t, count)
        bases = [flat.to(HOME, wide(t.dtype), copy=True) for _ in range(self.count)]
        self._storages[storage._cdata] = (storage, bases, t.dtype)
        return bases

    def twins(self, t: torch.Tensor) -> list[torch.Tensor]:
        """The exact runs' tensors (by vectors, one by one), then the randomly rounded ones."""
        with torch.no_grad():
            return [_limited(self._view(base, t), t.dtype) for base in self._bases(t)]

    @staticmethod
    def _view(base: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        view = torch.as_strided(base, t.size(), t.stride(), t.storage_offset())
        view = view.conj() if t.is_conj() else view
        return torch._neg_view(view) if t.is_neg() else view

    def _disturbed(self, twin: torch.Tensor, inexact: torch.Tensor | None, step: float) -> torch.Tensor:
        """Some correctly or wrongly rounded value near each number (``inexact``: only those); a zero keeps its sign, and what
        is not finite stays."""
        if twin.is_complex():
            parts = torch.view_as_real(twin.resolve_conj().resolve_neg())
            mask = None if inexact is None else inexact.unsqueeze(-1)
            size = twin.abs().unsqueeze(-1)
            still = (size == 0) | ~size.isfinite()
            still = still if mask is None else still | ~mask
            return torch.view_as_complex(parts.where(still, parts + self._random(parts) * size * step))
        still = (twin == 0) | ~twin.isfinite()
        still = still if inexact is None else still | ~inexact
        return twin.where(still, twin + self._random(twin) * twin.abs() * step)

    def _widened(
        self, operands: Any, k: int, moving: set[int], again: dict[int, int], other: Callable[[torch.Tensor], torch.Tensor]
    ) -> Any:
        """Twin ``k`` of the operands; those of ``moving`` (by identity) are moved in the rounded runs, those of ``again`` are a
        neighbour's in some, and run 1 and a quarter of these have them in ``other`` places."""

        def change(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                computed_again = again.get(id(value), 0) >> k & 1
                twin = self._view(self._bases(value)[k - 1 if computed_again else k], value)
                moved = self._disturbed(twin, None, _inner(value.dtype)) if k > 1 and id(value) in moving else twin
                return other(moved) if k % 4 == 1 else moved
            if isinstance(value, torch.device):
                return HOME
            return wide(value) if isinstance(value, torch.dtype) else value

        return _mapped(change, operands)

    def _shuffled(self, twin: torch.Tensor, dims: Any = None) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The numbers in another order along the dimensions over which they are reduced, and which order that is."""
        chosen = dims if isinstance(dims, (tuple, list)) and dims else range(twin.dim())
        orders = {d: self._random(torch.empty(twin.shape[d], device=HOME)).argsort() for d in chosen if twin.dim()}
        return _ordered(twin, orders), orders

    def _reordered(
        self, args: Any, kwargs: Any, operands: int, orders: dict[int, torch.Tensor] | None
    ) -> tuple[Any, dict[int, torch.Tensor]]:
        """The first operands, all in the same other order along all dimensions but the second, and which that is."""
        orders = orders or self._shuffled(args[0], [d for d in range(args[0].dim()) if d != 1])[1]
        ordered = [_ordered(twin, orders) for twin in args[:operands]]
        return ((*ordered, *args[operands:]), kwargs), orders

    def _moving(self, name: str, operands: list[torch.Tensor]) -> set[int]:
        """Which operands the rounded runs move: those of operators that accumulate, where that rounds."""
        if self.count == 1 or not any(part in name for part in ACCUMULATING):
            return set()
        numbers = [t for t in operands if _floating(t.dtype)]
        grids = [self._grid(t) for t in numbers]
        every = any(part in name for part in INEXACT) or (name in OF_THREE and not all(grids))
        return {id(t) for t, grid in zip(numbers, grids, strict=True) if every or not grid}

    def _again(self, operands: list[torch.Tensor]) -> dict[int, int]:
        """Which operands of a backward pass were made before it, and the twins whose pass computes them a second time."""
        task = torch._C._current_graph_task_id()
        made = {id(t): self._made.get(t.untyped_storage()._cdata, (task, 0)) for t in operands if task != -1}
        return {key: twins for key, (then, twins) in made.items() if then != task}

    @staticmethod
    def _grid(value: torch.Tensor) -> bool:
        """Whether sums of these numbers are exact in any order: small multiples of 1/4."""
        if value.is_complex() or not value.numel():
            return False
        exact = (value.detach().double() * 4).abs()
        limit = 2.0**10 if value.dtype in (torch.float16, torch.bfloat16) else 2.0**22
        return bool((exact == exact.round()).all()) and float(exact.sum()) < limit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if any(t.is_meta for t in _tensors((args, kwargs))):  # autograd's zeros ask for shapes in this way
            return func(*args, **kwargs)
        with torch.no_grad():
            written = [
                t
                for i, a in enumerate(func._schema.arguments)
                if a.alias_info is not None and a.alias_info.is_write
                for t in _tensors(kwargs.get(a.name) if a.name in kwargs else args[i : i + 1])
            ]
            for t in _tensors((args, kwargs)):
                bases = self._bases(t, written=any(t is w for w in written))
                if self._beyond and name not in PRODUCTS_BETWEEN | ADDITIONS:
                    self._overflow(bases[1:2], t)
            backward = name in ("aten::add", "aten::add_") and torch._C._current_graph_task_id() != -1
            parts = [self._parts(t) for t in _tensors(args)] if backward else []
            reduced = self._sums.get(_extent(args[0])) if name == "aten::sum" else None
            given, orders = None, [{} for _ in range(self.count)]
            if not _random(func, args, kwargs):
                moving = self._moving(name, _tensors((args, kwargs)))
                averages = _averages(func, args, kwargs)
                for t in [*written, *averages]:  # moved copies would lose what is written to them
                    if id(t) in moving and name.endswith("_") and not any(part in name for part in PARTIAL):
                        self._stir(t)
                    moving.discard(id(t))
                other = _apart if not written and torch.Tag.pointwise in func.tags else lambda twin: twin
                written += averages
                again = self._again([t for t in _tensors((args, kwargs)) if not any(t is w for w in written)])
                given = [self._widened((args, kwargs), k, moving, again, other) for k in range(self.count)]
                if name.startswith("aten::nan_to_num") and _floating(args[0].dtype):
                    given = [_with_limits(func, *twins, args[0].dtype) for twins in given]
                if name in ANY_ORDER:
                    given[2:] = [((self._shuffled(*twins[:2])[0], *twins[1:]), named) for twins, named in given[2:]]
                if name in NORMALISING and args[0].dtype == torch.float64:
                    for k in range(2, self.count):  # a gradient's runs take numbers from each other: one order for all
                        known = orders[2] if NORMALISING[name] > 1 and k > 2 else None
                        given[k], orders[k] = self._reordered(*given[k], operands=NORMALISING[name], orders=known)
        if self._behind:
            self._read_behind(_tensors((args, kwargs)))
        raced = [(t, _raced(func, t, _tensors((args, kwargs)))) for t in written if t.device != HOME]
        result = func(*args, **kwargs)
        with torch.no_grad():
            self._follow(func, result, (given, orders), written, (args, kwargs))
            for t, where in raced:
                self._leave_undecided(t, where)
            if len(parts) == 2:
                self._added(result, parts)
            if reduced is not None:  # `expand` sums a gradient, and what was added to it may come to its operand by itself
                sizes, whole = reduced
                self._sums[_extent(result)] = (func(sizes.reshape(args[0].shape), *args[1:]), whole)
            self._watch(_tensors((args, kwargs, result)), written)
        return result

    def _watch(self, seen: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """Note what was written without the version of a tensor with gradients there having moved."""
        for t in written if not any(t.is_inference() for t in written) else ():
            place = t.untyped_storage()._cdata
            watched, version = self._watched.get(place, (t, t._version))
            if watched is not t and watched._version == version and not t.requires_grad:
                self._behind[place] = torch.autograd._get_sequence_nr()
        for t in seen:
            if t.requires_grad and not t.is_inference():
                self._watched[t.untyped_storage()._cdata] = t, t._version

    def _read_behind(self, operands: list[torch.Tensor]) -> None:
        """Whether a node of autograd reads what was written so after it was made."""
        node = torch._C._current_autograd_node()
        if node is not None:
            made = node._sequence_nr()
            self.behind |= any(made < self._behind.get(t.untyped_storage()._cdata, 0) for t in operands)

    def _follow(self, func: Any, result: Any, twins: Any, written: list[torch.Tensor], original: Any) -> None:
        """Compute ``func`` on the twins (and the order in which they are given) and note what they become."""
        given, orders = twins
        outs = [t for t in _tensors(result) if not t.is_meta]
        fresh = [t for t in outs if t.untyped_storage()._cdata not in self._storages]
        if not fresh and not written and outs:
            return
        if func._schema.name.startswith("aten::_scaled_dot_product") and any(map(overlaps, _tensors(original))):
            self.lost.add(func._schema.name)  # eager's kernels for a CPU read beside operands that share elements
            self._give_up(result, outs, written)
            return
        answers: list[Any] = []
        moved = func._schema.name in MOVING
        before = None
        if given is not None and self.count > 1 and _is_extremum(func, original):
            before = _copies(given) if written else given
        if given is not None:
            try:
                answers = _computed(func, given, next((t.device for t in _tensors(original)), HOME))
                if func._schema.name in DETOURS:
                    answers[2:] = [self._narrow(func, given[k], original, k, moved=True) for k in range(2, self.count)]
                if torch.Tag.pointwise in func.tags and not written or any(p in func._schema.name for p in RUNNING_MEAN):
                    self._with_own_kernels(func, answers, given, original)
                if torch.Tag.pointwise in func.tags and not written and self.count > 1:
                    answers[0] = _zeros_by_vectors(func, answers[0], given[0])
                self._with_inner_sums(func, answers, given, original)
                if before is not None:
                    self._with_either_extremum(func, answers, before)
                if func._schema.name in COMPARISONS and self.count > 1:
                    _with_either_order(answers, given)
                answers = [_restored(answer, order) for answer, order in zip(answers, orders, strict=True)]
            except Exception:
                answers = [] if written else self._narrowly(func, given, original)
                moved = False
            if not answers or fresh and any(len(_tensors(answer)) != len(outs) for answer in answers):
                self.lost.add(func._schema.name)
                self._give_up(result, outs, written)
                return
        if written:
            if answers:
                self._resize(written, given, original)
            self._written(written, bool(answers), moved, func._schema.name)
        elif not outs:
            self._scalar(result, answers)
        if fresh:
            self._created(outs, answers, given is None or moved, func._schema.name, self._rounds_inside(func, original))

    def _narrowly(self, func: Any, given: Any, original: Any) -> list[Any]:
        """The twins' results of an operator that has no kernel for 64 bits, in the types of its own operands.

        The exact runs take them as they are, the others each moved by a unit.
        """

        try:
            return [self._narrow(func, twins, original, k, moved=k > 1) for k, twins in enumerate(given)]
        except Exception:
            return []

    def _narrow(self, func: Any, given: Any, original: Any, k: int, moved: bool) -> Any:
        def narrow(value: Any, twin: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if moved and _floating(value.dtype):
                twin = self._disturbed(twin, None, unit(value.dtype))
            if moved:
                return torch.empty_like(value).copy_(twin)
            own = twin.to(value.device, value.dtype).contiguous()
            return _apart(own) if k % 4 == 3 and torch.Tag.pointwise in func.tags else own

        args, kwargs = _mapped(narrow, original, tuple(given))
        return _moved_to(HOME, func(*args, **kwargs))

    def _with_own_kernels(self, func: Any, answers: list[Any], given: Any, original: Any) -> None:
        """Half of the rounded runs' answers become those of eager's own kernels, by vectors and one by one."""
        operands = [t for t in _tensors(original) if _floating(t.dtype)]
        if any(part in func._schema.name for part in ACCUMULATING) and all(t.dtype == torch.float32 for t in operands):
            for k in range(3, self.count, 2):
                answers[k] = self._narrow(func, given[k], original, k, moved=False)

    def _with_inner_sums(self, func: Any, answers: list[Any], given: Any, original: Any) -> None:
        """Have the rounding of an operator's inner terms count, and a zero's sign of sums of several terms be either."""
        name = func._schema.name
        if name in ADDING_ONE:
            step = _inner(original[0][0].dtype)
            for k in range(2, self.count):
                factor = given[k][0][ADDING_ONE[name]]
                answers[k] = answers[k] + self._random(factor) * factor * step
        for k in range(2, self.count) if name in ONE_SIDED else ():
            side = self._random(torch.empty((), device=HOME)) * _inner(original[0][0].dtype) / 2
            answers[k] = answers[k] + answers[k] * side
        if name == "aten::mul" and torch._C._current_graph_task_id() != -1:
            self._by_summands(answers, original)
        for k in range(2, self.count) if name in INNER_SIZES else ():
            answers[k] = answers[k] + self._random(answers[k]) * INNER_SIZES[name] * _inner(original[0][0].dtype)
        if name in ANY_ORDER and original[0][0].dtype == torch.float64 and self.count > 1:
            answers[0] = _by_two_passes(func, answers[0], *given[0])
        if name in ("aten::var_mean", "aten::std_mean") and self.count > 1:
            # A running mean that comes to an infinity is NaN from its next number on, the mean is not.
            variance, mean = answers[1]
            dims = given[1][0][1] if len(given[1][0]) > 1 and isinstance(given[1][0][1], (list, tuple)) else None
            whole = given[1][0][0].mean(dims, keepdim=True).reshape(mean.shape)
            answers[1] = (variance, mean.where(mean.isfinite(), whole))
        if name in SUMS and self.count > 1 and original[0][0].is_floating_point():
            answers[1:3] = _in_other_orders(func, answers[1:3], *given[0], dtype=original[0][0].dtype)
        if name == "aten::prod" and self.count > 1 and _floating(original[0][0].dtype):
            answers[1] = _largest_first(func, original[0][0].dtype, *given[1])
        if name == "aten::linalg_cross" and self.count > 1:
            answers[1] = _rounded_products(*given[1][0], **given[1][1])
        if name in SOFTMAX_GRADIENTS and self.count > 1:
            grad, result, dim, *dtype = given[1][0]
            column = func(grad.unsqueeze(-1), result.unsqueeze(-1), dim % max(grad.dim(), 1), *dtype)
            answers[1] = column.squeeze(-1)
        if name in NORM_GRADIENTS and _inner(original[0][1].dtype) == unit(original[0][1].dtype):
            for k in range(2, self.count):
                (grad, _, *rest), named = given[k]
                answers[k] = func(grad, given[k + 1 if k + 1 < self.count else 2][0][1], *rest, **named)
        if name in NORM_GRADIENTS and self.count > 1:
            # Which infinities meet, and are NaN, is a matter of how the formula is written.
            answers[1] = _mapped(_other_than_finite, answers[1])
        if name in NORM_GRADIENTS:
            step = _inner(original[0][1].dtype)
            for answer in answers[2:]:
                if isinstance(answer[0], torch.Tensor):
                    answer[0].add_(_inner_roundings(func, *given[0], self._random) * step)
        if name in PRODUCTS and self.count > 2 and original[0][0].dtype == torch.float32:
            alpha = given[2][1].get("alpha", 1)
            answers[2] = answers[2] + alpha * _one_by_one(*(given[2][0][k] for k in PRODUCTS[name]))
        if name == "aten::signbit" and self.count > 1:  # no kernel promises the sign of what is not a number
            answers[1::2] = [answer ^ given[1][0][0].isnan() for answer in answers[1::2]]
        if name in ("aten::copysign", "aten::copysign_") and self.count > 1:
            for (args, kwargs), answer in list(zip(given, answers, strict=True))[1::2]:
                other = args[1] if len(args) > 1 else kwargs["other"]
                if isinstance(other, torch.Tensor):  # a number's sign is known
                    answer.copy_(answer.where(~other.isnan(), -answer))
        if name == "aten::_efficientzerotensor":  # all zeros, whose signs no operator after it asks for
            answers[:] = [answer.clone() for answer in answers]
        if name in TERMS and self.count > 1:
            answers[1] = _mapped(lambda t: t.where(t != 0, -t) if isinstance(t, torch.Tensor) else t, answers[1])
            for k in range(2, self.count):  # each element's terms have signs of their own
                answers[k] = _mapped(self._either_zero, answers[k])

    def _with_either_extremum(self, func: Any, answers: list[Any], before: list[Any]) -> None:
        """Where an extremum is a zero and there were zeros of both signs, either is an answer."""
        for k, answer in enumerate(answers):
            if not any(bool((t == 0).any()) for t in _tensors(answer)):
                continue
            both = [_tensors(_signs_by(larger, func, before[k])) for larger in (1.0, -1.0)]
            for t, one, other in zip(_tensors(answer), *both, strict=True):
                sign = (one, other)[k] if k < 2 else one.where(self._random(t) > 0, other)
                t.copy_(t.where(t != 0, torch.zeros_like(t).copysign(sign)))

    def _either_zero(self, t: Any) -> Any:
        """The numbers, of which zeros have either sign."""
        signed = isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())
        return t.where(t != 0, t * self._random(t).sign()) if signed else t

    def _parts(self, t: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Of a gradient: the sum of the sizes of all that was added to it, and whether each order gives the same."""
        total, whole = self._sums.get(_extent(t)) or (_solid(t.detach()).to(HOME).abs(), self._grid(t))
        return total.reshape(t.shape), whole

    def _added(self, total: torch.Tensor, parts: list[tuple[torch.Tensor, bool]]) -> None:
        (a, whole), (b, other) = parts
        if a.shape != b.shape or not total.is_floating_point() or overlaps(total):
            return
        self._sums[_extent(total)] = (a + b, whole and other)
        if not (whole and other):
            for base in self._bases(total)[2:]:
                view = self._view(base, total)
                view.copy_(_fitted(view + self._random(view) * (a + b) * unit(total.dtype), total.dtype))

    def _by_summands(self, answers: list[Any], original: Any) -> None:
        """Zeros that a gradient is multiplied to have either sign where gradients of both signs were added up before: each
        may be multiplied by itself, and of a zero of each sign the sum is 0."""
        for t in _tensors(original):
            sizes, _ = self._sums.get(_extent(t), (None, False))
            if sizes is not None and self.count > 1 and t.is_floating_point():
                both = t.detach().to(HOME).abs() < sizes.reshape(t.shape) * (1 - 4 * unit(t.dtype))
                for k in range(2, self.count, 2):
                    answers[k] = answers[k].where((answers[k] != 0) | ~both, -answers[k])

    def _give_up(self, result: Any, outs: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """Leave undecided what an operator has made or written that could not be followed."""
        if not outs and not written and result is not None:
            self.unstable = True
        for t in [*outs, *written]:
            bases = self._bases(t)
            if not _floating(t.dtype) or overlaps(t):
                self.unstable = True
            else:
                for base in bases[:-1]:
                    self._view(base, t).copy_(t.detach())
                other = torch.full_like(t, complex("nan+nanj") if t.is_complex() else float("nan"))
                self._view(bases[-1], t).copy_(other.where(~t.isnan(), torch.zeros_like(t)))

    def _stir(self, t: torch.Tensor) -> None:
        """Move what is written where it is, before an operator reads it."""
        for base in self._bases(t)[2:] if not overlaps(t) else ():
            view = self._view(base, t)
            view.copy_(self._disturbed(view, None, _inner(t.dtype)))

    def _leave_undecided(self, t: torch.Tensor, where: torch.Tensor) -> None:
        """These elements of the memory of what was written are whichever thread's came last."""
        bases = self._bases(t)
        if bool(where.any()):
            nothing = complex("nan+nanj") if t.is_complex() else float("nan")
            bases[-1][where] = nothing if _floating(t.dtype) else ~bases[-1][where]
            self.raced = True

    def _scalar(self, result: Any, answers: list[Any]) -> None:
        """Numbers that leave the tensors: where the twins disagree on an integer, the program's path is rounding's."""
        if isinstance(result, (bool, int)) and any(a != answers[0] for a in answers):
            self.unstable = True

    def _resize(self, written: list[torch.Tensor], given: Any, original: Any) -> None:
        """Give what was made larger by being written (``out=``) twins of its size, which have what theirs became."""
        for t, *twins in zip(_tensors(original), *map(_tensors, given), strict=True):
            storage = t.untyped_storage()
            count = storage.nbytes() // t.dtype.itemsize
            _, former, held = self._storages[storage._cdata]
            if former[0].numel() >= count or held != t.dtype or not any(t is w for w in written):
                continue
            bases = [_flat(t, count).to(HOME, wide(t.dtype), copy=True) for _ in former]
            for base, before, twin in zip(bases, former, twins, strict=True):
                base[: before.numel()] = before
                self._view(base, t).copy_(twin)
            self._storages[storage._cdata] = (storage, bases, held)

    def _written(self, outs: list[torch.Tensor], followed: bool, moved: bool, name: str) -> None:
        for t in outs:
            bases = self._bases(t)
            if not followed:
                real = t.detach()
                for base in bases:
                    self._view(base, t).copy_(real)
            elif not moved and _floating(t.dtype) and t.numel() and not overlaps(t):
                first = self._view(bases[0], t)
                rounded = _rounded(t.detach().to(HOME), first)
                for base in bases[2:]:
                    view = self._view(base, t)
                    view.copy_(_fitted(self._disturbed(view, rounded | (view != first), unit(t.dtype)), t.dtype))
                self._overflow(bases, t, name)
            elif _floating(t.dtype) and t.numel() and not overlaps(t):
                for base in bases[2:]:
                    view = self._view(base, t)
                    view.copy_(_fitted(view, t.dtype))

    def _rounds_inside(self, func: Any, original: Any) -> bool:
        """Whether an operator on 64-bit numbers rounds on its way, so that a result may look exact and be none."""
        operands = [t for t in _tensors(original) if _floating(t.dtype)]
        exact = all(wide(t.dtype) == t.dtype for t in operands)
        return bool(operands) and exact and bool(self._moving(func._schema.name, operands))

    def _created(
        self, outs: list[torch.Tensor], answers: list[Any], exact: bool, name: str, inside: bool = False
    ) -> None:
        columns = [_tensors(answer) for answer in answers]
        for i, t in enumerate(outs):
            storage = t.untyped_storage()
            if storage._cdata in self._storages:
                continue
            real = _solid(t.detach()).to(HOME)
            count = storage.nbytes() // t.dtype.itemsize
            bases = []
            first = _solid(columns[0][i]) if columns else real.to(wide(t.dtype))
            same = columns and first.shape == t.shape
            if columns and not _floating(t.dtype):
                self.split |= any(not torch.equal(column[i], columns[0][i]) for column in columns[1:])
            disturbed = self.count > 1 and not exact and _floating(t.dtype)
            rounded = _rounded(real, first) | inside if same and disturbed else None
            shared = overlaps(t)
            loose = shared and same and any(not torch.equal(_solid(column[i]), first) for column in columns[1:])
            for k in range(self.count):
                value = _solid(columns[k][i]) if columns else first
                if value.shape != t.shape:
                    self.unstable = True
                    value = real.to(wide(t.dtype))
                base = torch.zeros(count, dtype=wide(t.dtype), device=HOME)
                if k > 1 and disturbed and _floating(value.dtype):
                    value = value.to(wide(t.dtype))
                    inexact = rounded | (value != first) if rounded is not None else None
                    value = self._disturbed(value, inexact, unit(t.dtype))
                if k > 1:
                    value = _fitted(value, t.dtype)
                if not shared:
                    torch.as_strided(base, t.size(), t.stride(), t.storage_offset()).copy_(value)
                else:
                    base = _flat(t, count).to(HOME, wide(t.dtype))
                    if loose and k == self.count - 1 and _floating(t.dtype):  # which of its numbers are rounded is not known
                        base.fill_(float("nan"))
                bases.append(base)
            self._storages[storage._cdata] = (storage, bases, t.dtype)
            if columns and _floating(t.dtype) and _inner(t.dtype) == unit(t.dtype):  # halves are kept as they were rounded
                twins = sum(1 << k for k in range(6, self.count, 4) if self._coin.getrandbits(1))
                self._made[storage._cdata] = torch._C._current_graph_task_id(), twins
            self._overflow(bases, t, name)

    def _overflow(self, bases: list[torch.Tensor], t: torch.Tensor, name: str = "") -> None:
        """Numbers of exact runs beyond the largest of 32 bits are infinite; products become so in the second of these when
        something else than an addition reads them."""
        if t.dtype in (torch.bfloat16, torch.float32) and not overlaps(t):
            for k, base in enumerate(bases[:2]):
                view = Shadow._view(base, t)
                limited = _limited(view, t.dtype)
                if k == 1 and name in PRODUCTS_BETWEEN:
                    self._beyond |= limited is not view
                else:
                    view.copy_(limited)


def _limited(view: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers, infinite where they are beyond a real type's largest."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return view
    beyond = view.abs() > torch.finfo(dtype).max * (1 + unit(dtype) / 4)
    return view.where(~beyond, view * float("inf")) if bool(beyond.any()) else view


def _fitted(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers rounded to some that the type has, as they are otherwise."""
    return value.to(dtype).to(value.dtype) if _floating(dtype) else value


def _retyped(base: torch.Tensor, held: torch.dtype, dtype: torch.dtype, odd: int) -> torch.Tensor:
    """A twin of memory that holds one type, as the twin of the same memory seen as another; of parts of complex numbers
    a view, else a copy. What is not a number has other bits in ``odd`` runs: no kernel promises which."""
    if wide(held).is_complex and wide(held).to_real() == wide(dtype):
        return torch.view_as_real(base).flatten()
    if wide(dtype).is_complex and wide(dtype).to_real() == wide(held):
        return torch.view_as_complex(base[: base.numel() // 2 * 2].view(-1, 2))
    numbers = base.to(held)
    if odd and held.is_floating_point:
        numbers = numbers.where(~numbers.isnan(), -numbers)
    octets = numbers.view(torch.uint8)
    return octets[: octets.numel() // dtype.itemsize * dtype.itemsize].view(dtype).to(wide(dtype))


def _place(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata, t.shape, t.stride(), t.storage_offset()


def _extent(t: torch.Tensor) -> Any:
    """Where a tensor is; a view of all of a contiguous one is there too, whatever its shape."""
    return (t.untyped_storage()._cdata, t.numel(), t.storage_offset()) if t.is_contiguous() else _place(t)


def _moved_to(device: torch.device, value: Any) -> Any:
    """Tensors, and the devices that operators are told, on another device."""
    return _mapped(
        lambda v: v.to(device) if isinstance(v, torch.Tensor) else device if isinstance(v, torch.device) else v, value
    )


def _ordered(twin: torch.Tensor, orders: dict[int, torch.Tensor]) -> torch.Tensor:
    """The numbers in another order along each dimension."""
    for d, order in orders.items():
        twin = twin.index_select(d, order)
    return twin


def _restored(answer: Any, orders: dict[int, torch.Tensor]) -> Any:
    """Results of which the first has an order that its operand was given, in the operand's own."""
    return (_ordered(answer[0], {d: o.argsort() for d, o in orders.items()}), *answer[1:]) if orders else answer


def _apart(twin: torch.Tensor) -> torch.Tensor:
    """The same numbers with gaps between them."""
    return torch.stack([twin, twin], -1)[..., 0]


def _other_than_finite(t: Any) -> Any:
    """The numbers, those that are not finite changed from NaN to an infinity and back."""
    if not isinstance(t, torch.Tensor):
        return t
    return torch.where(t.isfinite(), t, torch.where(t.isnan(), float("inf"), float("nan")))


def _zeros_by_vectors(func: Any, answer: Any, given: Any) -> Any:
    """A pointwise operator's result whose zeros are those that its kernel gives where there is a vector of elements."""
    if not isinstance(answer, torch.Tensor) or not answer.is_floating_point() or not bool((answer == 0).any()):
        return answer
    args, kwargs = _mapped(
        lambda v: v.unsqueeze(-1).expand(*v.shape, 64).contiguous() if isinstance(v, torch.Tensor) else v, given
    )
    many = func(*args, **kwargs)[..., 0]
    return answer.where((answer != 0) | (many != 0), many) if many.shape == answer.shape else answer


def _rounded_products(x: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """A vector product both of whose products are rounded: of a vector and itself it is zero, as the exact one is."""
    x, y = torch.broadcast_tensors(x, y)
    return x.roll(-1, dim) * y.roll(-2, dim) - x.roll(-2, dim) * y.roll(-1, dim)


def _largest_first(func: Any, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    """A product whose factors above 1 come first: beyond the type's largest number it is infinite, and stays so, or is
    NaN, whatever comes then. In which order kernels multiply is theirs."""
    x, *rest = args
    above, below = (func(x.where(which, 1.0), *rest, **kwargs) for which in (x.abs() > 1, ~(x.abs() > 1)))
    return _limited(above, dtype) * below.where(below.to(dtype) != 0, below * 0)


def _by_two_passes(func: Any, answer: Any, args: Any, kwargs: Any) -> Any:
    """A variance or deviation (and mean) of 64-bit numbers by their mean and then the squares of what they differ from it.

    Sums that are halved again and again are nearly exact; a running mean is off by the more the more numbers there are.
    """
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    x, dims = named["self"], named.get("dim")
    if x.numel() == 0:
        return answer
    mean = x.mean(dims, keepdim=True)
    count = x.numel() // mean.numel()
    correction = named.get("correction", 1) if "correction" in named else int(named.get("unbiased", True))
    off = x - mean
    keep = bool(named.get("keepdim", False))
    squares = (off * off).sum(dims, keepdim=keep) - off.sum(dims, keepdim=keep) ** 2 / count
    result = squares / max(count - (1 if correction is None else correction), 0)
    result = result.sqrt() if "std" in func._schema.name else result
    first = answer[0] if isinstance(answer, tuple) else answer
    result = result.reshape(first.shape).where(first.isfinite() & result.isfinite().reshape(first.shape), first)
    return (result, *answer[1:]) if isinstance(answer, tuple) else result


def _in_other_orders(func: Any, answers: list[Any], args: Any, kwargs: Any, dtype: torch.dtype) -> list[Any]:
    """Two runs of a sum of numbers of a type, that agree where partial sums overflow only if every order gives the same.

    One comes to an infinity only where the whole sum does, the other where the numbers of one sign do by themselves.
    """
    x, *rest = args
    largest = torch.finfo(dtype if dtype == torch.float64 else torch.float32).max
    size = float(x.abs().nan_to_num(posinf=0.0).max()) if x.numel() else 0.0
    if size * x.numel() <= largest or not answers[0].is_floating_point():
        return answers
    shrunk = 2.0 ** -math.ceil(math.log2(x.numel()) + 1)
    terms = x.numel() // answers[0].numel() if func._schema.name == "aten::mean" else 1  # it divides the sum, at last
    whole = func(x * shrunk, *rest, **kwargs) / shrunk
    apart = torch.zeros_like(whole)
    for sign in (1, -1):
        part = func(x.where(x.isnan() | (x * sign > 0), 0) * shrunk, *rest, **kwargs)
        apart = apart + (part / shrunk).where((part * terms).abs() <= largest * shrunk, part * math.inf)
    same = (whole == apart) | whole.isnan()
    return [answer.where(same, other) for answer, other in zip(answers, (whole, apart), strict=True)]


def _one_by_one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | float:
    """By how much a product differs whose float32 terms are added one after the other, as libraries do for some layouts: of
    terms of one sign the errors have one sign too. 0.0 for a product of many terms."""
    row, column = a.dim() == 1, b.dim() == 1
    a, b = a.unsqueeze(-2) if row else a, b.unsqueeze(-1) if column else b
    terms = a.shape[-1]
    if terms > LONGEST or terms * a.numel() // max(terms, 1) * b.shape[-1] > MOST:
        return 0.0
    left, right = a.float(), b.float()
    total = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    for k in range(terms):
        total += left[..., k : k + 1] * right[..., k : k + 1, :]
    off = total.double() - a @ b
    off = off.squeeze(-1) if column else off
    return off.squeeze(-1 if column else -2) if row else off


def _inner_roundings(func: Any, args: Any, kwargs: Any, random: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """By how much the gradients of a group may be off, all alike, for the rounding error of their mean's sum, and each for
    that of the product from which the mean is taken.

    A normalisation takes that mean from each, which may be nearly all there is; what sums the group up again collects the
    mean's error.
    """
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    grad, weight = named["grad_out"], named.get("weight")
    if "normalized_shape" in named:
        size = (grad * (1 if weight is None else weight)).abs() * named["rstd"].abs()
        mean = size.mean(tuple(range(-len(named["normalized_shape"]), 0)), keepdim=True)
        return mean * random(mean) + size * random(size)
    channels = (1, -1, *[1] * (grad.dim() - 2))
    size = (grad * (1 if weight is None else weight.reshape(channels))).abs()
    if "group" in named:
        size = size.reshape(named["rstd"].numel(), -1) * named["rstd"].reshape(-1, 1).abs()
        mean = size.mean(1, keepdim=True)
        return (mean * random(mean) + size * random(size)).reshape(grad.shape)
    if not named["train"] or named["save_invstd"] is None:
        return torch.zeros_like(size)
    size = size * named["save_invstd"].reshape(channels).abs()
    mean = size.mean([d for d in range(grad.dim()) if d != 1], keepdim=True)
    return mean * random(mean) + size * random(size)


def _with_limits(func: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """The operands of what puts the largest number of eager's type, which is not a twin's, in an infinity's place."""
    largest = torch.finfo(dtype).max
    limits = {"posinf": largest, "neginf": -largest}
    names = [a.name for a in func._schema.arguments]
    given = [limits.get(name) if value is None else value for name, value in zip(names, args, strict=False)]
    missing = {name: limit for name, limit in limits.items() if name not in names[: len(args)]}
    return tuple(given), missing | {name: value for name, value in kwargs.items() if value is not None}


def _with_either_order(answers: list[Any], given: Any) -> None:
    """Leave undecided how numbers compare whose twins lie on both sides of each other, though none may be equal: what lies
    between fused operators is not rounded, and may be."""
    if any(isinstance(x, torch.Tensor) and x.is_complex() for x in given[0][0]):
        return
    pairs = [(*args, *kwargs.values()) for args, kwargs in given]
    apart = torch.stack([torch.as_tensor(x).double() - torch.as_tensor(y).double() for x, y in pairs])
    either = (apart.amin(0) <= 0) & (apart.amax(0) >= 0) & (apart != 0).any(0)
    answers[-1] = answers[-1].where(~either, ~answers[0])


def _is_extremum(func: Any, given: Any) -> bool:
    """Whether it is one of numbers of which any zero may stay."""
    name = func._schema.name
    if not all(t.is_floating_point() for t in _tensors(given[0])[:1]):
        return False
    if name in EXTREMA_BY_NAME:
        return any(isinstance(kind, str) and kind in ("amax", "amin") for kind in (*given[0], *given[1].values()))
    return name in EXTREMA and func._overloadname in ("default", "out", "unary_out")


def _copies(given: Any) -> Any:
    """Operands as they are, before one of them is written."""
    return _mapped(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, given)


def _signs_by(larger: float, func: Any, given: Any) -> Any:
    """What an extremum would be, its zeros too small numbers with the sign of those that it is of, where the zero of a sign
    (``larger``: 1.0 or -1.0) is larger than the other."""
    least = 5e-324  # no number of the twins lies between it and zero

    def told_apart(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.where(value != 0, torch.full_like(value, least).copysign(value) * larger)

    args, kwargs = _mapped(told_apart, given)
    return _mapped(lambda t: t * larger if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))


def _raced(func: Any, t: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor:
    """Which elements of a written tensor's memory several threads of a GPU may write, or one writes and others read.

    Elements that are written twice are, and those that an operator which is not element-wise (or another element) reads.
    """
    times = _times(t)
    raced = times > 1
    first = next(i for i, o in enumerate(operands) if o is t)
    for i, o in enumerate(operands):
        shared = i != first and o.dtype == t.dtype and o.untyped_storage()._cdata == t.untyped_storage()._cdata
        if shared and not (torch.Tag.pointwise in func.tags and _place(o) == _place(t)):
            raced |= (times > 0) & (_times(o) > 0)
    return raced


def _times(t: torch.Tensor) -> torch.Tensor:
    """How often each element of its memory is in a tensor."""
    place = torch.full(t.shape, t.storage_offset())
    for d, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        place += (torch.arange(size) * stride).view(-1, *[1] * (t.dim() - d - 1))
    return torch.bincount(place.flatten(), minlength=t.untyped_storage().nbytes() // t.dtype.itemsize)


def _computed(func: Any, given: Any, device: torch.device) -> list[Any]:
    """The operator's results on the twins; what it makes without being told a type is of 64 bits.

    What has no kernel where the twins are is computed on ``device``, and what it writes to them is brought back.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        answers = []
        for args, kwargs in given:
            if "half_to_float" in str(func._schema):
                args = [False if i == 2 else value for i, value in enumerate(args)]
            try:
                answers.append(func(*args, **kwargs))
            except Exception:
                if device == HOME:
                    raise
                moved = _moved_to(device, (args, kwargs))
                answers.append(_moved_to(HOME, func(*moved[0], **moved[1])))
                for twin, there in zip(_tensors((args, kwargs)), _moved_to(HOME, _tensors(moved)), strict=True):
                    if not overlaps(twin) and not torch.equal(twin, there):
                        twin.copy_(there)
        return answers
    finally:
        torch.set_default_dtype(default)


def _rounded(real: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where eager had to round; of 64-bit numbers, all but small multiples of 1/4 may be such."""
    if real.dtype != exact.dtype:
        return real.to(exact.dtype) != exact
    parts = torch.view_as_real(exact.resolve_conj().resolve_neg()) if exact.is_complex() else exact
    rounded = ((parts * 4).round() != parts * 4) | (parts.abs() > 2.0**20)
    return rounded.any(-1) if exact.is_complex() else rounded


def _solid(t: torch.Tensor) -> torch.Tensor:
    """A tensor with memory in place of autograd's zeros that have none."""
    return torch.zeros(t.shape, dtype=t.dtype, device=t.device) if t._is_zerotensor() else t


def _flat(t: torch.Tensor, count: int) -> torch.Tensor:
    """The whole storage of a tensor, in its type; autograd's zeros that take no memory are zeros."""
    if t._is_zerotensor():
        return torch.zeros(count, dtype=t.dtype, device=t.device)
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), 0, (count,), (1,))


def _tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among an operator's operands or results, which are tuples, lists and dicts at most."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [t for value in values for t in _tensors(value)]


def _mapped(change: Callable[..., Any], value: Any, *others: Any) -> Any:
    """A structure of equal ones' leaves, as :func:`torch.utils._pytree.tree_map` makes it, in a fraction of its time."""
    if isinstance(value, dict):
        return {key: _mapped(change, part, *(other[key] for other in others)) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_mapped(change, *together) for together in zip(value, *others, strict=True)]
        return parts if isinstance(value, list) else tuple(parts)
    return change(value, *others)


def _random(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the operator draws random numbers (attention only where it drops something)."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for i, a in enumerate(func._schema.arguments):
        if a.name == "dropout_p":
            return bool(kwargs.get(a.name, args[i] if i < len(args) else 0.0))
    return True


def _averages(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The running averages that a batch norm in training writes, of which its schema says nothing."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    if not named.get("training") or "batch_norm" not in func._schema.name or func._schema.is_mutable:
        return []
    return [t for t in (named.get("running_mean"), named.get("running_var")) if isinstance(t, torch.Tensor)]


def overlaps(t: torch.Tensor) -> bool:
    """Whether two elements share memory, by strides alone."""
    reach = 1
    for step, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach = step * (size - 1) + reach
    return False
