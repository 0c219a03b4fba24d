"""What is done once for equal calls (metadata, decompositions, checks) changes no graph.

Every program is compiled twice, with the memos and without, and the ATen and primitive graphs are compared: text, names,
metadata of nodes and guards on sizes. Keys that miss a fact are planted, and the same comparison finds each of them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db

import aot_autograd
import dynamo_capture
import inductor_gen
from aot_autograd.entry import partition_joint
from aot_autograd.partition.mincut import min_cut_partition
from prims.ir import verifier
from prims.lower import lower
from prims.lower.once import Once
from prims.options import Options
from prims.spec import infer
from prims.spec.alike import _LOOKING_ROUND, Alike, Inferred
from prims.spec.infer import RULES

OPTIONS = Options()
CLAIMS = inductor_gen.claims("cpu", OPTIONS)


def block(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    h = x.pow(2).mean(-1, keepdim=True)
    y = F.gelu(F.linear(x * torch.rsqrt(h + 1e-5) * g, w)) / scale
    q = y.view(*y.shape[:-1], 2, -1).transpose(-2, -3)
    return x + (q.softmax(-1) * scale).transpose(-2, -3).reshape(x.shape)


def blocks(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = block(x, w, g)
    return x


def other_scalars(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    for scale in (2.0, 3.0, 2, True, -0.0, 2.0):
        x = block(x, w, g, scale)
        x = x.clamp(-scale, 4).add(x, alpha=1 if scale is True else scale) * scale
        x = x + (g.to(torch.int64) * scale).sum() + ((g > 0) * scale).sum()
    return x


def other_dtypes(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    total = x.sum(0, dtype=torch.float64).sum() + x.sum(0, dtype=torch.float32).sum() + x.cumsum(0, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.float32, torch.bfloat16):
        y = block(x.to(dtype), w.to(dtype), g.to(dtype))
        total = total + y.float().sum() + (y > 0).sum() + y.to(torch.int32).float().mean()
    return total


def other_strides(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(())
    for y in (x, x.transpose(0, 1), x, x[::2], x.expand(3, *x.shape), x[..., ::2], x.transpose(0, 1)):
        z = torch.zeros_like(y) + y.clone().cumsum(0) * 2 + y.contiguous()
        total = total + z.mT.flatten().sum() + F.pad(y, (1, 1)).amax()
    return total


def equal_operands(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x.sin(), x.cos()
    first = F.scaled_dot_product_attention(y, z, z), y * y, y * z, torch.cat([y, y]), torch.cat([y, z])
    second = F.scaled_dot_product_attention(z, z, z), z * z, z * y, torch.cat([z, z]), torch.cat([z, y])
    third = torch.addcmul(y, z, z), torch.addcmul(y, y, z), torch.addcmul(y, z, y)
    return *first, *second, *third, torch.where(y > 0, y, y), torch.where(z > 0, z, y), torch.where(y > 0, z, z)


def producers(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """Equal calls on values that rewrites look behind: negations, reshapes, constants, conversions."""
    made = [x, -x, x.neg().neg(), torch.zeros_like(x), torch.ones_like(x), x.half().float(), x.view(-1).view(x.shape)]
    made += [x.mT.contiguous().mT, x.flip(0), x[:1].expand(x.shape), x.bool().float()]
    return [v for y in made for v in (-y, y * 2, y + 1, y.reshape(-1), y.mT, y.flip(0), y.half().float(), y != 0, y.sum(-1))]


def in_place(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(3):
        y.mul_(2).add_(w[0, 0])
        y[1:].copy_(y[:-1].clone())
        y = y.sin_() * 1
        y.view(-1)[3:5].zero_()
    return y


def random(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    for p in (0.5, 0.5, 0.25):
        x = F.dropout(x, p) + torch.rand_like(x) * torch.randn(x.shape)
    return x


def complexes(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        c = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        x = torch.view_as_real(c * torch.polar(c.real, c.imag)).reshape(x.shape) + (c * c.conj()).real.sum()
    return x


def indices(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    at = torch.arange(2)
    for _ in range(3):
        x = x.index_add(0, at, x[at] * 2) + x[:, at].sum() + F.one_hot(at, 5).sum() + F.layer_norm(x, x.shape[-1:])
        x = torch.where(x > 0, x, F.embedding(at, w).sum()).tril() + x.gather(0, x.argsort(0)) + x.var(-1, keepdim=True)
    return x


PROGRAMS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn
    for fn in (blocks, other_scalars, other_dtypes, other_strides, equal_operands, producers, in_place, random,
               complexes, indices)
}  # fmt: skip


def operands(train: bool) -> tuple[torch.Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*s, generator=made).requires_grad_(train) for s in ((4, 6, 8), (8, 8), (8,)))


def regions(fn: Callable[..., Any], inputs: tuple[Any, ...], train: bool, dynamic: bool | None = None) -> list[Any]:
    """The graphs that capture makes of a call, each with its example inputs."""
    found: list[Any] = []

    def backend(gm: Any, example_inputs: Any) -> Any:
        found.append((gm, example_inputs))
        return gm.forward

    backend.supports_dynamic_shapes = True  # type: ignore[attr-defined]
    with torch.set_grad_enabled(train):
        dynamo_capture.optimize(fn, backend, options=OPTIONS.replace(dynamic=dynamic))(*inputs)
    return found


def described(env: Any) -> str:
    """An envelope, with all that its text leaves out."""
    lines = [str(env)]
    for node in env.graph.nodes:
        lines.append(f"{node.name} {[(k, repr(v)) for k, v in sorted(node.meta.items()) if k != 'called_by']}")
    context = env.symbols.context
    return "\n".join(lines + ([] if context is None else [str(guard.expr) for guard in context.guards]))


def graphs(region: Any, train: bool, numerics: str = "fast") -> list[str]:
    """The descriptions of the ATen graphs of a region and of what they are lowered to."""
    options = OPTIONS.replace(numerics=numerics)
    with torch.set_grad_enabled(train):
        if train:
            split = partition_joint(aot_autograd.joint_graph(*region, options), min_cut_partition, options)
            envs = [split.forward, split.backward]
        else:
            envs = [aot_autograd.inference_graph(*region, options)]
    return [described(env) for aten in envs for env in (aten, lower(aten, claims=CLAIMS, options=options))]


def without(patch: pytest.MonkeyPatch) -> None:
    """Do everything for each call."""
    patch.setattr(Once, "call", lambda self, node, args, kwargs: None)
    patch.setattr(Inferred, "__call__", lambda self, func, args, kwargs=None: infer(func, args, kwargs))
    patch.setattr(verifier._Verifier, "is_accepted", lambda self, node: False)


def both(fn: Callable[..., Any], train: bool, dynamic: bool | None, numerics: str = "fast") -> tuple[Any, Any]:
    """The graphs of a program with and without the memos, from captures of their own."""
    mine = [graphs(region, train, numerics) for region in regions(fn, operands(train), train, dynamic)]
    with pytest.MonkeyPatch.context() as patch:
        without(patch)
        plain = [graphs(region, train, numerics) for region in regions(fn, operands(train), train, dynamic)]
    assert plain
    return mine, plain


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_are_those_of_calls_made_one_by_one(name, train, dynamic):
    mine, plain = both(PROGRAMS[name], train, dynamic)
    assert mine == plain


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
@pytest.mark.parametrize("name", ["blocks", "other_dtypes", "indices"])
def test_other_numerics(name, numerics):
    mine, plain = both(PROGRAMS[name], False, None, numerics)
    assert mine == plain


def counted(patch: pytest.MonkeyPatch) -> list[Any]:
    """The memos that are made from now on."""
    made: list[Any] = []
    for kind in (Once, Inferred):
        begin = kind.__init__

        def begun(self, *args, begin=begin):
            begin(self, *args)
            made.append(self)

        patch.setattr(kind, "__init__", begun)
    return made


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_equal_blocks_are_hits(train, monkeypatch):
    made = counted(monkeypatch)
    (region,) = regions(blocks, operands(train), train)
    texts = graphs(region, train)
    once = [memo for memo in made if type(memo) is Once]
    inferred = [memo for memo in made if type(memo) is Inferred and memo.hits]
    calls = texts[0].count(" = aten.")
    assert len(once) == (2 if train else 1) and len(inferred) == 1
    # Three of four blocks, but for what is claimed, and for the ends.
    assert once[0].hits >= calls / 2 > once[0].kept > 5
    assert inferred[0].hits > calls / 2


def test_symbols_are_in_no_key(monkeypatch):
    made = counted(monkeypatch)
    (region,) = regions(blocks, operands(False), False, True)
    graphs(region, False)
    (once,) = (memo for memo in made if type(memo) is Once)
    for template in once._templates.values():
        for step in template.steps:
            sizes = [n for spec in (step.given, step.derived) for n in (*spec.shape, *spec.strides)]
            assert all(type(n) is int for n in sizes)


def test_a_decomposition_that_looks_at_the_graph_is_not_kept(monkeypatch):
    from prims.decomp import registry

    def looking(p: Any, self: Any) -> Any:
        return p.neg(self) if self.op is None else p.abs(self)

    monkeypatch.setitem(registry._BY_OVERLOAD, torch.ops.aten.sin.default, looking)
    made = counted(monkeypatch)
    (region,) = regions(lambda x: (x.sin(), x.exp().sin(), x.sin().sin(), x.cos() + 1, x.tan().cos() + 1),
                        (torch.randn(3),), False)  # fmt: skip
    text = graphs(region, False)[1]
    assert text.count(" = prim.neg(") == 1 and text.count(" = prim.abs(") == 2
    (once,) = (memo for memo in made if type(memo) is Once)
    assert once.hits == 2  # of the cosine and of the sum


#: What a rule or a decomposition could look at besides its arguments. The default dtype is in the keys of metadata, and
#: does not change while a graph is lowered.
LOOKING_ROUND = re.compile(
    r"torch\.(backends|cuda|is_\w+_enabled|is_inference\w*|are_\w+|get_default_device|_C\._get)|\benviron\b|rules\.attention import"
)


def test_what_is_done_once_looks_at_nothing_else():
    modules = {RULES[name].__module__ for name in RULES if name.startswith("aten.")} - _LOOKING_ROUND
    modules |= {"prims.spec.promote", "prims.spec.layout", "prims.spec.iterator", "prims.spec.numbers"}
    assert len(modules) > 10
    places = [Path(importlib.import_module(name).__file__) for name in modules]
    places += Path(importlib.import_module("prims.decomp").__file__).parent.glob("*.py")
    assert [(path.name, found) for path in places if (found := LOOKING_ROUND.findall(path.read_text()))] == []


# ---- keys that miss a fact --------------------------------------------------------------------------------------

true_argument, true_spec, true_metadata, true_other = Alike.argument, Alike.spec, Once._metadata, Once.other


def no_numbers(self: Any, arg: Any) -> Any:
    return "number" if type(arg) in (int, float) else true_argument(self, arg)


def no_types(self: Any, arg: Any) -> Any:
    return arg if type(arg) in (int, float, bool) else true_argument(self, arg)


def no_dtypes(self: Any, arg: Any) -> Any:
    return "dtype" if type(arg) is torch.dtype else true_argument(self, arg)


def no_metadata(self: Any, spec: Any) -> int:
    true_spec(self, spec)
    return 0


def only(*fields: str) -> Callable[..., Any]:
    def of_spec(self: Any, spec: Any) -> Any:
        true_spec(self, spec)
        return tuple(getattr(spec, field) for field in fields)

    return of_spec


def no_identity(self: Any, arg: Any) -> Any:
    found = true_other(self, arg)
    return found[1:] if type(self) is Once else found


DAMAGES = {
    "numbers": (Alike, "argument", no_numbers),
    "types of numbers": (Alike, "argument", no_types),
    "dtypes asked for": (Alike, "argument", no_dtypes),
    "metadata": (Alike, "spec", no_metadata),
    "dtypes": (Alike, "spec", only("shape", "strides", "storage_offset")),
    "shapes": (Alike, "spec", only("dtype", "strides", "storage_offset")),
    "strides": (Alike, "spec", only("dtype", "shape", "storage_offset")),
    "which operands are one": (Once, "other", no_identity),
}


@pytest.mark.parametrize("missing", DAMAGES)
def test_a_key_that_misses_a_fact_is_found(missing, monkeypatch):
    owner, name, damaged = DAMAGES[missing]

    def outcome(fn: Callable[..., Any], train: bool) -> Any:
        try:
            return [graphs(region, train) for region in regions(fn, operands(train), train)]
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def differs(fn: Callable[..., Any], train: bool) -> bool:
        plain = outcome(fn, train)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, damaged)
            return bool(outcome(fn, train) != plain)

    assert any(differs(fn, train) for fn in PROGRAMS.values() for train in (False, True))


# ---- every operator, twice in one graph -------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_every_operator_twice(part):
    """A sample of each of PyTorch's table of operators, called on two inputs in one graph."""
    compared, differing = 0, []
    for op in op_db[part::4]:
        dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(sorted(op.dtypes, key=str)), None)
        if dtype is None:
            continue
        for sample in list(op.sample_inputs("cpu", dtype))[:1]:
            try:
                mine, plain = _twice(op, sample)
            except Exception:  # neither capture nor tracing takes every operator, with or without memos
                continue
            compared += 1
            if mine != plain:
                differing.append(op.full_name)
    assert differing == []
    assert compared > 100, compared


def _twice(op: Any, sample: Any) -> tuple[Any, Any]:
    def program(a: Any, b: Any) -> Any:
        first = op.op(a, *sample.args, **sample.kwargs)
        return first, op.op(b, *sample.args, **sample.kwargs)

    if not isinstance(sample.input, torch.Tensor):
        raise TypeError(f"{op.full_name} takes no tensor first")
    inputs = sample.input.detach(), sample.input.detach().clone()
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    made = graph.call_function(program, (a, b))
    graph.output(made)
    region = torch.fx.GraphModule({}, graph), list(inputs)

    def outcome() -> Any:
        torch.manual_seed(0)
        return graphs(region, False)

    mine = outcome()
    with pytest.MonkeyPatch.context() as patch:
        without(patch)
        return mine, outcome()
