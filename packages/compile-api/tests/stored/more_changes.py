"""More programs that are changed in one place between two processes (see :mod:`changes`)."""

from __future__ import annotations

from changes import change

OPERATORS = """
class Meta(type):
    def __call__(cls, by):
        made = super().__call__(by)
        made.by = by + 1
        return made
class Field:
    def __get__(self, obj, owner=None):
        return obj.by * 2
class Number(metaclass=Meta):
    field = Field()
    def __init__(self, by):
        self.by = by
    def __add__(self, x):
        return x + self.by
    def __bool__(self):
        return True
    def __len__(self):
        return 3
    def __iter__(self):
        yield 1
        yield 2
    def __contains__(self, item):
        return item == 3
    def __eq__(self, other):
        return True
    def __hash__(self):
        return 7
    def __getitem__(self, i):
        return i + 10
    def __enter__(self):
        return self
    def __exit__(self, *args):
        self.by += 5
    def __getattr__(self, name):
        if name == "absent":
            return 0.5
        raise AttributeError(name)
def run(x):
    number = Number(3.0)
    with number as same:
        y = (same + x) * number.field
    y = y * len(number) + sum(number) + number[4] * number.absent
    if number and number == 4:
        y = y + number.by
    return y + 1 if 3 in number else y - 1
def make():
    return run, [((x,), {})]
"""
for name, before, after in (
    ("a metaclass", "made.by = by + 1", "made.by = by + 2"),
    ("a descriptor", "obj.by * 2", "obj.by * 3"),
    ("an operator of a class", "return x + self.by", "return x - self.by"),
    ("__bool__", "def __bool__(self):\n        return True", "def __bool__(self):\n        return False"),
    ("__len__", "return 3", "return 4"),
    ("__iter__", "yield 2", "yield 5"),
    ("__contains__", "item == 3", "item == 4"),
    ("__eq__", "def __eq__(self, other):\n        return True", "def __eq__(self, other):\n        return False"),
    ("__getitem__", "i + 10", "i + 11"),
    ("__exit__", "self.by += 5", "self.by += 6"),
    ("__getattr__", "return 0.5", "return 0.75"),
):
    change(name, before, after, "", OPERATORS)
change("a class that gets __radd__", "    def __bool__", "    def __rmul__(self, x): return 9\n    def __bool__", None, OPERATORS)

NAMES = """
import types
helpers = types.ModuleType("helpers_of_names")
import sys
sys.modules["helpers_of_names"] = helpers
exec("BASE = 4\\ndef tripled(x):\\n    return x * 3", helpers.__dict__)
def made(x):
    return x + 3
def counted(x):
    return x + len([1, 2])
counted.scale = 2.0
def outer(n):
    def middle():
        def inner(x):
            return x * n
        return inner
    return middle()
nested = outer(3)
def run(x):
    from helpers_of_names import tripled
    y = tripled(x) + helpers.BASE + made(x) + counted(x) * counted.scale
    return y + nested(x) + max(1, 2) + divmod(7, 2)[1]
# here
def make():
    return run, [((x,), {})]
"""
for name, before, after in (
    ("a function imported inside", "return x * 3", "return x * 4"),
    ("an attribute of a module", "BASE = 4", "BASE = 5"),
    ("a function's attribute", "counted.scale = 2.0", "counted.scale = 2.5"),
    ("a closure inside a closure", "outer(3)", "outer(4)"),
    ("a global that shadows a builtin", "# here", "max = min"),
    ("a global that shadows a builtin elsewhere", "# here", "def len(xs): return 70"),
    ("a builtin that is replaced", "# here", "import builtins; builtins.divmod = lambda a, b: (0, 100)"),
    ("a module that is replaced", "# here", "sys.modules['helpers_of_names'] = types.SimpleNamespace(tripled=lambda x: x)"),
    ("a function's code that is replaced", "# here", "counted.__code__ = (lambda x: x * 50).__code__"),
    ("a function's defaults that are replaced", "# here", "nested = outer(9)"),
    ("a disabled function", "# here", "made = compile_api.disable(made)"),
):
    change(name, before, after, "", NAMES)

