"""A trail answers as the evaluation does that it spares: random programs of changes, judged by evaluation."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

native = sys.modules["dynamo_capture._native"]  # conftest.py has loaded it

try:
    import torch
    from torch import nn

    from dynamo_capture import hook
except ImportError:  # the hook is tested without it too: then there are no modules and tensors
    torch = nn = None  # type: ignore[assignment]
else:
    hook.init_torch()

with_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


class Plain:
    label = "plain"

    def method(self) -> int:
        return 1


class Other(Plain):
    pass


class Slots:
    __slots__ = ("a", "b")


class Meeting(dict[str, Any]):
    """A dict of another class."""


def constant(rng: random.Random) -> Any:
    return rng.choice([0, 1, 10**6, 10**6 + 1, 2.5, -0.0, "a", "bc", None, True, (1, 2), (1, (2, "x")), 10**12])


def function(rng: random.Random) -> Any:
    held, default = grown(rng, 2), grown(rng, 2)

    def first(x: Any = default, *, y: Any = default) -> Any:
        return held

    def second(x: Any = default) -> Any:
        return (held, 1)

    return rng.choice([first, second])


def module(rng: random.Random) -> Any:
    made = nn.Module()
    made.weight = nn.Parameter(torch.randn(rng.choice([2, 3]), 2), requires_grad=rng.random() < 0.8)
    made.register_buffer("seen", torch.zeros(rng.choice([1, 2])))
    made.add_module("inner", nn.Linear(2, 2))
    made.number = constant(rng)
    return made


def slots(rng: random.Random) -> Any:
    made = Slots()
    made.a, made.b = constant(rng), constant(rng)
    return made


def instance(rng: random.Random, depth: int) -> Any:
    made = rng.choice([Plain, Other])()
    for name in "abc":
        setattr(made, name, grown(rng, depth - 1))
    return made


def grown(rng: random.Random, depth: int) -> Any:
    """A value of some kind, with others in it."""
    if depth <= 0:
        return constant(rng)
    some: list[Callable[[], Any]] = [
        lambda: constant(rng),
        lambda: instance(rng, depth),
        lambda: {name: grown(rng, depth - 1) for name in "abc"},
        lambda: OrderedDict((name, grown(rng, depth - 1)) for name in "ab"),
        lambda: Meeting({name: grown(rng, depth - 1) for name in "ab"}),
        lambda: [grown(rng, depth - 1) for _ in range(2)],
        lambda: tuple(grown(rng, depth - 1) for _ in range(2)),
        lambda: function(rng),
        lambda: slots(rng),
        lambda: instance(rng, depth).method,
        lambda: types.new_class(f"Made{rng.randrange(3)}", (Plain,), {}, lambda d: d.update(label=constant(rng))),
        lambda: {1, 2, rng.randrange(4)},
    ]
    if torch is not None:
        some += [lambda: module(rng), lambda: torch.randn(2, 3)[:, : rng.choice([2, 3])]]
    return rng.choice(some)()


class Watch:
    """A tree over a value, with checks that hold now. ``shared``: the value is a dict of globals and builtins."""

    def __init__(self, rng: random.Random, value: Any, shared: bool = False) -> None:
        self.rng, self.tree, self.value = rng, native.GuardTree(), value
        self.collected: list[tuple[int, Callable[[], Any]]] = []
        self.given: tuple[Any, ...] = ((), value["globals"], value["builtins"]) if shared else ((value,),)
        if shared:
            self.walk_roots(value)
        else:
            self.walk(self.tree.local(0), value, 5)
        self.tree.collect(list(dict.fromkeys(node for node, _ in self.collected)))

    def walk_roots(self, value: Any) -> None:
        rng, tree = self.rng, self.tree
        for name, item in {**value["builtins"], **value["globals"]}.items():
            if isinstance(name, str) and rng.random() < 0.9:
                self.walk(tree.global_(name), item, 4)
        for name, item in value["builtins"].items():
            if isinstance(name, str) and rng.random() < 0.5:
                self.walk(tree.builtin(name), item, 1)
        for item in value["globals"].values():
            if isinstance(item, Plain) and rng.random() < 0.5:
                self.walk(rng.choice([tree.weak, tree.constant])(item), item, 3)
        if rng.random() < 0.5:
            tree.check_contains(tree.globals_dict(), "zz", present="zz" in value["globals"])

    def walk(self, node: int, value: Any, depth: int) -> None:
        rng, tree = self.rng, self.tree
        if rng.random() < 0.7:
            tree.check_type(node, type(value))
        if is_tensor(value):
            if rng.random() < 0.8:
                tree.check_tensor(node, value)
            self.collected.append((node, lambda: None))
            return
        if isinstance(value, int | float | str | tuple | None) and rng.random() < 0.7 and self.plain(value):
            tree.check_equals(node, value)
        if rng.random() < 0.1:
            tree.check_id(node, value)
        if rng.random() < 0.15:
            self.collected.append((node, lambda: None))
        if depth == 0:
            return
        if isinstance(value, dict):
            self.walk_dict(node, value, depth)
        elif isinstance(value, tuple | list):
            if rng.random() < 0.7:
                tree.check_len(node, len(value))
            for i, item in enumerate(value):
                if rng.random() < 0.8:
                    self.walk(tree.item(node, i), item, depth - 1)
        elif isinstance(value, set):
            tree.check_set(node, list(value))
        elif isinstance(value, types.FunctionType):
            self.walk_function(node, value, depth)
        elif isinstance(value, types.MethodType):
            self.walk(tree.method_self(node), value.__self__, depth - 1)
            self.walk(tree.method_func(node), value.__func__, depth - 1)
        elif isinstance(value, type):
            self.walk_class(node, value)
        elif hasattr(value, "__dict__"):
            self.walk_instance(node, value, depth)
        elif isinstance(value, Slots):
            self.walk(tree.attr(node, "a"), value.a, depth - 1)

    def plain(self, value: Any) -> bool:
        return all(map(self.plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | None)

    def walk_dict(self, node: int, value: dict[Any, Any], depth: int) -> None:
        rng, tree = self.rng, self.tree
        if rng.random() < 0.3:
            tree.check_len(node, len(value))
        if rng.random() < 0.2:
            tree.check_dict_keys(node, list(value))
        if rng.random() < 0.3:
            tree.check_contains(node, "a", present="a" in value)
            tree.check_contains(node, "zz", present="zz" in value)
        for name, item in list(value.items()):
            if rng.random() < 0.8 and isinstance(name, str | int):
                self.walk(tree.item(node, name), item, depth - 1)

    def walk_function(self, node: int, value: Any, depth: int) -> None:
        rng, tree = self.rng, self.tree
        if rng.random() < 0.8:
            tree.check_function(node, value)
        if rng.random() < 0.3:
            self.walk(tree.func_code(node), value.__code__, 0)
        if value.__closure__ and rng.random() < 0.8:
            self.walk(tree.func_closure(node, 0), value.__closure__[0].cell_contents, depth - 1)
        if rng.random() < 0.5:
            self.walk(tree.func_defaults(node), value.__defaults__, depth - 1)
        if rng.random() < 0.3:
            self.walk(tree.func_kwdefaults(node), value.__kwdefaults__, depth - 1)

    def walk_class(self, node: int, value: Any) -> None:
        rng, tree = self.rng, self.tree
        if rng.random() < 0.7:
            tree.check_mro(node, value.__mro__)
        if "label" in vars(value):
            if rng.random() < 0.7:
                tree.check_class_attr(node, "label", vars(value)["label"])
            if rng.random() < 0.5:
                self.walk(tree.dict_attr(node, "label"), vars(value)["label"], 0)
        if "absent" not in vars(value):
            tree.check_class_attr(node, "absent")

    def walk_instance(self, node: int, value: Any, depth: int) -> None:
        rng, tree = self.rng, self.tree
        if "absent" not in vars(value):
            tree.check_no_instance_attr(node, "absent")
        if rng.random() < 0.4:
            self.walk_class(tree.type_of(node), type(value)) if type(value) in (Plain, Other) else None
        for name, item in list(vars(value).items()):
            if isinstance(name, str) and rng.random() < (0.8 if isinstance(value, Plain) else 0.3):
                self.walk(tree.dict_attr(node, name), item, depth - 1)

    def judged(self) -> bool:
        """Whether the guards hold; with a trail and without one the answer is the same."""
        before = self.tree.check(*self.given)
        plain = self.tree.explain_failure(*self.given) is None
        assert before == plain, self.tree.explain_failure(*self.given)
        if plain:
            collected = self.tree.collected(*self.given)
            assert collected is not None
            assert [id(a) for a in collected] == [id(b) for b in self.plainly_collected()]
            del collected
        return plain

    def plainly_collected(self) -> tuple[Any, ...]:
        """By a tree that has no trail yet: growing it drops the trails."""
        self.tree.check_type(self.tree.constant(self.rng.random()), float)
        collected = self.tree.collected(*self.given)
        assert collected is not None
        return collected


def is_tensor(value: Any) -> bool:
    return torch is not None and isinstance(value, torch.Tensor)


def parts(value: Any, seen: dict[int, Any]) -> None:
    """All that can be changed in a value."""
    if id(value) in seen or isinstance(value, int | float | str | type(None)):
        return
    seen[id(value)] = value
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, tuple | list):
        inner = list(value)
    elif isinstance(value, types.FunctionType):
        inner = [c.cell_contents for c in value.__closure__ or ()] + [value.__defaults__, value.__kwdefaults__]
    elif isinstance(value, types.MethodType):
        inner = [value.__self__]
    elif not isinstance(value, type | set) and not is_tensor(value) and hasattr(value, "__dict__"):
        inner = [type(value), *vars(value).values()] if isinstance(value, Plain) else list(vars(value).values())
    for item in inner:
        parts(item, seen)


def change(rng: random.Random, value: Any) -> Callable[[], None] | None:
    """Changes one thing; what undoes it, or None where nothing can."""
    seen: dict[int, Any] = {}
    parts(value, seen)
    target = rng.choice(list(seen.values()))
    del seen
    fresh = grown(rng, rng.randrange(3))
    if isinstance(target, dict):
        return change_dict(rng, target, fresh)
    if isinstance(target, list):
        old = list(target)
        rng.choice([lambda: target.append(fresh), lambda: target.__setitem__(0, fresh), target.reverse])()
        return lambda: target.__setitem__(slice(None), old)
    if isinstance(target, types.FunctionType):
        return change_function(rng, target, fresh)
    if is_tensor(target):
        return change_tensor(rng, target)
    if isinstance(target, type):
        if target in (Plain, Other) or target.__name__.startswith("Made"):
            name = rng.choice(["label", "absent"])
            had, old = name in vars(target), vars(target).get(name)
            setattr(target, name, fresh)
            return lambda: setattr(target, name, old) if had else delattr(target, name)
        return None
    if isinstance(target, Plain) or (torch is not None and isinstance(target, nn.Module)):
        return change_instance(rng, target, fresh)
    return None


def change_dict(rng: random.Random, target: dict[Any, Any], fresh: Any) -> Callable[[], None] | None:
    old = list(target.items())
    name = rng.choice([*[k for k, _ in old], "zz", "new"])
    rng.choice(
        [
            lambda: target.__setitem__(name, fresh),
            lambda: target.update({name: fresh}),
            lambda: target.pop(name, None),
            lambda: target.setdefault("zz", fresh),
            lambda: target.__ior__({name: fresh}),
            lambda: target.clear() if all(isinstance(k, str) for k in target) and "training" not in target else None,
            lambda: target.__setitem__(name, target.get(name)) if name in target else None,
        ]
    )()

    def undo() -> None:
        target.clear()
        target.update(old)

    return undo


def change_function(rng: random.Random, target: Any, fresh: Any) -> Callable[[], None] | None:
    old = (target.__code__, target.__defaults__, target.__kwdefaults__)
    cell = target.__closure__[0] if target.__closure__ else None
    held = cell.cell_contents if cell else None

    def content() -> None:
        if cell:
            cell.cell_contents = fresh

    def code() -> None:
        if cell:
            target.__code__ = target.__code__.replace(co_name="renamed")

    rng.choice(
        [
            content,
            code,
            lambda: setattr(target, "__defaults__", (fresh,)),
            lambda: setattr(target, "__kwdefaults__", {}),
        ]
    )()

    def undo() -> None:
        target.__code__, target.__defaults__, target.__kwdefaults__ = old
        if cell:
            cell.cell_contents = held

    return undo


def change_tensor(rng: random.Random, target: Any) -> Callable[[], None] | None:
    if not target.is_leaf:
        return None
    before, data = target.requires_grad, target.data
    other = rng.choice([data.double(), data.t(), torch.randn(1, 5), data.clone(), data.to(torch.bfloat16), data.neg()])

    def assign() -> None:
        target.data = other

    rng.choice([assign, lambda: target.requires_grad_(not before), lambda: target.data.zero_()])()

    def undo() -> None:
        target.data = data
        if data.dtype.is_floating_point:
            target.requires_grad_(before)

    return undo


def change_instance(rng: random.Random, target: Any, fresh: Any) -> Callable[[], None] | None:
    names = [n for n in vars(target) if not n.startswith("_")]
    name = rng.choice([*names, "absent", "counter"])
    before, old = type(target), dict(vars(target))
    shared = target.__dict__

    def replace() -> None:
        target.__dict__ = dict(shared)

    def reclass() -> None:
        if type(target) in (Plain, Other):
            target.__class__ = Other if type(target) is Plain else Plain

    def store() -> None:
        object.__setattr__(target, name, fresh)

    def delete() -> None:
        target.__dict__.pop(name, None)

    rng.choice([store, store, delete, replace, reclass, lambda: setattr(target, "counter", rng.random())])()

    def undo() -> None:
        target.__class__ = before
        target.__dict__ = shared
        for added in set(vars(target)) - set(old):
            object.__delattr__(target, added)
        for kept, item in old.items():
            target.__dict__[kept] = item

    return undo


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(120))
def test_changes(seed: int, shared: bool) -> None:
    rng = random.Random(seed)
    roots: list[Callable[[], Any]] = [lambda: instance(rng, 3), lambda: function(rng)]
    if torch is not None:
        roots.append(lambda: module(rng))
    value = rng.choice(roots)()
    if shared:
        others = {"a": instance(rng, 2), "b": function(rng), "c": constant(rng), "d": Other}
        value = {"globals": {**others, "e": value}, "builtins": {"c": constant(rng), "f": instance(rng, 1)}}
    watch = Watch(rng, value, shared)
    assert watch.judged()
    held = 0
    for _ in range(40):
        for _ in range(rng.randrange(1, 4)):
            held += watch.tree.check(*watch.given)
        undo = change(rng, value)
        watch.judged()
        watch.judged()
        if undo is not None and rng.random() < 0.8:
            undo()
            watch.judged()
        if not watch.tree.valid:
            watch = Watch(rng, value, shared)
            assert watch.judged()
    assert held


def test_another_object_at_the_same_address() -> None:
    """A value that dies makes room for another: its address says nothing."""

    def maker(n: int) -> Any:
        return {"n": 10**9 + n, "t": (10**9 + n, [n]), "f": eval(f"lambda x=({n}, 10**9): x"), "d": {"k": 10**9 + n}}

    reused = 0
    for name in ("n", "t", "f", "d"):
        owner = Plain()
        vars(owner).update(maker(0))
        tree = native.GuardTree()
        node = tree.dict_attr(tree.local(0), name)
        if name == "n":
            tree.check_equals(node, owner.n)
        elif name == "t":
            tree.check_equals(tree.item(node, 0), owner.t[0])
        elif name == "f":
            tree.check_equals(tree.item(tree.func_defaults(node), 0), (0, 10**9))
        else:
            tree.check_equals(tree.item(node, "k"), owner.d["k"])
        again = 0
        for n in range(200):
            setattr(owner, name, None)
            setattr(owner, name, maker(0)[name])
            assert tree.check((owner,)) and tree.check((owner,))
            address = id(getattr(owner, name))
            setattr(owner, name, None)
            setattr(owner, name, maker(1 + n)[name])
            again += id(getattr(owner, name)) == address
            assert not tree.check((owner,))
        reused += again
    assert reused  # else nothing was tried


def test_a_root_at_the_same_address() -> None:
    tree = native.GuardTree()
    tree.check_equals(tree.dict_attr(tree.local(0), "n"), 1)
    for n in range(100):
        one = Plain()
        one.n = 1
        assert tree.check((one,)) and tree.check((one,))
        del one
        two = Plain()
        two.n = 2 + n
        assert not tree.check((two,))
        del two


@with_torch
def test_a_trail_keeps_nothing_alive() -> None:
    model = module(random.Random(0))
    tree = native.GuardTree()
    root = tree.local(0)
    tree.check_tensor(tree.module_item(root, "_parameters", "weight"), model.weight)
    tree.check_type(tree.module_item(root, "_modules", "inner"), nn.Linear)
    assert tree.check((model,)) and tree.trails()
    died: list[str] = []
    weakref.finalize(model.inner, died.append, "inner")
    weakref.finalize(model, died.append, "model")
    gc.disable()
    try:
        del model
        assert sorted(died) == ["inner", "model"]
    finally:
        gc.enable()


@with_torch
def test_structure_is_not_evaluated_anew() -> None:
    """A module's guards rest on words and tensors alone, also with an attribute that changes in each call."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(5)])
    model.calls = 0
    tree = native.GuardTree()
    root = tree.local(0)
    for name, inner in model._modules.items():
        node = tree.module_item(root, "_modules", name)
        tree.check_type(node, nn.Linear)
        tree.check_equals(tree.dict_attr(node, "training"), True)
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            tree.check_len(tree.dict_attr(node, hooks), 0)
        tree.check_tensor(tree.module_item(node, "_parameters", "weight"), inner.weight)
    for _ in range(20):
        assert tree.check((model,))
        model.calls += 1
    ((words, tensors, evaluated),) = tree.trails()
    assert (tensors, evaluated) == (5, 0) and words >= 5 * 4
    model[2].training = False
    assert not tree.check((model,))


