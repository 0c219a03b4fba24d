"""The fuzzer's judge at the ends of what numbers can say: around zero, and beyond the largest."""

from __future__ import annotations

import math

import pytest
import torch
from fuzz.judge import SAMPLES, judge
from fuzz.reference import Shadow


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_numbers_around_zero_have_a_distance(dtype: torch.dtype) -> None:
    """The spacing of the smallest numbers, however small the exact one is."""
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    runs = [torch.tensor(1e-60, dtype=torch.double)] * SAMPLES
    eager = torch.zeros((), dtype=dtype)
    near, far = (torch.tensor(-n * least, dtype=dtype) for n in (1, 3))
    assert near != 0
    assert not judge(eager, near, runs)[0] and judge(eager, far, runs)[0]


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_infinities_in_a_normalisations_gradient(name: str) -> None:
    """Where eager's formula has two of them meet is undecided; what no infinity reaches is not."""
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    norm = {
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (6, 5)),
        "group_norm": lambda x: torch.nn.functional.group_norm(x, 2),
        "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    }[name]
    incoming = torch.ones(4, 6, 5)
    incoming[0, 0, 0] = math.inf
    with Shadow(SAMPLES) as shadow:
        inner = x * 1.0
        inner.retain_grad()
        norm(inner).backward(incoming)
        gradient = inner.grad.clone()
    runs = shadow.twins(gradient)
    for number in (math.inf, -math.inf, math.nan):
        other = gradient.where(gradient.isfinite(), number)
        wrong, undecided = judge(gradient, other, runs)
        assert not wrong.any() and undecided.equal(~gradient.isfinite()) and undecided.any()
    finite = gradient.isfinite()
    assert finite.any() and judge(gradient, gradient.where(~finite, math.inf), runs)[0].equal(finite)


def test_zeros_of_nothing_but_zeros_have_either_sign() -> None:
    """Eager multiplies a gradient that is all zeros, as ``sgn``'s, by nothing; a zero that it computed is what it is."""
    x = torch.linspace(-1, 1, 4).requires_grad_()
    with Shadow(SAMPLES) as shadow:
        (x.abs() + 0.5).sgn().sum().backward()
        nothing = x.grad.clone()
        computed = torch.zeros(4) * x.detach().sign()
    for zeros, wrong in ((nothing, False), (computed, True)):
        assert judge(zeros, -zeros, shadow.twins(zeros))[0].equal(torch.full((4,), wrong))
    assert judge(nothing, nothing + 1e-30, shadow.twins(nothing))[0].all()


def test_a_bilinear_forms_zeros_have_either_sign() -> None:
    """They are zeros of products; the other numbers are what they are."""
    x, y = torch.tensor([[0.0], [2.0]]), torch.tensor([[-1.0], [3.0]])
    with Shadow(SAMPLES) as shadow:
        result = torch.nn.functional.bilinear(x, y, torch.full((1, 1, 1), 0.5))
    runs = shadow.twins(result)
    assert result.flatten().tolist() == [0, 3] and not judge(result, result.where(result != 0, -result), runs)[0].any()
    assert judge(result, result + 1e-4, runs)[0].all()


def test_a_product_may_become_infinite_on_its_way() -> None:
    """In which order kernels multiply decides whether an infinity meets a zero; where none can come up, nothing does."""
    large, small = torch.tensor([1e30, 1e30, -2.0, 0.0]), torch.tensor([1e3, 1e-30, -2.0, 0.0])
    with Shadow(SAMPLES) as shadow:
        products = [(x * 1.0).prod() for x in (large, small)]
    for product, known in zip(products, (False, True), strict=True):
        runs = shadow.twins(product)
        for other in (math.nan, -0.0):
            wrong, undecided = judge(product, torch.tensor(other), runs)
            assert bool(undecided) != known and bool(wrong) == (known and math.isnan(other))


def test_gradients_that_an_expanded_operand_sums_come_in_any_order() -> None:
    """A compiled region gives one part with what else comes to the operand, a view of it outside the other."""
    x = torch.linspace(-1, 1, 4).requires_grad_()
    with Shadow(SAMPLES) as shadow:
        rows = x.expand(2, 4)
        (rows * 0.5).sum().add((rows * torch.tensor([[0.5], [-1.5]])).sum()).add((x / 3e4).sum()).backward()
        gradient = x.grad.clone()
    runs = shadow.twins(gradient)
    rest = torch.full((4,), 1 / 3e4)
    ours = (torch.ones(4) + rest) - 1
    assert gradient.equal(rest) and not ours.equal(rest)
    assert not judge(gradient, ours, runs)[0].any()
    assert judge(gradient, gradient + 1e-5, runs)[0].all()
