"""Tensors made inside the region of NumPy's arrays that exist outside."""

from __future__ import annotations

import pytest
import torch

import dynamo_capture

np = pytest.importorskip("numpy")

TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)
COUNTS = np.array([1, 2, 3])


class Holder:
    def __init__(self, array):
        self.array = array


HOLDER = Holder(np.ones(3, dtype=np.float64))


def from_numpy(x):
    return x + torch.from_numpy(TABLE)


def as_tensor(x):
    return x * torch.as_tensor(TABLE), torch.as_tensor(COUNTS, dtype=torch.float32) + x, torch.as_tensor(COUNTS)


def copied(x):
    t = torch.tensor(TABLE)
    t += 1
    return t * x, torch.tensor(HOLDER.array, dtype=torch.float32) + x, torch.tensor(TABLE)


def facts(x):
    return x + TABLE.ndim + len(TABLE), TABLE.shape, TABLE.size, COUNTS.shape[0]


def of_an_attribute(x):
    return x + torch.from_numpy(HOLDER.array).float()


def of_an_argument(x, a=TABLE):
    return x + torch.from_numpy(a).sum()


ONE_GRAPH = [from_numpy, as_tensor, copied, facts, of_an_attribute, of_an_argument]


def same(a, b):
    if isinstance(a, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        facts = [(t.dtype, t.stride(), t._is_view()) for t in (a, b)]
        return facts[0] == facts[1] and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    TABLE[:] = np.arange(6).reshape(2, 3)
    COUNTS[:] = [1, 2, 3]
    HOLDER.array = np.ones(3, dtype=np.float64)


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn, capture):
    compiled = capture(fn, fullgraph=True)
    for k in range(4):
        x = torch.randn(2, 3)
        assert same(compiled(x), fn(x))
        TABLE[0, k % 3] = 10 + k  # data of the array is no constant
        COUNTS[0] = k
        HOLDER.array[1] = k
    assert len(compiled.graphs) == 1


def test_another_array(capture):
    compiled = capture(of_an_attribute, fullgraph=True)
    x = torch.randn(3)
    for array in (np.ones(3), np.zeros(3, dtype=np.float32), np.arange(6.0)[::2], np.ones(1), np.full(3, 2.0)):
        HOLDER.array = array
        assert same(compiled(x), of_an_attribute(x))


def test_what_the_graph_writes_is_in_the_array(capture):
    def fn(x):
        t = torch.from_numpy(TABLE)
        t.mul_(2)
        return t + x

    compiled = capture(fn, strict=False)
    for _ in range(3):
        before = TABLE.copy()
        y = compiled(torch.zeros(2, 3))
        assert (TABLE == before * 2).all() and (y.numpy() == TABLE).all()


def test_a_result_shares_the_memory(capture):
    compiled = capture(lambda: torch.from_numpy(TABLE), strict=False)
    t = compiled()
    t[0, 0] = 77.0
    assert TABLE[0, 0] == 77.0


def arithmetic(x):
    return x + torch.from_numpy(TABLE * 2)


def around_a_break(x):
    t = torch.from_numpy(TABLE) + x
    dynamo_capture.graph_break()
    return t + torch.from_numpy(TABLE), TABLE


@pytest.mark.parametrize("fn", [arithmetic, around_a_break])
def test_breaks(fn, capture):
    compiled = capture(fn, strict=False)
    for k in range(3):
        x = torch.randn(2, 3)
        got, wanted = compiled(x), fn(x)
        if fn is around_a_break:
            assert got[1] is TABLE
            got, wanted = got[0], wanted[0]
        assert same(got, wanted)
        TABLE[0, k] = 5


def test_an_array_that_may_not_be_written(capture):
    compiled = capture(of_an_attribute, strict=False)
    fixed = np.ones(3)
    fixed.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(fixed)
    for array in (np.ones(3), fixed, np.zeros(3)):
        HOLDER.array = array
        assert same(compiled(torch.ones(3)), of_an_attribute(torch.ones(3)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x / np.sqrt(x.shape[-1]),
        lambda x: x * np.log(x.shape[0] + 1) + np.exp(-x.shape[0]),
        lambda x: x * float(np.sqrt(x.shape[0])),
    ],
)
def test_functions_of_sizes_that_change(fn, capture):
    compiled = capture(fn)
    for n in (4, 5, 9, 2, 6):
        x = torch.randn(n, n)
        torch.testing.assert_close(compiled(x), fn(x))
    assert len(compiled.graphs) == 2 and not compiled.report.breaks


def test_a_function_of_a_size_is_handed_out(capture):
    fn = lambda x: (x + 1, np.sqrt(x.shape[0]), np.sqrt(x.shape[0]) > 2)
    compiled = capture(fn)
    for n in (4, 5, 9):
        mine, eager = compiled(torch.ones(n))[1:], fn(torch.ones(n))[1:]
        assert mine == eager and [type(v) for v in mine] == [type(v) for v in eager]


def test_bools_of_sizes_are_masks(capture):
    def fn(x, n):
        y = x.clone()
        y[n > 2] = 5
        return (x > n) & (n > 2), x[n > 3], x[:, n > 1], y

    compiled = capture(fn, strict=False)
    x = torch.ones(3, 4)
    for n in (1, 3, 4, 2, 5):
        for mine, eager in zip(compiled(x, n), fn(x, n), strict=True):
            assert torch.equal(mine, eager)
