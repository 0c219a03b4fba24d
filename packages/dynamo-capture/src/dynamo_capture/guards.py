"""What a captured graph assumes about the frame, collected while the interpreter looks at values.

Every check is recorded once, with the user's line that needed it, and put on the native guard tree at once.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from prims.ir import SourceLoc

if TYPE_CHECKING:
    from dynamo_capture.stored.log import Reads

__all__ = ["Guard", "GuardSet"]


class Guard(NamedTuple):
    """One assumption: what is checked on which source, the value expected, and the user's line."""

    kind: str
    source: str
    value: Any
    where: SourceLoc | None

    def __str__(self) -> str:
        at = f"  # {self.where}" if self.where else ""
        shown = f"{self.value!r:.80}"
        return _TEXTS[self.kind].format(source=self.source, value=self.value, shown=shown) + at


#: Each kind of guard as people read it; ``shown`` is the value's repr, cut off.
_TEXTS = {
    "class_has": "{shown} in vars({source}), as it was",
    "class_lacks": "{shown} not in vars({source})",
    "contains": "{shown} in {source}",
    "distinct": "{source} are different objects",
    "equals": "{source} == {shown}",
    "function": "{source} is the function {value}",
    "global_state": "torch's grad mode, autocast, default dtype and the like are as they were",
    "hasattr": "hasattr({source}, {value[0]!r}) is {value[1]}",
    "id": "{source} is what it was: {value}",
    "keys": "{source} has its {value} keys, in their order",
    "lacks": "{shown} not in {source}",
    "len": "len({source}) == {value}",
    "mro": "{source} has the bases that it had",
    "no_attr": "{shown} not in vars({source})",
    "no_overlap": "{source} shares no memory with another of {value} tensors",
    "offset": "{source} begins {value} elements into its memory",
    "predicate": "{value}",
    "promised": "promised, not guarded: {source}",
    "same": "{source} is {value}",
    "set": "{source} has the elements {shown}, in this order",
    "size": "{source}",
    "state": "{source}: {shown}",
    "subclass": "issubclass({source}) is {value}",
    "tensor": "{source} is a tensor: {value}",
    "type": "type({source}) is {value}",
}


def _tensor_text(example: Any, sizes: Sequence[int | None] | None) -> str:
    """What is checked of a tensor; None among its sizes is one that is symbolic."""
    shown = list(example.shape) if sizes is None else list(sizes)
    grad = ", requires_grad" if example.requires_grad else ""
    return f"{str(example.dtype).removeprefix('torch.')} {shown} {example.device}{grad}"


#: Types of values that a guard's record keeps; of other objects it keeps the name only, not the object.
_SHOWN = frozenset((int, float, complex, bool, str, bytes, type(None), tuple, list))


