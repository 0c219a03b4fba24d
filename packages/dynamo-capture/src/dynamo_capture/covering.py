"""Whether a new entry of a code object serves every call that an old one serves.

A frame is captured with the sizes of its first call, and again, with symbols, once they change. The second entry then
serves the first one's calls too. That is read from what both assume: each check of the new one is among those of the
old one, or follows from them. A check of sizes follows where it holds for all sizes that the old entry admits: its
symbols are replaced by what the old entry knows of the same places, and the old entry's own conditions decide.

An outline keeps no object alive: it names those of the program by their identities, which are theirs as long as the
old entry is valid.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.sizes import symbol_operands
from dynamo_capture.sources import strides_of
from dynamo_capture.stored.log import ACCESSORS, Row, process_state
from prims.records import record
from prims.spec import expr as ex
from prims.spec.context import SymbolContext
from prims.spec.expr import Expr, bits_of_float
from prims.spec.layout import contiguous_strides

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Outline", "outline"]

#: An object that a guard reads, by the path to it.
Place = int
#: Where a symbol is read: ``("size", place, dim)``, ``("stride", place, dim)`` or ``("int", place, 0)``.
Operand = tuple[str, Place, int]


@record
class TensorOutline:
    """What is checked of a tensor; None in sizes and strides: a symbol, or nothing."""

    facts: tuple[Any, ...]
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    least: int
    contiguous: bool


@record
class Symbols:
    """The symbols of an entry, and what it assumes of them."""

    operands: dict[str, Operand]
    ranges: dict[str, tuple[int, int | None]]
    guards: tuple[Expr, ...]
    strides: dict[tuple[Place, int], Expr]
    equal: tuple[tuple[Operand, Operand], ...]


@record
class Outline:
    """What an entry assumes, to be compared with others of its code object.

    Attributes:
        places: what it looks at.
        made: numbers that are made of an object, by their place: the function and the place of that object.
        checks: checks of one object, and of the process.
        types, values: objects of which the type, and a value, is checked.
        sets: places of different objects, and those of memory that does not overlap.
    """

    places: frozenset[Place]
    made: dict[Place, tuple[Any, Place]]
    checks: frozenset[int]
    types: dict[Place, int]
    values: dict[Place, tuple[Any, Any]]
    tensors: dict[tuple[Place, bool], TensorOutline]
    sets: tuple[tuple[frozenset[Place], ...], ...]
    symbols: Symbols

    def covers(self, old: Outline) -> bool:
        """Whether every call for which the old entry's guards hold is one for which these do."""
        if not (self.places <= old.places and self.checks <= old.checks):
            return False
        if any(old.values.get(place, (None, None))[0] != value for place, (value, _) in self.values.items()):
            return False
        if not all(old.is_of_type(place, cls) for place, cls in self.types.items()):
            return False
        if not all(any(_within(mine, theirs) for theirs in old.sets) for mine in self.sets):
            return False
        known = _Known(old)
        return all(known.tensor(key, tensor, self.symbols) for key, tensor in self.tensors.items()) and known.sizes(
            self.symbols, self.made
        )

    def is_of_type(self, place: Place, cls: int) -> bool:
        """Whether the object there is of the type of that identity."""
        if place in self.types:
            return self.types[place] == cls
        return place in self.values and id(type(self.values[place][1])) == cls


