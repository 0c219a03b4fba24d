"""Every constraint has a negative test named by its label, and every example verifies."""

from __future__ import annotations

import operator
import pathlib
import time

import pytest
import torch
from ir_examples import EXAMPLES, Builder, aten, aten_example, prim_example, spec, torch_example

import prims.ops
from prims.errors import UserError, VerifierError
from prims.ir import CONSTRAINTS, Alias, InputDesc, Mutation, OutputDesc, verify
from prims.spec import SymbolContext


def node_of(env, target):
    return next(node for node in env.graph.nodes if node.target is target)


def unary(dialect, target, args=None, result=None, **kwargs):
    b = Builder(dialect)
    x = b.input("x", spec(2, 3))
    return b.finish(b.call(target, (x,) if args is None else args(x), result or spec(2, 3), **kwargs))


def with_input(env, **changes):
    first = env.inputs[0]
    fields = {name: getattr(first, name) for name in ("name", "kind", "spec", "requires_grad", "source")}
    return env.replace(inputs=(InputDesc(**{**fields, **changes}), *env.inputs[1:]))


def use_before_definition():
    env = unary("aten", aten.sin.default)
    env.graph.output_node().prepend(env.placeholders()[0])
    return env.replace(inputs=env.inputs)


def out_of_order():
    b = Builder("torch")
    x = b.input("x", spec(2))
    first = b.call(torch.sin, (x,), spec(2))
    second = b.call(torch.cos, (first,), spec(2))
    env = b.finish(second)
    second.append(first)
    return env


def negative_symbol(name):
    context = SymbolContext()
    b = Builder("aten", context)
    b.input("n", context.declare(name, -2, -9, -1), kind="size")
    return b.finish()


def late_placeholder():
    b = Builder("torch")
    x = b.input("x", spec(2))
    y = b.call(torch.sin, (x,), spec(2))
    b.input("late", spec(2))
    return b.finish(y)


def nested_output():
    b = Builder("torch")
    x = b.input("x", spec(2))
    b.graph.output(((x,),))
    return b_finish_without_output(b, (OutputDesc("output", spec(2)),))


def b_finish_without_output(b, outputs):
    other = Builder(b.dialect)
    other.input("x", spec(2))
    return other.finish().replace(graph=b.graph, inputs=tuple(b.inputs), outputs=outputs)


def unbound_symbol():
    context = SymbolContext()
    s0 = context.new_symbol(4, "x")
    b = Builder("aten", context)
    b.input("x", spec(2 * s0))
    return b.finish()


def foreign_symbol():
    s0 = SymbolContext().new_symbol(4, "x")
    return unary("aten", aten.full.default, lambda x: ([s0], 1.0), spec(4))


def without(env, key, target):
    del node_of(env, target).meta[key]
    return env


def wrong_metadata(env, target, value):
    node_of(env, target).meta["spec"] = value
    return env


def with_call_method(dialect):
    b = Builder(dialect)
    return b.finish(b.method("sin", (b.input("x", spec(2)),), spec(2)))


def symint_argument(dialect):
    size = torch.SymInt(SymbolContext().new_symbol(4, "x"))
    if dialect == "torch":
        return unary("torch", torch.sin, lambda x: (x, size))
    return unary(dialect, aten.full.default, lambda x: ([size], 1.0))


def bad_getitem(dialect):
    b = Builder(dialect)
    x = b.input("x", spec(3))
    pair = b.call(aten.max.dim, (x, 0), (spec(), spec(dtype=torch.int64)))
    return b.finish(b.call(operator.getitem, (pair, 2), spec()))


def getitem_metadata(dialect):
    b = Builder(dialect)
    x = b.input("x", spec(3))
    pair = b.call(aten.max.dim, (x, 0), (spec(), spec(dtype=torch.int64)))
    return b.finish(b.call(operator.getitem, (pair, 1), spec()))


def table(name):
    from prims.ops import TABLE

    return TABLE[name]


