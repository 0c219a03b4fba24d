"""Whatever a graph was specialised on, changing it recompiles rather than returning a wrong answer."""

from __future__ import annotations

import threading

import pytest
import torch
from judge import assert_matches
from reports import captured
from torch import nn

import compile_api

SCALE = 2.0


def _count(compiled) -> int:
    return len(captured(compiled.report()))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.double(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.long(),
        lambda x: x > 0,
        lambda x: x.t(),
        lambda x: x[::2],
        lambda x: x[:, 1:],
        lambda x: x.expand(3, 4, 6),
        lambda x: x[0],
        lambda x: x[:0],
        lambda x: x[:1],
        lambda x: torch.as_strided(x, (4, 6), (0, 1)),
    ],
)
def test_other_input(change):
    function = lambda x: (x + x.sum()) * 2
    compiled = compile_api.compile(function)
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert_matches(compiled, function, x)
        before = _count(compiled)
        y = change(x)
        torch.testing.assert_close(compiled(y), function(y), rtol=1e-2 if y.dtype == torch.bfloat16 else 1e-5, atol=1e-2 if y.dtype == torch.bfloat16 else 1e-5)
        assert compiled(y).dtype == function(y).dtype
        assert compiled(y).stride() == function(y).stride()
        assert _count(compiled) == before + 1
        assert compiled.report().recompiles
        assert_matches(compiled, function, x)
        assert _count(compiled) == before + 1


def test_requires_grad_and_grad_mode():
    function = lambda x: x.sin() * 2
    compiled = compile_api.compile(function)
    plain, needs = torch.randn(5), torch.randn(5, requires_grad=True)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for x in (plain, needs):
            with mode():
                ours, theirs = compiled(x), function(x)
            assert ours.requires_grad == theirs.requires_grad
            assert ours.is_inference() == theirs.is_inference()
            torch.testing.assert_close(ours, theirs)


def test_train_flag():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    twin = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.0))
    twin.load_state_dict(model.state_dict())
    compiled = compile_api.compile(model)
    x = torch.randn(6, 4)
    with torch.no_grad():
        model.eval(), twin.eval()
        torch.testing.assert_close(compiled(x), twin(x))
        model.train(), twin.train()
        ours, theirs = compiled(x), twin(x)
        kept = ours != 0
        torch.testing.assert_close(ours[kept], 2 * theirs[kept], rtol=1e-4, atol=1e-5)
        assert 0 < int(kept.sum()) < ours.numel()
        torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
        torch.testing.assert_close(model[1].running_var, twin[1].running_var)
        assert int(model[1].num_batches_tracked) == 1
        model.eval(), twin.eval()
        torch.testing.assert_close(compiled(x), twin(x))


def test_global_changes(monkeypatch):
    function = lambda x: x * SCALE
    compiled = compile_api.compile(function)
    x = torch.randn(3)
    for value in (2.0, 3.0, 2, -0.0, 0.0, float("nan"), torch.tensor(5.0)):
        monkeypatch.setitem(globals(), "SCALE", value)
        torch.testing.assert_close(compiled(x), x * value, equal_nan=True)
        if not isinstance(value, torch.Tensor) and value == 0:
            assert torch.equal(torch.signbit(compiled(x)), torch.signbit(x * value))


def test_closure_changes():
    factor = 2.0

    def function(x):
        return x * factor

    compiled = compile_api.compile(function)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x * 2)
    factor = 3.0
    torch.testing.assert_close(compiled(x), x * 3)


class Attributed(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2.0
        self.names = ["a", "b"]
        self.settings = {"shift": 1}
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.activation = torch.relu

    def forward(self, x):
        for layer in self.layers:
            x = self.activation(layer(x))
        return x * self.factor * len(self.names) + self.settings["shift"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "factor", 5.0),
        lambda m: m.names.append("c"),
        lambda m: m.settings.update(shift=7),
        lambda m: setattr(m, "activation", torch.sigmoid),
        lambda m: m.layers.append(nn.Linear(3, 3)),
        lambda m: m.layers.__setitem__(0, nn.Identity()),
        lambda m: setattr(m.layers[0], "bias", None),
        lambda m: m.layers[0].weight.data.mul_(3),
        lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.randn(3, 3))),
        lambda m: setattr(m.layers[0], "forward", lambda x: x * 10),
        lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
        lambda m: m.layers[1].register_forward_hook(lambda module, args, out: out + 1),
        lambda m: m.double().float(),
    ],
)
def test_attribute_changes(change):
    model = Attributed()
    compiled = compile_api.compile(model)
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        change(model)
        torch.testing.assert_close(compiled(x), model(x))


def test_forward_of_the_class_replaced(monkeypatch):
    model = Attributed()
    compiled = compile_api.compile(model)
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        monkeypatch.setattr(Attributed, "forward", lambda self, x: x * 10)
        torch.testing.assert_close(compiled(x), x * 10)
        model.forward = lambda x: x * 20
        torch.testing.assert_close(compiled(x), x * 20)
        del model.forward
        torch.testing.assert_close(compiled(x), x * 10)
        monkeypatch.undo()
        torch.testing.assert_close(compiled(x), model(x))


def test_global_state_changes():
    function = lambda x: x @ x + torch.ones(3, 3)
    compiled = compile_api.compile(function)
    x = torch.randn(3, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), function(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert compiled(x).dtype == function(x).dtype
            torch.testing.assert_close(compiled(x), function(x))
        torch.testing.assert_close(compiled(x), function(x))
        torch.set_default_dtype(torch.float64)
        try:
            assert compiled(x).dtype == function(x).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_aliased_inputs():
    def function(x, y):
        x.add_(1)
        return x * y

    compiled = compile_api.compile(function)
    for alias in (False, True, False):
        a, b = torch.randn(4), torch.randn(4)
        c, d = a.clone(), b.clone()
        with torch.no_grad():
            ours = compiled(a, a if alias else b)
            theirs = function(c, c if alias else d)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(a, c)


def test_overlapping_inputs():
    def function(x, y):
        x.mul_(2)
        return x + y

    compiled = compile_api.compile(function)
    for overlapping in (False, True):
        base, twin = torch.arange(8.0), torch.arange(8.0)
        pick = (lambda t: (t[:4], t[2:6])) if overlapping else (lambda t: (t[:4].clone(), t[2:6].clone()))
        with torch.no_grad():
            torch.testing.assert_close(compiled(*pick(base)), function(*pick(twin)))
        torch.testing.assert_close(base, twin)


def test_recompile_limit_falls_back_to_eager():
    function = lambda x, n: x * n
    compiled = compile_api.compile(function, dynamic=False)
    x = torch.randn(3)
    for n in range(40):
        torch.testing.assert_close(compiled(x, f := float(n)), x * f)
    assert _count(compiled) <= 40
    assert any("limit" in item.reason for item in compiled.report().fallbacks)


def test_static_sizes_up_to_the_limit():
    function = lambda x: (x * 2).sum(0)
    compiled = compile_api.compile(function, dynamic=False, options={"recompile_limit": 4})
    for rows in range(2, 10):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), function(x))
    assert _count(compiled) == 4
    (fallback,) = compiled.report().fallbacks
    assert "recompile limit of 4" in fallback.reason and "size [5, 3]" in fallback.reason
    assert __file__ in str(fallback.where)


def test_second_thread():
    function = lambda x: (x * 2).softmax(-1).sum()
    compiled = compile_api.compile(function)
    wrong = []

    def work(rows):
        for _ in range(20):
            x = torch.randn(rows, 5)
            with torch.no_grad():
                if not torch.allclose(compiled(x), function(x), atol=1e-4):
                    wrong.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
