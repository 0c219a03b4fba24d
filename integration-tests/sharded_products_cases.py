"""FSDP2 around tensor parallelism, on a mesh of two dimensions; for test_sharded_products.py, with two and four ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tensor_parallel_cases import (
    Llama,
    Mlps,
    counts,
    mean_square,
    next_tokens,
    rows,
    shard_llama,
    shard_mlps,
    shard_sequences,
    step_together,
    tokens,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import compile_api

#: Processes that have a shard of the parameters each, times those that share the products.
SHAPES = {2: ((1, 2), (2, 1)), 4: ((2, 2),)}


def by_blocks(net: Any, mesh: Any, mixed: bool) -> Any:
    """``fully_shard`` of each block, then of the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kwargs = {"mp_policy": policy} if mixed else {}
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **kwargs)
    return fully_shard(net, mesh=mesh, **kwargs)


def inside(net: Any, shard: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """Each block compiled, then sharded."""
    for i, block in enumerate(net.blocks):
        net.blocks[i] = compile_api.compile(block)
    return shard(net), list(net.blocks)


def around(net: Any, shard: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """The whole compiled, after it was sharded."""
    compiled = compile_api.compile(shard(net))
    return compiled, [compiled]


def _case(name: str, program: Any, where: Any, mixed: bool) -> Callable[[int], list[Any]]:
    make, parallelise, loss, data = program

    def case(rank: int) -> list[Any]:
        found = []
        for shape in SHAPES[dist.get_world_size()]:
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
            base = parallelise(make(), mesh["tp"])
            theirs = by_blocks(copy.deepcopy(base), mesh["dp"], mixed)
            ours, reporting = where(base, lambda net, mesh=mesh: by_blocks(net, mesh["dp"], mixed))
            first = 1000 * mesh.get_local_rank("dp")  # those that share the products have the same data
            step_together(ours, theirs, loss, lambda step, first=first: data(first + step), False,
                          tolerance=2e-2 if mixed else 2e-5)  # fmt: skip
            found.append([counts(each.report()) for each in reporting])
        return found

    case.__name__ = name
    return case


_PROGRAMS = {
    "mlps": (Mlps, shard_mlps, mean_square, rows),
    "llama": (Llama, shard_llama, next_tokens, tokens),
    "sequences": (Llama, shard_sequences, next_tokens, tokens),
}
CASES = [
    _case(f"{name}_{where.__name__}_{'bf16' if mixed else 'fp32'}", program, where, mixed)
    for name, program in _PROGRAMS.items() for where in (inside, around) for mixed in (False, True)
]  # fmt: skip
