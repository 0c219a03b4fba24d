"""Modules that synchronise with other processes around the module that they hold: ``DistributedDataParallel``, FSDP2.

What they do before and after it has effects that no graph has: on the reducer and its buckets, on work that is under
way, on buffers and parameters that other processes write. So it runs as eager runs it, on the program's own objects,
and what they hold is captured as frames of its own, whole.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.torch_calls import special_by_name

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["is_sharded", "synchronised"]


def is_sharded(cls: type) -> bool:
    """Whether a module's class is one that ``torch.distributed.fsdp.fully_shard`` has made of the program's."""
    sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return sharded is not None and issubclass(cls, sharded)


def synchronised(what: str) -> NoReturn:
    """End the graph before a call that synchronises with other processes; the call runs as it is.

    Raises:
        GraphBreak: always.
    """
    raise GraphBreak("QB25", what)


@special_by_name("torch.nn.parallel.distributed", "forward")
def _data_parallel(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    synchronised("DistributedDataParallel.forward")
