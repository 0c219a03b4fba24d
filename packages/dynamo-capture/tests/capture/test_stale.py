"""Whatever a program looks at, changing it afterwards changes the answer: no stale graph is used."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib
import sys
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dynamo_capture import rules


def same(ours, theirs):
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, check_stride=True)
    for attribute in ("requires_grad", "is_inference"):
        a, b = (getattr(t, attribute) for t in (ours, theirs))
        assert (a() if callable(a) else a) == (b() if callable(b) else b)


# ---------------------------------------------------------------- objects and classes


class Base:
    k = 1

    def value(self):
        return 2

    @property
    def prop(self):
        return 3

    @staticmethod
    def static():
        return 4

    @classmethod
    def of_class(cls):
        return 5

    def __len__(self):
        return 6

    def __call__(self, v):
        return v * 7


class Derived(Base):
    pass


class Net(nn.Module):
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.thing = Derived()
        self.pair = (1, 2)
        self.items = [1, 2]
        self.table = {"p": 1}
        self.fn = lambda v: v + 1
        self.names = {"a"}
        self.extra = None
        self.lin = nn.Linear(3, 3)
        self.seq = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
        self.register_buffer("shift", torch.ones(3))

    @property
    def factor(self):
        return 2.0

    def helper(self, v):
        return v * 2

    def forward(self, v, n=3, *, q=2.0):
        thing = self.thing
        r = v * thing.value() + thing.prop * thing.static() + thing.of_class() + len(thing) + thing.k
        r = thing(r) * self.factor * n * q + getattr(thing, "late", 0) + (1 if hasattr(self, "later") else 0)
        r = self.fn(r) * len(self.names) + sum(self.pair) + self.shift
        for item in self.items:
            r = r + item
        for key, value in self.table.items():
            r = r * value if key == "p" else r - value
        if self.extra is not None:
            r = r + self.extra
        return self.seq(self.lin(self.helper(r)) * self.scale)


CHANGES = {
    "inherited method replaced": lambda m: setattr(Base, "value", lambda self: 9),
    "inherited method shadowed": lambda m: setattr(Derived, "value", lambda self: 9),
    "property replaced": lambda m: setattr(Base, "prop", property(lambda self: 9)),
    "property shadowed": lambda m: setattr(Derived, "prop", property(lambda self: 9)),
    "static method": lambda m: setattr(Base, "static", staticmethod(lambda: 9)),
    "class method": lambda m: setattr(Base, "of_class", classmethod(lambda cls: 9)),
    "special method": lambda m: setattr(Base, "__len__", lambda self: 9),
    "special method shadowed": lambda m: setattr(Derived, "__call__", lambda self, v: v * 9),
    "class attribute": lambda m: setattr(Base, "k", 9),
    "class attribute shadowed": lambda m: setattr(Derived, "k", 9),
    "class attribute shadowed by the instance": lambda m: setattr(m.thing, "k", 9),
    "missing attribute set": lambda m: setattr(m.thing, "late", 9),
    "missing attribute on the class": lambda m: setattr(Base, "late", 9),
    "missing attribute on the module": lambda m: setattr(m, "later", 9),
    "missing attribute a buffer": lambda m: m.register_buffer("later", torch.ones(1)),
    "__getattr__ added": lambda m: setattr(Base, "__getattr__", lambda self, name: 9),
    "module's property": lambda m: setattr(Net, "factor", property(lambda self: 9.0)),
    "module's method": lambda m: setattr(Net, "helper", lambda self, v: v * 9),
    "module's method by an attribute": lambda m: setattr(m, "helper", lambda v: v * 9),
    "module's class attribute": lambda m: setattr(Net, "scale", 9.0),
    "defaults": lambda m: setattr(Net.forward, "__defaults__", (9,)),
    "keyword defaults": lambda m: setattr(Net.forward, "__kwdefaults__", {"q": 9.0}),
    "tuple": lambda m: setattr(m, "pair", (1, 9)),
    "longer tuple": lambda m: setattr(m, "pair", (1, 2, 3)),
    "list item": lambda m: m.items.__setitem__(0, 9),
    "list length": lambda m: m.items.append(9),
    "dict value": lambda m: m.table.update(p=9),
    "dict key": lambda m: m.table.update(q=9),
    "dict order": lambda m: (m.table.clear(), m.table.update(q=3, p=2)),
    "set": lambda m: m.names.add("b"),
    "function": lambda m: setattr(m, "fn", lambda v: v + 9),
    "function's code": lambda m: setattr(m.fn, "__code__", (lambda v: v + 9).__code__),
    "None no more": lambda m: setattr(m, "extra", 2),
    "None now a tensor": lambda m: setattr(m, "extra", torch.ones(3)),
    "None now a parameter": lambda m: setattr(m, "extra", nn.Parameter(torch.ones(3))),
    "object's class": lambda m: setattr(m.thing, "__class__", Base),
    "object replaced": lambda m: setattr(m, "thing", type("Other", (Base,), {"k": 9})()),
    "buffer replaced": lambda m: setattr(m, "shift", torch.zeros(3)),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.ones(1)),
    "buffer written": lambda m: m.shift.zero_(),
    "buffer needs gradients": lambda m: m.shift.requires_grad_(),
    "parameter replaced": lambda m: setattr(m.lin, "weight", nn.Parameter(torch.eye(3))),
    "parameter's data": lambda m: setattr(m.lin.weight, "data", torch.eye(3)),
    "parameter transposed": lambda m: setattr(m.lin.weight, "data", m.lin.weight.data.t()),
    "parameter removed": lambda m: setattr(m.lin, "bias", None),
    "parameters tied": lambda m: setattr(m.seq[0], "weight", m.lin.weight),
    "parameters frozen": lambda m: m.requires_grad_(False),
    "submodule replaced": lambda m: setattr(m, "lin", nn.Identity()),
    "submodule added": lambda m: m.seq.append(nn.Tanh()),
    "submodule's class": lambda m: setattr(m.lin, "__class__", type("L", (nn.Linear,), {"forward": lambda s, x: x})),
    "submodule's forward": lambda m: setattr(m.lin, "forward", lambda x: x * 9),
    "forward of a class of torch": lambda m: setattr(nn.Linear, "forward", lambda self, x: x * 9),
    "torch.nn.functional": lambda m: setattr(F, "linear", lambda x, w, b=None: x * 9),
    "training flag of a submodule": lambda m: m.seq[2].train(),
    "setting of a submodule": lambda m: setattr(m.seq[2], "eps", 1.0),
    "forward hook": lambda m: m.lin.register_forward_hook(lambda mod, args, out: out + 9),
    "forward hook with keywords": lambda m: m.lin.register_forward_hook(
        lambda mod, args, kwargs, out: out + 9, with_kwargs=True
    ),
    "forward pre-hook": lambda m: m.lin.register_forward_pre_hook(lambda mod, args: (args[0] + 9,)),
    "hook of all modules": lambda m: HANDLES.append(
        nn.modules.module.register_module_forward_hook(
            lambda mod, args, out: out + 9 if isinstance(mod, nn.Linear) else None
        )
    ),
    "parametrization": lambda m: nn.utils.parametrize.register_parametrization(m.lin, "weight", nn.Tanh()),
}
HANDLES: list = []


@pytest.fixture
def restored():
    """Puts back what the changes do to classes and modules."""
    owners = (Base, Derived, Net, nn.Linear, F)
    before = [dict(vars(owner)) for owner in owners]
    defaults = Net.forward.__defaults__, Net.forward.__kwdefaults__
    yield
    for owner, attributes in zip(owners, before, strict=True):
        for name in set(vars(owner)) - set(attributes):
            delattr(owner, name)
        for name, value in attributes.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
    Net.forward.__defaults__, Net.forward.__kwdefaults__ = defaults
    while HANDLES:
        HANDLES.pop().remove()


@pytest.mark.parametrize("change", CHANGES)
def test_change(capture, restored, change):
    torch.manual_seed(0)
    net = Net().eval()
    c = capture(net, strict=False)
    x = torch.randn(4, 3)
    before = c(x)
    same(before, net(x))
    CHANGES[change](net)
    same(c(x), net(x))
    same(c(x), net(x))
    unchanged = ("buffer needs gradients", "parameters frozen", "buffer of another shape", "object's class")
    if not change.startswith(unchanged):
        assert not torch.equal(c(x), before)


def factory(k, d=1):
    def inner(v):
        return v * k + d

    return inner


GLOBAL_FUNCTION = factory(2)
GLOBAL_LIST = [1, 2]


@pytest.mark.parametrize(
    "name,value",
    [("GLOBAL_FUNCTION", factory(9)), ("GLOBAL_FUNCTION", factory(2, 9)), ("GLOBAL_LIST", [1, 9]),
     ("GLOBAL_LIST", (1, 2)), ("GLOBAL_LIST", [1.0, 2]), ("GLOBAL_LIST", [True, 2])],
)  # fmt: skip
def test_globals(capture, monkeypatch, name, value):
    def fn(x):
        return GLOBAL_FUNCTION(x) * sum(GLOBAL_LIST) + len(str(GLOBAL_LIST[0]))

    c = capture(fn)
    x = torch.randn(3)
    same(c(x), fn(x))
    monkeypatch.setitem(globals(), name, value)
    same(c(x), fn(x))


# ---------------------------------------------------------------- arguments


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Point:
    x: int = 1


Pair = collections.namedtuple("Pair", "a b")
X = torch.randn(3, 3)
ARGUMENTS = {
    "bool and int": (lambda x, n: x * n + (5 if n is True else 0), 1, True),
    "int and float": (lambda x, n: x.long() * n, 1, 1.0),
    "signed zero": (lambda x, n: torch.atan2(x * 0, x * 0 + n), 0.0, -0.0),
    "not a number": (lambda x, n: x * n, float("nan"), 1.0),
    "large int": (lambda x, n: x.long() + n, 2**40, -(2**40)),
    "complex": (lambda x, n: x * n, 1j, 2j),
    "None": (lambda x, n: x if n is None else x + n, None, X),
    "string": (lambda x, s: x + len(s), "a", "bb"),
    "dtype": (lambda x, d: x.to(d), torch.float64, torch.int32),
    "slice": (lambda x, s: x[s], slice(0, 1), slice(0, 2)),
    "size": (lambda x, s: x.new_zeros(s), torch.Size([1, 2]), torch.Size([2, 2])),
    "range": (lambda x, r: sum(x + i for i in r), range(2), range(3)),
    "list": (lambda x, n: sum(n) * x, [1, 2], [1, 2, 3]),
    "nested": (lambda x, d: x * d["a"][0][1], {"a": [(1, 2)]}, {"a": [(1, 3)]}),
    "dict order": (lambda x, d: x * list(d.values())[0], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "ordered dict": (lambda x, d: x * d["a"], collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    "set": (lambda x, s: x * len(s) + (2 in s), {1, 2}, {1, 3}),
    "enum": (lambda x, e: x * e.value, Colour.RED, Colour.BLUE),
    "dataclass": (lambda x, p: x * p.x, Point(1), Point(2)),
    "namedtuple": (lambda x, p: x * p.a, Pair(1, 2), Pair(3, 2)),
    "partial": (lambda x, p: p(x), functools.partial(torch.add, alpha=2, other=X),
                functools.partial(torch.add, alpha=3, other=X)),
    "the same tensor": (lambda x, y: x + 1 if x is y else y, X, X.clone()),
    "another kind": (lambda x, n: x * n, 2, X),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument(capture, name):
    fn, first, second = ARGUMENTS[name]
    c = capture(fn)
    for value in (first, second, first):
        same(c(X, value), fn(X, value))


# ---------------------------------------------------------------- the state of torch


@contextmanager
def setting(get, put, value):
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


class AddsOne(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is torch.sin else out


class AddsOneBelow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is torch.ops.aten.sin.default else out


STATES = {
    "default dtype": lambda: setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to another dtype": lambda: torch.autocast("cpu", torch.float16),
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "deterministic": lambda: setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "threads": lambda: setting(torch.get_num_threads, torch.set_num_threads, 3),
    "matmul precision": lambda: setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"
    ),
    "cudnn": lambda: torch.backends.cudnn.flags(enabled=False),
    "function mode": AddsOne,
    "dispatch mode": AddsOneBelow,
    "subclass functions off": torch._C.DisableTorchFunctionSubclass,
}


def reads_state(x):
    y = torch.sin(x @ x)
    if torch.are_deterministic_algorithms_enabled():
        y = y + 1
    if torch.get_float32_matmul_precision() != "highest":
        y = y + 2
    if not torch.backends.cudnn.enabled:
        y = y + 3
    return y * torch.get_num_threads(), torch.ones(3)


@pytest.mark.parametrize("first", [False, True], ids=["later", "from the start"])
@pytest.mark.parametrize("name", STATES)
def test_state(capture, name, first):
    c = capture(reads_state)
    x = torch.randn(3, 3, requires_grad=True)
    for active in (first, not first, first):
        with STATES[name]() if active else setting(lambda: None, lambda value: None, None):
            ours, theirs = c(x), reads_state(x)
        for a, b in zip(ours, theirs, strict=True):
            assert (a.dtype, a.device, a.requires_grad) == (b.dtype, b.device, b.requires_grad)
            if a.device.type != "meta":
                same(a, b)


def test_transforms_active_at_the_call(capture):
    def fn(x):
        return torch.sin(x) * x.sum()

    c = capture(fn)
    x = torch.randn(3, 3)
    same(c(x), fn(x))
    same(c(x[0]), fn(x[0]))
    same(torch.func.vmap(c)(x), torch.func.vmap(fn)(x))
    same(torch.func.jacrev(c)(x[0]), torch.func.jacrev(fn)(x[0]))
    same(torch.func.grad(lambda v: c(v).sum())(x), torch.func.grad(lambda v: fn(v).sum())(x))
    for ours, theirs in zip(torch.func.jvp(c, (x,), (x,)), torch.func.jvp(fn, (x,), (x,)), strict=True):
        same(ours, theirs)
    same(c(x), fn(x))


def test_forward_gradients(capture):
    from torch.autograd import forward_ad

    def fn(x):
        return torch.sin(x) * x

    c = capture(fn)
    x = torch.randn(3)
    same(c(x), fn(x))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        for ours, theirs in zip(forward_ad.unpack_dual(c(dual)), forward_ad.unpack_dual(fn(dual)), strict=True):
            same(ours, theirs)


class Named(torch.Tensor):
    pass


class Doubling(torch.Tensor):
    """A wrapper whose operators double their results."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Doubling) else a for a in args]
        return cls(func(*plain, **(kwargs or {})) * 2)


