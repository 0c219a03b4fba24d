"""Python's language through capture: results, mutated arguments and exceptions equal plain execution's.

Each case is a function with a maker of its arguments; it runs three times on fresh arguments: plainly, captured
(the first call translates, the second hits the cache). `breaks` is the number of graph breaks expected; a case
without the mark must be one graph, without fallbacks.
"""

# ruff: noqa

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
import types
from typing import Any, NamedTuple

import pytest
import torch

from dynamo_capture import _native, graph_break
from dynamo_capture.contract import supports_dynamic_shapes
from dynamo_capture.frontend import optimize
from prims.options import Options
from prims.report import Report

CASES: list[Any] = []


def case(*makers, breaks=0, graphs=None):
    """`makers` make one argument each; `breaks`/`graphs` state what capture is expected to do."""

    def register(fn):
        CASES.append(pytest.param(fn, makers, breaks, graphs, id=fn.__name__))
        return fn

    return register


def x():
    return torch.arange(6.0).reshape(2, 3) - 2


def y():
    return torch.tensor([[1.0, -1.0, 2.0], [0.5, 0.25, -3.0]])


def same(a, b):
    """Equal in type and value, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b))
    if isinstance(a, (set, frozenset, str, int, float, complex, type(None), type, range, slice)):
        return a == b or (a != a and b != b)
    if isinstance(a, BaseException):
        return str(a) == str(b)
    if isinstance(a, types.FunctionType):
        return a.__code__ is b.__code__
    if hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return a == b


def outcome(fn, args):
    """The result or the exception, and the arguments as they are afterwards."""
    try:
        return "returned", fn(*args), args
    except Exception as error:
        return "raised", error, args


def run_all(fn, makers, expected_breaks, graphs):
    def fresh():
        torch.manual_seed(0)
        return [make() for make in makers]

    expected = outcome(fn, fresh())
    report = Report()
    captured = []

    @supports_dynamic_shapes
    def backend(gm, inputs):
        captured.append(gm)
        return gm.forward

    compiled = optimize(fn, backend, options=Options(strict=True), report=report)
    for time in ("first", "second"):
        got = outcome(compiled, fresh())
        assert got[0] == expected[0], (time, got[1])
        assert same(got[1], expected[1]), (time, got[1], expected[1])
        assert same(list(got[2]), list(expected[2])), (time, got[2], expected[2])
    assert len(report.breaks) == expected_breaks, [b.reason for b in report.breaks]
    if expected_breaks == 0:
        assert not report.fallbacks, report.fallbacks
    if expected[0] == "returned" and expected_breaks == 0:
        assert len(captured) == (1 if graphs is None else graphs)


# ---------------------------------------------------------------- functions and closures


@case(x)
def closure_reads(a):
    k = 2

    def inner(v):
        return v * k

    k = 3
    return inner(a)


@case(x)
def nonlocal_writes(a):
    total = 0

    def add(v):
        nonlocal total
        total = total + v
        return total

    add(a)
    add(a * 2)
    return total


@case(x)
def nested_closures(a):
    def outer(n):
        def middle(m):
            def inner(v):
                return v * n + m

            return inner

        return middle

    return outer(2)(3)(a)


@case(x)
def returned_closure_over_constants(a):
    def scaled(k):
        return lambda v: v * k

    fns = [scaled(i) for i in range(3)]
    return sum(f(a) for f in fns)


@case(x, y)
def defaults_and_keywords(a, b):
    def f(p, q=2, *rest, k=3, **extra):
        return p * q + k + sum(rest) + sum(extra.values())

    return f(a), f(a, b), f(a, b, a, b), f(a, k=b), f(a, 1, 2, k=4, z=a, w=b), f(*[a, b], **{"k": 5})


@case(x)
def mutable_default(a):
    def f(v, acc=[]):  # noqa: B006
        acc.append(v)
        return len(acc)

    return f(a), f(a), a + 1


@case(x)
def recursion(a):
    def power(v, n):
        return v if n == 1 else v * power(v, n - 1)

    return power(a, 5)


@case(x)
def lambdas_and_partial(a):
    f = functools.partial(lambda p, q, r: p * q - r, 2, r=3)
    return f(a) + (lambda *v: v[0])(a)


@case(x, y)
def decorated(a, b):
    def twice(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * 2

        return wrapper

    @twice
    def add(p, q):
        return p + q

    return add(a, q=b)


GLOBAL_SCALE = 3
GLOBAL_LIST: list[int] = []


@case(x)
def reads_global(a):
    return a * GLOBAL_SCALE


@case(x)
def writes_global(a):
    global GLOBAL_SCALE
    GLOBAL_SCALE = GLOBAL_SCALE + 0
    return a + GLOBAL_SCALE


@case(x)
def appends_to_global(a):
    GLOBAL_LIST.append(1)
    del GLOBAL_LIST[:]
    return a + len(GLOBAL_LIST)


# ---------------------------------------------------------------- control flow


@case(x)
def loops(a):
    total = a
    for i in range(4):
        if i == 1:
            continue
        if i == 3:
            break
        total = total + i
    else:
        total = total * 100
    n = 0
    while n < 3:
        n += 1
        total = total - n
    else:
        total = total * 2
    return total


@case(x)
def iteration_helpers(a):
    out = []
    for i, (p, q) in enumerate(zip(a, a.flip(0)), start=1):
        out.append(p * i + q)
    for p in reversed(out):
        out[0] = out[0] + p
    for p, q in itertools.product([1, 2], [3]):
        out.append(a[0] * p * q)
    for p in itertools.chain([1], (2,), range(3, 4)):
        out.append(a[0] + p)
    return out, list(map(lambda v: v + 1, out)), list(filter(lambda n: n % 2, range(5)))


@case(x)
def comprehensions(a):
    rows = [r * 2 for r in a if r.shape[0] == 3]
    table = {f"k{i}": r + i for i, r in enumerate(rows)}
    numbers = {i % 3 for i in range(7)}
    nested = [[r + i for i in range(2)] for r in rows]
    gen = sum(r for r in rows)
    return rows, table, numbers, nested, gen


@case(x)
def comprehension_scoping(a):
    i = 10
    out = [i for i in range(3)]
    fns = [lambda k=k: k for k in range(3)]
    late = [lambda: k for k in range(3)]
    return a + i, out, [f() for f in fns], [f() for f in late]


@case(x)
def walrus_and_conditional(a):
    if (n := a.shape[0]) > 1:
        b = a * n
    c = b if n > 5 else -b
    return c, [m for v in range(4) if (m := v * 2) > 2], n < 3 < 5, n and 7 or 8


@case(x)
def match_statement(a):
    def f(v):
        match v:
            case 0:
                return a
            case int(n) if n > 5:
                return a * n
            case [p, q]:
                return a + p * q
            case [p, *rest]:
                return a - len(rest)
            case {"k": k, **others}:
                return a + k + len(others)
            case str():
                return -a
            case None | True:
                return a * 0
            case _:
                return a + 100

    return [f(v) for v in (0, 7, [2, 3], (1, 2, 3), {"k": 4, "z": 1}, "s", None, 2.5)]


@case(x)
def starred_assignment(a):
    p, *q = (a, 1, 2)
    *r, s = [1, 2, a]
    (t, u), v = (a, 1), 2
    w = [*q, *r]
    z = {**{"a": 1}, "b": 2}
    return p + 1, q, r, s, t, u, v, w, z


@case(x)
def chained_and_augmented(a):
    p = q = a
    p = p + 1
    lst = [1]
    other = lst
    lst += [2]
    n = 5
    n //= 2
    n **= 3
    n -= 1
    n %= 4
    n <<= 3
    n |= 1
    return p, q, other, n, lst is other


@case(x)
def asserts(a):
    assert a.dim() == 2, "two"
    assert isinstance(a, torch.Tensor)
    return a + 1


@case(x)
def delete_variables(a):
    b = a + 1
    c = b * 2
    del b
    d = {"p": 1, "q": 2}
    del d["p"]
    lst = [1, 2, 3]
    del lst[0], lst[-1]
    return c, d, lst


# ---------------------------------------------------------------- exceptions and with


@case(x)
def try_except(a):
    try:
        {}["missing"]
    except KeyError as error:
        a = a + len(error.args)
    try:
        [1][5]
    except (KeyError, IndexError):
        a = a * 2
    try:
        int("x")
    except ValueError:
        a = a - 1
    else:
        a = a * 100
    return a


@case(x)
def try_finally(a):
    log = []

    def f():
        try:
            log.append("try")
            return a + 1
        finally:
            log.append("finally")

    def g():
        for i in range(3):
            try:
                if i == 1:
                    continue
                if i == 2:
                    break
            finally:
                log.append(i)

    g()
    return f(), log


class Own(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


@case(x)
def own_exceptions(a):
    def f(n):
        if n > 1:
            raise Own(n)
        return n

    total = 0
    for i in range(4):
        try:
            total += f(i)
        except Own as error:
            total += error.value * 10
    return a + total


@case(x)
def exception_chain(a):
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except ValueError as error:
        return a + 1, type(error.__cause__).__name__, str(error)


@case(x)
def reraise(a):
    try:
        try:
            raise Own(3)
        except Own:
            a = a + 1
            raise
    except Own as error:
        return a * error.value


@case(x, breaks=1)
def raises_out(a):
    b = a + 1
    raise Own(b.shape[0])


@case(x, breaks=1)
def raises_from_callee(a):
    def f(v):
        return v["missing"]

    return f({"k": a + 1})


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


@case(x)
def own_context_manager(a):
    log = []
    with Manager(log) as m, Manager(log, True):
        a = a + len(m.log)
        raise_it = True
        if raise_it:
            raise Own(1)
    return a, log


@contextlib.contextmanager
def generator_manager(log):
    log.append("in")
    try:
        yield 5
    finally:
        log.append("out")


@case(x)
def generator_context_manager(a):
    log = []
    with generator_manager(log) as k:
        a = a + k
    with contextlib.suppress(KeyError):
        raise KeyError
    with contextlib.nullcontext(3) as n:
        a = a * n
    return a, log


@case(x)
def torch_modes(a):
    with torch.no_grad():
        b = a * 2
        inner = torch.is_grad_enabled()
    with torch.enable_grad():
        c = b + 1
    return b, c, inner, torch.is_grad_enabled()


# ---------------------------------------------------------------- generators


@case(x)
def generators(a):
    def count(n):
        for i in range(n):
            yield i
        return "done"

    def delegate():
        result = yield from count(2)
        yield result

    def echo():
        received = None
        while True:
            received = yield received

    e = echo()
    next(e)
    return a + sum(count(4)), list(delegate()), e.send(3), next(count(1), None), next(iter([]), "empty")


@case(x)
def generator_with_tensors(a):
    def scaled(v):
        for i in range(3):
            v = v * 2
            yield v + i

    first, *rest = scaled(a)
    return first, rest, max(i for i in range(3)), any(i > 1 for i in range(3)), all([True, 1])


# ---------------------------------------------------------------- classes and objects


class Base:
    factor = 2

    def __init__(self, v):
        self.v = v

    def value(self):
        return self.v * self.factor

    @property
    def doubled(self):
        return self.v * 2

    @doubled.setter
    def doubled(self, new):
        self.v = new / 2

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def plus(p, q):
        return p + q

    def __call__(self, k):
        return self.v + k

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return self.v[i]

    def __contains__(self, k):
        return k == 3

    def __eq__(self, other):
        return isinstance(other, Base) and self.factor == other.factor

    __hash__ = None

    def __add__(self, other):
        return type(self)(self.v + (other.v if isinstance(other, Base) else other))

    def __radd__(self, other):
        return self + other

    def __iter__(self):
        yield self.v
        yield self.factor

    def __bool__(self):
        return self.factor == 2


class Child(Base):
    factor = 3

    def __init__(self, v, extra=1):
        super().__init__(v)
        self.extra = extra

    def value(self):
        return super().value() + self.extra


@case(x)
def objects(a):
    c = Child.make(a)
    c.doubled = a * 4
    return c.value(), c.doubled, Base.plus(a, 1), c(2), len(c), c[0], 3 in c, 4 not in c, list(c)[1], c.factor


@case(x)
def operators_on_objects(a):
    b = Base(a) + Base(a) + 1
    s = sum([Base(a), Base(a)], 0)
    return b.v, s.v, Base(a) == Child(a), Base(a) != Base(a), bool(Child(a)), "yes" if Base(a) else "no"


@case(lambda: Base(x()))
def mutates_argument_object(b):
    b.v = b.v + 1
    b.new = 5
    b.lst = [1]
    b.lst.append(2)
    return b.value()


@case(x)
def returns_new_object(a):
    c = Child(a + 1, extra=4)
    c.note = "n"
    return c


@case(x)
def dynamic_attributes(a):
    b = Base(a)
    setattr(b, "w", 3)
    p = getattr(b, "w") + getattr(b, "nope", 10)
    has = hasattr(b, "w"), hasattr(b, "nope")
    delattr(b, "w")
    return a + p, has, hasattr(b, "w"), isinstance(b, (int, Base)), issubclass(Child, Base), type(b).__name__


class Getattr:
    def __init__(self):
        self.real = 1

    def __getattr__(self, name):
        if name.startswith("auto_"):
            return len(name)
        raise AttributeError(name)


@case(x, Getattr)
def custom_getattr(a, g):
    return a + g.real + g.auto_x, hasattr(g, "nope")


class Descriptor:
    def __get__(self, instance, owner):
        return 5 if instance is None else instance.k * 2

    def __set__(self, instance, value):
        instance.k = value


class WithDescriptor:
    d = Descriptor()

    def __init__(self):
        self.k = 1


@case(x, WithDescriptor)
def descriptors(a, w):
    w.d = 4
    return a * w.d


@dataclasses.dataclass
class Data:
    t: torch.Tensor
    n: int = 2
    items: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.t * self.n + len(self.items)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1


@case(x)
def dataclass_made(a):
    d = Data(a, items=[1, 2])
    e = Data(a + 1)
    return d.total(), e, Frozen(3).a, dataclasses.replace(Frozen(3), a=4).a


@case(lambda: Data(x(), 3))
def dataclass_argument(d):
    d.items.append("new")
    d.n += 1
    return d.total(), d


class Pair(NamedTuple):
    left: Any
    right: Any = 2


Triple = collections.namedtuple("Triple", "a b c")


@case(x)
def namedtuples(a):
    p = Pair(a + 1)
    q = Triple(1, b=2, c=a)
    left, right = p
    return p, q, p.left, q[2], left * right, q._replace(a=5), p._fields, q._asdict()


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@case(x, lambda: Color.BLUE)
def enums(a, c):
    k = {Color.RED: 1, Color.BLUE: 2}[c]
    return a * k + Level.HIGH, c is Color.BLUE, c.value, c.name, Level.LOW < Level.HIGH, Color("b"), Color["RED"]


@case(x)
def class_in_function(a):
    class Local:
        def f(self, v):
            return v + 1

    return Local().f(a)


# ---------------------------------------------------------------- containers


@case(x, lambda: [1, 2, 3])
def list_mutation(a, lst):
    lst.append(4)
    lst.extend((5, 6))
    lst.insert(0, 0)
    lst.remove(3)
    last = lst.pop()
    first = lst.pop(0)
    lst.reverse()
    lst[0] = 50
    lst[1:2] = [7, 8]
    lst *= 2
    lst.sort()
    return a + last + first, lst.index(50), lst.count(7), lst, lst[::-2], 7 in lst, lst + [1], [0] * 3


@case(x, lambda: {"p": 1, "q": 2})
def dict_mutation(a, d):
    d["r"] = a * 2
    d.update({"p": 10}, s=4)
    q = d.pop("q")
    missing = d.pop("nope", None)
    default = d.setdefault("t", [])
    default.append(1)
    got = d.get("zz", 3)
    keys, values, items = list(d), list(d.values()), list(d.items())
    e = d | {"z": 1}
    return a + q + got, missing, keys, values, items, "r" in d, len(d), e, {**d}


@case(x, lambda: {1, 2})
def set_mutation(a, s):
    s.add(3)
    s.discard(1)
    s.update([7, 8])
    s -= {7}
    other = {2, 3, 4}
    return a + len(s), s | other, s & other, s - other, s ^ other, s <= other, 8 in s, frozenset([1])


@case(x)
def other_containers(a):
    d = collections.defaultdict(list)
    d["k"].append(a)
    d["k"].append(1)
    o = collections.OrderedDict([("p", 1), ("q", 2)])
    o.move_to_end("p")
    q = collections.deque([1, 2], maxlen=3)
    q.append(3)
    q.appendleft(0)
    return d["k"][0] + 1, dict(o), list(q)


@case(x)
def counter(a):
    c = collections.Counter("abca")
    return a + c["a"], c.most_common(1)


@case(x)
def tuples(a):
    t = (1, a + 1, "s")
    u = t + (2,)
    return t[1:], u[-1], len(u), t * 2, t.index("s"), (1, 2) < (1, 3), tuple([a, 1]), tuple(range(3))


@case(x)
def slices_static(a):
    s = slice(0, 1)
    lst = list(range(10))
    return a[s], a[..., 0], a[:, None], a[-1], a[0, 1:], a[[0, 1], [1, 2]], lst[s], lst[::-3], a[1][2] + 1


@case(x)
def sorting(a):
    rows = [(2, "b"), (1, "c"), (3, "a")]
    p = sorted(rows)
    q = sorted(rows, key=lambda r: r[1], reverse=True)
    r = sorted({"z": 1, "y": 2}.items(), key=operator.itemgetter(1))
    return a + min(3, 1) + max([1, 5]), p, q, r, min(rows, key=lambda v: v[1]), max("abc"), sum([1, 2], 10)


@case(x)
def strings(a):
    n = a.shape[1]
    s = f"{n}-{n:03d}-{'q'!r}-{1.5:.2f}-{n=}"
    t = "a,b".split(",") + ["%s:%d" % ("k", 3)] + ["{} {x}".format(1, x=2)]
    return a + len(s), s, t, "-".join(t), s.upper(), s.startswith("3"), "b" in "abc", "x" * 3, s[0], ord("a"), chr(98)


@case(x)
def numbers(a):
    k = divmod(7, 2), round(2.567, 1), abs(-3), pow(2, 5), int("12"), float("1.5"), bool([]), complex(1, 2)
    m = math.sqrt(4.0), math.floor(2.7), math.ceil(2.1), math.pi, math.prod([1, 2, 3]), math.log(math.e)
    return a * 2.5 + 7 // 2 - 7 % 4, k, m, 1 / 4, 2**-1, ~5, -(-3), 5 & 3, hex(17), isinstance(True, int)


@case(x)
def operator_module(a):
    get = operator.attrgetter("shape")
    return operator.add(a, 1), operator.mul(a, a), get(a)[0], operator.itemgetter(0)(a), operator.neg(a)


@case(x)
def identity_and_none(a):
    b = a
    n = None
    return a is b, a is not n, n is None, not n, a + 0, type(n).__name__, type(a) is torch.Tensor


@case(x)
def zip_and_unpack(a):
    p, q = zip(*[(1, 2), (3, 4)])
    d = dict(zip("ab", [a, 1]))
    e = dict(k=1, **{"z": 2})
    return p, q, d, e, list(enumerate("ab")), list(reversed([1, 2])), functools.reduce(lambda s, v: s + v, [a, a, 1])


@case(x)
def shallow_and_deep_copies(a):
    lst = [1, [2]]
    p = lst.copy()
    p.append(3)
    q = list(lst)
    q[1].append(4)
    d = {"k": lst}
    e = d.copy()
    e["z"] = 1
    return a + 1, lst, p, q, d, e, copy.copy(lst)


# ---------------------------------------------------------------- aliasing and identity


@case(lambda: [x(), x()])
def aliasing_inside_an_argument(lst):
    lst[0] = lst[0] + 1
    other = lst
    other.append(lst[0] * 2)
    return len(lst)


def test_aliased_arguments():
    def fn(p, q, lst):
        p.append(1)
        lst.append(len(q))
        return p is q, lst

    @supports_dynamic_shapes
    def backend(gm, inputs):
        return gm.forward

    compiled = optimize(fn, backend, options=Options(strict=True))
    shared = [0]
    assert compiled(shared, shared, []) == (True, [2])
    assert shared == [0, 1]
    assert compiled([0], [0], []) == (False, [1])
    shared = [0]
    assert compiled(shared, shared, []) == (True, [2])


@case(x)
def returns_the_argument(a):
    b = a + 1
    return a, b, a


@case(lambda: {"t": x()})
def returns_argument_container(d):
    d["u"] = d["t"] * 2
    return d


@case(x)
def same_object_twice(a):
    lst = [a + 1]
    return lst, lst, {"k": lst}


def test_identity_of_results():
    def fn(a, lst):
        new = [a + 1]
        return a, lst, new, new

    compiled = optimize(fn, supports_dynamic_shapes(lambda gm, i: gm.forward), options=Options(strict=True))
    for _ in range(2):
        a, lst = torch.ones(2), [1]
        r = compiled(a, lst)
        assert r[0] is a and r[1] is lst and r[2] is r[3]


@case(x)
def inplace_tensor_ops(a):
    b = a.clone()
    b.add_(1)
    b[0] = 5
    b[:, 1] *= 2
    b.relu_()
    return b


@case(x)
def inplace_on_argument(a):
    a.mul_(2)
    a[0, 0] = 7
    return a + 1


@case(x)
def inplace_through_a_view(a):
    v = a[0]
    v.add_(10)
    return a.sum(), v


# ---------------------------------------------------------------- breaks in the middle


@case(x, breaks=1)
def break_keeps_locals(a):
    b = a + 1
    k = [1, 2]
    d = {"k": b}
    graph_break()
    k.append(3)
    return b * 2, k, d


@case(x, breaks=1)
def break_inside_an_expression(a):
    return [a + 1, graph_break(), a * 2][2] + len(f"{a.shape[0]}")


@case(x, breaks=1)
def break_with_closures(a):
    k = 1

    def f(v):
        return v * k

    k = 2
    b = f(a)
    graph_break()
    k = k + 1
    return f(b), k


@case(x, breaks=1)
def break_in_try(a):
    log = []
    try:
        b = a + 1
        graph_break()
        c = b * 2
        raise Own(4)
    except Own as error:
        log.append(error.value)
    finally:
        log.append("finally")
    return b + c, log


@case(x, breaks=2)
def breaks_in_with(a):
    with torch.no_grad():
        b = a * 2
        graph_break()
        inner = torch.is_grad_enabled()
        c = b + 1
    graph_break()
    return c * 2, inner, torch.is_grad_enabled()


@case(x, lambda: [0], breaks=1)
def break_after_mutation(a, lst):
    lst.append(1)
    b = a + len(lst)
    graph_break()
    lst.append(2)
    return b + len(lst)


class Breaking(Base):
    def value(self):
        v = self.v + 1
        graph_break()
        return super().value() + v


@case(x, breaks=1)
def break_in_a_callee(a):
    return Breaking(a).value() * 2


@case(x, breaks=1)
def break_before_a_generator_expression(a):
    graph_break()
    return sum(r for r in a)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_data_dependent_branch(sign):
    def fn(a):
        b = a * 2
        if b.sum() > 0:
            return b + 1
        return b - 1

    report = Report()
    compiled = optimize(fn, supports_dynamic_shapes(lambda gm, i: gm.forward), options=Options(strict=True), report=report)
    for _ in range(2):
        a = torch.ones(3) * sign
        assert torch.equal(compiled(a), fn(a))
    assert len(report.graphs) == 2


@pytest.mark.parametrize(("fn", "makers", "breaks", "graphs"), CASES)
def test_case(fn, makers, breaks, graphs):
    run_all(fn, makers, breaks, graphs)
    _native.reset_code(fn.__code__)
