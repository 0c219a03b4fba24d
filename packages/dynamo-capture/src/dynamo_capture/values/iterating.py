"""``zip``, ``map``, ``itertools`` and their like: the real ones, fed with values.

The real iterators pull from Python iterators over values (:class:`Pull`) and call Python functions that call the
program's. So what they do after an exception, at an end, or with one source that several of them share, is what they
always do. At a graph break they are made anew from their sources as those are then.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values import arith
from dynamo_capture.values.base import ObservedError, Value
from dynamo_capture.values.classes import find
from dynamo_capture.values.compare import equals
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.iterators import BackwardsIterator, GeneratorValue, IteratorValue, Pull, iterator_over
from dynamo_capture.values.objects import ObjectValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["FUNCTIONS", "ITERATORS", "Signature"]

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]


class Signature:
    """How many positional arguments, and which keywords, a handler knows the meaning of."""

    __slots__ = ("keywords", "least", "most")

    def __init__(self, least: int, most: int | None, *keywords: str) -> None:
        self.least = least
        self.most = sys.maxsize if most is None else most
        self.keywords = frozenset(keywords)

    def admits(self, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Whether a call is one of those."""
        return self.least <= len(args) <= self.most and (not kwargs or self.keywords.issuperset(kwargs))


#: Class -> handler of its calls.
ITERATORS: dict[type, Handler] = {}
#: Builtin function -> handler.
FUNCTIONS: dict[Any, Handler] = {}


