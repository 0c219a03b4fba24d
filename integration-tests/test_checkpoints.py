"""A compiled module is still the module: its checkpoints, attributes, hooks, copies."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import compile_api


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)
        self.register_buffer("offset", torch.ones(2))
        self.note = "hello"

    def forward(self, x):
        return self.head(self.body(x)) + self.offset

    def extra(self, x):
        return self.body(x)


@pytest.fixture
def pair():
    model = Net().eval()
    return model, compile_api.compile(model)


def test_keys_and_values(pair):
    model, compiled = pair
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert not any("_orig_mod" in key for key in compiled.state_dict())
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in model.named_parameters()]
    with torch.no_grad():
        compiled(torch.randn(3, 4))
    assert list(compiled.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpoints_load(prefix, when):
    source = Net().eval()
    checkpoint = {prefix + key: value for key, value in source.state_dict().items()}
    model = Net().eval()
    compiled = compile_api.compile(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        if when == "after":
            compiled(x)
        result = compiled.load_state_dict(checkpoint)
        assert not result.missing_keys and not result.unexpected_keys
        torch.testing.assert_close(compiled(x), source(x))
        torch.testing.assert_close(model(x), source(x))
    assert set(checkpoint) == {prefix + key for key in source.state_dict()}, "the caller's dict is left alone"


def test_checkpoint_loaded_before_compiling():
    source, model = Net().eval(), Net().eval()
    model.load_state_dict(source.state_dict())
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compile_api.compile(model)(x), source(x))


def test_wrong_checkpoint_is_an_error(pair):
    with pytest.raises(RuntimeError, match="nonsense"):
        pair[1].load_state_dict({"nonsense": torch.ones(1)})


def test_attributes_and_modes(pair):
    model, compiled = pair
    assert isinstance(compiled, Net) and isinstance(compiled, nn.Module)
    assert compiled.note == "hello"
    compiled.note = "changed"
    assert model.note == "changed"
    compiled.train()
    assert model.training and model.body.training
    compiled.eval()
    assert not model.training
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled.extra(x), model.extra(x))
    compiled.double()
    assert model.head.weight.dtype == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.double()), model(x.double()))


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_are_called(when):
    model = Net().eval()
    compiled = compile_api.compile(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        if when == "after":
            compiled(x)
        plain = compiled(x)
        calls = []
        handles = [
            model.body.register_forward_hook(lambda m, a, out: calls.append("body") or out * 2),
            compiled.register_forward_hook(lambda m, a, out: calls.append("top")),
        ]
        torch.testing.assert_close(compiled(x), model(x))
        assert calls.count("body") == 2
        assert "top" in calls
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(compiled(x), plain)


def test_pickle_and_deepcopy(pair):
    _model, compiled = pair
    x = torch.randn(3, 4)
    with torch.no_grad():
        expected = compiled(x)
        clone = copy.deepcopy(compiled)
        torch.testing.assert_close(clone(x), expected)
        clone.head.weight.zero_()
        assert not torch.equal(clone(x), compiled(x))
        torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(x), expected)
        stream = io.BytesIO()
        torch.save(compiled.state_dict(), stream)
        stream.seek(0)
        fresh = Net().eval()
        fresh.load_state_dict(torch.load(stream))
        torch.testing.assert_close(fresh(x), expected)
