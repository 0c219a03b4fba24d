"""Layers that are built alike are traced and rendered once: with the results of building each, where the key tells all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gen_support import build, check, laid_out, of_server
from test_gen_fusion import layer_norm

from inductor_gen.codegen.c import CRenderer
from inductor_gen.fuse.stages import fuse
from inductor_gen.kernel import build as kernel_build
from inductor_gen.kernel import ir
from inductor_gen.kernel.alike import Structures, literal
from inductor_gen.loops.graph import Node
from inductor_gen.pipeline import lower_graph, planned, size_hint
from inductor_gen.rewrite import table
from prims.ir import Mutation
from prims.options import Options
from prims.spec import expr as ex

aten = torch.ops.aten

X, W = torch.randn(6, 8), torch.randn(8, 8)
B, POSITIONS, SEED = torch.randn(8), torch.tensor([3, 1, 0, 2, 5, 4]), torch.tensor(7)
LAYERS = 5

Block = Callable[[Any, Any, int], Any]


def layers(block: Callable[..., Any]) -> Callable[..., Any]:
    """Layers of a block, behind each a product, so that no two share a kernel. A block takes what is before it, the
    rest of the inputs, and its number."""

    def fn(p: Any, x: Any, w: Any, *rest: Any) -> Any:
        for k in range(LAYERS):
            x = p.aten(aten.mm.default, block(p, x, *rest, k), w)
        return x

    return fn


def saved(block: Callable[..., Any]) -> Callable[..., Any]:
    """As a forward pass: all results of the blocks are results."""

    def fn(p: Any, x: Any, w: Any, *rest: Any) -> Any:
        kept = []
        for k in range(LAYERS):
            first, *more = block(p, x, *rest, k)
            x = p.aten(aten.mm.default, first, w)
            kept += more
        return (x, *kept)

    return fn


def gradients(p: Any, x: Any, b: Any, k: int) -> tuple[Any, ...]:
    """A norm's gradients, of its operand and of its weight, of which one is a result."""
    rows = lambda v: p.broadcast(p.div(v, 8.0), (6, 8), (0,))
    g = p.mul(x, p.broadcast(b, (6, 8), (1,)))
    dx = p.sub(g, p.mul(x, rows(p.sum(p.mul(g, x), (1,)))))
    return dx, p.sum(p.mul(g, x), (0,))


def attention(p: Any, x: Any, k: int) -> Any:
    heads = p.permute(p.reshape(x, (6, 2, 4)), (1, 0, 2))
    top = p.broadcast(p.amax(heads, (2,)), (2, 6, 4), (0, 1))
    e = p.exp(p.sub(heads, top))
    return p.reshape(p.permute(p.div(e, p.broadcast(p.sum(e, (2,)), (2, 6, 4), (0, 1))), (1, 0, 2)), (6, 8))


def rotated(p: Any, x: Any, k: int) -> Any:
    halves = p.slice(x, (0, 4), (6, 8), (1, 1)), p.slice(x, (0, 0), (6, 4), (1, 1))
    return p.add(x, p.concat((p.neg(halves[0]), halves[1]), 1))


def picked(p: Any, x: Any, positions: Any, k: int) -> Any:
    return p.add(p.index(x, (positions,), (0,)), 1.0)


def written(p: Any, x: Any, positions: Any, k: int) -> Any:
    return p.sin(p.index_put(p.exp(x), (positions,), (0,), p.neg(x), True))


def dropped(p: Any, x: Any, seed: Any, k: int) -> Any:
    u = p.random_uniform((6, 8), seed, 48 * k, torch.float32, torch.device("cpu"))
    return p.where(p.gt(u, 0.5), x, 0.0)


def norm(p: Any, x: Any, b: Any, k: int) -> Any:
    return p.add(layer_norm(p, x, b, b), x)


def literals(*values: Any) -> Block:
    return lambda p, x, k: p.sin(p.mul(x, values[k % len(values)]))


