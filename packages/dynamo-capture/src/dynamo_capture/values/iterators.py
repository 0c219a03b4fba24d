"""Iterators and generators that live inside the region."""

from __future__ import annotations

import collections
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import IdentityKey, ObservedError, Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue, method_of_container

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["BackwardsIterator", "GeneratorFrame", "GeneratorValue", "IteratorValue", "NativeWalk", "PositionIterator",
           "Pull", "Started", "iterator_at", "iterator_over"]


_END = object()
#: Elements of an iterator that a graph break writes out one by one, at most.
_MOST_WRITTEN_OUT = 4096


_TUPLE_ITERATOR = type(iter(()))
_WHOLES: tuple[Any, ...] = ([], set(), "", "\xe9", b"", range(0), collections.deque())
_ORDERED: tuple[Any, ...] = ([], (), collections.deque())
_MAPPINGS: tuple[dict[Any, Any], ...] = ({}, collections.OrderedDict())
_VIEWS = tuple(part for whole in _MAPPINGS for part in (whole.keys(), whole.values(), whole.items()))
#: What makes an iterator without elements, one for each type of which a region may leave one at its end.
_ENDED: tuple[Callable[[], Any], ...] = (
    *(functools.partial(iter, whole) for whole in (*_WHOLES, *_VIEWS)),
    *(functools.partial(reversed, whole) for whole in (*_ORDERED, *_VIEWS)),
    functools.partial(iter, int, 0), functools.partial(itertools.islice, (), 0),
    functools.partial(itertools.pairwise, ()), functools.partial(itertools.takewhile, bool, ()),
    functools.partial(itertools.groupby, ()),
)  # fmt: skip
_ENDED_KINDS = {type(make()): make for make in _ENDED}


