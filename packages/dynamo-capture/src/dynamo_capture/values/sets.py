"""Sets of values, walked in the order in which CPython walks them.

The order of a set follows from the hashes of its elements and from everything that was done to it. So a set keeps a
real set of stand-ins whose hashes are the elements', and does to it what the program does. A log of that makes the
program's set, with the same order, where it lives on.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue, key_error, method_of_container
from dynamo_capture.values.identity import HashedKey, keyed
from dynamo_capture.values.iterators import IteratorValue, iterator_at, iterator_over
from prims.records import record

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["KeysView", "SetValue", "operand_of", "settle_late_sets"]

#: Steps and elements of a set's log, at most, that emitted code repeats.
_LONGEST_LOG = 20_000

_OPERATORS: dict[str, Callable[..., Any]] = {
    "set": set, "frozenset": frozenset, "__or__": operator.or_, "__and__": operator.and_, "__sub__": operator.sub,
    "__xor__": operator.xor,
}  # fmt: skip
_IN_PLACE = frozenset(("update", "intersection_update", "difference_update", "symmetric_difference_update"))
_OPERATORS_IN_PLACE = {"__ior__": "update", "__iand__": "intersection_update", "__isub__": "difference_update",
                       "__ixor__": "symmetric_difference_update"}  # fmt: skip
_ALGEBRA = {"__or__": False, "__and__": False, "__sub__": False, "__xor__": False, "__ror__": True, "__rand__": True,
            "__rsub__": True, "__rxor__": True}  # fmt: skip
_NEW = frozenset(("union", "intersection", "difference", "symmetric_difference"))
_QUESTIONS = frozenset(("issubset", "issuperset", "isdisjoint"))
_COMPARISONS = frozenset(("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"))
_ONE_OPERAND = frozenset(("symmetric_difference", "symmetric_difference_update", *_QUESTIONS))


_stamps = itertools.count()


class Token:
    """An element in a real set: its value, with the hash and equality of the object it stands for."""

    __slots__ = ("_hash", "key", "value")

    def __init__(self, tx: Capture, value: Value, place: str | None = "set element") -> None:
        self.value = value.realize()
        self.key = keyed(tx, self.value, place)
        self._hash = hash(self.key)

    @classmethod
    def of_constant(cls, constant: Any, value: Value) -> Token:
        """The token of an object that never changes."""
        self = cls.__new__(cls)
        self.key, self.value, self._hash = constant, value, hash(constant)
        return self

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Token):
            return NotImplemented
        return self.key is other.key or bool(self.key == other.key)


def _hash_is_known(tx: Capture, value: Value) -> bool:
    """Whether the object's hash, as it is known now, is that of every call that the guards let in."""
    from dynamo_capture.values.callables import BuiltinValue, ClassValue, PyModuleValue
    from dynamo_capture.values.functions import FunctionValue
    from dynamo_capture.values.objects import ObjectValue
    from dynamo_capture.values.tensor import SymValue

    value = value.realize()
    if type(value) in (ConstantValue, BuiltinValue, ClassValue, PyModuleValue) or isinstance(value, SymValue):
        return True
    if type(value) is TupleValue:
        return all(_hash_is_known(tx, item) for item in value.items)
    if isinstance(value, SetValue):
        return value.orderly or value.source is not None
    is_fixed = value.source is None or value.source.is_fixed
    if isinstance(value, FunctionValue):
        return is_fixed and value.fn is not None
    if isinstance(value, ObjectValue):
        if isinstance(value.key(tx), HashedKey):
            return True  # it was asked for, and what it rests on is guarded
        return is_fixed and value.obj is not None and type(value.obj).__hash__ is object.__hash__
    return False


@record
class SetState:
    """A set as it was when so many steps had been done to it."""

    owner: SetValue
    steps: int


@record
class KeysView:
    """A dict of a kind with these keys (``as_view``: its ``keys()``).

    A set has room for all keys of a plain dict at once, also of its view, and takes those of every other one by one.
    """

    kind: type
    keys: list[Value]
    as_view: bool


#: An element, the elements of an iterable, the keys of a dict (which sets take in another way), or a set.
Operand = Value | list[Value] | KeysView | SetState