def by_turns(*blocks: Block) -> Block:
    return lambda p, *given: blocks[given[-1] % len(blocks)](p, *given)


def apart(p: Any, x: Any, k: int, way: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    a, b = p.sin(x), p.cos(x)
    return p.sub(*way(a, b))


def cut(start: int) -> Block:
    return lambda p, x, k: p.pad(p.sin(p.slice(x, (0, start), (6, start + 6), (1, 1))), 0.0, (0, 1), (0, 1))


def rounded(dtype: torch.dtype) -> Block:
    return lambda p, x, k: p.convert(p.mul(p.convert(p.sin(x), dtype), 2.0), torch.float32)


def turned(p: Any, x: Any, k: int) -> Any:
    """A block whose result is read transposed, and another's as it lies."""
    return p.permute(p.reshape(p.sin(x), (8, 6)), (1, 0))


#: name -> function, inputs, how it is built, and how many kernels are built of how many sources: what reads an input is
#: another one than what reads a product.
PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], dict[str, Any], tuple[int, int]]] = {
    "norms": (layers(norm), [X, W, B], {}, (2, 5)),
    "gradients": (saved(gradients), [X, W, B], {}, (3, 6)),
    "attention": (layers(attention), [X, W], {}, (2, 5)),
    "halves of rows": (layers(rotated), [X, W], {}, (2, 10)),
    "picked rows": (layers(picked), [X, W, POSITIONS], {}, (2, 5)),
    "written rows": (layers(written), [X, W, POSITIONS], {}, (0, 0)),
    "random numbers": (layers(dropped), [X, W, SEED], {}, (5, 5)),
    "symbolic sizes": (layers(lambda p, x, k: p.sin(p.add(x, 1.0))), [X, W], {"dynamic": {0: [0]}}, (2, 5)),
    "16 bits": (layers(norm), [X.bfloat16(), W.bfloat16(), B.bfloat16()], {}, (2, 5)),
    "64 bits": (layers(norm), [X.double(), W.double(), B.double()], {}, (2, 5)),
    "a literal differs": (layers(literals(2.0, 3.0)), [X, W], {}, (3, 5)),
    "signs of zero": (layers(lambda p, x, k: p.add(p.sin(x), (0.0, -0.0)[k % 2])), [X, W], {}, (3, 5)),
    "operands change places": (
        layers(by_turns(lambda p, x, k: apart(p, x, k, lambda a, b: (a, b)), lambda p, x, k: apart(p, x, k, lambda a, b: (b, a)))),
        [X, W], {}, (3, 5),
    ),
    "one buffer or two": (
        layers(by_turns(lambda p, x, y, k: p.sub(p.sin(x), y), lambda p, x, y, k: p.sub(p.sin(x), x))), [X, W, X + 1], {}, (3, 5),
    ),
    "places differ": (layers(by_turns(cut(0), cut(2))), [X, W], {}, (3, 5)),
    "types differ": (layers(by_turns(rounded(torch.bfloat16), rounded(torch.float16))), [X, W], {}, (3, 5)),
    "views differ": (layers(by_turns(attention, turned)), [X, W], {}, (0, 0)),
    "results differ": (
        saved(by_turns(gradients, lambda p, x, b, k: (p.mul(gradients(p, x, b, k)[0], 1.0),))), [X, W, B], {}, (0, 0),
    ),
}  # fmt: skip


def facts(env: Any, options: Options, **how: Any) -> tuple[Any, ...]:
    """All that is made of an envelope: kernels, with their bodies, sources, with what they are given, and bytes."""
    _, steps = planned(env, options, devices=of_server, **how)
    lowered = lower_graph(env, options, devices=of_server, **how)
    sources = [
        (s.name, s.text, s.comment, list(map(repr, s.buffers)), s.outputs, list(map(str, s.sizes)), s.ops, s.loops)
        for s in lowered.sources()
    ]
    moved = [[(one.read, one.written) for one in some] for some in lowered.traffic()]
    nodes = [[repr(v.node) + repr(v.number) for nest in s.nests for v in nest.body.vals] for s in steps if isinstance(s, ir.Kernel)]
    return ir.text(steps), nodes, sources, moved


