"""Library calls on operands whose memory layout fusion and planning have changed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_api


@pytest.mark.parametrize("channels_last", [False, True])
def test_attention_behind_a_convolution_of_a_fused_value(channels_last):
    """The CPU's attention kernel needs dense rows; eager's operands have them here, the planned ones need not."""
    torch.manual_seed(0)
    project = nn.Conv2d(192, 288, 1, bias=False)
    x = torch.randn(2, 192, 3, 3)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)

    def program(x):
        qkv = project(x.relu()).reshape(2, 3, 96, 9).permute(0, 1, 3, 2)
        return F.scaled_dot_product_attention(*qkv.chunk(3, dim=3))

    compiled = compile_api.compile(program, fullgraph=True, options={"strict": True})
    with torch.no_grad():
        expected = program(x)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("order", [((1, 1), (4, 4), (3, 5), (4, 4)), ((2, 3), (1, 1), (5, 5)), ((1, 4), (4, 1), (4, 4))], ids=str)
def test_a_reshape_of_sizes_that_are_equal_by_chance_is_a_view(order):
    """As in eager: whether sizes are equal is asked, and is a guard."""

    def program(x):
        return x.reshape(x.shape[::-1])

    compiled = compile_api.compile(program)
    for rows, columns in order:
        x = torch.arange(rows * columns * 4.0).reshape(rows, columns * 4)[:, ::2][:, :columns]
        expected, got = program(x), compiled(x)
        assert got.stride() == expected.stride() and torch.equal(got, expected)
        assert (got.data_ptr() == x.data_ptr()) == (expected.data_ptr() == x.data_ptr())


LAID_OUT = {
    "rows": lambda t: t,
    "columns": lambda t: t.t().contiguous().t(),
    "sliced": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "computed": lambda t: t.sin(),
}


@pytest.mark.parametrize("program", ["sum", "choice", "power", "comparison"])
@pytest.mark.parametrize("second", LAID_OUT)
@pytest.mark.parametrize("first", LAID_OUT)
def test_sizes_that_become_one_abstain_where_they_are_broadcast(first, second, program):
    """An operand that is broadcast along a dimension has no say about its place, also where the one element is a symbol."""
    function = {
        "sum": lambda x, y: LAID_OUT[first](x) + LAID_OUT[second](y) * 2,
        "choice": lambda x, y: torch.where(LAID_OUT[first](x) > 0, LAID_OUT[second](y), 1.0),
        "power": lambda x, y: LAID_OUT[first](x).abs().pow(LAID_OUT[second](y)),
        "comparison": lambda x, y: LAID_OUT[second](y) > LAID_OUT[first](x),
    }[program]
    compiled = compile_api.compile(function)
    for x, y in (((3, 3), (3, 3)), ((1, 7), (7, 7)), ((5, 1), (5, 5)), ((4, 6), (4, 1)), ((1, 5), (5, 1)), ((4, 4), (4, 4))):
        x, y = torch.randn(x), torch.randn(y)
        ours, eager = compiled(x, y), function(x, y)
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager)


LIKE = {
    "float": lambda t: t.float(), "double": lambda t: t.double(), "clone": lambda t: t.clone(), "to": lambda t: t.to(torch.int64),
    "zeros": lambda t: torch.zeros_like(t), "ones": lambda t: torch.ones_like(t, dtype=torch.float32),
    "full": lambda t: torch.full_like(t, 3), "empty": lambda t: torch.empty_like(t).fill_(1), "contiguous": lambda t: t.contiguous(),
    "negative": lambda t: -t, "detached": lambda t: t.detach().clone(), "row-major": lambda t: t.clone(memory_format=torch.contiguous_format),
}  # fmt: skip
ODD = [((3, 1, 1), (1, 3, 3)), ((1, 1, 3), (5, 2, 1)), ((2, 1, 3), (3, 8, 1)), ((2, 1, 3), (1, 1, 2)),
       ((1, 1, 1), (4, 2, 6)), ((2, 1, 1), (4, 1, 1)), ((1, 2, 2), (1, 1, 2)), ((4, 2, 1), (2, 1, 2))]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape, strides", ODD, ids=str)
@pytest.mark.parametrize("like", LIKE)
def test_strides_along_one_element_decide_how_results_lie(like, shape, strides, dynamic):
    """What is made like a tensor has them, too: they say where other operands' dimensions come."""

    def program(x, y):
        made = LIKE[like](x)
        return made, made + y, made * y, torch.where(y > 0, y, made)

    x = torch.zeros(40, dtype=torch.int8).as_strided(shape, strides).copy_(torch.arange(24)[: torch.Size(shape).numel()].view(shape))
    y = torch.randn(2, 1)
    compiled = compile_api.compile(program, fullgraph=True, dynamic=dynamic)
    for ours, eager in zip(compiled(x, y), program(x, y), strict=True):
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager)


TURNED = {
    "lerp": lambda x: torch.lerp(x.permute(3, 2, 1, 0), x, 0.3),
    "sum": lambda x: x.permute(3, 2, 1, 0) + x,
    "where": lambda x: torch.where(x > 0, x.permute(0, 3, 2, 1), x),
    "three": lambda x: torch.addcmul(x, x.permute(3, 2, 1, 0), x.mT),
}


@pytest.mark.parametrize("first", [(3, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("name", TURNED)
def test_sizes_that_become_one_lay_results_as_eager(name, first):
    """Whether a result's size is one decides whether an operand of one element is walked along it, or stays."""
    compiled = compile_api.compile(TURNED[name], fullgraph=True)
    for rows, columns in (first, (3, 3), (1, 1), (5, 5), (1, 1)):
        x = torch.randn(1, 3, rows, columns)
        try:
            eager = TURNED[name](x)
        except RuntimeError:
            continue
        ours = compiled(x)
        assert torch.equal(ours, eager)
        assert [s for s, n in zip(ours.stride(), ours.shape, strict=True) if n > 1] == [
            s for s, n in zip(eager.stride(), eager.shape, strict=True) if n > 1
        ]