class SetValue(Value):
    """A set or frozenset.

    Attributes:
        items: the real set of tokens. Its order is the program's while ``orderly``.
        orderly: the hashes of all elements that it ever had are known.
        made_by: how a set of the region was made: a name and its operands. An existing set has None.
        log: what has been done to it since, as names and operands.
    """

    __slots__ = ("_first", "_may_extend", "cls", "items", "log", "made_by", "obj", "orderly", "stamp")

    mutable = True

    def __init__(self, cls: type = set, source: Any = None) -> None:
        self.source = source
        self.cls = cls
        self.items: Any = cls()
        self.orderly = True
        self.made_by: tuple[str, list[Operand]] | None = (cls.__name__, [])
        self.log: list[tuple[str, list[Operand]]] = []
        self.obj: Any = None
        self._first: list[Token] | None = None
        self._may_extend = False
        #: Sets made later have higher ones.
        self.stamp = next(_stamps)

    # --- making -------------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, tx: Capture, items: Iterable[Value], kind: type = set) -> SetValue:
        """A new set, made by adding these elements one by one."""
        return cls.make(tx, kind.__name__, [list(items)])

    @classmethod
    def make(cls, tx: Capture, name: str, operands: list[Operand]) -> SetValue:
        """What ``name`` makes of its operands: a class, an operator, or a method of the first operand."""
        shadows = [_shadow(tx, operand, name) for operand in operands]
        made = _OPERATORS[name](*shadows) if name in _OPERATORS else getattr(shadows[0], name)(*shadows[1:])
        self = cls(type(made))
        self.items = made
        self.made_by = (name, operands)
        self.orderly = all(_is_orderly(tx, operand) for operand in operands)
        return self

    @classmethod
    def existing(cls, obj: Any, values: Iterable[Value], tx: Capture | None, source: Any = None) -> SetValue:
        """A set that there was before the frame; ``values`` are its elements as it is walked."""
        kind = frozenset if isinstance(obj, frozenset) else set
        self = cls(kind, source)
        if tx is None:
            first = [Token.of_constant(x, v) for x, v in zip(obj, values, strict=True)]
        else:
            first = [Token(tx, value) for value in values]
        self.items = kind(first)
        self._first = first
        self.obj = obj
        self.made_by = None
        # Of a constant of the code it is known how it was made: by adding. Of others only the order can be guarded.
        same_order = all(map(operator.is_, self.items, first)) and sys.getsizeof(self.items) == sys.getsizeof(obj)
        self.orderly = len(first) < 2 or (tx is None and same_order)
        return self

    @classmethod
    def from_keys(cls, tx: Capture, name: str, view: Any, other: Value) -> SetValue | None:
        """What an operator makes of ``d.keys()`` and an iterable; None where that is not known."""
        if name not in _ALGEBRA or view.owner.cls not in VIEWED:
            return None
        keys, operand = operand_of(tx, view), operand_of(tx, other)
        return cls.make(tx, "__" + name[3:], [operand, keys]) if _ALGEBRA[name] else cls.make(tx, name, [keys, operand])

    def state(self) -> SetState:
        """The set as it is now, for an operation's operand."""
        self._may_extend = False
        return SetState(self, len(self.log))

    # --- what there is ------------------------------------------------------------------------------------------

    @property
    def pytype(self) -> type:
        return self.cls

    @property
    def is_const(self) -> bool:
        return self.cls is frozenset and all(token.value.is_const for token in self.items)

    def const(self) -> Any:
        if self.obj is not None and not self.log:
            return self.obj
        values: list[Value] = []
        recipe = _Recipe(values)
        made = recipe.of(self)
        if self.made_by is None or recipe.late:  # the object itself is still what it was before the region
            if len(self.items) > 1:
                raise GraphBreak("QB06", "the order of an existing set that has been changed")
            return self.cls(token.value.const() for token in self.items)
        return _follow(made, [value.realize().const() for value in values])

    def key(self, tx: Capture) -> Any:
        if self.cls is set:
            raise tx.observed(TypeError("unhashable type: 'set'"))
        return frozenset(token.key for token in self.items)

    def truth(self, tx: Capture) -> bool:
        return bool(self.items)

    def length(self, tx: Capture) -> Value:
        return ConstantValue(len(self.items))

    def contains(self, tx: Capture, item: Value) -> bool:
        return _element(tx, item) in self.items

    def tokens(self, tx: Capture) -> list[Token]:
        """The elements in the order in which the program walks them ."""
        if self.made_by is not None:
            if not self.orderly and len(self.items) > 1:
                raise GraphBreak("QB06", "the order of a set of objects whose hashes are not known")
            self._depend_on_order(tx)
            return list(self.items)
        if self.log and len(self.items) > 1:
            raise GraphBreak("QB06", "the order of an existing set that has been changed")
        if self.source is None or self.source.is_fixed:  # a constant of the code
            self._depend_on_order(tx)
        # The guard of another existing set says that this is its order.
        return list(self.items if self._first is None or self.log else self._first)

    def _depend_on_order(self, tx: Capture) -> None:
        """The order of some texts is another in another process."""
        if len(self.items) > 1 and not all(token.value.pytype in (int, bool, float) for token in self.items):
            tx.guards.hashed()

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return iter([token.value for token in self.tokens(tx)])

    def get_iter(self, tx: Capture) -> Value:
        return SetIterator(tx, self)

    # --- methods ------------------------------------------------------------------------------------------------

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        return method_of_container(tx, self, self.cls, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or not hasattr(self.cls, name):
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        values = [arg.realize() for arg in args]
        if len(values) == 1 and (name in _ALGEBRA or name in _COMPARISONS or name in _OPERATORS_IN_PLACE):
            return self._operator(tx, name, values[0])
        if name in _IN_PLACE or name in _NEW or name in _QUESTIONS:
            if name in _ONE_OPERAND and len(values) != 1:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name} of {len(values)} arguments")
            return self._with_operands(tx, name, [operand_of(tx, value) for value in values])
        return self._plain_method(tx, name, values)

    def _plain_method(self, tx: Capture, name: str, values: list[Value]) -> Value:
        match name, values:
            case "add", [item]:
                self._add(tx, item)
            case ("discard" | "remove"), [item]:
                token = _element(tx, item)
                if token in self.items:
                    self.change(tx, "discard", [item])
                elif name == "remove":
                    raise key_error(tx, item)
            case "pop", []:
                return self._pop(tx)
            case "clear", []:
                self.change(tx, "clear", [])
            case "copy", []:
                return self if self.cls is frozenset else SetValue.make(tx, "copy", [self.state()])
            case "__contains__", [item]:
                return ConstantValue(self.contains(tx, item))
            case "__len__", []:
                return self.length(tx)
            case "__iter__", []:
                return self.get_iter(tx)
            case "__hash__", [] if self.is_const:
                return ConstantValue(hash(self.const()))
            case ("__reduce_ex__" | "__reduce__"), _ if len(values) == (name == "__reduce_ex__"):
                from dynamo_capture.values.callables import ClassValue
                from dynamo_capture.values.containers import ListValue, TupleValue

                items = TupleValue([ListValue([token.value for token in self.tokens(tx)])])
                return TupleValue([ClassValue(self.cls), items, ConstantValue(None)])
            case "__init__", _ if self.cls is set and len(values) < 2:
                self.change(tx, "clear", [])
                self._with_operands(tx, "update", [operand_of(tx, value) for value in values])
            case _:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        return ConstantValue(None)

    def _operator(self, tx: Capture, name: str, other: Value) -> Value:
        """An operator, which takes sets only."""
        operand = operand_of(tx, other) if _is_set(other) else None
        if not isinstance(operand, SetState):
            return ConstantValue(NotImplemented)
        if name in _COMPARISONS:
            return ConstantValue(getattr(operator, name)(self.items, operand.owner.items))
        if name in _OPERATORS_IN_PLACE:
            self.change(tx, _OPERATORS_IN_PLACE[name], [operand])
            return self
        if _ALGEBRA[name]:
            return SetValue.make(tx, "__" + name[3:], [operand, self.state()])
        return SetValue.make(tx, name, [self.state(), operand])

    def _with_operands(self, tx: Capture, name: str, operands: list[Operand]) -> Value:
        if name in _IN_PLACE:
            self.change(tx, name, operands)
            return ConstantValue(None)
        if name in _NEW:
            return SetValue.make(tx, name, [self.state(), *operands])
        return ConstantValue(getattr(self.items, name)(*[_shadow(tx, operand, name) for operand in operands]))

    def change(self, tx: Capture, name: str, operands: list[Operand]) -> None:
        """Do a step to the set and note it."""
        shadows = [_shadow(tx, operand, name) for operand in operands]
        if any(shadow is self.items for shadow in shadows):
            name, operands, shadows = _with_itself(name), [], []
        tx.side.mutate(self)
        getattr(self.items, name)(*shadows)
        self.orderly = self.orderly and all(_is_orderly(tx, operand) for operand in operands)
        self._may_extend = False
        self.log.append((name, operands))

    def _add(self, tx: Capture, item: Value) -> None:
        token = Token(tx, item)
        tx.side.mutate(self)
        self.items.add(token)
        self.orderly = self.orderly and _hash_is_known(tx, item)
        if not self._may_extend:
            self.log.append(("update", [[]]))
            self._may_extend = True
        self.log[-1][1][0].append(item)  # type: ignore[union-attr]

    def _pop(self, tx: Capture) -> Value:
        if not self.items:
            raise tx.observed(KeyError("pop from an empty set"))
        if len(self.items) > 1 and (self.made_by is None or not self.orderly):
            raise GraphBreak("QB06", "set.pop where the order is not known")
        self._depend_on_order(tx)
        value: Value = next(iter(self.items)).value
        tx.side.mutate(self)
        value = self.items.pop().value
        self._may_extend = False
        self.log.append(("pop", []))
        return value

    # --- rebuilding ---------------------------------------------------------------------------------------------

    def _recipe(self, values: list[Value]) -> Any:
        return _Recipe(values).of(self)

    def is_late(self) -> bool:
        """Whether it is made from an existing set that the region changes, as that was between two changes."""
        recipe = _Recipe([])
        recipe.of(self)
        return bool(recipe.late)

    def children(self) -> Iterator[Value]:
        values: list[Value] = []
        if self.source is not None:
            _Recipe(values).steps(self, 0, len(self.log))
        else:
            self._recipe(values)
        return iter(values)

    def reconstruct(self, cg: CodeGen) -> None:
        if self.made_by is not None and self.made_by[0] in ("set", "frozenset"):
            operands = [*self.made_by[1], *(operand for name, step in self.log for operand in step)]
            names = {name for name, _ in self.log}
            if len(operands) < 2 and names <= {"update"} and all(isinstance(x, list) for x in operands):
                self._reconstruct_plainly(cg, operands[0] if operands else [])  # type: ignore[arg-type]
                return
        values: list[Value] = []
        recipe = _Recipe(values)
        made = recipe.of(self)
        if recipe.late:
            settle_late_sets(cg, self.stamp)
            for owner, steps in recipe.late.values():
                owner.replay(cg, steps)
        cg.call_const(_follow, [ConstantValue(made), TupleValue(values)])

    def _reconstruct_plainly(self, cg: CodeGen, items: list[Value]) -> None:
        if self.cls is set:
            cg.build("BUILD_SET", items)
        else:
            cg.call_const(self.cls, [TupleValue(items)] if items else [])

    def replay(self, cg: CodeGen, until: int) -> None:
        """Do to the existing set what the region did to it, up to a step."""
        begin = cg.replayed.get(id(self), 0)
        if begin >= until:
            return
        cg.replayed[id(self)] = until
        values: list[Value] = []
        steps = _Recipe(values).steps(self, begin, until)
        cg.call_const(_follow_steps, [self, ConstantValue(steps), TupleValue(values)])
        cg.pop()

    def fill(self, cg: CodeGen, target: Value) -> None:
        """Do to a new instance of a subclass what has been done to the set in it."""
        values: list[Value] = []
        steps = _Recipe(values).steps(self, 0, len(self.log))
        cg.call_const(_follow_steps, [target, ConstantValue(steps), TupleValue(values)])
        cg.pop()

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


