"""``TransformGetItemToIndex`` entered in the region: masks of models are made under it."""

from __future__ import annotations

import pytest
import torch

import dynamo_capture

TransformGetItemToIndex = pytest.importorskip(
    "torch._dynamo._trace_wrapped_higher_order_op"
).TransformGetItemToIndex  # what transformers imports


def mask(padding):
    def inner(b, h, q, kv):
        return padding[b, kv] & (kv <= q)

    fn = inner
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        fn = torch.vmap(fn, in_dims=dims, out_dims=0)
    n, m = padding.shape
    with TransformGetItemToIndex():
        return fn(torch.arange(n), torch.arange(2), torch.arange(m), torch.arange(m))


def plain(x):
    index = torch.tensor(1)
    with TransformGetItemToIndex():
        a, b, c, d = x[index], x[0], x[index, 1], x[:, 0]
        rows = [row for row in x]
    return a, b, c, d, x[index], rows[0]


def with_gradient(x):
    with TransformGetItemToIndex():
        y = x[torch.tensor(1)] * 2
    return y + x[0]


def around_a_break(x):
    with TransformGetItemToIndex():
        y = x[torch.tensor(1)]
        dynamo_capture.graph_break()
        y = y + x[0]
    return y + x[1]


def raises(x):
    with TransformGetItemToIndex():
        try:
            raise KeyError
        except KeyError:
            y = x[torch.tensor(1)]
        raise ValueError("after")
    return y


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) and a.stride() == b.stride() and a._is_view() == b._is_view()


@pytest.mark.parametrize("fn", [plain, with_gradient])
def test_one_graph(fn, capture):
    compiled = capture(fn, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        assert same(compiled(x), fn(x))


def test_masks(capture):
    compiled = capture(mask, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        padding = torch.rand(2, 5) > 0.3
        assert torch.equal(compiled(padding), mask(padding))
    assert len(compiled.graphs) == 1


def test_gradients(capture):
    found = []
    for run in (with_gradient, capture(with_gradient, fullgraph=True)):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        y = run(x)
        y.sum().backward()
        found.append((y.detach(), x.grad))
    assert all(map(torch.equal, *found))


def test_around_a_break(capture):
    compiled = capture(around_a_break, strict=False)
    for _ in range(2):
        x = torch.randn(3, 4)
        assert torch.equal(compiled(x), around_a_break(x))
        assert torch._C._len_torch_function_stack() == 0


def test_an_error_inside(capture):
    compiled = capture(raises, strict=False)
    for _ in range(2):
        with pytest.raises(ValueError, match="after"):
            compiled(torch.randn(3, 4))
        assert torch._C._len_torch_function_stack() == 0


def test_entered_outside(capture):
    fn = lambda x: x[torch.tensor(1)] + x[0]
    compiled = capture(fn, strict=False)
    x = torch.randn(3, 4)
    for _ in range(2):
        with TransformGetItemToIndex():
            assert torch.equal(compiled(x), fn(x))
        assert torch.equal(compiled(x), fn(x))
