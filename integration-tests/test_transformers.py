"""A few of the model types that ``sweeps/sweep_transformers.py`` goes through: each forward is one captured graph."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the models are transformers'")


@pytest.fixture(scope="module")
def sweep():
    path = Path(__file__).parent / "sweeps" / "sweep_transformers.py"
    spec = importlib.util.spec_from_file_location("sweep_transformers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.zoo.build("resnet18", small=True)  # makes torchvision importable
    return module


@pytest.mark.parametrize("name", ["roberta", "deberta-v2", "mistral", "mixtral", "bart", "whisper", "dinov2", "clip"])
def test_one_graph(sweep, name):
    verdict, detail = sweep.check(name)
    assert verdict == "ok", detail
