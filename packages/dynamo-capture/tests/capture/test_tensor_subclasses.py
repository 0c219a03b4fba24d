"""Subclasses of tensors with ``__torch_function__``: class x position x what changes between calls.

What a class logs is the functions, types and arguments that eager hands over, in eager's order.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

LOG: list = []
FACTOR = 2.0


class Plain(torch.Tensor):
    """Everything as ``torch.Tensor`` has it."""

    @property
    def doubled(self):
        return self * 2

    def halved(self, by=2):
        return self / by


class Logging(torch.Tensor):
    """Writes down what it is told."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append((func.__name__, types, len(args), sorted(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs)


class Scaled(torch.Tensor):
    """Carries a number along, as boxes carry the size of their image."""

    @staticmethod
    def __new__(cls, data, scale=1.0):
        self = torch.as_tensor(data).as_subclass(cls)
        self.scale = scale
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func in (torch.Tensor.mul, torch.mul, torch.Tensor.add, torch.relu):
            scale = next(arg.scale for arg in args if isinstance(arg, Scaled))
            return Scaled(result, scale * FACTOR)
        return result


class Off(torch.Tensor):
    """Results are plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Operators(torch.Tensor):
    """Operators of its own."""

    def __add__(self, other):
        return torch.add(self, other) * 10

    def __radd__(self, other):
        return torch.add(self, other) * 100

    def sum(self, *args, **kwargs):
        return super().sum(*args, **kwargs) + 1


CLASSES = [Plain, Logging, Scaled, Off, Operators]


def made(cls, data):
    if cls is Scaled:
        return Scaled(data, 3.0)
    return data.as_subclass(cls)


def operators(x, y):
    z = torch.relu(x + y) * 2
    return z, 2 - z, y + x, y - x, x @ x.t(), -x, abs(x), x == y, x > 1, ~(x > 1), x**2, 2**x, y / x, x // 2


def methods(x, y):
    z = x.view(-1), x.reshape(3, -1), x.sum(), x.sum(0, keepdim=True), x.max(-1), y.mul(x), x.to(torch.float64)
    return z, x.float(), x.chunk(2), x.split(1), x.clone(), x.size(), x.numel(), x.dim(), len(x), x.new_zeros(2)


def attributes(x, y):
    return x.shape, x.dtype, x.device, x.ndim, x.T, x.requires_grad, x.is_cuda, x.mT


def functions(x, y):
    z = (
        F.softmax(x, -1),
        F.gelu(y * x),
        F.linear(x, y),
        torch.cat([x, y]),
        torch.stack((y, x)),
        torch.where(x > 0, x, y),
    )
    z += F.max_pool2d(x[None], 2), F.cosine_similarity(x, y), F.pad(x, (1, 1)), torch.norm(x), x.norm(), F.normalize(x)
    z += torch.tensordot(x, y.t(), 1), torch.meshgrid(x[0], y[0], indexing="ij"), F.interpolate(x[None], 8)
    return z, F.layer_norm(x, (4,)), torch.einsum("ij,kj->ik", x, y), F.dropout(x, 0.0), torch.zeros_like(x), F.relu(x)


def items(x, y):
    first, *rest = x
    return x[0], x[:, 1:], x[..., None], y[x > 0].shape if False else x[torch.tensor([0, 1])], first, len(rest)


def written(x, y):
    z = x * 1
    z.add_(1)
    z[0] = 5
    z += y
    y.add_(x)
    return z, y


def passed_on(x, y):
    return x, [x, y], {"x": x}, isinstance(x, torch.Tensor), type(x), torch.is_tensor(x), isinstance(x, nn.Parameter)


def of_class(x, y):
    if type(x) is Plain:
        return x.doubled, x.halved(), x.halved(by=4)
    if isinstance(x, Scaled):
        return x.scale, (x + 1).scale, hasattr(x - 1, "scale")
    return (x + y).sum(), getattr(x, "nothing", None)


def remade(x, y):
    z = y.as_subclass(type(x)) if type(x) is not Scaled else Scaled(y, 7.0)
    plain = x.as_subclass(torch.Tensor)
    return z * 2, plain + 1, z


FUNCTIONS = [operators, methods, attributes, functions, items, written, passed_on, of_class, remade]


def same(a, b):
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            assert a.dtype == b.dtype and a.requires_grad == b.requires_grad and a.stride() == b.stride()
            torch.testing.assert_close(a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor))
            same(dict(a.__dict__), dict(b.__dict__))
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        same(list(a.values()), list(b.values()))
    else:
        assert a == b


def run(fn, *args):
    LOG.clear()
    result = fn(*args)
    return result, list(LOG)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_graph_as_eager(capture, fn, cls):
    c = capture(fn, fullgraph=True)
    for seed, rows in ((0, 3), (1, 3), (2, 6)):
        torch.manual_seed(seed)
        x, y = torch.rand(rows, 4) + 0.5, torch.rand(rows, 4)
        x2, y2 = x.clone(), y.clone()
        expected, got = run(fn, made(cls, x), y), run(c, made(cls, x2), y2)
        same(got, expected)
        same(y2, y)
        same(x2, x)
    assert len(c.graphs) <= 3


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_class_changes(capture, fn):
    c = capture(fn, recompile_limit=30)
    for cls in (Plain, Logging, torch.Tensor, Scaled, Off, Operators, Plain, torch.Tensor):
        torch.manual_seed(0)
        x, y = torch.rand(3, 4) + 0.5, torch.rand(3, 4)
        x2, y2 = x.clone(), y.clone()
        if fn is remade and cls is torch.Tensor:
            continue
        same(run(c, made(cls, x2), y2), run(fn, made(cls, x), y))


def test_what_the_class_reads_changes(capture, monkeypatch):
    def fn(x):
        return x * 2 + 1

    c = capture(fn, fullgraph=True)
    for factor, scale in ((2.0, 3.0), (3.0, 3.0), (3.0, 4.0), (2.0, 5.0)):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        x = torch.rand(3)
        same(c(Scaled(x, scale)), fn(Scaled(x, scale)))


def test_the_method_is_replaced(capture, monkeypatch):
    class Changing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)

    def other(cls, func, types, args=(), kwargs=None):
        return super(Changing, cls).__torch_function__(func, types, args, kwargs) if func.__name__ == "sin" else 7

    def fn(x):
        return x.sin(), x.cos()

    c = capture(fn, fullgraph=True)
    x = torch.rand(3).as_subclass(Changing)
    same(c(x), fn(x))
    Changing.__torch_function__ = classmethod(other)
    same(c(x), fn(x))
    Changing.sin = lambda self: "mine"
    same(c(x), fn(x))
    del Changing.__torch_function__
    same(c(x), fn(x))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("place", ["list", "dict", "closure", "buffer", "attribute", "default", "keyword"])
def test_every_place(capture, cls, place):
    torch.manual_seed(0)
    held = made(cls, torch.rand(3, 4))
    x = torch.rand(3, 4)

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("buffer", held)
            self.holds = [held]
            self.plain = held

        def forward(self, x):
            return x + self.buffer, self.buffer * x

    holder = Holder()
    fn, args, kwargs = {
        "list": (lambda x, held: [x + h for h in held], ([held, held],), {}),
        "dict": (lambda x, held: held["a"] * x, ({"a": held},), {}),
        "closure": (lambda x: held * x + held, (), {}),
        "buffer": (holder, (), {}),
        "attribute": (lambda x: holder.plain * x + holder.holds[0], (), {}),
        "default": (lambda x, held=held: held - x, (), {}),
        "keyword": (lambda x, *, held: held - x, (), {"held": held}),
    }[place]
    c = capture(fn, fullgraph=True)
    for _ in range(2):
        LOG.clear()
        expected, log = fn(x, *args, **kwargs), list(LOG)
        LOG.clear()
        same(c(x, *args, **kwargs), expected)
        assert log == LOG
    assert len(c.graphs) == 1


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("grad", [True, False])
def test_gradients(capture, cls, grad):
    def fn(x, w):
        return (F.linear(x, w) * w.sum()).relu(), x * 2

    c = capture(fn, fullgraph=True)
    results = []
    for call in (fn, c):
        torch.manual_seed(0)
        leaf, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
        with torch.set_grad_enabled(grad):
            out = call(made(cls, leaf), w)
        if grad:
            sum(o.as_subclass(torch.Tensor).sum() for o in out).backward()
        results.append((out, leaf.grad, w.grad))
    same(results[1], results[0])


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_break_while_instances_live(capture, cls):
    def fn(x, y):
        z = x + y
        w = y.as_subclass(Plain) - 1
        if z.sum() > 0:
            z = z * 2
        return z - 1, x, w

    c = capture(fn)
    for sign in (1, -1, 1):
        x, y = torch.rand(3) * sign, torch.rand(3) * sign
        same(run(c, made(cls, x), y), run(fn, made(cls, x), y))
    assert any("a tensor's value" in b.reason for b in c.report.breaks) and len(c.graphs) >= 3


def test_a_break_inside_the_classs_function(capture):
    class Asking(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_function__(func, types, args, kwargs)
            if func is torch.Tensor.add and super().__torch_function__(torch.Tensor.sum, types, (result,), {}) > 0:
                return result * 2
            return result

    def fn(x, y):
        return (x.sin() + y).cos()

    c = capture(fn)
    for sign in (1, -1, 1):
        x, y = (torch.rand(3) * sign).as_subclass(Asking), torch.rand(3) * sign
        same(c(x, y), fn(x, y))


def test_what_is_asked_of_the_object_itself_is_eagers(capture):
    """The plain tensor inside has another history: such questions break the graph."""

    def fn(x):
        y = x * 2
        return y, x.is_leaf, x.grad, x._version, x.requires_grad, x.grad_fn

    leaf = torch.rand(3).as_subclass(Plain).requires_grad_()
    c = capture(fn)
    for _ in range(2):
        got, expected = c(leaf), fn(leaf)
        same(got, expected)
        got[0].as_subclass(torch.Tensor).sum().backward()


def test_an_instance_whose_sizes_change_in_place(capture):
    def fn(x):
        y = x + 1
        x.t_()
        x.unsqueeze_(0)
        return y, x * 2

    x, x2 = (torch.rand(3, 4).as_subclass(Plain) for _ in range(2))
    x2.copy_(x)
    c = capture(fn)
    same(c(x2), fn(x))
    assert x2.shape == x.shape == (1, 4, 3)


def test_an_attribute_set_on_an_instance(capture):
    def fn(x):
        y = x * 2
        y.note = "new"
        x.note = x.shape[0]
        return y, y.note, x.note

    for cls in (Plain, Off):
        c = capture(fn)
        for rows in (2, 3):
            x, x2 = torch.rand(rows).as_subclass(cls), torch.rand(rows).as_subclass(cls)
            x2.copy_(x)
            same(c(x2), fn(x)) if cls is Plain else same(c(x2)[1:], fn(x)[1:])
            assert x2.note == x.note == rows


def test_several_classes_at_once(capture):
    def fn(x, y):
        return x + y, x.sum()

    c = capture(fn)
    for _ in range(2):
        x, y = torch.rand(3).as_subclass(Plain), torch.rand(3).as_subclass(Logging)
        with pytest.raises(TypeError) as expected:
            fn(x, y)
        with pytest.raises(TypeError) as got:
            c(x, y)
        assert str(got.value) == str(expected.value)


class Doubling(nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            twice = 2 if func is F.linear else 1
            plain = [a.as_subclass(torch.Tensor) * twice if isinstance(a, Doubling) else a for a in args]
            if func is not F.linear:
                return func(*args, **(kwargs or {}))
            return func(*plain, **(kwargs or {}))


def test_a_parameter_of_a_class(capture):
    layer = nn.Linear(4, 4)
    layer.weight = Doubling(layer.weight.data)
    assert type(layer.weight) is Doubling
    c = capture(layer, fullgraph=True)
    x = torch.rand(2, 4)
    for _ in range(3):
        got, expected = c(x), layer(x)
        same(got, expected)
        layer.zero_grad()
        got.sum().backward()
        grads = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        expected.sum().backward()
        for a, p in zip(grads, layer.parameters(), strict=True):
            torch.testing.assert_close(a.as_subclass(torch.Tensor), p.grad.as_subclass(torch.Tensor))
        with torch.no_grad():
            for p in layer.parameters():
                p.sub_(p.grad)
    assert len(c.graphs) == 1


def test_a_class_with_a_dispatch_of_its_own(capture):
    class Dispatching(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [a.inner if isinstance(a, Dispatching) else a for a in args]
            return cls(func(*plain, **(kwargs or {})) + 1)

    def fn(x, y):
        z = y * 2
        return (x + 1).inner, z

    c = capture(fn, fullgraph=True)
    inner, y = torch.rand(3), torch.rand(3)
    same(c(Dispatching(inner), y), fn(Dispatching(inner), y))


def test_the_same_object_changes(capture):
    def fn(x):
        return x * 2, x.shape[0], x.requires_grad, getattr(x, "note", None)

    c = capture(fn)
    x = torch.rand(3, 4).as_subclass(Plain)
    for change in (lambda: None, x.t_, x.requires_grad_, lambda: setattr(x, "note", 5), lambda: setattr(x, "note", 6),
                   lambda: delattr(x, "note"), lambda: setattr(x, "data", torch.rand(2, 2))):  # fmt: skip
        change()
        same(c(x), fn(x))
        same(c(x), fn(x))


def test_identity(capture):
    def fn(x, y, held):
        z = x + 0
        return x is y, x is held[0], z is x, z is z, {x: 1}.get(y), x in held[1:] if len(held) > 9 else y is held[-1]

    c = capture(fn)
    a, b = torch.rand(3).as_subclass(Plain), torch.rand(3).as_subclass(Plain)
    for x, y, held in ((a, b, [a, b]), (a, a, [b, a]), (b, a, [b, b]), (a, b, [b, a])):
        assert c(x, y, held) == fn(x, y, held)


def test_called_where_it_is_switched_off(capture):
    def fn(x, y):
        return x + y, x.sin() * 2

    c = capture(fn, fullgraph=True)
    x, y = torch.rand(3).as_subclass(Logging), torch.rand(3)
    for off in (False, True, False, True):
        LOG.clear()
        if off:
            with torch._C.DisableTorchFunctionSubclass():
                expected, log = fn(x, y), list(LOG)
                LOG.clear()
                got = c(x, y)
        else:
            expected, log = fn(x, y), list(LOG)
            LOG.clear()
            got = c(x, y)
        same(got, expected)
        assert log == LOG and bool(log) is not off


def test_an_error_inside_leaves_it_switched_on(capture):
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                if func is torch.Tensor.sin:
                    raise ValueError("no sine")
                return func(*args, **(kwargs or {})) * 3

    def fn(x):
        y = x + 1
        try:
            z = x.sin()
        except ValueError as error:
            z = str(error)
        return y, z, x.cos()

    c = capture(fn)
    x = torch.rand(3).as_subclass(Refusing)
    same(c(x), fn(x))
    same(c(x), fn(x))
    assert sum(len(list(gm.graph.nodes)) for gm in c.graphs) > 4


def test_writes_that_autograd_sees(capture):
    def fn(x, w):
        y = x.clone() * w
        y.mul_(w)
        x.add_(1)
        return y, x

    c = capture(fn)
    results = []
    for call in (fn, c):
        torch.manual_seed(0)
        base, w = torch.rand(3), torch.rand(3, requires_grad=True)
        x = base.as_subclass(Plain)
        y, x_after = call(x, w)
        y.as_subclass(torch.Tensor).sum().backward()
        assert x_after is x
        results.append((y, x, base, w.grad))
    same(results[1], results[0])
