"""Symbolic sizes: automatic, requested, marked; their guards; ints that change."""

from __future__ import annotations

import collections
import enum
import math

import pytest
import torch
from torch import nn

import dynamo_capture
from dynamo_capture.frontend import optimize
from prims.options import Options
from prims.report import Report


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_second_size_makes_the_dimension_dynamic(capture):
    def fn(x):
        return (x * 2).sum(-1)

    c = capture(fn, fullgraph=True)
    for rows in (3, 4, 5, 6, 9):
        x = torch.randn(rows, 8)
        same(c(x), fn(x))
    assert len(c.graphs) == 2
    spec = c.graphs[1].meta["envelope"].inputs[0].spec
    assert isinstance(spec.shape[1], int) and not isinstance(spec.shape[0], int)
    for columns in (5, 6, 7):
        x = torch.randn(4, columns)
        same(c(x), fn(x))
    assert len(c.graphs) == 3
    x = torch.randn(1, 8)
    same(c(x), fn(x))


def test_dynamic_true_and_false(capture):
    def fn(x):
        return x.reshape(-1, x.shape[1] * 2) + x.shape[0]

    c = capture(fn, dynamic=True, fullgraph=True)
    for shape in ((4, 6), (8, 2), (6, 10)):
        x = torch.randn(shape)
        same(c(x), fn(x))
    assert len(c.graphs) == 1
    c = capture(fn, dynamic=False)
    for shape in ((4, 6), (8, 2), (6, 10)):
        x = torch.randn(shape)
        same(c(x), fn(x))
    assert len(c.graphs) == 3


def test_branches_on_sizes_are_guarded(capture):
    def fn(x, y):
        if x.shape[0] == y.shape[0]:
            return x + y
        if x.shape[0] > 2 * y.shape[0]:
            return x.sum() * y
        return y.sum() * x

    c = capture(fn, dynamic=True, fullgraph=True)
    for a, b in ((4, 4), (7, 7), (9, 3), (9, 4), (9, 5), (3, 9), (8, 4), (4, 4)):
        x, y = torch.randn(a), torch.randn(b)
        same(c(x, y), fn(x, y))
    assert len(c.graphs) <= 5


def test_size_arithmetic_and_python_numbers(capture):
    def fn(x):
        n = x.shape[0]
        half = n // 2
        mask = torch.arange(n, device=x.device) < half
        scale = 1.0 / (n**0.5)
        parts = x.split([half, n - half])
        return torch.where(mask[:, None], x, -x) * scale + parts[0].sum() + max(n, 3) + len(x)

    c = capture(fn, dynamic=True, fullgraph=True)
    for n in (4, 6, 7, 11):
        x = torch.randn(n, 3)
        same(c(x), fn(x))
    assert len(c.graphs) <= 2


def test_sizes_are_returned_and_stored(capture):
    def fn(x, log):
        log.append(x.shape[0] * 2)
        return x.shape, x.size(1), [d + 1 for d in x.shape], {"n": x.numel()}, x + 1

    c = capture(fn, dynamic=True, fullgraph=True)
    for shape in ((2, 3), (4, 5), (6, 7)):
        x = torch.randn(shape)
        log, log2 = [], []
        got, expected = c(x, log), fn(x, log2)
        assert got[:4] == expected[:4] and type(got[0]) is torch.Size and type(got[1]) is int
        assert log == log2
    assert len(c.graphs) == 1


def test_int_argument_becomes_dynamic(capture):
    def fn(x, n):
        return x.repeat(n, 1) * n

    c = capture(fn, fullgraph=True)
    x = torch.randn(2, 3)
    for n in (3, 4, 5, 9, 1, 0):
        same(c(x, n), fn(x, n))
    assert len(c.graphs) <= 4
    assert any(d.kind == "size" for gm in c.graphs for d in gm.meta["envelope"].inputs)


