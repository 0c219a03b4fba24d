"""Attribute access on the program's objects: what eager does, and no question that eager does not ask.

The cases are generated: kinds of classes, each of which says how an attribute may be stored, looked up or computed,
times short programs of reads, writes and deletions. Every call of the program's own hooks goes into a log, which must
be eager's too, as must the result (or exception) and the object that is left.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from torch import nn

import dynamo_capture

LOG: list[object] = []


class Plain:
    pass


class ClassAttribute:
    a = 7


class Slots:
    __slots__ = ("a",)


class SlotsAndDict(Slots):
    pass


class SlotsAndHook(Slots):
    def __getattr__(self, name):
        LOG.append(("getattr", name))
        if name == "b":
            raise AttributeError(name)
        return 11


class Hook:
    def __getattr__(self, name):
        LOG.append(("getattr", name))
        if name.startswith("_") or name == "b":
            raise AttributeError(name)
        return 13


class AnswersAll:
    def __getattr__(self, name):
        LOG.append(("getattr", name))
        return 17


class RaisesKeyError(dict):
    def __getattr__(self, name):
        LOG.append(("getattr", name))
        return self[name]


class GetAttribute:
    def __getattribute__(self, name):
        LOG.append(("getattribute", name))
        return object.__getattribute__(self, name)


class GetAttributeAndHook(GetAttribute):
    def __getattr__(self, name):
        LOG.append(("getattr", name))
        return 19


class WritesLogged:
    def __setattr__(self, name, value):
        LOG.append(("setattr", name))
        super().__setattr__(name, value)

    def __delattr__(self, name):
        LOG.append(("delattr", name))
        super().__delattr__(name)


class Property:
    @property
    def a(self):
        LOG.append("fget")
        return self.__dict__.get("stored", 3)

    @a.setter
    def a(self, value):
        LOG.append("fset")
        self.__dict__["stored"] = value

    @a.deleter
    def a(self):
        LOG.append("fdel")
        del self.__dict__["stored"]


class ReadOnly:
    @property
    def a(self):
        return 23


class RaisingProperty:
    @property
    def a(self):
        LOG.append("fget")
        raise AttributeError("a")

    def __getattr__(self, name):
        LOG.append(("getattr", name))
        return 29


class Data:
    def __get__(self, obj, owner=None):
        LOG.append("get")
        return obj.__dict__.get("kept", 31)

    def __set__(self, obj, value):
        LOG.append("set")
        obj.__dict__["kept"] = value

    def __delete__(self, obj):
        LOG.append("delete")
        del obj.__dict__["kept"]


class DataDescriptor:
    a = Data()


class NoDelete:
    def __get__(self, obj, owner=None):
        return 37

    def __set__(self, obj, value):
        LOG.append("set")


class WithoutDelete:
    a = NoDelete()


class NonData:
    def __get__(self, obj, owner=None):
        LOG.append("get")
        return 41


class NonDataDescriptor:
    a = NonData()


class Cached:
    @functools.cached_property
    def a(self):
        LOG.append("computed")
        return 43


class Module(nn.Module):
    a = 47


KINDS = [
    Plain, ClassAttribute, Slots, SlotsAndDict, SlotsAndHook, Hook, AnswersAll, RaisesKeyError, GetAttribute,
    GetAttributeAndHook, WritesLogged, Property, ReadOnly, RaisingProperty, DataDescriptor, WithoutDelete,
    NonDataDescriptor, Cached, Module,
]  # fmt: skip

#: Steps of a program on an object ``o``, which put what they see into ``seen``.
STEPS = {
    "get": "seen.append(o.a)",
    "set": "o.a = len(seen) + 100",
    "del": "del o.a",
    "other": "o.b = 5",
    "has": "seen.append(hasattr(o, 'a'))",
    "default": "seen.append(getattr(o, 'b', 'none'))",
    "under": "o.__dict__['a'] = 59",
    "names": "seen.append(list(o.__dict__))",
}
PROGRAMS = [
    ["get"], ["has"], ["default"], ["set", "get"], ["set", "del"], ["set", "del", "has"], ["del"], ["del", "set"],
    ["del", "set", "names"], ["other", "set", "names"], ["set", "get", "del", "set", "get"], ["under", "get"],
    ["under", "names", "del", "names"], ["get", "get", "set", "get"], ["set", "set", "del", "default"],
    ["has", "del", "has", "set", "has"],
]  # fmt: skip


def program(steps, catches):
    """``f(o, x)`` that runs the steps; with ``catches`` each in a ``try`` of its own."""
    lines = ["def f(o, x):", "    seen = []"]
    for step in steps:
        if catches:
            lines += ["    try:", f"        {STEPS[step]}", "    except AttributeError as e:",
                      "        seen.append(type(e).__name__)"]  # fmt: skip
        else:
            lines.append(f"    {STEPS[step]}")
    lines += ["    x = x + 1", "    return x * 2, seen"]
    namespace: dict[str, object] = {}
    exec("\n".join(lines), namespace)
    return namespace["f"]


def state(o):
    """What is left in an object, in order."""
    own = {k: v for k, v in object.__getattribute__(o, "__dict__").items() if k in ("a", "b", "stored", "kept")} if (
        type(o).__dictoffset__
    ) else {}
    slot = type(o).__mro__[-2].__dict__.get("a") if isinstance(o, Slots) else None
    try:
        filled = slot.__get__(o) if slot is not None else None
    except AttributeError:
        filled = "empty"
    return list(own.items()), filled


def run(fn, o):
    LOG.clear()
    try:
        y, seen = fn(o, torch.ones(2))
        outcome = [y.tolist(), seen]
    except Exception as error:
        outcome = [type(error).__name__, str(error)]
    return outcome, list(LOG), state(o)


def objects(kind):
    """An empty instance, and one that has the attribute already where it can."""
    empty, full = kind(), kind()
    for setter in ("object.__setattr__(o, 'a', 1)", "o.__dict__.__setitem__('a', 1)"):
        try:
            exec(setter, {"o": full})
            break
        except (AttributeError, TypeError):
            continue
    return empty, full


def cases():
    for kind, steps, catches in itertools.product(KINDS, PROGRAMS, (False, True)):
        if not kind.__dictoffset__ and {"under", "names"} & set(steps):
            continue
        yield pytest.param(kind, steps, catches, id=f"{kind.__name__}-{'-'.join(steps)}-{catches}")


@pytest.mark.parametrize(("kind", "steps", "catches"), list(cases()))
def test_attributes_are_eagers(kind, steps, catches):
    fn = program(steps, catches)
    compiled = dynamo_capture.optimize(fn, lambda gm, inputs: gm.forward)
    for which in (0, 1, 0):  # the guards tell the empty one from the full one
        expected = run(fn, objects(kind)[which])
        assert run(compiled, objects(kind)[which]) == expected
    report = compiled.__quintet_optimizer__.report
    assert not [f.reason for f in report.fallbacks if "internal error" in f.reason]


def test_what_is_simulated_is_captured(capture):
    """Most of the cases above are right because they are captured, not because they were left to eager."""
    captured = 0
    total = 0
    for kind, steps in itertools.product(KINDS, (["get"], ["set", "get"], ["set", "del"])):
        fn = capture(program(steps, True), strict=False)
        fn(objects(kind)[1], torch.ones(2))
        total += 1
        captured += bool(fn.graphs)
    assert captured >= 0.8 * total


def test_a_class_attribute_is_back_after_deletion(capture):
    class Scaled:
        scale = 2

    def f(o, x):
        o.scale = 5
        del o.scale
        return x * o.scale

    fn = capture(f, fullgraph=True)
    o = Scaled()
    assert fn(o, torch.ones(2)).tolist() == [2, 2] and "scale" not in vars(o)
    o.scale = 9
    assert fn(o, torch.ones(2)).tolist() == [2, 2] and "scale" not in vars(o)


def test_the_object_is_not_asked_for_its_class(capture):
    """``isinstance`` asks an object for ``__class__``; one that lies about it is what it is."""

    class Poses:
        def __init__(self):
            self.scale = 3

        @property
        def __class__(self):
            LOG.append("class")
            return nn.Module

    LOG.clear()
    assert capture(lambda o, x: x * o.scale)(Poses(), torch.ones(2)).tolist() == [3, 3]
    assert LOG == []


def test_metaclasses_are_not_asked(capture):
    class Meta(type):
        def __getattr__(cls, name):
            LOG.append(name)
            raise AttributeError(name)

    class Net(nn.Linear, metaclass=Meta):
        pass

    LOG.clear()
    net = Net(2, 2)
    x = torch.ones(1, 2)
    asked = list(LOG)
    torch.testing.assert_close(capture(lambda m, x: m(x))(net, x), net(x))
    assert LOG == asked


class TestWrappersOfWrappers:
    """``functools.wraps`` copies the attributes of a compiled or disabled function to one that is neither."""

    def test_a_wrapper_of_a_compiled_function_is_captured(self, capture):
        inner = dynamo_capture.optimize(lambda x: x + 1, lambda gm, inputs: gm.forward)

        @functools.wraps(inner)
        def outer(x):
            return inner(x) * 10

        fn = capture(outer)
        assert fn(torch.ones(2)).tolist() == [20, 20]
        assert capture(lambda x: outer(x) + 3)(torch.ones(2)).tolist() == [23, 23]
        assert fn.graphs

    @pytest.mark.parametrize("recursive", [True, False])
    def test_a_wrapper_of_a_disabled_function_is_captured(self, capture, recursive):
        inner = dynamo_capture.disable(lambda x: x + 1, recursive=recursive)

        @functools.wraps(inner)
        def outer(x):
            return inner(x) * 10

        fn = capture(outer)
        assert fn(torch.ones(2)).tolist() == [20, 20]
        assert fn.ops() == 1

    def test_a_callable_object_is_not_asked_for_a_name(self):
        class Greedy:
            def __getattr__(self, name):
                LOG.append(name)
                return "anything"

            def __call__(self, x):
                return x * 2

        LOG.clear()
        greedy = Greedy()
        fn = dynamo_capture.optimize(greedy, lambda gm, inputs: gm.forward)
        assert fn(torch.ones(2)).tolist() == [2, 2]
        dynamo_capture.disable(greedy)
        assert LOG == []


@torch.jit.script
def scripted(x: torch.Tensor, times: int) -> torch.Tensor:
    return x * times + 1


@torch.jit.script
def scripted_otherwise(x: torch.Tensor, times: int) -> torch.Tensor:
    return x * times - 1


class TestObjectsOfTorch:
    def test_a_scripted_function_is_its_python_function(self, capture):
        """So is another one in its place."""
        chosen = {"function": scripted}
        fn = capture(lambda x: chosen["function"](x, 3).relu())
        x = torch.ones(2)
        assert fn(x).tolist() == [4, 4] and fn.ops() == 3
        chosen["function"] = scripted_otherwise
        assert fn(x).tolist() == [2, 2]
        assert not fn.report.breaks

    def test_a_traced_function_is_called_as_it_is(self, capture):
        traced = torch.jit.trace(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(2))  # always the former
        fn = capture(lambda x: traced(x.sin()).relu())
        for x in (torch.ones(2), torch.tensor([1.0, -2.0])):
            torch.testing.assert_close(fn(x), (2 * x.sin()).relu())
        (found,) = fn.report.breaks
        assert "TorchScript" in found.reason

    def test_properties_that_torch_computes(self, capture):
        """As those of a GPU are (``torch.cuda.get_device_properties(0).major``): a constant, guarded where the object
        is the program's."""
        held = {"schema": torch.ops.aten.mm.default._schema}
        fn = capture(lambda x: x * len(held["schema"].name) + len(torch.ops.aten.mm.default._schema.name))
        x = torch.ones(2)
        assert fn(x).tolist() == [16, 16]
        held["schema"] = torch.ops.aten.relu.default._schema
        assert fn(x).tolist() == [18, 18]
        assert not fn.report.breaks

    def test_properties_by_c_functions_of_the_programs_classes(self, capture):
        class Sized:
            size = property(len)

            def __len__(self):
                return LENGTH[0]

        sized = Sized()
        fn = capture(lambda x: x * sized.size)
        for LENGTH[0] in (2, 3):
            assert fn(torch.ones(1)).tolist() == [LENGTH[0]]