@with_torch
def test_a_counter_that_is_read() -> None:
    """A value that is another in each call is read anew, and the rest is still not."""
    model = nn.Linear(2, 2)
    model.calls = 0
    tree = native.GuardTree()
    root = tree.local(0)
    tree.check_type(tree.dict_attr(root, "calls"), int)
    tree.check_tensor(tree.module_item(root, "_parameters", "weight"), model.weight)
    tree.collect([tree.dict_attr(root, "calls")])
    for i in range(3000):
        assert tree.collected((model,)) == (i,)
        model.calls += 1
    assert tree.trails()[0][1:] == (1, 1)


def test_roots_that_are_always_the_same_share_a_trail() -> None:
    """One that keeps changing is set apart, and the others still rest on words."""

    class Counted(Plain):
        calls = 0

    steady = [type(f"Steady{i}", (Plain,), {"label": i}) for i in range(10)]
    names: dict[str, Any] = {"known": steady[0], "counter": 0}
    tree = native.GuardTree()
    for i, cls in enumerate(steady):
        tree.check_class_attr(tree.constant(cls), "label", i)
    tree.check_id(tree.global_("known"), steady[0])
    tree.check_type(tree.global_("counter"), int)
    tree.check_function(tree.dict_attr(tree.weak(Plain), "method"), Plain.method)
    tree.check_class_attr(tree.constant(Counted), "absent")
    for _ in range(50):
        assert tree.check((), names)
        Counted.calls += 1
        names["counter"] += 1
    words, tensors, evaluated = tree.trails()[-1]
    assert words >= 10 and (tensors, evaluated) == (0, 1)  # the counter is read anew
    names["known"] = steady[1]
    assert not tree.check((), names)
    names["known"] = steady[0]
    assert tree.check((), names) and tree.check((), names)
    steady[5].label = 7  # type: ignore[attr-defined]
    assert not tree.check((), names)


