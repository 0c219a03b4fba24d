"""Python floats that change from call to call: one graph serves them, in conditions on several and in functions of them."""

from __future__ import annotations

import math
import operator

import pytest
import torch
import torch.nn.functional as F

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")

ONE = [
    math.sqrt, math.sin, math.cos, math.tan, math.sinh, math.cosh, math.tanh, math.asin, math.acos, math.atan,
    math.exp, math.expm1, math.log, math.log1p, math.log2, math.log10, math.isfinite, math.isinf, math.isnan,
    math.floor, math.ceil, math.trunc, math.fabs, math.degrees, math.gamma, math.erf, math.cbrt, abs, round,
]  # fmt: skip
TWO = [math.atan2, math.pow, math.fmod, math.hypot, math.copysign, math.log, min, max, operator.lt, operator.le]
#: Those that a graph computes; others are of the numbers of one call.
SYMBOLIC = {
    math.sqrt, math.sin, math.cos, math.tan, math.sinh, math.cosh, math.tanh, math.asin, math.acos, math.atan,
    math.exp, math.expm1, math.log, math.log1p, math.log2, math.isfinite, math.isinf, math.isnan,
    math.atan2, math.pow, min, max,
}  # fmt: skip
#: In the domain of all; then odd ones.
USUAL = (0.11, 0.32, 0.43, 0.54, 0.65, 0.76, 0.87, 0.98)
ODD = (0.0, -0.0, -0.5, 1.5, 710.0, -710.0, 1e300, math.inf, -math.inf, math.nan, 5e-324, 0.25)


def outcome(call, *args):
    try:
        return call(*args).tolist()
    except Exception as error:
        return type(error), str(error)


def agree(program, calls):
    compiled, x = compile_api.compile(program), torch.tensor([1.0, 2.0], dtype=torch.float64)
    for args in calls:
        theirs, ours = outcome(program, x, *args), outcome(compiled, x, *args)
        assert repr(ours) == repr(theirs), (args, theirs, ours)
    return compiled.report()


@pytest.mark.parametrize("fn", ONE, ids=lambda fn: fn.__name__)
def test_functions_of_one(fn):
    program = lambda x, t: x * fn(t)
    report = agree(program, [(t,) for t in USUAL])
    if fn in SYMBOLIC:
        assert report.verdict == "compiled" and len(report.recompiles) == 1, report
    agree(program, [(t,) for t in (*USUAL[:2], *ODD)])


@pytest.mark.parametrize("fn", TWO, ids=lambda fn: fn.__name__)
def test_functions_of_two(fn):
    program = lambda x, t, h: x * fn(t, h) + 1
    report = agree(program, zip(USUAL, (1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5), strict=True))
    if fn in SYMBOLIC - {math.log}:
        assert report.verdict == "compiled" and len(report.recompiles) <= 2, report
    agree(program, [(0.3, 0.7), (0.4, 0.9), *zip(ODD, reversed(ODD), strict=True), *((t, 0.5) for t in ODD[:4])])


class _State:
    def __init__(self, step, tolerance):
        self.step, self.tolerance = step, tolerance


CONDITIONS = {
    "order": lambda x, t, h: x + t if t < h else x - h,
    "sums": lambda x, t, h: x * (t + h) if t + h < 1 else x * (t - h),
    "clipped": lambda x, t, h: x * min(2.0, max(0.3, t / (h + 1e-12))),
    "a step": lambda x, t, h: x * (0.9 * (h / (t + 1e-12)) ** 0.5),
    "chained": lambda x, t, h: x + 1 if 0 < t < h < 10 else x * 2,
    "attributes": lambda x, t, h: (lambda s: x * s.step if s.step > s.tolerance else x + 1)(_State(t, h)),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_on_several(name):
    calls = [(0.1 * k + 0.05, 0.9 - 0.1 * k) for k in range(8)] + [(0.15, 0.85), (3.0, 0.2), (0.2, 3.0)]
    report = agree(CONDITIONS[name], calls)
    assert len(report.recompiles) <= 4, report
    assert report.verdict == "compiled"


def test_in_training():
    """A schedule and a scale as floats, both in the forward and in the backward pass."""
    program = lambda x, t, h: (x * math.exp(-t)).tanh() * math.cos(h) if t < h else x * t
    compiled, x = compile_api.compile(program), torch.tensor([1.0, 2.0, 0.3], requires_grad=True)
    for k in range(8):
        given = 0.1 + 0.07 * k, 0.9 + 0.05 * k
        ours, theirs = compiled(x, *given), program(x, *given)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(*[torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)])
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


