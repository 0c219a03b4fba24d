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
