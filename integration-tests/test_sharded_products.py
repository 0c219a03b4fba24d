"""FSDP2 (``fully_shard``) around tensor parallelism, on meshes of 1 x 2, 2 x 1 and 2 x 2 gloo ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

#: As in test_tensor_parallel.py, where two processes share the products. Compiled around, the network ends its graphs
#: before each block; a process that shares the products with none has no collective of theirs.
GIVES = {
    "mlps_inside": [[1, 0, 1, 5], [1, 0, 2, 6]],
    "mlps_around": [[5, 1, 3, 14]],
    "llama_inside": [[1, 0, 7, 21], [1, 0, 7, 21]],
    "llama_around": [[4, 1, 14, 45]],
    "sequences_inside": [[1, 0, 8, 21], [1, 0, 8, 21]],
    "sequences_around": [[4, 1, 21, 45]],
}
#: Of four processes; the others differ in the numbers' type or in what is compiled alone.
OF_FOUR = ["mlps_around_fp32", "llama_inside_bf16"]


def alone(counts: list[list[int]]) -> list[list[int]]:
    """What a process gives that shares the products with none."""
    return [[graphs, breaks, 0, products] for graphs, breaks, _, products in counts]


@pytest.fixture(scope="module")
def results():
    return run_ranks("sharded_products_cases")


@pytest.fixture(scope="module")
def results_of_four():
    return run_ranks("sharded_products_cases", *OF_FOUR, ranks=4)


@pytest.mark.parametrize("case", names("sharded_products_cases"))
def test_gradients_and_parameters_are_eagers(results, case):
    expected = GIVES[case.rpartition("_")[0]]
    for given in check(results, case):
        assert given == [expected, alone(expected)]


@pytest.mark.parametrize("case", OF_FOUR)
def test_on_a_mesh_of_both(results_of_four, case):
    found = check(results_of_four, case)
    assert len(found) == 4
    for given in found:
        assert given == [GIVES[case.rpartition("_")[0]]]
