"""Calls whose results nobody uses raise what eager raises, where it is a matter of sizes and types.

All of what PyTorch's database says that its operators refuse. What depends on the values of a tensor (an index out of
range) is in ``test_refused_data.py``.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import compile_api

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

#: Words of errors about values, or about memory that a written ``out=`` shares.
OF_VALUES = ("is out of bounds", "memory location", "without overflow", "m must be greater")
OPERATORS = [op for op in op_db if op.error_inputs_func is not None]


@pytest.mark.parametrize("op", OPERATORS[::2], ids=lambda op: op.formatted_name)
def test_errors_of_sizes_and_types(op):
    def program(first, args, kwargs):
        op.op(first, *args, **kwargs)
        return torch.ones(2) + 1

    warnings.simplefilter("ignore")
    for bad in op.error_inputs("cpu"):
        sample = bad.sample_input
        given = (sample.input, sample.args, sample.kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(given)):
            continue  # Python's own calls
        try:
            program(*given)
        except Exception as error:
            if any(words in str(error) for words in OF_VALUES):
                continue
            expected = error
        else:
            continue
        compile_api.reset()
        with pytest.raises(type(expected)) as found:
            compile_api.compile(program)(*given)
        assert str(found.value).split("\n")[0] == str(expected).split("\n")[0]


UNUSED = {
    "pad": lambda x: F.pad(x, (-9, 0)),
    "reflected pad": lambda x: F.pad(x[None], (9, 0), mode="reflect"),
    "unfold": lambda x: x.unfold(1, 9, 1),
    "windows": lambda x: F.unfold(x[None, None], (9, 9)),
    "pool": lambda x: F.max_pool1d(x[None], 9),
    "integers to negative powers": lambda x: torch.ones(2, dtype=torch.int) ** -1,
    "a type without a kernel": lambda x: F.pad(x[None] > 0, (1, 1), mode="reflect"),
    "integers rounded": lambda x: torch.round(x.long(), decimals=2),
    "no tensors": lambda x: torch.tril_indices(-9, 3),
    "a chain": lambda x: F.unfold(x[None, None].sin(), (9, 9)).sum() * 2,
}


#: Unused calls, operands that fit, and sizes of the last operand that do not.
SYMBOLIC = {
    "addbmm": (torch.addbmm, [(5, 10), (5, 5, 5), (5, 5, 10)], [(4, 5, 10), (5, 6, 10)]),
    "addmv": (torch.addmv, [(5,), (5, 10), (10,)], [(9,)]),
    "addr": (torch.addr, [(5, 10), (5,), (10,)], [(9,), (11,)]),
    "view_as_complex": (torch.view_as_complex, [(5, 2)], [(5, 3), (5, 4)]),
    "diagonal_scatter": (torch.diagonal_scatter, [(5, 5), (5,)], [(4,), (6,)]),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), [(5, 5), (5,)], [(4,), (6,)]),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 1), [(5, 5), (4, 5)], [(3, 5), (4, 6)]),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_unused_calls_with_symbolic_sizes(name):
    call, sizes, others = SYMBOLIC[name]

    def program(x, *operands):
        call(*operands)
        return x + 1

    compiled = compile_api.compile(program, dynamic=True)
    given = [torch.randn(size) for size in sizes]
    x = torch.randn(3)
    assert torch.equal(compiled(x, *given), x + 1)
    for other in others:
        bad = [*given[:-1], torch.randn(other)]
        with pytest.raises(RuntimeError) as expected:
            program(x, *bad)
        with pytest.raises(RuntimeError) as found:
            compiled(x, *bad)
        assert str(found.value).split("\n")[0] == str(expected.value).split("\n")[0]
    assert torch.equal(compiled(x, *given), x + 1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", UNUSED)
def test_unused_calls_raise(name, dynamic):
    def program(x):
        UNUSED[name](x)
        return x + 1

    x = torch.randn(3, 4)
    with pytest.raises(RuntimeError) as expected:
        program(x)
    with pytest.raises(RuntimeError) as found:
        compile_api.compile(program, dynamic=dynamic)(x)
    assert str(found.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_unused_calls_that_work_cost_nothing():
    def program(x):
        F.unfold(x[None, None], (2, 2)).sum()
        torch.cumsum(x, 1)
        return x + 1

    compiled = compile_api.compile(program)
    x = torch.randn(3, 4)
    assert torch.equal(compiled(x), x + 1)
    report = compiled.report()
    assert not report.fallbacks and [kernel.ops for kernel in report.kernels] == [("add",)]


def test_inference_tensors_beside_what_needs_a_gradient():
    """Eager refuses to save one for a backward pass, and takes it where it need not."""

    def added(a, b):
        return (a + b).sin().sum()

    def multiplied(a, b):
        return (a * b).sum()

    with torch.inference_mode():
        a = torch.randn(3, 4)
    b = torch.randn(3, 4, requires_grad=True)
    compiled = compile_api.compile(added)
    for other in (torch.randn(3, 4), a, a, torch.randn(3, 4)):
        (got,) = torch.autograd.grad(compiled(other, b), b)
        torch.testing.assert_close(got, (other + b).cos().detach())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        compile_api.compile(multiplied)(a, b)


@pytest.mark.parametrize("order", [2, 1, 3, 0, float("inf"), -2], ids=str)
def test_norms_over_one_element_do_not_overflow(order):
    x = torch.tensor([[1e30], [1e-30], [-1e38], [0.0], [-0.0], [-2.5]])
    got = compile_api.compile(lambda x: torch.linalg.vector_norm(x, order, 1))(x)
    assert torch.equal(got, torch.linalg.vector_norm(x, order, 1))
