"""What programs call by the names of ``torch.compiler`` and ``torch._dynamo``, and by ours, inside compiled regions."""

from __future__ import annotations

import functools
import operator
import random

import pytest
import torch
import torch._dynamo  # a program that uses these names has it

import compile_api
import dynamo_capture
from dynamo_capture import promises
from prims.errors import NotCompiled, UserError
from prims.options import Options
from prims.spec import TensorSpec

X = torch.arange(4.0)


class Captured:
    """A function under capture, with the graphs that it gave, which run as they are."""

    def __init__(self, fn, **options):
        self.fn, self.graphs = fn, []
        options.setdefault("strict", True)
        self.compiled = dynamo_capture.optimize(fn, self.backend, options=Options(**options))
        self.report = self.compiled.__quintet_optimizer__.report

    @dynamo_capture.supports_dynamic_shapes
    def backend(self, gm, inputs):
        self.graphs.append(gm)
        return gm.forward

    def __call__(self, *args, **kwargs):
        return self.compiled(*args, **kwargs)


@pytest.fixture
def capture():
    yield Captured
    dynamo_capture.reset()


def reasons(made):
    return [b.reason for b in made.report.breaks]


# --- breaks and disabled functions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [torch._dynamo.graph_break, dynamo_capture.graph_break], ids=["theirs", "ours"])
def test_graph_break(capture, call):
    def fn(x):
        x = x + 1
        call()
        return x * 2

    made = capture(fn)
    assert torch.equal(made(X), fn(X)) and len(made.graphs) == 2
    assert reasons(made) == ["graph_break() was called [QB20]"]


def test_graph_break_with_a_message(capture):
    def fn(x):
        x = x + 1
        torch._dynamo.graph_break(msg="here")
        return x

    made = capture(fn)
    made(X)
    assert reasons(made) == ["graph_break() was called: here [QB20]"]


def looks(x):
    return (x * 3, torch.compiler.is_compiling(), dynamo_capture.is_compiling())


DISABLED = {
    "torch.compiler.disable": torch.compiler.disable(looks, reason="it looks"),
    "torch.compiler.disable()": torch.compiler.disable(reason="it looks")(looks),
    "torch._dynamo.disable": torch._dynamo.disable(looks, reason="it looks"),
    "ours": dynamo_capture.disable(looks, reason="it looks"),
    "ours()": dynamo_capture.disable(reason="it looks")(looks),
}


@pytest.mark.parametrize("name", DISABLED)
def test_disabled_functions_run_eagerly(capture, name):
    disabled = DISABLED[name]

    def fn(x):
        y, *said = disabled(x + 1)
        return y - 1, said

    made = capture(fn)
    y, said = made(X)
    assert torch.equal(y, (X + 1) * 3 - 1) and said == [False, False]
    assert reasons(made) == ["call of a function under disable(): it looks [QB04]"] and len(made.graphs) == 2


@pytest.mark.parametrize("disable", [torch.compiler.disable, torch._dynamo.disable, dynamo_capture.disable])
def test_disabled_but_not_what_it_calls(capture, disable):
    def inner(x):
        return x.sin(), torch.compiler.is_compiling()

    @functools.partial(disable, recursive=False)
    def outer(x):
        y, compiling = inner(x)
        return y, compiling, torch.compiler.is_compiling()

    def fn(x):
        return outer(x + 1)

    made = capture(fn)
    y, inside, outside = made(X)
    assert torch.equal(y, (X + 1).sin()) and (inside, outside) == (True, False)
    assert [n.target for n in made.graphs[1].graph.nodes if n.op.startswith("call")] in (["sin"], [torch.sin])


def test_a_wrapper_that_looks_disabled_is_captured(capture):
    """``functools.wraps`` copies the attributes of PyTorch's wrapper to a function that is none."""

    @functools.wraps(DISABLED["torch.compiler.disable"])
    def wrapped(x):
        return x * 5

    made = capture(lambda x: wrapped(x) + 1, fullgraph=True)
    assert torch.equal(made(X), X * 5 + 1)