MADE = """
space = {}
exec("def made(x):\\n    return x + K\\nK = 3", space)
made = space["made"]
@functools.singledispatch
def kind(value):
    return 1
@kind.register
def _(value: int):
    return 5
def run(x):
    return MADE(x)
MADE = made
def make():
    return run, [((x,), {})]
"""
change("code of exec", "return x + K", "return x - K", "", MADE)
change("a global of exec", "K = 3", "K = 4", "", MADE)
change("a registration of singledispatch", "return 5", "return 6", "", MADE.replace("MADE = made", "MADE = lambda x: x * kind(3)"))
change("code of exec that is called", "return x + K", "return x - K", "", MADE.replace("return run,", "return made,"))
change("a global of exec that is called", "K = 3", "K = 4", "", MADE.replace("return run,", "return made,"))

MODULES = """
class Half(nn.Module):
    def forward(self, w):
        return w * 0.5
def before(module, args):
    return (args[0] + 1,)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.blocks = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.register_buffer("extra", torch.ones(4))
        self.config = dataclasses.make_dataclass("Config", [("rate", float, 0.5)])()
        self.sizes = [1, 2]
    def forward(self, x):
        x = self.second(self.first(x)) * self.config.rate
        for block in self.blocks.values():
            x = block(x)
        if self.extra is not None:
            x = x + self.extra
        return x * self.sizes[1] + (1 if self.first.weight is self.second.weight else 0)
net = Net().eval()
# here
def make():
    return net, [((x,), {})]
"""
for name, before, after in (
    ("weights that are tied", "# here", "net.second.weight = net.first.weight"),
    ("the order of modules", '{"a": nn.Linear(4, 4), "b": nn.Tanh()}', '{"b": nn.Tanh(), "a": nn.Linear(4, 4)}'),
    ("a buffer that is None", "# here", "net.extra = None"),
    ("a field of a configuration", '("rate", float, 0.5)', '("rate", float, 0.75)'),
    ("an item of a list", "self.sizes = [1, 2]", "self.sizes = [1, 3]"),
    ("a weight in another layout", "# here", "net.first.weight.data = net.first.weight.data.t().contiguous().t()"),
    ("a weight that is a plain tensor", "# here", "del net.first.weight; net.first.weight = torch.ones(4, 4)"),
    ("a weight of a subclass", "# here",
     "class P(nn.Parameter): pass\nnet.first.weight = P(torch.ones(4, 4))"),
    ("a backward hook of a module", "# here", "net.first.register_full_backward_hook(lambda m, i, o: None)"),
    ("an instance's attribute over a class's", "# here", "net.blocks.forward = None; net.first.extra_repr = None; "
     "net.blocks.values = lambda: []"),
):
    change(name, before, after, "", MODULES)

change("a forward pre-hook", "args[0] + 1", "args[0] + 2", "", MODULES.replace(
    "# here", "net.first.register_forward_pre_hook(before)"))
change("a parametrization", "return w * 0.5", "return w * 0.25", "", MODULES.replace(
    "# here", 'nn.utils.parametrize.register_parametrization(net.second, "bias", Half())'))