def _with_itself(name: str) -> str:
    """The step that an operation of a set with itself amounts to."""
    if name in ("difference_update", "symmetric_difference_update"):
        return "clear"
    if name == "update":
        return "update"
    raise GraphBreak("QB07", f"set.{name} with the set itself")


class SetIterator(IteratorValue):
    """The walk of a set, which notices changes."""

    __slots__ = ("order", "owner", "population", "position", "steps")

    def __init__(self, tx: Capture, owner: SetValue) -> None:
        super().__init__(iter(()), None, kind=type(iter(set())))
        self.owner = owner
        self.order = owner.tokens(tx)
        self.population = len(owner.items)
        self.steps = len(owner.log)
        #: -1 once the end was met.
        self.position = 0

    def _unchanged(self) -> bool:
        return len(self.owner.log) == self.steps and len(self.owner.items) == self.population

    def next(self, tx: Capture) -> Value | None:
        tx.side.epoch += 1
        if self.position < 0:
            return None
        if len(self.owner.items) != self.population:
            raise tx.observed(RuntimeError("Set changed size during iteration"))
        if not self._unchanged():
            raise GraphBreak("QB06", "a set that changes while it is walked")
        if self.position >= len(self.order):
            self.position = -1
            return None
        self.position += 1
        return self.order[self.position - 1].value

    def _remaining(self) -> tuple[Any, list[Value]]:
        if self.position < 0:
            return iterator_over, []
        if not self._unchanged() or (self.owner.made_by is None and self.owner.log):
            raise GraphBreak("QB10", "the walk of a set that has changed")
        return iterator_at, [self.owner, ConstantValue(self.position)]