# --- questions ------------------------------------------------------------------------------------------------------

ANSWERS = {
    "torch.compiler.is_compiling": (torch.compiler.is_compiling, True),
    "torch.compiler.is_dynamo_compiling": (torch.compiler.is_dynamo_compiling, True),
    "torch._dynamo.is_compiling": (torch._dynamo.is_compiling, True),
    "torch._dynamo.external_utils.is_compiling": (torch._dynamo.external_utils.is_compiling, True),
    "is_compiling": (dynamo_capture.is_compiling, True),
    "is_dynamo_compiling": (dynamo_capture.is_dynamo_compiling, True),
    "torch.compiler.is_exporting": (torch.compiler.is_exporting, False),
    "is_exporting": (dynamo_capture.is_exporting, False),
}


@pytest.mark.filterwarnings("ignore:`torch._dynamo")
@pytest.mark.parametrize("name", ANSWERS)
def test_questions(capture, name):
    ask, answer = ANSWERS[name]
    made = capture(lambda x: (x + 1, ask()), fullgraph=True)
    assert made(X)[1] is answer and ask() is False


def test_is_exporting_while_exporting():
    def fn(x):
        if torch.compiler.is_exporting() and dynamo_capture.is_exporting() and torch.compiler.is_compiling():
            return x * 2
        return x * 3

    env = dynamo_capture.export_graph(fn, X).envelope
    assert torch.equal(env.module()(X)[0], X * 2)


def test_settings_of_torchs_compiler_are_read_and_guarded(capture):
    def fn(x):
        return x * torch._dynamo.config.cache_size_limit

    made = capture(fn, fullgraph=True)
    assert torch.equal(made(X), fn(X))
    with torch._dynamo.config.patch(cache_size_limit=77):
        assert torch.equal(made(X), X * 77)
    assert torch.equal(made(X), fn(X)) and len(made.graphs) == 2


@pytest.mark.parametrize("call", [torch.compiler.cudagraph_mark_step_begin, dynamo_capture.cudagraph_mark_step_begin])
def test_steps_are_not_announced(capture, call):
    def fn(x):
        call()
        return x + 1

    made = capture(fn, fullgraph=True)
    assert torch.equal(made(X), X + 1)


@pytest.mark.parametrize("mark", [torch.compiler.nested_compile_region, dynamo_capture.nested_compile_region])
def test_nested_regions_are_inlined(capture, mark):
    @mark
    def layer(x, w):
        return (x * w).sin()

    w = torch.randn(4, requires_grad=True)

    def fn(x):
        return layer(layer(x, w), w).sum()

    made = capture(fn, fullgraph=True)
    got = made(X)
    (grad,) = torch.autograd.grad(got, w)
    assert torch.equal(got, fn(X)) and torch.equal(grad, torch.autograd.grad(fn(X), w)[0])
    assert sum("sin" in str(n.target) for n in made.graphs[0].graph.nodes) == 2


def test_nested_region_with_arguments():
    assert dynamo_capture.nested_compile_region(is_pure=True)(looks) is looks


@pytest.mark.parametrize("change", [torch.compiler.reset, torch._dynamo.reset])
def test_what_changes_torchs_compiler_ends_the_graph(capture, change):
    def fn(x):
        x = x + 1
        change()
        return x * 2

    made = capture(fn)
    assert torch.equal(made(X), fn(X)) and len(made.graphs) == 2 and "reset()" in reasons(made)[0]


# --- functions that the user says something about -------------------------------------------------------------------


@pytest.mark.parametrize("allow", [torch.compiler.allow_in_graph, torch._dynamo.allow_in_graph, dynamo_capture.allow_in_graph])
def test_allowed_functions_are_one_call_with_gradients(capture, allow):
    w = torch.randn(4, requires_grad=True)

    def opaque(x, w, *, factor):
        assert "x" in locals()  # capture would break here
        return x * w * factor, [w.sin()]

    allow(opaque)

    def fn(x):
        a, (b,) = opaque(x + 1, w, factor=3)
        return (a * b).sum()

    made = capture(fn, fullgraph=True)
    got = made(X)
    (grad,) = torch.autograd.grad(got, w)
    assert torch.equal(got, fn(X)) and torch.equal(grad, torch.autograd.grad(fn(X), w)[0])
    assert [n.target for n in made.graphs[0].graph.nodes].count(opaque) == 1


