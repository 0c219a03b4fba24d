"""Collectives inside compiled functions on two ranks, each with data of its own; for test_collectives.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from reports import LIBRARY_CALLS, assert_all_generated, captured

import compile_api

warnings.simplefilter("ignore", FutureWarning)  # of functions that PyTorch has renamed

#: What may be called beside generated kernels, by the name without overload.
CALLS = LIBRARY_CALLS | {
    f"_c10d_functional.{name}"
    for name in ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
                 "wait_tensor")
}  # fmt: skip


def begun(report: Any) -> list[str]:
    """The collectives that the graphs call, in order."""
    names = [record.name.split(".")[1] for record in report.externs if record.name.startswith("_c10d_functional")]
    return [name for name in names if name != "wait_tensor"]


def same(fn: Callable[..., Any], rank: int, gradients: bool = False, calls: int = 3, rows: int = 4) -> Any:
    """Run a function compiled and eagerly, assert equal results and gradients, one graph; its report."""
    compiled = compile_api.compile(fn)
    for k in range(calls):
        torch.manual_seed(10 * k + rank)
        x = torch.randn(rows, 6, requires_grad=gradients)
        y = x.detach().clone().requires_grad_(gradients)
        ours, theirs = compiled(x), fn(y)
        assert torch.allclose(ours, theirs, atol=1e-5), (ours, theirs)
        assert not torch.allclose(ours, torch.zeros_like(ours)), "a comparison of zeros says nothing"
        if gradients:
            weight = torch.rand_like(ours)
            (ours * weight).sum().backward()
            (theirs * weight).sum().backward()
            assert torch.allclose(x.grad, y.grad, atol=1e-5), (x.grad, y.grad)
    report = compiled.report()
    assert not report.breaks, report.breaks
    assert_all_generated(report, graphs=1, allowed=CALLS)
    return report


def all_reduce(rank: int) -> list[str]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        dist.all_reduce(y)
        z = y * 2 + x
        dist.all_reduce(z, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
        return z.cos() + y

    return begun(same(fn, rank))


def an_input_is_written(rank: int) -> list[str]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, dist.ReduceOp.SUM)
        return x + 1

    compiled = compile_api.compile(fn)
    for _ in range(2):
        x = torch.full((3, 2), float(rank + 1))
        assert torch.equal(compiled(x), torch.full((3, 2), 4.0)) and torch.equal(x, torch.full((3, 2), 3.0))
    assert len(captured(compiled.report())) == 1 and not compiled.report().breaks
    return begun(compiled.report())


def gather_and_scatter(rank: int) -> list[str]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(2 * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(whole, x.sin())
        part = torch.empty(x.shape[0], x.shape[1])
        dist.reduce_scatter_tensor(part, whole * whole.exp())
        return part.cos() + x

    return begun(same(fn, rank))


def all_to_all_and_broadcast(rank: int) -> list[str]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x.sin())
        y = y * 2 + x
        dist.broadcast(y, 1)
        return y.cos() * x

    return begun(same(fn, rank))


def gradients(rank: int) -> list[str]:
    import torch.distributed.nn.functional as older

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
        whole = functional.all_gather_tensor(y * x, 0, dist.group.WORLD)
        part = functional.reduce_scatter_tensor(whole.cos(), "sum", 0, dist.group.WORLD)
        return older.all_reduce(part * y).tanh() + x

    return begun(same(fn, rank, gradients=True))


def groups_by_name(rank: int) -> list[str]:
    name = dist.group.WORLD.group_name

    def fn(x: torch.Tensor) -> torch.Tensor:
        whole = functional.all_gather_tensor(x.sin(), 0, name)
        return functional.reduce_scatter_tensor(whole.cos() * x.shape[0], "sum", 0, name) * x

    return begun(same(fn, rank))


def ranks_and_sizes(rank: int) -> list[str]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return x
        shard = x.chunk(dist.get_world_size())[dist.get_rank()]
        return shard.sin() + dist.get_rank(dist.group.WORLD)

    return begun(same(fn, rank))


def each_is_run_once(rank: int) -> list[str]:
    """Equal collectives are not merged, and one that nobody reads is run: the other process runs it."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        unread = x.cos()
        dist.all_reduce(unread)
        one, two = (functional.all_reduce(x, "sum", dist.group.WORLD) for _ in range(2))
        dist.broadcast(x + 1, 0)
        return one + two.sin()

    return begun(same(fn, rank))


