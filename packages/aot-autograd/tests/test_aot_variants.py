"""A backward graph's compilation may ask about sizes, when the guards of its program have long been written."""

from __future__ import annotations

import pytest
import torch

from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.runtime.variants import MOST
from prims.errors import NotCompiled
from prims.ir import Envelope, InputDesc, SymbolTable
from prims.ir.envelope import OutputDesc
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext, TensorSpec
from prims.spec import expr as E

CPU = torch.device("cpu")


class Asking:
    """A compiler that goes by what it asks: the graphs that it makes are right for such sizes alone."""

    def __init__(self, question):
        self.question = question
        self.compiled = 0

    def __call__(self, env, report):
        context = env.symbols.context
        answer = context.evaluate(self.question(context.symbol("s0").expr), "a question of the compiler's")
        self.compiled += 1

        def run(saved, tangent):
            assert self.question(E.const(len(saved))).value is answer
            return (saved * tangent,)

        return run


def backward(question, options=None):
    """A backward graph of one saved tensor and one tangent, of a size that differs."""
    context = SymbolContext()
    spec = TensorSpec((context.new_symbol(4, min=1),), torch.float32, CPU)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("saved", "tangent")]
    for node in nodes:
        node.meta["spec"] = spec
    product = graph.call_function(torch.ops.aten.mul.Tensor, tuple(nodes))
    product.meta["spec"] = spec
    graph.output((product,))
    inputs = (InputDesc("saved", "saved", spec), InputDesc("tangent", "tangent", spec))
    env = Envelope(
        "aten", (1, 0), "test", "0", graph, inputs, (OutputDesc("gradient", spec),),
        SymbolTable.from_inputs(inputs, context),
    )  # fmt: skip
    compiler, report = Asking(question), Report()
    return LazyBackward(env, 1, 1, compiler, options or Options(), report), compiler, report, context


def check(lazy, size):
    saved, tangent = torch.randn(size), torch.randn(size)
    (gradient,) = lazy([saved, tangent])
    torch.testing.assert_close(gradient, saved * tangent)


def test_one_form_for_each_answer():
    lazy, compiler, report, context = backward(lambda s: E.eq(E.mod(s, 2), 0))
    for size in (4, 6, 7, 9, 8, 1, 2, 3):
        check(lazy, size)
    assert compiler.compiled == 2
    assert not report.fallbacks and not context.guards


def test_no_question_no_forms():
    lazy, compiler, _, _ = backward(lambda s: E.ge(s, 1))
    for size in (4, 6, 7, 1):
        check(lazy, size)
    assert compiler.compiled == 1


@pytest.mark.filterwarnings("ignore")
def test_a_form_for_each_size_ends_with_operators():
    lazy, compiler, report, _ = special(Options())
    for size in range(4, 4 + MOST + 3):
        check(lazy, size)
    check(lazy, 5)
    assert compiler.compiled == MOST
    assert any(f"for {MOST} cases of its sizes" in fallback.reason for fallback in report.fallbacks)


def test_that_is_refused_under_fullgraph():
    lazy, _, _, _ = special(Options(fullgraph=True))
    for size in range(4, 4 + MOST):
        check(lazy, size)
    with pytest.raises(NotCompiled):
        check(lazy, 4 + MOST)


def special(options):
    """A compiler that makes graphs for one size each."""
    lazy, compiler, report, context = backward(lambda s: E.TRUE, options)

    def compile(env, report):
        size = env.symbols.context.specialise(env.symbols.context.symbol("s0").expr)
        compiler.compiled += 1

        def run(saved, tangent):
            assert len(saved) == size
            return (saved * tangent,)

        return run

    lazy._compiler = compile
    return lazy, compiler, report, context
