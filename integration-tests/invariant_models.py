"""Five small models of whose results a row must not depend on the batch that it is in, with batches for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["MODELS", "batch_of"]

WIDTH, TOKENS, WORDS, HEADS = 96, 24, 200, 4


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(70, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 11),
            nn.LogSoftmax(-1),
        )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, step: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, step, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.short = nn.Conv2d(channels, out, 1, step, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.short(x))


class Images(nn.Module):
    """As a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, 2, 3)
        self.blocks = nn.Sequential(Residual(16, 32, 1), Residual(32, 64, 2))
        self.norm = nn.GroupNorm(8, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.head(self.norm(self.blocks(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, causal: bool, rotary: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.causal, self.rotary = causal, rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(x).split(WIDTH, -1))
        if self.rotary:
            half = q.shape[-1] // 2
            at = torch.arange(t)[:, None] * 100.0 ** -(torch.arange(half) / half)
            cos, sin = at.cos().repeat(1, 2), at.sin().repeat(1, 2)
            q, k = (y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        llama = kind == "llama"
        self.attention = Attention(causal=kind != "bert", rotary=llama)
        self.norms = nn.ModuleList([(nn.RMSNorm if llama else nn.LayerNorm)(WIDTH) for _ in range(2)])
        act = nn.GELU(approximate="tanh" if kind == "gpt2" else "none")
        wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), act, nn.Linear(4 * WIDTH, WIDTH))
        self.wide = Gated() if llama else wide
        self.after = kind == "bert"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.after:
            x = self.norms[0](x + self.attention(x))
            return self.norms[1](x + self.wide(x))
        x = x + self.attention(self.norms[0](x))
        return x + self.wide(self.norms[1](x))


class Text(nn.Module):
    """As BERT (a class from the first token), GPT-2 or Llama (logits of every token)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(Layer(kind), Layer(kind))
        self.norm = nn.RMSNorm(WIDTH) if kind == "llama" else nn.LayerNorm(WIDTH)
        self.pool, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if self.kind != "llama":
            x = x + self.places.weight[: ids.shape[1]]
        x = self.norm(self.layers(x))
        if self.kind == "bert":
            return self.head(torch.tanh(self.pool(x[:, 0])))
        return F.log_softmax(x @ self.words.weight.t() * WIDTH**-0.5, -1)


MODELS = {
    "perceptron": Perceptron, "bert": lambda: Text("bert"), "resnet": Images, "gpt2": lambda: Text("gpt2"),
    "llama": lambda: Text("llama"),
}  # fmt: skip


def batch_of(name: str, rows: int) -> torch.Tensor:
    """A batch for a model."""
    if name == "perceptron":
        return torch.randn(rows, 70)
    return torch.randn(rows, 3, 40, 40) if name == "resnet" else torch.randint(0, WORDS, (rows, TOKENS))
