"""Negative ints that change from call to call: one graph serves them, and another the positive ones."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import compile_api

X = torch.arange(1.0, 7.0)
PROGRAMS = {
    "add": lambda x, n: x + n,
    "mul": lambda x, n: x * (n - 1),
    "rsub": lambda x, n: 7 - n + x,
    "true division": lambda x, n: x / n,
    "floor division": lambda x, n: x * (n // 2),
    "remainder": lambda x, n: x * (n % 3),
    "divmod": lambda x, n: x * divmod(n, 4)[1],
    "powers": lambda x, n: x**n,
    "of a base": lambda x, n: x * 2.0**n,
    "cube": lambda x, n: x * n**3,
    "abs": lambda x, n: x * abs(n),
    "truncated": lambda x, n: x * int(n / 2),
    "float": lambda x, n: x * float(n),
    "root": lambda x, n: x * math.sqrt(abs(n)),
    "fmod": lambda x, n: x.fmod(n),
    "torch.remainder": lambda x, n: torch.remainder(x, n),
    "rounded": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "bits": lambda x, n: x.int() & n,
    "shift": lambda x, n: x.int() << abs(n),
    "compare": lambda x, n: x > n,
    "clamp": lambda x, n: (x + n).clamp(n, 2),
    "full": lambda x, n: torch.full((3,), n) + x[:3],
    "tensor": lambda x, n: torch.tensor([n, 1]) * x[:2],
    "linspace": lambda x, n: torch.linspace(n, 0, 5) + x[0],
    "roll": lambda x, n: x.roll(n),
    "index": lambda x, n: x[n],
    "from": lambda x, n: x[n:],
    "range of one": lambda x, n: x[n : n + 1],
    "strided": lambda x, n: x[n:-1],
    "narrow": lambda x, n: x.narrow(0, n, 1),
    "select": lambda x, n: x.select(0, n),
    "select_scatter": lambda x, n: torch.select_scatter(x, torch.tensor(0.0), 0, n),
    "assigned": lambda x, n: torch.zeros(6).index_put((torch.arange(6) == n + 6,), x[0]),
    "triangle": lambda x, n: torch.ones(7, 7).triu(n).sum() * x,
    "sign asked": lambda x, n: x + n if n < 0 else x - n,
    "ignored": lambda x, n: F.nll_loss(x.view(2, 3).log_softmax(1), torch.tensor([0, 1]), ignore_index=n),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_the_negative(name):
    program = PROGRAMS[name]
    compiled = compile_api.compile(program)
    for n in (-1, -2, -3, -4, -5, -6):
        torch.testing.assert_close(compiled(X, n), program(X, n))
    assert len(compiled.report().recompiles) == 1
    for n in (1, 3, -2, 2, 0, -6, 1):
        if (n or name not in ("fmod", "torch.remainder", "rounded", "true division")) and abs(n) < len(X):
            torch.testing.assert_close(compiled(X, n), program(X, n))
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 3, report


def test_in_training():
    weight = torch.ones(6, requires_grad=True)
    compiled = compile_api.compile(lambda w, n: (w * X.roll(n) ** 2)[n:].sum() * n)
    for n in (-1, -3, -5, -2, -4):
        (got,) = torch.autograd.grad(compiled(weight, n), weight)
        (expected,) = torch.autograd.grad((weight * X.roll(n) ** 2)[n:].sum() * n, weight)
        torch.testing.assert_close(got, expected)
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) == 1, report


#: Of a weight and a negative number: the derivatives of these pad by numbers that may be negative.
LOSSES = {
    "from": lambda w, n: (w * w)[n:].sum(),
    "to": lambda w, n: (w * w)[:n].sum(),
    "between": lambda w, n: (w * w)[n:-1].sum(),
    "narrow": lambda w, n: (w * w).narrow(0, n, 1).sum(),
    "select": lambda w, n: (w * w).select(0, n),
    "rolled": lambda w, n: (w * w).roll(n)[:2].sum(),
    "put back": lambda w, n: torch.slice_scatter(w * w, w[n:], 0, n).sum(),
    "diagonal": lambda w, n: (w[None] * w[:, None]).diagonal(n).sum(),
    "triangle": lambda w, n: torch.tril(w[:, None] * w, n).sum(),
    "moved": lambda w, n: F.pad(w * w, (-n, n)).square().sum(),
    "cut": lambda w, n: F.pad(w * w, (n, 0)).square().sum(),
}


@pytest.mark.parametrize("read", [False, True], ids=["argument", "of a tensor"])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, read):
    """Of an argument, and of a number that a tensor holds, which capture knows nothing of but its type and checks."""
    loss = LOSSES[name]

    def program(w, n):
        if read:
            n = n.item()
            torch._check(n < 0)
            torch._check(n >= -6)
        return loss(w, n)

    compiled = compile_api.compile(program, options={"data_dependent": read})
    for n in (-1, -3, -5, -2, -4):
        w = X.clone().requires_grad_()
        number = torch.tensor(n) if read else n
        (got,) = torch.autograd.grad(compiled(w, number), w)
        (expected,) = torch.autograd.grad(loss(w, n), w)
        torch.testing.assert_close(got, expected)
    assert compiled.report().kernels


#: Of a matrix and a number, sizes that are another number where it is negative.
SIZES = {
    "zeros": lambda x, n: torch.zeros(-n, 5) + x[0, 0],
    "arange": lambda x, n: torch.arange(-n) * x.sum(),
    "summed": lambda x, n: torch.ones(-n).sum() * x,
    "repeated": lambda x, n: x.repeat_interleave(-n, 0),
    "padded": lambda x, n: F.pad(x, (-n, 1)).cumsum(1),
    "part": lambda x, n: x[:-n].sort(0)[0],
    "products": lambda x, n: x[:-n].mm(x.t()[:, :-n]),
    "flipped": lambda x, n: x[n:].flip(0),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_by_numbers_of_tensors(name):
    """Of which capture knows that they are not positive, and allocation takes none for 64."""

    def program(x, n):
        n = n.item()
        torch._check(n <= 0)
        return SIZES[name](x, n)

    compiled = compile_api.compile(program, options={"data_dependent": True})
    for n in (-1, -3, -2, -4, 0):
        x = torch.arange(20.0).view(4, 5).requires_grad_()
        got, expected = compiled(x, torch.tensor(n)), program(x, torch.tensor(n))
        torch.testing.assert_close(got, expected)
        for one, other in zip(
            torch.autograd.grad(got.square().sum(), x, allow_unused=True),
            torch.autograd.grad(expected.square().sum(), x, allow_unused=True),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    report = compiled.report()
    assert report.kernels and not report.fallbacks, report


def test_numbers_at_the_ends():
    compiled = compile_api.compile(lambda x, n: x.double() * n + (n > -(2**40)))
    for n in (-1, -2, -(2**31), -(2**62), -(2**63), 2**63 - 1, -3):
        torch.testing.assert_close(compiled(X, n), X.double() * n + (n > -(2**40)), rtol=0, atol=0)


def test_held_by_a_module():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = -1

        def forward(self, x):
            return x.roll(self.by)

    module = Shifted()
    compiled = compile_api.compile(module)
    for by in (-1, -2, -3, -4, 4, 5):
        module.by = by
        torch.testing.assert_close(compiled(X), X.roll(by), rtol=0, atol=0)
    assert len(compiled.report().recompiles) == 2


def test_what_only_cuts_keeps_the_layout():
    """Where a padding fills nothing eager clones what is left, laid out as it was."""
    program = lambda x, n: F.pad(x.t(), (n, 0))
    compiled = compile_api.compile(program)
    x = torch.arange(25.0).view(5, 5)
    for n in (1, 2, -2, -1, -3, 3):
        got, expected = compiled(x, n), program(x, n)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride(), n
