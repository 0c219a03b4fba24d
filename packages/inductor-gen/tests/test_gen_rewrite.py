"""The table of rewrites: what a row changes is right, counted, checked, and stopped by fuel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.__main__ import stages
from inductor_gen.device.record import known
from inductor_gen.loops.graph import Graph, Node, build_graph
from inductor_gen.pipeline import lower_graph, rewritten_graph, size_hint
from inductor_gen.rewrite.row import Context, Editor, Row
from inductor_gen.rewrite.table import CONSTRAINTS, ROWS, rewrite, verify
from prims.errors import VerifierError
from prims.ir import Envelope, Fuel, save
from prims.ops import PrimOp
from prims.options import Options
from prims.spec import TensorSpec

GPU = torch.device("cuda", 0)
aten = torch.ops.aten


def on_gpu(fn: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Envelope:
    """A program of 16-bit tensors on a GPU that need not be there."""
    return build(fn, [TensorSpec(shape, dtype, GPU) for shape in shapes], claims=inductor_gen.claims("cuda"))


def rewritten(env: Envelope, **options: Any) -> Any:
    return rewritten_graph(env, Options(verify="every_pass", **options), devices=lambda _: known("H200"))


def evaluated(graph: Graph, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the nodes compute by the primitives' references and PyTorch's operators, on the CPU."""
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs, strict=True))

    def look(x: Any) -> Any:
        if isinstance(x, Node):
            return values[x]
        if isinstance(x, (tuple, list)):
            return type(x)(map(look, x))
        return torch.device("cpu") if isinstance(x, torch.device) else x

    for node in graph.nodes:
        if node.kind == "item":
            values[node] = values[node.args[0]][node.args[1]]
        elif node not in values:
            target = node.target.torch_ref if isinstance(node.target, PrimOp) else node.target
            values[node] = target(*look(node.args), **node.kwargs)
    return [look(x) for x in graph.outputs]


def convolution(p: Any, x: Any, w: Any, *b: Any, tile: int = 1, padding: int = 0) -> Any:
    bias = b[0] if b else None
    return p.aten(aten.convolution.default, x, w, bias, [tile] * 2, [padding] * 2, [1, 1], False, [0, 0], 1)


def backward(p: Any, g: Any, x: Any, w: Any) -> Any:
    op = aten.convolution_backward.default
    return p.aten(op, g, x, w, [w.shape[0]], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])


def empty(p: Any, x: Any) -> Any:
    return p.sum(p.slice(x, (0, 0), (0, 4), (1, 1)), (0,)), p.exp(x)


def mm(p: Any, x: Any, w: Any, *b: Any) -> Any:
    """``x @ w.T + b``, as a linear layer has it."""
    right = p.permute(w, (1, 0))
    return p.aten(aten.addmm.default, b[0], x, right) if b else p.aten(aten.mm.default, x, right)


