"""The reference interpreters run prim-dialect envelopes, symbolic ones included, and agree."""

import pytest
import torch

import prims.ops as ops
from prims.errors import UserError
from prims.handlers import GraphHandler
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.reference import run_numpy, run_torch
from prims.spec import SymbolContext, TensorSpec

CPU = torch.device("cpu")


def envelope(build, specs, context=None, constants=None):
    graph = torch.fx.Graph()
    p = GraphHandler(graph)
    values = [p.placeholder(f"x{i}", spec) for i, spec in enumerate(specs)]
    results = build(p, *values)
    graph.output(tuple(r.node for r in results))
    inputs = tuple(
        InputDesc(f"x{i}", "input" if isinstance(s, TensorSpec) else "size", s) for i, s in enumerate(specs)
    )
    outputs = tuple(OutputDesc("output", r.spec) for r in results)
    symbols = SymbolTable.from_inputs(inputs, context) if context is not None else SymbolTable()
    return Envelope("prim", (1, 0), "test", "0", graph, inputs, outputs, symbols, constants=constants or {})


def layer_norm(p, x, weight):
    n = x.shape[-1]
    kept = tuple(range(x.ndim - 1))

    def spread(v):
        return p.broadcast(v, x.shape, kept)

    centred = p.sub(x, spread(p.div(p.sum(x, (-1,)), n)))
    variance = p.div(p.sum(p.mul(centred, centred), (-1,)), n)
    scaled = p.mul(centred, spread(p.rsqrt(p.add(variance, 1e-5))))
    return (p.mul(scaled, p.broadcast(weight, x.shape, (x.ndim - 1,))),)


def test_layer_norm():
    x, w = torch.randn(3, 8), torch.randn(8)
    env = envelope(layer_norm, [TensorSpec(t.shape, t.dtype, CPU) for t in (x, w)])
    env.verify()
    want = torch.nn.functional.layer_norm(x, (8,), w)
    for run in (run_torch, run_numpy):
        torch.testing.assert_close(run(env, [x, w])[0], want)
    torch.testing.assert_close(env.module()(x, w)[0], want)


def test_symbolic_sizes_are_read_from_the_inputs():
    ctx = SymbolContext()
    s = ctx.new_symbol(6, "x.shape[0]")

    def build(p, x):
        ramp = p.iota(s, 0, 1, torch.float32, CPU)
        doubled = p.concat([x, p.mul(ramp, x)], 0)
        return p.reshape(doubled, (2, s)), p.sum(p.slice(doubled, (s,), (2 * s,), (1,)), (0,))

    env = envelope(build, [TensorSpec((s,), torch.float32, CPU)], ctx)
    env.verify()
    for n in (2, 6, 11):
        x = torch.randn(n)
        ramp = torch.arange(n) * x
        for run in (run_torch, run_numpy):
            out = run(env, [x])
            torch.testing.assert_close(out[0], torch.stack([x, ramp]))
            torch.testing.assert_close(out[1], ramp.sum())


def test_size_inputs():
    ctx = SymbolContext()
    s = ctx.new_symbol(4, "n")
    env = envelope(lambda p, n: (p.full((n,), 2.0, torch.float32, CPU),), [s], ctx)
    assert run_torch(env, [3])[0].tolist() == [2.0, 2.0, 2.0] == run_numpy(env, [3])[0].tolist()


def test_composites_and_bfloat16():
    def build(p, x, y):
        product = p.aten(torch.ops.aten.mm.default, x, y)
        values, _ = p.aten(torch.ops.aten.sort.default, p.tanh(product), 1)
        return (values,)

    x, y = torch.randn(3, 4).bfloat16(), torch.randn(4, 5).bfloat16()
    env = envelope(build, [TensorSpec(t.shape, t.dtype, CPU) for t in (x, y)])
    want = torch.sort(torch.tanh(x @ y), 1).values
    for run in (run_torch, run_numpy):
        torch.testing.assert_close(run(env, [x, y])[0], want)


def test_misuse_is_named():
    env = envelope(lambda p, x: (p.exp(x),), [TensorSpec((2,), torch.float32, CPU)])
    with pytest.raises(UserError, match="1 inputs, 2 were given"):
        run_torch(env, [torch.zeros(2), torch.zeros(2)])
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.sin, (x,)),))
    bad = env.replace(graph=graph)
    with pytest.raises(UserError, match="no primitive"):
        run_torch(bad, [torch.zeros(2)])


def test_references_of_random_primitives_agree_in_graphs():
    def build(p, seed):
        return (p.random_uniform((4, 4), seed, 8, torch.float32, CPU),)

    env = envelope(build, [TensorSpec((), torch.int64, CPU)])
    seed = torch.tensor(3)
    assert torch.equal(run_torch(env, [seed])[0], run_numpy(env, [seed])[0])
    assert torch.equal(run_torch(env, [seed])[0], ops.random_uniform((4, 4), seed, 8, torch.float32, CPU))
