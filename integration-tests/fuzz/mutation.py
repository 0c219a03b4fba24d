"""Module mutation: between calls, what a compiled module or function reads is changed, and each call must be as in eager.

Changed are attributes, parameters, buffers, train and eval, hooks, submodules, class attributes, entries of lists and
dicts, methods, globals and closures, types and memory formats. Each run builds its objects anew, so that eager's twin goes
through the same changes.
"""

from __future__ import annotations

import itertools
import random
import re
import warnings

from fuzz.program import Program, observe

__all__ = ["generate"]

HEAD = """
import functools
import types

import torch
import torch.nn as nn
import torch.nn.functional as F
from fuzz.inputs import make, ramp

FACTOR = 2
SWITCH = "a"
SHARED = {"n": 1, "names": ["p", "q"]}
LOG = []


class Config:
    depth = 1
    rate = 0.5

    def __init__(self):
        self.mode = "plain"
        self.sizes = (1, 2)


CONFIG = Config()


def helper(x, by=1):
    return x + by


def doubled(x):
    return x * 2


def other_forward(self, x):
    return x * 3 + self.count


def counter():
    state = [1]
    total = 0

    def bump(x):
        nonlocal total
        total += 1
        return x * state[0] + total

    def change(value):
        state[0] = value

    return bump, change


class Leaf(nn.Module):
    gain = 1.5

    def __init__(self, n=4):
        super().__init__()
        self.weight = nn.Parameter(ramp(torch.ones(1), n))
        self.flag = True

    def forward(self, x):
        return x * self.weight * self.gain if self.flag else x - self.weight


class Other(Leaf):
    gain = 0.5

    def forward(self, x):
        return super().forward(x) + 1


class Net(nn.Module):
    K = 2
    table = {"z": 1}

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.leaf = Leaf()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Leaf()])
        self.named = nn.ModuleDict({"u": Leaf(), "v": nn.Identity()})
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("buf", torch.ones(4))
        self.free = nn.Parameter(torch.ones(4))
        self.count = 0
        self.scale = 1.5
        self.name = "net"
        self.on = True
        self.none = None
        self.pair = (1, 2)
        self.items = [1, 2]
        self.lookup = {"a": 1, "b": 2}
        self.act = torch.relu
        self.fn = helper
        self.config = Config()
        self.plain = torch.ones(4)
        self.part = functools.partial(helper, by=2)

    @property
    def derived(self):
        return self.count + 1

    def method(self, x):
        return x + self.K

    @staticmethod
    def static(x):
        return x * 1.5

    @classmethod
    def klass(cls, x):
        return x + cls.K
"""
#: Lines of ``forward``.
READS = """
h = self.lin(h)
h = self.leaf(h)
for layer in self.layers: h = layer(h)
h = self.layers[0](h)
h = self.layers[-1](h)
h = self.named['u'](h)
for key, layer in self.named.items(): h = layer(h) + len(key)
h = self.norm(h)
h = self.drop(h)
h = h + self.buf
h = h * self.free
h = h * self.scale
h = h + self.count
h = h if self.on else -h
h = h + len(self.name)
h = h if self.none is None else h + self.none
h = h + self.pair[0] * self.pair[-1]
h = h + sum(self.items)
h = h + len(self.items)
for item in self.items: h = h * item
h = h + self.lookup['a']
h = h + sum(self.lookup.values())
for key in self.lookup: h = h + len(key)
h = h + self.lookup.get('c', 5)
h = self.act(h)
h = self.fn(h)
h = self.part(h)
h = h * self.config.rate
h = h + len(self.config.mode)
h = h + sum(self.config.sizes)
h = h + self.plain
h = h + self.derived
h = self.method(h)
h = self.static(h)
h = self.klass(h)
h = h * type(self).K
h = h * self.__class__.K
h = h + Net.K
h = h + self.table['z']
h = h * FACTOR
h = h + 1 if SWITCH == 'a' else h - 1
h = h + SHARED['n']
h = h + len(SHARED['names'])
h = h + CONFIG.depth
h = h * Config.rate
h = h + (1 if self.training else 2)
h = helper(h)
h = h + len(list(self.children()))
h = h + sum(1 for _ in self.parameters())
h = h + (1 if hasattr(self, 'extra') else 0)
h = h + getattr(self, 'extra', 3)
h = h + (1 if isinstance(self.leaf, Other) else 0)
h = h + Leaf.gain
h = h + (1 if self.lin.bias is None else 2)
h = h.to(self.free.dtype)
h = h + (1 if self.free.requires_grad else 2)
h = h + self.lin.weight.shape[0]
h = h + self.leaf.gain
h = h + (1 if 'extra' in self.__dict__ else 2)
h = h + (1 if self.act is torch.tanh else 2)
h = h + (1 if self.leaf is self.layers[1] else 2)
h = BUMP(h)
self.count += 1
self.items.append(1)
self.lookup['d'] = len(self.lookup)
self.buf.add_(1)
self.buf = self.buf + 1
self.plain = self.plain * 2
self.last = h.detach()
SHARED['n'] += 1
LOG.append(self.name)
self.config.mode = self.config.mode + '!'
self.pair = (self.pair[1], self.pair[0])
self.register_buffer('kept', h.detach() * 2)
self.register_buffer('made', h.detach() + 1) ; h = h + self.made ; del self.made
self.short = nn.Sequential(nn.Tanh(), nn.Identity()) ; h = self.short(h) ; del self.short
self._buffers['buf'] = self.buf * 2
self.leaf, self.layers[1] = self.layers[1], self.leaf
del self.plain ; self.plain = h.detach()[0]
h = h + len(list(self.buffers()))
h = h + sum(len(name) for name, _ in self.named_modules())
"""
#: What happens between calls.
CHANGES = """
m.scale = {number}
m.scale = {integer}
m.count = {integer}
m.count += 1
m.name = {text}
m.on = not m.on
m.none = {integer}
m.none = None
m.pair = ({integer}, {integer})
m.pair = (1, 2, 3)
m.items.append({integer})
m.items[0] = {integer}
m.items = [{integer}]
m.items.clear()
m.lookup['a'] = {integer}
m.lookup['c'] = {integer}
m.lookup.pop('b', None)
m.lookup = dict(a=3)
m.act = torch.tanh
m.act = torch.sigmoid
m.act = F.gelu
m.act = lambda t: t + {integer}
m.act = nn.Tanh()
m.fn = doubled
m.fn = functools.partial(helper, by={integer})
helper.__defaults__ = ({integer},)
helper.__code__ = doubled.__code__
m.part = functools.partial(helper, by={integer})
m.config.rate = {number}
m.config.mode = {text}
m.config = Config()
m.config.sizes += (1,)
m.config.sizes = [3]
Config.rate = {number}
Config.depth = {integer}
CONFIG.depth = {integer}
m.plain = torch.zeros(4)
m.plain.add_(1)
m.plain = make((4,), 'float32', 'sliced', seed={integer})
m.plain = {integer}
Net.K = {integer}
Net.K = {number}
m.K = {integer}
Net.table['z'] = {integer}
Leaf.gain = {number}
m.leaf.gain = {number}
m.leaf.flag = not m.leaf.flag
m.leaf = Other()
m.leaf = nn.Identity()
m.leaf = m.layers[1]
m.leaf.__class__ = Other
m.leaf.weight = nn.Parameter(torch.ones(4) * {integer})
m.leaf.weight = m.free
m.lin = nn.Linear(4, 4, bias=False)
m.lin = nn.Linear(4, 4)
m.lin.bias = None
m.lin.weight.data = torch.ones(4, 4)
m.lin.weight.data.mul_(2)
m.lin.weight.requires_grad_(False)
m.lin.requires_grad_(True)
m.lin.weight = nn.Parameter(m.lin.weight.detach().t())
m.layers.append(Leaf())
m.layers[0] = Leaf()
m.layers[0] = m.lin
m.layers.insert(0, nn.Identity())
del m.layers[-1]
m.layers = nn.ModuleList([nn.Linear(4, 4)])
m.named['w'] = nn.Linear(4, 4)
m.named['u'] = nn.Identity()
m.named.pop('v', None) if 'v' in m.named else None
m.norm = nn.LayerNorm(4)
m.norm.momentum = 0.5
m.norm.eps = 0.1
m.norm.track_running_stats = False
m.norm.running_mean.fill_(0.5)
m.eval()
m.train()
m.norm.eval()
m.drop.p = 1.0
m.buf = torch.zeros(4)
m.buf.fill_({integer})
m.register_buffer('buf', torch.ones(1))
m.free = nn.Parameter(torch.zeros(4))
m.free.data = torch.full((4,), {number})
m.free.requires_grad_(not m.free.requires_grad)
m.double() ; kind = 'float64'
m.float() ; kind = 'float32'
m.extra = {integer}
m.__dict__.pop('extra', None)
m.register_parameter('extra2', nn.Parameter(torch.ones(1)))
m.add_module('extra3', nn.Identity())
handles.append(m.register_forward_hook(lambda mod, args, out: out + {integer}))
handles.append(m.register_forward_pre_hook(lambda mod, args: (args[0] * {integer},)))
handles.append(m.lin.register_forward_hook(lambda mod, args, out: out * 2))
handles.append(m.leaf.register_forward_pre_hook(lambda mod, args: (args[0] + 1,)))
handles.append(m.leaf.register_forward_hook(lambda mod, args, out: LOG.append('hook')))
handles.pop().remove() if handles else None
handles.append(nn.modules.module.register_module_forward_hook(lambda mod, args, out: None)) ; handles.pop().remove()
m.forward = types.MethodType(other_forward, m)
m.__dict__.pop('forward', None)
Net.forward = other_forward
Net.forward = ORIGINAL
Net.method = lambda self, x: x - {integer}
m.method = lambda x: x * {integer}
Net.static = staticmethod(doubled)
Net.derived = property(lambda self: {integer})
Leaf.forward = lambda self, x: x + self.weight
m.leaf.forward = lambda x: x + {integer}
globals()['FACTOR'] = {integer}
globals()['SWITCH'] = {text}
SHARED['n'] = {integer}
SHARED['names'].append('r')
globals()['SHARED'] = dict(n=7, names=[])
globals()['helper'] = doubled
globals()['CONFIG'] = Config()
globals()['Config'] = types.SimpleNamespace(rate=4)
CHANGE({integer})
m.load_state_dict({{k: v + 1 if v.is_floating_point() else v for k, v in m.state_dict().items()}})
m.zero_grad()
m.requires_grad_(False)
m.requires_grad_(True)
m.apply(lambda mod: mod)
torch.nn.init.constant_(m.lin.weight, 0.5)
m.lin.weight, m.layers[0].weight = m.layers[0].weight, m.lin.weight
m.leaf, m.layers[1] = m.layers[1], m.leaf
nn.utils.parametrizations.weight_norm(m.lin)
nn.utils.parametrize.register_parametrization(m.leaf, 'weight', nn.Softplus())
rows = {integer}
rows = {integer}
layout = 'transposed'
layout = 'sliced'
grad = not grad
"""


