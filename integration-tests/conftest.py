"""Integration tests compile into a kernel cache of their own, shared by the run so that repeated kernels are cheap."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    previous = os.environ.get("QUINTET_CACHE_DIR")
    os.environ["QUINTET_CACHE_DIR"] = str(tmp_path_factory.mktemp("kernels"))
    yield
    if previous is None:
        del os.environ["QUINTET_CACHE_DIR"]
    else:
        os.environ["QUINTET_CACHE_DIR"] = previous


@pytest.fixture(autouse=True)
def _fresh():
    import torch

    import compile_api

    torch.manual_seed(0)
    compile_api.reset()
    yield
