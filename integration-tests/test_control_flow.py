"""``torch.cond``, ``while_loop``, ``scan`` and ``map`` in compiled programs, against the same written as Python's own
branches and loops: one graph, no break, no fallback, kernels generated for the bodies."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

import compile_api
from prims.errors import Unsupported


class Eager:
    """What the operators mean."""

    @staticmethod
    def cond(predicate, true, false, operands):
        return true(*operands) if predicate else false(*operands)

    @staticmethod
    def while_loop(going, body, carried):
        while going(*carried):
            carried = body(*carried)
        return carried

    @staticmethod
    def scan(function, carried, xs, *, dim=0, reverse=False):
        tree, stacked = torch.utils._pytree, []
        leaves, structure = tree.tree_flatten(xs)
        places = range(leaves[0].shape[dim])
        for at in reversed(places) if reverse else places:
            carried, row = function(carried, tree.tree_unflatten([x.select(dim, at) for x in leaves], structure))
            stacked.append(tree.tree_flatten(row))
        columns = zip(*(row for row, _ in (reversed(stacked) if reverse else stacked)), strict=True)
        whole = [torch.stack(column, min(dim, column[0].ndim)) if dim <= column[0].ndim else torch.stack(column)
                 for column in columns]  # fmt: skip
        return carried, tree.tree_unflatten(whole, stacked[0][1])

    @staticmethod
    def map(function, xs, *others):
        return Eager.scan(lambda carried, x: (carried, function(x, *others)), torch.zeros(()), xs)[1]


class Torch:
    cond, while_loop, scan, map = map(staticmethod, (torch.cond, torch_while_loop, torch_scan, torch_map))


def _branches(ops, x, w):
    return ops.cond(x.sum() > 0, lambda v: v.sin() @ w + 1, lambda v: (v - x.mean()) * w.sum(), (x,)) * 2


def _branches_of_dicts(ops, x, w):
    found = ops.cond(
        x[0, 0] > 0, lambda d, u: {"a": d["x"] + u, "b": [u * 2]}, lambda d, u: {"a": d["x"] * u, "b": [u - 1]},
        ({"x": x}, w.sum()),
    )  # fmt: skip
    return found["a"] * found["b"][0]


def _branches_in_branches(ops, x, w):
    inner = lambda v: ops.cond(w.sum() > 0, lambda u: u.exp(), lambda u: u @ w, (v,))
    return ops.cond(x.sum() > 0, inner, lambda v: v.cos(), (x,))


def _operands_as_results(ops, x, w):
    left, right = ops.cond(x.sum() > 0, lambda u, v: (u, v), lambda u, v: (v, v), (x, x + 1))
    return left * 3 + right.t().sum(0)[: 1] + w.sum()


def _recurrence(ops, x, w):
    last, rows = ops.scan(lambda h, v: ((n := torch.tanh(h @ w + v)), n * 2), torch.zeros_like(x[0]), x)
    return rows + last.sum()


def _elementwise_recurrence(ops, x, w):
    last, rows = ops.scan(lambda h, v: ((n := h * 0.5 + v.sin()), n.exp()), w.sum() * torch.ones_like(x[0]), x)
    return rows * last


def _scan_of_trees(ops, x, w):
    def step(carried, row):
        total, steps = carried["total"], carried["steps"]
        return {"total": total * w.sum() + row[0].sum(), "steps": steps + 1}, (total * row[1], steps)

    start = {"total": x[0, 0], "steps": torch.zeros((), dtype=torch.int64)}
    last, (rows, steps) = ops.scan(step, start, (x, x.cos()), dim=1, reverse=True)
    return rows * last["total"] + last["steps"] + steps.sum()


def _scan_of_branches(ops, x, w):
    def step(h, v):
        h = ops.cond(h.sum() > 0, lambda u: u - v, lambda u: u * 0.5 + (v @ w), (h,))
        return h, h.sin()

    return ops.scan(step, torch.ones_like(x[0]), x)[1]


def _constants_in_bodies(ops, x, w):
    def step(h, v):
        one = torch.tensor(1.5, dtype=v.dtype)
        return h * torch.tensor(0.5) + one, (v * one).add_(w.sum())

    last, rows = ops.scan(step, torch.ones_like(x[0]), x)
    return rows + last


def _map(ops, x, w):
    return ops.map(lambda v, u: (v.sin() @ u + x.mean(), v.sum()), x, w)[0] + 1


PROGRAMS = [
    _branches, _branches_of_dicts, _branches_in_branches, _operands_as_results, _recurrence, _elementwise_recurrence,
    _scan_of_trees, _scan_of_branches, _constants_in_bodies, _map,
]  # fmt: skip


def _inputs(rows, dtype, sign, requires_grad):
    generator = torch.Generator().manual_seed(rows)
    x = sign * (torch.rand(rows, 4, generator=generator) + 0.1) * 0.5
    w = torch.randn(4, 4, generator=generator) * 0.3
    return [value.to(dtype).requires_grad_(requires_grad) for value in (x, w)]


def _check_close(found, expected, best):
    """As near as eager, or no farther from what double precision gives than twice eager's distance."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    near = 1e-5 * (1 + best.abs().max().item())
    if found.dtype == torch.bfloat16:
        near = 2 * (expected.double() - best).abs().max().item() + 4e-3 * best.abs().max().item()
    assert (found.double() - best).abs().max().item() <= near


