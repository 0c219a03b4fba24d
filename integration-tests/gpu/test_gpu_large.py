"""Tensors of more than 2**31 elements: positions in generated kernels are 64-bit where they must be."""

from __future__ import annotations

import gc

import pytest
import torch
from on_gpu import DEVICE, all_generated

import compile_api

ROWS, COLUMNS = 524_299, 4099  # 2**31 elements and a little more, neither a multiple of a block


def needs(gib):
    if not torch.cuda.is_available():
        return pytest.mark.skip(reason="PyTorch finds no CUDA device")
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    return pytest.mark.skipif(total < gib << 30, reason=f"needs a GPU with {gib} GiB")


@pytest.fixture(autouse=True)
def _tidy():
    with torch.no_grad():
        yield
    gc.collect()
    torch.cuda.empty_cache()


def ramp(rows=ROWS, columns=COLUMNS):
    """Values that tell a wrong position: small ones that differ from row to row and from column to column."""
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device=DEVICE)
    x.copy_((torch.arange(columns, device=DEVICE) % 61).to(torch.bfloat16)[None] / 64)
    x += ((torch.arange(rows, device=DEVICE) % 53).to(torch.bfloat16) / 32)[:, None]
    return x


def compiled_once(function, **kw):
    return compile_api.compile(function, fullgraph=True, **kw)


FUNCTIONS = {
    "pointwise": lambda x: x * 2 + 1,
    "row_sum": lambda x: x.float().sum(-1),
    "column_max": lambda x: x.amax(0),
    "total": lambda x: x.float().sum(),
    "softmax": lambda x: x.softmax(-1),
    "transposed": lambda x: (x + 1).t().contiguous(),
    "argmax": lambda x: x.view(-1).argmax(),
}


@needs(60)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_beyond_31_bits(name):
    function = FUNCTIONS[name]
    x = ramp()
    if name == "argmax":
        x[-1, -7] = 100.0
    compiled = compiled_once(function)
    ours = compiled(x)
    theirs = function(x)
    if name in ("row_sum", "total"):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=0)
    elif name == "softmax":
        for rows in (slice(0, 1000), slice(-1000, None)):
            torch.testing.assert_close(ours[rows], theirs[rows], rtol=2e-2, atol=1e-6)
        assert float((ours.float().sum(-1) - 1).abs().max()) < 0.02
    else:
        assert torch.equal(ours, theirs)
    all_generated(compiled.report(), graphs=1)


@needs(60)
def test_gather_and_scatter_at_far_rows():
    x = ramp()
    index = torch.tensor([0, 5, ROWS - 1, ROWS - 2, 300_000], device=DEVICE)

    def take(x, index):
        return x[index] + 1, x.index_select(0, index.int()) * 2

    compiled = compiled_once(take)
    for ours, theirs in zip(compiled(x, index), take(x, index), strict=True):
        assert torch.equal(ours, theirs)

    def put(x, index):
        return x.index_add(0, index, torch.ones(5, COLUMNS, dtype=x.dtype, device=x.device))

    ours = compiled_once(put)(x, index)
    theirs = put(x, index)
    assert torch.equal(ours[index], theirs[index])
    assert torch.equal(ours[:1000], theirs[:1000]) and torch.equal(ours[-1000:], theirs[-1000:])


@needs(60)
@pytest.mark.parametrize("dynamic", [None, True])
def test_growing_beyond_31_bits(dynamic):
    """Kernels compiled for small symbolic sizes are not used for large ones."""

    def function(x):
        return x * 2 + 1, x.float().sum(-1)

    compiled = compiled_once(function, dynamic=dynamic)
    for rows in (100, 200, 300, ROWS, 400, ROWS + 1):
        x = ramp(rows)
        ours, theirs = compiled(x), function(x)
        assert torch.equal(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=0)
        del ours, theirs, x
    all_generated(compiled.report())


@needs(60)
@pytest.mark.parametrize("mode", [None, "max-autotune-no-cudagraphs"])
def test_product_with_its_reader(mode):
    """The rows of a matrix product beyond 2**31 elements, by the library or by a template."""

    def function(x, w):
        return (x @ w).relu() * 2

    x, w = ramp(), torch.randn(COLUMNS, 48, dtype=torch.bfloat16, device=DEVICE) / 64
    compiled = compiled_once(function, mode=mode)
    ours, theirs = compiled(x, w), function(x, w)
    for rows in (slice(0, 500), slice(-500, None)):
        torch.testing.assert_close(ours[rows], theirs[rows], rtol=3e-2, atol=3e-2)
    all_generated(compiled.report(), graphs=1)


@needs(60)
def test_gradients_beyond_31_bits():
    with torch.enable_grad():
        x = ramp().requires_grad_()
        weight = torch.randn(COLUMNS, dtype=torch.bfloat16, device=DEVICE)

        def function(x):
            return (x.sin() * weight).float().sum()

        compiled = compiled_once(function)
        (ours,) = torch.autograd.grad(compiled(x), x)
        for rows in (slice(0, 500), slice(-500, None)):
            part = x[rows].detach().requires_grad_()
            (theirs,) = torch.autograd.grad(function(part), part)
            torch.testing.assert_close(ours[rows], theirs, rtol=2e-2, atol=2e-2)
        all_generated(compiled.report(), graphs=1)
