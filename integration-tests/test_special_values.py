"""Zeros of either sign, infinities, NaN, denormals and the ends of the integers: what eager makes of them, bit for bit
where that is a matter of kind (sign of a zero, NaN or not, finite or not), and to a few roundings else.

Elementwise operators of PyTorch's database (every fourth; all with SPECIAL_VALUES_EVERY=1) on every dtype, over enough
elements for vectors and a tail, with steps between the elements, and on single elements.
"""

from __future__ import annotations

import functools
import math
import os
import warnings

import pytest
import torch
import torch.nn.functional as F

import compile_api

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
COUNT = 67  # vectors and a tail

#: Random numbers.
RANDOM = {"bernoulli", "nn_functional_dropout", "nn_functional_rrelu"}
#: Where eager does not agree with itself, between vectors and tails or between types: ours are as its tails (IEEE's
#: remainder, -0.0), and of two equal zeros as in float32.
DISAGREES = {"fmod", "remainder", "__rmod__", "nn_functional_softshrink", "fmax", "fmin"}
DIVISIONS = ("div", "floor_divide", "true_divide", "remainder", "fmod", "__rdiv", "__rmod", "gcd", "lcm")
#: Halves that eager rounds between the steps of a formula, where ours are more precise.
ROUNDED_BETWEEN = {"nn_functional_tanhshrink", "special_ndtr", "special_xlog1py", "ldexp"}
#: bfloat16 denormals that eager's vectors take for zero.
FLUSHED = {"erf"}


def special(dtype):
    if dtype == torch.bool:
        return torch.tensor([True, False, False, True, True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        plain = [0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 3.0, 100.5, 127.0, 128.0, 129.0, 255.0, 256.0, 32768.0, 2.0**31, 9.3e18]
        ends = [info.max, info.tiny, info.smallest_normal / 2, info.eps, math.inf]
        values = [v for x in (*plain, *ends) for v in (x, -x)] + [math.nan]
        return torch.tensor(values, dtype=torch.float64).to(dtype)
    info = torch.iinfo(dtype)
    negative = [-1, -2, -3, -7] if info.min else [128, 255]
    return torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.min, info.max - 1, info.min + 1, *negative], dtype=dtype)