def test_int_used_as_a_constant_is_specialised(capture):
    table = ["a", "b", "c", "d"]

    def fn(x, n):
        return x + len(table[n] * n)

    c = capture(fn, fullgraph=True)
    x = torch.randn(2)
    for n in (2, 3, 2, 3, 1):
        same(c(x, n), fn(x, n))


def test_marks(capture):
    def fn(x):
        return x.cos() + 1

    c = capture(fn, fullgraph=True)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        dynamo_capture.mark_dynamic(x, 0)
        same(c(x), fn(x))
    assert len(c.graphs) == 1
    c = capture(fn, fullgraph=True)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        dynamo_capture.mark_static(x, 0)
        same(c(x), fn(x))
    assert len(c.graphs) == 3
    with pytest.raises(IndexError):
        dynamo_capture.mark_dynamic(torch.randn(3), 5)


def test_noncontiguous_dynamic(capture):
    def fn(x):
        return x.t().reshape(-1) * 2 if x.is_contiguous() else x.reshape(-1) * 3

    c = capture(fn, dynamic=True, fullgraph=True)
    for base in (torch.randn(4, 6), torch.randn(5, 7)):
        for x in (base, base.t(), base[:, ::2], base[::2], base.t().contiguous()):
            same(c(x), fn(x))


def test_batch_and_length_of_a_model(capture):
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()).eval()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = model
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, ids, mask):
            x = self.body(ids)
            y, _ = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)
            return (x + y).mean(1)

    net = Net().eval()
    c = capture(net, fullgraph=True)
    with torch.no_grad():
        for length in (5, 6, 7, 9, 12):
            ids = torch.randint(0, 50, (2, length))
            mask = torch.zeros(2, length, dtype=torch.bool)
            same(c(ids, mask), net(ids, mask))
    assert len(c.graphs) <= 2


def test_text_with_sizes_does_not_specialise(capture):
    def fn(x):
        torch._assert(x.dim() == 2, f"expected two dimensions, got {x.shape} of {x.shape[0]:>5} {x.shape[0]!r}")
        assert x.shape[1] == 3, f"no {x.shape}"
        return x.sin(), f"<{x.shape[0]:04d}|{x.shape}|{x.shape[0] * 2}>", str(x.shape), f"{x.shape[0]}"

    c = capture(fn, dynamic=True, fullgraph=True)
    for n in (4, 5, 6):
        ours, theirs = c(torch.ones(n, 3)), fn(torch.ones(n, 3))
        assert ours[1:] == theirs[1:]
    assert len(c.graphs) == 1


def test_text_that_is_looked_into_specialises(capture):
    def fn(x):
        text = f"{x.shape[0]}"
        return x * len(text) + (1 if "1" in text else 0)

    c = capture(fn, dynamic=True)
    for n in (4, 10, 21, 4):
        torch.testing.assert_close(c(torch.ones(n)), fn(torch.ones(n)))


class Level(enum.IntEnum):
    HIGH = 5


def test_extremes_keep_the_type_of_the_one_they_are(capture):
    def fn(x, n, a):
        found = [min(n, Level.HIGH), max(n, Level.HIGH), min(Level.HIGH, n), min(n, True), max(True, n), min(n, 4)]
        return x + 1, [*found, max(3, n, 6), min(n, 4.5), max(a, n), min(a, 2.0), min([n, Level.HIGH, 7])]

    c = capture(fn)
    for n in (2, 5, 8, 3, 1, 7):
        arguments = torch.ones(n + 1), n, n / 3
        want, got = fn(*arguments)[1], c(*arguments)[1]
        assert got == want and list(map(type, got)) == list(map(type, want))


@pytest.mark.parametrize("text", ["'%s' % ((Pair(1, 2), n),)", "str((Pair(1, n), n))", "f'{(Pair(n, n), [n], n)}'",
                                  "'%s' % (((Pair(1, 2), n), (n,)),)", "repr((torch.Size([n, 2]), n))"])  # fmt: skip
