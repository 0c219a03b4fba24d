"""Programs that a second process finds in the store: each gives a callable and the calls to make."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import inspect
import io
import math
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import compile_api

CASES: dict[str, Any] = {}
SCALE = 2.5
TABLE = {"low": 0.5, "high": 2.0}
SIZES = [1, 2, 3]


def case(make: Any) -> Any:
    CASES[make.__name__] = make
    return make


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scaled(x: torch.Tensor, by: float = 1.5, *, shift: float = 0.25) -> torch.Tensor:
    return x * by + shift


@case
def a_function() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.relu(scaled(x).sin()).sum(-1)

    return run, [((rows(3, 4),), {})]


@case
def prints() -> Any:
    def run(x: torch.Tensor, k: int) -> torch.Tensor:
        print("step", k, sep=" ")
        print("told", file=sys.stderr)
        return x.sin() * k

    return run, [((rows(3), 2), {}), ((rows(3, seed=1), 2), {})]


@case
def keywords_and_defaults() -> Any:
    def run(x: torch.Tensor, k: int = 3, *, bias: Any = None, **more: Any) -> torch.Tensor:
        y = x + k if bias is None else x + bias
        return y * more.get("by", 2)

    return run, [((rows(3),), {}), ((rows(3),), {"bias": rows(3, seed=1)}), ((rows(3),), {"by": 5})]


class Block(nn.Module):
    limit = 6.0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.register_buffer("offset", torch.full((width,), 0.5))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for linear in self.linears:
            x = F.relu6(linear(x)).clamp(max=self.limit)
        return self.norm(x) + self.offset


def block() -> Block:
    torch.manual_seed(0)
    return Block(4)


@case
def a_module_with_parameters_and_buffers() -> Any:
    return block().eval(), [((rows(3, 4),), {})] * 2


@case
def a_module_in_training() -> Any:
    return block(), [((rows(3, 4),), {})] * 3


@case
def a_module_of_torch() -> Any:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GELU(), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(18, 3))
    return layers, [((rows(2, 1, 5, 5),), {})]


@case
def an_encoder_of_torch() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [((rows(2, 3, 8),), {})]


class Scaler:
    def __init__(self, by: float) -> None:
        self.by = by

    @property
    def twice(self) -> float:
        return 2 * self.by

    @staticmethod
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply(x)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self.shifted(x) * self.twice * len(self.named())


class Halver(Scaler):
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return super().apply(x) / 2


@case
def a_method() -> Any:
    return Scaler(3.0).apply, [((rows(3),), {})]


@case
def a_callable_object() -> Any:
    return Halver(3.0), [((rows(3),), {})]


@case
def a_closure() -> Any:
    factor, weight = 1.25, rows(4, seed=2)

    def run(x: torch.Tensor) -> torch.Tensor:
        return x * factor + weight

    return run, [((rows(4),), {})]


@case
def global_names() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        for name, value in TABLE.items():
            x = x * value + len(name)
        return x * SCALE + sum(SIZES)

    return run, [((rows(3),), {})]


@case
def a_graph_break() -> Any:
    def run(x: torch.Tensor, k: int = 2) -> torch.Tensor:
        y = x.sin() * k
        compile_api.graph_break()
        z = y.cos() + k
        compile_api.graph_break()
        return z * y

    return run, [((rows(3),), {}), ((rows(3, seed=1),), {})]


@case
def a_branch_on_data() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    return run, [((rows(3).abs(),), {}), ((-rows(3).abs(),), {})]


@case
def a_loop_with_a_break() -> Any:
    def run(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x * 1.5 + i
            compile_api.graph_break()
            x = x.sin()
        return x.sum()

    return run, [((rows(3), 4), {})]


@case
def a_break_in_a_method() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.block(x)
            compile_api.graph_break()
            return self.block(y) + x

    return Model().eval(), [((rows(3, 4),), {})]


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0
    tags: list[str] = dataclasses.field(default_factory=list)


@case
def a_dataclass() -> Any:
    def run(batch: Batch) -> Any:
        return {"y": batch.x * batch.scale + len(batch.tags), "again": Batch(batch.x + 1, 3.0)}

    return run, [((Batch(rows(3), tags=["a", "b"]),), {})]


Pair = collections.namedtuple("Pair", "first second")


@case
def containers() -> Any:
    def run(xs: list[Any], named: dict[str, Any], pair: Pair) -> Any:
        total = sum(xs[1:], xs[0])
        for name in sorted(named):
            total = total + named[name]
        return Pair(total, pair.first * pair.second), [total, (total, 1)], {"a": total}

    xs = [rows(3, seed=i) for i in range(3)]
    return run, [((xs, {"b": rows(3), "a": rows(3, seed=9)}, Pair(rows(3), 2)), {})]


@case
def sizes_that_change() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.reshape(-1, x.shape[1] // 2) * x.shape[0]).softmax(-1)

    return run, [((rows(n, 6),), {}) for n in (3, 4, 7)]


@case
def ints_and_floats_that_change() -> Any:
    def run(x: torch.Tensor, n: int, by: float) -> torch.Tensor:
        return x * by + n

    return run, [((rows(3), n, by), {}) for n, by in ((3, 0.5), (4, 0.75), (9, 0.1))]


@case
def training_under_autocast() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return F.mse_loss(out.float(), torch.zeros(3, 2))

    return run, [((rows(3, 4).requires_grad_(),), {})]


@case
def without_gradients() -> Any:
    def run(x: torch.Tensor) -> Any:
        y = x * 2
        with torch.no_grad():
            z = y.exp()
        return y + z, z.requires_grad

    return run, [((rows(3).requires_grad_(),), {})]


@case
def in_inference_mode() -> Any:
    @torch.inference_mode()
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    return run, [((rows(3),), {})]


@case
def under_no_grad() -> Any:
    model = block().eval()

    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    return torch.no_grad()(run), [((rows(3, 4),), {})]


@case
def effects() -> Any:
    seen: list[Any] = []
    counts = {"calls": 0}

    def run(x: torch.Tensor) -> Any:
        seen.append(x.shape[0])
        counts["calls"] += 1
        y = x.clone()
        y[0] = 5.0
        return y, len(seen)

    return run, [((rows(3),), {})]


@case
def an_input_written() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[1:] *= 2
        return x.sum()

    return run, [((rows(3),), {})]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@case
def enumerations() -> Any:
    def run(x: torch.Tensor, color: Color) -> torch.Tensor:
        return x + color.value if color is Color.RED else x - 1

    return run, [((rows(3), Color.RED), {}), ((rows(3), Color.BLUE), {})]


@case
def a_handler() -> Any:
    def run(x: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        try:
            k = names["absent"]
        except KeyError:
            k = 7
        finally:
            x = x + 1
        return x * k

    return run, [((rows(3), {}), {})]


@contextlib.contextmanager
def quietly() -> Any:
    yield 3


@case
def language() -> Any:
    def run(x: torch.Tensor) -> Any:
        with quietly() as three:
            parts = [x * i for i in range(three)]
        text = f"{len(parts)} parts"
        inner = lambda y: y + len(text)  # noqa: E731
        chosen = functools.reduce(torch.add, (inner(part) for part in parts))
        return chosen, text, isinstance(x, torch.Tensor), max(len(parts), 2)

    return run, [((rows(3),), {})]


@case
def partials() -> Any:
    return functools.partial(scaled, by=3.0), [((rows(3),), {})]


@functools.lru_cache
def cached(n: int) -> float:
    return n / 3


@case
def a_function_with_a_cache() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x * cached(5)

    return run, [((rows(3),), {})]


@case
def a_function_that_is_returned() -> Any:
    def run(x: torch.Tensor) -> Any:
        y = x + 1

        def later(z: torch.Tensor) -> torch.Tensor:
            return z * y

        return later

    return lambda x: run(x)(x), [((rows(3),), {})]


@case
def dropout() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5, training=False) + torch.nn.functional.layer_norm(x, (4,))

    return run, [((rows(3, 4),), {})]


@case
def settings() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        scale = 2 if torch.is_grad_enabled() else 3
        if torch.backends.cudnn.deterministic or torch.get_default_dtype() is torch.float64:
            scale += 1
        return x * scale + torch.finfo(x.dtype).eps

    return run, [((rows(3),), {})]


@case
def a_signature() -> Any:
    def given(fn: Any, first: int | None = 1, *, last: list[int] | None = None) -> Any:
        return fn

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            accepted = [name for name in inspect.signature(self.forward).parameters if name != "x"]
            known = inspect.signature(given).parameters["first"].default
            return x * len(accepted) + known

    return Model(), [((rows(3),), {})]


@case
def an_ordered_dict() -> Any:
    def run(x: torch.Tensor) -> Any:
        out = collections.OrderedDict(a=x + 1)
        out["b"] = x * 2
        return out

    return run, [((rows(3),), {})]


@case
def random_numbers() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return F.dropout(x, 0.5) + torch.rand(3)

    return run, [((rows(3),), {})]


@case
def a_masked_attention() -> Any:
    def run(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x @ x.transpose(-1, -2) / math.sqrt(x.size(-1))
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return F.scaled_dot_product_attention(x[None], x[None], x[None])[0] + scores.softmax(-1) @ x

    return run, [((rows(3, 4), torch.ones(3, 3).tril().bool()), {})]


class Slotted:
    __slots__ = ("by", "unset")

    def __init__(self, by: float) -> None:
        self.by = by

    def __repr__(self) -> str:
        return f"Slotted({self.by})"

    def __getattr__(self, name: str) -> float:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0.5


@case
def slots_and_getattr() -> Any:
    def run(x: torch.Tensor, holder: Slotted) -> torch.Tensor:
        return x * holder.by + holder.missing

    return run, [((rows(3), Slotted(2.0)), {})]


def not_a_graph(n: int) -> int:
    return n + 1


@case
def a_call_that_breaks() -> Any:
    hidden = compile_api.disable(lambda x: x + not_a_graph(3))

    def run(x: torch.Tensor) -> torch.Tensor:
        return hidden(x * 2) * 3

    return run, [((rows(3),), {})]


@case
def gradients_inside() -> Any:
    def run(x: torch.Tensor) -> Any:
        y = (x * x).sum()
        (grad,) = torch.autograd.grad(y, x)
        return grad * 2

    return run, [((rows(3).requires_grad_(),), {})]


@case
def an_optimizer() -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run, [((rows(3, 4),), {})] * 2


class Rows(torch.Tensor):
    """A weight in int8 with a scale per row."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.numbers, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return cls(*(func(part) for part in (args[0].numbers, args[0].scale)))
        return func(*(arg.numbers * arg.scale if isinstance(arg, cls) else arg for arg in args), **(kwargs or {}))


@case
def a_wrapper_with_a_dispatch() -> Any:
    weight = nn.Parameter(Rows(rows(3, 4).mul(9).to(torch.int8), rows(3, 1, seed=1)), requires_grad=False)

    def run(x: torch.Tensor) -> Any:
        return F.linear(x, weight).relu(), Rows(x, x[:, :1]).detach().numbers

    return run, [((rows(3, 4),), {}), ((rows(3, 4, seed=2),), {})]


# --- what is not stored, or looked at again -------------------------------------------------------------------------

UNSTORED: dict[str, str] = {
    "an_autograd_function": "attach_Double cannot be named",
    "a_frame_left_to_eager": "",
    "an_object_told_by_identity": "has no name",
    "slots_and_getattr": "has no name",
}


@case
def a_frame_left_to_eager() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("seen", end="", file=io.StringIO())
        return y + 1

    return run, [((rows(3),), {})]


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3


@case
def an_autograd_function() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return Double.apply(x)

    return run, [((rows(3).requires_grad_(),), {})]


@case
def an_object_told_by_identity() -> Any:
    key = object()
    table = {key: 2.0}

    def run(x: torch.Tensor) -> torch.Tensor:
        return x * table[key]

    return run, [((rows(3),), {})]