def _element(tx: Capture, value: Value) -> Token:
    """The token of an element to look for: a set may be asked for a set, as for the frozenset of the same elements."""
    value = value.realize()
    inner = getattr(value, "payload", value)
    if isinstance(inner, SetValue) and inner.cls is set and lookup(value.pytype, "__hash__")[0] is None:
        return Token.of_constant(frozenset(token.key for token in inner.items), value)
    return Token(tx, value)


def _is_set(value: Value) -> bool:
    return isinstance(getattr(value, "payload", value), SetValue)


def operand_of(tx: Capture, value: Value) -> Operand:
    """What a method of sets sees in an argument."""
    from dynamo_capture.values.dicts import DictValue, DictView

    inner = getattr(value, "payload", None) or value
    if isinstance(inner, SetValue):
        return inner.state()
    if isinstance(value, DictView) and value.kind == "keys" and value.owner.cls in VIEWED:
        kind = value.owner.cls if value.holder is value.owner else OrderedDict  # a Counter's are taken as those are
        return KeysView(kind, list(value.owner.iterate(tx)), as_view=True)
    if isinstance(value, DictValue) and value.cls is dict:
        return KeysView(dict, list(value.iterate(tx)), as_view=False)
    return value.unpack(tx)


def _shadow(tx: Capture, operand: Operand, name: str) -> Any:
    """A real object in the place of an operand of a method or operator."""
    if isinstance(operand, SetState):
        return operand.owner.items
    if isinstance(operand, KeysView):
        keys = operand.kind.fromkeys([Token(tx, key) for key in operand.keys])  # type: ignore[attr-defined]
        return keys.keys() if operand.as_view else keys
    if isinstance(operand, list):
        place = None if name.startswith("intersection") else "set element"  # which hashes them itself
        return tuple([Token(tx, value, place) for value in operand])
    return _element(tx, operand)


