"""Tensors made of Python ints, functions of torch given numbers in place of tensors, and keywords of torch's names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def check(c, fn, *args):
    expected, got = fn(*args), c(*args)
    for a, b in zip(expected, got, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b)
        else:
            assert a == b


def sliced(x, table):
    span = torch.tensor(min(x.size(-2), 512))
    return x @ table[8 - span : 8 + span, :].transpose(-1, -2), span


def viewed(x, table):
    half = torch.div(x.size(0), 2, rounding_mode="trunc")
    quarter = torch.div(half, 2, rounding_mode="floor") if x.size(0) > 100 else half * 1
    return x.view(half, -1), x + half, int(quarter) + 1


def read(x, table):
    n = torch.as_tensor(x.shape[0]) + 1
    return n.item(), int(n) * 2, table[n - 3], list(range(int(n) - 2)), x * n


def by_name(x, table):
    """As Longformer's windows: sizes among a call's keywords."""
    half = torch.div(x.size(0), 2, rounding_mode="trunc")
    windows = x.as_strided(size=(half - 1, 3, x.size(1)), stride=(2 * x.stride(0), x.stride(0), x.stride(1)))
    return windows, table.narrow(dim=0, start=half - 1, length=half), x.new_ones(size=(half, 2))


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("fn", [sliced, viewed, read, by_name], ids=lambda f: f.__name__)
def test_the_int_is_known(capture, fn, dynamic):
    c = capture(fn, dynamic=dynamic, fullgraph=True)
    for rows in (4, 6, 8):
        check(c, fn, torch.randn(rows, 16), torch.randn(16, 16))


def test_a_tensor_that_was_written_into_is_not_known(capture):
    def fn(x):
        n = torch.tensor(2)
        n += 1
        m = torch.tensor(1)
        m.copy_(x.argmax())
        return x[:n], x[m:]

    c = capture(fn)
    check(c, fn, torch.arange(6.0))
    assert any("QB02" in b.reason for b in c.report.breaks)


@pytest.mark.parametrize("dtype", [bool, int, float, complex])
def test_classes_that_stand_for_dtypes(capture, dtype):
    """The graph's text has the dtype: ``dtype=<class 'bool'>`` is no Python."""

    def fn(x):
        return torch.ones(3, dtype=dtype), x.to(dtype), torch.zeros_like(x, dtype=dtype), x.new_ones(2, dtype=dtype)

    c = capture(fn, fullgraph=True)
    check(c, fn, torch.ones(3))


CALLS = [
    "torch.div(n, 4)", "torch.div(n, 4, rounding_mode='trunc')", "torch.div(-n, 4, rounding_mode='trunc')",
    "torch.div(n, -4, rounding_mode='floor')", "torch.add(n, 3)", "torch.add(2, 3, alpha=2)", "torch.add(2.5, n)",
    "torch.mul(n, 3.5)", "torch.mul(True, n)", "torch.sub(5, n)", "torch.sub(n, 2, alpha=3)",
    "torch.floor_divide(n, 2)", "torch.true_divide(3, n)", "torch.ops.aten.div(n, 2)", "torch.ops.aten.add(n, 2)",
    "torch.mul(x.shape[0], 2)", "torch.remainder(n, torch.tensor(3))",
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("text", CALLS)
def test_functions_of_numbers(capture, text, dynamic):
    space = {"torch": torch}
    exec(f"def fn(x, n):\n    value = {text}\n    return value, x + value", space)
    c = capture(space["fn"], dynamic=dynamic, fullgraph=True)
    for n in (8, 9, 11):
        check(c, space["fn"], torch.ones(n), n)


KEYWORDS = [
    "F.linear(input=x, weight=w, bias=b)", "F.linear(x, weight=w)", "F.linear(x.unsqueeze(0), bias=b, weight=w)",
    "torch.matmul(input=x, other=w)", "torch.matmul(x.unsqueeze(0), other=w)", "x.matmul(other=w)",
    "torch.matmul(x, w, out=torch.empty(x.shape[0], 8))", "F.interpolate(input=x[None, None], scale_factor=2)",
    "F.scaled_dot_product_attention(query=x[None], key=x[None], value=x[None])",
]  # fmt: skip


@pytest.mark.parametrize("text", KEYWORDS)
def test_keywords_of_functions_with_symbolic_sizes(capture, text):
    space = {"torch": torch, "F": F}
    exec(f"def fn(x, w, b):\n    return ({text},)", space)
    c = capture(space["fn"])
    for rows in (3, 4, 5, 7):
        check(c, space["fn"], torch.randn(rows, 8), torch.randn(8, 8), torch.randn(8))
    assert not c.report.breaks


def test_a_bound_in_a_tensor_by_keyword(capture):
    """All arguments by keyword, one of them data: a break, where it was an internal error."""

    def fn(lengths):
        return torch.randint(low=1, high=lengths.max(), size=(3,), dtype=torch.long).shape

    compiled = capture(fn, strict=True)
    assert compiled(torch.tensor([4, 9])) == fn(torch.tensor([4, 9]))
    assert "QB02" in str(compiled.report.breaks)
