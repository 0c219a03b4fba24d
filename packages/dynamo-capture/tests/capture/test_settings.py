"""Settings of the process by which kernels are chosen (``sdpa_kernel``, ``cudnn.flags``), set inside the region."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import dynamo_capture

Q = torch.randn(1, 2, 4, 8)
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, operators read them as they run")


def attention(x):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x, x, x)


def several(x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        y = F.scaled_dot_product_attention(x, x, x)
        inside = torch.backends.cuda.mem_efficient_sdp_enabled()
    return y, inside, torch.backends.cuda.mem_efficient_sdp_enabled()


def left_on(x):
    torch.backends.cuda.enable_flash_sdp(False)
    return F.scaled_dot_product_attention(x, x, x), torch.backends.cuda.flash_sdp_enabled()


def put_back(x):
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    y = F.scaled_dot_product_attention(x, x, x)
    torch.backends.cuda.enable_flash_sdp(before)
    return y, before


def chosen(x, kernel):
    with sdpa_kernel(kernel):
        return F.scaled_dot_product_attention(x, x, x), torch.backends.cuda.flash_sdp_enabled()


def cudnn(x):
    with torch.backends.cudnn.flags(enabled=False):
        y = F.conv1d(x[0], torch.ones(2, 4, 3))
        inside = torch.backends.cudnn.enabled
    return y, inside, torch.backends.cudnn.enabled


def flags():
    c = torch._C
    return c._get_flash_sdp_enabled(), c._get_math_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_cudnn_enabled()


@pytest.fixture(autouse=True)
def _as_they_were():
    before = flags()
    yield
    torch.backends.cuda.enable_flash_sdp(True)
    assert flags() == before


def same(a, b):
    if isinstance(a, tuple):
        return all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("fn", [attention, several, left_on, put_back, pytest.param(cudnn, marks=NO_GPU)])
def test_one_graph(fn, capture):
    compiled = capture(fn, fullgraph=True)
    for flash in (True, False, True):  # as others have set it between the calls
        torch.backends.cuda.enable_flash_sdp(flash)
        wanted, after = fn(Q), flags()
        torch.backends.cuda.enable_flash_sdp(flash)
        assert same(compiled(Q), wanted) and flags() == after
    assert not compiled.report.breaks
    settings = [n for gm in compiled.graphs for n in gm.graph.nodes if "_set_" in str(n.target)]
    assert bool(settings) == (fn is not cudnn)


def test_a_kernel_that_is_an_argument(capture):
    compiled = capture(chosen, fullgraph=True)
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        assert same(compiled(Q, kernel), chosen(Q, kernel))
    assert len(compiled.graphs) == 2


def test_around_a_break(capture):
    def fn(x):
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(x, x, x)
            dynamo_capture.graph_break()
            inside = flags()
            y = y + F.scaled_dot_product_attention(y, y, y)
        return y, inside, flags()

    compiled = capture(fn)
    assert same(compiled(Q), fn(Q)) and same(compiled(Q), fn(Q))


def test_an_error_inside(capture):
    def fn(x):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x[..., :3])[torch.tensor([7])]

    compiled = capture(fn, strict=False)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(Q)
        assert flags()[0]