def _check_report(report):
    assert report.verdict == "compiled"
    assert not report.breaks and not report.fallbacks
    assert report.kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_programs(program, training, dtype):
    compiled = compile_api.compile(lambda x, w: program(Torch, x, w), fullgraph=True)
    for rows, sign in ((5, 1), (5, -1), (6, 1), (9, -1)):  # the second size makes it symbolic
        given, plain, exact = (_inputs(rows, kind, sign, training) for kind in (dtype, dtype, torch.float64))
        found, expected, best = compiled(*given), program(Eager, *plain), program(Eager, *exact)
        _check_close(found, expected, best)
        if training:
            gradient = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            for result in (found, expected, best):
                result.backward(gradient.to(result.dtype))
            for a, b, c in zip(given, plain, exact, strict=True):
                zeros = torch.zeros_like(a)
                _check_close(a.grad, *(zeros.to(x.dtype) if x.grad is None else x.grad for x in (b, c)))
    report = compiled.report()
    _check_report(report)
    assert sum(graph.dialect == "torch" for graph in report.graphs) == 2


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_while_loop(steps):
    def program(ops, x, count):
        going = lambda i, state: i < count
        body = lambda i, state: (i + 1, {"v": state["v"] * 0.5 + x.sum()})
        return ops.while_loop(going, body, (torch.tensor(0), {"v": x + 1}))[1]["v"] * 2

    compiled = compile_api.compile(lambda x, count: program(Torch, x, count), fullgraph=True)
    for n in (4, 6, 9):
        x, count = torch.linspace(0, 1, n), torch.tensor(steps)
        torch.testing.assert_close(compiled(x, count), program(Eager, x, count))
    _check_report(compiled.report())


def test_results_are_new_tensors():
    compiled = compile_api.compile(lambda x: torch.cond(x.sum() > 0, lambda v: v, lambda v: v + 1, (x,)), fullgraph=True)
    x = torch.ones(4)
    compiled(x).add_(1)
    assert torch.equal(x, torch.ones(4))


def test_a_predicate_that_is_known():
    compiled = compile_api.compile(
        lambda x: torch.cond(x.shape[0] > 4, lambda v: v + 1, lambda v: v - 1, (x,)), fullgraph=True
    )
    for n in (3, 5, 6, 4):
        x = torch.ones(n)
        torch.testing.assert_close(compiled(x), x + 1 if n > 4 else x - 1)


