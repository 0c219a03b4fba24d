"""What the region changes in objects that exist outside it, replayed after the graph has run.

Objects that the region makes are filled the same way, when they live on: an object is built empty, and its
attributes and contents are stored afterwards, so that objects may refer to each other.
"""

from __future__ import annotations

import collections
import gc
import operator
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dynamo_capture import _native
from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import DequeValue, ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import CellValue, FunctionValue
from dynamo_capture.values.grown import FoundDeque, FoundList
from dynamo_capture.values.objects import DELETED, ExceptionValue, ObjectValue, is_data_descriptor, is_slot
from dynamo_capture.values.sets import SetValue, settle_late_sets
from dynamo_capture.wrappers import own_dict
from prims.ir import SourceLoc

if TYPE_CHECKING:
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.values.tensor import TensorValue

__all__ = ["SideEffects", "Write"]


class Write(NamedTuple):
    """A change in an object of the program's.

    Attributes:
        what: its place, as capture names it, with the attribute.
        owner: the object, or the dictionary of globals; None where it is not known.
        where: the line that made it.
    """

    what: str
    owner: Any
    where: SourceLoc | None


class SideEffects:
    """The log of one capture, in the order of the first change of each object."""

    def __init__(self, where: Callable[[], Any] | None = None) -> None:
        """``where`` gives the program's line, for :meth:`written`; None where nobody asks."""
        #: Number of changes so far; an instruction that failed without changing it left no trace.
        self.epoch = 0
        self._where = where
        #: By the identity of what changes, and its attribute: the line that changed it first.
        self._lines: dict[Any, Any] = {}
        self._mutated: dict[int, Value] = {}
        self._attributes: dict[tuple[int, str], tuple[ObjectValue, str]] = {}
        #: Attributes that were deleted and set again.
        self._again: set[tuple[int, str]] = set()
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Value]] = {}
        #: Attributes that the region has set on tensors.
        self._of_tensors: dict[tuple[int, str], tuple[Value, str, Value]] = {}
        #: Tensors whose gradient the region drops before its first operator, and those whose gradient it has read.
        self._dropping: dict[int, TensorValue] = {}
        self._seen: set[int] = set()
        #: Gradients of leaves that the region has made, and the identities of all that had one.
        self._of_leaves: dict[int, tuple[Value, Value]] = {}
        self.own_leaves: set[int] = set()
        #: Attributes that the region has set on existing classes and functions.
        self._of_fixed: dict[tuple[int, str], tuple[Value, str, Value]] = {}
        #: Calls that write for somebody to read (``print``), in their order.
        self._calls: list[tuple[Any, list[Value], dict[str, Value]]] = []

    def set_on_tensor(self, tensor: Value, name: str, value: Value) -> None:
        """``tensor.name = value``."""
        self._changes((id(tensor), name))
        self._of_tensors[id(tensor), name] = tensor, name, value

    def _changes(self, what: Any) -> None:
        self.epoch += 1
        if self._where is not None and what not in self._lines:
            self._lines[what] = self._where()

    def set_on_tensor_no_more(self, tensor: Value, name: str) -> None:
        """The attribute is again what it was as the region began."""
        self.epoch += 1
        del self._of_tensors[id(tensor), name]

    def look_at_gradient(self, tensor: TensorValue) -> None:
        """The program reads ``tensor.grad``; torch's own ``zero_grad`` does not count."""
        self._seen.add(id(tensor))

    def drop_gradient(self, tensor: TensorValue) -> None:
        """``tensor.grad = None``, before the region's first operator."""
        if id(tensor) not in self._seen and self.found_on_tensor(tensor, "grad") is None:
            self._dropping[id(tensor)] = tensor

    def gradients_dropped(self) -> list[TensorValue]:
        """The tensors whose gradient can be dropped before the graph runs, so that its memory is free.

        Eager has dropped it too when the first operator runs, whatever that raises. A frame that runs again finds none,
        which makes no difference: what the program has looked at is left until the graph has run.
        """
        found = self._dropping.values()
        return [tensor for tensor in found if getattr(tensor.real_tensor, "grad", None) is not None]

    def set_gradient_of_own(self, leaf: Value, value: Value) -> None:
        """``leaf.grad = value`` of a leaf that the region has made: nothing is left of it, unless the leaf goes on."""
        self.epoch += 1
        self.own_leaves.add(id(leaf))
        self._of_leaves[id(leaf)] = leaf, value

    def keep_gradients_of(self, outputs: Iterable[Value]) -> bool:
        """The region gives these: gradients of leaves among them are to be set. Whether there are any."""
        found = [self._of_leaves.pop(id(value)) for value in outputs if id(value) in self._of_leaves]
        for leaf, gradient in found:
            if not (isinstance(gradient, ConstantValue) and gradient.value is None):
                self._of_tensors[id(leaf), "grad"] = leaf, "grad", gradient
        return bool(found)

    def tensors_written(self) -> list[Value]:
        """The tensors on which the region has set attributes."""
        return list({id(tensor): tensor for tensor, _, _ in self._of_tensors.values()}.values())

    def found_on_tensor(self, tensor: Value, name: str) -> Value | None:
        """What the region has stored under the name."""
        if name == "grad" and id(tensor) in self._of_leaves:
            return self._of_leaves[id(tensor)][1]
        found = self._of_tensors.get((id(tensor), name))
        return None if found is None else found[2]

    def set_on(self, owner: Value, obj: Any, name: str, value: Value) -> None:
        """``obj.name = value`` of an existing class or function ``obj``, which every call has."""
        self._changes((id(obj), name))
        self._of_fixed[id(obj), name] = owner, name, value

    def found_on(self, obj: Any, name: str) -> Value | None:
        """What the region has set on an existing class or function under the name."""
        found = self._of_fixed.get((id(obj), name))
        return None if found is None else found[2]

    def is_set_on(self, obj: Any) -> bool:
        """Whether the region has set an attribute of this class or function."""
        return any(key == id(obj) for key, _ in self._of_fixed)

    @property
    def sets_on_functions(self) -> bool:
        """Whether the region has set an attribute of an existing function."""
        return any(isinstance(owner, FunctionValue) for owner, _, _ in self._of_fixed.values())

    def call_later(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """``fn(*args, **kwargs)``, of which the region sees nothing: it is called when the graph has run."""
        self.epoch += 1
        self._calls.append((fn, args, kwargs))

    def call_no_more(self, value: Value) -> None:
        """The call that takes this value alone is not to be made after all."""
        self.epoch += 1
        self._calls = [call for call in self._calls if not (len(call[1]) == 1 and call[1][0] is value)]

    def mutate(self, value: Value) -> None:
        """An existing container or cell is about to change."""
        self._changes(id(value))
        if value.source is not None:
            self._mutated.setdefault(id(value), value)

    def write_attribute(self, owner: ObjectValue, name: str, *, again: bool = False) -> None:
        """An attribute is about to be written or deleted (``again``: written after it was deleted)."""
        self._changes((id(owner), name))
        if owner.obj is not None:
            key = (id(owner), name)
            if again:
                self._again.add(key)
                self._attributes.pop(key, None)  # a name that comes back is the last one of the ``__dict__``
            self._attributes[key] = (owner, name)

    def came_back(self, owner: ObjectValue, name: str) -> bool:
        """Whether the attribute was deleted and set again."""
        return (id(owner), name) in self._again

    def forget_attribute(self, owner: ObjectValue, name: str) -> None:
        """An attribute that the region has set is deleted, and the object had none before."""
        self.epoch += 1
        self._attributes.pop((id(owner), name), None)

    def store_global(self, globals_: dict[str, Any], name: str, value: Value | None) -> None:
        """``global name; name = value`` (None deletes)."""
        self._changes((id(globals_), name))
        self._globals[(id(globals_), name)] = (globals_, name, value if value is not None else DELETED)

    def stores_into(self, globals_: dict[str, Any]) -> bool:
        """Whether the region has set or deleted one of these globals."""
        return any(key == id(globals_) for key, _ in self._globals)

    def global_value(self, globals_: dict[str, Any], name: str) -> Value | None:
        """What the region has stored under a global name; ``DELETED`` when it deleted it."""
        found = self._globals.get((id(globals_), name))
        return found[2] if found else None

    def __bool__(self) -> bool:
        changed = self._mutated or self._attributes or self._globals or self._of_tensors or self._of_fixed
        return bool(changed or self._calls)

    def released(self, object_behind: Callable[[Value], Any]) -> list[Any] | None:
        """What existing objects may lose by the changes: all that changed containers held, and what was where something
        is stored. None where that is not known.

        Args:
            object_behind: the existing container that a value stands for, or None.
        """
        found: list[Any] = []
        for value in self._mutated.values():
            container = object_behind(value)
            if container is None:
                return None
            found += gc.get_referents(container)
        for owner, name in self._attributes.values():
            found.append(_held(owner.obj, name))
        found += [globals_.get(name) for globals_, name, _ in self._globals.values()]
        for tensor, name, _ in self._of_tensors.values():
            found.append(_held(getattr(tensor, "real_tensor", None), name))
        for fixed, name, _ in self._of_fixed.values():
            found.append(_held(fixed.fn if isinstance(fixed, FunctionValue) else getattr(fixed, "obj", None), name))
        return found

    def is_mutated(self, value: Value) -> bool:
        """Whether the region changes this existing container or cell."""
        return id(value) in self._mutated

    def mutated_values(self) -> list[Value]:
        """Existing objects that the region changes."""
        owners = {id(owner): owner for owner, _ in self._attributes.values()}
        return [*self._mutated.values(), *owners.values()]

    def written(self, object_behind: Callable[[Value], Any]) -> list[Write]:
        """What of the program's the region changes, beside tensors and their gradients.

        What leaves things as they were is none: a module counts how deep it is, or keeps a stack, up and down again.

        Args:
            object_behind: the existing container that a value stands for, or None.
        """
        found = []
        for own, container in self._mutated.items():
            obj = object_behind(container)
            if not _is_as_was(container, obj):
                found.append(Write(str(container.source), obj, self._lines.get(own)))

        def add(holder: str, obj: Any, name: str, value: Value | None, key: Any) -> None:
            if not (isinstance(value, ConstantValue) and _holds(obj, name, value.value)):
                found.append(Write(f"{holder}.{name}" if holder else name, obj, self._lines.get(key)))

        for key, (owner, name) in self._attributes.items():
            add(str(owner.source or type(owner.obj).__name__), owner.obj, name, owner.attrs.get(name), key)
        for key, (fixed, name, value) in self._of_fixed.items():
            obj = fixed.fn if isinstance(fixed, FunctionValue) else getattr(fixed, "obj", None)
            add(str(fixed.source or type(obj).__name__), obj, name, value, key)
        for key, (globals_, name, value) in self._globals.items():
            add("", globals_, name, value, key)
        for key, (tensor, name, value) in self._of_tensors.items():
            if name != "grad" and tensor.source is not None:
                add(str(tensor.source), getattr(tensor, "real_tensor", None), name, value, key)
        return found

    def roots(self) -> list[Value]:
        """The values that replaying needs, besides what they contain."""
        values: list[Value] = list(self._mutated.values())
        for owner, name in self._attributes.values():
            values.append(owner)
            values.append(owner.attrs[name])
        values.extend(value for _, _, value in self._globals.values())
        values.extend(each for tensor, _, value in self._of_tensors.values() for each in (tensor, value))
        values.extend(each for owner, _, value in self._of_fixed.values() for each in (owner, value))
        values.extend(each for _, args, kwargs in self._calls for each in (*args, *kwargs.values()))
        return [v for v in values if v is not DELETED]

    def contents(self) -> list[Value]:
        """What the changed containers and cells hold now."""
        return [child for value in self._mutated.values() for child in value.children()]

    def replay(self, cg: CodeGen, value: Value) -> None:
        """Give an existing container or cell what it holds now, unless that has been done or it is as it was."""
        if id(value) in self._mutated and id(value) not in cg.settled:
            cg.settled.add(id(value))
            _replay(cg, value)

    def fill_before_walk(self, cg: CodeGen, walked: Value) -> None:
        """Give a new object that is ``walked``, or whose inside is, what it holds: others are filled behind walks."""
        for value in cg.plan.made:
            if isinstance(value, ObjectValue) and (value is walked or value.payload is walked):
                if id(value.payload) not in cg.settled:
                    cg.settled.add(id(value.payload))
                    _fill_payload(cg, value)

    def emit(self, cg: CodeGen, made: list[Value]) -> None:
        """Emit the replay; ``made`` are the new objects that live on, filled first."""
        for value in made:
            _fill(cg, value)
        for value in made:
            if isinstance(value, ExceptionValue):
                value.emit_raised(cg)
        for value in self._mutated.values():
            self.replay(cg, value)
        for key, (owner, name) in self._attributes.items():
            if key in self._again and owner.attrs[name] is not DELETED:
                _store_attribute(cg, owner, name, DELETED)
            _store_attribute(cg, owner, name, owner.attrs[name])
        for globals_, name, value in self._globals.values():
            if value is DELETED:  # which may have been set here alone
                cg.call_const(dict.pop, [_Raw(globals_), ConstantValue(name), ConstantValue(None)])
            else:
                cg.call_const(dict.__setitem__, [_Raw(globals_), ConstantValue(name), value])
            cg.pop()
        for target, name, value in (*self._of_tensors.values(), *self._of_fixed.values()):
            cg.load(value)
            cg.load(target)
            cg.store_attr(name)
        for fn, args, kwargs in self._calls:
            cg.call_const(fn, args, kwargs)
            cg.pop()


def _holds(obj: Any, name: str, value: Any) -> bool:
    """Whether an object's own attribute, or a global, is this very object, or a number or string of that value."""
    there = obj.get(name, DELETED) if type(obj) is dict else _held(obj, name)
    return there is value or (type(there) is type(value) and isinstance(value, (int, float, str)) and there == value)


def _is_as_was(value: Value, obj: Any) -> bool:
    """Whether a list holds again what the existing one does."""
    if isinstance(value, (FoundList, FoundDeque)) and value.added is not None:
        return not value.added  # asking for its items would have them all rebuilt
    if type(obj) is not list or not isinstance(value, ListValue) or len(value.items) != len(obj):
        return False
    try:
        return all(item.real() is there for item, there in zip(value.items, obj, strict=True))
    except GraphBreak:
        return False


def _held(obj: Any, name: str) -> Any:
    """An attribute that an object has of its own, without running any code of the program's."""
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return obj  # slots: whatever it holds
    return found.get(name)


class _Raw(ConstantValue):
    """Any object, put into the code's constants as it is."""

    __slots__ = ()


def _replace_list(target: list[Any], items: tuple[Any, ...]) -> None:
    list.__setitem__(target, slice(None), items)


def _replace_deque(target: Any, items: tuple[Any, ...]) -> None:
    if collections.deque.__len__(target) == len(items):  # as the program wrote, without disturbing who walks it
        for i, item in enumerate(items):
            if collections.deque.__getitem__(target, i) is not item:
                collections.deque.__setitem__(target, i, item)
        return
    collections.deque.clear(target)
    collections.deque.extend(target, items)


def _replace_values(target: Any, items: dict[Any, Any]) -> bool:
    """Write the values of the keys that are there already; False when the keys are others or in another order."""
    if dict.__len__(target) != len(items) or not all(map(operator.is_, dict.keys(target), items)):
        return False
    for key, value in items.items():
        if dict.__getitem__(target, key) is not value:
            dict.__setitem__(target, key, value)
    return True


def _replace_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    if not _replace_values(target, items):
        dict.clear(target)
        dict.update(target, items)


def _replace_ordered(target: Any, items: dict[Any, Any]) -> None:
    now = collections.OrderedDict.items(target)
    if len(now) == len(items) and all(a is b and x is y for (a, x), (b, y) in zip(now, items.items(), strict=True)):
        return  # as hooks that were set and removed leave it
    collections.OrderedDict.clear(target)
    _native.fill_ordered(target, items)


def _replay(cg: CodeGen, value: Value) -> None:
    """Give an existing container or cell its new contents."""
    if isinstance(value, (FoundList, FoundDeque)) and value.replay_added(cg):
        pass
    elif isinstance(value, ListValue):
        fn = _replace_deque if isinstance(value, DequeValue) else _replace_list
        cg.call_const(fn, [value, TupleValue(list(value.items))])
    elif isinstance(value, DictValue):
        plain = DictValue()
        plain.entries.update(value.entries)
        is_ordered = issubclass(value.cls, collections.OrderedDict)
        cg.call_const(_replace_ordered if is_ordered else _replace_dict, [value, plain])
    elif isinstance(value, SetValue):
        settle_late_sets(cg)
        value.replay(cg, len(value.log))
        return
    elif isinstance(value, CellValue):
        _store_cell(cg, value)
        return
    else:
        raise GraphBreak("QB10", value.describe())
    cg.pop()


def _store_cell(cg: CodeGen, cell: CellValue) -> None:
    if cell.content is None:
        cg.call_const(delattr, [cell, ConstantValue("cell_contents")])
    else:
        cg.call_const(setattr, [cell, ConstantValue("cell_contents"), cell.content])
    cg.pop()


def _fill(cg: CodeGen, value: Value) -> None:
    """Give a new object its attributes and contents."""
    if isinstance(value, CellValue):
        if value.content is not None:
            _store_cell(cg, value)
        return
    if not isinstance(value, ObjectValue):
        return
    if id(value.payload) not in cg.settled:
        _fill_payload(cg, value)
    for name, attr in value.attrs.items():
        _store_attribute(cg, value, name, attr)


def _fill_payload(cg: CodeGen, value: ObjectValue) -> None:
    payload = value.payload
    if isinstance(payload, DictValue):
        plain = DictValue()
        plain.entries.update(payload.entries)
        is_ordered = issubclass(value.cls, collections.OrderedDict)
        cg.call_const(_native.fill_ordered if is_ordered else _fill_dict, [value, plain])
        cg.pop()
    elif isinstance(payload, ListValue):
        cg.call_const(type(payload.items).extend, [value, TupleValue(list(payload.items))])
        cg.pop()
    elif isinstance(payload, SetValue):
        payload.fill(cg, value)


def _fill_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    dict.update(target, items)


def _store_attribute(cg: CodeGen, owner: ObjectValue, name: str, value: Value) -> None:
    """Write to (or delete from) the object itself: what its class makes of it has been done in the capture."""
    key = ConstantValue(name)
    found, _ = lookup(owner.cls, name)
    if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)) and not is_slot(found):
        cg.call_const(object.__setattr__, [owner, key, value])  # what a C type keeps
    elif found is not None and not is_slot(found) and is_data_descriptor(found):
        cg.call_const(_write_own_dict, [owner, key] if value is DELETED else [owner, key, value])
    elif value is DELETED:
        cg.call_const(object.__delattr__, [owner, key])
    elif isinstance(lookup(owner.cls, "__setattr__")[0], types.FunctionType):
        cg.call_const(_native.store_attribute, [owner, key, value])
    else:
        cg.load(value)
        cg.load(owner)
        cg.store_attr(name)
        return
    cg.pop()


def _write_own_dict(obj: Any, name: str, *value: Any) -> None:
    """Runs in the emitted code: ``obj.__dict__[name] = value`` (or ``del``), behind a data descriptor of that name."""
    own: Any = own_dict(obj)
    if value:
        own[name] = value[0]
    else:
        del own[name]
