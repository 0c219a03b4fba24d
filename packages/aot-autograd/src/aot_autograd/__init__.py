"""Ahead-of-time autograd: functionalisation, joint graphs and partitioners for PyTorch.

All of it is imported on first use: a stored program needs none of it.
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot_autograd.entry import (
        PartitionFn,
        aot_function,
        inference_graph,
        joint_graph,
        partition_joint,
        run_eagerly,
        whole_graph,
    )
    from aot_autograd.partition.default import default_partition
    from aot_autograd.partition.mincut import min_cut_partition, saved_bytes
    from aot_autograd.partition.split import Partition, split_joint
    from aot_autograd.trace.outcome import Joint

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

_HOME = dict.fromkeys(("PartitionFn", "aot_function", "inference_graph", "joint_graph", "partition_joint"), "entry")
_HOME |= {"run_eagerly": "entry", "whole_graph": "entry", "Joint": "trace.outcome"}
_HOME |= {"default_partition": "partition.default", "min_cut_partition": "partition.mincut"}
_HOME |= {"saved_bytes": "partition.mincut", "Partition": "partition.split", "split_joint": "partition.split"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'aot_autograd' has no attribute {name!r}")
    return getattr(importlib.import_module(f"aot_autograd.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
