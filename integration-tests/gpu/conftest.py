"""The GPU's tests need a GPU; ``nox -s gpu`` runs them on a machine that has one."""

from __future__ import annotations

import pytest
import torch


def _missing() -> str | None:
    """Why nothing here can run; None when it can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} is older than compute capability 8.0"
    return None


def pytest_collection_modifyitems(items):
    reason = _missing()
    if reason is not None:
        for item in items:
            if "gpu" in item.path.parts[-2:-1] and "no_gpu" not in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def _no_programs():
    """Tests look at what a capture does, and watch code being generated: of a kept program neither happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTET_PROGRAM_CACHE", "0")
        yield


@pytest.fixture(autouse=True)
def _matmul_as_pytorch_starts():
    """Each test begins with PyTorch's own precision settings."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    if (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) != before:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
