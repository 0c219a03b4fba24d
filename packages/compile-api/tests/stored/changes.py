"""Programs that are changed in one place between two processes.

``CHANGES``: by name, a module's text with a function ``make``, what is replaced in it, and by what the second process
is told (a part of the reason that ``explain`` gives; None where the stored program serves all the same).
"""

from __future__ import annotations

from typing import NamedTuple

HEAD = """
import collections, contextlib, dataclasses, enum, functools, logging, math, os
import torch
from torch import nn
from torch.nn import functional as F
import compile_api

x = torch.linspace(-1, 2, 12).reshape(3, 4)
"""


class Change(NamedTuple):
    text: str
    before: str
    after: str
    field: str | None


CHANGES: dict[str, Change] = {}


def change(name: str, before: str, after: str, field: str | None, text: str) -> None:
    assert text.count(before) == 1, name
    CHANGES[name] = Change(HEAD + text, before, after, field)


FUNCTION = """
FACTOR = 2.0
def inner(x, k=3, *, m=1):
    return x * k + m
def wrapped(fn):
    @functools.wraps(fn)
    def call(*args):
        return fn(*args) + 1
    return call
@wrapped
def decorated(x):
    return x * 5
def steps(x):
    yield x + 1
    yield x * 2
alias = F.relu
def of(n):
    return lambda y: y * n
made = of(4)
def run(x):
    parts = list(steps(x))
    return inner(x) * FACTOR + alias(x) + decorated(x) + made(x) + parts[0] - parts[1]
def make():
    return run, [((x,), {})]
"""
change("the frame's code", "parts[0] - parts[1]", "parts[0] + parts[1]", "code", FUNCTION)
change("the code of an inlined function", "x * k + m", "x * k - m", "code", FUNCTION)
change("the code of an inlined generator", "yield x * 2", "yield x * 3", "code", FUNCTION)
change("the code of a decorator", "fn(*args) + 1", "fn(*args) + 2", "code", FUNCTION)
change("the code under a decorator", "return x * 5", "return x * 6", "code", FUNCTION)
change("a lambda", "y * n", "y + n", "code", FUNCTION)
change("a closure's value", "made = of(4)", "made = of(5)", "guard", FUNCTION)
change("a default", "k=3", "k=4", "guard", FUNCTION)
change("a keyword default", "m=1", "m=2", "guard", FUNCTION)
change("a global constant", "FACTOR = 2.0", "FACTOR = 2.5", "guard", FUNCTION)
change("a global constant's type", "FACTOR = 2.0", "FACTOR = 2", "guard", FUNCTION)
change("a global function", "alias = F.relu", "alias = F.gelu", "code", FUNCTION)
change("a function of another kind", "alias = F.relu", "alias = torch.sin", "code", FUNCTION)
change("lines moved", "FACTOR = 2.0", "# a comment\n\nFACTOR = 2.0", None, FUNCTION)
change("a function nobody calls", "def make", "def unused(): pass\ndef make", None, FUNCTION)

MODEL = """
class Base(nn.Module):
    scale = 2.0
    def mixed(self, x):
        return x * 3
    @property
    def shift(self):
        return 1.5
    @staticmethod
    def twice(x):
        return x * 2
    @classmethod
    def width(cls):
        return 4
    @functools.cached_property
    def kept(self):
        return 7
class Mixin:
    extra = 0.25
    def added(self, x):
        return x + self.extra
class Model(Mixin, Base):
    pair = (1, 2)
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.config = {"eps": 0.5}
        self.register_buffer("offset", torch.ones(4))
    def forward(self, x):
        x = self.act(self.first(x)) * self.scale
        for layer in self.layers:
            x = layer(x) + self.offset
        x = self.added(self.mixed(x)) + self.shift + self.width() + self.kept
        return self.twice(x) + self.config["eps"] + self.pair[1]
model = Model().eval()
def make():
    return model, [((x,), {})]
"""
change("a class attribute", "scale = 2.0", "scale = 3.0", "", MODEL)
change("a class's tuple", "pair = (1, 2)", "pair = (1, 3)", "", MODEL)
change("a base's method", "return x * 3", "return x * 4", "code", MODEL)
change("a property", "return 1.5", "return 2.5", "", MODEL)
change("a static method", "return x * 2", "return x * 5", "", MODEL)
change("a class method", "return 4", "return 5", "", MODEL)
change("a cached property", "return 7", "return 8", "", MODEL)
change("the bases", "class Model(Mixin, Base)", "class Model(Base, Mixin)", "class", MODEL)
change("a method that shadows", "pair = (1, 2)", "pair = (1, 2)\n    def mixed(self, x): return x - 1", "guard", MODEL)
change("a mixin's attribute", "extra = 0.25", "extra = 0.75", "", MODEL)
change("the structure", "nn.ModuleList([nn.Linear(4, 4)])", "nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])",
       "guard", MODEL)  # fmt: skip
change("a submodule's class", "nn.ReLU()", "nn.GELU()", "", MODEL)
change("a submodule's option", "nn.Linear(4, 4)\n", "nn.Linear(4, 4, bias=False)\n", "", MODEL)
change("a dtype", "model = Model().eval()", "model = Model().eval().double(); x = x.double()", "tensor", MODEL)
change("training", "Model().eval()", "Model()", None, MODEL)
change("a weight's requires_grad", "Model().eval()", "Model().eval().requires_grad_(False)", "tensor", MODEL)
change("a dict's value", '{"eps": 0.5}', '{"eps": 0.75}', "guard", MODEL)
change("a forward hook", "def make", "model.first.register_forward_hook(lambda m, a, out: out * 2)\ndef make",
       "guard", MODEL)  # fmt: skip