class IteratorValue(Value):
    """An iterator over values, pulled one at a time.

    Args:
        iterator: gives the elements. What the program raises while it does must leave it able to go on.
        rebuild: gives a constructor and its arguments that make, at this point, the iterator that is left. Without
            it the elements that are left are written out, which takes that pulling them calls nothing and that
            nothing can change them.
        kind: the type of the program's iterator.
    """

    __slots__ = ("iterator", "kind", "rebuild")

    mutable = True

    def __init__(
        self,
        iterator: Iterator[Value],
        rebuild: Callable[[], tuple[Any, list[Value]]] | None = None,
        kind: type = _TUPLE_ITERATOR,
    ) -> None:
        self.source = None
        self.iterator = iterator
        self.rebuild = rebuild
        self.kind = kind

    @property
    def pytype(self) -> type:
        return self.kind

    def key(self, tx: Capture) -> Any:
        return IdentityKey(self)

    def next(self, tx: Capture) -> Value | None:
        """The next element, or None at the end."""
        tx.side.epoch += 1
        try:
            return next(self.iterator, None)
        except ValueError as error:
            if not str(error).startswith("zip() argument"):
                raise
            raise tx.observed(ValueError(str(error))) from None

    def iterate(self, tx: Capture) -> Iterator[Value]:
        while (item := self.next(tx)) is not None:
            yield item

    def get_iter(self, tx: Capture) -> Value:
        return self

    def truth(self, tx: Capture) -> bool:
        return True

    def contains(self, tx: Capture, item: Value) -> bool:
        from dynamo_capture.values.compare import equals

        return any(equals(tx, item, x) for x in self.iterate(tx))

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.kind)
        return method_of_container(tx, self, self.kind, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__" and not args and not kwargs:
            return self
        if name == "__next__" and not args and not kwargs:
            item = self.next(tx)
            if item is None:
                raise tx.observed(StopIteration())
            return item
        raise GraphBreak("QB06", f"method {name!r} of an iterator")

    def hold(self, holder: Value, cls: type) -> None:
        """It is the walk of the inside of ``holder``, an instance of a subclass of ``cls``."""
        self.rebuild = _refuse

    def _left(self) -> tuple[Any, list[Value]]:
        """How to make the iterator as it is now."""
        make, items = self._remaining() if self.rebuild is None else self.rebuild()
        if make is not iterator_over or self.kind is _TUPLE_ITERATOR:
            return make, items
        if items or self.kind not in _ENDED_KINDS:
            raise GraphBreak("QB10", f"{self.describe()} in the middle of its walk")
        return _ended, [ConstantValue(self.kind)]

    def _remaining(self) -> tuple[Any, list[Value]]:
        items = list(itertools.islice(self.iterator, _MOST_WRITTEN_OUT + 1))
        self.iterator = iter(items)
        if len(items) > _MOST_WRITTEN_OUT:
            raise GraphBreak("QB10", f"an iterator with over {_MOST_WRITTEN_OUT} elements left")
        return iterator_over, items

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(*self._left())

    def children(self) -> Iterator[Value]:
        return iter(self._left()[1])

    def describe(self) -> str:
        return f"an iterator ({self.kind.__name__})"


def _refuse() -> tuple[Any, list[Value]]:
    raise GraphBreak("QB10", "the walk of an instance of a subclass of a container")


class Pull:
    """A Python iterator over what an iterator of values gives; what the program raises goes through it."""

    __slots__ = ("count", "source", "tx")

    def __init__(self, tx: Capture, source: Any) -> None:
        self.tx = tx
        self.source = source
        #: How many elements were pulled.
        self.count = 0

    def __iter__(self) -> Pull:
        return self

    def __next__(self) -> Value:
        item = self.source.next(self.tx)
        if item is None:
            raise StopIteration
        self.count += 1
        return item  # type: ignore[no-any-return]


class PositionIterator(IteratorValue):
    """The iterator of a sequence: a position, as the sequence may change while it is walked.

    Args:
        sequence: a list, a tuple or a constant sequence.
        item: the element at a position; IndexError behind the end.
        kind: the type of the program's iterator.
        begin: makes it.
    """

    __slots__ = ("begin", "item", "position", "sequence")

    def __init__(
        self, sequence: Value, item: Callable[[int], Value], kind: type = _TUPLE_ITERATOR, begin: Any = iter
    ) -> None:
        super().__init__(iter(()), None, kind)
        self.sequence = sequence
        self.begin = begin
        self.item = item
        #: -1 once the end was met: then it stays at the end.
        self.position = 0

    def next(self, tx: Capture) -> Value | None:
        tx.side.epoch += 1
        if self.position < 0:
            return None
        try:
            item = self.item(self.position)
        except IndexError:
            self.position = -1
            self.sequence, self.item = ConstantValue(()), ().__getitem__  # which it lets go of
            return None
        self.position += 1
        return item

    def _remaining(self) -> tuple[Any, list[Value]]:
        if self.position < 0:
            return iterator_over, []
        return _sequence_iterator, [self.sequence, ConstantValue(self.position), ConstantValue(self.begin)]

    def reconstruct(self, cg: CodeGen) -> None:
        cg.plan.side.fill_before_walk(cg, self.sequence)  # an iterator keeps to what is there
        super().reconstruct(cg)

    def hold(self, holder: Value, cls: type) -> None:
        self.sequence, self.begin = holder, cls.__iter__  # type: ignore[attr-defined]


class BackwardsIterator(IteratorValue):
    """``reversed()`` of a list or tuple: by position, as the list may change while it is walked."""

    __slots__ = ("items", "position", "sequence")

    def __init__(self, sequence: Value, items: list[Value], kind: type) -> None:
        super().__init__(iter(()), None, kind)
        self.sequence = sequence
        self.items = items
        self.position = len(items) - 1

    def next(self, tx: Capture) -> Value | None:
        tx.side.epoch += 1
        if 0 <= self.position < len(self.items):
            self.position -= 1
            return self.items[self.position + 1]
        self.position = -1
        return None

    def _remaining(self) -> tuple[Any, list[Value]]:
        if self.position < 0:
            return iterator_over, []
        return _sequence_iterator_backwards, [self.sequence, ConstantValue(self.position)]

    def hold(self, holder: Value, cls: type) -> None:
        self.rebuild = _refuse


class NativeWalk(IteratorValue):
    """The walk of a real container of stand-ins, which raises what the program's would when that has changed.

    Args:
        container: the real container.
        item: what an element stands for.
        walked: the value of the container.
        owner: the value that is asked for the iterator, the container's own or a view's.
        begin: gives the program's iterator of the owner.
    """

    __slots__ = ("begin", "container", "item", "owner", "position", "start", "walk", "walked")

    def __init__(
        self,
        container: Any,
        item: Callable[[Any], Value],
        walked: Value,
        owner: Value,
        begin: Callable[[Any], Any],
        kind: type,
    ) -> None:
        super().__init__(iter(()), None, kind)
        self.container = container
        self.walked = walked
        self.item = item
        self.owner = owner
        self.begin = begin
        self.walk: Iterator[Any] | None = reversed(container) if begin is reversed else iter(container)
        self.start = list(container)
        self.position = 0

    def next(self, tx: Capture) -> Value | None:
        tx.side.epoch += 1
        if self.walk is None:
            return None
        element = tx.exact(next, self.walk, _END)
        if element is _END:
            self.walk = None
            return None
        self.position += 1
        return self.item(element)

    def _remaining(self) -> tuple[Any, list[Value]]:
        if self.walk is None:
            return iterator_over, []
        now = self.container
        if len(now) != len(self.start) or not all(x is y for x, y in zip(now, self.start, strict=True)):
            raise GraphBreak("QB10", f"the walk of {self.owner.describe()} that has changed")
        return iterator_at, [self.owner, ConstantValue(self.position), ConstantValue(self.begin)]

    def reconstruct(self, cg: CodeGen) -> None:
        cg.plan.side.replay(cg, self.walked)  # which would end the walk
        cg.plan.side.fill_before_walk(cg, self.walked)
        super().reconstruct(cg)

    def hold(self, holder: Value, cls: type) -> None:
        self.owner = holder
        self.begin = getattr(cls, "__reversed__" if self.begin is reversed else "__iter__")


def iterator_over(*items: Any) -> Any:
    """Runs in the emitted code."""
    return iter(items)


def _ended(kind: type) -> Any:
    """Runs in the emitted code: an iterator of that type with nothing left."""
    iterator = _ENDED_KINDS[kind]()
    next(iterator, None)  # that of text beyond ASCII, of which an empty one has another type
    return iterator


def iterator_at(container: Any, position: int, begin: Any = iter) -> Any:
    """Runs in the emitted code: the walk of a container, so many elements on."""
    iterator = begin(container)
    for _ in range(position):
        next(iterator)
    return iterator


def _sequence_iterator(sequence: Any, position: int, begin: Any) -> Any:
    """Runs in the emitted code."""
    iterator = begin(sequence)
    if position:
        iterator.__setstate__(position)
    return iterator


def _sequence_iterator_backwards(sequence: Any, position: int) -> Any:
    """Runs in the emitted code."""
    iterator = reversed(sequence)
    iterator.__setstate__(position)
    return iterator


class GeneratorFrame(Protocol):
    """What generators ask of the frame that is interpreted for them."""

    code: types.CodeType
    started: bool
    finished: bool
    result: Value

    def resume_generator(self, value: Value) -> Value | None:
        """Run to the next yield; None when the function returned."""

    def throw_into(self, error: Value) -> Value | None:
        """Raise where it is suspended, and run on."""

    def may_clean_up(self) -> bool:
        """Whether closing it would run code of the program."""

    def suspended(self) -> tuple[types.FunctionType, list[Value]]:
        """A function whose generators stand where this one does once they are advanced, and its arguments."""

    def ended(self) -> types.FunctionType:
        """A function whose generators end at once."""

    def forget(self) -> None:
        """Its variables go."""

    def release(self) -> None:
        """It lets go of everything, as the capture has ended."""


class Started:
    """A generator that was advanced. When nothing refers to its value any more, the program's own has gone, too.

    Values stand on stacks, in variables and in containers where the program's objects stand, so that the last reference
    to a generator's value goes when the last one to the generator does: between the same two instructions. It is
    closed then, as Python closes it.
    """

    __slots__ = ("frame", "value")

    def __init__(self, value: GeneratorValue, dropped: list[Started]) -> None:
        self.frame = value.frame
        self.value = weakref.ref(value, lambda _: dropped.append(self))

    def may_clean_up(self) -> bool:
        """Whether it is suspended where closing it would run code of the program."""
        return not self.frame.finished and self.frame.may_clean_up()

    def close(self, tx: Capture) -> None:
        """Close the generator, to which nothing refers.

        Raises:
            GraphBreak: it raises, which only ``sys.unraisablehook`` sees.
        """
        try:
            GeneratorValue(self.frame).close(tx)
        except ObservedError:
            raise GraphBreak("QB18", f"{self.describe()} raises when it is closed") from None

    def describe(self) -> str:
        """For messages."""
        return f"the generator {self.frame.code.co_name!r}"


class GeneratorValue(Value):
    """A generator whose frame is interpreted inside the region, resumed on demand.

    Args:
        call_of: the function and arguments that made it, of which it is made again while it has not been started.
    """

    __slots__ = ("__weakref__", "call_of", "frame", "running")

    mutable = True

    def __init__(self, frame: GeneratorFrame, *call_of: Any) -> None:
        self.source = None
        self.frame = frame
        self.call_of = call_of
        self.running = False

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.frame.finished

    @property
    def pytype(self) -> type:
        import types

        return types.GeneratorType

    def key(self, tx: Capture) -> Any:
        return IdentityKey(self)

    def send(self, tx: Capture, value: Value) -> Value | None:
        """Run to the next yield; None when the generator returns (see ``frame.result``)."""
        return self._run(tx, lambda: self.frame.resume_generator(value))

    def throw(self, tx: Capture, error: Value) -> Value | None:
        """Raise at the suspended yield."""
        return self._run(tx, lambda: self.frame.throw_into(error))

    def _run(self, tx: Capture, step: Any) -> Value | None:
        if self.finished:
            return None
        tx.side.epoch += 1
        if self.running:
            raise tx.observed(ValueError("generator already executing"))
        if not self.frame.started:
            tx.generators.append(Started(self, tx.dropped))
        self.running = True
        try:
            item: Value | None = step()
        except ObservedError as error:
            self.frame.finished = True
            if issubclass(error.value.pytype, StopIteration):
                raise tx.observed_because(RuntimeError("generator raised StopIteration"), error.value) from None
            raise
        finally:
            self.running = False
        return item

    def next(self, tx: Capture) -> Value | None:
        """The next element, or None at the end."""
        return self.send(tx, ConstantValue(None))

    def iterate(self, tx: Capture) -> Iterator[Value]:
        while (item := self.next(tx)) is not None:
            yield item

    def get_iter(self, tx: Capture) -> Value:
        return self

    def truth(self, tx: Capture) -> bool:
        return True

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.pytype)
        return method_of_container(tx, self, self.pytype, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__":
            return self
        if name in ("__next__", "send"):
            if args and not (self.frame.started or self.finished or _is_none(args[0])):
                raise tx.observed(TypeError("can't send non-None value to a just-started generator"))
            ended = self.finished
            item = self.send(tx, args[0] if args else ConstantValue(None))
            return self._end(tx, ended) if item is None else item
        if name == "throw":
            error = args[0].realize()
            if len(args) == 3 and (given := args[1].realize()).pytype is error.const():
                error, args = given, [given]  # the older form: type, instance, traceback
            if len(args) != 1 or not isinstance(error.pytype, type) or not issubclass(error.pytype, BaseException):
                raise GraphBreak("QB18", f"throw() of {display(error)} into a generator")
            if self.finished:
                raise ObservedError(error)
            item = self.throw(tx, error)
            return self._end(tx, False) if item is None else item
        if name == "close":
            self.close(tx)
            return ConstantValue(None)
        raise GraphBreak("QB18", f"method {name!r} of a generator")

    def _end(self, tx: Capture, again: bool) -> Value:
        """Say that the generator has returned, the first time with what."""
        result = self.frame.result.realize()
        if again or _is_none(result):
            raise tx.observed(StopIteration())
        raise tx.observed_value(StopIteration, [result])

    def close(self, tx: Capture) -> None:
        """``close()``."""
        if not self.finished and self.frame.started:
            exits = tx.left_by_errors
            try:
                if self.throw(tx, tx.observed(GeneratorExit()).value) is not None:
                    raise tx.observed(RuntimeError("generator ignored GeneratorExit"))
            except ObservedError as error:
                if error.value.pytype not in (GeneratorExit, StopIteration):
                    raise
                tx.left_by_errors = exits  # this one has gone with its traceback
        self.frame.finished = True

    def children(self) -> Iterator[Value]:
        return iter(self._remade()[1])

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(*self._remade())

    def _remade(self) -> tuple[Any, list[Value]]:
        """How to make the generator as it is now."""
        if self.finished:
            return _ended_generator, [ConstantValue(self.frame.ended())]
        if self.frame.started:
            make, state = self.frame.suspended()
            return _suspended_generator, [ConstantValue(make), *state]
        # Not started yet: calling the function again gives the same generator.
        function, args, kwargs = self.call_of
        names = TupleValue([ConstantValue(name) for name in kwargs])
        values = [function, TupleValue(list(args)), names, TupleValue(list(kwargs.values()))]
        return _call_generator, values

    def describe(self) -> str:
        return f"the generator {self.frame.code.co_name!r}"


def _is_none(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, ConstantValue) and value.value is None


def _call_generator(function: Any, args: Any, names: Any, values: Any) -> Any:
    """Runs in the emitted code."""
    return function(*args, **dict(zip(names, values, strict=True)))


def _suspended_generator(function: Any, *args: Any) -> Any:
    """Runs in the emitted code: see :func:`generator_code`."""
    generator = function(*args)
    generator.send(None)
    return generator


def _ended_generator(function: Any) -> Any:
    """Runs in the emitted code."""
    generator = function()
    next(generator, None)
    return generator
