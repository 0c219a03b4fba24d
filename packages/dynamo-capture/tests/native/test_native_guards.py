"""Guard trees: accessors, checks, evaluation, explanations. No torch."""

from __future__ import annotations

import abc
import enum
import gc
import random
import sys
import types
import weakref

import pytest


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    shared = "class"

    def __init__(self, **values):
        self.__dict__.update(values)

    def method(self):
        return 1


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Getattr:
    def __getattr__(self, name):
        if name == "dynamic":
            return 42
        raise AttributeError(name)


@pytest.fixture
def tree(native):
    return native.GuardTree()


def holds(tree, *args, **kwargs):
    """check, explain_failure and collected must agree."""
    result = tree.check(args, **kwargs)
    assert (tree.explain_failure(args, **kwargs) is None) is result
    assert (tree.collected(args, **kwargs) is not None) is result
    return result


# ---------------------------------------------------------------- accessors


def outer(k):
    def fn(a, b=2, *, c=3):
        return a, b, c, k

    return fn


FN = outer("cell")
SLICE = slice(1, 3)  # unhashable before 3.12: told apart by identity
PLAIN = Plain(x=1, table={"w": 10, 3: 30}, items=[1, 2, 3], pair=(7, 8))
ACCESS = [
    (lambda t, n: t.attr(n, "x"), PLAIN, 1, "L['o'].x"),
    (lambda t, n: t.attr(n, "shared"), PLAIN, "class", "L['o'].shared"),
    (lambda t, n: t.attr(n, "dynamic"), Getattr(), 42, "L['o'].dynamic"),
    (lambda t, n: t.attr(n, "x"), Slotted(5), 5, "L['o'].x"),
    (lambda t, n: t.dict_attr(n, "x"), PLAIN, 1, "L['o'].__dict__['x']"),
    (lambda t, n: t.dict_attr(n, "shared"), Plain, "class", "L['o'].__dict__['shared']"),
    (lambda t, n: t.dict_attr(n, "PLAIN"), sys.modules[__name__], PLAIN, "L['o'].__dict__['PLAIN']"),
    (lambda t, n: t.module_item(n, "table", "w"), PLAIN, 10, "L['o'].__dict__['table']['w']"),
    (lambda t, n: t.item(t.attr(n, "table"), 3), PLAIN, 30, "L['o'].table[3]"),
    (lambda t, n: t.item(t.attr(n, "items"), 1), PLAIN, 2, "L['o'].items[1]"),
    (lambda t, n: t.item(t.attr(n, "items"), -1), PLAIN, 3, "L['o'].items[-1]"),
    (lambda t, n: t.item(t.attr(n, "pair"), -2), PLAIN, 7, "L['o'].pair[-2]"),
    (lambda t, n: t.item(n, SLICE), "abcd", "bc", "L['o'][slice(1, 3, None)]"),
    (lambda t, n: t.item(n, 2), "abcd", "c", "L['o'][2]"),
    (lambda t, n: t.dict_key(n, 1), {"a": 1, "b": 2}, "b", "list(L['o'])[1]"),
    (lambda t, n: t.type_of(n), PLAIN, Plain, "type(L['o'])"),
    (lambda t, n: t.func_closure(n, 0), FN, "cell", "L['o'].__closure__[0].cell_contents"),
    (lambda t, n: t.func_closure_cell(n, 0), FN, FN.__closure__[0], "L['o'].__closure__[0]"),
    (lambda t, n: t.func_defaults(n), FN, (2,), "L['o'].__defaults__"),
    (lambda t, n: t.func_kwdefaults(n), FN, {"c": 3}, "L['o'].__kwdefaults__"),
    (lambda t, n: t.func_code(n), FN, FN.__code__, "L['o'].__code__"),
    (lambda t, n: t.func_defaults(n), outer, None, "L['o'].__defaults__"),
    (lambda t, n: t.method_self(n), PLAIN.method, PLAIN, "L['o'].__self__"),
    (lambda t, n: t.method_func(n), PLAIN.method, Plain.method, "L['o'].__func__"),
    (lambda t, n: t.call(n, len, "len"), [1, 2], 2, "len(L['o'])"),
]


