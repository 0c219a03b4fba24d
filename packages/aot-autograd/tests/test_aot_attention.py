"""Attention masks are laid out for the fused kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from aot_autograd import inference_graph
from aot_autograd.trace import attention


@pytest.mark.parametrize(
    "mask",
    [
        torch.randn(1, 6, 7, 4).permute(0, 3, 1, 2),
        torch.randn(1, 6, 7, 4).permute(0, 3, 1, 2).expand(5, 4, 6, 7),
        torch.randn(5, 1).expand(5, 7),
        torch.randn(7, 5).t(),
    ],
)
def test_dense_rows(mask: torch.Tensor) -> None:
    got = attention.dense_rows(mask)
    assert got.stride(-1) == 1 and torch.equal(got, mask)
    assert [s == 0 for s in got.stride()[:-1]] == [s == 0 for s in mask.stride()[:-1]]


def graph_of(mask: torch.Tensor) -> str:
    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q, m, scale=1.0)

    inputs = [torch.randn(2, 4, 8, 16), mask]
    with torch.no_grad():
        return str(inference_graph(torch.fx.symbolic_trace(Layer()), inputs))


def test_masks_are_relaid_where_fused_kernels_would_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    strided, dense = torch.randn(1, 8, 8, 4).permute(0, 3, 1, 2), torch.randn(1, 4, 8, 8)
    assert "clone" not in graph_of(strided)
    monkeypatch.setattr(attention, "_on_gpu", lambda query: True)
    assert "aten.clone" in graph_of(strided)
    assert "clone" not in graph_of(dense)
