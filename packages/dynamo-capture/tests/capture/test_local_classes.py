"""Classes that a region makes: what is in the class x where it goes x what changes between calls."""

from __future__ import annotations

import collections
import dataclasses
import enum

import pytest
import torch

SCALE = 2
LOG: list = []


class Base:
    kind = 10

    def __init__(self, value=1):
        self.value = value

    def get(self):
        return self.value + self.kind


def attributes(x, n):
    class C:
        kind = n
        name = "c"
        pair = (1, 2)
        items = [n, x]

        def get(self, k=1):
            return self.kind + k

    c = C()
    c.items.append(3)
    return x * c.get() + len(C.items), c.get(5), C.kind, C.name, c.pair, C.__name__, C.__qualname__, C.__module__


def closures(x, n):
    y = x * 2

    class C:
        def get(self):
            return y + n

        def set(self):
            nonlocal y
            y = y + 1
            return self

    n = n + 1
    return C().set().get(), y


def inherits(x, n):
    class C(Base):
        kind = SCALE

        def __init__(self, value):
            super().__init__(value + n)
            self.more = x

        def get(self):
            return super().get() * 2

    c = C(3)
    return c.more * c.get(), isinstance(c, Base), issubclass(C, Base), C.__mro__[1] is Base, c.value, type(c) is C


def of_dict(x, n):
    class C(dict):
        def total(self):
            return sum(self.values())

    class D(list):
        kind = 3

        def get(self, k):
            return self[0] * k + self.kind

    return x * C(a=n, b=2).total(), D([n, 2]).get(4)


def descriptors(x, n):
    class C:
        def __init__(self, v):
            self.v = v

        @property
        def double(self):
            return self.v * 2

        @staticmethod
        def plain(v):
            return v + n

        @classmethod
        def make(cls, v):
            return cls(v + 1)

    return C.make(x).double, C.plain(n), C(1).plain(2), C.make(n).v


def operators(x, n):
    class V:
        def __init__(self, a):
            self.a = a

        def __add__(self, other):
            return V(self.a + other.a)

        def __eq__(self, other):
            return self.a == other.a

        def __len__(self):
            return n

        def __getitem__(self, i):
            return self.a + i

        def __call__(self, y):
            return y * self.a

        def __enter__(self):
            LOG.append("in")
            return self

        def __exit__(self, *error):
            LOG.append("out")

    v = V(n) + V(2)
    with v as w:
        y = w(x)
    return y, v == V(n + 2), len(v), v[3], bool(v)


def by_type(x, n):
    T = type("T", (Base,), {"kind": n, "more": lambda self: self.kind + 1})
    return x * T(2).get(), T().more(), T.__name__, type("E", (), {})().__class__.__name__


def named(x, n):
    P = collections.namedtuple("P", "left right", defaults=[5])
    p = P(x * n)
    return p.left + p.right, P(1, 2)._replace(left=n).left, P._fields, len(p), P(1, 2) == (1, 2)


def in_a_loop(x, n):
    kinds = []
    for i in range(3):

        class C:
            kind = i * n

            def get(self):
                return self.kind

        kinds.append(C)
    return [x * k().get() for k in kinds], kinds[0] is kinds[1]


def conditional(x, n):
    class C:
        if n > 3:

            def get(self):
                return 1
        else:

            def get(self):
                return 2

        for j in range(2):
            last = j
        del j

    return x * C().get(), hasattr(C, "j"), C.last


FUNCTIONS = [attributes, closures, inherits, of_dict, descriptors, operators, by_type, named, in_a_loop, conditional]


def same(a, b):
    assert type(a) is type(b) or (type(a).__name__ == type(b).__name__ and "<locals>" in type(a).__qualname__)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def run(fn, *args):
    LOG.clear()
    return fn(*args), list(LOG)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph(capture, fn, monkeypatch):
    c = capture(fn, fullgraph=True, recompile_limit=20)
    x = torch.rand(3)
    for n, scale, kind in ((2, 2, 10), (5, 2, 10), (7, 3, 10), (2, 3, 11), (2, 2, 10)):
        monkeypatch.setitem(globals(), "SCALE", scale)
        monkeypatch.setattr(Base, "kind", kind)
        same(run(c, x, n), run(fn, x, n))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_break_behind_it(capture, fn):
    def broken(x, n):
        y = x + 1
        before = fn(y, n)
        if x.sum() > 0:
            y = y * 2
        return before, fn(y, n)

    c = capture(broken, recompile_limit=20)
    for n, sign in ((2, 1), (5, -1), (5, 1)):
        x = torch.rand(3) * sign
        same(run(c, x, n), run(broken, x, n))
    assert len(c.graphs) >= 3


