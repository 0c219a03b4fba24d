"""Conditions of a compiled graph: asked of a call's inputs, of the sizes that are being compiled, and after a journey."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch

from prims.artefact import from_bytes, restore, to_bytes
from prims.errors import DataDependentError, StoredGraphError
from prims.ir import Envelope, InputDesc, SymbolTable
from prims.ir.blame import blaming
from prims.ir.conditions import Conditional, facts, learn
from prims.ir.envelope import SymbolBinding
from prims.ir.settle import settled
from prims.options import Options
from prims.spec import SymbolContext, TensorSpec
from prims.spec import expr as E

FLOAT = torch.float32
CPU = torch.device("cpu")


def envelope(*hints: int, low: int = 2) -> tuple[Envelope, SymbolContext]:
    """A graph that gives back its first input, whose dimensions are symbols."""
    context = SymbolContext()
    shape = [context.new_symbol(hint, f"size {at}", min=low) for at, hint in enumerate(hints)]
    spec = TensorSpec(shape, FLOAT, CPU)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["spec"] = spec
    graph.output((x,))
    inputs = (InputDesc("x", "input", spec),)
    return Envelope("aten", (1, 0), "test", "0", graph, inputs, (), SymbolTable.from_inputs(inputs, context)), context


class Run:
    """A compiled graph that can travel."""

    def __call__(self, x):
        return (x * 2,)

    def artefact(self):
        env, _ = envelope(4, 6)
        module = env.module()
        module.meta["envelope"] = env
        return blaming(module).artefact()


def compiled() -> tuple[Conditional, Envelope, SymbolContext]:
    env, context = envelope(4, 6)
    s0, s1 = (context.symbol(name).expr for name in ("s0", "s1"))
    with context.apart() as guards:
        assert context.evaluate(E.eq(E.mod(s0, 2), 0), "whether 2 divides it")
        assert not context.evaluate(E.eq(s0, s1), "whether they are equal")
    return Conditional.of(Run(), env, guards), env, context


def test_inputs_tell():
    conditional, _, _ = compiled()
    assert len(conditional.conditions) == 2
    told = {shape: conditional.holds([torch.empty(shape)]) for shape in ((4, 6), (6, 4), (5, 6), (6, 6), (8, 3))}
    assert told == {(4, 6): True, (6, 4): True, (5, 6): False, (6, 6): False, (8, 3): True}


def test_what_is_learned_apart_is_forgotten():
    _, _, context = compiled()
    s0, s1 = (context.symbol(name).expr for name in ("s0", "s1"))
    assert not context.guards
    assert context.statically_known(E.eq(E.mod(s0, 2), 0)) is None
    assert context.statically_known(E.eq(s0, s1)) is None
    with context.apart() as guards:
        context.specialise(s0)
        context.info("s1").hint = 9
        assert context.simplify(s0) is E.const(4)
    assert [str(guard.expr) for guard in guards] == ["s0 == 4"]
    assert context.simplify(s0) is s0 and context.info("s1").hint == 6 and context.info("s0").max is None


def test_conditions_are_guards_of_who_compiles():
    conditional, _, _ = compiled()
    _, other = envelope(8, 3)
    assert conditional.assumed_in(other)
    assert sorted(str(guard.expr) for guard in other.guards) == sorted(str(e) for e, _ in conditional.conditions)
    for hints in ((7, 3), (4, 4)):
        _, other = envelope(*hints)
        assert not conditional.assumed_in(other) and not other.guards
    assert not conditional.assumed_in(None)


def test_conditions_travel():
    conditional, _, _ = compiled()
    artefact = conditional.artefact()
    again = restore(from_bytes(to_bytes(artefact)), options=Options(), report=None)
    assert again.conditions == conditional.conditions
    assert again.holds([torch.empty(4, 6)]) and not again.holds([torch.empty(6, 6)])
    for key, value in (
        ("conditions", [["__import__('os')", "why"]]), ("conditions", [["s0 + 1", "why"]]), ("conditions", 3),
        ("places", {"s0": [-1, 0]}), ("places", {"s0": [0]}), ("places", {"s0": ["0", 0]}),
    ):  # fmt: skip
        with pytest.raises(StoredGraphError):
            restore(
                dataclasses.replace(artefact, text={**artefact.text, key: value}), options=Options(), report=None
            )


def test_what_the_inputs_do_not_tell_does_not_hold():
    conditional, env, _ = compiled()
    elsewhere = Conditional(Run(), [(E.eq(E.symbol("s7"), 2), "")], {})
    assert not elsewhere.holds([torch.empty(4, 6)])
    assert conditional.holds([torch.empty(4, 6)])


def test_facts_name_a_graph():
    env, context = envelope(4, 6)
    assert facts(env) == []
    context.evaluate(E.eq(E.mod(context.symbol("s0").expr, 2), 0), "")
    assert facts(env) == ["(s0 % 2) == 0"]


def test_for_all_sizes_nothing_goes_by_those_of_one_call():
    _, context = envelope(4, 6)
    s0 = context.symbol("s0").expr
    with context.for_all_sizes():
        assert context.evaluate(E.ge(s0, 2))
        with pytest.raises(DataDependentError, match="depends on the sizes"):
            context.evaluate(E.eq(s0, 4))
        with pytest.raises(DataDependentError):
            context.specialise(s0)
    assert not context.guards
    assert context.evaluate(E.eq(s0, 4))


def test_metadata_is_in_the_terms_that_guards_have_left():
    env, context = envelope(1, 6, low=1)
    assert settled(env) is env
    context.evaluate(E.eq(context.symbol("s0").expr, 1), "whether it is one")
    x = settled(env).placeholders()[0]
    assert x.meta["spec"].shape[0] == 1 and type(x.meta["spec"].shape[0]) is int
    assert type(env.placeholders()[0].meta["spec"].shape[0]) is not int


@pytest.mark.parametrize("seed", range(20))
def test_conditions_as_python_are_the_conditions(seed):
    draw = random.Random(seed)
    env, context = envelope(4, 6, 3, low=1)
    a, b, c = (context.symbol(f"s{at}").expr for at in range(3))
    terms = [a, b, c, E.floordiv(E.add(a, b), 2), E.mod(E.mul(a, c), 3), E.minimum(a, b), E.maximum(b, E.sub(c, 1))]
    with context.apart() as guards:
        for _ in range(3):
            relation = draw.choice((E.eq, E.ne, E.le, E.ge))
            context.evaluate(relation(E.add(*draw.sample(terms, 2)), draw.choice([*terms, 5])), "a question")
    conditional = Conditional.of(Run(), env, guards)
    told = set()
    for sizes in itertools.product(range(1, 7), repeat=3):
        answer = conditional.holds([torch.empty(sizes)])
        assert answer is conditional._evaluated([torch.empty(sizes)])
        told.add(answer)
    assert True in told


def test_conditions_on_floats_are_asked_of_their_bits():
    value = E.symbol("s0")
    condition = E.float_compare("flt", E.from_bits(value), E.fconst(2.5))
    conditional = Conditional(Run(), [(condition, "")], {"s0": SymbolBinding(1)})
    assert conditional.holds([torch.empty(1), 2.0]) and not conditional.holds([torch.empty(1), 3.0])


def test_facts_are_learned_where_a_graph_is_read():
    env, context = envelope(4, 6)
    context.evaluate(E.eq(E.mod(context.symbol("s0").expr, 2), 0), "")
    other, fresh = envelope(4, 6)
    learn(other, facts(env))
    assert facts(other) == facts(env)
    assert fresh.statically_known(E.eq(E.mod(fresh.symbol("s0").expr, 2), 0)) is True
    for texts in (["s0 + 1"], ["import os"], [3]):
        with pytest.raises(StoredGraphError):
            learn(other, texts)