@pytest.mark.parametrize("case", range(len(ACCESS)))
def test_accessor(tree, case):
    build, value, expected, path = ACCESS[case]
    root = tree.local(0, "o")
    node = build(tree, root)
    assert build(tree, root) == node
    assert tree.path(node) == path
    tree.collect([node])
    (found,) = tree.collected([value])
    assert found is expected or found == expected


MISSING = [
    (lambda t, n: t.attr(n, "nope"), PLAIN),
    (lambda t, n: t.dict_attr(n, "shared"), PLAIN),
    (lambda t, n: t.dict_attr(n, "x"), Slotted(1)),
    (lambda t, n: t.item(n, "nope"), {}),
    (lambda t, n: t.item(n, 3), [1, 2, 3]),
    (lambda t, n: t.item(n, -4), (1, 2, 3)),
    (lambda t, n: t.item(n, []), {}),
    (lambda t, n: t.item(n, 0), 5),
    (lambda t, n: t.dict_key(n, 1), {"a": 1}),
    (lambda t, n: t.dict_key(n, 0), [1]),
    (lambda t, n: t.func_closure(n, 0), outer),
    (lambda t, n: t.func_closure(n, 1), FN),
    (lambda t, n: t.func_code(n), len),
    (lambda t, n: t.method_self(n), len),
    (lambda t, n: t.call(n, lambda x: 1 / 0), 5),
]


@pytest.mark.parametrize("case", range(len(MISSING)))
def test_missing_value_fails_the_guard(tree, case):
    build, value = MISSING[case]
    tree.collect([build(tree, tree.local(0, "o"))])
    assert not holds(tree, value)
    assert "no such value" in tree.explain_failure([value])


def test_roots(tree):
    cell = types.CellType("c")
    nodes = [
        tree.local(1),
        tree.global_("name"),
        tree.global_("len"),
        tree.builtin("len"),
        tree.closure(0),
        tree.closure_cell(0),
        tree.constant(PLAIN),
        tree.weak(PLAIN),
        tree.globals_dict(),
    ]
    scope = {"name": "global"}
    tree.collect(nodes)
    values = tree.collected([0, 1], scope, vars(__builtins__ if isinstance(__builtins__, types.ModuleType) else
                                               types.SimpleNamespace(**__builtins__)), [cell])
    assert values == (1, "global", len, len, "c", cell, PLAIN, PLAIN, scope)
    assert tree.collected([0]) is None
    assert not tree.check([0, 1], scope, {}, [types.CellType()])


def test_unused_nodes_are_not_read(tree):
    node = tree.local(0)
    tree.attr(node, "missing")
    tree.check_type(node, int)
    assert holds(tree, 1)


def test_nodes_are_evaluated_once(tree):
    calls = []

    def access(x):
        calls.append(x)
        return {"a": 1, "b": 2}

    table = tree.call(tree.local(0), access)
    tree.check_equals(tree.item(table, "a"), 1)
    tree.check_equals(tree.item(table, "b"), 2)
    tree.collect([table])
    assert tree.check([5])
    assert calls == [5]


# ---------------------------------------------------------------- checks on one value

