"""Python programs: control flow, containers, classes, exceptions, closures and the library around a few tensor operators.

Tensors hold small integers, so that their numbers are exact and everything is compared exactly. Integers, strings,
containers and shapes change from call to call, so that integers become symbolic and branches go the other way.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
import sys
import types
import warnings
from collections.abc import Callable

import torch

from fuzz.observe import Observer
from fuzz.program import Program, code_of, observe
from fuzz.pythons_expressions import EXPRESSIONS
from fuzz.writer import Writer

__all__ = ["generate"]

HEAD = """
import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import types

import torch
from fuzz.inputs import make

LIMIT = 3
TABLE = {"a": 1, "b": 2}
NOTES = []
Pair = collections.namedtuple("Pair", "left right")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)


class Box:
    scale = 2

    def __init__(self, value):
        self.value = value
        self.items = []

    @property
    def double(self):
        return self.value * 2

    def put(self, item):
        self.items.append(item)
        return self

    def __len__(self):
        return len(self.items)

    def __getitem__(self, key):
        return self.items[key]

    def __contains__(self, item):
        return item in self.items

    def __iter__(self):
        return iter(self.items)

    def __bool__(self):
        return self.value != 0

    def __eq__(self, other):
        return isinstance(other, Box) and self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __call__(self, amount):
        self.value += amount
        return self.value


class Open:
    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(f"nothing named {name}")
        return name + "!"


class Child(Box):
    scale = 3

    def put(self, item):
        NOTES.append("put")
        return super().put(item)


class Problem(Exception):
    def __init__(self, code):
        super().__init__(f"problem {code}")
        self.code = code


class Manager:
    def __init__(self, log, swallow):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("enter")
        return self.log

    def __exit__(self, kind, value, trace):
        self.log.append(("exit", kind.__name__ if kind else None))
        return self.swallow


@contextlib.contextmanager
def managed(log, name):
    log.append("+" + name)
    try:
        yield name
    finally:
        log.append("-" + name)


