"""What two ranks do under tensor and sequence parallelism (``parallelize_module``), compiled and eager; for
test_tensor_parallel.py.

Every case trains a network and its uncompiled copy for five steps on the same data, and asserts after each that all
gradients and parameters are the same, and placed the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from reports import LIBRARY_CALLS, assert_all_generated, captured
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import compile_api

STEPS, RANKS = 5, 2
WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 8, 24
F = nn.functional
COLLECTIVES = {
    f"_c10d_functional.{name}"
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "wait_tensor")
}


class Mlp(nn.Module):
    """Two products."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Mlps(nn.Module):
    """A chain of them with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mlp() for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Attention(nn.Module):
    """Causal self-attention over as many heads as the products give: each process has some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape[0], x.shape[1]
        q, k, v = (
            each(x).view(rows, length, -1, WIDTH // HEADS).transpose(1, 2) for each in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """As Llama's, without rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


# --- plans ------------------------------------------------------------------------------------------------------------


def tp_mesh() -> Any:
    """Both processes."""
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))


def shard_mlps(net: Any, mesh: Any = None) -> Any:
    """Each pair of products column by column and row by row."""
    mesh = mesh or tp_mesh()
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


_PRODUCTS = {
    "attention.wq": ColwiseParallel, "attention.wk": ColwiseParallel, "attention.wv": ColwiseParallel,
    "feed_forward.w1": ColwiseParallel, "feed_forward.w3": ColwiseParallel,
}  # fmt: skip


def shard_llama(net: Any, mesh: Any = None) -> Any:
    """The products of the blocks only; what is between them is the same everywhere."""
    mesh = mesh or tp_mesh()
    plan = {name: style() for name, style in _PRODUCTS.items()}
    plan |= {"attention.wo": RowwiseParallel(), "feed_forward.w2": RowwiseParallel()}
    for block in net.blocks:
        parallelize_module(block, mesh, plan)
    return net


def shard_sequences(net: Any, mesh: Any = None, *, local_logits: bool = True) -> Any:
    """Between the products each process has some of the positions; the embedding and the head are sharded too."""
    mesh = mesh or tp_mesh()
    parallelize_module(net, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Replicate() if local_logits else Shard(-1),
            use_local_output=local_logits,
        ),
    })  # fmt: skip
    for block in net.blocks:
        plan: dict[str, Any] = {name: style() for name, style in _PRODUCTS.items()}
        plan |= {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, mesh, plan)
    return net


# --- training ---------------------------------------------------------------------------------------------------------


def inside(net: Any) -> tuple[Any, list[Any]]:
    """Each block compiled by itself."""
    for i, block in enumerate(net.blocks):
        net.blocks[i] = compile_api.compile(block)
    return net, list(net.blocks)


def around(net: Any) -> tuple[Any, list[Any]]:
    """The whole compiled."""
    compiled = compile_api.compile(net)
    return compiled, [compiled]


def local(x: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def assert_same(ours: Any, theirs: Any, tolerance: float, what: str) -> None:
    """Two tensors are placed the same and have the same numbers."""
    assert type(ours.data) is type(theirs.data) and ours.shape == theirs.shape, what
    if isinstance(ours, DTensor) and ours.placements != theirs.placements:
        # A gradient of which eager keeps another part than the parameter's shard is, which autograd would not take.
        assert local(theirs).shape != local(ours).shape, (what, ours.placements, theirs.placements)
        theirs = theirs.redistribute(placements=ours.placements)
    torch.testing.assert_close(
        local(ours), local(theirs), rtol=10 * tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}"
    )


def mean_square(net: Any, x: torch.Tensor) -> torch.Tensor:
    """A loss."""
    return net(x).float().square().mean()


def next_tokens(net: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of a language model."""
    return F.cross_entropy(net(tokens).flatten(0, 1).float(), tokens.roll(-1, 1).flatten())


def rows(step: int) -> torch.Tensor:
    """The same in both processes."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def tokens(step: int) -> torch.Tensor:
    """The same in both processes."""
    return torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(step))


def train(
    make: Callable[[], Any], shard: Callable[[Any], Any], compiled: Callable[[Any], tuple[Any, list[Any]]],
    loss: Callable[[Any, Any], torch.Tensor], data: Callable[[int], torch.Tensor], mixed: bool,
    surroundings: Callable[[], Any] = nullcontext,
) -> list[Any]:  # fmt: skip
    """Five steps of both; what :func:`counts` gives of each report.

    Args:
        make: the network.
        mixed: bfloat16 where autocast says so.
        surroundings: entered around loss and backward.
    """
    base = make()
    theirs = shard(copy.deepcopy(base))
    ours, reporting = compiled(shard(base))
    step_together(ours, theirs, loss, data, mixed, surroundings)
    return [counts(each.report()) for each in reporting]


def step_together(
    ours: Any, theirs: Any, loss: Callable[[Any, Any], torch.Tensor], data: Callable[[int], torch.Tensor],
    mixed: bool, surroundings: Callable[[], Any] = nullcontext, tolerance: float | None = None,
) -> None:  # fmt: skip
    """Five optimizer steps of two networks, which have the same gradients and parameters after each."""
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (ours, theirs)]
    tolerance = tolerance or (2e-3 if mixed else 2e-6)
    for step in range(STEPS):
        x = data(step)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            with surroundings():
                with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                    value = loss(model, x)
                value.backward()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert p.grad is not None, name
            assert_same(p.grad, q.grad, tolerance, f"the gradient of {name} in step {step}")
        for optimizer in optimizers:
            optimizer.step()
        for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert_same(p, q, tolerance, f"{name} after step {step}")


def counts(report: Any) -> list[int]:
    """The captured graphs, the places at which one ends, and collectives and products in compiled graphs."""
    assert_all_generated(report, allowed=LIBRARY_CALLS | COLLECTIVES)
    names = [each.name for each in report.externs]
    collectives = sum(name.startswith("_c10d_functional.") and "wait" not in name for name in names)
    products = sum(name.split(".")[1] in ("mm", "addmm", "bmm") for name in names)
    return [len(captured(report)), len(report.breaks), collectives, products]


def _case(name: str, *args: Any, **kwargs: Any) -> Callable[[int], list[Any]]:
    def case(rank: int) -> list[Any]:
        return train(*args, **kwargs)

    case.__name__ = name
    return case


_PROGRAMS = {
    "mlps": (Mlps, shard_mlps, mean_square, rows),
    "llama": (Llama, shard_llama, next_tokens, tokens),
    "sequences": (Llama, shard_sequences, next_tokens, tokens),
}
CASES = [
    _case(f"{program}_{where.__name__}_{'bf16' if mixed else 'fp32'}", make, shard, where, loss, data, mixed)
    for program, (make, shard, loss, data) in _PROGRAMS.items()
    for where in (inside, around)
    for mixed in (False, True)
]
CASES += [
    _case(
        f"loss_parallel_{where.__name__}_{'bf16' if mixed else 'fp32'}", Llama,
        partial(shard_sequences, local_logits=False), where, next_tokens, tokens, mixed, loss_parallel,
    )
    for where in (inside, around) for mixed in (False, True)
]  # fmt: skip
