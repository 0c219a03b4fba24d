"""Programs and models for the tests of ``Options.numerics``, on the CPU and on a GPU."""

from __future__ import annotations

import random

import torch
from torch import nn

EXACT = {"numerics": "eager_exact", "strict": True}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, -3.3, float("inf"), float("-inf"), float("nan"), 1e-40, 6e4, -6e4, 1e-7, 2.5, -0.5]

STEPS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "scaled": lambda a, b: a * 0.3 + b, "shifted": lambda a, b: (a - 1.7) * b, "over": lambda a, b: a / 1.3 - b,
    "reciprocal": lambda a, b: a.reciprocal() + b, "relu": lambda a, b: a.relu() * b, "neg": lambda a, b: -a + b,
    "where": lambda a, b: torch.where(a > b, a * 3, b), "clamp": lambda a, b: a.clamp(-0.7, 1.1) * b,
    "maximum": lambda a, b: torch.maximum(a, b) * 1.1, "square": lambda a, b: a.square() - b,
    "leaky": lambda a, b: nn.functional.leaky_relu(a, 0.07) + b, "round": lambda a, b: a.round() * 0.3 + b.floor(),
    "through float": lambda a, b: (a.float() * b.float() + 0.1).to(a.dtype), "abs": lambda a, b: a.abs() * b + a,
    "integers": lambda a, b: (a.nan_to_num(0, 1, -1).clamp(-90, 90) * 5).int().to(a.dtype) * 0.3 + b,
    "rsub": lambda a, b: 1.1 - a * b, "copysign": lambda a, b: torch.copysign(a * 1.7, b) - a,
    "hardtanh": lambda a, b: nn.functional.hardtanh(a * 1.3) + b, "sign": lambda a, b: a.sign() * b * 0.9 - a,
}  # fmt: skip


def program(seed: int):
    choose = random.Random(seed)
    picked = [choose.choice(list(STEPS.values())) for _ in range(6)]

    def f(x, y):
        for step in picked:
            x, y = step(x, y), x
        return x, y * 0.7 + x

    return f


def operands(dtype: torch.dtype, seed: int, count: int = 1031):
    torch.manual_seed(seed)
    special = torch.tensor([float(v) for v in SPECIAL])
    x = torch.cat([torch.randn(count), special.repeat_interleave(len(special))]).to(dtype)
    y = torch.cat([torch.randn(count), special.repeat(len(special))]).to(dtype)
    return x, y


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, 5)

    def forward(self, x):
        x = self.first(x)
        x = torch.relu(self.second(x) + x)
        return self.head(self.drop(nn.functional.max_pool2d(x, 2).mean((2, 3))))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(24), nn.Linear(24, 5)), (4, 12)),
    "residual": (Residual, (4, 3, 12, 12)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 7, 16)),
    "silu and group norm": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.LazyLinear(5)), (3, 4, 9)
    ),
    "softmax": (lambda: nn.Sequential(nn.Linear(9, 9), nn.Softmax(-1), nn.Tanh(), nn.Linear(9, 4), nn.LogSoftmax(-1)), (5, 9)),
}  # fmt: skip


def steps(model, call, shape, dtype):
    """Losses, gradients, parameters and buffers of three training steps with dropout from one seed."""
    found = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        torch.manual_seed(step)
        x = torch.randn(shape).to(next(model.parameters()).device, dtype).requires_grad_()
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]
    return found + [*model.parameters(), *model.buffers()]
