"""Python's ints beyond 32 and 64 bits, and beyond a tensor's type, given to operators: values and errors are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

#: Of a tensor of ones and a number that changes from call to call.
MAKE_TENSORS = {
    "tensor": lambda x, n: torch.tensor(n) + x,
    "tensor of a list": lambda x, n: torch.tensor([n, 1, n + 1]) + x,
    "nested": lambda x, n: torch.tensor([[n], [x.shape[0]]]).sum() + x,
    "mixed": lambda x, n: torch.tensor((n, 2.5))[0] * x,
    "float64": lambda x, n: torch.tensor(n, dtype=torch.float64) * x.double(),
    "int32": lambda x, n: torch.tensor(n, dtype=torch.int32) + x.int(),
    "as_tensor": lambda x, n: torch.as_tensor(n * 2) + x,
    "asarray": lambda x, n: torch.asarray(n) + x,
    "new_tensor": lambda x, n: x.new_tensor([n], dtype=torch.int64) + x,
    "LongTensor": lambda x, n: torch.LongTensor([n, n])[0] + x,
    "scalar_tensor": lambda x, n: torch.scalar_tensor(n, dtype=torch.int64) + x,
    "full": lambda x, n: torch.full((2,), n)[0] + x,
    "operand": lambda x, n: x.long() * n + n,
    "alpha": lambda x, n: x.add(1, alpha=n),
    "power": lambda x, n: x + n**2,
}


def outcome(call, *args):
    try:
        result = call(*args)
    except Exception as error:
        return type(error), str(error)
    return result.dtype, result


def agree(program, numbers, make=lambda: torch.ones(3)):
    compiled = compile_api.compile(program)
    for n in numbers:
        theirs, ours = outcome(program, make(), n), outcome(compiled, make(), n)
        assert ours[0] == theirs[0], (n, theirs, ours)
        if isinstance(theirs[1], torch.Tensor):
            torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0, equal_nan=True)
        else:
            assert ours[1] == theirs[1], (n, theirs, ours)
    return compiled.report()


@pytest.mark.parametrize("name", MAKE_TENSORS)
def test_numbers_that_change(name):
    report = agree(MAKE_TENSORS[name], (3, 5, 300, -1, 2**40, 2**63 - 1, 2**63, -(2**63), 2**64, 2**70))
    assert not any("internal" in (record.reason or "") for record in report.statuses)


#: Of a number as an element of a type.
ELEMENTS = {
    "fill_": lambda x, n: x.fill_(n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([1]), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "set": lambda x, n: (x.__setitem__(0, n), x)[1],
    "fill_diagonal_": lambda x, n: torch.zeros(2, 2, dtype=x.dtype).fill_diagonal_(n),
    "operand": lambda x, n: x * n + (x == n),
}
TYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.bool)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name, dtype):
    for n in (300, -1, 2.5, 1e39):  # as first numbers, which are no inputs of a graph
        agree(ELEMENTS[name], (n,), lambda: torch.ones(3, dtype=dtype))
    numbers = (3, 5, 100, -1, -200, 300, 70000, 2**40, 2**63)
    agree(ELEMENTS[name], numbers, lambda: torch.ones(3, dtype=dtype))


FLOATS = (1.5, 2.5, -3.5, 1e5, float("inf"), 4.5, float("nan"), -1e6, 1e39, -float("inf"), 1e300, 5.5, 6.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int64], ids=str)
@pytest.mark.parametrize("name", [name for name in ELEMENTS if name not in ("pad", "operand", "set")])
def test_floats_as_elements(name, dtype):
    """Numbers that are symbols from the second call on, too: those beyond the type are errors, infinities are not."""
    report = agree(ELEMENTS[name], FLOATS, lambda: torch.ones(3, dtype=dtype))
    assert len(report.recompiles) < 7  # the number is a symbol
    assert not any("[" in record.reason for record in report.fallbacks)  # a verifier's label


class Endless(torch.nn.Module):
    def forward(self, x):
        return self(x)


def endless(x):
    return endless(x + 1)


@pytest.mark.parametrize("program", [Endless(), endless], ids=["module", "function"])
def test_endless_recursion_is_called_so(program):
    compiled = compile_api.compile(program)
    with pytest.raises(RecursionError):
        compiled(torch.ones(2))
    reasons = [r.reason for r in (*compiled.report().statuses, *compiled.report().breaks) if r.reason]
    assert reasons and all("recursion or call depth too deep" in reason for reason in reasons), reasons


EXPONENTS = [2, 5, 7, *(2**k + odd for k in (24, 30, 40) for odd in (-1, 0, 1))]
BASES = torch.tensor([-1.0, -1.2, 1.0, 2.0, -0.5] * 5)


@pytest.mark.parametrize("sign", [1, -1])
def test_powers_of_a_constant_that_single_precision_rounds(sign):
    """An odd exponent beyond 2**24 is even once it is rounded, and the power's sign would be lost."""
    for n in EXPONENTS:
        power = lambda x, n=sign * n: x**n
        torch.testing.assert_close(compile_api.compile(power)(BASES), power(BASES), rtol=1e-5, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [int, torch.tensor])
def test_powers_of_numbers_that_single_precision_rounds(number, sign):
    power = lambda x, n: x ** (n.item() if isinstance(n, torch.Tensor) else n)
    compiled = compile_api.compile(power, options={"data_dependent": True})
    for n in EXPONENTS:
        torch.testing.assert_close(compiled(BASES, number(sign * n)), BASES ** (sign * n), rtol=1e-5, atol=0)
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) <= 3, report
