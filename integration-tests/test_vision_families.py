"""A dozen vision families that differ in what capture meets; `sweeps/sweep_vision.py` tries all of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None:
    pytest.skip("needs timm and torchvision", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parent / "sweeps"))
import sweep_vision

CAPTURED = [
    "test_resnet", "test_byobnet", "test_convnext", "test_nfnet", "test_maxvit", "test_vit_relpos", "starnet_s050",
    "efficientvit_b0", "pvt_v2_b0", "ghostnet_050", "gcvit_xxtiny", "swin_s3_tiny_224", "sequencer2d_s", "levit_128s",
]  # fmt: skip
COMPILED = ["test_vit", "test_efficientnet", "test_mambaout"]


@pytest.mark.parametrize("name", CAPTURED)
def test_captured_whole(name):
    """One graph without breaks or fallbacks; run by PyTorch it gives eager's very bits."""
    record = sweep_vision.judge(lambda: sweep_vision.timm_model(name), "eager")
    assert record["status"] == "ok", record


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_whole(name):
    record = sweep_vision.judge(lambda: sweep_vision.timm_model(name), "inductor")
    assert record["status"] == "ok", record
