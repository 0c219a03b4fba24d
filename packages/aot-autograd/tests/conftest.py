"""Makes the tests' helper module importable under ``--import-mode=importlib``; random numbers of the tests."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))


def pytest_runtest_setup(item):
    """Draws of a test do not depend on which tests ran before it in the process."""
    torch.manual_seed(0)