def layouts(values):
    """The values one after the other, with steps between them, and the second, a negative one or zero, alone."""
    dense = values.repeat(COUNT // len(values) + 1)[:COUNT] if len(values) < COUNT else values
    stepped = torch.zeros(2 * len(dense), dtype=values.dtype)[::2]
    return [dense.clone(), stepped.copy_(dense), values[1:2].clone()]


def other_kind(ours, theirs):
    """Where two results differ in kind, or by more than roundings."""
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    if ours.is_complex():
        ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
    if not ours.is_floating_point():
        return ours != theirs
    signs = (torch.signbit(ours) != torch.signbit(theirs)) & ~theirs.isnan()
    kinds = [(f(ours) != f(theirs)) for f in (torch.isnan, torch.isinf, lambda x: x == 0)]
    rtol = 2e-2 if theirs.dtype in (torch.half, torch.bfloat16) else 1e-4
    far = ~torch.isclose(ours.double(), theirs.double(), rtol=rtol, atol=1e-30, equal_nan=True)
    return signs | kinds[0] | kinds[1] | kinds[2] | far


def compare(function, arguments, allowed=None):
    """One compiled program that calls the function on all of the arguments, against eager's calls."""
    cases = []
    for args in arguments:
        try:
            result = function(*args)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        if isinstance(result, torch.Tensor):
            cases.append((args, result))
    if not cases:
        pytest.skip("eager refuses all of them")
    counts = [len(args) for args, _ in cases]

    def program(*flat):
        results, at = [], 0
        for count in counts:
            results.append(function(*flat[at : at + count]))
            at += count
        return results

    compile_api.reset()
    compiled = compile_api.compile(program)
    found = compiled(*[x for args, _ in cases for x in args])
    wrong = []
    for (args, want), got in zip(cases, found, strict=True):
        bad = other_kind(got, want)
        if allowed is not None:
            bad &= ~allowed(got, want, *args)
        if bad.any():
            where = tuple(bad.nonzero()[0].tolist())
            at = [x.expand(bad.shape)[where].item() for x in args]
            wrong.append(f"{[str(x.dtype) for x in args]} {at}: {got[where].item()} instead of {want[where].item()}")
    assert not wrong, "\n".join(wrong)
    assert not compiled.report().breaks


def _allowed(name):
    if name in DISAGREES:
        # One of two answers that eager itself gives, of which only one is IEEE's.
        return lambda got, want, *args: (want.isnan() & ~got.isnan()) | ((got == 0) & (want == 0))
    if name in ROUNDED_BETWEEN:
        return lambda got, want, *args: torch.full_like(want, want.dtype in (torch.half, torch.bfloat16), dtype=torch.bool)
    if name in FLUSHED:
        return lambda got, want, x: (x.abs() <= torch.finfo(x.dtype).tiny) if x.dtype == torch.bfloat16 else want != want
    return None


#: Every how manieth operator is tried; 1 in a whole run.
EVERY = int(os.environ.get("SPECIAL_VALUES_EVERY", "4"))
ALL = [op for op in op_db if op.formatted_name not in RANDOM and not op.formatted_name.startswith("jiterator")]
UNARY = [op for op in ALL if isinstance(op, UnaryUfuncInfo)]
#: Eager's loops over the degree of a polynomial go on for ever at 9e18.
BINARY = [op for op in ALL if isinstance(op, BinaryUfuncInfo) and "polynomial" not in op.formatted_name]


@pytest.mark.parametrize("op", UNARY[::EVERY], ids=lambda op: op.formatted_name)
def test_unary(op):
    arguments = [(x,) for dtype in (*FLOATS, *INTEGERS) for x in layouts(special(dtype))]
    compare(lambda x: op.op(x), arguments, _allowed(op.formatted_name))


@pytest.mark.parametrize("op", BINARY[::EVERY], ids=lambda op: op.formatted_name)
def test_binary(op):
    arguments = []
    for dtype in (*FLOATS, *INTEGERS):
        values = special(dtype)
        x, y = values.repeat_interleave(len(values)), values.repeat(len(values))
        if dtype in INTEGERS[:-1]:  # some of these end the process in eager
            least = torch.iinfo(dtype).min
            harmless = ~((x == least) & (y.long() == -1) | (y == least) & (x.long() == -1))
            harmless &= ((x != least) & (y != least)) | (op.formatted_name != "lcm")
            harmless &= (y != 0) | (not op.formatted_name.startswith(DIVISIONS))
            x, y = x[harmless], y[harmless]
        whole = len(x) // 16 * 16  # eager's tails and vectors differ in which zero is the greater
        arguments.append((x[:whole], y[:whole]))
    compare(lambda x, y: op.op(x, y), arguments, _allowed(op.formatted_name))


@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS], ids=str)
def test_conversions_there_and_back(target):
    arguments = [(x,) for dtype in (*FLOATS, *INTEGERS) for x in layouts(special(dtype))]
    # Past 32 bits, with low bits: narrow integers have the bits of a 32-bit one, the least, not these.
    past = torch.tensor([2.0**32 + 2**9, -(2.0**31) - 3 * 2**8, 3e9, 2.0**33 + 4103, -3007654321.0, 7e10] * 3)
    arguments += [(past,), (past.double() + 5,)]
    compare(lambda x: x.to(target), arguments)
    compare(lambda x: x.to(target).to(x.dtype), arguments)
    compare(lambda x: torch.where(x.to(target) > 1, x, -x), arguments)


CLAMPS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_min of -0.0": lambda x: x.clamp_min(-0.0),
    "clamp_max": lambda x: x.clamp_max(0),
    "clamp_max of -0.0": lambda x: x.clamp_max(-0.0),
    "hardtanh": lambda x: F.hardtanh(x, 0, 6),
    "hardtanh below": lambda x: F.hardtanh(x, -6, 0),
    "threshold": lambda x: F.threshold(x, 0, 0),
    "round to tenths": lambda x: torch.round(x, decimals=1),
    "times -0.0": lambda x: x * -0.0,
    "plus 0.0": lambda x: x + 0.0,
    "plus -0.0": lambda x: x + -0.0,
    "minus 0.0": lambda x: x - 0.0,
    "pad": lambda x: F.pad(x, (1, 1), value=-0.0),
}


@pytest.mark.parametrize("name", CLAMPS)
def test_zeros_at_bounds(name):
    compare(CLAMPS[name], [(x,) for dtype in FLOATS for x in layouts(special(dtype))])


REDUCTIONS = "sum mean prod cumsum cumprod amax amin std var logsumexp".split()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_zeros(name):
    """All of one sign: which of two equal zeros is the greatest depends on eager's order."""
    zeros = [torch.zeros(shape) * sign for shape in ((1,), (2,), (37,), (5, 3), (1, 4), (4, 1)) for sign in (1, -1)]
    for dim in (-1, 0):
        compare(lambda x, dim=dim: getattr(torch, name)(x, dim), [(x.to(t),) for x in zeros for t in FLOATS])
    if name in ("sum", "mean"):
        numbers = [(torch.tensor(-0.0).to(t),) for t in FLOATS]
        compare(lambda x: getattr(torch, name)(x), [*numbers, *((x.to(t),) for x in zeros for t in FLOATS)])