ACTIVATIONS = {
    "leaky_relu": lambda x, t: F.leaky_relu(x - 1.5, t),
    "elu": lambda x, t: F.elu(x - 1.5, t),
    "celu": lambda x, t: F.celu(x - 1.5, t),
    "softplus": lambda x, t: F.softplus(x, t),
    "hardshrink": lambda x, t: F.hardshrink(x - 1.5, t),
    "softshrink": lambda x, t: F.softshrink(x - 1.5, t),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numbers_of_activations(name):
    """Without gradients: autograd's derivatives of these take a number of one call."""
    compiled, x = compile_api.compile(ACTIVATIONS[name]), torch.tensor([1.0, 2.0, 0.3])
    for t in USUAL:
        torch.testing.assert_close(compiled(x, t), ACTIVATIONS[name](x, t))
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


TENSORS = {
    "list": lambda t, h: torch.tensor([t, h]),
    "tuple with an int": lambda t, h: torch.tensor((t, 1, h)),
    "float64": lambda t, h: torch.tensor([t, h], dtype=torch.float64),
    "whole": lambda t, h: torch.as_tensor([t, h], dtype=torch.int32),
    "with infinity": lambda t, h: torch.tensor([t, math.inf, h]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_several(name):
    compiled = compile_api.compile(TENSORS[name])
    for k in range(8):
        given = 1.3 + 0.37 * k, 0.1 + 0.2 * k
        ours, theirs = compiled(*given), TENSORS[name](*given)
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


CONDITIONS_WITH_INTS = {
    "equal": lambda x, n, p: x * 2 if n * p == 6.0 else x * n * p,
    "quotient": lambda x, n, p: x * 3 if n / p > 10.0 else x + n,
    "of a size": lambda x, n, p: x * 4 if (n + 1) * p < x.shape[0] * 0.5 else x - p,
    "power": lambda x, n, p: x * 5 if p**n < 0.1 else x * (1 - p**n),
    "whole part": lambda x, n, p: x * 6 if int(n * p) == 3 else x + int(n * p),
}


@pytest.mark.parametrize("name", CONDITIONS_WITH_INTS)
def test_conditions_on_floats_and_ints(name):
    """A warm-up's ``lr * (step + 1) / steps`` in conditions of an optimizer: the int was one of each call."""
    program = CONDITIONS_WITH_INTS[name]
    compiled = compile_api.compile(program)
    x = torch.ones(6)
    for n in range(2, 13):
        for p in (0.3 + n / 50, 0.6 - n / 100, 1.5, 0.5, 0.11 * n):
            torch.testing.assert_close(compiled(x, n, p), program(x, n, p))
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 4, report


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad"])
def test_a_rate_by_a_count_of_the_programs_own(kind):
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2)
        optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=1e-2)
        state = {"step": 0}

        def step(x, state=state, optimizer=optimizer, layer=layer):
            rate = 1e-2 * (state["step"] + 1) / 21
            state["step"] += 1
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile_api.compile(step) if compiles else step
        found.append([run(torch.linspace(-1, 1, 12).view(3, 4) * (1 + k / 7)) for k in range(14)])
    torch.testing.assert_close(found[1], found[0])
    report = run.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 2, report