def generate(seed: int, device: str = "cpu") -> str:
    """The program of a seed; programs that raise in eager are mostly written anew."""
    may_raise = random.Random(seed).random() < 0.05
    for attempt in itertools.count():
        text = _write(random.Random(f"mutation {seed} {attempt}"), device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = observe(Program("mutation", seed, text), lambda fn, **options: fn)
        if may_raise or attempt > 30 or not any("error" in label for label, _ in seen.trees):
            return text
    raise AssertionError


def _change(pick: random.Random, read: str) -> list[str]:
    """A change, mostly of something that ``forward`` reads."""
    names = set(re.findall(r"self\.(\w+)|\b([A-Z]\w+)\b|\b(helper)\b", read))
    words = {word for group in names for word in group if word}
    every = CHANGES.strip().splitlines()
    near = [line for line in every if words & set(re.findall(r"\w+", line))]
    template = pick.choice(near if near and pick.random() < 0.75 else every)
    text = template.replace("{{", "\0").replace("}}", "\1")
    for hole, options in (
        ("{integer}", ["2", "3", "4", "5", "6"]),
        ("{number}", ["0.5", "2.5", "-1.5", "3", "1.0"]),
        ("{text}", ["'a'", "'b'", "'longer'", "''"]),
    ):
        while hole in text:
            text = text.replace(hole, pick.choice(options), 1)
    return [part.strip() for part in text.replace("\0", "{").replace("\1", "}").split(" ; ")]


def _write(pick: random.Random, device: str) -> str:
    lines = [*HEAD.splitlines(), "", "    def forward(self, x):", "        h = x"]
    chosen = pick.sample(READS.strip().splitlines(), pick.choice([3, 5, 8, 12]))
    lines += ["        " + part for line in chosen for part in line.split(" ; ")]
    lines += ["        return h", "", "", "ORIGINAL = Net.forward", "BUMP, CHANGE = counter()", "", ""]
    target = pick.choice(["m", "m", "m", "call", "m.leaf_call"])
    if target == "call":
        lines += ["def call(x):", "    return MODEL(x) + 1", "", ""]
    backend = pick.choice(["eager", "eager", "eager", "inductor"])
    dynamic = pick.choice(["None", "None", "None", "False", "True"])
    lines += ["def program(compile, see):", "    global MODEL", "    torch.manual_seed(3)"]
    lines += [f"    m = MODEL = Net().to({device!r})" if device != "cpu" else "    m = MODEL = Net()"]
    compiled = {"m": "m", "call": "call", "m.leaf_call": "lambda x: m(x) * FACTOR"}[target]
    lines += [f"    g = compile({compiled}, dynamic={dynamic}, backend={backend!r})"]
    lines += ["    handles, kind, rows, layout, grad = [], 'float32', 3, 'contiguous', False"]
    placed = f", device={device!r}" if device != "cpu" else ""
    for step in range(pick.choice([3, 4, 6])):
        if step:
            for _ in range(pick.choice([1, 1, 1, 2])):
                lines += ["    " + line for line in _change(pick, "\n".join(chosen))]
        lines += [
            f"    see.call('call {step}', g, make((rows, 4), kind, layout, seed={step}, grad=grad{placed}), backward=True)"
        ]
        lines += ["    see('state', [m.count, m.name, m.items, m.lookup, m.pair, SHARED, LOG, m.config.mode])"]
        lines += ["    see('tensors', [m.buf, m.plain, m.free.grad, getattr(m, 'last', None)])"]
    return "\n".join(lines) + "\n"