def test_constants_keep_the_sign_of_zero():
    def program(x):
        made = [torch.full((3,), value) for value in (0.0, -0.0, -0.3)]
        results = [f(m) for m in made for f in (torch.ceil, torch.trunc, torch.round, torch.neg, torch.abs, torch.sum)]
        return [*made, *results, x * -0.0, x * 0.0, torch.where(x > 2, x, -0.0), torch.where(x > 2, x, 0.0)]

    x = torch.ones(3)
    for got, want in zip(compile_api.compile(program)(x), program(x), strict=True):
        assert not other_kind(got, want).any()


PRECISE = [1e6, 1e-9, 1.0011, 70000.0]


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mul", "div", "add", "sub"])
def test_products_with_a_number_in_a_tensor(name, dtype):
    """A 0-dimensional operand of higher precision does not make the result more precise, but may be more precise itself."""
    function = getattr(torch, name)
    halves = torch.tensor([1.0, 0.5, 3.0, 0.0], dtype=dtype)
    for value in PRECISE:
        for number in (torch.tensor(value), torch.tensor(value, dtype=torch.double), torch.tensor(value, dtype=dtype)):
            for pair in ((halves, number), (number, halves)):
                got, want = compile_api.compile(function)(*pair), function(*pair)
                assert not other_kind(got, want).any(), (value, number.dtype, got, want)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["floor_divide", "floor", "trunc", "remainder", "fmod"])
def test_rounded_quotients_by_a_number_in_a_tensor(name, dtype):
    """A quotient that is rounded jumps where its divisor is rounded first, as eager's is not."""
    function = getattr(torch, name, None)
    if name in ("floor", "trunc"):
        function = functools.partial(torch.div, rounding_mode=name)
    quarters = torch.arange(-32, 33, dtype=dtype) / 4
    for value in (0.5001771450042725, 1.0003, 0.12345, -0.75007):
        for number in (torch.tensor(value), torch.tensor(value, dtype=torch.double), torch.tensor(value, dtype=dtype), value):
            got, want = compile_api.compile(function)(quarters, number), function(quarters, number)
            assert got.dtype == want.dtype
            assert torch.equal(got, want), (value, number)


@pytest.mark.parametrize("exponent", [torch.int8, torch.int32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
def test_ldexp(dtype, exponent):
    if exponent == torch.bool and dtype.is_floating_point and torch.__version__ >= "2.13":
        with pytest.raises(NotImplementedError):
            compile_api.compile(torch.ldexp)(torch.ones(2, dtype=dtype), torch.ones(2, dtype=exponent))
        return
    values, powers = torch.tensor([1, 2, 3, 0, 1, 1e-3]).to(dtype), torch.tensor([1, -3, 2, 120, -120, 7]).to(exponent)
    for x, y in ((values, powers), (values, powers[0]), (values[1], powers), (values[:, None], powers)):
        got, want = compile_api.compile(torch.ldexp)(x, y), torch.ldexp(x, y)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=0 if dtype.is_floating_point else 1e-6, atol=0, equal_nan=True)


def test_ldexp_by_what_an_int_does_not_hold():
    """Eager's kernels take the lower half of an exponent of 64 bits."""
    powers = torch.tensor([-(2**63), 2**40, 2**40 + 3, -(2**33) - 2, 2**31, 2**63 - 1])
    for dtype in FLOATS:
        x = torch.full(powers.shape, 1.5, dtype=dtype)
        assert torch.equal(compile_api.compile(torch.ldexp)(x, powers), torch.ldexp(x, powers))


def test_gradients_with_constants_of_32_bits():
    """Eager's kernels have the sixth of a hard sigmoid's gradient in 32 bits, for 64-bit numbers too."""
    x, y = (torch.linspace(-4, 4, 9, dtype=torch.float64).requires_grad_() for _ in range(2))
    torch.nn.functional.hardsigmoid(x).sum().backward()
    compile_api.compile(torch.nn.functional.hardsigmoid)(y).sum().backward()
    assert torch.equal(x.grad, y.grad)


REDUCTIONS = [
    (name, given, taken)
    for given, taken in ((torch.float16, torch.float32), (torch.float32, torch.float64), (torch.int32, torch.float32))
    for name in ("sum", "mean", "prod", "nansum", "nanmean", "cumsum", "cumprod")
    if given.is_floating_point or "mean" not in name
]


@pytest.mark.parametrize("name,given,taken", REDUCTIONS)
def test_reductions_into_another_type_add_up_in_it(name, given, taken):
    def program(x, out):
        getattr(torch, name)(x, 0, out=out)
        return out * 2

    x = (torch.linspace(0.5, 1.5, 35).reshape(7, 5) * (1 if given.is_floating_point else 3)).to(given)
    compiled = compile_api.compile(program)
    for _ in range(2):
        outs = [torch.zeros((7, 5) if "cum" in name else 5, dtype=taken) for _ in range(2)]
        found = [function(x, out) for function, out in zip((program, compiled), outs, strict=True)]
        torch.testing.assert_close(found[1], found[0], rtol=1e-6 if taken == torch.float32 else 1e-14, atol=0)
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-6 if taken == torch.float32 else 1e-14, atol=0)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("correction", [0, 1, 2])
def test_the_variance_of_one_number(name, correction):
    """0 over what is left: also where the number is computed twice, by a kernel that contracts."""
    def program(x):
        return getattr(torch, name)(F.gelu(x.tanh())[:, None], 1, correction=correction)

    compiled = compile_api.compile(program)
    x = torch.cat([torch.linspace(-3, 3, 61), torch.tensor([math.inf, math.nan])])
    torch.testing.assert_close(compiled(x), program(x), equal_nan=True)