def test_a_list_of_functions_is_allowed(capture):
    def one(x):
        return x + 1

    def two(x):
        return x * 2

    assert dynamo_capture.allow_in_graph([one, two]) == [one, two]
    made = capture(lambda x: two(one(x)), fullgraph=True)
    assert torch.equal(made(X), (X + 1) * 2)
    assert [n.target for n in made.graphs[0].graph.nodes if n.op == "call_function"] == [one, two]
    with pytest.raises(UserError, match="not callable"):
        dynamo_capture.allow_in_graph(3)


@pytest.mark.parametrize("assume", [torch.compiler.assume_constant_result, dynamo_capture.assume_constant_result])
def test_a_result_that_is_assumed_constant(capture, assume):
    calls = []

    class Config:
        scale = 2.0

        @assume
        def read(self, name):
            calls.append((torch.compiler.is_compiling(), name))
            return open(__file__).read(1) and [self.scale, random.random()][0]

    config, other = Config(), Config()
    other.scale = 5.0

    def fn(x, config, name="scale"):
        return x * config.read(name)

    made = capture(fn, fullgraph=True)
    assert torch.equal(made(X, config), X * 2) and calls == [(False, "scale")]
    config.scale = 7.0  # not seen: that it does not matter was promised
    assert torch.equal(made(X, config), X * 2) and len(calls) == 1
    assert torch.equal(made(X, other), X * 5)  # another object: guarded
    assert torch.equal(made(X, config, "other"), X * 7) and calls[-1] == (False, "other")  # another argument: guarded
    assert torch.equal(made(X, config), X * 2) and len(made.graphs) == 3


def test_a_constant_tensor_and_an_object(capture):
    table = torch.randn(4)

    @dynamo_capture.assume_constant_result
    def tables():
        return {"w": table * 2, "n": 3}

    made = capture(lambda x: x * tables()["w"] + tables()["n"], fullgraph=True)
    assert torch.equal(made(X), X * (table * 2) + 3)


def test_constants_that_cannot_be(capture):
    @dynamo_capture.assume_constant_result
    def of(x):
        return 1

    made = capture(lambda x: x * of(x))
    assert torch.equal(made(X), X) and "assumed to be constant, of a tensor" in reasons(made)[0]

    @dynamo_capture.assume_constant_result
    def fails():
        raise KeyError("no")

    def fn(x):
        try:
            return x + fails()
        except KeyError:
            return x - 1

    made = capture(fn, fullgraph=True)
    assert torch.equal(made(X), X - 1)
    with pytest.raises(UserError, match="Pass a Python function"):
        dynamo_capture.assume_constant_result(len)


def test_a_polyfill_is_captured_and_the_original_runs(capture, monkeypatch):
    monkeypatch.setattr(promises, "_substitutes", {})
    import zlib

    original = zlib.crc32

    @dynamo_capture.substitute_in_graph(original, skip_signature_check=True)
    def first(data, start=0):
        return data[0] + start

    def fn(x):
        return x * zlib.crc32(b"abc")

    made = capture(fn, fullgraph=True)
    assert torch.equal(made(X), X * 97)
    assert torch.equal(fn(X), X * original(b"abc"))  # eager has the original
    with pytest.raises(UserError, match="substituted by"):
        dynamo_capture.substitute_in_graph(original, skip_signature_check=True)(lambda data, start=0: 0)
    with pytest.raises(UserError, match="Give both the same parameters"):
        dynamo_capture.substitute_in_graph(operator.indexOf)(lambda a: a)
    with pytest.raises(UserError, match="it is no function"):
        dynamo_capture.substitute_in_graph(3)


