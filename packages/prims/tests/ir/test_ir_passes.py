"""Passes: order, fuel, verification at both ends, observation; versions; running an envelope."""

from __future__ import annotations

import operator

import pytest
import torch
from ir_examples import Builder, aten, aten_example, prim_example, spec, torch_example

from prims.errors import VerifierError
from prims.ir import (
    Fuel,
    Pass,
    VersionError,
    consumable,
    convert,
    negotiate,
    parse_text,
    print_text,
    producible,
    run_passes,
    structural_difference,
    versions,
)
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext, TensorSpec

CPU = torch.device("cpu")


def rename(suffix):
    return lambda env: env.replace(producer=env.producer + suffix)


def breaks_it(env):
    graph, mapping = env.copy_graph()
    node = next(n for n in graph.nodes if n.target is aten.mul.Tensor)
    node.args = (node.args[0],)
    return env.replace(graph=graph)


def test_order_observer_and_report():
    seen, report = [], Report()
    result = run_passes(
        aten_example(),
        [Pass("one", rename(".1")), Pass("two", rename(".2"))],
        options=Options(),
        report=report,
        observer=lambda name, env: seen.append((name, env.producer)),
    )
    assert result.producer == "tests.1.2"
    assert seen == [("one", "tests.1"), ("two", "tests.1.2")]
    assert set(report.seconds) == {"pass:one", "pass:two"}


def test_fuel_stops_optional_passes_only():
    passes = [Pass("a", rename(".a")), Pass("must", rename(".m"), required=True), Pass("b", rename(".b"))]
    names = [run_passes(aten_example(), passes, options=Options(fuel=n)).producer for n in range(3)]
    assert names == ["tests.m", "tests.a.m", "tests.a.m.b"]


def test_fuel_counts_rewrites_and_remembers_the_last():
    def rewrite(env, fuel):
        for step in range(5):
            if not fuel.spend(f"step {step}"):
                break
        return env

    fuel = Fuel(3)
    run_passes(aten_example(), [Pass("rewrites", rewrite, takes_fuel=True)], options=Options(), fuel=fuel)
    assert (fuel.spent, fuel.last) == (3, "step 2")


@pytest.mark.parametrize("level", ["boundaries", "every_pass"])
def test_a_broken_pass_is_named(level):
    passes = [Pass("breaks it", breaks_it)]
    with pytest.raises(VerifierError, match="after pass 'breaks it'") as caught:
        run_passes(aten_example(), passes, options=Options(verify=level))
    assert caught.value.label == "ATEN-C3"
    run_passes(aten_example(), passes, options=Options(verify="off"))


def test_every_pass_finds_what_a_later_pass_would_hide():
    passes = [Pass("breaks it", breaks_it), Pass("repairs it", lambda env: aten_example())]
    run_passes(aten_example(), passes, options=Options(verify="boundaries"))
    with pytest.raises(VerifierError, match="breaks it"):
        run_passes(aten_example(), passes, options=Options(verify="every_pass"))


def changed_scale(env):
    graph, _ = env.copy_graph()
    node = next(n for n in graph.nodes if n.target is aten.add.Tensor)
    node.kwargs = {"alpha": -0.501}
    return env.replace(graph=graph)


def test_reference_level_finds_a_changed_result():
    same = Pass("keeps it", lambda env: env.replace(graph=env.copy_graph()[0]))
    passes = [same, Pass("changes it", changed_scale)]
    run_passes(aten_example(), passes, options=Options(verify="every_pass"))
    run_passes(aten_example(), [same], options=Options(verify="reference"))
    with pytest.raises(VerifierError, match="changes it") as caught:
        run_passes(aten_example(), passes, options=Options(verify="reference"))
    assert caught.value.label == "ENV-C14" and caught.value.node == "output 0"


def attending(dropout):
    b = Builder("aten")
    x = b.input("x", spec(1, 2, 8, 16))
    attention = aten._scaled_dot_product_flash_attention_for_cpu.default
    pair = b.call(attention, (x, x, x, dropout), (spec(1, 2, 8, 16), TensorSpec((1, 2, 8), torch.float32, CPU, (16, 1, 2))))
    out = b.call(operator.getitem, (pair, 0), spec(1, 2, 8, 16))
    return b.finish(b.call(aten.mul.Tensor, (out, 3), spec(1, 2, 8, 16)))