LIBRARY = """
import abc
class Thing:
    def __init__(self):
        self.n = 2
class Shape(abc.ABC):
    pass
@dataclasses.dataclass
class Held:
    a: torch.Tensor
    b: torch.Tensor
def run(x):
    y = x * (5 if isinstance(Thing(), Shape) else 7)
    leaves = torch.utils._pytree.tree_leaves({"a": y, "b": [x, (y, 3)]})
    y = leaves[0] + leaves[1] + leaves[2] * leaves[3]
    y = y + len(torch.utils._pytree.tree_leaves(Held(y, x)))
    y = torch.add(y, x) + F.gelu(y) + torch.nn.functional.layer_norm(y, (4,)) + y.view(-1).sum()
    z = y.to(torch.float64).to(torch.float32) @ torch.eye(4)
    return z[:, 1:] + math.pi + operator_sum(z[:, :1], z[:, 1:2]) + nn.functional.softmax(z, -1)[:, 1:]
from operator import add as operator_sum
# here
def make():
    return run, [((x,), {})]
"""
for name, after in (
    ("an abstract class's registration", "Shape.register(Thing)"),
    ("patched: an operator of tensors", "torch.Tensor.__add__ = lambda self, other: self * 100"),
    ("patched: a matrix product", "torch.Tensor.__matmul__ = lambda self, other: self * 100"),
    ("patched: indexing", "torch.Tensor.__getitem__ = lambda self, at: torch.ones(3, 3)"),
    ("patched: a conversion", "torch.Tensor.to = lambda self, *a: torch.ones(3, 4)"),
    ("patched: a constant of math", "math.pi = 3"),
    ("patched: torch.add", "torch.add = lambda a, b: a * 100"),
    ("patched: a function behind another", "torch.layer_norm = lambda *a, **k: torch.ones(3, 4)"),
    ("patched: a method behind another", "torch.Tensor.softmax = lambda *a, **k: torch.ones(3, 4)"),
    ("patched: a function of trees", "torch.utils._pytree.tree_leaves = lambda tree: [torch.ones(3, 4)] * 4"),
    ("patched: a registration of trees", "torch.utils._pytree.register_pytree_node(Held, lambda h: ([h.a, h.b], None), lambda c, _: Held(*c))"),
    ("patched: an overriding protocol",
     "torch.Tensor.__torch_function__ = classmethod(lambda cls, fn, types, args=(), kwargs=None: torch.ones(3, 4))"),
    ("patched: isinstance", "import builtins; builtins.isinstance = lambda a, b, before=isinstance: b is Shape or before(a, b)"),
):
    change(name, "# here", after, "", LIBRARY)

SETTINGS = """
def run(x):
    y = torch.ones(4, 4)
    z = x @ y.to("cpu", copy=True) if y.device.type == "cpu" else x
    z = z + torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]
    return z.relu(), y.device.type, str(torch.get_default_dtype()), torch.is_grad_enabled(), y.requires_grad
# here
def make():
    return run, [((x,), {})]
"""
for name, after, field in (
    ("the number of threads", "torch.set_num_threads(torch.get_num_threads() + 1)", ""),
    ("the precision of products", "torch.set_float32_matmul_precision('medium')", "code"),
    ("anomaly mode", "torch.autograd.set_detect_anomaly(True)", None),
    ("the default device", "torch.set_default_device('meta')", ""),
    ("inference mode", "torch._C._set_grad_enabled(False)", ""),
    ("the implementation of attention", "torch.backends.cuda.enable_flash_sdp(False)", "code"),
    ("mkldnn", "torch._C._set_mkldnn_enabled(False)", "code"),
    ("the filling of new memory", "torch.utils.deterministic.fill_uninitialized_memory = False", None),
):
    change(name, "# here", after, field, SETTINGS)

CACHED = """
@functools.lru_cache
def flag():
    return 2.0 if os.environ.get("A_FLAG") else 3.0
@functools.lru_cache
def found():
    import importlib.util
    return importlib.util.find_spec("absent_library_of_a_test") is not None
# here
def run(x):
    return x * flag() + (10 if found() else 20) + len(os.environ.get("A_NAME", "abc")) + (1 if "B_NAME" in os.environ else 0)
def make():
    return run, [((x,), {})]
"""
for name, after in (
    ("a variable that a cached function reads", "os.environ['A_FLAG'] = '1'"),
    ("a variable's text", "os.environ['A_NAME'] = 'abcdef'"),
    ("a variable that is there", "os.environ['B_NAME'] = '1'"),
    ("what a cached function has kept", "os.environ['A_FLAG'] = '1'; flag(); del os.environ['A_FLAG']"),
):
    change(name, "# here", after, "", CACHED)
change("a library that is there", "# here",
       "sys_path = __import__('tempfile').mkdtemp(); open(sys_path + '/absent_library_of_a_test.py', 'w').close()\n"
       "__import__('sys').path.append(sys_path); __import__('importlib').invalidate_caches()", "", CACHED)  # fmt: skip