def test_a_polyfill_of_a_python_function_with_gradients(capture, monkeypatch):
    monkeypatch.setattr(promises, "_substitutes", {})

    def original(x):
        return x.detach().numpy() and x

    @dynamo_capture.substitute_in_graph(original)
    def polyfill(x):
        return x * x

    w = torch.randn(4, requires_grad=True)
    made = capture(lambda x: original(x * w).sum(), fullgraph=True)
    (grad,) = torch.autograd.grad(made(X), w)
    assert torch.allclose(grad, 2 * X * X * w)


def test_a_polyfill_of_torchs_registry(capture):
    import binascii

    @torch.compiler.substitute_in_graph(binascii.crc_hqx, skip_signature_check=True)
    def crc(data, start):
        return len(data) + start

    made = capture(lambda x: x * binascii.crc_hqx(b"abc", 4), fullgraph=True)
    assert torch.equal(made(X), X * 7)


# --- error_on_graph_break -------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize(
    "errors", [torch._dynamo.error_on_graph_break, dynamo_capture.error_on_graph_break], ids=["theirs", "ours"]
)


@BOTH
def test_breaks_as_errors_in_a_part(capture, errors):
    def fn(x, where):
        x = x + 1
        if where == "before":
            dynamo_capture.graph_break()
        with errors(True):
            x = x * 2
            if where == "in":
                dynamo_capture.graph_break("in")
            with errors(False):
                x = x + 2
                if where == "allowed":
                    dynamo_capture.graph_break()
        if where == "after":
            dynamo_capture.graph_break()
        return x - 1

    for where, graphs in (("none", 1), ("before", 2), ("allowed", 2), ("after", 2)):
        made = capture(fn, strict=False)
        assert torch.equal(made(X, where), fn(X, where)), where
        assert torch.equal(made(X, where), fn(X, where)) and len(made.graphs) == graphs, where
        assert dynamo_capture.marks.breaks_refused() == (None, False)
    made = capture(fn, strict=False)
    with pytest.raises(NotCompiled, match=r"(?s)error_on_graph_break is set, but the graph breaks in .*: in \[QB20\].*test_comp"):
        made(X, "in")
    assert dynamo_capture.marks.breaks_refused() == (None, False)


@BOTH
def test_breaks_as_errors_of_a_decorated_callee(capture, errors):
    def callee(x, breaks):
        x = x * 2
        if breaks:
            dynamo_capture.graph_break()
        return x + 1

    def other(x, breaks):
        return callee(x, breaks)

    refusing, allowing = errors(True)(callee), errors(False)(callee)

    def fn(x, call):
        return call(x + 1, True) - 1

    made = capture(fn, strict=False)
    with pytest.raises(NotCompiled, match="error_on_graph_break is set"):
        made(X, refusing)
    made = capture(errors(True)(fn), strict=False)
    assert torch.equal(made(X, allowing), fn(X, callee)) and made.report.breaks
    dynamo_capture.reset()
    made = capture(errors(True)(fn), strict=False)
    with pytest.raises(NotCompiled):
        made(X, other)
    assert dynamo_capture.marks.breaks_refused() == (None, False)


@BOTH
def test_breaks_as_errors_around_the_call(capture, errors):
    def fn(x):
        x = x + 1
        dynamo_capture.graph_break()
        return x * 2

    made = capture(fn, strict=False)
    with errors(True), pytest.raises(NotCompiled):
        made(X)
    assert torch.equal(made(X), fn(X))
    with errors(True):  # captured already
        assert torch.equal(made(X), fn(X))


# --- marks ----------------------------------------------------------------------------------------------------------


def recompiled(made, *sizes):
    for n in sizes:
        x = torch.rand(n, 3)
        assert torch.allclose(made(x), made.fn(x))
    return len(made.report.recompiles)


def total(x):
    return (x * 2 + 1).sum(1)


MARKS = {
    "mark_dynamic": (torch._dynamo.mark_dynamic, dynamo_capture.mark_dynamic),
    "maybe_mark_dynamic": (torch._dynamo.maybe_mark_dynamic, dynamo_capture.maybe_mark_dynamic),
    "mark_unbacked": (torch._dynamo.decorators.mark_unbacked, dynamo_capture.mark_unbacked),
}


