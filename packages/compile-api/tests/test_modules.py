"""A compiled module is the module: state, identity of class, hooks, copies. No stage but capture's entry is needed."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn

import compile_api
from compile_api import CompiledModule
from compile_api.module import compile_module
from prims.errors import CompileWarning, NotCompiled
from prims.options import Options
from prims.report import Report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, *, scale=1.0):
        return self.fc(x) * scale

    def twice(self, x):
        return self(self.fc.weight.sum() * 0 + x) * 2


class Counting:
    """Stands for capture: counts what is optimised and called."""

    def __init__(self) -> None:
        self.optimised: list[object] = []
        self.calls = 0

    def __call__(self, fn):
        self.optimised.append(fn)

        def run(*args, **kwargs):
            self.calls += 1
            return fn(*args, **kwargs)

        return run


@pytest.fixture
def made():
    model, counting = Net(), Counting()
    return model, compile_module(model, counting, {"backend": "eager"}, Options(), Report()), counting


def test_same_class_and_state(made):
    model, compiled, _ = made
    assert isinstance(compiled, Net) and isinstance(compiled, CompiledModule)
    assert not isinstance(model, CompiledModule)
    assert type(compiled).__name__ == "Net" and repr(compiled) == repr(model)
    assert list(compiled.state_dict()) == list(model.state_dict()) == ["count", "fc.weight", "fc.bias"]
    assert compiled.fc is model.fc and compiled._orig_mod is model
    assert [p.data_ptr() for p in compiled.parameters()] == [p.data_ptr() for p in model.parameters()]


def test_calls_go_through_the_compiled_forward(made):
    model, compiled, counting = made
    x = torch.randn(4, 3)
    assert counting.optimised == []
    torch.testing.assert_close(compiled(x, scale=2.0), model(x, scale=2.0))
    assert counting.calls == 1 and len(counting.optimised) == 1
    torch.testing.assert_close(compiled.twice(x), model.twice(x))
    assert counting.calls == 2, "methods of the compiled module call the compiled forward"
    assert counting.optimised[0].__self__ is model


def test_assignments_are_shared_both_ways(made):
    model, compiled, _ = made
    compiled.fc = nn.Linear(3, 5)
    assert model.fc.out_features == 5
    model.extra = nn.Parameter(torch.ones(1))
    assert "extra" in dict(compiled.named_parameters())
    compiled.note = 3
    assert model.note == 3
    del compiled.note
    assert not hasattr(model, "note")
    compiled.eval()
    assert not model.training and not model.fc.training
    compiled.to(torch.float64)
    assert model.fc.weight.dtype == torch.float64


def test_replaced_forward_is_compiled_anew(made):
    model, compiled, counting = made
    x = torch.randn(4, 3)
    compiled(x)
    model.forward = lambda x: x + 1
    torch.testing.assert_close(compiled(x), x + 1)
    torch.testing.assert_close(compiled(x), x + 1)
    assert len(counting.optimised) == 2 and counting.calls == 3
    compiled.forward = lambda x: x + 2
    torch.testing.assert_close(model(x), x + 2)
    torch.testing.assert_close(compiled(x), x + 2)
    del compiled.forward
    torch.testing.assert_close(compiled(x), model(x))


def test_root_hooks(made):
    model, compiled, counting = made
    x, calls = torch.randn(4, 3), []
    compiled(x)
    handle = compiled.register_forward_hook(lambda m, a, out: calls.append(type(m).__name__) or out * 0)
    pre = compiled.register_forward_pre_hook(lambda m, a: calls.append("pre"))
    assert compiled(x).abs().sum() == 0 and calls == ["pre", "Net"]
    assert model(x).abs().sum() == 0
    handle.remove(), pre.remove()
    torch.testing.assert_close(compiled(x), model(x))
    assert calls == ["pre", "Net"] * 2


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_checkpoints(made, prefix):
    _, compiled, _ = made
    source = Net().state_dict()
    checkpoint = OrderedDict((prefix + key, value) for key, value in source.items())
    result = compiled.load_state_dict(checkpoint)
    assert not result.missing_keys and not result.unexpected_keys
    assert all(torch.equal(compiled.state_dict()[key], value) for key, value in source.items())
    assert list(checkpoint) == [prefix + key for key in source]


def test_checkpoint_of_a_parent(made):
    _, compiled, _ = made
    parent = nn.Sequential(compiled, nn.ReLU())
    assert list(parent.state_dict()) == ["0.count", "0.fc.weight", "0.fc.bias"]
    checkpoint = {key.replace("0.", "0._orig_mod."): value + 1 for key, value in parent.state_dict().items()}
    parent.load_state_dict(checkpoint)
    assert torch.equal(parent.state_dict()["0.count"], checkpoint["0._orig_mod.count"])
    assert compile_api.strip_prefix(checkpoint).keys() == parent.state_dict().keys()


def test_wrong_checkpoints_are_errors(made):
    _, compiled, _ = made
    with pytest.raises(RuntimeError, match="Missing key"):
        compiled.load_state_dict({"_orig_mod.fc.weight": torch.zeros(2, 3)})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        compiled.load_state_dict({**compiled.state_dict(), "_orig_mod.other": torch.zeros(1)})


def test_copies_are_independent_and_compiled():
    compiled = compile_api.compile(Net(), backend="eager")
    for clone in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(clone, CompiledModule) and isinstance(clone, Net)
        assert clone._orig_mod is not compiled._orig_mod
        assert torch.equal(clone.fc.weight, compiled.fc.weight)
        clone.fc.weight.data.zero_()
        assert not torch.equal(clone.fc.weight, compiled.fc.weight)
        assert clone.report() is not compiled.report()
    nested = copy.deepcopy(nn.Sequential(compiled, compiled))
    assert nested[0] is nested[1]
    stream = io.BytesIO()
    torch.save(compiled, stream)
    stream.seek(0)
    assert isinstance(torch.load(stream, weights_only=False), CompiledModule)


def test_signature_is_the_originals():
    compiled = compile_api.compile(Net(), backend="eager")
    assert list(inspect.signature(compiled.forward).parameters) == ["x", "scale"]


def test_compiling_twice_does_not_nest():
    model = Net()
    again = compile_api.compile(compile_api.compile(model, backend="eager"), backend="eager")
    assert again._orig_mod is model


class Slotted(nn.Module):
    """A class that counts its subclasses, as libraries' registries do."""

    made: list[str] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Slotted.made.append(cls.__qualname__)

    def forward(self, x):
        return super().__repr__() and x + 1


