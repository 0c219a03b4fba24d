"""Sharded tensors (``DTensor``) in compiled functions, on two gloo ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)

#: By case the captured graphs, and words from why each ends, in order.
GIVES = {
    "another_placement": (3, []),
    "redistributed_inside": (1, []),
    "without_gradients": (2, []),
    "frozen": (1, []),
    "other_batches": (4, []),
    "checkpointed": (1, []),
    "written": (2, ["add_ on a DTensor, which it writes"]),
    "drawn": (2, ["draws random numbers for a DTensor"]),
    "made_inside": (1, ["distribute_tensor() or distribute_module()"]),
    "loss_parallel_inside": (2, ["enter it around the call", "__next__"]),
}


@pytest.fixture(scope="module")
def results():
    return run_ranks("sharded_tensor_cases")


@pytest.mark.parametrize("case", GIVES)
def test_numbers_and_gradients_are_eagers(results, case):
    graphs, reasons = GIVES[case]
    for given in check(results, case):
        assert given[0] == graphs
        assert len(given[1]) == len(reasons), given[1]
        for reason, words in zip(given[1], reasons, strict=True):
            assert words in reason


def test_placements_of_arguments_and_results(results):
    """Also of a dimension that does not divide evenly."""
    for given in check(results, "taken_and_given"):
        assert given == [[1, []]] * 4


def test_an_optimizer_of_sharded_parameters_is_eagers(results):
    for (verdict,) in check(results, "optimizer"):
        assert verdict.startswith("eager: ") and "a DTensor [QB17]" in verdict


def test_every_case_is_looked_at():
    assert {*GIVES, "taken_and_given", "optimizer"} == {*names("sharded_tensor_cases")}
