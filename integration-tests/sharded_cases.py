"""What two ranks do under FSDP2 (``fully_shard``), compiled and eager, on data of their own; for test_sharded.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from reports import assert_all_generated, captured
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import compile_api

STEPS = 4
BREAK = "QB25"


class Block(nn.Module):
    """Products, a normalisation and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Equal blocks with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def by_blocks(net: Any, **kwargs: Any) -> Any:
    """``fully_shard`` of each block, then of the rest."""
    mesh = init_device_mesh("cpu", (2,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **kwargs)
    fully_shard(net, mesh=mesh, **kwargs)
    return net


def as_one(net: Any) -> Any:
    """``fully_shard`` of the whole."""
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    return net


def train(
    rank: int, make: Callable[[Net], tuple[Any, Any]], shard: Callable[[Any], Any], tolerance: float = 2e-5
) -> Any:
    """Train a compiled and an eager network, and assert that all shards are the same after every step; the report.

    Args:
        make: gives what is called, and what has the report.
        shard: makes the eager counterpart.
    """
    base = Net()
    theirs = shard(copy.deepcopy(base))
    ours, reporting = make(base)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (ours, theirs)]
    torch.manual_seed(100 + rank)
    for _ in range(STEPS):
        x = torch.randn(4, 16)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
        pairs = list(zip(ours.named_parameters(), theirs.parameters(), strict=True))
        assert len(pairs) == 22
        for (name, p), q in pairs:
            assert type(p.data) is type(q.data), name
            for mine, other in ((p, q), (p.grad, q.grad)):
                mine, other = mine.to_local(), other.to_local()
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
        for optimizer in optimizers:
            optimizer.step()
    report = reporting.report()
    assert_all_generated(report)
    assert all(BREAK in brk.reason for brk in report.breaks), report.breaks
    return report


def _counts(report: Any) -> list[int]:
    return [len(captured(report)), len(report.breaks)]


def compiled_after_sharding_blocks(rank: int) -> list[int]:
    def make(net: Net) -> tuple[Any, Any]:
        compiled = compile_api.compile(by_blocks(net))
        return compiled, compiled

    return _counts(train(rank, make, by_blocks))


def compiled_before_sharding_blocks(rank: int) -> list[int]:
    def make(net: Net) -> tuple[Any, Any]:
        compiled = compile_api.compile(net)
        return by_blocks(compiled), compiled

    return _counts(train(rank, make, by_blocks))


def blocks_compiled_and_sharded(rank: int) -> list[int]:
    def make(net: Net) -> tuple[Any, Any]:
        for i, block in enumerate(net.blocks):
            net.blocks[i] = compile_api.compile(block)
        return by_blocks(net), net.blocks[1]

    return _counts(train(rank, make, by_blocks))


def sharded_as_one(rank: int) -> list[int]:
    def make(net: Net) -> tuple[Any, Any]:
        compiled = compile_api.compile(as_one(net))
        return compiled, compiled

    return _counts(train(rank, make, as_one))


def mixed_precision(rank: int) -> list[int]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def make(net: Net) -> tuple[Any, Any]:
        compiled = compile_api.compile(by_blocks(net, mp_policy=policy))
        return compiled, compiled

    return _counts(train(rank, make, lambda net: by_blocks(net, mp_policy=policy), tolerance=2e-2))


def kept_after_the_forward(rank: int) -> list[int]:
    def make(net: Net) -> tuple[Any, Any]:
        compiled = compile_api.compile(by_blocks(net, reshard_after_forward=False))
        return compiled, compiled

    return _counts(train(rank, make, lambda net: by_blocks(net, reshard_after_forward=False)))


CASES = [
    compiled_after_sharding_blocks, compiled_before_sharding_blocks, blocks_compiled_and_sharded, sharded_as_one,
    mixed_precision, kept_after_the_forward,
]  # fmt: skip
