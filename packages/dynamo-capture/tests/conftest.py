"""Random numbers of the tests."""

import sys


def pytest_runtest_setup(item):
    """Draws of a test do not depend on which tests ran before it in the process."""
    torch = sys.modules.get("torch")  # the frame hook's own tests run where it is not installed
    if torch is not None:
        torch.manual_seed(0)