def test_compile_cost_does_not_depend_on_the_steps():
    def program(ops, x):
        return ops.scan(lambda h, v: ((n := h * 0.5 + v), n.sin()), torch.zeros(8), x)[1]

    sources = []
    for steps in (10, 1000):
        compiled = compile_api.compile(lambda x: program(Torch, x), fullgraph=True)
        x = torch.randn(steps, 8)
        torch.testing.assert_close(compiled(x), program(Eager, x))
        sources.append([kernel.name for kernel in compiled.report().kernels])
    assert sources[0] == sources[1]


def test_second_derivatives():
    def program(ops, x):
        return ops.scan(lambda h, v: ((n := torch.tanh(h * 0.5 + v)), n * n), torch.zeros(4), x)[1]

    found = []
    for call in (compile_api.compile(lambda x: program(Torch, x), fullgraph=True), lambda x: program(Eager, x)):
        x = torch.linspace(-1, 1, 20).reshape(5, 4).requires_grad_()
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad((first * first).sum(), x)))
    torch.testing.assert_close(*found)


def test_under_autocast():
    compiled = compile_api.compile(lambda x, w: _recurrence(Torch, x, w), fullgraph=True)
    given, wanted = (_inputs(5, torch.float32, 1, True) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(*given), _recurrence(Eager, *wanted)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)
    found.sum().backward()
    expected.sum().backward()
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=3e-2, rtol=3e-2)
    _check_report(compiled.report())


X = torch.ones(4, 3)
NEEDS_A_GRADIENT = torch.ones((), requires_grad=True)
BAD = {
    "structures": (
        lambda x: torch.cond(x.sum() > 0, lambda v: (v, v), lambda v: v, (x,))[0],
        "torch.cond: the true function returns (*, *), the false function *",
    ),
    "shapes": (
        lambda x: torch.cond(x.sum() > 0, lambda v: v, lambda v: v.sum(0), (x,)),
        "torch.cond: the true function returns float32[4, 3] on cpu, the false function float32[3] on cpu",
    ),
    "dtypes": (
        lambda x: torch_scan(lambda h, v: (h.double() + v, v), torch.zeros(3), x)[0],
        "scan: it carries float32[3] on cpu, the function float64[3] on cpu",
    ),
    "not a pair": (
        lambda x: torch_scan(lambda h, v: h + v, torch.zeros(3), x), "scan: the function returns *, not a pair"
    ),
    "a write": (
        lambda x: torch.cond(x.sum() > 0, lambda v: v.add_(1), lambda v: v + 1, (x,)),
        "the true function of torch.cond writes to a tensor that it did not make",
    ),
    "a read": (
        lambda x: torch_map(lambda v: v * v.sum().item(), x), "the function of map: data-dependent read"
    ),
    "a predicate of two": (
        lambda x: torch.cond(x[0] > 0, lambda v: v, lambda v: v + 1, (x,)),
        "torch.cond: its predicate is bool[3] on cpu, not a single element",
    ),
    "a condition": (
        lambda x: torch_while_loop(lambda v: v.sum(), lambda v: (v - 1,), (x,))[0],
        "while_loop: the condition returns float32[] on cpu, not a single bool",
    ),
    "a gradient": (
        lambda x: torch_while_loop(lambda v: v.sum() > 0, lambda v: (v - 1,), (x * NEEDS_A_GRADIENT,))[0],
        "while_loop carries what needs a gradient",
    ),
    "a number": (
        lambda x: torch.cond(x.sum() > 0, lambda v: 1, lambda v: 2, (x,)), "the true function of torch.cond returns 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_operator_and_the_place(case):
    program, text = BAD[case]
    with pytest.raises(Unsupported) as caught:
        compile_api.compile(program, fullgraph=True)(X.clone())
    assert text in str(caught.value)
    assert "[QB22]" in str(caught.value) and "test_control_flow.py" in str(caught.value)


def test_side_effects_are_left_to_eager():
    seen = []

    def program(x):
        return torch.cond(x.sum() > 0, lambda v: (seen.append(1), v + 1)[1], lambda v: v - 1, (x,))

    with pytest.raises(Unsupported, match=r"the true function of torch\.cond changes what is outside of it"):
        compile_api.compile(program, fullgraph=True)(torch.ones(3))