NAN = float("nan")
OTHER_NAN = -NAN
CHECKS = [
    ("check_type", int, [1, 2], [True, 1.0, None]),
    ("check_type", Plain, [PLAIN], [type("Sub", (Plain,), {})()]),
    ("check_id", PLAIN, [PLAIN], [Plain(), None]),
    ("check_id", None, [None], [0, False]),
    ("check_equals", 1, [1], [True, 1.0, 2, "1", None]),
    ("check_equals", True, [True], [1, False]),
    ("check_equals", 10**30, [10**30, 10**29 * 10], [10**30 + 1]),
    ("check_equals", 0.0, [0.0], [-0.0, 0, NAN]),
    ("check_equals", -0.0, [-0.0], [0.0]),
    ("check_equals", NAN, [NAN, OTHER_NAN, float("nan")], [0.0, "nan"]),
    ("check_equals", complex(0, -0.0), [complex(0, -0.0)], [complex(0, 0.0), 0]),
    ("check_equals", complex(0, NAN), [complex(0, NAN)], [complex(1, NAN)]),
    ("check_equals", "ab", ["ab", "".join(["a", "b"])], ["ac", b"ab", "abc"]),
    ("check_equals", b"ab", [b"ab"], ["ab", bytearray(b"ab")]),
    ("check_equals", None, [None], [0]),
    ("check_equals", (1, (2.0, NAN), "x"), [(1, (2.0, float("nan")), "x")], [(1, (2, NAN), "x"), (1,), [1]]),
    ("check_equals", [1, [0.0]], [[1, [0.0]]], [[1, [-0.0]], (1, [0.0]), [1]]),
    ("check_equals", slice(1, None, 2), [slice(1, None, 2)], [slice(1, None, 3), slice(True, None, 2)]),
    ("check_equals", Color.RED, [Color.RED], [Color.BLUE, 1]),
    ("check_equals", frozenset({1}), [frozenset({1})], [frozenset({2}), {1}]),
    ("check_equals", range(3), [range(3)], [range(4), [0, 1, 2]]),
    ("check_equals", int, [int], [bool]),
    ("check_len", 2, [[1, 2], "ab", {1: 1, 2: 2}], [[1], {}, 5]),
    ("check_len", 0, [{}, [], ()], [[1]]),
    ("check_dict_keys", ("a", 1), [{"a": 0, 1: 0}], [{1: 0, "a": 0}, {"a": 0}, {"a": 0, 1.0: 0}, [("a", 1)]]),
    ("check_dict_keys", (), [{}], [{1: 1}, None]),
    ("check_set", {1, 2}, [{2, 1}, frozenset({1, 2})], [{1}, [1, 2]]),
    ("check_no_instance_attr", "x", [Plain(), Slotted(1), 5], [PLAIN]),
    ("check_lambda", lambda v: v > 3, [4, 5], [1, "x", None]),
]


@pytest.mark.parametrize("case", range(len(CHECKS)))
def test_check(native, case):
    method, expected, good, bad = CHECKS[case]
    tree = native.GuardTree()
    node = tree.local(0, "v")
    getattr(tree, method)(node, expected, reason="because")
    assert len(tree) == 1
    for value in good:
        assert holds(tree, value), value
    for value in bad:
        assert not holds(tree, value), value
        assert "because" in tree.explain_failure([value])
        assert "L['v']" in tree.explain_failure([value])


def test_contains(native):
    tree = native.GuardTree()
    tree.check_contains(tree.local(0), "a")
    tree.check_contains(tree.local(0), "b", False)
    assert holds(tree, {"a": 1})
    assert holds(tree, {"a"})
    assert holds(tree, ["a"])
    assert holds(tree, types.MappingProxyType({"a": 1}))
    assert not holds(tree, {"b": 1})
    assert not holds(tree, {"a": 1, "b": 1})
    assert not holds(tree, 5)


def test_given_text(tree):
    tree.check_equals(tree.local(0), 1, text="x is one", reason="foo.py:3")
    assert tree.describe() == ["x is one"]
    assert tree.explain_failure([2]) == "x is one (found 2) [foo.py:3]"


def test_exceptions_fail_and_base_exceptions_propagate(native):
    def stop(value):
        raise KeyboardInterrupt

    tree = native.GuardTree()
    tree.check_lambda(tree.local(0), stop)
    with pytest.raises(KeyboardInterrupt):
        tree.check([1])

    class Hostile:
        def __eq__(self, other):
            raise RuntimeError

    tree = native.GuardTree()
    tree.check_equals(tree.local(0), Hostile())
    assert not holds(tree, Hostile())