INPUTS = """
def run(x, options):
    y = x * options["by"] + len(options)
    if options.get("flag"):
        y = y + 1
    return y + x.tag if hasattr(x, "tag") else y
given = {"by": 2.0, "flag": False}
# here
def make():
    return run, [((x, given), {})]
"""
for name, after in (
    ("an argument's value", 'given["by"] = 3.0'),
    ("an argument's flag", 'given["flag"] = True'),
    ("an argument's class", "given = collections.OrderedDict(given)"),
    ("an argument's further key", 'given["more"] = 1'),
    ("a tensor's attribute", "x.tag = 5"),
    ("a tensor's strides", "x = x.t().contiguous().t()"),
    ("a tensor's sizes", "x = x[:2]"),
    ("a lazily conjugated tensor", "x = torch.complex(x, x).conj()"),
    ("a tensor's place in memory", "x = torch.cat([x, x])[3:]"),
):
    change(name, "# here", after, None if name == "a tensor's place in memory" else "", INPUTS)

WRAPPER = """
class Held(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
    @staticmethod
    def __new__(cls, inner, by):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner, by):
        self.held, self.by = inner, by
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.held * arg.by if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))
held = Held(x + 1, 2.0)
# here
def run(x):
    return x * held + 1
def make():
    return run, [((x,), {})]
"""
for name, before, after in (
    ("what a wrapper's class does", "arg.held * arg.by", "arg.held / arg.by"),
    ("a wrapper's attribute", "Held(x + 1, 2.0)", "Held(x + 1, 3.0)"),
    ("the dtype of what a wrapper holds", "# here", "held.held = held.held.double()"),
    ("a wrapper's dtype", "dtype=inner.dtype", "dtype=torch.float64"),
    ("a wrapper's sizes", "Held(x + 1, 2.0)", "Held(x[:1], 2.0)"),
    ("a wrapper's class", "# here", "class Other(Held): pass\nheld = Other(x + 1, 2.0)"),
    ("a tensor in a wrapper's place", "# here", "held = held.held"),
):
    change(name, before, after, "", WRAPPER)

MEMBERS = """
import enum
class Side(enum.IntEnum):
    LEFT = 0
class Act(str, enum.Enum):
    USED = "gelu"
class Scale(float, enum.Enum):
    BY = 2.0
class Shape(tuple, enum.Enum):
    OF = (1, 2)
class Options(enum.Flag):
    CHOSEN = 0
class Bits(enum.IntFlag):
    CHOSEN = 0
def run(x):
    y = x.sum(dim=Side.LEFT, keepdim=True) + x.cumsum(Side.LEFT)
    y = torch.relu(y) if Act.USED == "relu" else y.sin()
    y = y * 2 if Scale.BY > 2.5 else y
    y = y + len(Shape.OF)
    y = y + 1 if Options.CHOSEN else y
    return y * 3 if Bits.CHOSEN else y
def make():
    return run, [((x,), {})]
"""
for name, before, after in (
    ("a member that is an int", "LEFT = 0", "LEFT = 1"),
    ("a member that is a str", '"gelu"', '"relu"'),
    ("a member that is a float", "BY = 2.0", "BY = 3.0"),
    ("a member that is a tuple", "(1, 2)", "(1, 2, 3)"),
    ("a member that is a flag", "(enum.Flag):\n    CHOSEN = 0", "(enum.Flag):\n    CHOSEN = 4"),
    ("a member that is an int and a flag", "(enum.IntFlag):\n    CHOSEN = 0", "(enum.IntFlag):\n    CHOSEN = 4"),
):
    change(name, before, after, "", MEMBERS)

ABSENT = """
# here
def helper(x):
    try:
        return x * quick
    except NameError:
        return x * 7
def run(x):
    try:
        return helper(x) * fast_scale
    except NameError:
        return helper(x) + 1
def make():
    return run, [((x,), {})]
"""
for name, after in (("a name that was not there", "fast_scale = 2"), ("a helper's name that was not there", "quick = 3"),
                    ("a builtin that was not there", "import builtins\nbuiltins.fast_scale = 2")):  # fmt: skip
    change(name, "# here", after, "", ABSENT)