def test_texts_of_nested_tuples_with_sizes(text):
    """Named tuples in them are made as they were."""
    scope = {"Pair": collections.namedtuple("Pair", "left right"), "torch": torch}
    exec(f"def f(x):\n    n = x.shape[0]\n    return x + 1, ({text}).partition(' at 0x')[0]", scope)
    report = Report()
    compiled = optimize(scope["f"], lambda gm, xs: gm.forward, options=Options(dynamic=True), report=report)
    for n in (2, 3, 5):
        assert compiled(torch.ones(n))[1] == scope["f"](torch.ones(n))[1]
    assert not report.fallbacks


@dynamo_capture.supports_dynamic_shapes
def symbolic(gm, inputs):
    return gm.forward


BEYOND = {
    "always less": lambda x, n: (x * n, abs(n) < 1 << 128, n != 2**70, -(2**65) <= n),
    "never": lambda x, n: (x + n, n > 2**64, n == 2**80),
    "of a product": lambda x, n: (x + 1, n * n * n < 2**100),
    "of a sum": lambda x, n: (x * n, n + 2**70 > 3 * 2**69),
    "of a size": lambda x, n: (x * 2, x.shape[0] * 2**62 < 2**65),
    "a remainder": lambda x, n: (x * n, n % 2**70 == n),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", BEYOND)
def test_comparisons_with_numbers_of_more_than_64_bits(name, dynamic):
    """No check of a size or number has more bits; what is so for all that have no more is not checked."""
    fn, report = BEYOND[name], Report()
    options = Options(dynamic=dynamic, strict=True)
    c = dynamo_capture.optimize(fn, symbolic, options=options, report=report)
    for n in (7, 9, 2**40, -11, 2**62, 2**63 - 1, -(2**63), 2**31):
        x = torch.ones(n % 5 + 2, dtype=torch.float64)
        expected = fn(x, n)
        assert (torch.equal(c(x, n)[0], expected[0]), c(x, n)[1:]) == (True, expected[1:])
    assert not any("internal" in f.reason for f in report.fallbacks)
    if name in ("always less", "never", "of a remainder"):
        assert len(report.recompiles) <= 3 and not report.fallbacks


@pytest.mark.parametrize("n", [2**63, 2**64, -(2**63) - 1, 2**130])
def test_a_number_of_more_than_64_bits_after_others(n):
    def fn(x, n):
        return x * 2, "less" if n < 1 << 128 else "more"

    c = dynamo_capture.optimize(fn, symbolic, options=Options(strict=True))
    for m in (3, 4, 5, n, 6):
        assert c(torch.ones(2), m)[1] == fn(torch.ones(2), m)[1]


QUESTIONS_OF_FLOATS = {
    "a branch": lambda x: x * 2 if x.shape[0] / 2 > 1.0 else x,
    "ceil": lambda x: x * math.ceil(x.shape[0] / 3),
    "int": lambda x: x * int(x.shape[0] * 0.75),
    "a slice": lambda x: x[: int(x.shape[0] * 0.75)] * 2,
    "round": lambda x: x * round(x.shape[0] * 0.3),
    "a root": lambda x: x + 1 if math.sqrt(x.shape[0]) < 100.0 else x,
    "of two sizes": lambda x: x * 3 if x.shape[0] / x.shape[1] > 0.5 else x,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", QUESTIONS_OF_FLOATS)
def test_questions_of_floats_made_of_sizes_are_guards(capture, name, dynamic):
    """Not the sizes themselves: sizes that get the same answers share an entry, and come back to it."""
    fn = QUESTIONS_OF_FLOATS[name]
    compiled = capture(fn, dynamic=dynamic)
    for n in (8, 12, 9, 12, 8, 15, 8, 12):
        x = torch.randn(n, 4)
        assert torch.equal(compiled(x), fn(x))
    assert len(compiled.graphs) <= 2 and not compiled.report.breaks
    small = torch.randn(1, 4)  # gets others
    assert torch.equal(compiled(small), fn(small))