def test_zero_argument_super_and_subclass_hooks():
    compiled = compile_module(Slotted(), Counting(), {}, Options(), Report())
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert not Slotted.made  # no class of the program's was made


def test_lazy_module_stays_compiled():
    compiled = compile_api.compile(nn.LazyLinear(3), backend="eager")
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x @ compiled.weight.t() + compiled.bias)
    assert type(compiled).__name__ == "Linear" and isinstance(compiled, nn.Linear)
    assert not isinstance(compiled, nn.LazyLinear)
    assert len(compiled.report().graphs) == 1
    assert copy.deepcopy(compiled)(x).shape == (2, 3)


def test_a_slice_is_a_module_of_its_own():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    compiled = compile_api.compile(model, backend="eager")
    x = torch.randn(2, 3)
    part = compiled[:2]
    assert type(part) is torch.nn.Sequential and len(part) == 2
    assert torch.equal(part(x), model[:2](x)) and torch.equal(compiled(x), model(x))


def test_the_program_s_classes_are_not_subclassed_behind_its_back():
    seen = []

    class Registered(torch.nn.Module):
        def __init_subclass__(cls, **kwargs):
            seen.append(cls)
            raise TypeError("no more classes")

        def forward(self, x):
            return x + 1

    compiled = compile_api.compile(Registered(), backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0)) and not seen


def test_methods_of_compiled_functions():
    class Scale:
        k = 2

        @compile_api.compile(backend="eager")
        def by(self, x):
            return x * self.k

        @compile_api.compile(backend="eager")
        @staticmethod
        def static(x):
            return x - 1

        @compile_api.compile(backend="eager")
        @classmethod
        def of_class(cls, x):
            return x * cls.k

    x, scale = torch.arange(3.0), Scale()
    again = compile_api.compile(scale.by, backend="eager")
    assert torch.equal(again(x), x * 2) and torch.equal(scale.by(x), x * 2)
    scale.k = 5
    assert torch.equal(again(x), x * 5)
    assert torch.equal(scale.static(x), x - 1) and torch.equal(Scale.of_class(x), x * 2)