class _Known:
    """What an entry's guards say of sizes and numbers, as expressions of one context."""

    def __init__(self, old: Outline) -> None:
        self.old = old
        self.ctx = SymbolContext()
        self.names: dict[Operand, str] = {}
        symbols = old.symbols
        # Under names of their own: the new entry's are put in their terms.
        own = {name: f"old_{name}" for name in symbols.ranges}
        self.symbols = {ex.symbol(name): ex.symbol(mine) for name, mine in own.items()}
        for name, (low, high) in symbols.ranges.items():
            self.ctx.declare(own[name], None, low, high)
            if name in symbols.operands:
                self.names[symbols.operands[name]] = own[name]
        for guard in symbols.guards:
            self.ctx.assume(ex.substitute(guard, self.symbols))
        for pair in symbols.equal:
            first, second = (self.number(*operand) for operand in pair)
            if first is not None and second is not None:
                self.ctx.assume(ex.eq(first, second))

    def number(self, kind: str, place: Place, dim: int, made: Any = ()) -> Expr | None:
        """A size of a tensor or a number of the frame; None where nothing is known of it."""
        name = self.names.get((kind, place, dim))
        if name is not None:
            return ex.symbol(name)
        if kind == "stride":
            return self.stride(place, dim)
        if kind == "size":
            tensor = self.old.tensors.get((place, False))
            size = None if tensor is None or dim >= len(tensor.sizes) else tensor.sizes[dim]
            return None if size is None else ex.const(size)
        value: Any = self.old.values.get(place, (None, None))[1]
        if place in made:
            fn, held = made[place]
            value = self.old.values.get(held, (None, None))[1]
            value = fn(value) if type(value) in (int, float) else None
        return ex.const(value) if type(value) is int else None

    def stride(self, place: Place, dim: int) -> Expr | None:
        """A stride of a tensor; None where nothing is known of it."""
        tensor = self.old.tensors.get((place, False))
        if tensor is None or dim >= len(tensor.strides):
            return None
        fixed = tensor.strides[dim]
        if fixed is not None:
            return ex.const(fixed)
        if (place, dim) in self.old.symbols.strides:
            return ex.substitute(self.old.symbols.strides[place, dim], self.symbols)
        sizes = [self.number("size", place, d) for d in range(len(tensor.sizes))]
        if not tensor.contiguous or any(size is None for size in sizes):
            return None
        made = contiguous_strides(tuple(self.ctx.make(size) for size in sizes))[dim]  # type: ignore[arg-type]
        return ex.const(made) if type(made) is int else made.expr  # type: ignore[no-any-return]

    def tensor(self, key: tuple[Place, bool], new: TensorOutline, symbols: Symbols) -> bool:
        """Whether a tensor that the old entry admits passes a check of the new one."""
        old = self.old.tensors.get(key)
        if old is None or old.facts != new.facts or len(old.sizes) != len(new.sizes):
            return False
        for mine, theirs in zip(new.sizes, old.sizes, strict=True):
            least = old.least if theirs is None else theirs
            if mine != theirs if mine is not None else least < new.least:
                return False
        for dim, stride in enumerate(new.strides):
            if stride is not None:
                known = self.stride(key[0], dim)
                if known is None or not self.holds(ex.eq(known, ex.const(stride))):
                    return False
        return old.contiguous or not new.contiguous

    def sizes(self, new: Symbols, made: dict[Place, tuple[Any, Place]]) -> bool:
        """Whether the conditions of a new entry hold for all sizes that the old entry admits."""
        found: dict[Expr, Any] = {}
        for name, operand in new.operands.items():
            number = self.number(*operand, made)
            if number is None:
                return False
            low, high = new.ranges[name]
            if not self.holds(ex.ge(number, low)) or (high is not None and not self.holds(ex.le(number, high))):
                return False
            found[ex.symbol(name)] = number
        if not all(self.holds(guard, found) for guard in new.guards):
            return False
        for (place, dim), stride in new.strides.items():
            known = self.stride(place, dim)
            if known is None or not self.holds(ex.eq(known, ex.substitute(stride, found))):
                return False
        for pair in new.equal:
            first, second = (self.number(*operand, made) for operand in pair)
            if first is None or second is None or not self.holds(ex.eq(first, second)):
                return False
        return True

    def holds(self, condition: Expr, found: dict[Expr, Any] | None = None) -> bool:
        """Whether a condition is known; its symbols are those of ``found``, where given."""
        if found is not None:
            if not all(ex.symbol(name) in found for name in condition.free_symbols()):
                return False
            condition = ex.substitute(condition, found)
        return self.ctx.statically_known(condition) is True


def _within(mine: tuple[frozenset[Place], ...], theirs: tuple[frozenset[Place], ...]) -> bool:
    return len(mine) == len(theirs) and all(a <= b for a, b in zip(mine, theirs, strict=True))


def outline(tx: Capture, rows: Iterable[Row]) -> Outline:
    """What a finished capture assumes.

    Args:
        rows: the calls that built its guard tree.
    """
    reader = _Reader()
    for row in rows:
        if row.method in ACCESSORS:
            reader.accessor(row)
        else:
            getattr(reader, row.method, reader.other)(row)
    at = reader.at
    operands = {
        name: (kind, at[node], *rest, 0)[:3] for name, (kind, node, *rest) in symbol_operands(tx).items()
    }  # fmt: skip
    ranges = {info.name: (info.min, info.max) for info in tx.symbols}
    guards = tuple(guard.expr for guard in tx.symbols.guards)
    tree = tx.guards.tree
    strides = {
        (at[source.node(tree)], dim): stride.expr
        for source, found in tx.sizes.stride_guards for dim, stride in found.items()
    }  # fmt: skip
    equal = tuple(
        (("int", at[first.node(tree)], 0), ("int", at[second.node(tree)], 0))
        for first, second in tx.sizes.equal_numbers
    )
    return reader.done(Symbols(operands, ranges, guards, strides, equal))