NORMS = {
    "layer norm": lambda x, w, b: F.layer_norm(x, x.shape[1:], *(None if v is None else v[:, None].expand(x.shape[1:]) for v in (w, b))),
    "group norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "instance norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "batch norm, training": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch norm": lambda x, w, b: F.batch_norm(x, x.new_zeros(4), x.new_ones(4), w, b),
    "rms norm": lambda x, w, b: F.rms_norm(x, x.shape[1:], None if w is None else w[:, None].expand(x.shape[1:])),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("parameters", ["none", "weight", "bias", "both", "bias of -0.0"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_zeros_have_eagers_signs(name, parameters, dtype):
    """Of a number that is the mean, 0, what is left is 0.0 or -0.0 by the order of the last steps."""
    weight = torch.ones(4, dtype=dtype) if parameters in ("weight", "both") else None
    bias = None if parameters in ("none", "weight") else torch.zeros(4, dtype=dtype) * (-1 if "-" in parameters else 1)
    compiled = compile_api.compile(NORMS[name], options={"strict": True})
    for signs in ("---------", "+-+-+-+-+", "+++++++++"):
        x = torch.tensor([-0.0 if s == "-" else 0.0 for s in signs], dtype=dtype).expand(2, 4, 9).contiguous()
        ours, theirs = compiled(x, weight, bias), NORMS[name](x, weight, bias)
        assert torch.equal(ours, theirs) and torch.equal(ours.signbit(), theirs.signbit())
    assert compiled.report().kernels


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_infinities_that_a_compiler_can_know_become_the_same_integers(source, dtype):
    """C leaves the conversion open, and a compiler that knows the number has another answer than the processor."""

    def program(x):
        padded = torch.block_diag(x[:1, :1] + 1, x[:1, :1] + 1)
        return padded.reciprocal().to(dtype), (-padded.reciprocal()).to(dtype), torch.zeros(4, dtype=source).reciprocal().to(dtype)

    compiled = compile_api.compile(program)
    x = torch.rand(3, 3, dtype=source)
    for ours, eager in zip(compiled(x), program(x), strict=True):
        assert torch.equal(ours, eager)
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(4, 4), (4, 6), (6, 4), (3, 4), (8, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_interpolation_of_infinities(dtype, size, align):
    """Where a size stays, eager adds nothing times an element to it, of which an infinite one becomes no number."""

    def program(x):
        return F.interpolate(x, size=size, mode="bilinear", align_corners=align)

    compiled = compile_api.compile(program, options={"strict": True})
    found = []
    for call in (compiled, program):
        x = torch.linspace(-3, 3, 32, dtype=dtype).view(1, 2, 4, 4)
        x[0, 0, 1, 2], x[0, 1, 2, 3], x[0, 1, 3, 1] = torch.inf, -torch.inf, -0.0
        results = call(x.requires_grad_())
        gradient = torch.ones_like(results)
        gradient[0, 0, 2, 1] = torch.inf
        found.append((results.detach(), *torch.autograd.grad(results, x, gradient)))
    for ours, eager in zip(*found, strict=True):
        assert torch.equal(ours.isnan(), eager.isnan()) and torch.equal(ours.isinf(), eager.isinf())
        assert torch.equal(ours.signbit()[~ours.isnan()], eager.signbit()[~ours.isnan()])
        torch.testing.assert_close(ours, eager, equal_nan=True)
    assert compiled.report().kernels and not compiled.report().externs
