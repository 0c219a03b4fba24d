"""The order of clusters: no cycle is ever made, no legal merge is refused within the budget, and the cost is linear."""

from __future__ import annotations

import ast
import pathlib
import random
from typing import Any

import pytest
import torch
from gen_support import build, laid_out, of_server
from test_gen_fusion import gelu, layer_norm

import inductor_gen.fuse
from inductor_gen.fuse import order as orders
from inductor_gen.fuse.order import Order
from inductor_gen.fuse.stages import fuse
from inductor_gen.pipeline import size_hint

MAY_IMPORT = ("inductor_gen.fuse", "inductor_gen.loops", "inductor_gen.device", "prims")


def test_fusion_imports_only_what_comes_before_it() -> None:
    for path in pathlib.Path(inductor_gen.fuse.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            ours = [n for n in names if n.split(".")[0] in ("inductor_gen", "prims")]
            assert all(n.startswith(MAY_IMPORT) and n != "inductor_gen.kernel.body" for n in ours), (path.name, ours)
            assert not isinstance(node, ast.ImportFrom) or node.level == 0


class Model:
    """The clusters as plain sets of edges, every question answered by looking at all paths."""

    def __init__(self) -> None:
        self.sources: dict[int, set[int]] = {}

    def path(self, a: int, b: int) -> bool:
        seen, todo = set(), [b]
        while todo:
            x = todo.pop()
            if x not in seen:
                seen.add(x)
                todo += self.sources[x]
        return a in seen and a != b

    def through_a_third(self, a: int, b: int) -> bool:
        return any(c not in (a, b) and self.path(a, c) and self.path(c, b) for c in self.sources)

    def merge(self, kept: int, gone: int) -> None:
        self.sources[kept] = (self.sources[kept] | self.sources.pop(gone)) - {kept, gone}
        for s in self.sources.values():
            if gone in s:
                s.remove(gone)
                s.add(kept)
        self.sources[kept].discard(kept)

    def drop(self, c: int) -> None:
        mine = self.sources.pop(c)
        for s in self.sources.values():
            if c in s:
                s.remove(c)
                s |= mine


def agree(order: Order, model: Model) -> None:
    for c, sources in model.sources.items():
        assert set(order.sources(c)) == sources
        assert all(order.label(s) < order.label(c) for s in sources)


@pytest.mark.parametrize("seed", range(60))
def test_random_changes_keep_the_order_and_refuse_just_what_makes_a_cycle(seed: int) -> None:
    rng = random.Random(seed)
    order, model = Order(), Model()
    for k in range(40):
        live = list(model.sources)
        some = set(rng.sample(live, min(len(live), rng.choice((0, 1, 1, 2, 3)))))
        choice = rng.random()
        if not live or choice < 0.5:
            order.append(k, some)
            model.sources[k] = some
        elif choice < 0.7:
            c = rng.choice(live)
            some.discard(c)
            move = order.admit(c, some)
            assert (move is None) == any(model.path(c, s) for s in some)
            if move is not None:
                order.extend(c, some, move)
                model.sources[c] |= some
        elif choice < 0.95 and len(live) > 1:
            kept, gone = rng.sample(live, 2)
            first, last = (kept, gone) if not model.path(gone, kept) else (gone, kept)
            move = order.together(kept, gone)
            assert (move is None) == model.through_a_third(first, last)
            if move is not None:
                order.merge(kept, gone, move)
                model.merge(kept, gone)
                assert order.find(gone) == kept
        else:
            c = rng.choice(live)
            order.drop(c)
            model.drop(c)
        agree(order, model)


def test_labels_last_when_all_go_to_one_place() -> None:
    order = Order()
    order.append(0, ())
    order.append(1, ())
    for k in range(2, 300):  # each stands right before cluster 1, which must come to read it
        order.append(k, [0])
        move = order.admit(1, [k])
        assert move is not None
        order.extend(1, [k], move)
        assert order.label(0) < order.label(k) < order.label(1)


def test_a_question_costs_at_most_the_budget(monkeypatch: Any) -> None:
    monkeypatch.setattr(orders, "BUDGET", 64)
    order = Order()
    for k in range(1000):
        order.append(k, [k - 1] if k else ())
    before = order.steps
    assert order.together(0, 999) is None
    assert order.admit(0, [999]) is None
    assert order.steps - before <= 2 * 64


def blocks(count: int) -> Any:
    def fn(p: Any, x: Any, w: Any, b: Any, m: Any) -> Any:
        for _ in range(count):
            x = p.add(x, gelu(p, p.aten(torch.ops.aten.mm.default, layer_norm(p, x, w, b), m)))
        return x

    return fn


def chain(count: int) -> Any:
    """Every layer reads a value that is made first, and one that all the graph lies between."""

    def fn(p: Any, x: Any, w: Any, b: Any, m: Any) -> Any:
        first = p.exp(x)
        bias = p.aten(torch.ops.aten.mm.default, first, m)
        for _ in range(count):
            x = p.tanh(p.add(p.aten(torch.ops.aten.mm.default, x, m), bias))
        return p.add(x, first)

    return fn


def skips(count: int) -> Any:
    def fn(p: Any, x: Any, w: Any, b: Any, m: Any) -> Any:
        made = []
        for _ in range(count):
            x = p.tanh(p.aten(torch.ops.aten.mm.default, x, m))
            made.append(x)
        for y in reversed(made):
            x = p.add(y, p.aten(torch.ops.aten.mm.default, p.sin(x), m))
        return x

    return fn


def branches(count: int) -> Any:
    """Towers side by side that read one value, and what reads them all."""

    def fn(p: Any, x: Any, w: Any, b: Any, m: Any) -> Any:
        total = None
        for k in range(count):
            y = p.mul(p.aten(torch.ops.aten.mm.default, p.mul(x, float(k + 1)), m), x)
            total = y if total is None else p.add(total, y)
        return total, p.sum(total, (1,))

    return fn


@pytest.mark.parametrize("program", [blocks, chain, skips, branches])
def test_the_cost_of_fusion_is_linear(program: Any) -> None:
    steps, nodes = [], []
    for count in (50, 100, 200):
        env = build(program(count), [torch.randn(4, 8), torch.randn(8), torch.randn(8), torch.randn(8, 8)])
        prepared = laid_out(env)
        fusion = fuse(prepared.graph, size_hint(env), of_server, prepared.kept())
        steps.append(fusion.order.steps)
        nodes.append(len(prepared.graph.nodes))
    for few, many, small, large in zip(steps, steps[1:], nodes, nodes[1:]):
        assert many <= 1.2 * max(few, 100) * large / small, (steps, nodes)
