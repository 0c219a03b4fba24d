"""nn.Modules: lifting of parameters, hooks, containers, attribute writes, and what the graph looks like."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict

import pytest
import torch
from torch import nn

import dynamo_capture
from dynamo_capture import _native


def same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_parameters_are_inputs_with_kinds(capture):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("offset", torch.ones(3))

        def forward(self, x):
            return self.lin(x) + self.offset

    net = Net()
    c = capture(net, fullgraph=True)
    x = torch.randn(2, 3)
    same(c(x), net(x))
    envelope = c.graphs[0].meta["envelope"]
    kinds = {d.source: d.kind for d in envelope.inputs}
    assert kinds == {"x": "input", "self.lin.weight": "parameter", "self.lin.bias": "parameter",
                     "self.offset": "buffer"}  # fmt: skip
    assert [d.requires_grad for d in envelope.inputs if d.kind == "parameter"] == [True, True]
    assert envelope.dialect == "torch" and envelope.version == (1, 0)
    for node in c.graphs[0].graph.nodes:
        if node.op.startswith("call"):
            assert node.meta["spec"].shape == (2, 3)
            assert node.meta["source"].filename == __file__
    names = [n.name for n in c.graphs[0].graph.nodes if n.op == "placeholder"]
    assert names[0] == "l_x_" and all(n.startswith("l_self") for n in names[1:])


def test_one_graph_serves_all_instances(capture):
    layers = [nn.Linear(4, 4) for _ in range(3)]
    for layer in layers:
        layer.eval()

    def fn(layer, x):
        return layer(x) * 2

    c = capture(fn)
    x = torch.randn(2, 4)
    for layer in layers:
        same(c(layer, x), fn(layer, x))
    assert len(c.graphs) == 1


def test_tied_parameters(capture):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    net = Tied()
    c = capture(net)
    x = torch.randn(2, 3)
    same(c(x), net(x))
    assert sum(n.op == "placeholder" for n in c.graphs[0].graph.nodes) == 2
    net.b.weight = nn.Parameter(torch.randn(3, 3))
    same(c(x), net(x))


def test_containers(capture):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.seq = nn.Sequential(OrderedDict(a=nn.Linear(3, 3), act=nn.ReLU()))
            self.table = nn.ModuleDict({"p": nn.Linear(3, 3), "q": nn.Identity()})
            self.stack = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])
            self.scales = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])
            self.weights = nn.ParameterDict({"w": nn.Parameter(torch.randn(3))})

        def forward(self, x):
            x = self.seq(x) + self.seq[0](x) + self.seq.act(x)
            for name, module in self.table.items():
                x = module(x) + len(name)
            if "p" in self.table:
                x = self.table["p"](x)
            for layer in self.stack[1:-1]:
                x = layer(x)
            for layer in reversed(self.stack):
                x = layer(x)
            for scale in self.scales:
                x = x * scale
            x = x * self.weights["w"] + self.scales[-1]
            total = sum(p.sum() for p in self.parameters())
            return x + total, len(self.stack), [n for n, _ in self.named_children()]

    net = Net()
    c = capture(net, fullgraph=True)
    x = torch.randn(2, 3)
    got, expected = c(x), net(x)
    same(got[0], expected[0])
    assert got[1:] == expected[1:]


def test_hooks_are_called(capture):
    log = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            return self.lin(x)

    net = Net()
    net.lin.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    net.lin.register_forward_hook(lambda m, args, out: log.append(1) or out * 2)
    net.register_forward_hook(lambda m, args, out: out - 3)
    c = capture(net, fullgraph=True)
    x = torch.randn(2, 3)
    got = c(x)
    assert log == [1]
    expected = net(x)
    same(got, expected)
    c(x)
    assert log == [1, 1, 1]
    handle = net.lin.register_forward_hook(lambda m, args, out: out * 10)
    same(c(x), net(x))
    handle.remove()
    same(c(x), net(x))


def test_buffer_and_attribute_writes(capture):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.last = None
            self.history = []

        def forward(self, x):
            self.total += x.sum(0)
            self.count.add_(1)
            self.last = x * 2
            self.history.append(self.last)
            self.total = self.total * 0.5
            return x + self.total + len(self.history)

    net = Net()
    twin = copy.deepcopy(net)
    c = capture(net, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3)
        same(c(x), twin(x))
    same(net.total, twin.total)
    same(net.count, twin.count)
    same(net.last, twin.last)
    assert len(net.history) == 3 and net.history[-1] is net.last
    assert list(net._buffers) == ["total", "count"]


def test_methods_properties_and_defaults(capture):
    class Base(nn.Module):
        factor = 2.0

        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        @property
        def double(self):
            return self.factor * 2

        @staticmethod
        def shift(x, by=1):
            return x + by

        @classmethod
        def scaled(cls, x):
            return x * cls.factor

        def forward(self, x, *extra, flag=True, **kw):
            y = self.shift(self.scaled(self.lin(x))) * self.double
            for e in extra:
                y = y + e
            return y if flag else y - kw["minus"]

    class Derived(Base):
        factor = 3.0

        def forward(self, x, *args, **kw):
            return super().forward(x, *args, **kw).relu()

    net = Derived()
    c = capture(net, fullgraph=True)
    x = torch.randn(2, 3)
    same(c(x), net(x))
    same(c(x, x, x), net(x, x, x))
    same(c(x, flag=False, minus=2.0), net(x, flag=False, minus=2.0))


def test_bound_method_and_callable_object(capture):
    class Box:
        def __init__(self, k):
            self.k = k

        def scale(self, x):
            return x * self.k

        def __call__(self, x):
            return self.scale(x) + 1

    box = Box(3)
    x = torch.randn(3)
    same(capture(box.scale, fullgraph=True)(x), box.scale(x))

    def fn(x):
        return box(x)

    same(capture(fn, fullgraph=True)(x), fn(x))


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(4, 5, batch_first=True), nn.GRU(4, 5), nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, 8),
        nn.Conv1d(3, 4, 3, padding="same"), nn.BatchNorm1d(3), nn.GroupNorm(3, 3), nn.Embedding(5, 3),
        nn.Bilinear(4, 4, 2), nn.PReLU(), nn.AdaptiveAvgPool1d(2), nn.Softmax(-1), nn.Flatten(),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_layers_of_torch(capture, layer):
    layer.eval()
    if isinstance(layer, nn.Embedding):
        args = (torch.randint(0, 5, (2, 3)),)
    elif isinstance(layer, nn.MultiheadAttention):
        args = (torch.randn(2, 3, 4),) * 3
    elif isinstance(layer, nn.Bilinear):
        args = (torch.randn(2, 4), torch.randn(2, 4))
    else:
        args = (torch.randn(2, 3, 4),)
    c = capture(layer, fullgraph=True)
    with torch.no_grad():
        got, expected = c(*args), layer(*args)
    flat = torch.utils._pytree.tree_leaves
    for a, b in zip(flat(got), flat(expected), strict=True):
        same(a, b)
    assert len(c.graphs) == 1


def test_gradients_flow(capture):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    c = capture(net)
    x = torch.randn(5, 3, requires_grad=True)
    c(x).sum().backward()
    got = [p.grad.clone() for p in net.parameters()] + [x.grad.clone()]
    net.zero_grad()
    x.grad = None
    net(x).sum().backward()
    for a, b in zip(got, [p.grad for p in net.parameters()] + [x.grad], strict=True):
        same(a, b)


def test_compiled_inside_compiled(capture):
    inner = dynamo_capture.optimize(lambda x: x * 2, lambda gm, xs: gm.forward)

    def fn(x):
        return inner(x) + 1

    c = capture(fn, fullgraph=True)
    x = torch.randn(3)
    same(c(x), fn(x))
    assert len(c.graphs) == 1


def test_allow_in_graph(capture):
    def odd(x):
        return x.sin() + 1

    dynamo_capture.allow_in_graph(odd)

    def fn(x):
        return odd(x) * 2

    c = capture(fn, fullgraph=True)
    x = torch.randn(3)
    same(c(x), fn(x))
    assert any(n.target is odd for n in c.graphs[0].graph.nodes)


def test_two_backends_do_not_share(capture):
    def fn(x):
        return x + 1

    a, b = capture(fn), capture(fn)
    x = torch.ones(2)
    a(x), b(x), a(x)
    assert len(a.graphs) == len(b.graphs) == 1


def test_reset(capture):
    c = capture(lambda x: x + 1)
    x = torch.ones(2)
    c(x)
    dynamo_capture.reset()
    c(x)
    assert len(c.graphs) == 2


def test_first_inputs_are_not_kept_alive(capture):
    import gc
    import weakref

    c = capture(lambda x: x * 2)
    x = torch.randn(3)
    ref = weakref.ref(x)
    c(x)
    del x
    gc.collect()
    assert ref() is None


def entry_code(fn):
    (entry,) = _native.entries(fn.__code__)
    return entry.code


def test_many_parameters_are_handed_over_as_one_tuple(capture):
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(10)])
    c, x = capture(model), torch.randn(2, 3)
    for _ in range(3):
        same(c(x), model(x))
    assert entry_code(nn.Sequential.forward).co_flags & inspect.CO_VARARGS
    with torch.no_grad():
        model[4].weight.mul_(2)
    model[7].bias = nn.Parameter(torch.ones(3))
    same(c(x), model(x))
    model[2] = nn.Linear(3, 3, bias=False)
    same(c(x), model(x))
    assert len(c.graphs) == 2


def test_parameters_that_the_program_needs_besides_are_handed_over_one_by_one(capture):
    weights = [torch.randn(3) for _ in range(20)]

    def fn(x):
        for w in weights:
            x = x + w
        weights[5].mul_(2)
        return x, weights[3], weights

    c, x = capture(fn), torch.randn(3)
    before = [w.clone() for w in weights]
    theirs = fn(x)[0]
    changed = weights[5].clone()
    weights[5].copy_(before[5])
    ours = c(x)
    same(ours[0], theirs)
    same(weights[5], changed)
    assert ours[1] is weights[3] and ours[2] is weights
    assert not entry_code(fn).co_flags & inspect.CO_VARARGS