def three(p: Any, x: Any, *parts: Any) -> Any:
    """Queries, keys and values of weights, or weights and biases, that lie apart."""
    layers = [parts[k : k + len(parts) // 3] for k in range(0, len(parts), len(parts) // 3)]
    return tuple(p.neg(mm(p, x, *layer)) for layer in layers)


def thirds(p: Any, x: Any, w: Any) -> Any:
    """The same of one weight's rows."""
    return three(p, x, *(p.slice(w, (a, 0), (a + 32, 64), (1, 1)) for a in (0, 32, 64)))


def by_layers(p: Any, x: Any, table: Any, *weights: Any) -> Any:
    """Two products of one table in each layer: the next layer's are read after its operators."""
    for own, both in zip(weights[::2], weights[1::2], strict=True):
        first, second = (p.slice(both, (a, 0), (a + 64, 64), (1, 1)) for a in (0, 64))
        x = mm(p, x, own)
        x = p.add(x, p.mul(p.exp(mm(p, table, first)), p.neg(mm(p, table, second))))
    return p.neg(x)


def by_input(p: Any, g: Any, w: Any, *_: Any) -> Any:
    """The gradient of the input of a layer whose results are an odd number, such as a vocabulary."""
    return p.neg(p.aten(aten.mm.default, p.exp(g), w))


def by_weight(p: Any, g: Any, x: Any) -> Any:
    """That of its weight."""
    return p.aten(aten.mm.default, p.permute(p.exp(g), (1, 0)), x)


def part(p: Any, x: Any, start: int, stop: int, step: int = 1) -> Any:
    """Some columns of a matrix."""
    return p.slice(x, (0, start), (x.shape[0], stop), (1, step))


def full(p: Any, x: Any, n: int, value: float) -> Any:
    """Columns of one number."""
    return p.full((x.shape[0], n), value, x.dtype, x.device)


def rotated(p: Any, x: Any) -> Any:
    """Halves that change places, and change back."""
    turn = lambda y: p.concat((part(p, y, 4, 8), part(p, y, 0, 4)), 1)
    return p.exp(turn(turn(x)))


def between(p: Any, x: Any, y: Any) -> Any:
    whole = p.concat((x, y), 1)
    return part(p, whole, 2, 6), part(p, whole, 8, 12), part(p, whole, 9, 12, 2)


MM, ADDMM, CAT = "aten.mm.default", "aten.addmm.default", "aten.cat.default"

#: Row -> a program that it changes, the shapes of its inputs, and the operators that are left.
CASES: dict[str, tuple[Any, list[tuple[int, ...]], list[str]]] = {
    "products of one matrix": (three, [(40, 64), (32, 64), (16, 64), (8, 64)], [MM]),
    "products of one matrix, biased": (three, [(40, 64), *[(32, 64), (32,)] * 3], [ADDMM]),
    "products of one matrix, weights of one": (thirds, [(40, 64), (96, 64)], [MM]),
    "products of one matrix, layer by layer": (by_layers, [(40, 64), (40, 64), *[(64, 64), (128, 64)] * 2], [MM] * 4),
    "aligned product": (by_input, [(1024, 1001), (1001, 512)], [MM]),
    "aligned product, rows": (by_weight, [(1024, 1001), (1024, 512)], [MM]),
    "aligned product, columns": (lambda p, *x: p.neg(mm(p, *x)), [(1024, 512), (2001, 512), (2001,)], [ADDMM]),
    "empty": (empty, [(3, 4)], []),
    "convolution over tiles": (convolution, [(2, 8, 5, 6), (4, 8, 1, 1), (4,)], ["aten.mm.default"]),
    "gradients of a 1x1 convolution": (
        backward, [(2, 4, 5, 6), (2, 8, 5, 6), (4, 8, 1, 1)], ["aten.mm.default", "aten.mm.default"],
    ),
    "concatenation of neighbours": (lambda p, x: p.concat((part(p, x, 0, 3), part(p, x, 3, 8)), 1), [(4, 8)], []),
    "concatenation of neighbours, inside": (lambda p, x: p.concat((part(p, x, 1, 3), part(p, x, 3, 7)), 1), [(4, 8)], []),
    "concatenation of neighbours, nested": (
        lambda p, x, y: p.concat((p.concat((x, y), 1), p.exp(x)), 1), [(4, 8), (4, 3)], [],
    ),
    "concatenation of neighbours, among others": (
        lambda p, x, y: p.concat((y, part(p, x, 0, 3), part(p, x, 3, 8)), 1), [(4, 8), (4, 3)], [],
    ),
    "concatenation of neighbours, of one number": (
        lambda p, x: p.concat((*(full(p, x, n, -0.0) for n in (1, 2, 4)), x, full(p, x, 3, 0.0), full(p, x, 2, -0.0)), 1),
        [(4, 8)], [],
    ),
    "concatenation of neighbours, of parts of one number": (
        lambda p, x: p.concat((part(p, full(p, x, 7, 2.0), 2, 5), part(p, full(p, x, 9, 2.0), 1, 9, 3), x), 1), [(4, 8)], [],
    ),
    "concatenation of many": (lambda p, *x: p.sum(p.concat(x, 1), (1,)), [(4, n) for n in (3, 1, 2, 8, 4)], [CAT]),
    "concatenation of many, turned": (
        lambda p, *x: p.cumsum(p.exp(p.permute(p.reshape(p.concat(x, 0), (17, 1, 8)), (2, 1, 0))), 2), [(1, 8)] * 17, [CAT],
    ),
    "concatenation of many, a part of many": (
        lambda p, *x: p.sum(p.neg(part(p, p.exp(p.concat(x, 1)), 1, 11)), (1,)), [(4, 2)] * 6, [CAT],
    ),
    "bias of a convolution": (
        lambda p, *x: convolution(p, *x, padding=1), [(2, 8, 5, 6), (4, 8, 3, 3), (4,)], ["aten.convolution.default"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_applied_and_counted_and_keeps_the_values(name: str) -> None:
    fn, shapes, operators = CASES[name]
    env = on_gpu(fn, *shapes)
    made, name = rewritten(env), name.partition(",")[0]
    count = 1 + (fn is by_layers)
    assert made.fired == {name: count} and str(made).startswith(f"# {name}: {count}\n")
    assert [n.op for n in made.graph.nodes if n.kind == "extern"] == operators
    inputs = [torch.randn(s) for s in shapes]
    for got, want in zip(evaluated(made.graph, inputs), evaluated(build_graph(env), inputs), strict=True):
        assert got.shape == want.shape
        torch.testing.assert_close(got.float(), want, rtol=1e-4, atol=1e-4)


def test_a_kernel_chooses_among_few_parts() -> None:
    def few(p: Any, *x: Any) -> Any:
        return p.sum(p.concat(x, 1), (1,))

    def walked(p: Any, *x: Any) -> Any:
        whole = p.concat(x, 1)
        return p.sum(p.exp(p.permute(whole, (1, 0))), (1,)), part(p, whole, 3, 7), p.reshape(whole, (2, 2, 10))

    assert rewritten(on_gpu(few, *[(4, 2)] * 4)).fired == rewritten(on_gpu(few, *[(4, 1)] * 16)).fired == {}
    assert rewritten(on_gpu(walked, *[(4, 2)] * 5)).fired == {}


def test_parts_of_concatenations_are_parts_of_their_parts() -> None:
    """So that nothing is left of halves that change places twice."""
    for fn, shapes, left in ((between, [(3, 8), (3, 4)], ["slice", "slice"]), (rotated, [(3, 8)], ["exp"])):
        env = on_gpu(fn, *shapes)
        made = rewritten(env)
        assert [n.op for n in made.graph.nodes if n.kind not in ("input", "size")] == left, made
        inputs = [torch.randn(s) for s in shapes]
        torch.testing.assert_close(evaluated(made.graph, inputs), evaluated(build_graph(env), inputs))


def test_parts_of_one_number_in_a_concatenation_are_as_long_as_they_were() -> None:
    def fn(p: Any, x: Any) -> Any:
        whole = p.concat((x, full(p, x, 9, 2.0)), 1)
        return part(p, whole, 9, 12), part(p, whole, 10, 17, 3), p.slice(whole, (1, 8), (3, 17), (1, 2))

    env = on_gpu(fn, (4, 8))
    made = rewritten(env)
    assert not [n for n in made.graph.nodes if n.op == "slice"], made
    inputs = [torch.randn(4, 8)]
    for got, want in zip(evaluated(made.graph, inputs), evaluated(build_graph(env), inputs), strict=True):
        assert torch.equal(got, want)


def test_of_equal_neighbours_one_is_left_and_zeros_keep_their_signs() -> None:
    program, shapes, _ = CASES["concatenation of neighbours, of one number"]
    (whole,) = (n for n in rewritten(on_gpu(program, *shapes)).graph.nodes if n.op == "concat")
    assert [(x.op, x.spec.shape[1], *map(str, x.args[1:2])) for x in whole.args[0] if x.op == "full"] == [
        ("full", 7, "-0.0"), ("full", 3, "0.0"), ("full", 2, "-0.0"),
    ]  # fmt: skip


def test_parts_that_are_no_neighbours_stay() -> None:
    def fn(p: Any, x: Any, y: Any) -> Any:
        gap = p.concat((part(p, x, 0, 3), part(p, x, 4, 8)), 1)
        steps = p.concat((part(p, x, 0, 4, 2), part(p, x, 4, 8, 2)), 1)
        rows = p.concat((p.slice(x, (0, 0), (2, 4), (1, 1)), p.slice(x, (2, 4), (4, 8), (1, 1))), 1)
        across = part(p, p.concat((x, y), 1), 6, 10)
        given = p.concat((x, y), 1)
        return gap, steps, rows, across, given, p.concat((given, y), 1), p.concat((part(p, x, 0, 4), part(p, y, 4, 8)), 1)

    assert not rewritten(on_gpu(fn, (4, 8), (4, 8))).fired


#: Programs of which products stay as they are, with the reason.
LEFT: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "the results are given as they are": (lambda p, x, *w: tuple(mm(p, x, y) for y in w), [(40, 64), *[(32, 64)] * 3]),
    "copying the weights takes longer": (three, [(4096, 4096), *[(4096, 4096)] * 3]),
    "small, and copied": (lambda p, x, w: p.neg(p.aten(aten.mm.default, x, w)), [(64, 33), (33, 64)]),
    "aligned": (lambda p, x, w: p.neg(mm(p, x, w)), [(1024, 1000), (512, 1000)]),
    "weights that the program makes": (lambda p, x, *w: three(p, x, *map(p.exp, w)), [(40, 64), *[(32, 64)] * 3]),
}


@pytest.mark.parametrize("why", LEFT)
def test_products_that_would_not_gain_stay(why: str) -> None:
    fn, shapes = LEFT[why]
    assert not rewritten(on_gpu(fn, *shapes)).fired


@pytest.mark.parametrize("device,pays", [("L4", True), ("B200", False)])
def test_what_padding_pays_follows_the_device(device: str, pays: bool) -> None:
    """A product that takes an L4 much longer than the copies does not so on a B200."""
    env = on_gpu(lambda p, x, w: p.neg(p.aten(aten.mm.default, x, w)), (1024, 257), (257, 512))
    made = rewritten_graph(env, Options(verify="every_pass"), devices=lambda _: known(device))
    assert bool(made.fired) is pays


def test_padding_is_written_once_and_rows_are_aligned() -> None:
    """By the kernel that makes the value, for both products that read it."""
    env = on_gpu(lambda p, g, w, x: (by_input(p, g, w), by_weight(p, g, x)), (1024, 1001), (1001, 512), (1024, 512))
    unit = lower_graph(env, Options(verify="every_pass"), devices=lambda _: known("H200"))
    operands = [ref for args, _ in unit.prepared.externs.values() for ref in args]
    assert len(operands) == 4 and all(s.value % 8 == 0 or s.value == 1 for ref in operands for s in ref.strides)
    gradients = [ref.base for ref in operands if 1008 in [s.value for s in ref.shape] and 1024 in [s.value for s in ref.shape]]
    assert len(gradients) == 2 and gradients[0] is gradients[1]
    assert sorted(op for source in unit.sources() for op in source.ops if op in ("exp", "copy")) == ["copy", "copy"]


def test_fuel_stops_rows_but_those_that_later_stages_need() -> None:
    def fn(p: Any, x: Any, w: Any, b: Any) -> Any:
        y = convolution(p, x, w, b)
        return convolution(p, y, w, b), p.sum(p.slice(x, (0, 0, 0, 0), (0, 4, 5, 6), (1, 1, 1, 1)), (0,))

    env = on_gpu(fn, (2, 4, 5, 6), (4, 4, 1, 1), (4,))
    counts = [rewritten(env, fuel=fuel).fired for fuel in range(4)]
    tiles = "convolution over tiles"
    assert counts == [{"empty": 1}, {"empty": 1, tiles: 1}, {"empty": 1, tiles: 2}, {"empty": 1, tiles: 2}]


def test_numerics_say_which_rows_there_are() -> None:
    fn, shapes, _ = CASES["convolution over tiles"]
    fired = {how: list(rewritten(on_gpu(fn, *shapes), numerics=how).fired) for how in ("eager_exact", "eager_close", "fast")}
    assert fired == {"eager_exact": [], "eager_close": ["convolution over tiles"], "fast": ["convolution over tiles"]}
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_what_nothing_reads_any_more_is_dropped() -> None:
    def fn(p: Any, x: Any, y: Any) -> Any:
        return p.neg(p.exp(p.sin(x))), p.cos(y)

    graph = build_graph(on_gpu(fn, (3,), (3,)))

    def to_cosine(p: Editor, node: Node, other: Node) -> None:
        p.replace(node, p.abs(other))

    row = Row("neg", lambda n, c: graph.inputs[1] if n.op == "neg" else None, to_cosine)
    made = rewrite(graph, Context(lambda e: 3, lambda _: known("H200")), Fuel(), [row], check=True)
    assert [n.op for n in made.graph.nodes] == ["x0", "x1", "abs", "cos"] and made.fired == {"neg": 1}


def _before_its_operands(graph: Graph) -> None:
    graph.nodes.reverse()


def _mistyped(graph: Graph) -> None:
    graph.nodes[-1].dtype = torch.float64


def _lost(graph: Graph) -> None:
    graph.outputs = [Node(0, "pointwise", "neg", (), graph.nodes[0].spec)]


HARMS = (_before_its_operands, _mistyped, _lost)


@pytest.mark.parametrize("label,harm", list(zip(CONSTRAINTS, HARMS, strict=True)))
def test_a_broken_graph_is_refused_by_name(label: str, harm: Any) -> None:
    graph = build_graph(on_gpu(lambda p, x: p.exp(p.sin(x)), (3,)))
    verify(graph, "nothing")
    harm(graph)
    with pytest.raises(VerifierError, match=label):
        verify(graph, "harm")


def test_rows_are_shown(tmp_path: Any) -> None:
    fn, shapes, _ = CASES["convolution over tiles"]
    env = on_gpu(fn, *shapes)
    save(env, str(tmp_path / "graph"))
    shown = {fuel: stages(str(tmp_path / "graph"), device="H200", fuel=fuel) for fuel in (0, 1, None)}
    assert "# convolution" not in shown[0]["rewritten"]() and "aten.convolution.default" in shown[0]["kernels"]()
    assert shown[1]["rewritten"]() == shown[None]["rewritten"]().replace("; again", "")
    assert "aten.mm.default" in shown[1]["fused"]() and "triton.jit" in shown[None]["code"]()
    assert size_hint(env) is not None and lower_graph(env, Options(verify="off"), devices=lambda _: known("L4")).calls
