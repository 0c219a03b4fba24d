"""Numbers that Python gives when the region runs: draws of ``random``, readings of a clock.

They are taken before the graph runs, in the program's order, and are inputs of the graph whose values capture does not
know: a question about one (``if random.random() < 0.5``) ends the graph. A generator is afterwards what it is in eager:
whoever else may draw from it ends the region before (:func:`comes_too_early`), and where the graph raises, it gets its
state back before the frame runs again without capture. A clock is read where no operator of the region has come yet, so
that what a program measures is not less than what it has waited for.
"""

from __future__ import annotations

import _random
import functools
import operator
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import EarlierEnd, GraphBreak
from dynamo_capture.first_calls import FirstCall
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.objects import UNKNOWN, ObjectValue
from dynamo_capture.values.tensor import SymValue
from dynamo_capture.values.torch_calls import special
from dynamo_capture.values.written import may_run_programs_code

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["comes_too_early", "draw_natively"]

_CLOCKS = (time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time)
_CLOCKS_NS = (time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.process_time_ns, time.thread_time_ns)
_Random = random.Random
_FLOATS: tuple[Any, ...] = (
    _Random.uniform, _Random.triangular, _Random.normalvariate, _Random.lognormvariate, _Random.expovariate,
    _Random.gauss, _Random.vonmisesvariate, _Random.gammavariate, _Random.betavariate, _Random.paretovariate,
    _Random.weibullvariate,
)  # fmt: skip
_INTS: tuple[Any, ...] = (_Random.randint, _Random.randrange)
#: What changes ``gauss_next`` too.
_KEEPS_ONE = (_Random.gauss, _Random.seed)
#: No draw is beyond that, so that sums of a few are 64-bit numbers too.
_LARGEST = 2**62


def comes_too_early(tx: Capture) -> EarlierEnd | None:
    """Where the region ends because code of the program's that the graph runs may see the draws come first."""
    end = tx.first.end()
    return end if end is not None and any(map(may_run_programs_code, tx.graph.graph.nodes)) else None


# --- draws ------------------------------------------------------------------------------------------------------------


