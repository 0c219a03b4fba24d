"""CPython's classes, method by method, captured and not: the same results, errors and objects afterwards.

The programs are generated: every method with several arguments, operators, builtin functions. Each object is of the
class itself, of a subclass that adds nothing, or of one whose methods are its own and note that they were called.

A graph break is no difference. That breaking everywhere does not pass is seen to by programs that are captured whole.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import itertools
import math
import operator
import os
import random
import re
import types
from collections.abc import Iterator

import pytest
import torch

from dynamo_capture import optimize
from prims.options import Options
from prims.report import Report

#: What the own methods of subclasses were asked for.
NOTED: list[str] = []


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Plain:
    pass


Point = collections.namedtuple("Point", "x y")

#: Class: its name in a program, and the arguments that make an object.
CLASSES = {
    list: ("list", "[3, 1, 2]"), tuple: ("tuple", "(3, 1, 2)"), dict: ("dict", "{'a': 1, 'b': 2}"),
    set: ("set", "[16, 8, 0, 'z']"), frozenset: ("frozenset", "[16, 8, 0, 'z']"),
    collections.deque: ("collections.deque", "[3, 1, 2], 3"),
    collections.OrderedDict: ("collections.OrderedDict", "{'a': 1, 'b': 2}"),
    collections.defaultdict: ("collections.defaultdict", "list, {'a': 1, 'b': 2}"),
    collections.Counter: ("collections.Counter", "'abca'"),
    collections.ChainMap: ("collections.ChainMap", "{'a': 1}, {'b': 2}"),
    collections.UserList: ("collections.UserList", "[3, 1, 2]"),
    collections.UserDict: ("collections.UserDict", "{'a': 1, 'b': 2}"),
    str: ("str", "'a b,c'"), bytes: ("bytes", "b'a b'"), bytearray: ("bytearray", "b'ab'"), int: ("int", "7"),
    float: ("float", "2.5"), complex: ("complex", "1, 2"), bool: ("bool", "True"), range: ("range", "1, 9, 3"),
    slice: ("slice", "1, 5, 2"), types.SimpleNamespace: ("types.SimpleNamespace", "a=1, b=2"),
    Point: ("Point", "1, 2"), torch.Size: ("torch.Size", "[2, 3]"), array.array: ("array.array", "'i', [1, 2]"),
}  # fmt: skip
#: Other objects, by a program's expression.
OTHERS = (
    "{'a': 1, 'b': 2}.keys()", "{'a': 1, 'b': 2}.values()", "{'a': 1, 'b': 2}.items()",
    "collections.OrderedDict(a=1, b=2).keys()", "collections.OrderedDict(a=1, b=2).items()",
    "types.MappingProxyType({'a': 1})", "Color.RED", "Flags.A", "None", "Color",
)
_FINAL = (bool, range, slice, torch.Size)
_OWN = ("__iter__", "__getitem__", "__contains__", "__eq__", "__setitem__", "__delitem__", "keys", "get", "append",
        "add", "__missing__", "__hash__", "__add__", "__str__")  # fmt: skip
#: Methods that are about the object's class, its pickle or its memory.
_SKIPPED = frozenset(
    "__class__ __new__ __init_subclass__ __subclasshook__ __dir__ __getattribute__ __setattr__ __delattr__ __sizeof__ "
    "__reduce__ __reduce_ex__ __getstate__ __setstate__ __class_getitem__ __call__ __buffer__ __release_buffer__ "
    "__alloc__ __getnewargs__ __copy__ __deepcopy__ __prepare__ __subclasses__ __subclasscheck__ __instancecheck__ mro "
    "tofile fromfile".split()
)
_ARGUMENTS = (
    "", "0", "'a'", "1", "[1, 2]", "(3, 1)", "'zz', 5", "0, 9", "{'b': 5, 'c': 6}", "{16, 3}", "-1", "None", "2.5",
    "slice(0, 2)", "'a', 9, 9", "len", "[('a', 1)]", "b'a'", "frozenset([8])", "(q for q in [4, 5])",
    "collections.OrderedDict(b=2, a=1)", "key=lambda q: str(q)", "reverse=True", "default=5", "'a', default=5",
    "last=False", "'a', last=False", "maxsplit=1", "sep=' '", "keepends=True", "tabsize=2", "encoding='utf8'",
    "length=4, byteorder='big'", "2, 'big', signed=True", "a=5, c=6", "iterable=[1]", "x=9", "nope=1", "self=1",
    "maxlen=2", "[7], c=6",
)  # fmt: skip
_OPERATORS = ("+ - * / // % ** & | ^ << >> @ == != < <= > >= in is").split()
_OPERANDS = (
    "1", "2.5", "'a'", "(3, 1, 2)", "[3, 1, 2]", "{'a': 1, 'b': 2}", "{16, 'a'}", "None", "frozenset(['a', 'b'])",
    "collections.OrderedDict(b=2, a=1)", "collections.deque([3, 1, 2])", "True", "collections.Counter('ab')",
    "{'a': 1}.keys()", "int", "range(1, 9, 3)", "b'a'", "types.SimpleNamespace(a=1, b=2)", "Plain_list([3, 1, 2])",
    "Plain_dict(a=1, b=2)", "Own_list([3, 1, 2])", "torch.Size([2, 3])", "Point(1, 2)",
)  # fmt: skip
_EXPRESSIONS = (
    "len(o)", "list(o)", "tuple(o)", "set(o)", "dict(o)", "sorted(o)", "sum(o)", "max(o)", "min(o)", "any(o)", "all(o)",
    "max(o, key=lambda q: (NOTED.append(str(q)), str(q))[1])", "min(o, default=1)", "repr(o)", "str(o)", "bool(o)",
    "hash(o)", "iter(o)", "next(iter(o))", "list(reversed(o))", "list(enumerate(o, 2))", "sum(o, start=1)",
    "list(zip(o, o, strict=True))", "list(map(str, o))", "abs(o)", "int(o)", "float(o)", "round(o)", "format(o, '>20')",
    "f'{o!r:>20}'", "f'{o}'", "isinstance(o, collections.abc.Sequence)", "isinstance(o, collections.abc.Mapping)",
    "type(o)", "[*o]", "{*o}", "{**o}", "(lambda *a, **k: (a, k))(*o)", "(lambda *a, **k: (a, k))(**o)", "''.join(o)",
    "callable(o)", "collections.Counter(o)", "collections.deque(o)", "frozenset(o)", "-o", "+o", "~o", "not o",
    "divmod(o, 2)", "list(itertools.chain(o, o))", "list(itertools.accumulate(o, initial=0))", "dict.fromkeys(o)",
    "[(k, list(g)) for k, g in itertools.groupby(o)]", "sorted(o, reverse=True)", "sorted(o, key=str)", "vars(o)",
    "operator.index(o)", "getattr(o, 'a', 5)", "o[0]", "o['a']", "o[-1]", "o[1:]", "o[::-1]", "'a' in o", "1 in o",
    "list(itertools.islice(o, 1, 3))", "list(itertools.pairwise(o))", "list(itertools.combinations(o, 2))",
    "functools.reduce(lambda a, b: b, o)", "math.prod(o)", "list(p for p in o)", "{p: 1 for p in o}", "o | o",
    "list(o.keys() | ['q'])", "(o == o, o is o, o in [o], [o].index(o))", "o.popitem(last=False)",
)  # fmt: skip
_STATEMENTS = (
    "p, q = o\nr = p, q", "p, *q = o\nr = p, q", "del o[0]\nr = 0", "del o['a']\nr = 0", "o[0] = 9\nr = 0",
    "o['a'] = 9\nr = 0", "o[0:1] = [7, 8]\nr = 0", "o += [4]\nr = o", "o |= {'z': 1}\nr = o", "o |= {5}\nr = o",
    "o -= {8}\nr = o", "o &= {8}\nr = o", "o ^= {8, 5}\nr = o", "o *= 2\nr = o", "o += 1\nr = o", "o += 'x'\nr = o",
    "o.zz = 5\nr = o.zz", "o.sort(key=lambda q: (NOTED.append(str(q)), -q)[1], reverse=True)\nr = 0",
    "r = []\nfor p in o:\n    r.append(p)\n    if len(r) < 4: o.append(5)",
    "r = []\nfor p in o:\n    r.append(p)\n    o.add(len(r))",
    "r = []\nfor p in o:\n    r.append(p)\n    o[p] = len(r)",
    "r = []\nfor p in o:\n    r.append(p)\n    o.pop(p)",
    "r = []\nfor p in o:\n    r.append(p)\n    o[len(r)] = 1",
    "r = []\nfor p, q in o.items():\n    o['b'] = 7\n    r.append((p, q))",
    "match o:\n    case []: r = 0\n    case [p, *q]: r = p, q\n    case {'a': p, **q}: r = 'map', p, q\n"
    "    case int(p): r = 'int', p\n    case str() | bytes(): r = 'text'\n    case Point(p, q): r = 'point', p, q\n"
    "    case types.SimpleNamespace(a=p): r = 'space', p\n    case _: r = 'none'",
)  # fmt: skip

NAMES = {
    "NOTED": NOTED, "Color": Color, "Flags": Flags, "Point": Point, "Plain": Plain, "array": array,
    "collections": collections, "functools": functools, "itertools": itertools, "math": math, "operator": operator,
    "types": types, "torch": torch, "__name__": "programs",
}  # fmt: skip


def _define_subclasses() -> None:
    for cls, (name, _) in CLASSES.items():
        if cls in _FINAL:
            continue
        own = []
        for method in _OWN:
            if getattr(cls, method, None) is not None and (method != "__missing__" or cls is collections.defaultdict):
                own.append(f"def {method}(self, *a, **k):\n  NOTED.append('{method}')\n  return super().{method}(*a, **k)")
        if cls in (dict, collections.OrderedDict, collections.UserDict):
            own.append("def __missing__(self, key):\n  NOTED.append('missing')\n  return key")
        body = "\n".join(own).replace("\n", "\n ") or "pass"
        exec(f"class Plain_{cls.__name__}({name}):\n pass\nclass Own_{cls.__name__}({name}):\n {body}", NAMES)


_define_subclasses()


def objects() -> Iterator[tuple[str, str]]:
    """Kinds of objects, such as ``"list own"``, with the expression that makes one."""
    for cls, (name, args) in CLASSES.items():
        yield f"{cls.__name__} itself", f"{name}({args})"
        if cls not in _FINAL:
            yield f"{cls.__name__} plain", f"Plain_{cls.__name__}({args})"
            yield f"{cls.__name__} own", f"Own_{cls.__name__}({args})"
    for expression in OTHERS:
        yield f"{expression} itself", expression


def bodies(expression: str) -> Iterator[str]:
    """What a program does with an object ``o``, leaving a result in ``r``."""
    cls = type(eval(expression, dict(NAMES)))
    for method in dir(cls):
        is_method = not method.startswith("_") or method.startswith("__")
        if is_method and method not in _SKIPPED and callable(getattr(cls, method, None)):
            yield from (f"r = o.{method}({arguments})" for arguments in _ARGUMENTS)
    for sign, other in itertools.product(_OPERATORS, _OPERANDS):
        yield from (f"r = o {sign} {other}", f"r = {other} {sign} o")
    yield from (f"r = {code}" for code in _EXPRESSIONS)
    yield from _STATEMENTS


def program(body: str, made: str | None):
    """A function of a tensor and an object, which it makes itself if ``made`` says how; None for no valid program."""
    lines = [f"o = {made}"] if made else []
    lines += ["try:", *("  " + line for line in body.split("\n")), "except Exception as e:", "  r = type(e), str(e)"]
    source = "def f(x, o=None):\n" + "".join(f"  {line}\n" for line in [*lines, "return x + 1, r, o"])
    names = dict(NAMES)
    try:
        exec(compile(source, "<program>", "exec"), names)
    except SyntaxError:
        return None
    return names["f"]


def shown(value: object, depth: int = 0) -> object:
    """A value as text and types: its contents in order, as its builtin base has them."""
    cls, deeper = type(value), depth + 1
    if depth > 4:
        return cls.__name__
    for base in (list, tuple, set, frozenset, collections.deque):
        if isinstance(value, base):
            extra = getattr(value, "maxlen", None) if base is collections.deque else None
            return cls.__name__, extra, [shown(item, deeper) for item in base.__iter__(value)]
    if isinstance(value, dict):
        base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        keys = list(base.keys(value))
        return cls.__name__, [(shown(key, deeper), shown(dict.__getitem__(value, key), deeper)) for key in keys]
    if isinstance(value, (collections.UserList, collections.UserDict)):
        return cls.__name__, shown(value.data, deeper)
    if isinstance(value, collections.ChainMap):
        return cls.__name__, shown(value.maps, deeper)
    if hasattr(cls, "__next__") or cls.__name__.endswith(("_keys", "_values", "_items")):
        items: list[object] = []
        try:
            items.extend(shown(item, deeper) for item in itertools.islice(iter(value), 20))
        except Exception as error:
            items.append((type(error).__name__, str(error)))
        return cls.__name__, items
    if callable(value) and not isinstance(value, type):
        return cls.__name__, getattr(value, "__name__", "")
    # Addresses differ, and an error of a wrong call may name the method by the class or by its base.
    return cls.__name__, re.sub(r"\b[\w.]+\.(\w+\(\))", r"\1", re.sub("0x[0-9a-f]+", "", repr(value)))


def outcome(fn, args: tuple) -> object:
    """What a call gives, leaves behind and notes."""
    NOTED.clear()
    out = fn(*args)
    noted = list(NOTED)
    return shown(out[1]), shown(out[2]), out[0].tolist(), noted


KINDS = dict(objects())
#: The share of a kind's programs that is run, and the seed of the choice.
SHARE = float(os.environ.get("CLASS_TABLES_SHARE", "0.012"))
SEED = os.environ.get("CLASS_TABLES_SEED", "0")

#: Programs that everybody writes: all of them are captured whole.
COMMON = (
    ("list itself", "r = sorted(o, key=lambda q: -q)"), ("list itself", "o.append(4)\nr = o.pop(0)"),
    ("list itself", "r = [p + 1 for p in o][::-1]"), ("list itself", "r = list(zip(o, o, strict=True))"),
    ("list itself", "r = max(o, key=lambda q: -q), min(o, default=0), sum(o, start=1)"),
    ("list itself", "o.sort(reverse=True)\nr = o.index(1), o.count(1)"), ("list itself", "o += [4]\nr = o * 2"),
    ("tuple itself", "p, *q = o\nr = q, o + (4,)"), ("dict itself", "r = [(k, v) for k, v in o.items()]"),
    ("dict itself", "o.update(c=3)\nr = o.pop('a', None), o.setdefault('d', 4)"), ("dict itself", "r = o | {'c': 1}"),
    ("dict itself", "r = o.keys() & {'a'}, o.keys() == {'a', 'b'}"), ("set itself", "o.add(5)\nr = 5 in o, len(o)"),
    ("set itself", "r = o | {1, 2}"), ("frozenset itself", "r = o & {8}"), ("dict itself", "r = {**o, 'z': 1}"),
    ("deque itself", "o.appendleft(9)\no.rotate(1)\nr = list(o), o.popleft()"),
    ("OrderedDict itself", "o.move_to_end('a')\nr = list(o), o.popitem(last=False)"),
    ("defaultdict itself", "o['c'].append(1)\nr = o['c']"), ("Counter itself", "r = o['a'], o['zz']"),
    ("str itself", "r = o.split(maxsplit=1), o.upper(), f'{o:>8}'"), ("int itself", "r = o.bit_length(), divmod(o, 2)"),
    ("SimpleNamespace itself", "o.c = o.a + o.b\nr = o.c"), ("Point itself", "r = o._replace(x=5), o.x + o.y"),
    ("list plain", "o.append(5)\nr = o[0], len(o), [*o]"), ("dict plain", "o['c'] = 1\nr = [*o], o.get('a')"),
    ("UserList itself", "r = o[0], len(o), [*o]"), ("UserDict itself", "o['c'] = 1\nr = [*o], o.get('a')"),
    ("list itself", "match o:\n  case [p, *q]: r = p, q"), ("dict itself", "match o:\n  case {'a': p}: r = p"),
    ("range itself", "match o:\n  case [p, *q]: r = p, q"), ("Point itself", "match o:\n  case (p, q): r = p, q"),
)  # fmt: skip


def run_both(kind, body, passed, report):
    """The outcomes in eager and twice compiled; None where the program does not do the same twice in eager."""
    expression = KINDS[kind]
    fn = program(body, None if passed else expression)
    if fn is None:
        return None

    def arguments():
        return (torch.ones(1), eval(expression, NAMES)) if passed else (torch.ones(1),)

    expected = outcome(fn, arguments())
    if outcome(fn, arguments()) != expected:
        return None
    compiled = optimize(fn, lambda gm, inputs: gm.forward, options=Options(strict=True), report=report)
    return expected, [outcome(compiled, arguments()) for _ in range(2)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_programs_of_a_class(kind):
    chance = random.Random(f"{SEED} {kind}")
    for body in bodies(KINDS[kind]):
        passed = chance.random() < 0.5
        if chance.random() < SHARE:
            found = run_both(kind, body, passed, None)
            if found is not None:
                expected, got = found
                assert got == [expected] * 2, (body, "as an argument" if passed else "made in the program")


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize(("kind", "body"), COMMON)
def test_common_programs_are_captured_whole(kind, body, passed):
    report = Report()
    expected, got = run_both(kind, body, passed, report)
    assert got == [expected] * 2
    assert not report.breaks and not report.fallbacks, [record.reason for record in (*report.breaks, *report.fallbacks)]
