"""FSDP2 (``fully_shard``) around blocks and around the whole, on two gloo ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

#: Captured graphs and places at which a graph ends: before the blocks, a block (one graph for all), after them.
AROUND_BLOCKS = [3, 1]
GIVES = {"blocks_compiled_and_sharded": [1, 0], "sharded_as_one": [1, 0]}


@pytest.fixture(scope="module")
def results():
    return run_ranks("sharded_cases")


@pytest.mark.parametrize("case", names("sharded_cases"))
def test_shards_and_gradients_are_eagers(results, case):
    for given in check(results, case):
        assert given == GIVES.get(case, AROUND_BLOCKS)
