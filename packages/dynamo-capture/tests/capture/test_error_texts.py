"""What errors of the interpreter say of objects of many classes: the same words captured and not.

Classes that C code makes are called by their full names, classes of Python by their plain ones, and those of properties
by their qualified ones.
"""

from __future__ import annotations

import collections
import functools  # noqa: F401  (names of the programs)
import itertools  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import types  # noqa: F401

import pytest
import torch

from dynamo_capture.values.classes import full_name


class Stores(property):
    def __get__(self, obj, cls=None):
        return "its own"

    def __set__(self, obj, value):
        obj.__dict__["stored"] = value

    def __delete__(self, obj):
        obj.__dict__["deleted"] = True


class Outer:
    class Inner:
        @property
        def p(self):
            return 1

        q = p

        @Stores
        def o(self):
            return 3


#: The interpreter cuts long names of classes off, in some texts.
Long = type("L" * 49 + "\u00e9" * 60, (), {})

OBJECTS = {
    "long": "Long()", "of a list": "type('L' * 120, (list,), {'__slots__': ()})()",
    "nested": "Outer.Inner()", "plain": "Outer()", "namespace": "types.SimpleNamespace()",
    "partial": "functools.partial(len, [1])", "chain": "itertools.chain([1])", "repeat": "itertools.repeat(1, 2)",
    "deque": "collections.deque()", "iterator of a deque": "iter(collections.deque())",
    "ordered": "collections.OrderedDict()", "keys of ordered": "collections.OrderedDict().keys()",
    "iterator of ordered": "iter(collections.OrderedDict())", "counter": "collections.Counter()",
    "list": "[]", "iterator of a list": "iter([])", "iterator of a set": "iter({1})", "generator": "(i for i in [1])",
    "zip": "zip([1])", "map": "map(len, [])", "enumerate": "enumerate([])", "reversed": "reversed((1,))",
    "items": "{}.items()", "range": "range(3)", "slice": "slice(1)", "function": "(lambda: 1)", "builtin": "len",
    "tensor": "x", "size": "x.shape", "parameter": "torch.nn.Parameter(x)", "device": "torch.device('cpu')",
    "dtype": "torch.float32", "class": "int", "super": "super(Outer.Inner, Outer.Inner())",
}  # fmt: skip
USES = (
    "o.none", "o.none = 1", "del o.none", "o()", "o[0]", "o[o]", "o['a'] = 1", "del o[0]", "len(o)", "iter(o)",
    "next(o)", "o + 1", "1 + o", "o < 1", "-o", "[0][o]", "{o: 1}", "{[]: o}", "int(o)", "abs(o)", "1 in o", "o.gi_code",
    "getattr(o, \"it's\")", "getattr(o, 'a\\n')", "o.__dict__", "bool(o)", "[].__getitem__(o)",
    "range(o)", "o @ o", "with o: pass", "a, b = o", "f(*o)", "f(**o)",
)  # fmt: skip


def f():
    return None


def program(given, use):
    """``use`` of the object that the expression ``given`` makes, and the error in words."""
    last = use.rsplit("; ")[-1]
    try:
        compile(last, "use", "eval")
        use = use.removesuffix(last) + f"r = {last}"
    except SyntaxError:
        pass
    lines = ["def program(x):", f" o = {given}", " r = None", " try:", f"  {use}", " except Exception as e:",
             "  return x + 1, type(e).__name__, str(e)",
             " return x + 1, type(r).__name__"]  # fmt: skip
    names = dict(globals())
    exec("\n".join(lines), names)
    return names["program"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OBJECTS)
def test_words(name, capture):
    wrong = []
    for use in USES:
        fn = program(OBJECTS[name], use)
        expected = fn(torch.ones(2))[1:]
        compiled = capture(fn, strict=False)
        found = compiled(torch.ones(2))[1:]
        reasons = [r.reason for r in compiled.report.fallbacks if "internal error" in r.reason]
        if found != expected or reasons:
            wrong.append((use, found, expected, reasons))
    assert wrong == []


@pytest.mark.parametrize(
    "use", ["o.p = 1", "o.q = 1", "del o.p", "del o.q", "o.o = 5; sorted(o.__dict__.items())",
            "del o.o; sorted(o.__dict__)", "o.o", "o.__dict__['o'] = 4; o.o", "o.o = 2; o.stored"],
)  # fmt: skip
def test_properties(use, capture):
    fn = program("Outer.Inner()", use)
    compiled = capture(fn, fullgraph=True)
    assert compiled(torch.ones(2))[1:] == fn(torch.ones(2))[1:]


EXTENTS = [f"x.{name}({dim})" for name in ("size", "stride")
           for dim in ("", "0", "-1", "-2", "1", "2", "-3", "True", "'a'", "None", "1.5", "dim=0", "dim=-3", "0, 1", "d=0")]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("shape", [(), (3,), (0,), (4, 5)])
def test_dimensions_that_there_are_not(shape, dynamic, capture):
    """A method of tensors says so in other words than a tuple."""
    for use in [*EXTENTS, "x.shape[2]", "x.size()[-3]"]:
        names = {}
        exec(f"def fn(x):\n try: r = {use}\n except Exception as e: r = (type(e).__name__, str(e))\n return x + 1, r", names)
        x = torch.ones(shape)
        assert capture(names["fn"], dynamic=dynamic)(x)[1] == names["fn"](x)[1], use


def test_names_of_classes():
    pairs = [(Outer.Inner, "Inner"), (collections.Counter, "Counter"), (type("a): b", (), {}), "a): b"), (bool, "bool"),
             (collections.deque, "collections.deque"), (functools.partial, "functools.partial"), (type, "type"),
             (random.Random, "Random"), (re.Pattern, "re.Pattern"), (torch.nn.Linear, "Linear")]  # fmt: skip
    assert [full_name(cls) for cls, _ in pairs] == [name for _, name in pairs]
