"""Makes the tests' helper modules importable under ``--import-mode=importlib``; caches are in a temporary folder;
random numbers of the tests."""

import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "stored")]


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTET_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("QUINTET_PROGRAM_CACHE", "0")  # but where a test asks for it
        yield


def pytest_runtest_setup(item):
    """Draws of a test do not depend on which tests ran before it in the process."""
    torch.manual_seed(0)
