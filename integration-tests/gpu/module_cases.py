"""PyTorch's own module database on a GPU: results, buffers and all gradients through ``compile()``, against eager.

Run by test_gpu_modules.py in processes of its own: importing the database forbids to set PyTorch's flags.
"""

from __future__ import annotations

import warnings

import pytest
from on_gpu import DEVICE
from sweeps import module_db, sweep_op_db

SETTINGS = sweep_op_db.settings(["--device", str(DEVICE)])
INFOS = [module_db.module_db[k] for k in module_db.comparable("float32")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.formatted_name)
def test_module(info, dtype):
    warnings.simplefilter("ignore")
    verdict, reason = module_db.check(info, dtype, "gradients", SETTINGS)
    if verdict == "skipped":
        pytest.skip(f"eager has no {info.formatted_name} in {dtype} on a GPU")
    assert verdict in ("generated", "eager"), reason