def _moved(result: torch.Tensor, runs: list[torch.Tensor], by: float) -> bool:
    """Whether the judge sees every element wrong that is moved by so much."""
    wrong, undecided = judge(result, (result.double() + by).to(result.dtype), runs)
    assert not undecided.any()
    return bool(wrong.all())


def test_a_logarithm_of_a_sum_has_the_sums_rounding() -> None:
    """Next to zero it is the largest number less the logarithm of a number of about two."""
    x = torch.tensor([[-0.6931472, -0.72], [-0.5, -0.9]])
    with Shadow(SAMPLES) as shadow:
        result = x.logsumexp(0)
    runs = shadow.twins(result)
    assert not _moved(result, runs, 6e-8) and _moved(result, runs, 4e-6)


@pytest.mark.parametrize("at", [-1.3, -1.25, -1.1924, -1.2784, -1.28])
@pytest.mark.parametrize("name", ["mish", "silu"])
def test_a_gradient_of_two_terms_has_the_rounding_of_each(name: str, at: float) -> None:
    """Where the gradients of mish and silu cross zero, of 64-bit numbers that are exact."""
    x = torch.tensor([at], dtype=torch.double, requires_grad=True)
    with Shadow(SAMPLES) as shadow:
        (getattr(torch.nn.functional, name)(x) * 0.125).sum().backward()
        gradient = x.grad.clone()
    runs = shadow.twins(gradient)
    assert not _moved(gradient, runs, 0.125 * 2e-16) and _moved(gradient, runs, 0.125 * 1e-14)


def test_a_sum_of_a_functions_errors_may_have_a_side() -> None:
    """Fifty thousand logarithms that are too large by a fifth of a unit; not by ten."""
    x = torch.rand(50_000, generator=torch.Generator().manual_seed(2), dtype=torch.double) + 0.5
    with Shadow(SAMPLES) as shadow:
        result = x.log().sum()
    runs = shadow.twins(result)
    unit = torch.finfo(torch.double).eps * float(x.log().abs().sum())
    assert not _moved(result, runs, unit / 5) and _moved(result, runs, unit * 10)


@pytest.mark.parametrize("opposed", [True, False])
def test_a_zero_of_gradients_of_both_signs_has_either_sign(opposed: bool) -> None:
    """Each of them may be multiplied by zero before they are added; gradients of one sign give one zero."""
    x = torch.ones(3, requires_grad=True)
    with Shadow(SAMPLES) as shadow:
        h = x * -0.0
        ((h * 2.0).sum() + (h * (-3.0 if opposed else 3.0)).sum()).backward()
        gradient = x.grad.clone()
    assert bool((gradient == 0).all())
    wrong, _ = judge(gradient, -gradient, shadow.twins(gradient))
    assert bool(wrong.all()) is not opposed and bool(wrong.any()) is not opposed


def test_what_eager_alone_says_is_not_a_number_is_undecided() -> None:
    """Of an operator that cannot be followed nothing is known but what eager gave."""
    rows = torch.randn(70, dtype=torch.bfloat16).as_strided((1, 1, 3, 33), (0, 0, 16, 1))
    with Shadow(SAMPLES) as shadow:
        result = torch.nn.functional.scaled_dot_product_attention(rows, rows[:, :, :2], rows[:, :, :2])
        result[..., 3] = math.nan
        shadow._give_up(result, [result], [])
    wrong, undecided = judge(result, torch.zeros_like(result), shadow.twins(result))
    assert undecided.all() and not wrong.any()


def test_the_reciprocal_of_what_rounding_leaves_may_be_infinite() -> None:
    """Equal numbers less their mean, which need not be any of them; numbers that differ have finite reciprocals."""
    equal = torch.full((64, 2), 0.3)
    with Shadow(SAMPLES) as shadow:
        left, apart = (
            torch.nn.functional.batch_norm(x, None, None, training=True).reciprocal()
            for x in (equal, torch.linspace(0, 1, 128).reshape(64, 2))
        )
    for result, known in ((left, False), (apart, True)):
        wrong, undecided = judge(result, torch.full_like(result, math.inf), shadow.twins(result))
        assert bool(wrong.all()) == known and bool(undecided.all()) != known