def deco(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        NOTES.append(fn.__name__)
        return fn(*args, **kwargs)

    return inner


def keywords(a, b=2, *rest, c=3, **more):
    return a, b, rest, c, sorted(more)

"""

TAIL = """

def inputs(call):
    n = {numbers}[call]
    m = {others}[call]
    s = {strings}[call]
    rows = {rows}[call]
    x = torch.arange(rows * 3).remainder(7).sub(3).float().reshape(rows, 3)
    xs = [{list_items}] if call % 2 else [n, {list_items}]
    d = {{"a": n, "b": {value}, s: m}}
    o = {box}(n)
    return x, n, m, s, xs, d, o


def program(compile, see):
    g = compile(f, dynamic={dynamic}, backend={backend!r})
    for call in range(4):
        NOTES.clear()
        log = []
        see.call(f"call {{call}}", g, *inputs(call), log)
        see("notes", list(NOTES))
        see("globals", [LIMIT, dict(TABLE), Box.scale])
"""


def generate(seed: int, device: str = "cpu") -> str:
    """The program of a seed (on the CPU: nothing in it depends on where tensors are).

    Programs that eager does not even parse are written anew, most of those whose first call raises (what comes after an
    error is never reached), and those that run long or make something large of little, as a list that is added to itself
    in every round of a loop.
    """
    may_raise = random.Random(seed).random() < 0.15
    for attempt in itertools.count():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                text = ast.unparse(ast.parse(_write(f"python {seed} {attempt}")))
                code_of(text, f"<python program {seed}>")
            except SyntaxError:  # a name that is both local and nonlocal, say
                continue
            seen = _run(text, seed)
            if seen is not None and (may_raise or attempt > 20 or not any("error" in label for label, _ in seen.trees)):
                return text
    raise AssertionError


#: The most lines that one call of a program may run, and the most parts that a variable's value may have: of tensors a
#: hundred elements are one.
LINES, PARTS = 3000, 10_000


class _TooLargeError(BaseException):
    """Raised where a program reaches a bound."""


def _run(text: str, seed: int) -> Observer | None:
    """What the program lets others see when it runs eagerly; None where it reaches a bound."""
    reached: list[bool] = []

    def bounded(fn: Callable[..., object], **options: object) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            lines = 0

            def line(frame: types.FrameType, event: str, value: object) -> Callable[..., object]:
                nonlocal lines
                lines += 1
                if lines > LINES or _parts(frame.f_locals) > PARTS:
                    reached.append(True)
                if reached:
                    raise _TooLargeError
                return line

            def entered(frame: types.FrameType, event: str, value: object) -> Callable[..., object] | None:
                return line if frame.f_code.co_filename == fn.__code__.co_filename else None

            previous = sys.gettrace()
            sys.settrace(entered)
            try:
                return fn(*args, **kwargs)
            finally:
                sys.settrace(previous)

        return call

    try:
        seen = observe(Program("python", seed, text), bounded)
    except _TooLargeError:
        return None
    return None if reached else seen


def _parts(values: object) -> int:
    """How many parts a value has, characters and a number's digits among them, at most one more than :data:`PARTS`.

    A tuple counts wherever it stands, as hashing or printing one takes it up again; other containers count once.
    """
    count, stack, seen = 0, [values], set[int]()
    while stack and count <= PARTS:
        value = stack.pop()
        count += 1
        if isinstance(value, str | bytes):
            count += len(value)
        elif isinstance(value, int):
            count += int.bit_length(value)
        elif isinstance(value, torch.Tensor):
            count += torch.Tensor.numel(value) // 100
        elif isinstance(value, tuple):
            stack.extend(value)
        elif id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, dict):
                stack.extend(dict.keys(value))
                stack.extend(dict.values(value))
            elif isinstance(value, list | set | frozenset):
                stack.extend(value)
            elif type(value).__module__ == "fuzzed":
                stack.append(getattr(value, "__dict__", None))
    return count


def _write(seed: str) -> str:
    writer = Writer(seed)
    w = _Statements(writer)
    writer.depth = 0
    with writer.block("def f(x, n, m, s, xs, d, o, log):"):
        for kind, names in {"int": "nm", "str": "s", "list": ["xs"], "dict": "d", "box": "o", "tensor": "x"}.items():
            for name in names:
                writer.bind(kind, name)
        if writer.chance(0.15):
            writer.line("global LIMIT")
            w.may_write_global = True
        for _ in range(writer.pick([3, 5, 7, 10])):
            w.statement(3)
        results = ["x", *(w.expression(k, 1) for k in writer.random.sample(sorted(EXPRESSIONS), 3))]
        results += [name for pool in writer.names.values() for name in pool[2:4]]
        writer.line(f"return {', '.join(results)}")
    r = writer.random
    tail = TAIL.format(
        numbers=[r.choice([2, 3, 4, 5, 7]) for _ in range(2)] + [r.randint(-2, 9), r.randint(2, 9)],
        others=[r.randint(-1, 4) for _ in range(4)], strings=[r.choice(["ab", "a b", "", "Zed", "x,y,z", "7"]) for _ in range(4)],
        rows=[r.choice([2, 3, 4]), r.choice([2, 3, 5]), r.choice([1, 4, 6]), r.choice([2, 0, 7])],
        list_items=", ".join(str(r.randint(-3, 6)) for _ in range(r.randint(1, 4))), value=r.randint(0, 5),
        box=r.choice(["Box", "Child"]), dynamic=r.choice(["None", "None", "None", "True", "False"]),
        backend=r.choice(["eager"] * 9 + ["inductor"]),
    )  # fmt: skip
    return HEAD + "\n" + writer.text() + tail


_HOLE = re.compile(r"\{(=?)(" + "|".join(EXPRESSIONS) + r")\}|\{\{|\}\}")


class _Statements:
    """Random statements."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.may_write_global = False
        self.loops = 0
        self.functions = 0

    def expression(self, kind: str, depth: int) -> str:
        """Text of an expression of that type."""
        w = self.w
        if w.has(kind) and (depth <= 0 or w.chance(0.35)):
            return w.name(kind)
        text = self.fill(w.pick(EXPRESSIONS[kind]), depth - 1)
        return f"({text})" if " " in text or text[0] in "-~*" else text

    def fill(self, template: str, depth: int) -> str:
        """A template with expressions in its holes (``{=list}``: a variable of that type); doubled braces are braces."""

        def replace(found: re.Match[str]) -> str:
            only_names, kind = found.groups()
            if kind is None:
                return found[0][0]
            if only_names and self.w.has(kind):
                return self.w.name(kind)
            return self.simple(kind) if only_names or depth < 0 else self.expression(kind, depth)

        return _HOLE.sub(replace, template)

    def simple(self, kind: str) -> str:
        """A variable or literal of that type."""
        w = self.w
        if w.has(kind) and w.chance(0.8):
            return w.name(kind)
        literals = {
            "int": ["0", "1", "2", "3", "-1", "5"], "str": ["'a'", "'b'", "''", "'xyz'"], "float": ["0.5", "-1.25", "2.0"],
            "bool": ["True", "False"], "list": ["[1, 2, 3]", "[]", "[3, 1, 2]"], "dict": ["{'a': 1, 'b': 2}", "{}", "dict(a=5)"],
            "tuple": ["(1, 2)", "()", "('a', 3)"], "set": ["{1, 2}", "set()", "{3, 1, 9}"], "tensor": ["x", "x + 1"],
            "any": ["None", "1", "'a'", "(1, 'b')"], "box": ["o", "Box(1)", "Child(2)"], "iter": ["iter([1, 2, 3])", "range(3)"],
        }  # fmt: skip
        return w.pick(literals[kind])

    def body(self, depth: int) -> None:
        for _ in range(self.w.pick([1, 1, 2, 3])):
            self.statement(depth)

    def statement(self, depth: int) -> None:
        """One statement; ``depth`` bounds how deep blocks nest."""
        w = self.w
        simple: list[Callable[[int], None]] = [self.assign] * 6 + [self.mutate] * 4 + [self.note] * 2
        simple += [self.unpack, self.delete, self.tensor_write, self.augment]
        deep: list[Callable[[int], None]] = [
            self.branch, self.branch, self.loop_for, self.loop_for, self.loop_while, self.attempt, self.attempt, self.attempt,
            self.with_block, self.match, self.function, self.generator, self.klass, self.fail, self.library,
        ]  # fmt: skip
        w.pick(simple + deep if depth > 0 else simple)(depth)

    def assign(self, depth: int) -> None:
        w = self.w
        kind = w.pick(
            [
                "int",
                "int",
                "str",
                "bool",
                "list",
                "dict",
                "tuple",
                "set",
                "tensor",
                "tensor",
                "float",
                "any",
                "box",
                "iter",
            ]
        )
        text = self.expression(kind, 2)
        name = w.name(kind) if w.has(kind) and w.chance(0.25) else w.fresh(kind[0])
        w.line(f"{name} = {text}")
        w.bind(kind, name)

    def augment(self, depth: int) -> None:
        w = self.w
        kind = w.pick([k for k in ("int", "str", "list", "tensor") if w.has(k)])
        op = w.pick(
            {"int": ["+=", "-=", "*=", "//=", "%=", "|=", "^="], "str": ["+="], "list": ["+="], "tensor": ["+=", "-="]}[
                kind
            ]
        )
        other = self.expression("int" if kind == "tensor" else kind, 1)
        if self.loops and kind == "list":
            other = f"({other})[:4]"  # it may be as long as the list, which loops within loops would double without end
        w.line(f"{w.name(kind)} {op} {other}")

    def mutate(self, depth: int) -> None:
        w = self.w
        template = w.pick(MUTATIONS)
        w.line(self.fill(template, 1))

    def note(self, depth: int) -> None:
        kind = self.w.pick(["int", "str", "any", "tuple", "bool", "list"])
        self.w.line(f"log.append({self.expression(kind, 2)})")

    def unpack(self, depth: int) -> None:
        w = self.w
        a, b = w.fresh("i"), w.fresh("r")
        w.line(
            w.pick(
                [
                    f"{a}, *{b} = [{self.expression('int', 1)}, *{self.expression('list', 1)}]",
                    f"*{b}, {a} = *{self.expression('list', 1)}, 4",
                ]
            )
        )
        w.bind("int", a)
        w.bind("list", b)

    def delete(self, depth: int) -> None:
        w = self.w
        w.line(w.pick([f"del {w.name('dict')}[{self.expression('str', 1)}]", f"del {w.name('list')}[:1]", f"{w.name('list')}[1:2] = []",
                       f"{w.name('dict')}.pop({self.expression('str', 0)}, None)"]))  # fmt: skip

    def tensor_write(self, depth: int) -> None:
        w = self.w
        t = w.name("tensor")
        w.line(w.pick([f"{t}.add_({self.simple('int')})", f"{t}[0:1] = {self.simple('int')}", f"{t}.mul_(2).remainder_(5)",
                       f"log.append(tuple({t}.shape))", f"log.append({t}.clone())"]))  # fmt: skip

    def branch(self, depth: int) -> None:
        w = self.w
        with w.block(f"if {self.expression('bool', 2)}:"):
            self.body(depth - 1)
            self.maybe_jump()
        if w.chance(0.3):
            with w.block(f"elif {self.expression('bool', 2)}:"):
                self.body(depth - 1)
        if w.chance(0.5):
            with w.block("else:"):
                self.body(depth - 1)

    def maybe_jump(self) -> None:
        w = self.w
        if self.loops and w.chance(0.25):
            w.line(w.pick(["break", "continue"]))
        elif w.chance(0.06):
            w.line(f"return {self.expression(w.pick(['int', 'tensor', 'str']), 1)}, 'early'")

    def loop_for(self, depth: int) -> None:
        w = self.w
        i, j = w.fresh("i"), w.fresh("k")
        header, bound = w.pick([
            (f"for {i} in range({self.expression('int', 1)} % 5):", {i: "int"}),
            (f"for {i} in {self.expression('list', 1)}[:4]:", {i: "int"}),
            (f"for {i}, {j} in enumerate({self.expression('list', 1)}[:3], {self.simple('int')}):", {i: "int", j: "int"}),
            (f"for {j}, {i} in list({self.expression('dict', 1)}.items())[:3]:", {j: "str", i: "int"}),
            (f"for {i}, {j} in zip({self.expression('list', 1)}, {self.expression('str', 1)}):", {i: "int", j: "str"}),
            (f"for {j} in {self.expression('str', 1)}[:4]:", {j: "str"}),
            (f"for {i} in itertools.islice({self.expression('iter', 1)}, 4):", {i: "any"}),
            (f"for {i} in {self.expression('set', 1)}:", {i: "any"}),
            (f"for {i} in {w.name('tensor')}.shape:", {i: "int"}),
        ])  # fmt: skip
        self.loops += 1
        with w.block(header):
            for name, kind in bound.items():
                w.bind(kind, name)
            self.body(depth - 1)
            self.maybe_jump()
        self.loops -= 1
        if w.chance(0.2):
            with w.block("else:"):
                self.body(depth - 1)

    def loop_while(self, depth: int) -> None:
        w = self.w
        i = w.fresh("c")
        w.line(f"{i} = 0")
        self.loops += 1
        with w.block(f"while {i} < {self.expression('int', 1)} % 4:"):
            w.line(f"{i} += 1")
            self.body(depth - 1)
            self.maybe_jump()
        self.loops -= 1

    def attempt(self, depth: int) -> None:
        w = self.w
        loops, self.loops = self.loops, self.loops
        with w.block("try:"):
            self.body(depth - 1)
            if w.chance(0.5):
                w.line(w.pick(RISKY) if w.chance(0.6) else f"raise {self.error()}")
        handled = False
        if w.chance(0.85):
            handled = True
            for caught in w.random.sample(
                [
                    "ValueError",
                    "(KeyError, IndexError)",
                    "TypeError",
                    "Problem",
                    "ZeroDivisionError",
                    "AttributeError",
                    "Exception",
                ],
                w.pick([1, 2, 3]),
            ):
                with w.block(f"except {caught} as e:"):
                    w.line("log.append((type(e).__name__, str(e)))")
                    self.body(depth - 1)
                    if w.chance(0.2):
                        w.line(
                            w.pick(
                                [
                                    "raise",
                                    f"raise {self.error()} from e",
                                    f"raise {self.error()}",
                                    f"raise {self.error()} from None",
                                ]
                            )
                        )
            if w.chance(0.3):
                with w.block("else:"):
                    self.body(depth - 1)
        if not handled or w.chance(0.35):
            with w.block("finally:"):
                w.line("log.append('finally')")
                self.body(depth - 1)
        self.loops = loops

    def error(self) -> str:
        w = self.w
        kinds = ["ValueError({str})", "KeyError({any})", "Problem({int})", "TypeError('t', {int})", "IndexError({int})"]
        return self.fill(w.pick([*kinds, "Exception(f'{m}!')", "ValueError"]), 1)

    def fail(self, depth: int) -> None:
        w = self.w
        with w.block(f"if {self.expression('bool', 1)} and {self.expression('bool', 1)}:"):
            w.line(
                w.pick([f"raise {self.error()}", f"assert {self.expression('bool', 1)}, {self.expression('str', 1)}"])
            )

    def with_block(self, depth: int) -> None:
        w = self.w
        t = w.fresh("w")
        header, bound = w.pick([
            (f"with Manager(log, {self.expression('bool', 1)}) as {t}:", "list"),
            (f"with managed(log, {self.expression('str', 1)}) as {t}:", "str"),
            (f"with contextlib.suppress({w.pick(['ValueError', 'KeyError, IndexError', 'Exception'])}):", None),
            ("with torch.no_grad():", None),
            (f"with contextlib.nullcontext({self.expression('int', 1)}) as {t}:", "int"),
            (f"with managed(log, 'p'), Manager(log, False) as {t}:", "list"),
            (f"with contextlib.ExitStack() as {t}:", None),
        ])  # fmt: skip
        with w.block(header):
            if bound:
                w.bind(bound, t)
            if "ExitStack" in header:
                w.line(w.pick([f"{t}.callback(log.append, 'called')", f"{t}.enter_context(managed(log, 'q'))"]))
            self.body(depth - 1)
            if w.chance(0.25):
                w.line(w.pick(RISKY))

    def match(self, depth: int) -> None:
        w = self.w
        with w.block(f"match {self.expression(w.pick(['any', 'list', 'tuple', 'dict', 'int', 'str', 'box']), 1)}:"):
            for pattern in w.random.sample(PATTERNS, w.pick([2, 3, 4])):
                with w.block(f"case {pattern}:"):
                    w.line(f"log.append({w.random.randint(0, 99)})")
                    self.body(depth - 1)
            if w.chance(0.7):
                with w.block("case _:"):
                    self.body(depth - 1)

    def function(self, depth: int) -> None:
        if self.functions > 2:
            return self.assign(depth)
        w = self.w
        g, a = w.fresh("g"), w.fresh("a")
        loops, self.loops = self.loops, 0
        self.functions += 1
        outer = w.name("int")
        if w.chance(0.2):
            w.line("@deco")
        with w.block(f"def {g}({a}, b={self.simple('int')}, *args, c={self.simple('str')}):"):
            if outer not in ("n", "m") and w.chance(0.3):
                w.line(f"log.append({outer})")
            elif w.chance(0.3):
                w.line(f"nonlocal {outer}")
                w.line(f"{outer} = {self.simple('int')} + 1")
            frozen = {k: list(v) for k, v in w.names.items()}
            t, r, k = w.fresh("t"), w.fresh("r"), w.fresh("k")
            w.line(f"{t}, {r}, {k} = x.clone(), list(args), dict(k=b)")
            w.names = {"int": [a, "b"], "str": ["c"], "tensor": [t], "list": [r], "dict": [k]}
            self.body(depth - 1)
            w.line(f"return {self.expression('int', 2)}")
            w.names = frozen
        self.functions -= 1
        self.loops = loops
        name = w.fresh("i")
        w.line(
            f"{name} = {g}({self.expression('int', 1)}{w.pick(['', ', 3', ', b=4', ', 1, 2, 3', ', *(1, 2)', ', **dict(c=' + repr('q') + ')'])})"
        )
        w.bind("int", name)

    def generator(self, depth: int) -> None:
        w = self.w
        g, i = w.fresh("gen"), w.fresh("i")
        loops, self.loops = self.loops, 0
        with w.block(f"def {g}(k):"):
            with w.block("try:"):
                with w.block("for q in range(k % 4):"):
                    w.line(
                        w.pick(
                            [
                                "yield q",
                                "log.append((yield q))",
                                "yield from (q, q + 1)",
                                f"yield q * {self.simple('int')}",
                            ]
                        )
                    )
            with w.block(w.pick(["finally:", "except ValueError:", "finally:"])):
                w.line("log.append('closed')")
        self.loops = loops
        w.line(w.pick([
            f"{i} = list({g}({self.expression('int', 1)}))", f"{i} = [q for q in {g}(3) if q > {self.simple('int')}]",
            f"{i} = sorted({g}({self.simple('int')}), reverse=True)", f"{i} = list(zip({g}(3), {g}(2)))",
            f"{i} = [sum({g}({self.expression('int', 1)}))]", f"{i} = [next({g}(2), 9)]", f"{i} = [*{g}(2), max({g}(3))]",
        ]))  # fmt: skip
        w.bind("list", i)

    def klass(self, depth: int) -> None:
        w = self.w
        c, i = w.fresh("C"), w.fresh("i")
        base = w.pick(["", "(Box)", "(Child)", "(dict)", "(list)", "(Point)"]) if w.chance(0.5) else ""
        with w.block(f"class {c}{base}:"):
            w.line(f"kind = {self.simple('int')}")
            with w.block("def get(self, k=1):"):
                w.line(
                    w.pick(
                        [
                            "return self.kind + k",
                            "self.last = k\n" + "    " * w.depth + "return type(self).kind * k",
                            "return getattr(self, 'missing', k)",
                        ]
                    )
                )
        init = {"": "", "(Box)": "3", "(Child)": "2", "(dict)": "a=1", "(list)": "[1, 2]", "(Point)": "1, 2"}[base]
        w.line(f"{i} = {c}({init}).get({self.expression('int', 1)})")
        w.bind("int", i)
        if w.chance(0.3):
            w.line(f"{i}o = {c}({init})")
            w.line(f"{i}o.attr = {self.expression('any', 1)}")
            w.line(w.pick([f"log.append({i}o.attr)", f"log.append(vars({i}o))", f"log.append(hasattr({i}o, 'get'))", f"del {i}o.attr",
                           f"log.append(getattr({i}o, 'nope', 5))", f"log.append(isinstance({i}o, (Box, dict)))"]))  # fmt: skip

    def library(self, depth: int) -> None:
        w = self.w
        template = w.pick(LIBRARY)
        name = w.fresh("v")
        w.line(f"{name} = {self.fill(template, 1)}")
        w.bind("any", name)


MUTATIONS = """
{=list}.append({int})
{=list}.extend({list})
{=list}.insert({int} % 3, {int})
{=list}.sort()
{=list}.sort(key=lambda q: -q)
{=list}.reverse()
{=list}[0:1] = [{int}]
{=list}[-1] = {int}
{=list}.remove({int})
{=list}.pop()
log.append({=list}.pop(0))
{=dict}[{str}] = {int}
{=dict}.update(z={int})
{=dict}.setdefault({str}, {int})
log.append({=dict}.pop({str}, -1))
{=dict} |= {dict}
log.append({=dict}.popitem())
{=box}.put({int})
{=box}.value = {int}
{=box}.extra = {any}
log.append({=box}.double)
log.append({=box}({int}))
{=box}.put({tensor}.sum())
setattr({=box}, 'k' + {str}, {int})
TABLE['c'] = {int}
NOTES.append({str})
log.append([{int}, {str}])
log.extend({list})
log.append(len({=box}))
log.append(list({=box}))
log.append({int} in {=box})
log.append({=list}[{int}])
log.append({=dict}[{str}])
log.append({=list}.index({int}))
log.append({any})
log.append({=box} == Box({int}))
log.append(bool({=box}))
""".strip().splitlines()

RISKY = """
log.append(xs[n])
log.append(d[s])
log.append(10 // (n - 3))
log.append(int(s))
log.append(xs.index(m))
log.append(o.nothing)
log.append(s + n)
log.append(next(iter([])))
log.append({}[n])
log.append(xs.pop(n))
log.append(math.sqrt(m))
log.append(dict([s]))
log.append(s.index('b'))
log.append(Color(n))
log.append(Point())
log.append(keywords())
log.append([1, 2][m])
a1, b1 = xs
log.append('%d' % s)
log.append('{:d}'.format(s))
log.append(Open().no_such)
log.append(getattr(o, s or 'q'))
log.append(max([]))
log.append(min(xs, key=lambda q: 1 // q))
log.append(x.reshape(n, -1).shape)
log.append((x @ x).shape)
log.append(torch.cat([x, x[:, :2]]).shape)
log.append(x.shape[n])
log.append(x[n].shape)
raise Problem(n)
raise StopIteration(n)
assert n > 3, s
log.append(types.SimpleNamespace(a=1).b)
log.append(functools.reduce(operator.add, []))
log.append(range(3)[n])
log.append('abc'[n])
log.append({n: 1}[3])
log.append(sorted([n, s]))
log.append(operator.itemgetter(s)(d))
log.append(n / m)
log.append(n << m)
log.append(chr(m))
""".strip().splitlines()

PATTERNS = """
0
1 | 2
'a'
[]
[1, *rest]
[first, second]
[_, _, *_]
(1, 'b')
{'a': 1}
{'a': v, **rest}
{}
int(k) if k > 3
str()
str() as t if len(t) > 1
Point(x=1)
Point(1, 2)
Box(value=2)
Pair(left=1)
None
True
[int(), int()]
{'b': int(b)}
Color.RED
(list() | tuple()) as seq
float()
dict() as dd if 'a' in dd
""".strip().splitlines()

LIBRARY = """
functools.reduce(lambda p, q: p + q, {list}, {int})
list(itertools.accumulate({list}))
list(itertools.accumulate({list}, initial={int}))
list(itertools.chain({list}, {tuple}))
list(itertools.product({list}[:2], repeat=2))
list(itertools.zip_longest({list}, {tuple}, fillvalue=0))
[(k, list(g)) for k, g in itertools.groupby({list}, key=lambda q: q > 1)]
list(itertools.takewhile(lambda q: q < 3, {list}))
list(itertools.combinations({list}[:3], 2))
list(itertools.pairwise({list}))
collections.Counter({str})
collections.Counter({list}).most_common(1)
collections.OrderedDict(sorted({dict}.items()))
collections.deque({list}, maxlen=2)
collections.defaultdict(list, {{'a': [1]}})
collections.ChainMap({dict}, {{'q': 1}})['q']
operator.itemgetter(0)({list})
operator.attrgetter('value')({box})
functools.partial(keywords, {int}, c=4)()
keywords({int}, *{list}, **{{'z': 1}})
types.SimpleNamespace(a={int}, b={str})
dataclasses.replace(Point({int}), y={int})
dataclasses.asdict(Point({int}, {int}))
Point({int}) + Point(1, {int})
Point({int}) == Point({int})
Pair({int}, {str})._replace(left=0)
Pair(*({int}, 2))._asdict()
math.gcd({int}, {int})
math.isclose({float}, {float})
math.floor({float})
divmod({int}, {int} or 1)
round({float}, 1)
sum({list}, {int})
sorted({dict}.items(), key=lambda kv: (kv[1], kv[0]))
sorted({str}, reverse=True)
max({list}, default=None)
min({list}, key=abs, default=0)
list(map(lambda q, r: q * r, {list}, {list}))
list(filter(None, {list}))
any(q > {int} for q in {list})
all(q > {int} for q in {list})
list(reversed({list}))
dict(zip({str}, {list}))
dict.fromkeys({str}, {int})
enumerate({list}, start={int}).__next__()
Color.BLUE.name
Color({int} % 2 + 1)
Level({int}) if {int} in (1, 5) else None
[c.value for c in Color]
isinstance({any}, (int, str))
type({any}).__name__
getattr({box}, 'double', None)
vars({box}).keys()
callable({any})
hash({tuple}) == hash({tuple})
repr({any})
str({list})
'{}-{}'.format({int}, {str})
'%s %d' % ({str}, {int})
'%5.2f|%-4s|%03d' % ({float}, {str}, {int})
f'{n:>4}|{m:03d}|{s!r}|{n=}'
f'{n:{n % 5 + 1}d}'
'-'.join(map(str, {list}))
{str}.split(',')
{str}.replace('a', {str}, {int})
{str}.encode()
(lambda *p, **q: (p, q))(*{list}, z={int})
[*{list}, *{tuple}]
{{**{dict}, 'k': {int}}}
{dict}.keys() & {{'a', 'z'}}
{dict}.keys() | {set}
list({dict}.values())
{set} | {set}
{set} & {set}
sorted({set} ^ {set}, key=str)
frozenset({list})
(w1 := {int}) + w1
[(i, j) for i in range(3) for j in range(i) if (i + j) % 2]
{{k: v for v, k in enumerate({str})}}
{{q % 3 for q in {list}}}
list({iter})
next({iter}, None)
Open().something
{tensor}.shape
{tensor}.size(0)
{tensor}.sum().item()
{tensor}.tolist()
tuple({tensor}.shape)[::-1]
{tensor}.numel() // 2
{tensor}.dtype
len({tensor})
[t.sum() for t in {tensor}]
torch.Size([{int}, 2])
'%dx%d' % x.shape
f'{x.shape}'
str(tuple(x.shape))
bool((x > {int}).any())
x.stride()
""".strip().splitlines()
