"""A backward pass that is started at the node of a region's inputs a second time, as schedules of pipelines do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from torch.autograd.graph import GradientEdge

from aot_autograd import aot_function, run_eagerly


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh()


def started(retain: bool) -> tuple[Any, ...]:
    """Input, weight and result, the input's gradient, and the edge and gradient to start at for the weight's."""
    gm = torch.fx.symbolic_trace(Product())
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    y = aot_function(gm, [x, w], fw_compiler=run_eagerly)(x, w)
    node = y.grad_fn
    while node.name() != "CompiledInputsBackward":
        node = next(source for source, _ in node.next_functions if source is not None)
    came = []
    handle = node.register_prehook(lambda gradients: came.append(gradients))
    (dx,) = torch.autograd.grad(y.sum(), [x], retain_graph=retain)
    handle.remove()
    return x, w, y, dx, GradientEdge(node, 0), came[0][0]  # PyTorch 2.11 lets nodes of Python go with the result


def test_the_weights_gradient_comes_in_a_second_half():
    x, w, y, dx, edge, came = started(retain=True)
    wanted = torch.autograd.grad((x @ w).tanh().sum(), [x, w])
    torch.testing.assert_close(y, (x @ w).tanh())
    torch.testing.assert_close(dx, wanted[0])
    for _ in range(2):
        (dw,) = torch.autograd.grad([edge], [w], grad_outputs=[came], retain_graph=True)
        torch.testing.assert_close(dw, wanted[1])


def test_without_a_retained_graph_it_is_an_error_that_says_so():
    _, w, y, _, edge, came = started(retain=False)
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        torch.autograd.grad([edge], [w], grad_outputs=[came])
    assert y.grad_fn is not None
