"""Ahead-of-time autograd: functionalisation, joint graphs and partitioners for PyTorch."""

__version__ = "0.1.0"

from aot_autograd.entry import (
    PartitionFn,
    aot_function,
    inference_graph,
    joint_graph,
    partition_joint,
    run_eagerly,
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
]