def test_a_class_is_compiled_as_what_makes_its_instances():
    class Model(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.linear = torch.nn.Linear(size, 2)
            self.register_buffer("offset", torch.ones(2))

        def forward(self, x):
            return self.linear(x) + self.offset

    make = compile_api.compile(Model, backend="eager")
    assert make.__name__ == "Model" and not hasattr(make, "forward")
    model = make(3)
    assert model(torch.zeros(1, 3)).shape == (1, 2) and sorted(model.state_dict()) == [
        "linear.bias", "linear.weight", "offset",
    ]  # fmt: skip


class TestAnotherClass:
    """A class assigned to a compiled module (or to its original) is the class of both."""

    @pytest.mark.parametrize("after_a_call", [False, True])
    @pytest.mark.parametrize("on_the_original", [False, True])
    def test_parametrizations(self, after_a_call, on_the_original):
        x = torch.randn(2, 4)
        layer = nn.Linear(4, 4)
        reference = copy.deepcopy(layer)
        compiled = compile_api.compile(layer, backend="eager")
        if after_a_call:
            compiled(x)
        nn.utils.parametrizations.weight_norm(reference)
        nn.utils.parametrizations.weight_norm(layer if on_the_original else compiled)
        for module in (compiled, layer):
            torch.testing.assert_close(module(x), reference(x))
            torch.testing.assert_close(module.weight, reference.weight)
            assert nn.utils.parametrize.is_parametrized(module, "weight")
        assert isinstance(compiled, CompiledModule) and not isinstance(layer, CompiledModule)
        nn.utils.parametrize.remove_parametrizations(compiled, "weight")
        torch.testing.assert_close(compiled(x), reference(x))
        assert type(layer) is nn.Linear and "weight" in dict(layer.named_parameters())

    def test_assigned_classes(self):
        class Base(nn.Module):
            def forward(self, x):
                return x + 1

        class Other(Base):
            def forward(self, x):
                return x + 2

        module = Base()
        compiled = compile_api.compile(module, backend="eager")
        x = torch.zeros(2)
        assert compiled(x).tolist() == [1, 1]
        assert compiled.__class__ is Base and isinstance(compiled, CompiledModule)
        compiled.__class__ = Other
        assert compiled(x).tolist() == [2, 2] == module(x).tolist() and type(module) is Other
        assert isinstance(compiled, Other) and isinstance(compiled, CompiledModule)

    def test_lazy_modules(self):
        module = nn.LazyLinear(3)
        compiled = compile_api.compile(module, backend="eager")
        assert compiled(torch.ones(2, 5)).shape == (2, 3)
        assert type(module) is nn.Linear and compiled.__class__ is nn.Linear
        assert compiled(torch.ones(4, 5)).shape == (4, 3)


class Trainee(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def features(self, x):
        return self.inner(x).relu()

    def forward(self, x):
        return self.features(x) * 2

    def training_step(self, x):
        return self.features(x).sum()


class OwnCall(Trainee):
    def __call__(self, x):
        return self.features(x)

    def generate(self, x):
        return self.features(x)


class AroundForward(Trainee):
    def __call__(self, x):
        return super().__call__(x) + 1

    def training_step(self, x):
        return self.loss(self(x))

    def loss(self, x):
        return x.sum()


#: A class, what is called of the compiled object, and whether that comes to ``forward``.
CALLED = {
    "a step": (Trainee, lambda m, x: m.training_step(x), False),
    "its own __call__": (OwnCall, lambda m, x: m(x), False),
    "a step beside its own __call__": (OwnCall, lambda m, x: m.generate(x), False),
    "a step after a call": (Trainee, lambda m, x: (m(x), m.training_step(x))[1], False),
    "a call": (Trainee, lambda m, x: m(x), True),
    "a __call__ around forward": (AroundForward, lambda m, x: m(x), True),
    "a step that calls it": (AroundForward, lambda m, x: m.training_step(x), True),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_call_that_does_not_come_to_forward_says_so(name):
    cls, call, comes = CALLED[name]
    x, original = torch.ones(1, 2), cls()
    model = compile_api.compile(original, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(call(model, x), call(original, x))
    warned = [w for w in caught if issubclass(w.category, CompileWarning)]
    model = compile_api.compile(cls(), backend="eager", fullgraph=True)
    if comes:
        assert not warned and model.report().verdict == "not called yet: " + model.report().uncalled
        call(model, x)
        assert model.report().verdict == "compiled"
    else:
        (warning,) = warned
        assert "does not come to forward()" in str(warning.message) and warning.filename == __file__
        with pytest.raises(NotCompiled, match="does not come to forward"):
            call(model, x)


def test_a_module_whose_forward_is_never_called_says_so():
    model = compile_api.compile(Trainee(), backend="eager")
    assert model.report().verdict.startswith("not called yet: only forward() is compiled")
    assert "training_step()" in model.report().verdict
    with pytest.warns(CompileWarning, match="training_step"):
        model.training_step(torch.ones(1, 2))
    assert model.report().verdict.startswith("eager: training_step() does not come to forward()")
    step = compile_api.compile(model.training_step, backend="eager")
    step(torch.ones(1, 2))
    assert step.report().verdict == "compiled"
    model(torch.ones(1, 2))
    assert model.report().verdict.startswith("partly: eager in part: training_step()")
    plain = compile_api.compile(torch.nn.Linear(2, 2), backend="eager")
    assert plain.report().verdict == "not called yet: only forward() is compiled, and no call has come to it"

