"""Ahead-of-time autograd: functionalisation, joint graphs and partitioners for PyTorch.

What only graphs with gradients need is imported on first use.
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING, Any

from aot_autograd.entry import (
    PartitionFn,
    aot_function,
    inference_graph,
    joint_graph,
    partition_joint,
    run_eagerly,
    whole_graph,
)
from aot_autograd.trace.outcome import Joint

if TYPE_CHECKING:
    from aot_autograd.partition.default import default_partition
    from aot_autograd.partition.mincut import min_cut_partition, saved_bytes
    from aot_autograd.partition.split import Partition, split_joint

__all__ = [
    "Joint",
    "Partition",
    "PartitionFn",
    "aot_function",
    "default_partition",
    "inference_graph",
    "joint_graph",
    "min_cut_partition",
    "partition_joint",
    "run_eagerly",
    "saved_bytes",
    "split_joint",
    "whole_graph",
]

_ON_USE = {"default_partition": "default", "min_cut_partition": "mincut", "saved_bytes": "mincut"}
_ON_USE |= {"Partition": "split", "split_joint": "split"}


def __getattr__(name: str) -> Any:
    if name not in _ON_USE:
        raise AttributeError(f"module 'aot_autograd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"aot_autograd.partition.{_ON_USE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
