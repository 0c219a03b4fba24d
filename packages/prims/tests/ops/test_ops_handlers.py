"""One program, four meanings; the graph handler's hash-consing and rewrites."""

import operator
import subprocess
import sys

import pytest
import torch

import prims.ops as ops
from prims.errors import UserError, VerifierError
from prims.handlers import REWRITES, Array, GraphHandler, Handler, MetaHandler, NumpyHandler, TorchHandler
from prims.ir import Fuel, SourceLoc
from prims.spec import SymbolContext, TensorSpec

CPU = torch.device("cpu")


def softmax(p, x, dim):
    kept = tuple(d for d in range(x.ndim) if d != dim)

    def spread(v):
        return p.broadcast(v, x.shape, kept)

    e = p.exp(p.sub(x, spread(p.amax(x, (dim,)))))
    return p.div(e, spread(p.sum(e, (dim,))))


def graph_handler(*shapes, dtype=torch.float32, **options):
    p = GraphHandler(torch.fx.Graph(), **options)
    return p, *(p.placeholder(f"x{i}", TensorSpec(s, dtype, CPU)) for i, s in enumerate(shapes))


def calls(p):
    return [n.name for n in p.graph.nodes if n.op == "call_function"]


def test_one_program_four_meanings():
    x = torch.randn(3, 5)
    want = torch.softmax(x, 1)
    torch.testing.assert_close(softmax(TorchHandler(), x, 1), want)
    torch.testing.assert_close(softmax(NumpyHandler(), Array.from_torch(x), 1).to_torch(), want)
    assert softmax(MetaHandler(), TensorSpec((3, 5), torch.float32, CPU), 1) == TensorSpec((3, 5), torch.float32, CPU)
    p, v = graph_handler((3, 5))
    out = softmax(p, v, 1)
    p.graph.output((out.node,))
    torch.testing.assert_close(torch.fx.GraphModule({}, p.graph)(x)[0], want)
    for handler in (p, TorchHandler(), NumpyHandler(), MetaHandler()):
        assert isinstance(handler, Handler)


def test_values_expose_metadata():
    p, x = graph_handler((2, 3))
    y = p.gt(x, 0.0)
    assert (y.shape, y.dtype, y.device, y.ndim) == ((2, 3), torch.bool, CPU, 2)
    assert y.spec is y.node.meta["spec"]
    assert p.value(y.node) is y


def test_equal_subexpressions_are_one_node():
    p, x = graph_handler((4,))
    assert p.sin(x) is p.sin(x)
    assert p.add(x, 1) is p.add(x, 1.0)
    assert p.sum(x, [0]) is p.sum(x, (-1,))
    assert p.add(x, 0.5) is not p.add(x, -0.5)
    assert p.mul(x, 0.0) is not p.mul(x, -0.0)
    q, i = graph_handler((4,), dtype=torch.int64)
    assert q.eq(i, 1) is not q.eq(i, True)


def test_twenty_rounds_are_forty_nodes():
    p, x = graph_handler((10,))
    for _ in range(20):
        x = p.add(x, p.sin(x))
    assert len(calls(p)) == 40


def test_symbolic_sizes_are_hash_consed():
    ctx = SymbolContext()
    s = ctx.new_symbol(7, "x.shape[0]")
    p, x = graph_handler((s, 4))
    assert p.reshape(x, (s * 4,)) is p.reshape(x, (4 * s,))
    assert p.reshape(x, (s, 4)) is x
    assert p.reshape(p.reshape(x, (2 * s, 2)), (s, 4)) is x
    assert not ctx.guards


@pytest.mark.parametrize(
    ("program", "same"),
    [
        (lambda p, x: p.mul(x, 1), True),
        (lambda p, x: p.mul(1.0, x), True),
        (lambda p, x: p.div(x, 1.0), True),
        (lambda p, x: p.sub(x, 0.0), True),
        (lambda p, x: p.add(x, -0.0), True),
        (lambda p, x: p.add(x, 0.0), False),  # -0.0 + 0.0 is 0.0
        (lambda p, x: p.sub(x, -0.0), False),
        (lambda p, x: p.sub(0.0, x), False),
        (lambda p, x: p.div(1.0, x), False),
        (lambda p, x: p.pow(x, 1), True),
        (lambda p, x: p.neg(p.neg(x)), True),
        (lambda p, x: p.convert(x, torch.float32), True),
        (lambda p, x: p.bitcast(p.bitcast(x, torch.int32), torch.float32), False),
        (lambda p, x: p.convert(p.convert(x, torch.bfloat16), torch.float32), False),
        (lambda p, x: p.reshape(p.reshape(x, (6,)), (2, 3)), True),
        (lambda p, x: p.permute(p.permute(x, (1, 0)), (1, 0)), True),
        (lambda p, x: p.broadcast(x, (2, 3), (0, 1)), True),
        (lambda p, x: p.slice(x, (0, 0), (2, 3), (1, 1)), True),
        (lambda p, x: p.slice(x, (0, 0), (2, 3), (1, 2)), False),
        (lambda p, x: p.pad(x, 0.0, (0, 0), (0, 0)), True),
        (lambda p, x: p.concat([x], 0), True),
        (lambda p, x: p.flip(x, ()), True),
        (lambda p, x: p.sum(x, ()), True),
        (lambda p, x: p.logical_not(p.logical_not(x)), False),
    ],
)
def test_rewrites(program, same):
    p, x = graph_handler((2, 3))
    assert (program(p, x) is x) is same
    plain, y = graph_handler((2, 3), rewrites={})
    assert program(plain, y) is not y


