"""Random numbers of the tests."""

import torch


def pytest_runtest_setup(item):
    """Draws of a test do not depend on which tests ran before it in the process."""
    torch.manual_seed(0)