def _float_draw(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [value.realize() for value in (*args[1:], *kwargs.values())]
    if fn is _Random.uniform and any(isinstance(value, SymValue) for value in given):
        # It refuses no numbers, and those that change are handed over from where they come from.
        if any(value.pytype not in (int, float) or (type(value) is SymValue and not value.source) for value in given):
            raise _refused(fn)
    elif type(_tried(tx, fn, args, kwargs)) is not float:  # triangular(1, 1)
        raise _refused(fn)
    return _draw(tx, fn, args, kwargs)


def _int_draw(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if type(_tried(tx, fn, args, kwargs)) is not int:
        raise _refused(fn)
    given = _constants(fn, [*args[1:], *kwargs.values()])
    if kwargs or any(type(number) is not int for number in given):
        raise _refused(fn)
    if fn is _random.Random.getrandbits:
        low, high = 0, 2 ** given[0] - 1
    else:
        every = range(given[0], given[1] + 1) if fn is _Random.randint else range(*given)
        low, high = min(every[0], every[-1]), max(every[0], every[-1])
    return _draw(tx, fn, args, kwargs, low, high)


@special(_Random.choice)
def _choice(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = _Random.choice
    sequence: Any = args[1].realize() if len(args) == 2 and not kwargs else None
    if isinstance(sequence, (ListValue, TupleValue)):
        numbers = tuple(_constants(fn, sequence.items))
    elif type(sequence) is ConstantValue and type(sequence.value) is range:
        numbers = tuple(sequence.value)
    else:
        raise _refused(fn)
    given = [args[0], ConstantValue(numbers)]
    _tried(tx, fn, given, {})  # an empty one
    kinds = set(map(type, numbers))
    if kinds == {float}:
        return _draw(tx, fn, given, {})
    if kinds == {int}:
        return _draw(tx, fn, given, {}, min(numbers), max(numbers))
    raise _refused(fn)


class _Local(Value):
    """What a first call has left in a variable of the emitted code."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.source = None
        self.name = name

    def reconstruct(self, cg: CodeGen) -> None:
        cg.emit("LOAD_FAST", self.name)


@special(_Random.sample)
def _sample(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(_several(tx, _Random.sample, args, kwargs))


@special(_Random.choices)
def _choices(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(_several(tx, _Random.choices, args, kwargs))


@special(_Random.shuffle)
def _shuffle(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    target = args[1].realize() if len(args) == 2 and not kwargs else None
    if type(target) is not ListValue:
        raise _refused(_Random.shuffle)
    if len(target.items) > 1:
        for at, value in enumerate(_several(tx, _shuffled, args, kwargs)):
            target.setitem(tx, ConstantValue(at), value)
    return ConstantValue(None)


def _shuffled(generator: Any, items: Any) -> list[Any]:
    """Runs in the emitted code."""
    found = list(items)
    _Random.shuffle(generator, found)
    return found


def _several(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """The numbers that a call draws of a sequence of numbers: one call, whose results are taken apart."""
    generator = _generator(tx, fn, args[0]) if args else None
    given = [_plain(fn, value) for value in args[1:]]
    named = {name: _plain(fn, value) for name, value in kwargs.items()}
    population: Any = given[0] if given else named.get("population")
    tried = tx.exact(fn, _Random(0), *given, **named)
    kinds = set(map(type, population)) if isinstance(population, (list, tuple, range)) else set()
    if kinds not in ({int}, {float}) or not tried or len(tried) > _MOST_DRAWN or "counts" in named:
        raise _refused(fn)
    bounds = (min(population), max(population)) if kinds == {int} else None
    if bounds is not None and not -_LARGEST <= bounds[0] <= bounds[1] <= _LARGEST:
        raise _refused(fn)
    name = tx.first.new_name()
    constants = [ConstantValue(_fixed(each)) for each in given]
    by_name: dict[str, Value] = {key: ConstantValue(_fixed(each)) for key, each in named.items()}
    call = FirstCall(fn, *_given([generator, *constants], by_name), name, False, generator)  # type: ignore[list-item]
    _make_first(tx, call)
    if bounds is not None and bounds[0] == bounds[1]:
        return [ConstantValue(bounds[0])] * len(tried)
    drawn = _Local(name)
    return [_take(tx, operator.getitem, [drawn, ConstantValue(at)], {}, bounds, None) for at in range(len(tried))]


#: Numbers that one call gives, each of which is an input of the graph.
_MOST_DRAWN = 64


def _plain(fn: Any, value: Value) -> Any:
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return value.pytype(_constants(fn, value.items))
    return _constants(fn, [value])[0]


def _fixed(given: Any) -> Any:
    return tuple(given) if type(given) is list else given


@special(_Random.seed)
def _seed(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    generator = _generator(tx, _Random.seed, args[0])
    given = _constants(_Random.seed, args[1:])
    if kwargs or len(given) > 1 or type(given[0] if given else None) not in (int, type(None)):
        raise _refused(_Random.seed)
    _make_first(tx, FirstCall(_Random.seed, *_given([generator, *args[1:]], {}), generator=generator))
    return ConstantValue(None)


@special(_Random._randbelow_with_getrandbits, _Random._randbelow_without_getrandbits)  # type: ignore[attr-defined]
def _below(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB16", "a draw that decides what is done")  # shuffle, sample


for _fns, _handler in ((_FLOATS, _float_draw), (_INTS, _int_draw)):
    for _fn in _fns:
        special(_fn)(functools.partial(_handler, _fn))


def draw_natively(tx: Capture, descriptor: Any, owner: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method in C of ``random.Random``."""
    if descriptor is _random.Random.random and not args and not kwargs:
        return _draw(tx, descriptor, [owner], {})
    if descriptor is _random.Random.getrandbits:
        return _int_draw(descriptor, tx, [owner, *args], kwargs)
    raise GraphBreak("QB16", f"random.Random.{descriptor.__name__}()")


def _refused(fn: Any) -> GraphBreak:
    return GraphBreak("QB16", f"random.{fn.__name__}() of these arguments")


def _constants(fn: Any, values: list[Value]) -> list[Any]:
    found = [value.realize() for value in values]
    if not all(type(value) is ConstantValue for value in found):
        raise _refused(fn)
    return [value.value for value in found]  # type: ignore[attr-defined]


def _tried(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """What a generator of our own gives for the arguments.

    Raises:
        ObservedError: they are refused.
        GraphBreak: they are not known.
    """
    given = _constants(fn, args[1:])
    named = dict(zip(kwargs, _constants(fn, list(kwargs.values())), strict=True))
    return tx.exact(fn, _Random(0), *given, **named)


def _generator(tx: Capture, fn: Any, value: Value) -> ObjectValue:
    """The generator that a draw advances.

    Raises:
        GraphBreak: it is of another kind, made here, or the region has written to it.
    """
    generator = value.realize()
    if not isinstance(generator, ObjectValue) or generator.cls is not _Random or generator.obj is None:
        raise GraphBreak("QB16", f"random.{fn.__name__}() of a generator made here, or of another class")
    if any(attribute is not UNKNOWN for attribute in generator.attrs.values()):
        raise GraphBreak("QB16", f"random.{fn.__name__}() of a generator whose attributes are set here")
    return generator


def _draw(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], low: int | None = None, high: int = 0
) -> Value:
    """A draw that gives a float, or an int from ``low`` to ``high``."""
    generator = _generator(tx, fn, args[0])
    if low is not None and not -_LARGEST <= low <= high <= _LARGEST:
        raise _refused(fn)
    bounds = None if low is None else (low, high)
    return _take(tx, fn, [generator, *args[1:]], kwargs, bounds, generator)


def _take(
    tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], bounds: tuple[int, int] | None,
    generator: ObjectValue | None,
) -> Value:  # fmt: skip
    """The float, or the int within ``bounds``, that a call gives which comes first."""
    name = tx.first.new_name()
    _make_first(tx, FirstCall(fn, *_given(args, kwargs), name, bounds is None, generator))
    return tx.graph.number_input(name, fn.__name__, bounds)


def _make_first(tx: Capture, call: FirstCall) -> None:
    """Have a call made before the graph runs.

    Raises:
        GraphBreak: it has to be made where it stands.
    """
    fn, generator = call.fn, call.generator
    if not tx.takes_numbers or not tx.graph.is_outermost:
        raise GraphBreak("QB16", f"{'random' if generator is not None else 'time'}.{fn.__name__}()")
    if generator is not None:
        step = tx.frames[0].call_step()  # type: ignore[attr-defined]
        brk = GraphBreak("QB16", f"random.{fn.__name__}(), where the graph runs code that may draw as well")
        brk.where = tx.location()
        call = replace(call, end=EarlierEnd(step, brk))
        if tx.raising.met is None:
            tx.raising.met = step
        if fn in _KEEPS_ONE and isinstance(generator, ObjectValue):
            generator.attrs["gauss_next"] = UNKNOWN
    tx.side.epoch += 1
    tx.first.add(call)


def _given(args: list[Value], kwargs: dict[str, Value]) -> tuple[tuple[Value, ...], dict[str, Value]]:
    return tuple(value.realize() for value in args), {name: value.realize() for name, value in kwargs.items()}


# --- clocks -----------------------------------------------------------------------------------------------------------


def _read_clock(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs:
        tx.exact(fn, *args, **kwargs)
    if tx.graph.op_count:
        raise GraphBreak("QB16", f"time.{fn.__name__}() after an operator")
    return _take(tx, fn, [], {}, (-_LARGEST, _LARGEST) if fn in _CLOCKS_NS else None, None)


for _clock in (*_CLOCKS, *_CLOCKS_NS):
    builtin(_clock)(functools.partial(_read_clock, _clock))