def while_it_is_under_way(rank: int) -> list[str]:
    """Nothing is written to what a collective still reads; kernels run between its beginning and its end."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        begun = torch.ops._c10d_functional.all_gather_into_tensor(y, 2, dist.group.WORLD.group_name)
        z = x
        for _ in range(4):
            z = (z @ z.T).tanh() @ x
        whole = torch.ops._c10d_functional.wait_tensor(begun)
        return whole.view(2, *x.shape).sum(0) + z

    return begun(same(fn, rank, calls=8, rows=256))


def another_group(rank: int) -> list[int]:
    """The group is guarded: another one is another graph."""

    def fn(x: torch.Tensor, group: Any) -> torch.Tensor:
        y = x.sin()
        dist.all_reduce(y, group=group)
        return y + 1

    groups = [dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([rank], use_local_synchronization=True)]
    compiled = compile_api.compile(fn)
    for _ in range(2):
        for group in groups:
            x = torch.randn(3, 3)
            assert torch.allclose(compiled(x, group), fn(x, group), atol=1e-5)
    report = compiled.report()
    assert not report.breaks, report.breaks
    return [len(captured(report))]


def what_ends_the_graph(rank: int) -> list[int]:
    """A handle that the program waits for, and a write that autograd does not see: as in eager, between graphs."""

    def asynchronous(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        work = dist.all_reduce(y, async_op=True)
        z = x.cos()
        work.wait()
        return y + z

    found = []
    for needs in (False, True):
        x = torch.randn(4, 3, requires_grad=needs)
        compiled = compile_api.compile(asynchronous)
        assert torch.allclose(compiled(x), asynchronous(x), atol=1e-5)
        assert all("QB" in brk.reason for brk in compiled.report().breaks)
        found.append(int(bool(compiled.report().breaks)))
    return found


def a_step_with_its_own_reduction(rank: int) -> list[str]:
    """Data parallel by hand: gradients of a compiled loss, reduced in a compiled function."""
    torch.manual_seed(0)
    weights = [torch.randn(6, 6, requires_grad=True) for _ in range(2)]

    def reduce(*gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
        flat = flat / dist.get_world_size()
        return tuple(p.view(6, 6) for p in flat.chunk(len(gradients)))

    loss = compile_api.compile(lambda x, a, b: ((x @ a).tanh() @ b).square().mean())
    compiled = compile_api.compile(reduce)
    torch.manual_seed(rank)
    for _ in range(2):
        grads = torch.autograd.grad(loss(torch.randn(5, 6), *weights), weights)
        for ours, theirs in zip(compiled(*grads), reduce(*grads), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
    assert_all_generated(compiled.report(), graphs=1, allowed=CALLS)
    return begun(compiled.report())


def judge_sees_a_collective_that_is_left_out(rank: int) -> list[int]:
    x = torch.randn(4, 6) + rank

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        dist.all_reduce(y)
        return y

    return [int(torch.allclose(compile_api.compile(fn)(x), x.sin(), atol=1e-5))]


CASES = [
    all_reduce, an_input_is_written, gather_and_scatter, all_to_all_and_broadcast, gradients, groups_by_name,
    ranks_and_sizes, each_is_run_once, while_it_is_under_way, another_group, what_ends_the_graph,
    a_step_with_its_own_reduction, judge_sees_a_collective_that_is_left_out,
]  # fmt: skip
