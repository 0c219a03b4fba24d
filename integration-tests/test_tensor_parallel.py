"""Tensor and sequence parallelism (``parallelize_module``) of blocks and of the whole, on two gloo ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

#: By program and what is compiled, for each report: captured graphs, places at which one ends, collectives and products
#: in the compiled graphs, forward and backward. A block of products has one all-reduce in the forward pass and one in
#: the backward pass, but for the first, whose input needs no gradient. Attention has three products on one input, of
#: whose gradients eager reduces each, as it does the two of a gated layer. With sequences in shards they are gathered
#: once, and the gradients are reduced and scattered once.
GIVES = {
    "mlps_inside": [[1, 0, 1, 5], [1, 0, 2, 6]],
    "mlps_around": [[1, 0, 3, 14]],
    "llama_inside": [[1, 0, 7, 21], [1, 0, 7, 21]],
    "llama_around": [[1, 0, 14, 45]],
    "sequences_inside": [[1, 0, 8, 21], [1, 0, 8, 21]],
    "sequences_around": [[1, 0, 21, 45]],
    "loss_parallel_inside": [[1, 0, 8, 21], [1, 0, 8, 21]],
    "loss_parallel_around": [[1, 0, 20, 45]],
}


@pytest.fixture(scope="module")
def results():
    return run_ranks("tensor_parallel_cases")


@pytest.mark.parametrize("case", names("tensor_parallel_cases"))
def test_gradients_and_parameters_are_eagers(results, case):
    for given in check(results, case):
        assert given == GIVES[case.rpartition("_")[0]]