class _Reader:
    """Reads the rows of a guard tree: nodes become places, objects their identities."""

    def __init__(self) -> None:
        self.at: dict[int, Place] = {}
        self._made: dict[Place, tuple[Any, Place]] = {}
        self._checks: set[int] = set()
        self._types: dict[Place, int] = {}
        self._values: dict[Place, tuple[Any, Any]] = {}
        self._tensors: dict[tuple[Place, bool], TensorOutline] = {}
        self._sets: list[tuple[frozenset[Place], ...]] = []

    def done(self, symbols: Symbols) -> Outline:
        """What they say."""
        places = frozenset(self.at.values()) - self._made.keys()
        return Outline(
            places, self._made, frozenset(self._checks), self._types, self._values, self._tensors,
            tuple(self._sets), symbols,
        )  # fmt: skip

    def accessor(self, row: Row) -> None:
        """A step of a path."""
        if row.method in _ROOTS:
            place = hash((row.method, *map(_token, row.args)))
        else:
            parent = self.at[row.args[0]]
            place = hash((row.method, parent, *map(_token, row.args[1:])))
            if row.method == "call" and row.args[1] in _NUMBERS:
                self._made[place] = row.args[1], parent
            elif parent in self._made:  # one of the strides
                self._made[place] = self._made[parent]
        assert row.result is not None
        self.at[row.result] = place

    def check_type(self, row: Row) -> None:
        """``type(x) is cls``."""
        self._types[self.at[row.args[0]]] = id(row.args[1])

    def check_equals(self, row: Row) -> None:
        """The same type and value; only a number is kept."""
        value = row.args[1]
        self._values[self.at[row.args[0]]] = _token(value), value if type(value) in _SIMPLE else None

    def check_tensor(self, row: Row) -> None:
        """Metadata of a tensor."""
        example = row.args[1]
        sizes, strides = row.kwargs["sizes"], row.kwargs["strides"]
        offset = row.kwargs["storage_offset"]
        with torch._C.DisableTorchFunctionSubclass():
            facts = (
                id(type(example)), id(example.dtype), example.device, id(example.layout), example.requires_grad,
                torch._C._dispatch_keys(example).raw_repr(), example.storage_offset() if offset else None,
            )  # fmt: skip
            dense = example.is_contiguous() and (strides is None or None not in sizes)
        none = (None,) * len(sizes)
        self._tensors[self.at[row.args[0]], offset] = TensorOutline(
            facts, tuple(sizes), none if strides is None else tuple(strides), row.kwargs["min_size"], dense
        )

    def check_lambda(self, row: Row) -> None:
        """A function of the object, which is told by its text."""
        self._checks.add(hash((row.method, self.at[row.args[0]], row.kwargs["text"])))

    def check_function(self, row: Row) -> None:
        """A function of a code and globals."""
        fn = row.args[1]
        self._checks.add(hash((row.method, self.at[row.args[0]], id(fn.__code__), id(fn.__globals__))))

    def check_same(self, row: Row) -> None:
        """The same object in two places."""
        self._checks.add(hash((row.method, *sorted(self.at[node] for node in row.args))))

    def check_distinct(self, row: Row) -> None:
        """Different objects."""
        self._sets.append((frozenset(self.at[node] for node in row.args[0]),))

    def check_together(self, row: Row) -> None:
        """A function of several objects, which is told by its text."""
        self._checks.add(hash((row.method, *(self.at[node] for node in row.args[0]), row.kwargs["text"])))

    def check_no_overlap(self, row: Row) -> None:
        """Tensors that share no memory."""
        self._sets.append(tuple(frozenset(self.at[node] for node in nodes) for nodes in row.args))

    def check_global_state(self, row: Row) -> None:
        """torch's modes."""
        self._checks.add(hash((row.method, *map(_token, process_state().items()))))

    def check_call(self, row: Row) -> None:
        """A function of the process, which is told by its text."""
        self._checks.add(hash((row.method, row.kwargs["text"], _token(row.args[1]))))

    def check_subclasses(self, row: Row) -> None:
        """Answers of ``issubclass``."""
        self._checks.update(hash((row.method, *map(_token, asked))) for asked in row.args[2])

    def check_shape(self, row: Row) -> None:
        """Sizes, whose conditions are read as expressions."""

    def collect(self, row: Row) -> None:
        """What the entry's code is given."""

    def other(self, row: Row) -> None:
        """A check of one object against a value, or another object."""
        self._checks.add(hash((row.method, self.at[row.args[0]], *map(_token, row.args[1:]))))


_ROOTS = frozenset(("local", "closure", "closure_cell", "global_", "globals_dict", "builtin", "constant"))
_SIMPLE = frozenset((int, float, bool, str, bytes, type(None)))
#: Descriptions that are equal where their texts are, and are made anew.
_OF_VALUE = frozenset((torch.device, torch.finfo, torch.iinfo))
#: Functions whose results are numbers that a graph takes, or hold such.
_NUMBERS: frozenset[Callable[..., Any]] = frozenset((bits_of_float, operator.index, strides_of))


def _token(value: Any) -> Any:
    """What stands for a value in a comparison: simple values for themselves, of other objects their identity."""
    cls = type(value)
    if cls in _SIMPLE or cls in _OF_VALUE:
        return f"{cls.__name__} {value!r}"
    if cls in (tuple, list, set, frozenset):
        items = map(_token, value)
        return (cls.__name__, frozenset(items) if cls in (set, frozenset) else tuple(items))
    if cls is slice:
        return ("slice", _token(value.start), _token(value.stop), _token(value.step))
    return id(value)