@pytest.mark.parametrize("whose", [0, 1], ids=["theirs", "ours"])
@pytest.mark.parametrize("name", MARKS)
def test_marks_make_sizes_symbolic_at_once(capture, name, whose):
    x = torch.rand(5, 3)
    MARKS[name][whose](x, 0)
    made = capture(total, fullgraph=True)
    made(x)
    assert recompiled(made, 6, 2, 40) == 0 and len(made.graphs) == 1
    spec = next(n for n in made.graphs[0].graph.nodes if n.op == "placeholder").meta["spec"]
    assert isinstance(spec, TensorSpec) and not isinstance(spec.shape[0], int) and spec.shape[1] == 3
    assert recompiled(made, 1) == (0 if name == "mark_unbacked" else 1)
    assert recompiled(made, 0) <= 2  # a sum of nothing may be asked about


@pytest.mark.parametrize("whose", [0, 1], ids=["theirs", "ours"])
def test_a_range_is_guarded(capture, whose):
    x = torch.rand(5, 3)
    MARKS["mark_dynamic"][whose](x, 0, min=4, max=10)
    made = capture(lambda x: total(x) if x.shape[0] > 3 else x.sum(1), fullgraph=True)
    made(x)
    assert "control flow" not in str(made.report.guards)  # the range decides it
    assert recompiled(made, 4, 10) == 0
    assert recompiled(made, 11) == 1


def test_a_range_below_two_guards_the_other_sizes(capture):
    x = torch.rand(5, 6)
    dynamo_capture.mark_unbacked(x, 0)
    dynamo_capture.mark_dynamic(x, 1)
    made = capture(lambda x: x * 2 if x.shape[1] >= 2 else x * 3, fullgraph=True)
    for shape in ((5, 6), (1, 6), (7, 2), (4, 1)):
        y = torch.rand(shape)
        if shape == (5, 6):
            y = x
        assert torch.equal(made(y), made.fn(y)), shape
    assert len(made.report.recompiles) == 1


def test_a_name_is_shared(capture):
    x, y = torch.rand(5, 3), torch.rand(5, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0, shape_id="batch")
    torch._dynamo.decorators.mark_unbacked(y, 0, shape_id="batch")
    made = capture(lambda x, y: x.sum(1) + y.sum(1), fullgraph=True)
    made(x, y)
    specs = [n.meta["spec"] for n in made.graphs[0].graph.nodes if n.op == "placeholder"]
    assert specs[0].shape[0].expr == specs[1].shape[0].expr
    made(torch.rand(8, 3), torch.rand(8, 3))
    assert not made.report.recompiles
    dynamo_capture.mark_dynamic(z := torch.rand(6, 3), 0, name="n")
    dynamo_capture.mark_dynamic(x := torch.rand(6, 3), 0, name="n")
    other = capture(lambda x, y: (x.sum(1) * 2, y.sum(1)), fullgraph=True)
    other(x, z)
    other(torch.rand(9, 3), torch.rand(9, 3))
    assert not other.report.recompiles
    other(torch.rand(9, 3), torch.rand(8, 3))  # that they are equal is guarded
    assert len(other.report.recompiles) == 1
    dynamo_capture.mark_dynamic(z := torch.rand(7, 3), 0, name="n")
    with pytest.raises(UserError, match="sizes that are called 'n' differ: dimension 0 of y is 7, where another is 6"):
        capture(lambda x, y: (x.sum(1), y.sum(1)))(x, z)


@pytest.mark.parametrize("mark", [torch._dynamo.mark_static, dynamo_capture.mark_static], ids=["theirs", "ours"])
def test_static_marks(capture, mark):
    made = capture(total, dynamic=True, fullgraph=True)
    for n in (5, 6):
        x = torch.rand(n, 3)
        mark(x)
        made(x)
    assert len(made.report.recompiles) == 1
    spec = next(n for n in made.graphs[1].graph.nodes if n.op == "placeholder").meta["spec"]
    assert spec.shape == (6, 3)


