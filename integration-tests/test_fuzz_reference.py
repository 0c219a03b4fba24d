"""The fuzzer's reference: how far correct roundings may lie apart, and what they leave undecided."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import fuzz.inputs
import fuzz.reference
import pytest
import torch
from fuzz.inputs import make
from fuzz.judge import SAMPLES, judge
from fuzz.reference import Shadow


@torch.library.custom_op("fuzzing::narrow", mutates_args=())
def narrow(x: torch.Tensor) -> torch.Tensor:
    """Has no kernel for 64 bits."""
    assert x.dtype == torch.float32
    return x + x.sin()


OWN: list[int] = []


@torch.library.custom_op("fuzzing::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    """Can be computed on one tensor only, which no twin is."""
    if x.data_ptr() not in OWN:
        raise NotImplementedError
    return x + x.sin()


def test_operators_without_kernels_for_64_bits_have_noise() -> None:
    x = torch.linspace(0.1, 2, 50)
    with Shadow(8) as shadow:
        result = narrow(x) * 2
    runs = torch.stack(shadow.twins(result))
    assert not shadow.lost
    spread = (runs[2:] - runs[0]).abs().amax(0) / result
    assert bool((spread > 2.0**-26).all()) and bool((spread < 2.0**-19).all())


def test_running_averages_are_followed_in_every_run() -> None:
    """Batch norm writes them though its schema does not say so; runs that lost them would excuse whatever ours are."""
    x = torch.linspace(-1, 3, 48).reshape(8, 6).sin()
    mean, var = torch.zeros(6), torch.ones(6)
    with Shadow(8) as shadow:
        for training in (True, False, True):
            torch.nn.functional.batch_norm(x, mean, var, training=training)
    for average in (mean, var):
        runs = torch.stack(shadow.twins(average))
        spread = (runs[2:] - runs[0]).abs().amax(0)
        assert bool((spread > 0).all()) and bool((spread < 2.0**-20).all())
        assert bool(judge(average, average * 1.001, shadow.twins(average))[0].all())


def test_what_the_reference_cannot_follow_is_not_judged() -> None:
    """Whatever depends on such an operator's result is undecided, and a number read of it ends the comparison."""
    x = torch.linspace(0.1, 2, 50)
    OWN[:] = [x.data_ptr()]
    with Shadow(3) as shadow:
        odd, even = own(x) * 2, x + x.sin()
        grid = torch.cat([odd, even]).cumsum(0)
    assert shadow.lost == {"fuzzing::own"} and not shadow.unstable
    for result, decided in ((odd, False), (even, True), (grid, False)):
        for ours in (result, result * 1.25):
            wrong, undecided = judge(result, ours, shadow.twins(result))
            assert bool(undecided.all()) is not decided and bool(undecided.any()) is not decided
            assert bool(wrong.all()) is (decided and ours is not result)
    with Shadow(3) as shadow:
        assert bool((own(x) > 0.5).any())
        assert shadow.unstable


def test_eager_may_have_rounded_any_64_bit_number() -> None:
    x = torch.linspace(0.1, 2, 50, dtype=torch.float64)
    with Shadow(8) as shadow:
        rounded, exact = x.sin() + 1, (x * 100).round() * 0.5
    for result, spreads in ((rounded, True), (exact, False)):
        runs = torch.stack(shadow.twins(result))
        assert bool(((runs != runs[0]).any(0) == spreads).all())


def test_sums_of_64_bit_numbers_round_on_their_way() -> None:
    """Eighty eightieths are 1.0 in eager by chance; sums of what is exact are exact."""
    with Shadow(8) as shadow:
        lucky, exact = torch.full((80,), 0.0125, dtype=torch.float64).sum(), torch.full((80,), 0.25).double().sum()
    assert lucky == 1.0
    for result, spreads in ((lucky, True), (exact, False)):
        runs = torch.stack(shadow.twins(result))
        assert bool((runs != runs[0]).any()) is spreads


