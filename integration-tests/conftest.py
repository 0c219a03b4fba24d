"""Integration tests compile into a kernel cache of their own, shared by the run so that repeated kernels are cheap.

Programs are not kept by default: tests look at what a capture does, and at programs where they say so.
"""

from __future__ import annotations

import gc
import os
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # all processes of a run share what one has compiled
        folder = folder.parent
    (folder / "kernels").mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTET_CACHE_DIR", str(folder / "kernels"))
        patch.setenv("QUINTET_PROGRAM_CACHE", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _samples_without_stacks():
    """PyTorch's databases look through the whole stack for a `TestCase`, at each sample: a fifth of these tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("torch.testing._internal.common_utils", "torch.testing._internal.opinfo.core"):
            if name in sys.modules:
                patch.setattr(sys.modules[name], "extract_test_fn", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _imports_are_no_garbage():
    """A million objects of libraries need not be looked through by each collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh():
    import torch

    import compile_api
    from dynamo_capture import promises

    torch.manual_seed(0)
    compile_api.reset()
    with pytest.MonkeyPatch.context() as patch:  # what a test, or an example, promises of a library's function is its own
        patch.setattr(promises, "_substitutes", dict(promises._substitutes))
        yield
