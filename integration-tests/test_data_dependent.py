"""Values that only the data tells, with the option ``data_dependent``: one graph for all of them, with eager's results."""

from __future__ import annotations

import pytest
import torch

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")

X = torch.linspace(-1, 1, 24).reshape(6, 4)
ROWS = [X, -X.abs() - 1, X.abs() + 1, torch.eye(6, 4) - 0.5]
SUMMED = [X + 0.25, *ROWS[1:]]  # whose sums no rounding takes to the other side of zero
COUNTS = [torch.tensor(n) for n in (3, 0, 1, 100, -1)]


def checked(x, t):
    n = t.item()
    torch._check(n >= 2)
    return torch.ones(n).sum() + x


def written(x):
    y = x.clone()
    y[y > 0] = 0
    return y


def routed(x):
    weights, experts = x.topk(2)
    rows, which = torch.where(experts == 0)
    return x[rows] * weights[rows, which, None]


def unused(x):
    found = torch.nonzero(x > 0)
    found[1:] + 1
    return found * 2


PROGRAMS = {
    "a number": (lambda x: x * x.sum().item() + 1, [(x,) for x in ROWS]),
    "a whole number": (lambda x, t: x * t.item() + 1, [(X, t) for t in COUNTS]),
    "int()": (lambda x, t: x * int(t), [(X, t) for t in COUNTS]),
    "float()": (lambda x: x * float(x.max()), [(x,) for x in ROWS]),
    "a number alone": (lambda x: x.sum().item(), [(x,) for x in SUMMED]),
    "a size": (lambda x, t: torch.zeros(t.item()) + 1, [(X, t) for t in COUNTS[:4]]),
    "a bound": (lambda x, t: x[: t.item()].sin() + 1, [(X, t) for t in COUNTS]),
    "a tensor as a bound": (lambda x, t: x[:t] + 1, [(X, t) for t in COUNTS]),
    "a view of an input": (lambda x, t: x[: t.item()], [(X, t) for t in COUNTS]),
    "places": (lambda x: x.nonzero() * 2, [(x,) for x in ROWS]),
    "places, on": (lambda x: (x > 0).nonzero() + torch.tensor([1, 2]), [(x,) for x in ROWS]),
    "places of a line": (lambda x: torch.argwhere(x[0] > 0).float().sin(), [(x,) for x in ROWS]),
    "masked": (lambda x: x[x > 0] * 2 + 1, [(x,) for x in ROWS]),
    "masked and summed": (lambda x: x[x > 0].sum(), [(x,) for x in ROWS]),
    "masked rows": (lambda x: x[x[:, 0] > 0].relu() + 1, [(x,) for x in ROWS]),
    "masked_select": (lambda x: x.masked_select(x > 0) + 1, [(x,) for x in ROWS]),
    "masked_select by rows": (lambda x: torch.masked_select(x * 2, x[:, :1] > 0) + 1, [(x,) for x in ROWS]),
    "nonzero": (lambda x: torch.where(x > 0)[1] + 1, [(x,) for x in ROWS]),
    "in front of others": (lambda x: torch.cat([x[x > 0] * 2, x[0]])[:2] * 3, [(x,) for x in ROWS]),
    "behind others": (lambda x: torch.cat([x[0], x[x > 0] * 2]).flip(0)[:5] + 1, [(x,) for x in ROWS]),
    "how many": (lambda x: (x > 0).nonzero().shape[0] * x, [(x,) for x in ROWS]),
    "written by a mask": (written, [(x,) for x in ROWS]),
    "tolist": (lambda x: x[0] + x[0].tolist()[1], [(x,) for x in ROWS]),
    "unique": (lambda x: torch.unique(x.long()) + 1, [(x * 3,) for x in ROWS]),
    "repeated": (lambda x, t: x.repeat_interleave(t, 0) + 1, [(X, torch.arange(6) % n) for n in (6, 2, 1)]),
    "two results on both sides": (routed, [(x,) for x in ROWS]),
    "places of a column": (lambda x: x[torch.nonzero(x[:, 0] > 0)[:, 0]] + 1, [(x,) for x in ROWS]),
    "unused": (unused, [(x,) for x in ROWS]),
    "flat places": (lambda x: x[torch.nonzero(x[:, 0] > 0).flatten()] + 1, [(x,) for x in ROWS]),
    "places as a line": (lambda x: x[torch.nonzero(x[:, 0] > 0).view(-1)] + 1, [(x,) for x in ROWS]),
    "a range": (lambda x, t: torch.arange(t.item()) * 2, [(X, t) for t in COUNTS]),
    "a range from": (lambda x, t: torch.arange(2, t.item()) * 2, [(X, t) for t in COUNTS]),
    "the largest": (lambda x, t: x[0].topk(t.item())[0] * 2, [(X, t) for t in COUNTS]),
    "checked": (checked, [(X, t) for t in COUNTS[:3:2]]),
}


def outcome(function, args):
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_all_values(name, backend):
    function, calls = PROGRAMS[name]
    compiled = compile_api.compile(function, backend=backend, options={"data_dependent": True})
    for args in calls:
        got, wanted = outcome(compiled, args), outcome(function, args)
        assert type(got) is type(wanted)
        if isinstance(wanted, str):
            assert got == wanted
        else:
            torch.testing.assert_close(got, wanted)
    report = compiled.report()
    assert not report.breaks and not report.recompiles
    assert sum(graph.dialect == "torch" for graph in report.graphs) == 1