@pytest.mark.parametrize("compare", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
def test_how_numbers_compare_that_rounding_may_make_equal_is_undecided(compare: Callable[..., torch.Tensor]) -> None:
    x = torch.linspace(-2, 2, 33).bfloat16()
    with Shadow(8) as shadow:
        back = compare(torch.logit(x.sigmoid()), x)
        apart, same, whole = compare(x.sigmoid(), x * 0 + 2), compare(x * 1, x), compare(x.long(), x.long() + 1)
    runs = torch.stack(shadow.twins(back))
    assert bool((runs != runs[0]).any(0)[x != 0].all())
    for result in (apart, same, whole):
        runs = torch.stack(shadow.twins(result))
        assert bool((runs == runs[0]).all())


def test_sums_of_gradients_are_sums_in_views_of_them_too() -> None:
    """What remains of two large terms has their rounding, behind a squeeze as well."""
    x = torch.linspace(-1, 1, 30).requires_grad_()
    with Shadow(8) as shadow:
        y = x.unsqueeze(1)
        torch.autograd.backward([y * 3.25, y * -3.0, x * 1e-3], [torch.ones_like(y)] * 2 + [torch.full_like(x, 1 / 7)])
    runs = torch.stack(shadow.twins(x.grad))
    spread = (runs[2:] - runs[0]).abs().amax(0)
    assert bool((spread > 2.0**-24).all()) and bool((spread < 2.0**-19).all())


def test_rounded_numbers_in_memory_that_elements_share_are_not_judged() -> None:
    x = torch.zeros(9).as_strided((4, 3), (1, 1))
    with Shadow(8) as shadow:
        loose, exact = x.slice_scatter(torch.ones(1, 3).sin(), 0, 0, 1), x.slice_scatter(torch.ones(1, 3), 0, 0, 1)
    for result, decided_ in ((loose, False), (exact, True)):
        wrong, undecided = judge(result, result + 1, shadow.twins(result))
        assert bool(undecided.any()) is not decided_ and bool(wrong.any()) is decided_


def decided(compute: Callable[..., torch.Tensor], *operands: torch.Tensor) -> tuple[torch.Tensor, Shadow]:
    """Eager's result, and where more than rounding decides it, under a reference with 32 rounded runs."""
    with Shadow(32) as shadow:
        result = compute(*operands)
    return result, shadow


def test_bits_seen_as_integers_follow_the_rounding() -> None:
    """An integer view of rounded numbers is decided by rounding, one of exact numbers is not; the numbers stay theirs."""
    x = torch.linspace(0.1, 2, 50)

    def bits(y: torch.Tensor) -> torch.Tensor:
        y.view(torch.int32)
        return torch.stack([y.view(torch.int32), y.view(torch.int16)[::2].int()])

    for compute, by_rounding in ((lambda x: bits(x.sin()), True), (lambda x: bits((x * 100).round() * 0.5), False)):
        result, shadow = decided(compute, x)
        assert bool(judge(result, result + 1, shadow.twins(result))[1][0].float().mean() > 0.9) is by_rounding
    seen, shadow = decided(lambda x: (y := x.sin(), y.view(torch.int32))[0], x)
    runs = shadow.twins(seen)
    assert bool((runs[0] == x.double().sin()).all()) and bool((torch.stack(runs[2:]) != runs[0]).any(0).all())
    written, shadow = decided(lambda x: (y := x.sin(), y.view(torch.int32).mul_(0))[0], x)
    assert bool(judge(written, written + 1, shadow.twins(written))[0].all())


def test_the_sign_of_what_is_not_a_number_is_nobodys() -> None:
    """The root of a negative number has a sign bit or not, by the kernel; whoever reads it has either answer."""
    x, roots = torch.tensor([1.5, -2.0, 0.0, 3.0]), torch.tensor([-1.0, 4.0, -1.0, -0.0]).sqrt()

    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z.copysign_(y)
        torch.copysign(z, y, out=z)
        return z

    for compute in (torch.copysign, lambda x, y: torch.copysign(x, other=y), written):
        result, shadow = decided(compute, x, roots)
        for ours in (-result, result * 2):
            assert judge(result, ours, shadow.twins(result))[0].tolist() == [False, True, False, True]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("first", [0, 3])
def test_what_is_made_larger_by_being_written_is_followed(first: int) -> None:
    """``out=`` of another size has the runs' numbers, not eager's: nobody knows how far those are off."""
    x = torch.linspace(0.1, 2, 12).reshape(3, 4)

    def larger(x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(first)
        torch.add(x.sin(), 1, out=out)
        return out * 2

    result, shadow = decided(larger, x)
    runs = torch.stack(shadow.twins(result))
    assert bool((runs[0] == (x.double().sin() + 1) * 2).all()) and bool((runs[2:] != runs[0]).any(0).all())
    assert not shadow.lost and bool(judge(result, result * 1.001, shadow.twins(result))[0].all())


def test_rounded_runs_have_numbers_of_the_type() -> None:
    """So neighbours may become equal, and what is too small is zero: shapes and NaNs that follow are decided by rounding."""
    close = torch.tensor([1.3671875, 1.0703125, 1.4453125, 1.4375], dtype=torch.bfloat16)
    assert decided(lambda x: (x.cosh().acosh() + 0.001).unique(), close)[1].unstable
    assert not decided(lambda x: (x * 2).unique(), close)[1].unstable
    tiny = torch.zeros(4, dtype=torch.float16)
    result, shadow = decided(lambda x: x / x.clamp_min(1e-8), tiny)
    wrong, undecided = judge(result, torch.ones_like(result), shadow.twins(result))
    assert bool(undecided.all()) and not bool(wrong.any())


def test_numbers_too_large_for_16_bits_are_infinite_only_at_their_end() -> None:
    """What lies between fused operators has 32 bits, so that eager's overflow there is none of ours; a result's is."""
    x = torch.tensor([0.003, 0.0025], dtype=torch.float16)
    between, shadow = decided(lambda x: x * (x.reciprocal() * x.reciprocal()), x)
    assert bool(between.isinf().all())
    for ours, right in ((x.float().reciprocal().half(), True), (between, True)):
        wrong, undecided = judge(between, ours, shadow.twins(between))
        assert bool(undecided.all()) is right and not bool(wrong.any())
    end, shadow = decided(lambda x: x.reciprocal().square(), x / 4)
    assert bool(judge(end, torch.ones_like(end), shadow.twins(end))[0].all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_product_that_is_added_to_may_be_beyond_the_largest_number(dtype: torch.dtype) -> None:
    """Not rounded in between, it is no infinity, and less another one not NaN; whatever else reads it has the infinity."""
    x = torch.tensor([3e38, 2.0], dtype=dtype)

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(x)
        return y.sub_(math.inf)

    for compute in (lambda x: math.inf - x * x, lambda x: (x.exp() - x.view(1, 2) * x)[0], in_place):
        result, shadow = decided(compute, x)
        assert bool(result[0].isnan())
        wrong, undecided = judge(result, torch.full_like(result, math.inf), shadow.twins(result))
        assert undecided.tolist() == [True, False] and not bool(wrong[0])
    for compute in (lambda x: x * x, lambda x: x * x * 1e-38 * x, lambda x: (x * x).sqrt(), lambda x: (x * x).sqrt() - 1):
        result, shadow = decided(compute, x)
        assert bool(result[0].isinf())
        wrong, undecided = judge(result, torch.ones_like(result), shadow.twins(result))
        assert not bool(undecided.any()) and bool(wrong[0])


def test_gradients_may_be_added_in_another_order() -> None:
    """A region's are one number to the rest of the program's; sums of whole numbers are the same in each order."""
    for power, exact in ((1.5, False), (2.0, True)):
        x = torch.arange(1.0, 40.0).requires_grad_()
        with Shadow(32) as shadow:
            parts = [x.pow(power), x * 8, x * -8]
            torch.autograd.backward(parts, [torch.full_like(x, 0.5)] * 3)
        runs = torch.stack(shadow.twins(x.grad))
        spread = (runs[2:] - runs[0]).abs().amax(0)
        assert bool((spread > 2.0**-24).all()) is not exact and bool((spread < 2.0**-18).all())
        assert bool(judge(x.grad, x.grad * 1.001, list(runs))[0].all())


def test_inner_roundings_of_eagers_kernels_count() -> None:
    """1 + erf(x) has few digits where erf(x) is near -1, whichever kernel computes it; elsewhere it has all."""
    for at, least in ((-3.5, 2.0**-18), (1.0, 0.0)):
        x = torch.linspace(at, at + 0.2, 64)
        result, shadow = decided(torch.nn.functional.gelu, x)
        runs = torch.stack(shadow.twins(result))
        spread = (runs[2:] - runs[0]).abs().amax(0) / runs[0].abs()
        assert least < float(spread.median()) < 2.0**-10 and (least > 0 or float(spread.max()) < 2.0**-20)


def test_inner_roundings_of_normalisations_count() -> None:
    """A mean is rounded before it is subtracted, and moves what is nearly it; a normalisation of two hardly moves with them."""
    x = 2 + torch.tensor([[[-1.0], [1.0]]]) * torch.linspace(0.005, 0.02, 8).view(8, 1, 1)
    with Shadow(SAMPLES) as shadow:
        result = torch.nn.functional.group_norm(x, 1)
    runs = shadow.twins(result)
    size = 2.0**-23 / x.var(1, unbiased=False, keepdim=True).sqrt()
    for move, right in ((0.5, True), (50.0, False)):
        wrong, _ = judge(result, result + move * size, runs)
        assert bool((wrong != right).all())


@pytest.mark.parametrize("at", [-3.9, -3.5, -3.0, 0.5])
def test_a_sum_with_one_has_few_digits_for_every_number(at: float) -> None:
    """One kernel's gelu may be exact where it happens to be; a unit of the 1 that another adds to is right there too."""
    x = torch.linspace(at, at + 0.1, 64)
    with Shadow(SAMPLES) as shadow:
        result = torch.nn.functional.gelu(x)
    for move, right in ((1, True), (60, False)):
        wrong, _ = judge(result, result + move * x * 2.0**-23, shadow.twins(result))
        assert bool((wrong != right).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("name", ["tan", "asinh", "sinh"])
def test_rounding_leaves_a_zero_its_sign(name: str, dtype: torch.dtype) -> None:
    """Operators whose operands the rounded runs move, too: a compiler that gives the other zero is seen."""
    x = torch.tensor([-0.0, 0.0, -0.0, 0.75], dtype=torch.float64).to(dtype)
    with Shadow(SAMPLES) as shadow:
        found = getattr(x * 1.5, name)()
    wrong, undecided = judge(found, -found, shadow.twins(found))
    assert bool(wrong.all()) and not undecided.any()


def test_zeros_of_several_terms_have_either_sign() -> None:
    """A normalisation's gradient adds zeros in its kernel's order; what is no zero, and zeros of one term, are judged."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for program, either in ((lambda: torch.nn.functional.layer_norm(x, (4,)), True), (lambda: x * 2, False)):
        with Shadow(SAMPLES) as shadow:
            (found,) = torch.autograd.grad(program(), x, torch.full((3, 4), -0.0))
            together = found * x + found.roll(1, 1) * x.roll(2, 1)  # each of them either
        for zeros in (found, together):
            assert bool((judge(zeros, -zeros, shadow.twins(zeros))[0] != either).all())
            assert bool(judge(zeros, zeros + 1e-30, shadow.twins(zeros))[0].all())


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_zero_of_a_softmaxs_gradient_depends_on_the_kernel(name: str, columns: int) -> None:
    """Of nothing but negative zeros a row's sum is -0.0, a column's 0.0; of positive ones each kernel's is 0.0."""
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for zeros, either in ((torch.full((3, columns), -0.0), True), (torch.zeros(3, columns), False)):
        with Shadow(SAMPLES) as shadow:
            (found,) = torch.autograd.grad(getattr(x, name)(1), x, zeros)
        assert bool((judge(found, -found, shadow.twins(found))[0] != either).all())
        assert bool(judge(found, found + 1e-30, shadow.twins(found))[0].all())


def test_a_vector_product_of_a_vector_and_itself_may_be_zero() -> None:
    """With a fused multiplication and addition it is what rounding one product has left, and has a sign."""
    x = torch.linspace(0.1, 0.9, 30, dtype=torch.float64).reshape(10, 3)
    result, shadow = decided(lambda x: torch.linalg.cross(x, x).sign().abs(), x)
    if bool(result.any()):
        assert not judge(result, torch.zeros_like(result), shadow.twins(result))[0].any()
    other = x.cos()
    result, shadow = decided(lambda x: torch.linalg.cross(x, other), x)
    assert bool(judge(result, result * 1.0001 + 1e-12, shadow.twins(result))[0].all())
    assert bool(judge(result, torch.linalg.cross(other, x), shadow.twins(result))[0].all())


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_the_noise_of_a_normalisations_gradient_is_small(name: str) -> None:
    """Kernels that want their operands without gaps are not asked for another way: what they would compute is no noise."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(3, 4, 5, generator=generator).requires_grad_(), torch.randn(4, generator=generator)
    compute = {
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x.transpose(1, 2), (4,), w),
        "group_norm": lambda x: torch.nn.functional.group_norm(x, 2, w),
        "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, w, training=True),
    }[name]
    with Shadow(SAMPLES) as shadow:
        out = compute(x)
        (found,) = torch.autograd.grad(out, x, torch.randn(out.shape, generator=generator))
    assert bool(judge(found, found + 0.02 * found.abs().mean(), shadow.twins(found))[0].all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_normalised_may_be_computed_again(dtype: torch.dtype) -> None:
    """With another rounding error than when its mean was taken, which moves the gradient's sum from zero."""
    x = torch.linspace(0.1, 0.9, 64, dtype=dtype).reshape(16, 4).requires_grad_()
    grad = torch.linspace(-1, 2, 64, dtype=dtype).reshape(16, 4).cos()
    eps = torch.finfo(dtype).eps
    shift = torch.zeros(4, dtype=dtype, requires_grad=True)
    with Shadow(SAMPLES) as shadow:
        inner = (3 + x.sin() * 2.0**-3) - 3 + shift
        out, mean, scale = torch.native_batch_norm(inner, None, None, None, None, True, 0.1, 0.0)
        out.backward(grad)
    twice = inner.detach() + 3 * eps
    (again, _, _) = torch.ops.aten.native_batch_norm_backward(
        grad, twice, None, None, None, mean.detach(), scale.detach(), True, 0.0, [True, False, False]
    )
    assert not judge(shift.grad, again.sum(0), shadow.twins(shift.grad))[0].any()
    assert bool(judge(x.grad, x.grad + 0.02 * x.grad.abs().mean(), shadow.twins(x.grad))[0].all())


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins on another device than the program's tensors, as far as the reference can tell."""
    monkeypatch.setattr(fuzz.reference, "HOME", torch.device("cpu", 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize(
    "write,undecided",
    [
        (lambda x: x.as_strided((3, 4), (1, 1), 1).neg_(), [2, 3, 4, 5]),
        (lambda x: x[2:9].masked_scatter_(x[2:9] == x[2:9], x[2:9]), [2, 3, 4, 5, 6, 7, 8]),
        (lambda x: x[4:].cumsum_(0), []),
        (lambda x: x[4:].mul_(x[4:]), []),
        (lambda x: x[:4].add_(x[4:8]), []),
    ],
    ids=["overlapping", "from itself", "scan", "element-wise", "from beside"],
)
def test_what_several_threads_write_is_undecided(elsewhere: None, write: Any, undecided: list[int], dtype: Any) -> None:
    """And nothing else is: damage is seen in all other elements, and everywhere where a write is no race."""
    x = torch.arange(1, 13).to(dtype)
    with Shadow(4) as shadow:
        write(x)
    wrong, doubt = judge(x, x + 1, shadow.twins(x))
    assert shadow.raced == bool(undecided)
    assert doubt.nonzero().flatten().tolist() == undecided
    assert wrong.tolist() == [i not in undecided for i in range(12)]


@torch.library.custom_op("fuzzing::there", mutates_args=("out",))
def there(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Has a kernel for tensors on another device alone; these are what ``_moved_to`` has made of others."""
    if x.data_ptr() not in OWN:
        raise NotImplementedError
    out.add_(x)
    return x * 2


def test_what_has_no_kernel_here_is_computed_there(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it writes is not lost."""
    x, out = torch.arange(3.0), torch.ones(3)
    OWN[:] = [x.data_ptr()]
    kept = []

    def moved(device: torch.device, value: Any) -> Any:
        copies = fuzz.reference._mapped(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, value)
        kept.append(copies)
        OWN.extend(t.data_ptr() for t in fuzz.reference._tensors(copies))
        return copies

    monkeypatch.setattr(fuzz.reference, "_moved_to", moved)
    with Shadow(2) as shadow:
        result = there(x, out)
    assert not shadow.lost
    assert torch.equal(shadow.twins(result)[0], x.double() * 2)
    assert torch.equal(shadow.twins(out)[0], x.double() + 1)


def test_a_program_elsewhere_is_followed_as_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        with Shadow(4) as shadow:
            x = torch.linspace(0.1, 2, 12).requires_grad_()
            y = torch.nn.functional.gelu(x.reshape(3, 4) @ torch.ones(4, 2, device="cpu")).log_softmax(1)
            y.square().sum().backward()
            z = y.detach().to(torch.float16, copy=True).cumsum_(0)
        assert not shadow.lost and not shadow.raced
        return [twin for t in (y, x.grad, z) for twin in shadow.twins(t)]

    here = run()
    monkeypatch.setattr(fuzz.reference, "HOME", torch.device("cpu", 0))
    assert all(map(torch.equal, here, run()))


@pytest.mark.parametrize(
    "compute,operand",
    [
        (lambda x: x.clone().cumsum_(0), torch.linspace(-3, 3, 40).cos()),
        (lambda x: x.log_softmax(0), torch.tensor([0.5, -3.25, 3.0], dtype=torch.float64)),
        (lambda x: x.digamma(), torch.tensor([1.5, 1.25], dtype=torch.float64)),
        (lambda x: torch._euclidean_dist(x, x + 1), torch.linspace(1000, 2000, 300).reshape(30, 10)),
        (lambda x: torch.nn.functional.interpolate(x.reshape(1, 1, -1), 7, mode="linear"), torch.arange(3.0)),
    ],
    ids=["in place", "exponentials", "series", "detour", "weights"],
)
def test_operators_that_round_inside_have_noise(compute: Any, operand: torch.Tensor) -> None:
    """More than that of their result's last place, on exact numbers too; a thousandth off is wrong nevertheless."""
    result, shadow = decided(compute, operand)
    runs = torch.stack(shadow.twins(result))
    spread = (runs[2:] - runs[0]).abs().amax(0)
    assert bool((spread > torch.finfo(operand.dtype).eps * runs[0].abs() * 1.01).any())
    scale = 30 if compute.__code__.co_names[0] == "torch" and "_euclidean_dist" in compute.__code__.co_names else 1
    assert bool(judge(result, result * (1 + 0.001 * scale) + 1e-6, shadow.twins(result))[0].any())


def test_the_logarithm_of_a_sum_that_is_one_may_be_zero() -> None:
    """1 + log2(1 + 1) for -1: the logarithm's rounding is all that is left, or nothing is."""
    x = torch.full((2,), -1.0, dtype=torch.float64)
    result, shadow = decided(lambda x: torch.logaddexp2(x, x), x)
    for other, right in ((0.0, True), (2e-16, True), (1e-14, False)):
        wrong, _ = judge(result, torch.full_like(x, other), shadow.twins(result))
        assert bool((wrong != right).all())


#: Rows by how many signs the zeros have among which one looks for the largest: both in the first five, which of them is
#: first, last or in the middle, then one, and none.
ROWS_OF_ZEROS = torch.tensor(
    [
        [0.0, -0.0, -1.0, -2.0], [-0.0, 0.0, -1.0, 0.0], [0.0, -0.0, -0.0, 0.0], [-0.0, 0.0, 0.0, -0.0], [-1.0, -0.0, 0.0, -0.0],
        [0.0, 0.0, -1.0, 0.0], [-0.0, -0.0, -2.0, -0.0], [-1.0, 0.0, -2.0, -1.0], [-1.0, -2.0, -0.0, -1.0], [-0.0, -0.0, -0.0, 2.0],
    ]
)  # fmt: skip
PLACES = torch.arange(10)[:, None].expand(10, 4)
EXTREMA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: (-x).amin(1),
    "max": lambda x: torch.stack([r.max() for r in x]),
    "min": lambda x: torch.stack([(-r).min() for r in x]),
    "aminmax": lambda x: x.aminmax(dim=1).max,
    "of columns": lambda x: x.t().contiguous().amax(0),
    "out": lambda x: torch.amax(x, 1, out=torch.empty(10, dtype=x.dtype)),
    "scatter_reduce": lambda x: torch.zeros(10, 1, dtype=x.dtype).scatter_reduce(1, PLACES * 0, x, "amax", include_self=False)[:, 0],
    "index_reduce_": lambda x: torch.full((10, 1), -9.0, dtype=x.dtype).index_reduce_(1, PLACES[0] * 0, x, "amax")[:, 0],
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXTREMA)
def test_the_zero_of_an_extremum_depends_on_the_order(name: str, dtype: torch.dtype) -> None:
    """Where there are zeros of both signs, and in what follows from it; a zero of one sign has one answer."""
    for follow in (lambda y: y, lambda y: torch.ones_like(y).copysign(y), lambda y: (y * -3).float(), torch.reciprocal):
        result, shadow = decided(lambda x, follow=follow: follow(EXTREMA[name](x)), ROWS_OF_ZEROS.to(dtype))
        runs = shadow.twins(result)
        assert judge(result, -result, runs)[0].tolist() == [row >= 5 for row in range(10)]
        assert not judge(result, result, runs)[0].any()


def test_the_first_of_several_extrema_is_the_answer_where_a_place_is_told() -> None:
    result, shadow = decided(lambda x: x.max(1).values, ROWS_OF_ZEROS)
    assert judge(result, -result, shadow.twins(result))[0].all()


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_zero_of_a_pointwise_operator_depends_on_vectors(count: int) -> None:
    """Also where there are too few numbers for one."""
    x = torch.full((count,), -0.0)
    for compute in (lambda x: torch.minimum(x, torch.tensor(0.0)), lambda x: torch.maximum(-x, x)):
        result, shadow = decided(compute, x)
        assert not judge(result, -result, shadow.twins(result))[0].any()
    result, shadow = decided(torch.neg, x)
    assert judge(result, -result, shadow.twins(result))[0].all()


@pytest.mark.parametrize("name", ["var_mean", "std_mean"])
def test_a_running_mean_rounds_where_sums_are_exact(name: str) -> None:
    """Of whole numbers too: eager's mean of these need not be zero, as the exact one is."""
    with Shadow(samples=8) as shadow:
        mean = getattr(torch, name)(torch.tensor([1.0, 2.0, -4.0, 3.0, -2.0], dtype=torch.double))[1]
        total = torch.tensor([1.0, 2.0, -4.0, 3.0, -2.0], dtype=torch.double).sum()
    assert len({float(twin) for twin in shadow.twins(mean)}) > 3
    assert {float(twin) for twin in shadow.twins(total)} == {0.0}
    wrong, _ = judge(mean, torch.zeros_like(mean), shadow.twins(mean))
    assert not wrong.any()
    wrong, _ = judge(mean, torch.full_like(mean, 1e-12), shadow.twins(mean))
    assert wrong.all()


@pytest.mark.parametrize("name", ["var", "std"])
def test_the_order_of_a_running_mean_counts(name: str) -> None:
    """Eager's own is off by a dozen units of 64 bits, and there is no wider type for the reference: an exact one is right."""
    x = make((17, 64), "float64", "expanded", seed=9).abs()
    numbers = [Fraction(number) for number in x.flatten().tolist()]
    mean = sum(numbers) / len(numbers)
    exact = torch.tensor(float(sum((n - mean) ** 2 for n in numbers) / (len(numbers) - 1)), dtype=torch.double)
    exact = exact.sqrt() if name == "std" else exact
    result, shadow = decided(lambda x: getattr(torch, name)(x), x)
    assert abs(result / exact - 1) > 4e-16
    assert not judge(result, exact, shadow.twins(result))[0].any()
    assert judge(result, exact * (1 + 1e-12), shadow.twins(result))[0].all()


@pytest.mark.parametrize("off", [0.0, 3.0])
@pytest.mark.parametrize("shape", [(1, 1, 20000), (40, 2, 3, 50)])
def test_the_order_of_a_normalisation_counts(shape: tuple[int, ...], off: float) -> None:
    """Batch norms and instance norms of 64 bits are off by up to a hundred units: exact ones are right, no others."""
    x = make(shape, "float64", seed=5, exact=True) + off
    averages = [torch.zeros(shape[1], dtype=torch.double), torch.ones(shape[1], dtype=torch.double)]
    with Shadow(SAMPLES) as shadow:
        found = torch.nn.functional.batch_norm(x, *averages, training=True), *averages
    count = x.numel() // shape[1]
    for c in range(shape[1]):
        numbers = [Fraction(number) for number in x[:, c].flatten().tolist()]
        mean = sum(numbers) / count
        variance = sum((n - mean) ** 2 for n in numbers) / count
        size = math.sqrt(variance + Fraction(1e-5))
        exact = (
            torch.tensor([float(n - mean) / size for n in numbers], dtype=torch.double).view(x[:, c].shape),
            torch.tensor(float(mean * Fraction(0.1)), dtype=torch.double),
            torch.tensor(0.9 + 0.1 * float(variance * count / (count - 1)), dtype=torch.double),
        )
        for result, right in zip(found, exact, strict=True):
            pick = (slice(None), c) if result.dim() > 1 else c
            runs = [twin[pick] for twin in shadow.twins(result)]
            assert not judge(result[pick], right, runs)[0].any()
            assert judge(result[pick], right * (1 + 1e-11), runs)[0].all()


@pytest.mark.parametrize("correction", [0, 1])
def test_a_running_mean_of_many_equal_numbers_is_not_the_exact_one(correction: int) -> None:
    """Eager's own is off by 75 units: the exact run goes over the numbers twice."""
    part = make((33, 33), "float64", exact=True).deg2rad()
    x = torch.block_diag(part, part)
    numbers = [Fraction(number) for number in x.flatten().tolist()]
    mean = sum(numbers) / len(numbers)
    exact = torch.tensor(float(sum((n - mean) ** 2 for n in numbers) / (len(numbers) - correction)), dtype=torch.double)
    result, shadow = decided(lambda x: x.var(correction=correction), x)
    assert abs(result / exact - 1) > 4e-15
    assert not judge(result, exact, shadow.twins(result))[0].any()
    assert judge(result, exact * (1 + 1e-11), shadow.twins(result))[0].all()


def test_thirds_do_not_cancel_exactly() -> None:
    """An average over three has weights that are no exact numbers: what cancels of them need not be zero."""
    x = torch.zeros(1, 1, 9, requires_grad=True)
    grad = torch.linspace(-1, 1, 9).view(1, 1, 9)
    with Shadow(SAMPLES) as shadow:
        torch.nn.functional.avg_pool1d(x, 3, 1, 1).backward(grad)
    middle = x.grad[0, 0, 4:5]
    runs = [run[0, 0, 4:5] for run in shadow.twins(x.grad)]
    assert not judge(middle, middle + 4e-9, runs)[0].any() and judge(middle, middle + 4e-6, runs)[0].all()


def test_a_digamma_has_the_rounding_of_what_it_is_the_difference_of() -> None:
    x = torch.linspace(1.3, 1.6, 41, dtype=torch.double)
    result, shadow = decided(torch.digamma, x)
    assert not judge(result, result + 5e-16, shadow.twins(result))[0].any()
    assert judge(result, result + 1e-13, shadow.twins(result))[0].all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "nansum", "cumsum"])
def test_a_sum_that_overflows_by_its_order_is_undecided(name: str, dtype: torch.dtype) -> None:
    """Also a mean of which only the sum overflows, before it is divided."""
    certain = [[3, 3, 3, 3, 0, 0], [3, 3, 3, -2, 0, 0], [3, -3, 0.25, 0.25, 0, 0], [math.inf, 3, 3, 3, 0, 0]]
    columns = [[3, 3, 3, -3, -3, -3], [3, 3, -3, 0, 0, 0], [3, 3, 3, 3, -3, -3], *certain]
    x = (torch.tensor(columns, dtype=torch.double) / 4).t() * torch.finfo(dtype).max
    result, shadow = decided(lambda x: getattr(x, name)(0), x.to(dtype))
    result, runs = (part[-1] if name == "cumsum" else part for part in (result, torch.stack(shadow.twins(result), -1)))
    runs = list(runs.unbind(-1))
    undecided = [True] * 3 + ([True, True, False, False] if name == "mean" else [False] * 4)
    assert judge(result, result, runs)[1].tolist() == undecided
    other = result.isfinite().where(result.isinf(), 0.0).to(dtype)  # another number for each
    assert judge(result, other, runs)[0].tolist() == [not each for each in undecided]


def test_a_product_of_three_rounds_each_term() -> None:
    """Orders of a bilinear form of exact weights that 32 bits are enough for, and a type that they are not."""
    x, weight = make((20, 33), seed=3), fuzz.inputs.ramp(torch.ones(1), 2, 33, 33)
    result, shadow = decided(lambda x: torch.nn.functional.bilinear(x, x, weight), x)
    runs = shadow.twins(result)
    for seed in range(20):
        order = torch.randperm(33 * 33, generator=torch.Generator().manual_seed(seed))
        terms = (x[:, None, :, None] * weight * x[:, None, None, :]).flatten(2)[..., order]
        other = terms.cumsum(-1)[..., -1]
        assert not judge(result, other, runs)[0].any()
    short = (x.bfloat16()[:, None, :, None] * weight * x[:, None, None, :]).sum((2, 3))
    assert judge(result, short, runs)[0].float().mean() > 0.8


def test_a_log_softmax_has_the_rounding_of_its_logarithm() -> None:
    x = torch.tensor([[0.0, -65.0], [1.0, -80.0]], dtype=torch.double)
    result, shadow = decided(lambda x: x.log_softmax(1), x)
    wrong, _ = judge(result, torch.log_softmax(x, 1) - torch.tensor([[2.5e-29, 0.0], [0.0, 0.0]]), shadow.twins(result))
    assert not wrong.any()
    assert judge(result, result - 1e-14, shadow.twins(result))[0][:, 0].all()


@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "batch_norm"])
def test_a_normalisations_gradients_may_be_off_together(name: str) -> None:
    """By the error of the mean that is taken from each, not each by its own."""
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    norm = {
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (5,)),
        "group_norm": lambda x: torch.nn.functional.group_norm(x, 2),
        "batch_norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    }[name]
    with Shadow(SAMPLES) as shadow:
        inner = x * 1.0
        inner.retain_grad()
        (norm(inner) * 0.7).sum().backward()
        total = inner.grad.sum()
    runs = shadow.twins(total)
    unit = 2.0**-23
    assert not judge(total, total + 20 * unit, runs)[0].any()
    assert judge(total, total + 120 * 40 * unit, runs)[0].all()


def test_an_infinity_becomes_the_largest_number_of_eagers_type() -> None:
    """Not that of the twins', of which a sum or a square is an infinity again."""
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    for dtype in (torch.float32, torch.float16):
        result, shadow = decided(lambda x: torch.nan_to_num(x) * 0.25, x.to(dtype))
        assert not judge(result, result, shadow.twins(result))[1].any()
        assert judge(result, result * 1.01 + 0.1, shadow.twins(result))[0].all()
    result, shadow = decided(lambda x: torch.nan_to_num(x, 1.0, None, -3.0), x)
    assert judge(result, result * 1.01, shadow.twins(result))[0].all()
    spread, shadow = decided(lambda x: torch.nan_to_num(x).std(), x)  # some order of its squares overflows
    assert judge(spread, spread * 0 + 3e38, shadow.twins(spread))[1].all() or bool(spread.isfinite())


def test_the_zero_of_a_pointwise_operator_depends_on_vectors_and_on_rounding() -> None:
    """One by one, a small number becomes a zero of its sign, which is rounding's; by vectors, always 0.0."""
    x = torch.ones(16)
    result, shadow = decided(lambda x: torch.nn.functional.softshrink(torch.sinc(x)), x)
    assert not judge(result, -result, shadow.twins(result))[0].any()
    result, shadow = decided(lambda x: torch.nn.functional.softshrink(x * 0.25), x)
    assert not judge(result, -result, shadow.twins(result))[1].any()


def test_what_is_written_behind_autograds_back_is_known_where_a_gradient_reads_it() -> None:
    def product(x: torch.Tensor, write: Callable[[torch.Tensor], Any], then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        y = x * x
        write(x)
        then(y).sum().backward()

    for write, then, behind in (
        (lambda x: x.data.add_(1), lambda y: y, True),
        (lambda x: x.data.add_(1), lambda y: y.detach().requires_grad_() * 2, False),
        (lambda x: None, lambda y: y, False),
    ):
        with Shadow(3) as shadow:
            x = torch.ones(3, requires_grad=True)
            for _ in range(2):  # what the first round wrote is the second's own
                product(x, write, then)
        assert shadow.behind is behind


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_a_backward_pass_reads_may_be_computed_again(dtype: torch.dtype) -> None:
    """A root mean square takes from each number nearly all that its gradient has; the number may be rounded anew."""
    x = torch.linspace(0.1, 0.9, 64, dtype=dtype).reshape(4, 16).requires_grad_()
    shifted = 3 + torch.randn(4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype) * 2.0**-4
    eps = torch.finfo(dtype).eps
    with Shadow(SAMPLES) as shadow:
        inner = x.sin() + shifted - 3 - x.detach().sin()  # few digits are left
        normed = inner * (inner * inner).mean(-1, keepdim=True).rsqrt()
        (found,) = torch.autograd.grad(normed.norm(), x)
    assert not judge(found, found + 2 * eps * (1 - found), shadow.twins(found))[0].any()
    assert bool(judge(found, found + 1e3 * eps, shadow.twins(found))[0].any())