LENGTH = [0]


class Plain:
    pass


_setter, _appender, _initialiser = object.__setattr__.__get__, list.append.__get__, Plain.__init__.__get__


def _by_a_global(x):
    made = Plain()
    _setter(made)("field", x)
    return made.field * 2


def _by_name(x):
    made = Plain()
    object.__setattr__.__get__(made, Plain)("field", x)
    return made.field * 2


def _on_a_list(x):
    made = []
    _appender(made)(x)
    return made[0] * 2


def _of_init(x):
    _initialiser(Plain())()
    return x * 2


@pytest.mark.parametrize("fn", [_by_a_global, _by_name, _on_a_list, _of_init])
def test_methods_in_c_that_the_program_binds(capture, fn):
    """As the frozen classes of attrs set their fields."""
    assert capture(fn)(torch.ones(2)).tolist() == [2, 2]


class WithCompiled:
    def __init__(self):
        self.weight = torch.full((2,), 2.0)

    def compiled(self, x):
        return x * self.weight

    def disabled(self, x):
        return x + self.weight

    compiled = dynamo_capture.optimize(compiled, lambda gm, inputs: gm.forward)
    disabled = dynamo_capture.disable(disabled)


@pytest.mark.parametrize(
    ("fn", "breaks"),
    [
        (lambda x, o: o.compiled(x.sin()).cos(), 0),
        (lambda x, o: (lambda call: call(x) + WithCompiled.compiled(o, x))(o.compiled), 0),
        (lambda x, o: o.disabled(x.sin()).cos(), 1),
    ],
    ids=["method", "of the class, too", "disabled"],
)
def test_methods_that_were_compiled_or_disabled(capture, fn, breaks):
    compiled, o = capture(fn, strict=False), WithCompiled()
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2), o), fn(torch.ones(2), o))
    assert len(compiled.report.breaks) == breaks
    assert not compiled.report.recompiles