change("a global hook", "def make", "nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)\ndef make",
       "guard", MODEL)  # fmt: skip
change("an instance's method", "def make", "model.mixed = lambda x: x * 9\ndef make", "", MODEL)
change("an instance's forward", "def make", "model.first.forward = lambda x: x * 9\ndef make", "guard", MODEL)
change("weights of the same kind", "manual_seed(0)", "manual_seed(1)", None, MODEL)

PATCH = """
def other(x, *args, **kwargs):
    return x * 100
def run(x):
    layer = nn.functional.relu(x) + torch.sin(x) + x.cos() + F.softmax(x, -1) + x.tanh().square()
    return layer + math.sqrt(2.0) + linear(x) + gelu(x) + sum(x.split(1))
linear = nn.Linear(4, 4)
nn.init.ones_(linear.weight), nn.init.ones_(linear.bias)
gelu = nn.GELU()
seq = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))
nn.init.ones_(seq[0].weight), nn.init.ones_(seq[0].bias)
# here
def make():
    return run, [((x,), {})]
"""
for what in (
    "nn.functional.relu = other", "torch.sin = other", "torch.Tensor.cos = other", "F.softmax = other",
    "torch.Tensor.tanh = other", "math.sqrt = lambda v: 100.0", "nn.Linear.forward = lambda self, x: x * 100", "F.gelu = other",
    "nn.GELU.forward = lambda self, x: x * 50", "F.linear = other", "torch.Tensor.split = lambda self, n: [self]",
    "nn.Module.__call__ = lambda self, x: x * 100",
    "torch.nn.modules.linear.F.linear = other",
):  # fmt: skip
    change(f"patched: {what}", "# here", what, "", PATCH)

SEQUENTIAL = PATCH.replace("return run,", "return seq,")
change("patched: a container's forward", "# here", "nn.Sequential.forward = lambda self, x: x * 100", "", SEQUENTIAL)
change("patched: a global of torch", "# here", "nn.modules.dropout.F = type(F)('F'); nn.modules.dropout.F.dropout = other",
       "", SEQUENTIAL)  # fmt: skip

STATE = """
def run(x):
    y = torch.ones(3, 4) * x
    return y.mm(y.t()) if torch.is_grad_enabled() else y
# here
def make():
    return run, [((x,), {})]
"""
change("the default dtype", "# here", "torch.set_default_dtype(torch.float64)", "state", STATE)
change("the grad mode", "# here", "torch.set_grad_enabled(False)", "state", STATE)
change("autocast", "# here", "torch.autocast('cpu', dtype=torch.bfloat16).__enter__()", "state", STATE)
change("deterministic algorithms", "# here", "torch.use_deterministic_algorithms(True)", "state", STATE)

DATA = """
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    by: float = 2.0
    def scaled(self):
        return self.x * self.by
class Color(enum.Enum):
    RED = 3
Pair = collections.namedtuple("Pair", "a b")
@functools.lru_cache
def cached(n):
    return n * 2.0
names = ["one", "two"]
bound = functools.partial(torch.add, alpha=2)
def run(x):
    batch = Batch(x)
    pair = Pair(x, x + 1)
    y = batch.scaled() + Color.RED.value + pair.a * 2 + cached(4) + len(names)
    return bound(y, x) + float(os.environ.get("A_SCALE", "1"))
# here
def make():
    return run, [((x,), {})]
"""
change("a dataclass's default", "by: float = 2.0", "by: float = 3.0", "", DATA)
change("a dataclass's method", "self.x * self.by", "self.x + self.by", "", DATA)
change("an enumeration's value", "RED = 3", "RED = 4", "", DATA)
change("a named tuple's fields", '"a b"', '"b a"', "", DATA)
change("a cached function", "n * 2.0", "n * 3.0", "", DATA)
change("a list's length", '["one", "two"]', '["one", "two", "three"]', "guard", DATA)
change("a partial", "alpha=2", "alpha=3", "", DATA)
change("a variable of the environment", "# here", "os.environ['A_SCALE'] = '3'", "", DATA)

BREAKS = """
def after(y):
    return y * 2
K = 3
def run(x):
    y = x.sin()
    compile_api.graph_break()
    return after(y) + K
def make():
    return run, [((x,), {})]
"""
change("code after a break", "y * 2", "y * 3", "code", BREAKS)
change("a constant after a break", "K = 3", "K = 4", "guard", BREAKS)
change("code before a break", "x.sin()", "x.cos()", "code", BREAKS)

FUNCTIONS = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * 7
@torch.library.custom_op("changes::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 3
@scale.register_fake
def _(x):
    return torch.empty_like(x)
def inside(x):
    return x * 4
compile_api.allow_in_graph(inside)
def run(x):
    return FIRST(x)
FIRST = Double.apply
def make():
    return run, [((x.clone().requires_grad_(),), {})]
"""
change("an autograd function's forward", "return x * 2", "return x * 20", "", FUNCTIONS)
change("an autograd function's backward", "return g * 7", "return g * 8", "", FUNCTIONS)
change("a custom operator", "return x * 3", "return x * 30", "",
       FUNCTIONS.replace("FIRST = Double.apply", "FIRST = scale").replace(".requires_grad_()", ""))  # fmt: skip
change("a function in the graph", "return x * 4", "return x * 40", "code",
       FUNCTIONS.replace("FIRST = Double.apply", "FIRST = inside"))  # fmt: skip