# ---------------------------------------------------------------- checks over several values


def test_same_and_distinct(native):
    tree = native.GuardTree()
    a, b, c = (tree.local(i) for i in range(3))
    tree.check_same(a, b)
    tree.check_distinct([a, c])
    x, y = object(), object()
    assert holds(tree, x, x, y)
    assert not holds(tree, x, y, y)
    assert not holds(tree, x, x, x)


def test_looks_up_plainly(native):
    assert all(map(native.looks_up_plainly, (object, int, list, types.SimpleNamespace)))
    assert not any(map(native.looks_up_plainly, (weakref.ProxyType, types.ModuleType, type)))
    with pytest.raises(TypeError, match="no class"):
        native.looks_up_plainly(1)


def test_together(native):
    """A function of several values: false, and every exception but those that end a program, fails the guard."""
    tree = native.GuardTree()
    a, _, c = (tree.local(i) for i in range(3))
    order = lambda x, y: x < y
    tree.check_together([a, c], order, text="a < c")
    assert holds(tree, 1, None, 2)
    assert not holds(tree, 2, None, 1)
    assert not holds(tree, "1", None, 2)

    def stop(*values):
        raise KeyboardInterrupt

    ended = native.GuardTree()
    ended.check_together([ended.local(0), ended.local(1)], stop)
    with pytest.raises(KeyboardInterrupt):
        holds(ended, 1, 2)
    before = sys.getrefcount(order)
    del tree
    assert sys.getrefcount(order) == before - 1


@pytest.mark.parametrize("n", [2, 16, 17, 200, 1500])
def test_distinct_of_many(native, n):
    tree = native.GuardTree()
    tree.check_distinct([tree.local(i) for i in range(n)])
    values = [object() for _ in range(n)]
    assert holds(tree, *values)
    random.seed(n)
    for _ in range(20):
        i, j = random.sample(range(n), 2)
        changed = list(values)
        changed[i] = values[j]
        assert not holds(tree, *changed)


def test_check_call(native):
    state = {"mode": True}
    tree = native.GuardTree()
    tree.check_call(lambda: state["mode"], True)
    assert holds(tree)
    state["mode"] = 1
    assert not holds(tree)
    del state["mode"]
    assert not holds(tree)


BINARY = ["+", "-", "*", "//", "%", "ceildiv", "min", "max", "==", "!=", "<", "<=", ">", ">=", "and", "or"]