@pytest.mark.parametrize("name", ["a number", "masked", "masked rows", "a bound", "nonzero"])
def test_generated_code_serves_what_comes_after(name):
    function, calls = PROGRAMS[name]
    compiled = compile_api.compile(function, options={"data_dependent": True})
    for args in calls:
        outcome(compiled, args)
    assert compiled.report().kernels and not compiled.report().fallbacks


GRADIENTS = {
    "a number": lambda x, t: (x * x.sum().item()).sin().sum(),
    "masked": lambda x, t: (x[x > 0] * 2).sin().sum(),
    "masked by rows": lambda x, t: torch.masked_select(x * 2, x[:, :1] > 0).sin(),
    "masked, and the elements": lambda x, t: x[x > 0].exp(),
    "a bound": lambda x, t: (x[: t.item()] * x[: t.item()]).cos(),
    "in front of others": lambda x, t: torch.cat([x[x > 0].sin(), x[0]])[:2] * 3,
    "how many": lambda x, t: ((x > 0).nonzero().shape[0] * x).sin().sum(),
}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, backend):
    function = GRADIENTS[name]
    compiled = compile_api.compile(function, backend=backend, options={"data_dependent": True})
    for rows, count in zip(ROWS, COUNTS, strict=False):
        found = []
        for run in (function, compiled):
            x = rows.clone().requires_grad_()
            result = run(x, count)
            result.sum().backward()
            found.append((result, x.grad))
        torch.testing.assert_close(found[1], found[0])
    report = compiled.report()
    assert not report.breaks and not report.recompiles
    assert sum(graph.dialect == "torch" for graph in report.graphs) == 1


def test_a_decision_ends_the_graph():
    def function(x):
        return x + 1 if x.sum().item() > 0 else x - 1

    compiled = compile_api.compile(function, options={"data_dependent": True})
    for x in SUMMED:
        torch.testing.assert_close(compiled(x), function(x))
    assert "QB02" in compiled.report().breaks[0].reason


def test_a_backend_that_declares_nothing_gets_no_such_graph():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    function = PROGRAMS["masked"][0]
    compiled = compile_api.compile(function, backend=backend, options={"data_dependent": True})
    for x in ROWS:
        torch.testing.assert_close(compiled(x), function(x))
    assert compiled.report().breaks and len(graphs) > 1


@torch.library.custom_op("sizes_of_data::kept", mutates_args=())
def kept(x: torch.Tensor, least: float) -> torch.Tensor:
    return (x > least).nonzero().squeeze(-1)


@kept.register_fake
def _(x, least):
    return x.new_empty((torch.library.get_ctx().new_dynamic_size(),), dtype=torch.int64)


@torch.library.custom_op("sizes_of_data::split", mutates_args=())
def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    above = (x > 0).nonzero().squeeze(-1)
    return x[above].clone(), above, (x <= 0).nonzero().squeeze(-1)


@split.register_fake
def _(x):
    above, below = (torch.library.get_ctx().create_unbacked_symint() for _ in range(2))
    return x.new_empty((above,)), x.new_empty((above,), dtype=torch.int64), x.new_empty((below,), dtype=torch.int64)


@torch.library.custom_op("sizes_of_data::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


def of_split(x):
    values, above, below = split(x.sin())
    return (values + x[above]).cos(), x[below] * 2, below.shape[0]


CUSTOM = {
    "one": lambda x: x[kept(x.sin(), 0.1)].exp() * 2,
    "several": of_split,
    "of a view": lambda x: split(x.sin()[1:])[0] * 3,
    "one after the other": lambda x: kept(x[kept(x, 0.0)].cos(), 0.5) + 1,
    "the size again": lambda x: (lambda some: doubled(some).sin() + some)(x[kept(x, 0.0)]),
}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("name", CUSTOM)
def test_custom_operators_whose_sizes_the_data_tells(name, backend):
    """Sizes of ``torch.library.get_ctx()``: none may be two or more only because ``create_unbacked_symint`` says so."""
    compiled = compile_api.compile(CUSTOM[name], backend=backend, options={"data_dependent": True})
    for size in (6, 9, 2, 13):
        for x in (torch.randn(size), torch.ones(size), -torch.ones(size)):
            torch.testing.assert_close(compiled(x), CUSTOM[name](x))
    assert not compiled.report().breaks and not compiled.report().fallbacks
    assert sum(graph.dialect == "torch" for graph in compiled.report().graphs) <= 2  # the first one's sizes are numbers


def test_such_an_operator_breaks_elsewhere_and_says_why():
    compiled = compile_api.compile(CUSTOM["one"])
    x = torch.randn(9)
    torch.testing.assert_close(compiled(x), CUSTOM["one"](x))
    (found,) = compiled.report().breaks
    assert "QB02" in found.reason and "sizes_of_data" in found.reason


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("program", [lambda t, flag: t - flag, lambda t, flag: flag - t], ids=["left", "right"])
def test_an_operator_that_eager_refuses_is_no_arithmetic_on_numbers(program, flag):
    compiled = compile_api.compile(program, options={"data_dependent": True})
    with pytest.raises(RuntimeError, match="bool"):
        compiled(torch.tensor(2), flag)
