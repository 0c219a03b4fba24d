"""DistributedDataParallel on two gloo ranks: around a compiled module, and compiled itself."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

#: What a case gives on each rank beside equal results: captured graphs and breaks, and what it counts itself.
GIVES = {
    "unused_parameters": [2, 0],
    "unused_parameters_inside": [2, 0],
    "buffers": [1, 0, 5],
    "uneven_inputs": [0],
    "called_by_a_function": [3, 1],  # before, the module inside, after
    "judge_sees_damage": [2],
}


@pytest.fixture(scope="module")
def results():
    return run_ranks("data_parallel_cases")


@pytest.mark.parametrize("case", names("data_parallel_cases"))
def test_results_gradients_and_buckets_are_eagers(results, case):
    for given in check(results, case):
        assert given == GIVES.get(case, [1, 0])