def python_value(program, values):
    stack = []
    for token in program:
        if isinstance(token, int):
            stack.append(token)
        elif isinstance(token, tuple):
            stack.append(values[token[1]])
        elif token in ("neg", "abs", "not"):
            a = stack.pop()
            stack.append({"neg": -a, "abs": abs(a), "not": not a}[token])
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(
                {
                    "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b,
                    "%": lambda: a % b, "ceildiv": lambda: -(-a // b), "min": lambda: min(a, b),
                    "max": lambda: max(a, b), "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b,
                    "<=": lambda: a <= b, ">": lambda: a > b, ">=": lambda: a >= b,
                    "and": lambda: bool(a and b), "or": lambda: bool(a or b),
                }[token]()
            )
    return bool(stack[0])


def test_random_shape_programs(native):
    random.seed(1)
    outcomes = set()
    for _ in range(600):
        tree = native.GuardTree()
        nodes = [tree.local(i) for i in range(3)]
        program, depth = [], 0
        while depth != 1 or len(program) < 6:
            if depth < 2 or random.random() < 0.4:
                operand = random.choice([random.randint(-9, 9), ("int", random.choice(nodes))])
                program.append(operand)
                depth += 1
            elif random.random() < 0.2:
                program.append(random.choice(["neg", "abs", "not"]))
            else:
                program.append(random.choice(BINARY))
                depth -= 1
        tree.check_shape(program)
        values = {node: random.randint(-20, 20) for node in nodes}
        try:
            expected = python_value(program, values)
        except ZeroDivisionError:
            expected = False
        assert holds(tree, *values.values()) is expected, (program, values)
        outcomes.add(expected)
    assert outcomes == {True, False}


def test_shape_program_limits(native):
    tree = native.GuardTree()
    x = tree.local(0)
    tree.check_shape([("int", x), ("int", x), "*", 0, ">="])
    assert holds(tree, 10**9)
    assert not holds(tree, 10**10)  # overflows
    assert not holds(tree, 10**30)
    assert not holds(tree, "text")
    tree = native.GuardTree()
    x = tree.local(0, "n")
    tree.check_shape([("int", x), 2, "%", 0, "=="])
    assert tree.describe() == ["((L['n'] % 2) == 0)"]
    for bad, message in [
        ([], "leaves 0"),
        ([1, 2], "leaves 2"),
        (["+"], "too few"),
        ([1, "^"], "unknown operator"),
        (["size"], "needs a node"),
        ([("+", x)], "no operand"),
        ([("int", 99)], "no node"),
        ([1] * 65 + ["+"] * 64, "too deeply"),
    ]:
        with pytest.raises(ValueError, match=message):
            tree.check_shape(bad)
    assert len(tree) == 1
    assert holds(tree, 4)


# ---------------------------------------------------------------- lifetimes


def test_death_invalidates(native):
    tree = native.GuardTree()
    thing = Plain()
    tree.check_id(tree.local(0), thing)
    assert tree.valid
    assert holds(tree, thing)
    del thing
    gc.collect()
    assert not tree.valid
    assert not holds(tree, Plain())
    assert "died" in tree.explain_failure([1])


def test_weak_node(native):
    tree = native.GuardTree()
    thing = Plain(x=1)
    tree.check_equals(tree.attr(tree.weak(thing), "x"), 1)
    assert holds(tree)
    thing.x = 2
    assert not holds(tree)
    thing.x = 1
    del thing
    assert not tree.valid
    with pytest.raises(TypeError, match="weak reference"):
        tree.weak(5)


def test_trees_do_not_leak(native):
    thing, other = Plain(x=1), Plain()

    def build():
        tree = native.GuardTree()
        node = tree.local(0)
        tree.check_id(node, thing)
        tree.check_equals(tree.attr(node, "x"), 1, text="text", reason="reason")
        tree.check_same(node, tree.constant(thing))
        tree.check_lambda(node, lambda v: v is not other)
        tree.check_shape([("int", tree.attr(node, "x")), 1, "=="])
        tree.collect([node])
        assert tree.check([thing])
        assert tree.collected([thing]) == (thing,)
        assert tree.explain_failure([other]) is not None
        tree.describe()

    build()
    gc.collect()
    before = sys.getrefcount(thing), sys.getrefcount(other), weakref.getweakrefcount(thing)
    for _ in range(30):
        build()
    gc.collect()
    assert (sys.getrefcount(thing), sys.getrefcount(other), weakref.getweakrefcount(thing)) == before


def test_cycles_through_a_tree_are_collected(native):
    thing = Plain()
    thing.tree = native.GuardTree()
    thing.tree.constant(thing)
    alive = weakref.ref(thing)
    del thing
    gc.collect()
    assert alive() is None


def test_failing_evaluation_releases_values(native):
    tree = native.GuardTree()
    a, b = tree.local(0), tree.local(1)
    tree.collect([a])
    tree.check_type(b, int)
    thing = Plain()
    count = sys.getrefcount(thing)
    for _ in range(10):
        assert not tree.check([thing, "x"])
        assert tree.collected([thing, "x"]) is None
        assert tree.collected([thing, 1]) == (thing,)
    assert sys.getrefcount(thing) == count


# ---------------------------------------------------------------- misuse


def test_misuse(native, tree):
    with pytest.raises(ValueError, match="no node 7"):
        tree.check_type(7, int)
    with pytest.raises(ValueError, match="no node 0"):
        tree.attr(0, "x")
    with pytest.raises(ValueError, match="negative"):
        tree.local(-1)
    with pytest.raises(TypeError):
        tree.global_(3)
    node = tree.local(0)
    with pytest.raises(ValueError, match="twice"):
        tree.collect([node, node])
    with pytest.raises(TypeError, match="not callable"):
        tree.call(node, 3)
    entry = native.Entry((lambda x: x).__code__, tree)
    assert entry.guards is tree
    with pytest.raises(ValueError, match="another entry"):
        native.Entry((lambda x: x).__code__, tree)
    with pytest.raises(ValueError, match="belongs to an entry"):
        tree.collect([])
    with pytest.raises(TypeError, match="GuardTree or None"):
        native.Entry((lambda x: x).__code__, 5)


def test_growing_during_evaluation_is_refused(native, tree):
    errors = []

    def grow(value):
        try:
            tree.local(5)
        except RuntimeError as error:
            errors.append(str(error))
        return True

    tree.check_lambda(tree.local(0), grow)
    assert tree.check([1])
    assert "while it is evaluated" in errors[0]
    tree.local(6)


def test_deep_trees(native, tree):
    node = tree.local(0)
    value = "end"
    for _ in range(500):
        node = tree.item(node, 0)
        value = (value,)
    tree.check_equals(node, "end")
    assert holds(tree, value)
    assert tree.path(node).count("[0]") == 501


# ---------------------------------------------------------------- keys, classes, functions


class Unequal:
    """Equal to everything, which no guard asks."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def test_keys_and_elements_are_told_by_identity(native):
    key = Unequal()
    for check, holder in (("check_dict_keys", lambda k: {k: 1}), ("check_set", lambda k: {k})):
        tree = native.GuardTree()
        getattr(tree, check)(tree.local(0), [key])
        assert holds(tree, holder(key))
        assert not holds(tree, holder(Unequal()))


def test_a_set_keeps_its_order(tree):
    forth, back = {0, 8}, {8, 0}
    tree.check_set(tree.local(0), list(forth))
    assert holds(tree, set(forth)) is (list(set(forth)) == list(forth))
    assert holds(tree, back) is (list(back) == list(forth))
    assert not holds(tree, {0.0, 8})


def test_class_attributes(tree):
    class Base:
        there = property(lambda self: 1)

    class Changing(Base):
        pass

    node = tree.constant(Base)
    tree.check_class_attr(node, "there", Base.__dict__["there"])
    tree.check_class_attr(tree.constant(Changing), "there")
    for _ in range(3):
        assert holds(tree)
    Changing.unrelated = 1
    Base.unrelated = 1
    assert holds(tree)
    Changing.there = 2
    assert not holds(tree)
    del Changing.there
    assert holds(tree)
    old, Base.there = Base.__dict__["there"], 3
    assert not holds(tree)
    Base.there = old
    assert holds(tree)


def test_bases_of_classes(tree):
    class Base:
        pass

    class Other:
        pass

    class Between(Base):
        pass

    class Changing(Between):
        pass

    tree.check_mro(tree.constant(Changing), Changing.__mro__)
    Changing.attribute = Base.attribute = 1
    assert holds(tree)
    Between.__bases__ = (Other,)  # of a base: the class's own tuple is another all the same
    assert not holds(tree)


def test_functions_by_code_and_globals(tree):
    tree.check_function(tree.local(0), FN)
    assert holds(tree, FN) and holds(tree, outer("another cell"))
    assert not holds(tree, outer) and not holds(tree, len)
    assert not holds(tree, types.FunctionType(FN.__code__, {}, "fn", None, FN.__closure__))


def test_answers_of_abstract_classes(tree):
    class Base(abc.ABC):
        pass

    class Other:
        pass

    tree.check_subclasses(abc.get_cache_token, abc.get_cache_token(), [(Other, Base, False), (int, Base, False)])
    assert holds(tree)
    Base.register(float)
    assert holds(tree)
    Base.register(Other)
    assert not holds(tree)
