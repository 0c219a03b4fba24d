"""What the autograd node of a compiled region is connected to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx

from aot_autograd import aot_function, run_eagerly


def compiled(fn: Any, *inputs: torch.Tensor) -> Any:
    return aot_function(torch.fx.symbolic_trace(fn), inputs, fw_compiler=run_eagerly)


def test_an_input_without_a_gradient_is_not_in_the_graph() -> None:
    """As in eager: its hooks do not run, and asking for its gradient is an error."""

    def fn(x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return x * 2 + unused.detach()

    x, unused = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    called: list[Any] = []
    unused.register_hook(called.append)
    unused.register_post_accumulate_grad_hook(called.append)
    run = compiled(fn, x, unused)
    run(x, unused).sum().backward()
    assert x.grad is not None and unused.grad is None and not called
    for f in (fn, run):
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(f(x, unused).sum(), unused)


def test_under_a_transform_of_functions_the_program_runs_as_it_is() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    run = compiled(lambda x: x.sin() * x, x)
    wanted = torch.func.grad(lambda x: (x.sin() * x).sum())(x.detach())
    torch.testing.assert_close(torch.func.grad(lambda x: run(x).sum())(x.detach()), wanted)
    run(x).sum().backward()
    torch.testing.assert_close(x.grad, wanted)