@pytest.mark.parametrize("first", [False, True], ids=["later", "from the start"])
def test_subclasses(capture, first):
    def fn(x):
        return torch.sin(x) + 1

    c = capture(fn)
    plain = torch.randn(3)
    for subclass in (first, not first, first):
        x = plain.as_subclass(Named) if subclass else plain
        same(c(x), fn(x))
        ours, theirs = c(Doubling(plain)), fn(Doubling(plain))
        assert type(ours) is type(theirs) is Doubling
        same(ours.inner, theirs.inner)
    assert not c.report.breaks and len(c.graphs) == 3


MODULE = "K = 3\nclass C:\n    k = 2\ndef g(x, by=1): return x * K * C.k * by\n"
CHANGES_OF_A_MODULE = {
    "a global": lambda m: setattr(m, "K", 50),
    "a class's attribute": lambda m: setattr(m.C, "k", 50),
    "a function's defaults": lambda m: setattr(m.g, "__defaults__", (50,)),
    "a function": lambda m: setattr(m, "g", lambda x: x - 1),
}


@pytest.mark.parametrize("change", CHANGES_OF_A_MODULE)
def test_a_programs_module_may_have_a_name_of_the_standard_librarys(change, capture, tmp_path, monkeypatch):
    name = "wave"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(rules._USERS_PACKAGES, name, raising=False)
    module = importlib.import_module(name)
    try:
        program = lambda x: module.g(x) + module.K
        compiled = capture(program, fullgraph=True)
        x = torch.ones(2)
        same(compiled(x), program(x))
        CHANGES_OF_A_MODULE[change](module)
        same(compiled(x), program(x))
    finally:
        sys.modules.pop(name)
        rules._USERS_PACKAGES.pop(name, None)


def test_a_name_that_was_not_there(capture):
    """Neither a global nor a builtin of the name, in the function and in one that it calls."""
    import builtins

    space: dict = {"torch": torch}
    exec(
        "def helper(x):\n    try:\n        return x * quick\n    except NameError:\n        return x * 7\n"
        "def run(x):\n    try:\n        return helper(x) * fast\n    except NameError:\n        return helper(x) + 1\n",
        space,
    )
    compiled = capture(space["run"])
    x = torch.ones(2)
    try:
        for change in (lambda: None, lambda: space.update(fast=2), lambda: space.pop("fast"), lambda: space.update(quick=3),
                       lambda: setattr(builtins, "fast", 5), lambda: delattr(builtins, "fast")):  # fmt: skip
            change()
            torch.testing.assert_close(compiled(x), space["run"](x))
    finally:
        vars(builtins).pop("fast", None)