def test_dynamic_marks_of_torch_come_before_its_static_ones(capture):
    x = torch.rand(5, 3)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_static(x, 0)
    made = capture(total, fullgraph=True)
    made(x)
    assert recompiled(made, 9) == 0


@pytest.mark.parametrize("mark", [torch._dynamo.mark_static, dynamo_capture.mark_static], ids=["theirs", "ours"])
def test_static_marks_inside(capture, mark):
    def fn(x):
        y = torch.cat([x, x])
        mark(y, 0)
        return y * 2

    made = capture(fn, dynamic=True, fullgraph=True)
    for n in (5, 6, 5):
        made(torch.rand(n, 3))
    assert len(made.report.recompiles) == 1
    assert next(n.meta["spec"] for n in made.graphs[1].graph.nodes if n.op == "placeholder").shape[0] == 6


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("whose", [0, 1], ids=["theirs", "ours"])
def test_marks_inside_come_too_late(capture, name, whose):
    def fn(x):
        y = x * 2
        MARKS[name][whose](y, 0)
        return y + 1

    made = capture(fn)
    assert torch.equal(made(X), X * 2 + 1) and "[QB26]" in reasons(made)[0]


def test_a_size_that_the_program_fixes_is_told_of(capture):
    x = torch.rand(5, 3)
    dynamo_capture.mark_dynamic(x, 0)
    made = capture(lambda x: x.view(5, 3) * 2)
    with pytest.warns(match="dimension 0 of x was marked dynamic, but the program fixes it to 5") as warned:
        made(x)
    (fallback,) = made.report.fallbacks
    assert not fallback.eager and __file__ in fallback.where and warned[0].filename == __file__
    x = torch.rand(5, 3)
    dynamo_capture.maybe_mark_dynamic(x, 0)
    quiet = capture(lambda x: x.view(5, 3) * 2)
    quiet(x)
    assert not quiet.report.fallbacks


def test_what_cannot_be_marked():
    for mark in (dynamo_capture.mark_dynamic, dynamo_capture.maybe_mark_dynamic, dynamo_capture.mark_unbacked):
        with pytest.raises(UserError, match="not a tensor"):
            mark(3, 0)
        with pytest.raises(IndexError):
            mark(X, 1)
    with pytest.raises(UserError, match="not a tensor"):
        dynamo_capture.mark_static(3)
    with pytest.raises(UserError, match=r"outside of \[5, inf\]"):
        dynamo_capture.mark_dynamic(torch.rand(4), 0, min=5)
    with pytest.raises(UserError, match=r"outside of \[0, 3\]"):
        dynamo_capture.mark_unbacked(torch.rand(4), 0, max=3)


def test_programs_on_promises_are_not_stored(monkeypatch, tmp_path):
    import zlib

    import compile_api

    monkeypatch.setattr(promises, "_substitutes", {})

    @dynamo_capture.assume_constant_result
    def read():
        return 3

    @dynamo_capture.substitute_in_graph(zlib.crc32, skip_signature_check=True)
    def polyfill(data, value=0):
        return len(data) + value

    for program, said in ((lambda x: x * read(), "assumed to be constant"), (lambda x: x * zlib.crc32(b"a"), "place")):
        options = {"program_cache": True, "cache_dir": str(tmp_path)}
        made = compile_api.compile(program, options=options)
        assert torch.equal(made(X), X * (3 if "constant" in said else 1))
        last = made.report().programs[-1]
        assert last.status == "not stored" and said in last.reason


@pytest.mark.parametrize("numbers", [(1, 2, 3, 1, 2, 3), (1.5, 2.5, 3.5, 1.5, 2.5, 3.5)], ids=["ints", "floats"])
def test_a_constant_of_a_number_that_changes(numbers):
    """Which is the number of each call, though it has changed before."""

    @compile_api.assume_constant_result
    def table(z):
        return {n: 1.0 + n for n in numbers}[z]

    compiled = compile_api.compile(lambda x, z: x * table(z))
    x = torch.ones(2)
    for n in numbers:
        torch.testing.assert_close(compiled(x, n), x * (1.0 + n))
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) == 2, report