class Each(Structures):
    """Every cluster is like none."""

    def of(self, cluster: Any, stored: Any) -> Any:
        return object(), super().of(cluster, stored)[1]


def count(monkeypatch: pytest.MonkeyPatch, kind: Any, name: str) -> list[int]:
    calls, old = [0], getattr(kind, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return old(*args, **kwargs)

    monkeypatch.setattr(kind, name, counted)
    return calls


@pytest.mark.parametrize("numerics", ("fast", "eager_exact"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_taken_over_is_what_would_be_built(name: str, numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, inputs, how, _ = PROGRAMS[name]
    env, options = build(fn, inputs, **how), Options(verify="every_pass", numerics=numerics)
    once = facts(env, options)
    monkeypatch.setattr(kernel_build, "Structures", Each)
    assert facts(env, options) == once


@pytest.mark.parametrize("name", [name for name, row in PROGRAMS.items() if row[3][1]])
def test_each_kind_is_built_and_rendered_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, inputs, how, (kinds, kernels) = PROGRAMS[name]
    env = build(fn, inputs, **how)
    traced, rendered = count(monkeypatch, kernel_build.Builder, "kernel"), count(monkeypatch, CRenderer, "render")
    lowered = lower_graph(env, Options(verify="off"), devices=of_server)
    launches = sum(hasattr(call, "launch") for call in lowered.calls)
    assert (traced[0], len(lowered.sources())) == (kinds, kernels)
    assert rendered[0] * launches == kinds * kernels


@pytest.mark.parametrize("name", ["norms", "gradients", "halves of rows", "a literal differs", "one buffer or two", "places differ"])
def test_values(name: str) -> None:
    fn, inputs, _, _ = PROGRAMS[name]
    check(fn, [t * 0.1 for t in inputs], tol=1e-5)


def test_inputs_that_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which memory may be written over is asked for each kernel: one of equal ones gives an input its new value."""
    fn = lambda p, x, y: (p.add(x, 1.0), p.add(y, 1.0), p.add(p.neg(x), 1.0))
    env = build(fn, [X, X + 1])
    env = env.replace(outputs=(env.outputs[0].__class__("mutation", env.outputs[0].spec), *env.outputs[1:]), mutations=(Mutation(0, 0),))
    options = Options(verify="every_pass")
    once = facts(env, options, in_place=True)
    monkeypatch.setattr(kernel_build, "Structures", Each)
    assert facts(env, options, in_place=True) == once


# ---- a key that leaves something out ---------------------------------------------------------------------------


class Formless(Structures):
    """Nodes but for one attribute."""

    left_out = ""

    def _form(self, node: Node, computed: bool) -> int:
        stand_in = SimpleNamespace(**{name: getattr(node, name) for name in Node.__slots__ if hasattr(node, name)})
        setattr(stand_in, self.left_out, None)
        key = tuple(
            literal(getattr(stand_in, name), {x: k for k, x in enumerate(node.ins)}) if name in ("args", "kwargs")
            else getattr(stand_in, name) for name in ("kind", "shape", "dtype", "op", "args")[: 5 if computed else 3]
        )  # fmt: skip
        return self._numbers.setdefault(key, len(self._numbers))


class Unwired(Structures):
    def of(self, cluster: Any, stored: Any) -> Any:
        nodes = super().of(cluster, stored)[1]
        inside = [(cluster.operands[n], n in stored) for n in cluster.nodes]
        return (*inside, *(self._form(n, n in cluster.homes or n.kind == "view") for n in nodes)), nodes


class Anywhere(Structures):
    def __init__(self, prepared: Any, fusion: Any, layouts: Any) -> None:
        super().__init__(prepared, fusion, {})


class Unstored(Anywhere):  # what has a layout is stored
    def of(self, cluster: Any, stored: Any) -> Any:
        return super().of(cluster, ())


def without(attribute: str) -> type[Structures]:
    return type(f"Without{attribute}", (Formless,), {"left_out": attribute})


def laid_out_by_turns(p: Any, x: Any, w: Any) -> Any:
    """Equal computations, the results of which have other strides (see ``strides``)."""
    return p.sin(x), p.sin(p.aten(aten.mm.default, x, w)), p.sin(p.aten(aten.mm.default, p.neg(x), w))


DAMAGED: dict[str, tuple[type[Structures], Any]] = {
    "an argument": (without("args"), PROGRAMS["a literal differs"]),
    "where a slice begins": (without("args"), PROGRAMS["places differ"]),
    "an operator": (without("op"), (layers(by_turns(lambda p, x, k: p.sin(x), lambda p, x, k: p.cos(x))), [X, W], {})),
    "a type": (without("dtype"), (lambda p, x, i: (p.sum(x, (1,)), p.sum(i, (1,))), [X, X.long()], {})),
    "what is taken": (Unwired, PROGRAMS["operands change places"]),
    "which buffer is which": (Unwired, (layers(by_turns(
        lambda p, x, y, k: p.sub(p.mul(x, y), x), lambda p, x, y, k: p.sub(p.mul(x, y), y))), [X, W, X + 1], {})),
    "what is stored": (Unstored, (saved(by_turns(
        lambda p, x, k: (p.cos(p.sin(x)), p.sin(x)), lambda p, x, k: (p.cos(p.sin(x)),))), [X, W], {})),
    "a layout": (Anywhere, (laid_out_by_turns, [X, W], {"strides": [None, (1, 6), (8, 1)]})),
}  # fmt: skip


@pytest.mark.parametrize("fact", DAMAGED)
def test_a_key_without_a_fact_is_found_out(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged, (fn, inputs, how, *_) = DAMAGED[fact]
    env, options = build(fn, inputs, **how), Options(verify="off")
    whole = facts(env, options)
    monkeypatch.setattr(kernel_build, "Structures", damaged)
    try:
        assert facts(env, options) != whole
    except (KeyError, ValueError, IndexError):
        pass  # or nothing can be made of it


def test_where_and_how_nodes_are_computed_is_part_of_a_key() -> None:
    prepared = laid_out(build(layers(norm), [X, W, B]))
    fusion = fuse(prepared.graph, size_hint(build(layers(norm), [X, W, B])), of_server, prepared.kept())
    builder = kernel_build.Builder(prepared, fusion, lambda e: 8, False)
    cluster = next(c for c in fusion.in_line() if c.inner)
    stored, v = builder.stored[cluster.id], cluster.inner[0]
    key = lambda c: builder.structures.of(c, stored)[0]
    split, outer = cluster.copy(), cluster.copy()
    assert fusion.split(split, v, ex.const(2))
    outer.inner = ()
    keys = {key(cluster), key(cluster.copy()), key(split), key(outer)}
    fusion.inlined.update(n for n in cluster.nodes if n not in stored)
    assert len(keys | {key(cluster)}) == 4
    late = cluster.nodes[0]
    late.late = "again"
    builder.structures._forms.clear()
    assert key(cluster) not in keys


def test_equal_numbers_that_are_not_the_same() -> None:
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", 1j, torch.float32, torch.float64, (1,), [1], (1.0,)]
    assert len({literal(v, {}) for v in values}) == len(values)
    assert literal(float("nan"), {}) == literal(float("nan"), {})


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_match_their_operators_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row says that it may match is all that it matches."""
    fn, inputs, how, _ = PROGRAMS[name]
    env, options = build(fn, inputs, **how), Options(verify="every_pass")
    told = facts(env, options)
    rows = tuple(table.Row(r.name, r.match, r.apply, r.numerics, r.required) for r in table.ROWS)
    monkeypatch.setattr(table.rewrite, "__defaults__", (rows,))
    assert facts(env, options) == told
