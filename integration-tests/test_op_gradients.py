"""Gradients of PyTorch's own operator and module databases through `compile()`, against eager.

Every module is run here; of the operators every fourth. The sweep script runs all, in a few minutes
(``python integration-tests/sweeps/sweep_op_db.py --grad --samples 1``): 490 of 521 without a fallback, none wrong.
What is listed in ``op_db_fallbacks.txt`` may leave a part to eager, with a reason in the report; everything else must be
generated. All must be right.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from sweeps import module_db
from sweeps import sweep_op_db as sweep
from torch.testing._internal.common_methods_invocations import op_db

FALLBACKS = set(Path(__file__).with_name("op_db_fallbacks.txt").read_text().split())
SETTINGS = sweep.settings(["--grad", "--samples", "1"])
TASKS = [task.index for task in sweep.tasks(SETTINGS)]


def judge(name: str, verdict: str, reason: str) -> None:
    assert verdict in ("generated", "eager"), f"{verdict}: {reason}"
    if verdict == "eager":
        assert reason
        assert name in FALLBACKS, f"{name} was generated, and now is not: {reason}"


def test_the_database_is_there():
    names = {op_db[index].formatted_name for index in TASKS}
    assert len(TASKS) > 480
    assert len(names & FALLBACKS) < len(names) / 4


@pytest.mark.parametrize("index", TASKS[::4], ids=lambda index: op_db[index].formatted_name)
def test_operator(index):
    warnings.simplefilter("ignore")
    judge(op_db[index].formatted_name, *sweep.check(op_db[index], "float32", "gradients", SETTINGS))


@pytest.mark.parametrize("index", module_db.comparable("float32"), ids=lambda k: module_db.module_db[k].formatted_name)
def test_module(index):
    warnings.simplefilter("ignore")
    info = module_db.module_db[index]
    verdict, reason = module_db.check(info, "float32", "gradients", SETTINGS)
    if verdict == "skipped":
        pytest.skip(reason)
    judge(f"nn.{info.module_cls.__name__}", verdict, reason)