def negated(env):
    graph, _ = env.copy_graph()
    node = next(n for n in graph.nodes if n.target is aten.mul.Tensor)
    node.args = (node.args[0], -3)
    return env.replace(graph=graph)


def test_reference_level_compares_attention_and_names_what_it_does_not():
    passes, options = [Pass("changes it", negated)], Options(verify="reference")
    with pytest.raises(VerifierError, match="changes it"):
        run_passes(attending(0.0), passes, options=options)
    report = Report()
    run_passes(attending(0.5), passes, options=options, report=report)
    (record,) = report.fallbacks
    assert record.stage == "verify" and not record.eager
    assert "'changes it' was not compared" in record.reason and "flash_attention" in record.reason


def test_modules_run_with_any_size():
    env = aten_example()
    module = env.module()
    for width in (7, 4):
        x, t = torch.randn(3, width), torch.randn(3)
        new_t, first, wide = module(x, t)
        torch.testing.assert_close(new_t, t - 0.5 * x.sum(1) * env.constants["scale"])
        torch.testing.assert_close(first, x.max(1).values)
        assert wide.shape == (2 * width + 1,)


def test_symbolic_floats_stay_floats():
    context = SymbolContext()
    s0 = context.new_symbol(5, "x.size(0)")
    b = Builder("aten", context)
    x = b.input("x", spec(s0))
    env = b.finish(b.call(aten.div.Tensor, (x, s0**0.5), spec(s0)))
    for size in (5, 8):
        value = torch.randn(size)
        torch.testing.assert_close(env.module()(value)[0], value / size**0.5)
    assert structural_difference(env, parse_text(print_text(env))) is None


def test_prim_modules_run():
    x = torch.randn(6, 4)
    result, n = prim_example().module()(x, 9)
    expected = (x - x.sum(1, keepdim=True)) * 0.1
    torch.testing.assert_close(result, (expected @ expected.T).to(torch.int64))
    assert n == 9


def test_torch_modules_run():
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    first, full, column, size = torch_example().module()(x, w)
    expected = torch.nn.functional.gelu(x @ w.T, approximate="tanh").sin().view(-1)
    torch.testing.assert_close(first, expected[:4])
    torch.testing.assert_close(column, expected[:, None])
    assert full.tolist() == [float("inf")] * 16
    assert size == 16


def test_module_is_independent_of_the_envelope():
    b = Builder("aten")
    env = b.finish(b.call(aten.sin.default, (b.input("x", spec(2)),), spec(2)))
    module = env.module()
    next(n for n in module.graph.nodes if n.op == "call_function").target = aten.cos.default
    assert env.op_nodes[0].target is aten.sin.default


def test_negotiation():
    assert negotiate([(1, 0), (1, 1)], [(1, 0), (1, 1), (1, 2)]) == (1, 1)
    assert negotiate([(1, 2), (2, 0)], [(1, 1), (1, 2)]) == (1, 2)
    with pytest.raises(VersionError, match=r"writes 2\.0.*reads 1\.0, 1\.1"):
        negotiate([(2, 0)], [(1, 0), (1, 1)])
    for dialect in ("torch", "aten", "prim"):
        assert negotiate(producible(dialect), consumable(dialect)) == (1, 0)


def test_readable_versions(monkeypatch):
    monkeypatch.setitem(versions.CURRENT, "aten", (3, 2))
    monkeypatch.setitem(versions.RELEASED, "aten", ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)))
    assert consumable("aten") == ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2))
    assert producible("aten") == ((3, 1), (3, 2))


def test_conversion_takes_one_step_per_version(monkeypatch):
    monkeypatch.setattr(versions, "_STEPS", {})
    for source, target in (((1, 0), (1, 1)), ((1, 1), (1, 2)), ((1, 2), (1, 1))):
        versions.register_step("aten", source, target)(rename(f">{target[1]}"))
    env = aten_example()
    up = convert(env, (1, 2))
    assert (up.version, up.producer) == ((1, 2), "tests>1>2")
    assert convert(up, (1, 1)).producer == "tests>1>2>1"
    assert convert(env, (1, 0)) is env
    with pytest.raises(VersionError, match=r"from 1\.2 to 1\.0"):
        convert(up, (1, 0))
    with pytest.raises(ValueError, match="exists"):
        versions.register_step("aten", (1, 0), (1, 1))(rename("x"))
