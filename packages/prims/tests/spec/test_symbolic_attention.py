"""Attention on a GPU with symbolic sizes: one fused operator, and no size made a number.

The operator that C++ takes for numbers cannot be asked here: a build of PyTorch without CUDA has none to choose from.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from prims.spec import SymbolContext, SymbolicCalls, TensorSpec, abstract_from_spec, contiguous_strides
from prims.spec.rules import attention

GPU = torch.device("cuda")


class Recorder(TorchDispatchMode):
    """The names of the attention operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def run(length: Any, dtype: torch.dtype, mask: str | None, head: int) -> tuple[torch.Tensor, list[str]]:
    def tensor(*shape: Any, kind: torch.dtype = dtype) -> torch.Tensor:
        return abstract_from_spec(TensorSpec(shape, kind, GPU, contiguous_strides(shape)))

    query, key, value = (tensor(2, 4, length, head) for _ in range(3))
    bias = tensor(2, 1, length, length) if mask else None
    with SymbolicCalls(), Recorder() as recorder:
        out = F.scaled_dot_product_attention(query, key, value, bias, is_causal=mask is None)
    return out, recorder.calls


@pytest.mark.parametrize("mask", [None, "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", [16, 64])
def test_symbolic_lengths_take_one_fused_kernel_without_a_guard(
    dtype: torch.dtype, mask: str | None, head: int
) -> None:
    context = SymbolContext()
    length = context.new_symbol(96, "length", min=2, max=512)
    out, calls = run(length, dtype, mask, head)
    assert [str(guard.expr) for guard in context.guards] == []
    kernel = "efficient" if dtype == torch.float32 else "cudnn"
    assert calls == [f"aten._scaled_dot_product_{kernel}_attention.default"]
    assert tuple(out.shape[:2]) == (2, 4) and type(out.shape[2]) is torch.SymInt and out.shape[3] == head


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("head, dtype", [(64, torch.bfloat16), (64, torch.float32), (12, torch.float16), (256, torch.float16)])
def test_the_device_is_asked_whether_cudnn_comes_first(first: bool, head: int, dtype: torch.dtype) -> None:
    """Where it does not, and for operands that cuDNN would not get, the choice is as without cuDNN."""
    asked: list[torch.device] = []

    def cudnn(device: torch.device) -> bool:
        asked.append(device)
        return first

    x = TensorSpec((2, 4, 96, head), dtype, GPU)
    choice = attention.sdp_choice(x, x, x, None, 0.0, False, cudnn=cudnn)
    suits = dtype != torch.float32 and head % 8 == 0 and head <= 128
    assert asked == ([GPU] if suits else [])
    usual = attention.EFFICIENT if dtype == torch.float32 else attention.FLASH
    assert choice == (attention.CUDNN if suits and first else usual)


@pytest.mark.parametrize("answer", [attention.CUDNN, attention.FLASH])
def test_torch_is_asked_even_while_a_program_is_traced(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real tensor, which no mode sees."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda q, k, v: answer if type(q) is torch.Tensor else None)
    with SymbolicCalls(), Recorder() as recorder:
        first = attention.cudnn_comes_first(torch.device("cpu"))
    assert first is (answer == attention.CUDNN) and recorder.calls == []