class GuardSet:
    """The guards of one capture and the native tree that evaluates them.

    Args:
        tree: a ``dynamo_capture._native.GuardTree``.
        where: gives the user's current source location.
    """

    def __init__(self, tree: Any, where: Callable[[], SourceLoc | None]) -> None:
        self.tree = tree
        self.guards: list[Guard] = []
        self._where = where
        self._seen: set[Any] = set()
        self._reasons: dict[int, str] = {}
        self._subclasses: list[tuple[type, type, bool]] = []
        self._keyed: dict[int, Source] = {}
        #: The classes of the frame's variables, as far as they are guarded.
        self.variables: list[tuple[Source, type]] = []
        #: Names looked up in classes, and where they were found, by identity (inverted: what was found is guarded too).
        self.lookups: set[tuple[int, str, int]] = set()
        #: What is read of libraries, and not guarded; kept where the capture is to be stored.
        self.reads: Reads | None = None

    def read_global(self, globals_: dict[str, Any], name: str, obj: Any) -> None:
        """A library's global name gave this."""
        if self.reads is not None:
            self.reads.globals[id(globals_), name] = globals_, name, obj

    def read_attribute(self, module: Any, name: str, obj: Any) -> None:
        """An attribute of a library's module gave this."""
        if self.reads is not None:
            self.reads.attributes[id(module), name] = module, name, obj

    def read_class(self, cls: type, name: str) -> None:
        """A class was asked for a name."""
        if self.reads is not None:
            self.reads.lookups[id(cls), name] = cls, name

    def of_this_process(self, what: str) -> None:
        """The program rests on something that holds in this process, as the user has promised."""
        if self.reads is not None:
            self.reads.promised.append(what)

    def promised(self, what: str) -> None:
        """The program rests on what the user has said of a function, somewhere in the process. Nobody checks it, so the
        report says it."""
        self.of_this_process(what)
        self.guards.append(Guard("promised", what, None, self._where()))

    def hashed(self) -> None:
        """The program depends on how texts hash: on the order of a set of them."""
        if self.reads is not None:
            self.reads.hashed = True

    def addressed(self) -> None:
        """The program has been told the address of an object, which is another one in another process."""
        if self.reads is not None:
            self.reads.addressed = True

    def made(self, obj: Any, fn: Any, *args: Any) -> None:
        """Capture made an object that guards look into: ``fn(*args)``."""
        if self.reads is not None:
            self.reads.made[id(obj)] = obj, fn, args

    def _new(self, kind: str, source: Source, value: Any, key: Any = None) -> int | None:
        """The node to check, or None when this very check is recorded already."""
        node = source.node(self.tree)
        mark = (kind, node, key)
        if mark in self._seen:
            return None
        self._seen.add(mark)
        shown = value if type(value) in _SHOWN else getattr(value, "__qualname__", type(value).__name__)
        self.guards.append(Guard(kind, str(source), shown, self._where()))
        return node

    def _reason(self) -> str | None:
        where = self.guards[-1].where
        if where is None:
            return None
        text = self._reasons.get(id(where))
        if text is None:
            text = self._reasons[id(where)] = str(where)
        return text

    def type_is(self, source: Source, cls: type) -> None:
        """``type(source) is cls``."""
        if (node := self._new("type", source, cls)) is not None:
            self.tree.check_type(node, cls, reason=self._reason())
            self.mro(cls)
            if source.kind in ("local", "closure"):
                self.variables.append((source, cls))

    def mro(self, cls: type) -> None:
        """The class and its bases have the bases that they have now; those of a library's class always do."""
        mark = ("mro", id(cls))
        if mark not in self._seen:
            self._seen.add(mark)
            if not is_library_class(cls):
                source = Source("constant", None, (cls,))
                self.guards.append(Guard("mro", str(source), cls.__name__, self._where()))
                self.tree.check_mro(source.node(self.tree), cls.__mro__, reason=self._reason())

    def is_object(self, source: Source, obj: object) -> None:
        """``source is obj``."""
        if (node := self._new("id", source, obj)) is not None:
            self.tree.check_id(node, obj, reason=self._reason())

    def equals(self, source: Source, value: object, what: str | None = None) -> None:
        """Same type and equal; ``what`` it is where its path says nothing to people."""
        if (node := self._new("equals", source, value)) is not None:
            if what is not None:
                self.guards[-1] = Guard("state", what, value, self.guards[-1].where)
            self.tree.check_equals(node, value, reason=self._reason())

    def length(self, source: Source, n: int) -> None:
        """``len(source) == n``."""
        if (node := self._new("len", source, n)) is not None:
            self.tree.check_len(node, n, reason=self._reason())

    def dict_keys(self, source: Source, keys: Sequence[object]) -> None:
        """A dict with exactly these keys in this order."""
        if (node := self._new("keys", source, len(keys))) is not None:
            self.tree.check_dict_keys(node, list(keys), reason=self._reason())

    def contains(self, source: Source, key: object, present: bool) -> None:
        """``(key in source) is present``."""
        if (node := self._new("contains" if present else "lacks", source, key, key)) is not None:
            self.tree.check_contains(node, key, present, reason=self._reason())

    def set_equals(self, source: Source, value: tuple[Any, ...]) -> None:
        """A set that gives these elements, in this order."""
        if (node := self._new("set", source, value)) is not None:
            self.tree.check_set(node, value, reason=self._reason())

    def class_lacks(self, cls: type, name: str) -> None:
        """``name`` is not in the class's own ``__dict__``."""
        self._class_attr(cls, name, ())

    def class_has(self, cls: type, name: str, attribute: object) -> None:
        """``cls.__dict__[name]`` is this very object."""
        self._class_attr(cls, name, (attribute,))

    def _class_attr(self, cls: type, name: str, attribute: tuple[object, ...]) -> None:
        mark = ("class", id(cls), name)
        if mark in self._seen:
            return
        self._seen.add(mark)
        source = Source("constant", None, (cls,))
        self.guards.append(Guard("class_has" if attribute else "class_lacks", str(source), name, self._where()))
        self.tree.check_class_attr(source.node(self.tree), name, *attribute, reason=self._reason())

    def subclass(self, cls: type, base: type, answer: bool) -> None:
        """``issubclass(cls, base) is answer``, which registering a class with an abstract one may change."""
        mark = ("subclass", id(cls), id(base))
        if mark not in self._seen:
            self._seen.add(mark)
            self.guards.append(Guard("subclass", f"{cls.__name__}, {base.__name__}", answer, self._where()))
            self._subclasses.append((cls, base, answer))

    def keyed(self, source: Source) -> None:
        """A key of a dict or set, told from others by identity."""
        self._keyed.setdefault(source.node(self.tree), source)

    def finish(self) -> None:
        """Put the guards on the tree that are about all that was collected."""
        if len(self._keyed) > 1:
            self.distinct(list(self._keyed.values()))
        if self._subclasses:
            self.tree.check_subclasses(abc.get_cache_token, abc.get_cache_token(), self._subclasses)

    def no_instance_attr(self, source: Source, name: str) -> None:
        """``name`` is not in the instance's ``__dict__``."""
        if (node := self._new("no_attr", source, name, name)) is not None:
            self.tree.check_no_instance_attr(node, name, reason=self._reason())

    def has_attr(self, source: Source, name: str, present: bool) -> None:
        """``hasattr(source, name) is present``."""
        if (node := self._new("hasattr", source, (name, present), name)) is not None:
            self.tree.check_lambda(
                node,
                functools.partial(_attribute_is_there, name, present),
                text=f"hasattr({source}, {name!r}) is {present}",
                reason=self._reason(),
            )

    def tensor(
        self, source: Source, example: Any, sizes: Any, strides: Any, offset: bool, min_size: int = 2,
        *, stored: bool = False,
    ) -> None:  # fmt: skip
        """A tensor with the example's metadata; None in sizes or strides is unchecked.

        Args:
            stored: a subclass has no say in its metadata, which are read from its memory.
        """
        if (node := self._new("tensor", source, _tensor_text(example, sizes))) is not None:
            self.tree.check_tensor(
                node,
                example,
                sizes=sizes,
                strides=strides,
                storage_offset=offset,
                min_size=min_size,
                stored=stored,
                reason=self._reason(),
            )

    def offset(self, source: Source, example: Any) -> None:
        """A tensor that begins as far from the start of its memory as the example."""
        if (node := self._new("offset", source, example.storage_offset())) is not None:
            self.tree.check_tensor(
                node, example, sizes=[None] * example.dim(), strides=None, storage_offset=True, min_size=0,
                reason=self._reason(),
            )  # fmt: skip

    def same(self, a: Source, b: Source) -> None:
        """``a is b``."""
        other = b.node(self.tree)
        if a.node(self.tree) == other:
            return
        if (node := self._new("same", a, str(b), other)) is not None:
            self.tree.check_same(node, other, reason=self._reason())

    def distinct(self, sources: Sequence[Source]) -> None:
        """All these are different objects."""
        self.guards.append(Guard("distinct", ", ".join(map(str, sources)), None, None))
        self.tree.check_distinct([s.node(self.tree) for s in sources])

    def no_overlap(self, mutated: Sequence[Source], tensors: Sequence[Source]) -> None:
        """No storage of a ``mutated`` tensor is that of another of ``tensors``."""
        self.guards.append(Guard("no_overlap", ", ".join(map(str, mutated)), len(tensors), None))
        nodes = [s.node(self.tree) for s in mutated]
        others = [s.node(self.tree) for s in tensors]
        self.tree.check_no_overlap(nodes, [n for n in others if n not in nodes])

    def predicate(self, source: Source, fn: Callable[[Any], bool], text: str) -> None:
        """``fn(source)``, a last resort."""
        if (node := self._new("predicate", source, text, text)) is not None:
            self.tree.check_lambda(node, fn, text=text, reason=self._reason())

    def together(self, sources: Sequence[Source], fn: Callable[..., bool], text: str) -> None:
        """``fn(*sources)``, a last resort."""
        self.guards.append(Guard("predicate", ", ".join(map(str, sources)), text, self._where()))
        self.tree.check_together([s.node(self.tree) for s in sources], fn, text=text, reason=self._reason())

    def is_there(self, source: Source) -> None:
        """The path leads to an object, whatever it is; nothing holds it."""
        self.predicate(source, _is_there, f"{source} is there")

    def function_is(self, source: Source, fn: FunctionType) -> None:
        """A Python function with the code and the globals of ``fn``."""
        if (node := self._new("function", source, fn)) is not None:
            self.tree.check_function(node, fn, reason=self._reason())

    def global_state(self) -> None:
        """Grad mode, autocast, default dtype and the like are as now."""
        self.guards.append(Guard("global_state", "torch", None, None))
        self.tree.check_global_state()

    def state(self, fn: Callable[[], object], value: object, text: str) -> None:
        """``fn()`` equals ``value``."""
        mark = ("state", text)
        if mark not in self._seen:
            self._seen.add(mark)
            self.guards.append(Guard("state", text, value, self._where()))
            self.tree.check_call(fn, value, text=text)

    def now(self, fn: Callable[[], Any], text: str) -> Any:
        """``fn()`` gives what it gives now, which is returned: also where the graph breaks because of it."""
        value = fn()
        self.state(fn, value, text)
        return value


def _is_there(obj: Any) -> bool:
    return True


def _attribute_is_there(name: str, present: bool, obj: Any) -> bool:
    return hasattr(obj, name) is present