def test_a_failing_trail_costs_few_recordings() -> None:
    """What changes with every call (a list) settles to evaluation: no trail is tried for long."""
    owner = Plain()
    owner.items = {"a": (1, [2])}
    tree = native.GuardTree()
    node = tree.dict_attr(tree.local(0), "items")
    tree.check_len(tree.item(tree.item(node, "a"), 1), 1)
    for _ in range(3000):
        assert tree.check((owner,))
        owner.items = {"a": (1, [2])}


def test_attributes_with_a_place_of_their_own_are_words() -> None:
    """Items of modules, places of `__slots__` and a function's parts need no lookup; each change of them is seen."""
    held = types.ModuleType("held")

    def old(x: int) -> int:
        return x

    def new(x: int) -> int:
        return -x

    owner = slots(random.Random(0))
    owner.a, owner.b, held.fn = 5, types.MappingProxyType({}), old  # type: ignore[attr-defined]
    holder = Plain()
    holder.owner = owner  # type: ignore[attr-defined]
    tree = native.GuardTree()
    a, b, module_root = tree.dict_attr(tree.local(0), "owner"), tree.local(1), tree.local(2)
    tree.check_equals(tree.attr(a, "a"), 5)
    tree.check_type(tree.attr(a, "b"), types.MappingProxyType)
    tree.check_function(tree.attr(module_root, "fn"), old)
    tree.check_id(tree.attr(b, "__code__"), old.__code__)
    tree.check_equals(tree.func_defaults(b), None)
    values = (holder, old, held)
    assert tree.check(values) and tree.check(values)
    assert [evaluated for _, _, evaluated in tree.trails()] == [0, 0, 0]
    code, proxy = old.__code__, owner.b

    def undone(do: Callable[[], None], undo: Callable[[], None]) -> None:
        do()
        assert not tree.check(values)
        undo()
        assert tree.check(values) and tree.check(values)

    undone(lambda: setattr(owner, "a", 6), lambda: setattr(owner, "a", 5))
    undone(lambda: setattr(owner, "b", {}), lambda: setattr(owner, "b", proxy))
    undone(lambda: setattr(held, "fn", new), lambda: setattr(held, "fn", old))
    undone(lambda: delattr(held, "fn"), lambda: setattr(held, "fn", old))
    undone(lambda: setattr(old, "__code__", new.__code__), lambda: setattr(old, "__code__", code))
    undone(lambda: setattr(old, "__defaults__", (1,)), lambda: setattr(old, "__defaults__", None))
    Slots.__getattribute__ = lambda self, name: 7  # type: ignore[method-assign,assignment]
    try:
        assert not tree.check(values)
    finally:
        del Slots.__getattribute__
    assert tree.check(values)
