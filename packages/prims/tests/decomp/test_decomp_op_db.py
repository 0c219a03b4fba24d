"""Decompositions against eager on the inputs of PyTorch's operator database, backward passes included."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# What is left to eager on purpose, and why.
UNSUPPORTED = {
    "aten._unsafe_masked_index_put_accumulate.default": ["bool: index_put that accumulates bool"],
    "aten.addr.default": ["bool: addr of bool tensors"],
    "aten.avg_pool2d.default": ["int64: average pooling of integers"],
    "aten.avg_pool3d.default": ["int64: average pooling of integers"],
    "aten.index.Tensor": ["float32: indexing with a mask: how many elements it takes depends on data"],
    "aten.index_add.default": ["bool: index_put that accumulates bool"],
    "aten.index_put.default": ["bool: index_put that accumulates bool"],
    "aten.linspace.default": ["int64: linspace of integers or between tensors"],
    "aten.logspace.default": ["int64: logspace of integers or between tensors"],
    "aten.native_batch_norm.default": [
        "bfloat16: native_batch_norm that updates its running statistics in place",
        "float32: native_batch_norm that updates its running statistics in place",
    ],
    "aten.native_dropout_backward.default": ["bool: dropout of torch.bool", "int64: dropout of torch.int64"],
    "aten.nextafter.default": ["bfloat16: nextafter in reduced precision"],
    "aten.put.default": ["bool: put that accumulates bool"],
    "aten.round.decimals": ["bfloat16: round to decimals in reduced precision"],
    "aten.scatter.reduce": ["bool: scatter that combines bool"],
    "aten.scatter_add.default": ["bool: scatter that combines bool"],
    "aten.scatter_reduce.two": ["bool: scatter_reduce of bool"],
    "aten.searchsorted.Tensor": [
        f"{dtype}: searchsorted in many sequences or with a sorter" for dtype in ("bfloat16", "float32", "int64")
    ],
}


@pytest.fixture(scope="module")
def outcome():
    run = subprocess.run(
        [sys.executable, str(HERE / "op_db_run.py")], capture_output=True, text=True, check=False, timeout=900
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


def test_values_and_metadata_equal_eager(outcome):
    assert outcome["wrong"] == []


def test_decompositions_and_metadata_rules_agree(outcome):
    """On the CPU and on a GPU, where some saved statistics differ. The verifier compares the two in graphs."""
    assert outcome["metadata"] == []


def test_much_is_compared(outcome):
    overloads = {key.split()[0] for key in outcome["checked"]}
    assert len(overloads) >= 380
    assert sum(outcome["checked"].values()) >= 13000


def test_what_is_left_to_eager_is_known(outcome):
    unexpected = {
        name: sorted(set(reasons) - set(UNSUPPORTED.get(name, ()))) for name, reasons in outcome["unsupported"].items()
    }
    assert {name: reasons for name, reasons in unexpected.items() if reasons} == {}
