"""Python's ints beyond 32 and 64 bits, and beyond a tensor's type, given to operators: values and errors are eager's."""

from __future__ import annotations

import pytest
import torch

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
        same = torch.equal if isinstance(theirs[1], torch.Tensor) else str.__eq__
        assert same(ours[1], theirs[1]), (n, theirs, ours)
    return compiled.report()


@pytest.mark.parametrize("name", MAKE_TENSORS)
def test_numbers_that_change(name):
    report = agree(MAKE_TENSORS[name], (3, 5, 300, -1, 2**40, 2**63 - 1, 2**63, -(2**63), 2**64, 2**70))
    assert not any("internal" in (record.reason or "") for record in report.statuses)


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