def _is_orderly(tx: Capture, operand: Operand) -> bool:
    if isinstance(operand, SetState):
        return operand.owner.orderly
    if isinstance(operand, KeysView):
        operand = operand.keys
    if isinstance(operand, list):
        return all(_hash_is_known(tx, value) for value in operand)
    return _hash_is_known(tx, operand)


def settle_late_sets(cg: CodeGen, before: float = math.inf) -> None:
    """Build the sets that were made from existing ones before they changed further."""
    late = [v for v in cg.plan.built if isinstance(v, SetValue) and v.stamp < before and v.is_late()]
    for value in sorted(late, key=lambda value: value.stamp):
        cg.settle(value)


class _Recipe:
    """How to make a set, as nested tuples in which numbers stand for ``values``.

    Attributes:
        late: existing sets that the region changes, and at which of their steps they are wanted.
    """

    def __init__(self, values: list[Value]) -> None:
        self.values = values
        self.size = 0
        self.late: dict[int, tuple[SetValue, int]] = {}

    def of(self, owner: SetValue) -> Any:
        """The set as it is at last."""
        return self._made(owner, len(owner.log))

    def _whole(self, state: SetState) -> Any:
        """A set from its making to a step, as an operand."""
        owner = state.owner
        if owner.made_by is not None:
            if not owner.is_late():
                return self._made(owner, state.steps)
            if state.steps < len(owner.log):
                raise GraphBreak("QB10", "a set made from one that was made from an existing one, and changed later")
            return self._value(owner)
        if owner.source is None:
            return "object", owner.obj
        if owner.log and self.late.setdefault(id(owner), (owner, state.steps))[1] != state.steps:
            raise GraphBreak("QB10", "a set made from several states of an existing one")
        return self._value(owner)

    def _made(self, owner: SetValue, steps: int) -> Any:
        if owner.made_by is None:
            return "object", owner.obj
        name, operands = owner.made_by
        # An operation of a set with itself has ways of its own.
        encoded = [
            ("first",) if i and isinstance(operand, SetState) and operand == operands[0] else self._operand(operand)
            for i, operand in enumerate(operands)
        ]
        return "made", name, tuple(encoded), self.steps(owner, 0, steps)

    def steps(self, owner: SetValue, begin: int, end: int) -> tuple[Any, ...]:
        """Steps done to a set."""
        return tuple((name, tuple(map(self._operand, operands))) for name, operands in owner.log[begin:end])

    def _value(self, value: Value) -> int:
        self.size += 1
        if self.size > _LONGEST_LOG:
            raise GraphBreak("QB10", f"a set with a history of over {_LONGEST_LOG} elements")
        self.values.append(value)
        return len(self.values) - 1

    def _operand(self, operand: Operand) -> Any:
        self.size += 1
        if isinstance(operand, SetState):
            return self._whole(operand)
        if isinstance(operand, KeysView):
            return "keys", operand.kind, operand.as_view, tuple(map(self._value, operand.keys))
        if isinstance(operand, list):
            return "items", tuple(map(self._value, operand))
        return self._value(operand)


