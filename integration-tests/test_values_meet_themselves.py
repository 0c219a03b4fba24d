"""A value that is read at two places is one: it equals itself behind a maximum, a gather or a sort, and two equal products
cancel. Kernels that make it once in vector lanes and once one by one, or round it in one place only, would tell them apart."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import compile_api

VALUES = {
    "tanh": lambda a, b: a.tanh(), "log": lambda a, b: a.abs().log(), "sigmoid": lambda a, b: a.sigmoid(),
    "softmax": lambda a, b: (a * b).softmax(-1), "product": lambda a, b: a * b, "atan": lambda a, b: a.atan(),
    "product and sum": lambda a, b: a.abs().log() * b + a, "gelu": lambda a, b: F.gelu(a), "sin": lambda a, b: a.sin(),
}  # fmt: skip
#: Each is one number for any values of which the greatest of a row is one.
QUESTIONS = {
    "is the greatest": lambda y: (y == y.amax(-1, keepdim=True)).float().sum(),
    "straight through": lambda y: (((y >= y.amax(-1, keepdim=True)).float() - y).detach() + y).sum(),
    "at its place": lambda y: (y.gather(-1, y.argmax(-1, keepdim=True)) == y.amax(-1, keepdim=True)).float().mean(),
    "a root of what is left": lambda y: (y.amax(-1, keepdim=True) - y).sqrt().sum(),
    "by sorting": lambda y: (y >= y.sort(-1).values[:, -1:]).float().sum(),
    "the best two": lambda y: (y >= y.topk(2, -1).values[:, 1:]).sum(),
    "by rows": lambda y: (y[torch.arange(len(y)), y.argmax(-1)] == y.amax(-1)).float().sum(),
    "the least, in columns": lambda y: (y == y.amin(0)).float().sum(),
}


@pytest.mark.parametrize("numerics", ["fast", "eager_close"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_chosen_among_values_is_one_of_them(question, numerics):
    for name, value in VALUES.items():
        for shape in ((301, 5), (64, 3), (33, 17), (60, 100)):
            generator = torch.Generator().manual_seed(0)
            a, b = torch.randn(*shape, generator=generator), torch.randn(*shape, generator=generator)
            run = lambda a, b: QUESTIONS[question](value(a, b))
            compiled = compile_api.compile(run, options={"numerics": numerics})
            torch.testing.assert_close(compiled(a, b), run(a, b), msg=lambda text: f"{name} {shape}: {text}")
            assert compiled.report().verdict == "compiled"


CANCELLING = {
    "difference of squares": lambda x, y: (x * x - y * y).sqrt(),
    "of three": lambda x, y: (x * x - y * y + x * y - y * x).sqrt(),
    "commutator": lambda x, y: torch.sign(x * y - y * x),
    "beside a sum": lambda x, y: torch.acosh(1 + (x * x - y * y)),
    "square of the modulus": lambda x, y: (torch.complex(x, y) * torch.complex(x, y).conj()).imag,
    "negated": lambda x, y: (x * x + (-y) * y).sqrt(),
    "variance": lambda x, y: ((x * x).expand(4, -1).mean(0) - x.expand(4, -1).mean(0) ** 2).sqrt(),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_equal_products_cancel(name):
    x = torch.randn(1001, generator=torch.Generator().manual_seed(0))
    compiled = compile_api.compile(CANCELLING[name])
    assert torch.equal(compiled(x, x.clone()), CANCELLING[name](x, x.clone()))
    assert compiled.report().verdict == "compiled"


def test_whole_numbers_of_sums_are_eagers():
    """An average of counts, as ``AveragedModel(use_buffers=True)`` takes it."""
    x = torch.arange(1, 2000).float()
    for run in (lambda x: (x * 0.9 + 0.1 * x).floor(), lambda x: (x * 0.3 + 0.7).round(), lambda x: (x * 0.1 + 0.9).long(),
                lambda x: (x * 0.7 + 0.3) % 1.0, lambda x: (x * 0.1 + 0.9) == x * 0.2):  # fmt: skip
        assert torch.equal(compile_api.compile(run)(x), run(x))
