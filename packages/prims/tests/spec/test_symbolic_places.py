"""Tensors that C++ takes for ones of symbols, though their sizes are numbers, or have turned out to be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from prims.spec import SymbolContext, SymbolicCalls, TensorSpec, abstract_from_spec, contiguous_strides, to_torch
from prims.spec.calls import pad

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (lambda x, w: x @ w, (("n", 5, 6), (6, 6))),
    "matmul of transposed": (lambda x, w: w.t() @ x.mT, (("n", 5, 6), (6, 6))),
    "batched": (lambda x, y: x @ y.mT, (("n", 5, 6), ("n", 5, 6))),
    "broadcast": (lambda x, y: x @ y, (("n", 1, 5, 6), (3, 6, 2))),
    "vector": (lambda x, w: x @ w, (("n", 5, 6), (6,))),
    "linear": (F.linear, (("n", 5, 6), (4, 6))),
    "linear with a bias": (F.linear, (("n", 5, 6), (4, 6), (4,))),
    "reshape": (lambda x: x.mT.reshape(-1, 5), (("n", 5, 6),)),
    "tensor_split": (lambda x: x.tensor_split(2, 1), (("n", 5, 6),)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=2), (("n", 2, 5, 6),)),
    "bilinear": (lambda x: F.interpolate(x, size=(7, 3), mode="bilinear"), (("n", 2, 5, 6),)),
    "bicubic and smoothed": (lambda x: F.interpolate(x, size=(7, 3), mode="bicubic", antialias=True), (("n", 2, 5, 6),)),
    "round a circle": (lambda x: F.pad(x, (1, 2, 0, 3), mode="circular"), (("n", 2, 5, 6),)),
    "attention": (F.scaled_dot_product_attention, (("n", 2, 5, 6), ("n", 2, 5, 6), ("n", 2, 5, 6))),
    "einsum": (lambda x, w: torch.einsum("bij,jk->bik", x, w), (("n", 5, 6), (6, 4))),
}


@pytest.mark.parametrize("symbol", ["size", "offset"])
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_the_number(name: str, number: int, symbol: str) -> None:
    program, shapes = PROGRAMS[name]
    context = SymbolContext()
    size = context.new_symbol(number, "n", min=1, max=64) if symbol == "size" else number
    offset = context.new_symbol(0, "offset", min=0, max=99) if symbol == "offset" else 0

    def tensor(shape: tuple[Any, ...]) -> torch.Tensor:
        sizes = tuple(size if s == "n" else s for s in shape)
        strides = contiguous_strides(sizes)
        return abstract_from_spec(TensorSpec(sizes, torch.float32, torch.device("cpu"), strides, offset))

    tensors = [tensor(shape) for shape in shapes]
    assert tensors[0].shape[0] == number  # asked for, and a guard from now on
    with SymbolicCalls():
        results = program(*tensors)
    real = program(*(torch.randn([number if s == "n" else s for s in shape]) for shape in shapes))
    for ours, eager in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, real)), strict=True):
        assert tuple(ours.shape) == tuple(eager.shape)
        assert [s for s, n in zip(ours.stride(), eager.shape, strict=True) if n > 1] == [
            s for s, n in zip(eager.stride(), eager.shape, strict=True) if n > 1
        ]


MODES = {
    "nearest": {}, "nearest-exact": {}, "bilinear": {}, "bicubic": {"align_corners": True}, "area": {},
    "bilinear, smoothed": {"mode": "bilinear", "antialias": True}, "bicubic, smoothed": {"mode": "bicubic", "antialias": True},
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_of_numbers_gets_a_size_that_is_a_symbol(mode: str) -> None:
    """C++ definitions that were written for whole numbers are not asked, though the tensor has nothing but such."""
    context = SymbolContext()
    size = to_torch(context.new_symbol(9, "n", min=2, max=64))
    shape = (2, 3, 4, 5)
    x = abstract_from_spec(TensorSpec(shape, torch.float32, torch.device("cpu"), contiguous_strides(shape)))
    with SymbolicCalls():
        result = F.interpolate(x, size=(size, 2 * size), **{"mode": mode, **MODES[mode]})
    assert not context.guards and [str(n) for n in result.spec.shape[2:]] == [str(size), str(2 * size)]
    assert tuple(F.interpolate(torch.randn(shape), size=(9, 18), **{"mode": mode, **MODES[mode]}).shape) == result.shape


class TestPaddingRoundACircle:
    @pytest.mark.parametrize("pads", [(1, 2), (0, 0), (3, 0, 1, 1), (0, 1, 0, 0, 2, 2), (4, 4)])
    def test_numbers(self, pads: tuple[int, ...]) -> None:
        x = torch.randn(2, 3, *[4] * (len(pads) // 2))
        ours, eager = pad(x, pads, "circular"), F.pad(x, pads, "circular")
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()
        assert ours.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()

    def test_more_than_once_round(self) -> None:
        for padded in (pad, F.pad):
            with pytest.raises(RuntimeError, match="wrapping around more than once"):
                padded(torch.randn(1, 1, 3), (4, 0), "circular")