def _follow(recipe: Any, values: Any) -> Any:
    """Runs in the emitted code: an operand, or a set."""
    if isinstance(recipe, int):
        return values[recipe]
    match recipe:
        case "object", obj:
            return obj
        case "items", indices:
            return tuple([values[i] for i in indices])
        case "keys", kind, as_view, indices:
            keys = kind.fromkeys([values[i] for i in indices])
            return keys.keys() if as_view else keys
        case _, name, operands, steps:
            args: list[Any] = []
            for operand in operands:
                args.append(args[0] if operand == ("first",) else _follow(operand, values))
            return _follow_steps(_made(name, args), steps, values)


def _made(name: str, operands: list[Any]) -> Any:
    """Runs in the emitted code: what sets make by themselves. What their subclasses say, the program has been asked."""
    first = operands[0] if operands else None
    base = next((kind for kind in (set, frozenset) if isinstance(first, kind)), None)
    made = NotImplemented if base is None or name in ("set", "frozenset") else getattr(base, name)(*operands)
    if made is not NotImplemented:
        return made
    return _OPERATORS[name](*operands) if name in _OPERATORS else getattr(first, name)(*operands[1:])


def _follow_steps(target: Any, steps: Any, values: Any) -> Any:
    """Runs in the emitted code."""
    kind = set if isinstance(target, set) else frozenset
    for name, operands in steps:
        getattr(kind, name)(target, *[_follow(operand, values) for operand in operands])
    return target


#: Kinds of dicts whose views make sets as those of a dict of the same kind here.
VIEWED = (dict, OrderedDict)