def checked(name: str, signature: Signature, handler: Handler) -> Handler:
    """The handler, for calls that it knows the meaning of."""

    @functools.wraps(handler)
    def call(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not signature.admits(args, kwargs):
            raise GraphBreak("QB07", f"{name}() with these arguments")
        return handler(tx, args, kwargs)

    return call


def iterator(cls: type, least: int, most: int | None, *keywords: str) -> Callable[[Handler], Handler]:
    """Register what calling an iterator's class does."""

    def register(handler: Handler) -> Handler:
        ITERATORS[cls] = checked(cls.__name__, Signature(least, most, *keywords), handler)
        return handler

    return register


def _register_function(fn: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        FUNCTIONS[fn] = handler
        return handler

    return register


def _source(tx: Capture, value: Value) -> Any:
    """``iter(value)``; an existing iterator is advanced."""
    found: Any = value.realize().get_iter(tx)
    if not isinstance(found, (IteratorValue, GeneratorValue, ObjectValue)):
        raise GraphBreak("QB06", f"iteration over {found.describe()}")
    return found


def _sources(tx: Capture, args: list[Value]) -> list[Any]:
    return [_source(tx, arg) for arg in args]


def _pulls(tx: Capture, sources: list[Any]) -> list[Pull]:
    return [Pull(tx, source) for source in sources]


def _number(given: dict[str, Value], name: str, default: int) -> Any:
    return given[name].realize().const() if name in given else default


def _caller(tx: Capture, fn: Value) -> Callable[..., Value]:
    return lambda *args: fn.call(tx, list(args), {})


def _predicate(tx: Capture, fn: Value) -> Callable[[Value], bool]:
    """The truth of what ``fn`` gives for an element; of the element itself where it is None."""
    fn = fn.realize()
    if isinstance(fn, ConstantValue) and fn.value is None:
        return lambda item: item.realize().truth(tx)
    return lambda item: fn.call(tx, [item], {}).realize().truth(tx)


class NativeIterator(IteratorValue):
    """A real iterator over values, or over what ``convert`` makes values of.

    Args:
        iterator: the real one.
        rebuild: see :class:`IteratorValue`.
        kind: its type.
        convert: makes a value of an element.
    """

    __slots__ = ("__weakref__", "broken", "convert", "done", "last")

    def __init__(
        self,
        iterator: Iterator[Any],
        rebuild: Callable[[], tuple[Any, list[Value]]] | None,
        kind: type,
        convert: Callable[[Any], Value] | None = None,
    ) -> None:
        super().__init__(iterator, rebuild, kind)
        self.convert = convert
        #: The end was met.
        self.done = False
        #: Something was raised while an element was looked for.
        self.broken = False
        #: The last element.
        self.last: Value | None = None

    def remade(self, rebuild: Callable[[Any], tuple[Any, list[Value]]]) -> NativeIterator:
        """Itself, with ``rebuild`` of the iterator, which must not keep it: generators are closed when it goes."""
        self.rebuild = functools.partial(rebuild, weakref.proxy(self))
        return self

    def next(self, tx: Capture) -> Value | None:
        tx.side.epoch += 1
        try:
            item: Any = next(self.iterator, None)
        except ObservedError:
            self.broken = True
            raise
        if item is None:
            self.done = True
            return None
        self.last = item if self.convert is None else self.convert(item)
        return self.last

    def _left(self) -> tuple[Any, list[Value]]:
        if self.broken:
            raise GraphBreak("QB10", f"{self.describe()} whose elements raised")
        if self.rebuild is None and self.convert is not None:
            self.iterator = map(self.convert, self.iterator)
            self.convert = None
        return super()._left()


def _row(items: Any) -> Value:
    return TupleValue(list(items))


def _refuse_rebuild() -> tuple[Any, list[Value]]:
    raise GraphBreak("QB10", "an iterator of itertools that shares what it has taken")


class _StrictZip:
    """``zip(strict=True)`` over pulls."""

    def __init__(self, tx: Capture, pulls: list[Pull]) -> None:
        self.tx = tx
        self.pulls = pulls

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = []
        for i, pull in enumerate(self.pulls):
            item = next(pull, None)
            if item is None:
                if i == 0:
                    i = next((j for j, other in enumerate(self.pulls) if j and next(other, None) is not None), 0)
                    self._refuse(i, "longer")
                self._refuse(i, "shorter")
                raise StopIteration
            row.append(item)
        if not row:
            raise StopIteration
        return tuple(row)

    def _refuse(self, i: int, how: str) -> None:
        if i:
            others = "argument 1" if i == 1 else f"arguments 1-{i}"
            raise self.tx.observed(ValueError(f"zip() argument {i + 1} is {how} than {others}"))


# --- builtin iterators ----------------------------------------------------------------------------------------------


@iterator(enumerate, 1, 2, "start")
def _enumerate(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = (args[1] if len(args) > 1 else kwargs.get("start", ConstantValue(0))).realize().const()
    if type(start) is not int or (len(args) > 1 and kwargs):
        raise GraphBreak("QB07", "enumerate() from something that is no int")
    source = _source(tx, args[0])
    pull = Pull(tx, source)
    return NativeIterator(
        enumerate(pull, start), lambda: (enumerate, [source, ConstantValue(start + pull.count)]), enumerate,
        lambda pair: TupleValue([ConstantValue(pair[0]), pair[1]]),
    )  # fmt: skip


@iterator(zip, 0, None, "strict")
def _zip(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].realize().truth(tx)
    sources = _sources(tx, args)
    pulls = _pulls(tx, sources)
    rows = _StrictZip(tx, pulls) if strict else zip(*pulls, strict=False)
    return NativeIterator(rows, lambda: (_zip_strictly if strict else zip, sources), zip, _row)


def _zip_strictly(*iterators: Any) -> Any:
    """Runs in the emitted code."""
    return zip(*iterators, strict=True)


@iterator(map, 2, None)
def _map(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    sources = _sources(tx, args[1:])
    return NativeIterator(map(_caller(tx, fn), *_pulls(tx, sources)), lambda: (map, [fn, *sources]), map)


def _filtering(cls: Any) -> Handler:
    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fn = args[0].realize()
        source = _source(tx, args[1])
        return NativeIterator(cls(_predicate(tx, fn), Pull(tx, source)), lambda: (cls, [fn, source]), cls)

    return handler


iterator(filter, 2, 2)(_filtering(filter))
iterator(itertools.filterfalse, 2, 2)(_filtering(itertools.filterfalse))


@iterator(reversed, 1, 1)
def _reversed(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize()
    if isinstance(value, ObjectValue):
        if find(tx, value.cls, "__reversed__")[1] is not None:
            return value.call_method(tx, "__reversed__", [], {})
        n = value.length(tx).const()

        def element(i: int) -> Value:
            return value.getitem(tx, ConstantValue(i))

        return NativeIterator(map(element, range(n - 1, -1, -1)), _refuse_rebuild, reversed)
    if isinstance(value, (ListValue, TupleValue)) and isinstance(value.items, list):
        kind: type = type(reversed([])) if isinstance(value, ListValue) else reversed
        return BackwardsIterator(value, value.items, kind)
    if isinstance(value, ConstantValue) and isinstance(value.value, (str, bytes, range)):
        text, real = value.value, reversed(value.value)
        return NativeIterator(
            real, lambda: (reversed, [ConstantValue(text[: operator.length_hint(real)])]), type(real), ConstantValue
        )
    if find(tx, value.pytype, "__reversed__")[1] is None:
        raise GraphBreak("QB07", f"reversed() of {value.describe()}")
    return value.call_method(tx, "__reversed__", [], {})


@_register_function(iter)
def _iter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1:
        return args[0].realize().get_iter(tx)
    if len(args) != 2 or kwargs:
        raise GraphBreak("QB07", "iter() with these arguments")
    fn, sentinel = args[0].realize(), args[1].realize()
    results = _Calls(tx, fn, sentinel)
    kind = type(iter(int, 1))
    return NativeIterator(results, lambda: (iter, [fn, sentinel]) if results.fn else (iterator_over, []), kind)


class _Calls:
    """``iter(fn, sentinel)``."""

    def __init__(self, tx: Capture, fn: Value, sentinel: Value) -> None:
        self.tx = tx
        self.fn: Value | None = fn
        self.sentinel = sentinel

    def __iter__(self) -> Iterator[Value]:
        return self

    def __next__(self) -> Value:
        if self.fn is None:
            raise StopIteration
        try:
            result = self.fn.call(self.tx, [], {})
        except ObservedError as error:
            if issubclass(error.value.pytype, StopIteration):
                self.fn = None
                raise StopIteration from None
            raise
        if equals(self.tx, self.sentinel, result):
            self.fn = None
            raise StopIteration
        return result


# --- itertools ------------------------------------------------------------------------------------------------------


class _Outer:
    """The iterables that a chain goes through, each as a pull."""

    def __init__(self, tx: Capture, source: Any) -> None:
        self.tx = tx
        self.source = source
        self.active: Any = None

    def __iter__(self) -> Iterator[Pull]:
        return self

    def __next__(self) -> Pull:
        self.active = None
        iterable = self.source.next(self.tx)
        if iterable is None:
            raise StopIteration
        self.active = _source(self.tx, iterable)
        return Pull(self.tx, self.active)


def _chain_of(tx: Capture, iterables: Value) -> Value:
    outer = _Outer(tx, _source(tx, iterables))

    def rebuild() -> tuple[Any, list[Value]]:
        return _chain_on, [outer.source] if outer.active is None else [outer.source, outer.active]

    return NativeIterator(itertools.chain.from_iterable(outer), rebuild, itertools.chain)


def _chain_on(source: Any, *active: Any) -> Any:
    """Runs in the emitted code."""
    return itertools.chain.from_iterable(itertools.chain(active, source))


@iterator(itertools.chain, 0, None)
def _chain(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _chain_of(tx, TupleValue(args))


@_register_function(itertools.chain.from_iterable)
def _chain_from_iterable(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise GraphBreak("QB07", "chain.from_iterable() with these arguments")
    return _chain_of(tx, args[0])


@iterator(itertools.islice, 2, 4)
def _islice(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = slice(*[a.realize().const() for a in args[1:]])
    start, stop, step = bounds.start, bounds.stop, bounds.step
    if not all(part is None or (isinstance(part, int) and part >= 0) for part in (start, stop, step)) or step == 0:
        raise GraphBreak("QB07", "islice() with bounds that are no sizes")
    start, step = start or 0, step or 1
    source = _source(tx, args[0])
    pull = Pull(tx, source)
    def rebuild(result: _Counted) -> tuple[Any, list[Value]]:
        if result.done:
            return iterator_over, []
        begin = start + result.given * step
        begin = begin if stop is None else min(begin, stop)
        left = None if stop is None else stop - pull.count
        parts = [ConstantValue(x) for x in (begin - pull.count, left, step)]
        return itertools.islice, [source, *parts]

    return _Counted(itertools.islice(pull, start, stop, step), None, itertools.islice).remade(rebuild)


class _Counted(NativeIterator):
    """One that counts what it gave."""

    __slots__ = ("given",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.given = 0

    def next(self, tx: Capture) -> Value | None:
        item = super().next(tx)
        self.given += item is not None
        return item


@iterator(itertools.product, 0, None, "repeat")
def _product(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    pools = [arg.realize().unpack(tx) for arg in args] * _number(kwargs, "repeat", 1)
    return _combined(itertools.product, itertools.product(*pools), [TupleValue(pool) for pool in pools])


def _combined(cls: type, real: Any, parts: list[Value]) -> Value:
    """An iterator over combinations of ``parts``; one that is left is made anew and walked as far."""
    result = _Counted(real, None, cls, _row)
    return result.remade(lambda it: (_walked, [ConstantValue(cls), ConstantValue(it.given), *parts]))


def _walked(cls: Any, steps: int, *parts: Any) -> Any:
    """Runs in the emitted code."""
    found = cls(*parts)
    for _ in range(steps):
        next(found)
    return found


def _choosing(cls: Any) -> Handler:
    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        pool = args[0].realize().unpack(tx)
        sizes = [value.realize().const() for value in (*args[1:], *kwargs.values())]
        if not all(size is None or (type(size) is int and size >= 0) for size in sizes):
            raise GraphBreak("QB07", f"{cls.__name__}() of a length that is no size")
        return _combined(cls, cls(pool, *sizes), [TupleValue(pool), *map(ConstantValue, sizes)])

    return handler


iterator(itertools.permutations, 1, 2)(_choosing(itertools.permutations))
iterator(itertools.combinations, 2, 2)(_choosing(itertools.combinations))
iterator(itertools.combinations_with_replacement, 2, 2)(_choosing(itertools.combinations_with_replacement))


@iterator(itertools.repeat, 1, 2, "times")
def _repeat(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is None:
        return NativeIterator(itertools.repeat(args[0]), lambda: (itertools.repeat, [args[0]]), itertools.repeat)
    number = times.realize().const()
    if type(number) is not int:
        raise GraphBreak("QB07", "repeat() of something that is no number of times")
    real = itertools.repeat(args[0], number)
    left = lambda: ConstantValue(real.__length_hint__())  # type: ignore[attr-defined]
    return NativeIterator(real, lambda: (itertools.repeat, [args[0], left()]), itertools.repeat)


class _Counter:
    """``itertools.count`` with its next number at hand."""

    def __init__(self, now: Any, step: Any) -> None:
        self.now = now
        self.step = step

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item, self.now = self.now, self.now + self.step
        return item


@iterator(itertools.count, 0, 2, "start", "step")
def _count(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("start", "step"), args, strict=False)) | kwargs
    numbers = _Counter(_number(given, "start", 0), _number(given, "step", 1))
    if type(numbers.now) not in (int, float) or type(numbers.step) not in (int, float):
        raise GraphBreak("QB07", "count() of something that is no number")

    def rebuild() -> tuple[Any, list[Value]]:
        return itertools.count, [ConstantValue(numbers.now), ConstantValue(numbers.step)]

    return NativeIterator(numbers, rebuild, itertools.count, ConstantValue)


@iterator(itertools.zip_longest, 0, None, "fillvalue")
def _zip_longest(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fill = kwargs.get("fillvalue", ConstantValue(None))
    sources = _sources(tx, args)
    rows = itertools.zip_longest(*_pulls(tx, sources), fillvalue=fill)
    return NativeIterator(rows, lambda: (_zip_longest_with, [fill, *sources]), itertools.zip_longest, _row)


def _zip_longest_with(fill: Any, *iterators: Any) -> Any:
    """Runs in the emitted code."""
    return itertools.zip_longest(*iterators, fillvalue=fill)


@iterator(itertools.accumulate, 1, 2, "func", "initial")
def _accumulate(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = ConstantValue(None)
    fn = (args[1] if len(args) > 1 else kwargs.get("func", none)).realize()
    initial = kwargs.get("initial", none).realize()
    plain = isinstance(fn, ConstantValue)
    source = _source(tx, args[0])

    def combine(a: Value, b: Value) -> Value:
        if plain:
            return arith.binary(tx, operator.add, a.realize(), b.realize())
        return fn.call(tx, [a, b], {})

    first = None if isinstance(initial, ConstantValue) and initial.value is None else initial
    totals = itertools.accumulate(Pull(tx, source), combine, initial=first)

    def rebuild(result: NativeIterator) -> tuple[Any, list[Value]]:
        if result.last is None:
            return _accumulate_from, [source, fn, initial, ConstantValue(False)]
        return _accumulate_from, [source, fn, result.last, ConstantValue(True)]

    return NativeIterator(totals, None, itertools.accumulate).remade(rebuild)


def _accumulate_from(source: Any, fn: Any, initial: Any, begun: bool) -> Any:
    """Runs in the emitted code."""
    totals = itertools.accumulate(source, fn, initial=initial)
    if begun:
        next(totals)
    return totals


@iterator(itertools.pairwise, 1, 1)
def _pairwise(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = _source(tx, args[0])

    def rebuild(result: NativeIterator) -> tuple[Any, list[Value]]:
        if result.done:
            return iterator_over, []
        return _pairwise_on, [source] if result.last is None else [source, *result.last.unpack(tx)[1:]]

    return NativeIterator(itertools.pairwise(Pull(tx, source)), None, itertools.pairwise, _row).remade(rebuild)


def _pairwise_on(source: Any, *first: Any) -> Any:
    """Runs in the emitted code."""
    return itertools.pairwise(itertools.chain(first, source))


@iterator(itertools.starmap, 2, 2)
def _starmap(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    rows = _source(tx, args[1])

    def call(row: Value) -> Value:
        return fn.call(tx, row.realize().unpack(tx), {})

    return NativeIterator(map(call, Pull(tx, rows)), lambda: (itertools.starmap, [fn, rows]), itertools.starmap)


@iterator(itertools.takewhile, 2, 2)
def _takewhile(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    source = _source(tx, args[1])
    result = NativeIterator(itertools.takewhile(_predicate(tx, fn), Pull(tx, source)), None, itertools.takewhile)
    return result.remade(lambda it: (iterator_over, []) if it.done else (itertools.takewhile, [fn, source]))


@iterator(itertools.dropwhile, 2, 2)
def _dropwhile(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    source = _source(tx, args[1])
    result = NativeIterator(itertools.dropwhile(_predicate(tx, fn), Pull(tx, source)), None, itertools.dropwhile)
    return result.remade(lambda it: (itertools.dropwhile, [fn, source]) if it.last is None else (_dropped, [source]))


def _dropped(source: Any) -> Any:
    """Runs in the emitted code: ``dropwhile`` that drops nothing more."""
    return itertools.dropwhile(lambda item: False, source)


@iterator(itertools.compress, 2, 2)
def _compress(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data, selectors = _sources(tx, args)
    chosen = map(_predicate(tx, ConstantValue(None)), Pull(tx, selectors))
    return NativeIterator(
        itertools.compress(Pull(tx, data), chosen), lambda: (itertools.compress, [data, selectors]), itertools.compress
    )


@iterator(itertools.cycle, 1, 1)
def _cycle(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = _source(tx, args[0])
    result = NativeIterator(itertools.cycle(Pull(tx, source)), None, itertools.cycle)
    return result.remade(lambda it: _refuse_rebuild() if it.last or it.done else (itertools.cycle, [source]))


@_register_function(itertools.tee)
def _tee(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    count = args[1].realize().const() if len(args) == 2 else 2
    if kwargs or not args or len(args) > 2 or type(count) is not int or count < 0:
        raise GraphBreak("QB07", "tee() with these arguments")
    twins = itertools.tee(Pull(tx, _source(tx, args[0])), count)
    return TupleValue([NativeIterator(twin, _refuse_rebuild, type(twin)) for twin in twins])


class _Key:
    """A key that ``groupby`` compares."""

    __slots__ = ("tx", "value")

    def __init__(self, tx: Capture, value: Value) -> None:
        self.tx = tx
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and equals(self.tx, self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


@iterator(itertools.groupby, 1, 2, "key")
def _groupby(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = (args[1] if len(args) > 1 else kwargs.get("key", ConstantValue(None))).realize()
    plain = isinstance(fn, ConstantValue)

    def key(item: Value) -> _Key:
        return _Key(tx, item if plain else fn.call(tx, [item], {}))

    def pair(found: Any) -> Value:
        return TupleValue([found[0].value, NativeIterator(found[1], _refuse_rebuild, type(found[1]))])

    def rebuild(result: NativeIterator) -> tuple[Any, list[Value]]:
        if result.done:
            return iterator_over, []
        return _refuse_rebuild() if result.last or pull.count else (itertools.groupby, [source, fn])

    source = _source(tx, args[0])
    pull = Pull(tx, source)
    groups: Any = itertools.groupby(pull, key)
    return NativeIterator(groups, None, itertools.groupby, pair).remade(rebuild)


if sys.version_info >= (3, 12):

    @iterator(itertools.batched, 2, 2)
    def _batched(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        size = args[1].realize().const()
        if type(size) is not int or size < 1:
            raise GraphBreak("QB07", "batched() of a length that is no size")
        source = _source(tx, args[0])
        return NativeIterator(
            itertools.batched(Pull(tx, source), size), lambda: (itertools.batched, [source, ConstantValue(size)]),
            itertools.batched, _row,
        )  # fmt: skip