def leaves_instance(x, n):
    class C:
        kind = n

        def get(self):
            return self.kind

    y = x * 2
    c = C()
    c.y = y
    return y + c.get(), c, C


def leaves_method(x, n):
    class C:
        def get(self):
            return n

    return x + C().get(), C().get


def leaves_in_list(x, n):
    class C:
        kind = n

    return x * C.kind, [{"c": C()}]


def leaves_by_side_effect(x, n):
    class C:
        kind = n

    LOG.append(C())
    return x * C.kind


def leaves_named(x, n):
    P = collections.namedtuple("P", ["a", "b"])
    return P(x * n, 2)


def live_at_a_break(x, n):
    class C:
        kind = n

        def get(self):
            return self.kind

    c = C()
    y = x * c.get()
    if y.sum() > 0:
        y = y + 1
    return y * c.get(), type(c) is C


@pytest.mark.parametrize(
    "fn",
    [leaves_instance, leaves_method, leaves_in_list, leaves_by_side_effect, leaves_named, live_at_a_break],
    ids=lambda f: f.__name__,
)
def test_what_leaves_is_new_in_each_call(capture, fn):
    def computed(result):
        return result if isinstance(result, torch.Tensor) else result[0]

    def classes(result, log):
        found = [*result[1:], *log] if isinstance(result, tuple) and not hasattr(result, "_fields") else [result, *log]
        found = [v for f in found for v in (f if isinstance(f, list) else [f])]
        found = [v for f in found for v in (f.values() if isinstance(f, dict) else [f])]
        found = [getattr(f, "__self__", f) for f in found]
        return [f if isinstance(f, type) else type(f) for f in found]

    c = capture(fn, recompile_limit=20)
    seen = []
    for n in (2, 5, 7):
        x = torch.rand(3)
        expected, log = run(fn, x, n)
        wanted = [k.__qualname__ for k in classes(expected, log)]
        got, log = run(c, x, n)
        same(computed(got), computed(expected))
        assert [k.__qualname__ for k in classes(got, log)] == wanted
        made = [k for k in classes(got, log) if "<locals>" in k.__qualname__ or k.__name__ == "P"]
        assert not set(made) & set(seen)
        seen += made
        for k in made:
            assert getattr(k, "kind", n) == n
            assert k.__module__ == __name__
    assert c.graphs


def metaclass(x, n):
    class Meta(type):
        def __new__(mcs, name, bases, ns):
            LOG.append(name)
            return super().__new__(mcs, name, bases, ns)

    class C(metaclass=Meta):
        kind = n

    return x * C.kind


class Noted:
    def __init_subclass__(cls):
        LOG.append(cls.__name__)


def init_subclass(x, n):
    y = x + 1

    class C(Noted):
        kind = n

    return y * C.kind


def set_name(x, n):
    class Field:
        def __set_name__(self, owner, name):
            LOG.append((owner.__name__, name))

    class C:
        field = Field()
        kind = n

    return x * C.kind


def enumeration(x, n):
    class E(enum.Enum):
        A = n

    return x * E.A.value


def data_class(x, n):
    @dataclasses.dataclass
    class D:
        a: int
        b: int = 3

    return x * D(n).b + D(n).a


def written_later(x, n):
    class C:
        kind = n

    C.kind = n + 1
    C.extra = lambda self: 5
    return x * C.kind + C().extra()


def slots(x, n):
    class C:
        __slots__ = ("a",)

        def __init__(self):
            self.a = n

    try:
        C().b = 3
    except AttributeError:
        return x * C().a


def as_keys(x, n):
    class C:
        pass

    class D:
        pass

    table = {C: 1, D: 2}
    return x * table[D], len({C, D, C}), id(C) != id(D)


def raising(x, n):
    class Wrong(Exception):
        pass

    y = x * 2
    try:
        if n > 3:
            raise Wrong(n)
    except Wrong as error:
        return y + error.args[0], type(error).__name__
    return y


def refused(x, n):
    y = x * 2
    try:

        class C(bool):
            pass
    except TypeError as error:
        return y, str(error)


def unbound(x, n):
    y = x * 2
    try:

        class C:
            kind = no_such_name  # noqa: F821
    except NameError as error:
        return y, str(error)


def printed(x, n):
    class C:
        pass

    return x * 2, repr(C), f"{C.__name__}", str(C)


@pytest.mark.parametrize(
    "fn",
    [metaclass, init_subclass, set_name, enumeration, data_class, written_later, slots, as_keys, raising, refused,
     unbound, printed],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_others_are_eagers(capture, fn):
    c = capture(fn, recompile_limit=20)
    for n in (2, 5, 7):
        x = torch.rand(3)
        same(run(c, x, n), run(fn, x, n))
