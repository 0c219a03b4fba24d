"""Lowering small aten programs: what comes out, and that it means the same."""

import importlib

import pytest
import torch
from aten_programs import aten, envelope, lowered, symbolic_envelope

from prims.errors import Unsupported
from prims.ir import print_text
from prims.lower import PASSES, lower
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext, TensorSpec


def prims_of(env):
    return [getattr(n.target, "name", str(n.target)) for n in env.graph.nodes if n.op == "call_function"]


def overloads_of(env):
    return [str(n.target) for n in env.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def linear_gelu(call, x, w, b):
    return call(aten.gelu.default, call(aten.addmm.default, b, x, call(aten.t.default, w)))


INPUTS = (torch.randn(4, 8), torch.randn(16, 8), torch.randn(16))


def test_claimed_composite_stays_one_node():
    env, report = lowered(linear_gelu, *INPUTS, claims=("aten.addmm.default",))
    assert overloads_of(env) == ["aten.addmm.default"]
    assert prims_of(env)[0] == "permute"
    assert report.fallbacks == []
    assert env.dialect == "prim"


def test_unclaimed_composite_uses_simpler_claimed_one():
    env, _ = lowered(linear_gelu, *INPUTS, claims=("aten.mm.default",))
    assert overloads_of(env) == ["aten.mm.default"]


def test_without_claims_all_is_primitives():
    env, _ = lowered(linear_gelu, *INPUTS)
    assert overloads_of(env) == []
    assert "dot" in prims_of(env)


def test_unclaimed_undecomposable_is_an_extern_with_a_reason():
    def program(call, x):
        return call.item(call(aten.sort.default, x), 0)

    env, report = lowered(program, torch.randn(5))
    assert overloads_of(env) == ["aten.sort.default"]
    [fallback] = report.fallbacks
    assert fallback.stage == "lower"
    assert fallback.reason == "aten.sort.default: no decomposition"
    assert fallback.where == "program.py:1 in program"


def test_claimed_sort_is_no_fallback():
    env, report = lowered(
        lambda call, x: call.item(call(aten.sort.default, x), 1), torch.randn(5), claims=("aten.sort.default",)
    )
    assert report.fallbacks == []


def test_decomposition_that_declines_is_an_extern_with_its_reason():
    def program(call, x, mask):
        return call(aten.index.Tensor, x, [mask])

    env, _ = envelope(program, torch.randn(3), torch.tensor([True, False, True]))
    report = Report()
    out = lower(env, options=Options(), report=report)
    assert overloads_of(out) == ["aten.index.Tensor"]
    assert "depends on data" in report.fallbacks[0].reason


def test_concatenations_of_very_many_pieces_are_left_whole():
    """A code generator's time grows with the square of their number."""
    for count in (256, 257):
        env, report = lowered(lambda call, *parts: call(aten.cat.default, list(parts)), *[torch.randn(1)] * count)
        assert (overloads_of(env) == ["aten.cat.default"]) == (count == 257)
        assert report.fallbacks == []


def test_complex_numbers_are_left_to_eager():
    x = torch.randn(3, dtype=torch.complex64)
    env, report = lowered(lambda call, x: call(aten.mul.Tensor, x, x), x)
    assert overloads_of(env) == ["aten.mul.Tensor"]
    assert "complex" in report.fallbacks[0].reason


def test_source_locations_are_kept():
    env, _ = lowered(lambda call, x: call(aten.exp.default, call(aten.relu.default, x)), torch.randn(3))
    lines = {n.target.name: n.meta["source"].line for n in env.graph.nodes if n.op == "call_function"}
    assert lines == {"maximum": 1, "exp": 2}


def test_names_and_text_are_deterministic():
    texts = [print_text(lowered(linear_gelu, *INPUTS)[0]) for _ in range(2)]
    assert texts[0] == texts[1]
    nodes = [[n.name for n in lowered(linear_gelu, *INPUTS)[0].graph.nodes] for _ in range(2)]
    assert nodes[0] == nodes[1]


def test_input_envelope_is_left_alone():
    env, _ = envelope(linear_gelu, *INPUTS)
    before = str(env)
    lower(env, options=Options())
    assert str(env) == before


def test_dead_code_goes_and_inputs_stay():
    def program(call, x, y):
        call(aten.exp.default, y)
        return call(aten.sin.default, x)

    env, _ = lowered(program, torch.randn(3), torch.randn(3))
    assert prims_of(env) == ["sin"]
    assert len(env.placeholders()) == 2


def test_random_draws_are_neither_merged_nor_removed():
    def program(call, x):
        call(aten.bernoulli.default, x)
        a = call(aten.bernoulli.default, x)
        return call(aten.add.Tensor, a, call(aten.bernoulli.default, x))

    env, _ = envelope(program, torch.rand(64))
    out = lower(env, options=Options())
    assert overloads_of(out) == ["aten.bernoulli.default"] * 3


def test_equal_subexpressions_are_one_node():
    def program(call, x):
        return call(aten.add.Tensor, call(aten.sin.default, x), call(aten.sin.default, x))

    env, _ = lowered(program, torch.randn(3))
    assert prims_of(env) == ["sin", "add"]


@pytest.mark.parametrize("rounds", [20, 200])
def test_rounds_of_sharing_stay_linear(rounds):
    """x = x + sin(x): two nodes a round, whatever the sharing."""

    def program(call, x):
        for _ in range(rounds):
            x = call(aten.add.Tensor, x, call(aten.sin.default, x))
        return x

    env, _ = lowered(program, torch.randn(10))
    assert prims_of(env) == ["sin", "add"] * rounds


def test_passes_have_names_and_run_in_order():
    env, _ = envelope(linear_gelu, *INPUTS)
    seen = []
    lower(env, options=Options(), observer=lambda name, _: seen.append(name))
    assert seen == [step.name for step in PASSES] == ["decompose", "dead_code"]


def test_without_fuel_the_result_still_means_the_same():
    def program(call, x):
        y = call(aten.mul.Tensor, call(aten.div.Tensor, x, 2.0), 1.0)
        return call(aten.add.Tensor, y, call(aten.full_like.default, x, 3.0))

    none, _ = lowered(program, torch.randn(3), fuel=0)
    all_, _ = lowered(program, torch.randn(3))
    assert len(prims_of(none)) > len(prims_of(all_))
    counts = [len(prims_of(lowered(program, torch.randn(3), fuel=fuel)[0])) for fuel in range(8)]
    assert counts[0] == len(prims_of(none)) and counts[-1] == len(prims_of(all_))
    assert sorted(counts, reverse=True) == counts


def test_failing_decomposition_falls_back_unless_strict(monkeypatch):
    stage = importlib.import_module("prims.lower.decompose")

    def broken(p, *args, **kwargs):
        raise KeyError("oops")

    real = stage.get
    monkeypatch.setattr(stage, "get", lambda op: broken if "exp" in str(op) else real(op))
    env, expected = envelope(lambda call, x: call(aten.exp.default, x), torch.randn(3))
    report = Report()
    out = lower(env, options=Options(), report=report)
    assert overloads_of(out) == ["aten.exp.default"]
    assert "KeyError" in report.fallbacks[0].reason
    with pytest.raises(KeyError):
        lower(env, options=Options(strict=True))


def test_several_results():
    def program(call, x):
        out = call(aten.native_layer_norm.default, x, [8], None, None, 1e-5)
        return call.item(out, 0), call.item(out, 2)

    env, _ = lowered(program, torch.randn(4, 8))
    assert overloads_of(env) == []


def test_mean_and_variance_share_the_centred_values():
    env, _ = lowered(
        lambda call, x: call.item(call(aten.native_layer_norm.default, x, [8], None, None, 1e-5), 0), torch.randn(4, 8)
    )
    found = prims_of(env)
    assert found.count("sum") == 2
    assert found.count("sub") == 1


def test_as_strided_of_a_transposed_input():
    x = torch.randn(3, 4).t()

    def program(call, x):
        return (
            call(aten.as_strided.default, x, [2, 3], [1, 4], 1),
            call(aten.as_strided.default, x, [3, 2, 2], [4, 1, 1]),
            call(aten.as_strided.default, x, [12], [1]),
        )

    env, _ = lowered(program, x)
    assert overloads_of(env) == []


def test_as_strided_scatter():
    def program(call, x, y):
        return call(aten.as_strided_scatter.default, x, y, [2, 2], [4, 1], 1)

    lowered(program, torch.randn(3, 4), torch.randn(2, 2))


def test_as_strided_of_storage_with_holes_is_refused():
    """A logical array does not hold the elements between."""
    env, _ = envelope(lambda call, x: call(aten.as_strided.default, x, [3], [1]), torch.randn(4, 4)[:, :2])
    with pytest.raises(Unsupported, match="clone it first"):
        lower(env, options=Options())


def test_symbolic_sizes():
    """One lowering serves every batch and length: masked attention weights and a normalisation over them."""
    ctx = SymbolContext()
    b, t = ctx.new_symbol(3, "b"), ctx.new_symbol(17, "t")

    def program(call, x, w):
        scores = call(aten.bmm.default, x, call(aten.transpose.int, x, 1, 2))
        mask = call(aten.tril.default, call(aten.ones.default, [t, t]))
        seen = call(aten.where.ScalarOther, call(aten.gt.Scalar, mask, 0), scores, -float("inf"))
        mixed = call(aten.bmm.default, call(aten._softmax.default, seen, -1, False), x)
        rows = call(aten.view.default, mixed, [b * t, 8])
        return call(aten.mean.dim, call(aten.mm.default, rows, w), [0])

    def eager(x, w):
        seen = (x @ x.mT).masked_fill(torch.ones(x.shape[1], x.shape[1]).tril() == 0, -float("inf"))
        return ((seen.softmax(-1) @ x).reshape(-1, 8) @ w).mean(0)

    cpu = torch.device("cpu")
    specs = (TensorSpec((b, t, 8), torch.float32, cpu), TensorSpec((8, 4), torch.float32, cpu))
    env = symbolic_envelope(program, ctx, *specs)
    before = len(ctx.guards)
    out = lower(env, claims=frozenset({"aten.bmm.default"}), options=Options(verify="every_pass", strict=True))
    assert len(ctx.guards) == before
    assert overloads_of(out) == ["aten.bmm.default"] * 2
    module = out.module()
    for shape in ((3, 17, 8), (2, 5, 8), (7, 40, 8)):
        x, w = torch.randn(shape), torch.randn(8, 4)
        torch.testing.assert_close(module(x, w)[0], eager(x, w))


def test_what_is_late_is_no_node_that_was_made_before():
    """Marked, what a graph computes again for its derivatives stays apart through lowering; unmarked it is computed once."""

    def program(call, x):
        return [call(aten.silu.default, x), call(aten.silu.default, x), call(aten.silu.default, x)]

    for marks, made_as in (((None, None, None), [None]), ((None, "again", "gradient"), [None, "again"])):
        env, _ = envelope(program, torch.randn(4))
        nodes = [n for n in env.graph.nodes if n.op == "call_function"]
        for node, mark in zip(nodes, marks, strict=True):
            if mark is not None:
                node.meta["late"] = mark
        made = [n.meta.get("late") for n in lower(env).graph.nodes if n.op == "call_function"]
        assert list(dict.fromkeys(made)) == made_as and len(made) % len(made_as) == 0
        assert all(made.count(mark) == len(made) // len(made_as) for mark in made_as)
