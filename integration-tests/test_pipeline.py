"""Pipeline parallelism (``torch.distributed.pipelining``) of compiled blocks and stages, on two gloo ranks."""

from __future__ import annotations

import pytest
import torch
from ranks import check, names, run_ranks

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this PyTorch has no gloo"
)


@pytest.fixture(scope="module")
def results():
    return run_ranks("pipeline_cases")


@pytest.mark.parametrize("case", names("pipeline_cases"))
def test_losses_gradients_and_parameters_are_eagers(results, case):
    """One graph for all parts of a batch; without bubbles each half of a backward pass runs the compiled one."""
    reports = 1 if "around" in case and case.startswith(("gpipe", "1f1b")) else 2
    for given in check(results, case):
        assert len(given) == reports
        for graphs, breaks in given:
            assert breaks == 0
            assert graphs in (1, 2)  # a second one where PyTorch (2.11) finds a stage's sizes by a run of it