CASES = [
    ("ENV-C1", lambda: torch_example().replace(dialect="stablehlo")),
    ("ENV-C1", lambda: torch_example().replace(version=(9, 0))),
    ("ENV-C2", lambda: torch_example().replace(inputs=torch_example().inputs[:1])),
    ("ENV-C2", late_placeholder),
    ("ENV-C3", lambda: with_input(torch_example(), kind="weight")),
    ("ENV-C3", lambda: with_input(torch_example(), name="w")),
    ("ENV-C3", lambda: with_input(torch_example(), name="self.x")),
    ("ENV-C4", lambda: with_input(torch_example(), kind="size")),
    ("ENV-C4", lambda: with_input(torch_example(), spec=3)),
    ("ENV-C5", lambda: torch_example().replace(outputs=())),
    ("ENV-C5", nested_output),
    ("ENV-C6", lambda: torch_example().replace(outputs=(OutputDesc("result", spec(4)),) * 4)),
    ("ENV-C7", lambda: aten_example().replace(outputs=(OutputDesc("output", spec(4)),) * 3)),
    ("ENV-C7", lambda: aten_example().replace(outputs=(OutputDesc("output", spec(3, dtype=torch.int64)),) * 3)),
    ("ENV-C8", lambda: aten_example().replace(mutations=(Mutation(9, 0),))),
    ("ENV-C8", lambda: aten_example().replace(mutations=(Mutation(1, 1),))),
    ("ENV-C8", lambda: aten_example().replace(mutations=(Mutation(1, 0), Mutation(1, 0)))),
    ("ENV-C8", lambda: aten_example().replace(mutations=())),
    ("ENV-C9", lambda: aten_example().replace(aliases=(Alias(1, "input", 9),))),
    ("ENV-C9", lambda: aten_example().replace(aliases=(Alias(1, "graph", 0),))),
    ("ENV-C9", lambda: aten_example().replace(aliases=(Alias(1, "output", 2), Alias(1, "output", 1)))),
    ("ENV-C10", unbound_symbol),
    ("ENV-C10", foreign_symbol),
    ("ENV-C15", lambda: negative_symbol("s0")),
    ("ENV-C15", lambda: negative_symbol("index")),
    ("ENV-C11", lambda: aten_example().replace(constants={})),
    ("ENV-C11", lambda: aten_example().replace(constants={"scale": 3.0})),
    ("ENV-C12", out_of_order),
    ("ENV-C13", lambda: without(torch_example(), "spec", torch.sin)),
    ("TORCH-C1", lambda: call_module()),
    ("TORCH-C2", lambda: with_unknown_method()),
    ("TORCH-C3", lambda: symint_argument("torch")),
    ("ATEN-C1", lambda: with_call_method("aten")),
    ("ATEN-C2", lambda: unary("aten", torch.sin)),
    ("ATEN-C2", lambda: unary("aten", aten.sin)),
    ("ATEN-C3", lambda: unary("aten", aten.sin.default, lambda x: ())),
    ("ATEN-C3", lambda: unary("aten", aten.sin.default, lambda x: (x, x))),
    ("ATEN-C3", lambda: unary("aten", aten.sin.default, lambda x: ("x",))),
    ("ATEN-C3", lambda: unary("aten", aten.gelu.default, kwargs={"approximate": 3})),
    ("ATEN-C3", lambda: unary("aten", aten.gelu.default, kwargs={"exact": True})),
    ("ATEN-C3", lambda: unary("aten", aten.cat.default, lambda x: ([x, 3],))),
    ("ATEN-C3", lambda: unary("aten", aten.sum.dim_IntList, lambda x: (x, [0]), spec(3), kwargs={"dim": [0]})),
    ("ATEN-C4", lambda: unary("aten", aten.add_.Tensor, lambda x: (x, x))),
    ("ATEN-C4", lambda: unary("aten", aten.sin.out, kwargs={})),
    ("ATEN-C5", lambda: symint_argument("aten")),
    ("ATEN-C5", lambda: unary("aten", aten.add.Tensor, lambda x: (x, torch.ones(2)))),
    ("ATEN-C6", lambda: wrong_metadata(aten_example(), aten.mul.Tensor, spec(3, dtype=torch.float64))),
    ("ATEN-C7", lambda: bad_getitem("aten")),
    ("ATEN-C7", lambda: getitem_metadata("aten")),
    ("PRIM-C1", lambda: with_call_method("prim")),
    ("PRIM-C2", lambda: unary("prim", torch.sin)),
    ("PRIM-C3", lambda: unary("prim", table("sin"), lambda x: ())),
    ("PRIM-C3", lambda: unary("prim", table("sin"), lambda x: ("x",))),
    ("PRIM-C3", lambda: unary("prim", table("sum"), lambda x: (x, (-1,)))),
    ("PRIM-C3", lambda: unary("prim", table("convert"), lambda x: (x,), kwargs={"dtype": torch.int64})),
    ("PRIM-C4", lambda: unary("prim", aten.add_.Tensor, lambda x: (x, x))),
    ("PRIM-C4", lambda: unary("prim", aten.mm.default)),
    ("PRIM-C5", lambda: symint_argument("prim")),
    ("PRIM-C6", lambda: wrong_metadata(prim_example(), table("mul"), spec(3, 4))),
    ("PRIM-C7", lambda: bad_getitem("prim")),
    ("PRIM-C7", lambda: getitem_metadata("prim")),
]


