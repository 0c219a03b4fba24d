"""Random numbers of the tests."""

import sys

import pytest
import torch


def pytest_runtest_setup(item):
    """Draws of a test do not depend on which tests ran before it in the process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _samples_without_stacks():
    """PyTorch's databases look through the whole stack for a `TestCase`, at each sample."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch.testing._internal.common_utils", "torch.testing._internal.opinfo.core"):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "extract_test_fn", lambda: None)
        yield
