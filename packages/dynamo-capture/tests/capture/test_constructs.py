"""Constructs of ordinary programs that cost no graph break: each in one graph, with eager's answers, changes included."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import pathlib
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import dynamo_capture
from prims.errors import CompileWarning


def same(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        kept = a.requires_grad == b.requires_grad and a.is_leaf == b.is_leaf and type(a) is type(b)
        return kept and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(b, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Singleton(type):
    made: dict[type, Any] = {}

    def __call__(cls, *args):
        if cls not in cls.made:
            cls.made[cls] = super().__call__(*args)
        return cls.made[cls]


class Settings(metaclass=Singleton):
    def __init__(self):
        self.scale = 3


class Located:
    def __fspath__(self):
        return "some/where"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))

    def forward(self, x):
        return self.layers(x)


def grad_by_attribute(x):
    y = x.clone()
    y.requires_grad = True
    return (y * y).sum()


def with_attributes(x):
    y = x * 2
    y.scale = 3.0
    y.origin = x
    return y * y.scale + y.origin, y, hasattr(y, "other")


def seeded(x):
    torch.manual_seed(3)
    return x * 2, torch.randperm(5).sum() * 0 + x


def imports(x):
    import math
    import os.path as path
    from math import sqrt

    return x * math.pi + sqrt(4.0) + len(path.join("a", "b"))


def first_import(x):
    import colorsys

    return x + colorsys.ONE_THIRD


def labelled(x):
    with torch.profiler.record_function("outer"), torch.autograd.profiler.record_function("inner"):
        return x + 1


@torch.profiler.record_function("decorated")
def decorated(x):
    return x + 1


PROGRAMS = {
    "import": imports,
    "first import": first_import,
    "__import__": lambda x: x + __import__("math").pi,
    "import_module": lambda x: x + importlib.import_module("math").pi,
    "record_function": labelled,
    "record_function as a decorator": decorated,
    "metaclass call": lambda x: x * Settings().scale,
    "paths": lambda x: x + len(os.path.join("a", "b")) + len(str(pathlib.Path("a") / "bc")) + len(os.fspath(Located())),
    "intern": lambda x: x + len(sys.intern("abc")),
    "LongTensor": lambda x: x + torch.LongTensor([1, 2, 3, 4]),
    "Tensor": lambda x: x + torch.Tensor([[1.0], [2.0]]),
    "Tensor of sizes": lambda x: torch.Tensor(2, 3).zero_() + torch.FloatTensor(torch.Size([2, 3])).fill_(1),
    "empty Tensor": lambda x: x.sum() + torch.Tensor().numel() + torch.BoolTensor([]).numel(),
    "NumPy scalars": lambda x: x * np.float32(2.0) + np.sqrt(2.0) * x - np.log(10.0) ** x,
    "NumPy sizes": lambda x: x.view(np.int64(2), np.int32(2))[: np.int64(1)] // np.int64(2),
    "NumPy functions of numbers": lambda x: x * np.prod([2, 3]) + np.mean([1.0, 2.0]) + x[: int(np.ceil(2.5))].sum(),
    "requires_grad_": lambda x: x.clone().requires_grad_() * 2,
    "requires_grad_ of a detached input": lambda x: x.detach().requires_grad_() * x,
    "requires_grad": grad_by_attribute,
    "Parameter": lambda x: (x * torch.nn.Parameter(torch.full((4,), 2.0))).sum(),
    "Parameter without a gradient": lambda x: x * torch.nn.Parameter(torch.full((4,), 2.0), requires_grad=False),
    "module": lambda x: torch.nn.LayerNorm(4)(x),
    "modules": lambda x: torch.nn.BatchNorm1d(1)(x.view(4, 1)).relu() + torch.nn.PReLU()(x),
    "sizes of a module": lambda x: x + sum(p.numel() for p in Net().parameters()) + Net()(x).dim(),
    "deepcopy": lambda x: (copy.deepcopy(x).add_(1), copy.deepcopy(x * 2), x),
    "attributes of tensors": with_attributes,
    "manual_seed": seeded,
    "data with NumPy scalars": lambda x: (
        torch.tensor(np.float64(1.5)),
        torch.tensor([np.int32(3), np.int32(x.dim())]),
    ),
    "dtype of NumPy scalars": lambda x: torch.tensor([np.float64(1.5), np.int8(1)] * 2, dtype=torch.int32) + x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_break(name):
    fn = PROGRAMS[name]
    x = torch.randn(4)
    want = fn(x)
    dynamo_capture.reset()
    explained = dynamo_capture.explain(fn)(x)
    assert [brk.reason for brk in explained.breaks] == []
    assert explained.graph_count == 1
    assert not explained.report.fallbacks
    dynamo_capture.reset()
    compiled = dynamo_capture.optimize(fn, lambda gm, inputs: gm.forward)
    assert same(compiled(x), want)
    assert same(compiled(x), want)


def test_an_import_sees_what_takes_the_modules_place(capture, monkeypatch):
    def region(x):
        import quintet_changing_module as module

        return x * module.factor

    for name, factor in (("first", 2), ("second", 3)):
        module = types.ModuleType(name)
        module.factor = factor
        monkeypatch.setitem(sys.modules, "quintet_changing_module", module)
        compiled = compiled if factor == 3 else capture(region)  # noqa: F821
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(factor)))
    monkeypatch.delitem(sys.modules, "quintet_changing_module")
    with pytest.raises(ModuleNotFoundError):
        compiled(torch.ones(2))


def test_a_module_is_imported_in_its_turn(capture, monkeypatch, tmp_path):
    """One that looks at what the program has changed before it is imported after the change."""
    (tmp_path / "quintet_late_module.py").write_text("import os\nseen = os.environ['QUINTET_HOLDER']\n")
    (tmp_path / "quintet_first_module.py").write_text("import torch\nmade = torch.ones(2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("QUINTET_HOLDER", "before")
    log = []

    def late(x):
        x = x + 1
        log.append(1)
        import quintet_late_module

        return x, quintet_late_module.seen, len(log)

    def first(x):
        import quintet_first_module

        return x + quintet_first_module.made

    assert same(capture(late)(torch.ones(2)), (torch.full((2,), 2.0), "before", 1))
    compiled = capture(first)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert len(compiled.graphs) == 1
    assert type(sys.modules["quintet_first_module"].made) is torch.Tensor


def test_another_import_function(capture, monkeypatch):
    import builtins

    def region(x):
        import math

        return x * math.tau

    compiled = capture(region)
    compiled(torch.ones(1))
    real = builtins.__import__
    other = types.SimpleNamespace(tau=2.0)
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: other if name == "math" else real(name, *rest))
    assert compiled(torch.ones(1)).item() == 2.0


def test_a_profiler_sees_compiled_code(capture):
    compiled = capture(labelled)
    x = torch.ones(2)
    for _ in range(2):
        with torch.profiler.profile() as profile:
            assert torch.equal(compiled(x), x + 1)
        assert "aten::add" in {event.key for event in profile.key_averages()}
        assert torch.equal(compiled(x), x + 1)
    assert len(compiled.graphs) == 1 and not compiled.report.recompiles and not compiled.report.breaks


def test_a_label_that_is_open_at_a_break_is_seen(capture):
    def region(x):
        with torch.profiler.record_function("label"):
            x = x + 1
            dynamo_capture.graph_break()
            return x * 2

    compiled = capture(region)
    for _ in range(2):
        with torch.profiler.profile() as profile:
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
        assert "label" in {event.key for event in profile.key_averages()}
    assert len(compiled.graphs) == 2


def test_a_state_that_broke_the_graph_is_over(capture):
    """What a state of the process broke is another entry than what comes when it is over."""
    def region(x):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x + 1

    compiled = capture(region)
    for filters in ("error", "always", "error", "always", "always"):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter(filters)
            if filters == "error":
                with pytest.raises(UserWarning):
                    compiled(torch.ones(2))
            else:
                assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(torch.ones(2))
        before = len(compiled.report.recompiles)
        compiled(torch.ones(2))
    assert compiled.report.recompiles[before:] == []


def test_a_break_inside_a_label(capture):
    def region(x):
        with torch.profiler.record_function("label"):
            x = x + 1
            dynamo_capture.graph_break()
            x = x * 2
        return x - 1

    compiled = capture(region)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(compiled.graphs) == 2


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.float64, np.float32, np.float16])
def test_a_numpy_scalar_that_changes(capture, kind):
    compiled = capture(lambda x, n: (x * n, n * x, x + n.item(), n))
    x = torch.randn(3)
    for value in range(2, 14):
        n = kind(value / (1 if np.issubdtype(kind, np.integer) else 3))
        assert same(compiled(x, n), (x * n, n * x, x + n.item(), n))
    assert len(compiled.graphs) == 2


def test_a_numpy_scalar_computes_as_numpy_does(capture):
    def region(x, n):
        return x * n, n + 1, -n, n // 2, n == 3, f"{n}", repr(n), torch.tensor([n, n]), torch.tensor(n), type(n), {n: 1}

    compiled = capture(region)
    x = torch.randn(3)
    for n in (np.int32(3), np.int32(4), np.int32(5), np.int64(5), np.float64(2.5), np.float64(3.5), 5):
        assert same(compiled(x, n)[:-1], region(x, n)[:-1])
        assert compiled(x, n)[-1] == region(x, n)[-1]


def test_a_bool_of_numpy(capture):
    """PyTorch takes it for a bool, an int or a float, as the operator may be."""
    for fn in (lambda x, flag: x + flag, lambda x, flag: torch.full((2,), flag), lambda x, flag: flag * x):
        compiled = capture(fn)
        x = torch.tensor([1, 2])
        with contextlib.suppress(RuntimeError):
            want = fn(x, np.bool_(True))
            assert same(compiled(x, np.bool_(True)), want)


def parameter(x):
    scale = torch.nn.Parameter(x * 2)
    return (x * scale).sum(), scale


def leaf(x):
    y = (x + 1).requires_grad_()
    return (y * y).sum(), y


def module(x):
    net = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(2.0)
    return net(x).sum(), net.weight


@pytest.mark.parametrize("fn", [parameter, leaf, module])
def test_a_leaf_that_leaves_the_region_gets_its_gradient(capture, fn):
    compiled = capture(fn)
    for _ in range(2):
        x = torch.randn(4)
        found, want = compiled(x), fn(x)
        assert same(found, want)
        found[0].backward()
        want[0].backward()
        assert torch.equal(found[1].grad, want[1].grad)


def test_a_module_is_stored(capture):
    holder = types.SimpleNamespace()

    def region(x):
        holder.net = torch.nn.Linear(4, 4)
        return holder.net(x + 1)

    compiled = capture(region)
    x = torch.randn(4)
    result = compiled(x)
    assert torch.equal(result, holder.net(x + 1))
    result.sum().backward()
    assert holder.net.weight.grad is not None


def test_an_input_is_made_a_leaf(capture):
    compiled = capture(lambda x: (x.requires_grad_() * 2).sum())
    x = torch.ones(3)
    compiled(x).backward()
    assert x.requires_grad
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_attributes_of_tensors(capture):
    def region(x, y):
        x.count = getattr(x, "count", 0) + 1
        z = x + 1
        z.label = "made"
        return z * getattr(y, "count", 10), z

    compiled = capture(region)
    x, y = torch.ones(2), torch.ones(2)
    other, another = torch.ones(2), torch.ones(2)
    for arguments, eager in (((x, y), (other, another)), ((x, y), (other, another)), ((x, x), (other, other))):
        found, want = compiled(*arguments), region(*eager)
        assert same(found, want)
        assert found[1].label == "made"
        assert x.count == other.count
        assert not hasattr(y, "count")
    assert same(compiled(y, x), region(another, other))


def test_a_seed_is_set_before_what_it_is_for(capture):
    def region(x):
        torch.manual_seed(5)
        return torch.rand(3) + x

    compiled = capture(region)
    for _ in range(2):
        torch.rand(7)
        assert torch.equal(compiled(torch.ones(3)), region(torch.ones(3)))
    state = torch.get_rng_state()
    region(torch.ones(3))
    assert torch.equal(state, torch.get_rng_state())

    def later(x):
        first = torch.rand(3) + x
        torch.manual_seed(5)
        return first, torch.rand(3)

    compiled = capture(later)
    for _ in range(2):
        torch.manual_seed(1)
        found = compiled(torch.ones(3))
        torch.manual_seed(1)
        assert same(found, later(torch.ones(3)))


def test_what_is_warned_of(capture):
    log = []

    def region(x, n, noisy):
        log.append(n)
        y = x[:n] + 1
        if noisy:
            warnings.warn(f"n is {n}", stacklevel=1)
            warnings.warn("again", RuntimeWarning)
        return y

    compiled = capture(region)
    for n, noisy in ((2, False), (3, True), (4, True), (5, False)):
        told = []
        for fn in (compiled, region):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = fn(torch.ones(8), n, noisy)
            given = [(str(w.message), w.category, w.filename, w.lineno) for w in caught]
            told.append((given, result.tolist(), list(log[-1:])))
        assert told[0] == told[1]
        assert len(told[0][0]) == 2 * noisy
    assert not compiled.report.breaks
    assert len(log) == 8


def warn_of_caller(text):
    warnings.warn(text, DeprecationWarning, stacklevel=2)


def test_where_a_warning_is_given(capture):
    def region(x):
        warn_of_caller("old")
        return x + 1

    compiled = capture(region)
    for action in ("default", "once", "ignore", "always", "module"):
        told = []
        for fn in (compiled, region):
            globals().pop("__warningregistry__", None)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter(action)
                for _ in range(3):
                    fn(torch.ones(2))
            told.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
        assert told[0] == told[1]
    assert not compiled.report.breaks


def test_a_warning_that_is_an_error(capture):
    def region(x):
        try:
            warnings.warn("careful", stacklevel=1)
        except UserWarning:
            return x - 1
        return x + 1

    compiled = capture(region)
    for action, want in (("ignore", 2.0), ("error", 0.0), ("ignore", 2.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            warnings.filterwarnings(action, message="careful")
            assert compiled(torch.ones(1)).item() == want


def test_deep_copies(capture):
    compiled = capture(lambda x: copy.deepcopy(x))
    plain = torch.randn(3)
    attributed, graded = torch.randn(3), torch.randn(3)
    attributed.label = [1]
    graded.grad = torch.ones(3)
    strided, conjugated = torch.randn(4, 3).t(), torch.randn(3, dtype=torch.complex64).conj()
    for x in (plain, attributed, graded, strided, conjugated, torch.randn(3, requires_grad=True), torch.randn(6)[::2]):
        found, want = compiled(x), copy.deepcopy(x)
        assert same(found, want)
        assert found is not x
        assert found.data_ptr() != x.data_ptr()
        assert (found.stride(), found.is_conj(), found.__dict__) == (want.stride(), want.is_conj(), want.__dict__)
        assert (found.grad is None) == (want.grad is None)
    assert compiled(attributed).label is not attributed.label