def call_module():
    b = Builder("torch")
    x = b.input("x", spec(2))
    node = b.graph.create_node("call_module", "fc", (x,))
    node.meta["spec"] = spec(2)
    return b.finish(node)


def with_unknown_method():
    b = Builder("torch")
    return b.finish(b.method("no_such_method", (b.input("x", spec(2)),), spec(2)))


@pytest.mark.filterwarnings("ignore:Raw SymInt")
@pytest.mark.parametrize(("label", "make"), CASES, ids=[f"{label}-{i}" for i, (label, _) in enumerate(CASES)])
def test_negative(label, make):
    with pytest.raises(VerifierError) as caught:
        verify(make(), "every_pass" if "every_pass" in CONSTRAINTS[label] else "boundaries")
    assert caught.value.label == label, caught.value
    assert f"[{label}]" in str(caught.value)


def test_every_constraint_has_a_negative_test():
    # ENV-C14 is about passes; its negative test is in test_ir_passes.py.
    assert {label for label, _ in CASES} | {"ENV-C14"} == set(CONSTRAINTS)


def test_specification_lists_every_constraint():
    page = pathlib.Path(__file__).parents[4] / "docs" / "ir.md"
    text = page.read_text()
    for label, sentence in CONSTRAINTS.items():
        assert f"**{label}**: {sentence}" in text, label


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("level", ["off", "boundaries", "every_pass"])
def test_examples_verify(name, level):
    verify(EXAMPLES[name](), level)


def test_off_checks_nothing_and_unknown_levels_are_errors():
    verify(torch_example().replace(dialect="nonsense"), "off")
    with pytest.raises(UserError, match="sometimes"):
        verify(torch_example(), "sometimes")


def test_boundary_check_is_cheap_and_linear():
    """A model of BERT's size (about 1500 nodes) verifies in a small part of a compile."""
    seconds = {}
    for size in (500, 1500):
        b = Builder("aten")
        x = y = b.input("x", spec(4, 4))
        for _ in range(size // 2):
            y = b.call(aten.add.Tensor, (y, x), spec(4, 4), {"alpha": 2})
            y = b.call(aten.view.default, (y, [4, 4]), spec(4, 4))
        env = b.finish(y)
        verify(env)
        samples = []
        for _ in range(10):
            # CPU time: other processes on the machine do not count.
            start = time.thread_time()
            verify(env)
            samples.append(time.thread_time() - start)
        seconds[size] = min(samples)
    assert seconds[1500] < 0.05, seconds
    assert seconds[1500] < 8 * seconds[500], seconds


@pytest.mark.parametrize("bad", ["dimension", "type", "name", "order"])
def test_a_call_after_an_accepted_one_of_its_operator_is_checked(bad):
    b = Builder("prim")
    x, y = b.input("x", spec(2, 3)), b.input("y", spec(2, 3))
    made = [b.call(prims.ops.sum, (one, (1,)), spec(2)) for one in (x, y, x)]
    env = b.finish(*made)
    verify(env)
    last = made[-1]
    if bad == "dimension":
        last.args = (x, (-1,))
    elif bad == "type":
        last.args = (x, (1.0,))
    elif bad == "name":
        last.args, last.kwargs = (x,), {"dims": (1,)}
    else:
        last.args = (made[1], (0,))
        made[1].prepend(last)
    with pytest.raises(VerifierError, match="ENV-C12" if bad == "order" else "PRIM-C3"):
        verify(env)