def test_rewrites_keep_values():
    """Each rewrite's result equals the un-rewritten program on edge values."""
    x = torch.tensor([[0.0, -0.0, 1.5], [float("inf"), float("nan"), -2.5]])
    programs = [lambda p, v, e=e: p.pow(v, e) for e in (1, 2, 3, -1, 0.5)] + [
        lambda p, v: p.broadcast(p.broadcast(v, (4, 2, 3), (1, 2)), (4, 2, 5, 3), (0, 1, 3)),
        lambda p, v: p.broadcast(p.reshape(p.full((2,), 3.0, torch.float32, CPU), (2, 1)), (2, 3), (0, 1)),
        lambda p, v: p.permute(p.permute(p.reshape(v, (1, 2, 3)), (2, 0, 1)), (1, 2, 0)),
        lambda p, v: p.bitwise_not(p.logical_not(p.gt(v, 0.0))),
    ]
    for program in programs:
        results = []
        for rewrites in (REWRITES, {}):
            p, v = graph_handler((2, 3), rewrites=rewrites)
            p.graph.output((program(p, v).node,))
            results.append((torch.fx.GraphModule({}, p.graph)(x)[0], len(calls(p))))
        torch.testing.assert_close(results[0][0], results[1][0], equal_nan=True)


def test_fuel_stops_rewrites():
    p, x = graph_handler((2,), fuel=Fuel(1))
    assert p.mul(x, 1.0) is x
    assert p.div(x, 1.0) is not x


def test_aten_overloads_stay_one_node_each():
    p, x, y = graph_handler((2, 3), (3, 4))
    mm = p.aten(torch.ops.aten.mm.default, x, y)
    assert mm is p.extern(torch.ops.aten.mm.default, x, y)
    assert mm.shape == (2, 4) and mm.node.target is torch.ops.aten.mm.default
    values, indices = p.aten(torch.ops.aten.sort.default, x, 1)
    assert values.node.target is operator.getitem and indices.dtype == torch.int64
    assert p.aten(torch.ops.aten.sort.default, x, 1)[1] is indices
    spec = TensorSpec((2, 3), torch.float32, CPU, (1, 2))
    first = p.aten(torch.ops.aten.bernoulli.p, x, 0.5, spec=spec)
    assert first is not p.aten(torch.ops.aten.bernoulli.p, x, 0.5, spec=spec)
    assert first.spec.strides == (3, 1)  # a logical array


def test_the_other_handlers_run_overloads():
    x = torch.randn(4, 3)
    want = torch.sort(x, 0)
    for got in (
        TorchHandler().aten(torch.ops.aten.sort.default, x, 0),
        [r.to_torch() for r in NumpyHandler().aten(torch.ops.aten.sort.default, Array.from_torch(x), 0)],
    ):
        assert torch.equal(got[0], want.values) and torch.equal(got[1], want.indices)
    values, _ = MetaHandler().aten(torch.ops.aten.sort.default, TensorSpec((4, 3), torch.float32, CPU), 0)
    assert values.shape == (4, 3)


def test_source_locations_are_stamped():
    p, x = graph_handler((2,))
    p.source = SourceLoc("model.py", 12, "forward")
    y = p.exp(x)
    p.source = None
    assert y.node.meta["source"] == SourceLoc("model.py", 12, "forward")
    assert "source" not in p.sin(x).node.meta


def test_errors_reach_the_author():
    p, x, y = graph_handler((2,), (3,))
    with pytest.raises(VerifierError, match="ADD-C1"):
        p.add(x, y)
    with pytest.raises(AttributeError, match="gelu"):
        p.gelu(x)
    with pytest.raises(UserError, match="missing"):
        p.sum(x)
    assert calls(p) == []


def test_a_new_primitive_is_a_handler_method_at_once():
    from prims.ops.check import FLOATS
    from prims.ops.elementwise_rules import unary

    try:
        unary("softsign", "x / (1 + |x|)", FLOATS, torch.nn.functional.softsign, lambda x: x / (1 + abs(x)),
              c="({0} / (1 + fabs{f}({0})))", triton="({0} / (1 + tl.abs({0})))")  # fmt: skip
        p, x = graph_handler((3,))
        assert p.softsign(x).node.target is ops.softsign
        assert TorchHandler().softsign(torch.tensor([1.0])).item() == 0.5
    finally:
        ops.TABLE.pop("softsign", None)


def test_bfloat16_rounding_of_arrays():
    x = torch.randn(10_000) * torch.logspace(-30, 30, 10_000)
    x[:3] = torch.tensor([float("inf"), float("nan"), -0.0])
    rounded = Array(x.numpy(), torch.bfloat16).to_torch()
    assert torch.equal(rounded.nan_to_num(1.5), x.to(torch.bfloat16).nan_to_num(1.5))


def test_import_is_light():
    """Neither NumPy code nor any compiler of PyTorch is imported by the table and the handlers."""
    code = (
        "import sys, torch; before = set(sys.modules); import prims, prims.ops, prims.handlers, prims.reference\n"
        "import prims.conformance\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "bad = {'torch._dynamo', 'torch._inductor', 'torch._refs', 'torch._decomp', 'sympy', 'networkx'}\n"
        "loaded = bad & (set(sys.modules) - before); assert not loaded, loaded\n"
        "assert 'numpy' not in new, new\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
