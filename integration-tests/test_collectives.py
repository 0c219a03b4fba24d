"""Collectives in compiled graphs, on two gloo ranks: results, gradients, order, groups."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

_REDUCE, _GATHER, _SCATTER = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
#: What a case gives on each rank beside equal results: the collectives that its graphs call, or what it counts.
GIVES = {
    "all_reduce": [_REDUCE, _REDUCE],
    "an_input_is_written": [_REDUCE],
    "gather_and_scatter": [_GATHER, _SCATTER],
    "all_to_all_and_broadcast": ["all_to_all_single", "broadcast"],
    # The gradient of a gather is a scatter's sum, that of a scatter a gather; backwards in the other order.
    "gradients": [_REDUCE, _GATHER, _SCATTER, _REDUCE, _REDUCE, _GATHER, _SCATTER, _REDUCE],
    "groups_by_name": [_GATHER, _SCATTER],
    "ranks_and_sizes": [],
    "each_is_run_once": [_REDUCE, _REDUCE, _REDUCE, "broadcast"],
    "while_it_is_under_way": [_GATHER],
    "another_group": [3],
    "what_ends_the_graph": [1, 1],
    "a_step_with_its_own_reduction": [_REDUCE],
    "judge_sees_a_collective_that_is_left_out": [0],
}


@pytest.fixture(scope="module")
def results():
    return run_ranks("collective_cases")


@pytest.mark.parametrize("case", names("collective_cases"))
def test_collectives_are_eagers(results, case):
    for given in check(results, case):
        assert given == GIVES[case]
