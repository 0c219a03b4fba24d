"""``flex_attention`` compiled as for a GPU, its kernels run by Triton's interpreter (``TRITON_INTERPRET=1`` must be set)."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from scored_attention import judge, masked, scored
from triton_programs import KERNELS, compiled

import aot_autograd.trace.scored


def attention(name: str, function: Any, heads: tuple[int, int], *sizes: Any) -> None:
    """An attention and its gradient, each in kernels: the interpreter's numbers know float16, not bfloat16."""
    KERNELS.clear()
    judge(function, compiled(function), heads, *sizes, torch.float16, "cpu")
    named = [kernel.removeprefix("k_quintet_") for kernel in KERNELS]
    assert sum(name.startswith("attention_backward_") for name in named) == 1, KERNELS
    assert sum(name.startswith("attention_") for name in named) == 2, KERNELS
    print("ok", name, flush=True)


def only_the_blocks_of_the_mask() -> None:
    """Blocks that the tables lack are not computed, whatever the mask says of them."""
    blocks = create_block_mask(lambda b, h, i, j: i >= 0, None, None, 256, 384, device="cpu")
    assert blocks.full_kv_num_blocks.tolist() == [[[3, 3]]]
    call = compiled(lambda q, k, v: flex_attention(q, k, v, block_mask=blocks))
    q, k, v = (torch.randn(1, 2, n, 16, dtype=torch.float16) for n in (256, 384, 384))
    with torch.no_grad():
        whole = call(q, k, v)
        blocks.full_kv_num_blocks.copy_(torch.tensor([[[3, 0]]]))
        part = call(q, k, v)
    assert torch.equal(part[:, :, :128], whole[:, :, :128])
    assert whole[:, :, 128:].any() and not part[:, :, 128:].any()
    print("ok tables", flush=True)


def main() -> None:
    torch.manual_seed(0)
    aot_autograd.trace.scored.DEVICES = ("cpu",)
    for name, heads, widths in (
        ("none", (2, 2), (16, 16)), ("alibi", (4, 2), (24, 16)), ("table", (4, 1), (16, 24)), ("capped", (2, 2), (8, 8)),
        ("documents", (2, 1), (16, 16)), ("rows that see nothing", (2, 2), (16, 16)),
    ):  # fmt: skip
        attention(name, scored(name, heads[0], 40, 72, "cpu"), heads, (40, 72), widths)
    for name, heads, block in (("causal", (4, 2), 128), ("window", (2, 2), (128, 64)), ("by head", (4, 1), 128)):
        attention(name, masked(name, heads[0], 300, "cpu", block), heads, (300, 300), (16, 16))
    attention("small blocks", masked("causal", 2, 70, "cpu", 16), (2, 2), (70, 70), (16, 16))
    only_the_blocks_of_the_mask()


if __name__ == "__main__":
    main()
