"""Attention of operands in every layout: the kernel that PyTorch would choose, results laid out as eager's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from judge import assert_as_good
from on_gpu import DEVICE
from torch.nn import functional as F

import compile_api
from prims.spec import spec_of
from prims.spec.rules import attention as rules

LAYOUTS = ("dense", "sliced", "turned", "tokens", "spread")
#: Which layouts queries, keys and values have.
TOGETHER = [
    *((kind,) * 3 for kind in LAYOUTS), ("sliced", "dense", "dense"), ("dense", "sliced", "dense"),
    ("dense", "dense", "turned"), ("tokens", "dense", "sliced"), ("spread", "tokens", "tokens"),
]  # fmt: skip


def operand(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of this shape: with gaps between them, or with the last but one or the second dimension innermost, or one
    of a row for all the others."""
    *lead, rows, width = shape
    if layout == "sliced":
        return torch.randn(*lead, rows, 2 * width, device=DEVICE, dtype=dtype)[..., ::2]
    if layout == "turned":
        return torch.randn(*lead, width, rows, device=DEVICE, dtype=dtype).transpose(-1, -2)
    if layout == "tokens" and len(lead) == 2:
        return torch.randn(lead[0], rows, lead[1], width, device=DEVICE, dtype=dtype).transpose(1, 2)
    if layout == "spread":
        return torch.randn(*lead, rows, 1, device=DEVICE, dtype=dtype).expand(shape)
    return torch.randn(shape, device=DEVICE, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("width", [1, 4, 8, 12, 64, 136, 256, 264])
def test_the_choice_is_pytorchs(width: int, dtype: torch.dtype) -> None:
    """``torch._fused_sdp_choice`` of the same operands: layouts, one query or key, masks, causal ones, gradients."""
    different = []
    lengths = ((1, 24), (24, 24), (24, 1))
    wants = (False, False), (True, False), (True, True)
    for layouts, (rows, columns), mask, causal, (grad, of_mask) in itertools.product(
        TOGETHER, lengths, (None, *LAYOUTS), (False, True), wants
    ):
        if (mask is not None and causal) or (mask is None and of_mask):
            continue
        sizes = (rows, columns, columns)
        q, k, v = (operand((2, 4, n, width), kind, dtype) for n, kind in zip(sizes, layouts, strict=True))
        bias = None if mask is None else operand((rows, columns), mask, dtype).requires_grad_(of_mask)
        wanted = torch._fused_sdp_choice(*(x.requires_grad_(grad) for x in (q, k, v)), bias, 0.0, causal)
        specs = [None if x is None else spec_of(x) for x in (q, k, v, bias)]
        got = rules.sdp_choice(*specs, 0.0, causal, gradients=(grad, of_mask))  # type: ignore[arg-type]
        if got != wanted:
            different.append((layouts, rows, columns, mask, causal, grad, of_mask, got, wanted))
    assert not different, "\n".join(map(str, different))


def is_as_good(ours: list[torch.Tensor], theirs: list[torch.Tensor], exact: list[torch.Tensor]) -> bool:
    """``theirs``: eager's, of the operands as they are or of dense ones, for which it has fused kernels."""
    try:
        assert_as_good([x.contiguous() for x in ours], [x.contiguous() for x in theirs], exact)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("numerics", ["fast", "eager_exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layouts", TOGETHER, ids="-".join)
def test_operands_in_every_layout(layouts: tuple[str, ...], dtype: torch.dtype, numerics: str) -> None:
    """With other lengths in the second call, and as many rows as columns or half as many."""
    torch.manual_seed(0)
    for dynamic, (grad, of_mask), mask, half, causal in itertools.product(
        (False, True), ((False, False), (True, False), (True, True)), (None, *LAYOUTS), (False, True), (False, True)
    ):
        if (mask is None and of_mask) or (mask is not None and causal):
            continue

        def attention(q: Any, k: Any, v: Any, mask: Any, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

        compiled = compile_api.compile(attention, dynamic=dynamic, fullgraph=True, options={"numerics": numerics})
        for length in (24, 40):
            rows = length // 2 if half else length
            sizes = (rows, length, length)
            given = [operand((2, 4, n, 16), kind, dtype) for n, kind in zip(sizes, layouts, strict=True)]
            given += [] if mask is None else [operand((rows, length), mask, dtype)]
            sides = []
            dense = [x.contiguous() for x in given]
            for fn, kind, values in (
                (compiled, dtype, given), (attention, dtype, given), (attention, torch.float64, given), (attention, dtype, dense)
            ):  # fmt: skip
                args = [x.detach().to(kind).requires_grad_(grad if k < 3 else of_mask) for k, x in enumerate(values)]
                out = fn(*args[:3], args[3] if len(args) == 4 else None)
                wanted = [x for x in args if x.requires_grad]
                made = torch.autograd.grad(out, wanted, torch.ones_like(out)) if wanted else ()
                sides.append([out.detach(), *(g.contiguous() for g in made)])
            ours, eager, exact, fused = sides
            case = f"{dynamic=} {grad=} {of_mask=} {mask=} {rows=} {length=} {causal=}"
            assert ours[0].stride() == eager[0].stride(), case
            if numerics == "eager_exact":
                assert all(map(torch.equal, ours, eager)), case
            else:
                assert is_as_good(ours, eager, exact) or is_as_good(ours, fused, exact), case
        report = compiled.report()
        assert not report.fallbacks and (report.externs or report.kernels), str(report)
