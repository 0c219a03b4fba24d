"""What two ranks do under DistributedDataParallel, compiled and eager, on data of their own; for test_data_parallel.py.

Each case returns numbers for the test and raises where the compiled run is not the eager one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from reports import assert_all_generated, captured
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

import compile_api

STEPS = 5


class Block(nn.Module):
    """Products, a normalisation and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def stack(width: int = 64, depth: int = 3) -> nn.Sequential:
    """Blocks with a head."""
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, 5))


class Branches(nn.Module):
    """Two ways, of which a call takes one, and a result that the loss may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head, self.aside = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor, first: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden = torch.tanh(self.one(x) if first else self.two(x))
        return self.head(hidden), {"aside": self.aside(hidden.detach())}


def around(module: nn.Module, **kwargs: Any) -> tuple[Any, DDP]:
    """``compile(DDP(module))``, and the DDP in it."""
    wrapped = DDP(module, **kwargs)
    return compile_api.compile(wrapped), wrapped


def inside(module: nn.Module, **kwargs: Any) -> tuple[Any, DDP]:
    """``DDP(compile(module))``, and the same again."""
    compiled = compile_api.compile(module)
    wrapped = DDP(compiled, **kwargs)
    wrapped.report = compiled.report
    return wrapped, wrapped


def state(wrapped: DDP) -> dict[str, torch.Tensor]:
    """Parameters, buffers and gradients by name."""
    found = {name.replace("_orig_mod.", ""): value.detach() for name, value in wrapped.state_dict().items()}
    found |= {f"grad of {name}": p.grad for name, p in wrapped.named_parameters() if p.grad is not None}
    return found


def assert_same(ours: DDP, theirs: DDP, tolerance: float = 2e-5) -> None:
    """Assert equal parameters, buffers and gradients, None in the same places."""
    mine, other = state(ours), state(theirs)
    assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
    for name, value in other.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_on_all(wrapped: DDP, differ: bool = False) -> None:
    """Assert that the ranks hold the same gradients, or (``differ``) that they do not."""
    flat = torch.cat([p.grad.flatten() for p in wrapped.parameters() if p.grad is not None])
    found = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(found, flat)
    assert torch.equal(found[0], found[1]) is not differ


def assert_same_reducer(ours: DDP, theirs: DDP) -> None:
    """Assert that the reducers have made the same buckets, up to what stands in each, and counted the same steps."""
    assert ours._has_rebuilt_buckets is theirs._has_rebuilt_buckets
    mine, other = ours._get_ddp_logging_data(), theirs._get_ddp_logging_data()
    keys = (
        "num_iterations",
        "iteration",
        "has_rebuilt_buckets",
        "unused_parameter_size",
        "comm_hook",
        "num_buckets_reduced",
    )
    for key in keys:
        assert mine.get(key) == other.get(key), (key, mine.get(key), other.get(key))
    count = [sum(map(int, data.get("rebuilt_bucket_sizes", "0").split(", "))) for data in (mine, other)]
    assert count[0] == count[1], count


def train(
    rank: int, module: nn.Module, wrap: Callable[..., Any], *, step: Callable[..., Any] | None = None,
    data: Callable[[], Any] = lambda: torch.randn(8, 64), graphs: int = 1, hook: Any = None, between: Any = None,
    tolerance: float = 2e-5, allowed: set[str] | None = None, **kwargs: Any,
) -> list[int]:  # fmt: skip
    """Train a module compiled and eagerly, on this rank's data, and assert that all is the same after every step.

    Returns:
        captured graphs, breaks.
    """
    compiled, ours = wrap(module, **kwargs)
    eager = theirs = DDP(copy.deepcopy(getattr(module, "_orig_mod", module)), **kwargs)
    optimizers = [torch.optim.SGD(w.parameters(), lr=0.05, momentum=0.9) for w in (ours, theirs)]
    if hook is not None:
        for wrapped in (ours, theirs):
            hook(wrapped)
    step = step or (lambda model, x, k: model(x).square().mean().backward())
    torch.manual_seed(100 + rank)
    for k in range(STEPS):
        batch = data()
        for model, optimizer in zip((compiled, eager), optimizers, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(k)
            step(model, batch, k)
            torch.manual_seed(1000 * rank + k)
        assert_same(ours, theirs, tolerance)
        assert_on_all(ours)
        for optimizer in optimizers:
            optimizer.step()
    assert_same_reducer(ours, theirs)
    report = compiled.report()
    if graphs:
        assert_all_generated(report, graphs=graphs, **({} if allowed is None else {"allowed": allowed}))
        assert not report.breaks, report.breaks
    return [len(captured(report)), len(report.breaks)]


# -- the cases -----------------------------------------------------------------------------------------------------


def compiled_around(rank: int) -> list[int]:
    return train(rank, stack(), around)


def compiled_inside(rank: int) -> list[int]:
    return train(rank, stack(), inside)


def gradients_as_views(rank: int) -> list[int]:
    return train(rank, stack(), around, gradient_as_bucket_view=True)


def many_buckets(rank: int) -> list[int]:
    return train(rank, stack(64, 6), around, bucket_cap_mb=0.05)


def static_graph(rank: int) -> list[int]:
    return train(rank, stack(), around, static_graph=True)


def static_graph_inside(rank: int) -> list[int]:
    return train(rank, stack(), inside, static_graph=True, bucket_cap_mb=0.05)


def accumulation(rank: int) -> list[int]:
    def step(model: Any, x: torch.Tensor, k: int) -> None:
        with model.no_sync():
            for part in x[:4].chunk(2):
                model(part).square().mean().backward()
            assert_on_all(model, differ=True)
        model(x[4:6]).square().mean().backward()

    return train(rank, stack(), around, step=step)


def accumulation_inside(rank: int) -> list[int]:
    def step(model: Any, x: torch.Tensor, k: int) -> None:
        with model.no_sync():
            model(x[:4]).square().mean().backward()
        model(x[4:]).square().mean().backward()

    return train(rank, stack(), inside, step=step, bucket_cap_mb=0.05)


def _branching(rank: int, wrap: Callable[..., Any]) -> list[int]:
    def step(model: Any, x: torch.Tensor, k: int) -> None:
        result, rest = model(x, (rank + k) % 2 == 0)
        (result.sum() + (rest["aside"].sum() if k > 2 else 0)).backward()

    return train(rank, Branches(), wrap, step=step, data=lambda: torch.randn(4, 16), graphs=2,
                 find_unused_parameters=True, bucket_cap_mb=0.002)  # fmt: skip


def unused_parameters(rank: int) -> list[int]:
    return _branching(rank, around)


def unused_parameters_inside(rank: int) -> list[int]:
    return _branching(rank, inside)


def comm_hook(rank: int) -> list[int]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    return train(rank, stack(), around, hook=lambda wrapped: wrapped.register_comm_hook(None, fp16_compress_hook),
                 bucket_cap_mb=0.05, tolerance=1e-3)  # fmt: skip


def buffers(rank: int) -> list[int]:
    module = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    found = train(rank, module, around)
    return [*found, int(module[1].num_batches_tracked)]


def autocast(rank: int) -> list[int]:
    def step(model: Any, x: torch.Tensor, k: int) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()

    return train(rank, stack(), around, step=step, tolerance=3e-2)


def uneven_inputs(rank: int) -> list[int]:
    compiled, ours = around(stack())
    theirs = DDP(copy.deepcopy(ours.module))
    torch.manual_seed(rank)
    batches = [torch.randn(4, 64) for _ in range(3 + 2 * rank)]
    for model, wrapped in ((compiled, ours), (theirs, theirs)):
        with Join([model]):
            for x in batches:
                wrapped.zero_grad()
                model(x).square().mean().backward()
    assert_same(ours, theirs)
    assert_all_generated(compiled.report(), graphs=1)
    return [len(compiled.report().breaks)]


def called_by_a_function(rank: int) -> list[int]:
    ours = DDP(stack())
    theirs = DDP(copy.deepcopy(ours.module))

    def loss(model: DDP, x: torch.Tensor) -> torch.Tensor:
        return (model(x.sin()).square() * 2).mean()

    compiled = compile_api.compile(loss)
    torch.manual_seed(rank)
    for _ in range(3):
        x = torch.randn(4, 64)
        compiled(ours, x).backward()
        loss(theirs, x).backward()
        assert_same(ours, theirs)
    report = compiled.report()
    assert not report.fallbacks, report.fallbacks
    assert all("QB25" in brk.reason for brk in report.breaks), report.breaks
    return [len(captured(report)), len(report.breaks)]


def judge_sees_damage(rank: int) -> list[int]:
    """A gradient that is off by a thousandth is no equal one, nor is one that the ranks do not share."""
    ours = DDP(stack())
    theirs = DDP(copy.deepcopy(ours.module))
    x = torch.randn(4, 64)
    for model in (ours, theirs):
        model(x).sum().backward()
    assert_same(ours, theirs)
    seen = 0
    weight = ours.module[0].up.weight
    weight.grad[0, 0] += 1e-3 * (1 + rank)
    for judge in (lambda: assert_same(ours, theirs), lambda: assert_on_all(ours)):
        try:
            judge()
        except AssertionError:
            seen += 1
    return [seen]


CASES = [
    compiled_around, compiled_inside, gradients_as_views, many_buckets, static_graph, static_graph_inside,
    accumulation, accumulation_inside, unused_parameters, unused_parameters_inside, comm_hook, buffers, autocast,
    uneven_inputs, called_by_a_function, judge_sees_damage,
]  # fmt: skip
