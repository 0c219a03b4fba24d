"""Transformers of sizes that programs use and tests seldom do: odd vocabularies, other head sizes, padding that changes."""

from __future__ import annotations

import copy

import pytest
import torch
from anchored import assert_judged, judged
from judge import assert_as_good, to_float64
from on_gpu import DEVICE, without_dropout
from torch import nn
from zoo import tensors

import compile_api


class Layer(nn.Module):
    def __init__(self, heads: int, head: int) -> None:
        super().__init__()
        width = heads * head
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Causal attention and a mask for padding, as a batch of texts of several lengths has it; a tied vocabulary."""

    def __init__(self, vocabulary: int, heads: int, head: int, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, heads * head)
        self.layers = nn.ModuleList(Layer(heads, head) for _ in range(depth))
        self.norm = nn.LayerNorm(heads * head)

    def forward(self, ids, padding):
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        mask = causal & padding[:, None, None, :].bool()
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x) @ self.tokens.weight.t()


def texts(batch: int, length: int, vocabulary: int, lengths: list[int]):
    ids = torch.randint(0, vocabulary, (batch, length), device=DEVICE)
    padding = torch.ones(batch, length, dtype=torch.long, device=DEVICE)
    for row, count in enumerate(lengths):
        padding[row, count:] = 0
    return ids, padding


def model(vocabulary: int, heads: int, head: int, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    torch.manual_seed(0)
    return without_dropout(Decoder(vocabulary, heads, head)).to(DEVICE, dtype).train()


@pytest.mark.parametrize("head", [24, 40, 72, 80, 96, 112, 128, 160, 256])
def test_head_sizes(head):
    judgement, compiled = judged(model(512, 2, head), compile_api.compile, texts(3, 37, 512, [37, 20, 5]), {})
    assert_judged(judgement)
    assert not compiled.report().fallbacks and not compiled.report().breaks


@pytest.mark.parametrize("vocabulary", [251, 1009, 30522, 50257, 51865])
def test_vocabularies(vocabulary):
    judgement, compiled = judged(model(vocabulary, 4, 32), compile_api.compile, texts(4, 64, vocabulary, [64, 63]), {})
    assert_judged(judgement)
    assert not compiled.report().fallbacks and not compiled.report().breaks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [33, 64])
def test_padding_that_changes_per_call(length, dtype):
    """The graph is compiled for batches without padding or with it: each call is right for its own mask."""
    net = model(509, 4, 24, dtype)
    twin, exact = copy.deepcopy(net), to_float64(net)
    compiled = compile_api.compile(net, fullgraph=True)
    for lengths in ([], [5, length, 11], [], [1, 1, 1], [length - 1]):
        given = texts(3, length, 509, lengths)
        with torch.no_grad():
            assert_as_good(tensors(compiled(*given)), tensors(twin(*given)), tensors(exact(*given)))
        gradients = []
        for called, holder in ((compiled, net), (twin, twin), (exact, exact)):
            holder.zero_grad(set_to_none=True)
            called(*given).float().square().mean().backward()
            gradients.append([p.grad for p in holder.parameters()])
        for ours, theirs, wanted in zip(*gradients, strict=True):
            apart = [float((t.double() - wanted).norm()) for t in (ours, theirs)]
            assert apart[0] <= 2 * apart[1] + 8 * torch.finfo(dtype).eps * float(wanted.norm())
    assert not compiled.report().fallbacks
