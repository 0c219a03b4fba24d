"""Maximum pooling in generated kernels, values, places and gradients; run under TRITON_INTERPRET=1 (or on a GPU) by
test_triton_kernels.py."""

from __future__ import annotations

import os

import pytest
import torch
from gen_support import build

import inductor_gen
from prims import decomp
from prims.options import Options

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LANGUAGES = ("c", "triton") if DEVICE == "cpu" else ("triton",)
aten = torch.ops.aten

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="PyTorch finds no CUDA device; TRITON_INTERPRET is not 1"
)

#: Shape, kernel, stride, padding, dilation, ceil_mode.
WINDOWS = {
    "a ResNet's": ((2, 3, 13, 14), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "tiles": ((2, 3, 9, 10), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "overhanging": ((2, 3, 9, 10), [2, 3], [2, 2], [0, 1], [1, 1], True),
    "with gaps": ((2, 3, 9, 10), [2, 2], [3, 4], [0, 0], [1, 1], False),
    "dilated": ((1, 2, 12, 11), [3, 2], [1, 2], [1, 1], [2, 3], True),
    "one step apart": ((1, 2, 7, 6), [3, 3], [1, 1], [1, 1], [1, 1], False),
    "of a line": ((2, 3, 1, 17), [1, 5], [1, 3], [0, 2], [1, 1], False),
    "no batch": ((3, 8, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "volumes": ((1, 2, 7, 6, 5), [3, 2, 2], [2, 2, 1], [1, 0, 1], [1, 1, 1], True),
}


def compiled(fn, inputs, language):
    env = build(fn, inputs, claims=inductor_gen.claims(DEVICE))
    return inductor_gen.compile_graph(env, options=Options(verify="every_pass"), triton=language == "triton")


def operand(shape, dtype):
    """Few numbers, so that many are equal, the least there is all over a plane, and others that compare oddly."""
    torch.manual_seed(0)
    x = torch.randint(-3, 4, shape).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[5], x.view(-1)[-1], x[0, 0] = float("nan"), float("inf"), float("-inf")
        x.view(-1)[shape[-1] + 3] = float("nan")
    else:
        x[0, 0] = torch.iinfo(dtype).min
    return x.to(DEVICE)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", WINDOWS)
def test_maxima_and_their_places(name, dtype, language):
    shape, *geometry = WINDOWS[name]
    n = len(geometry[0])
    if n == 3 and not dtype.is_floating_point:
        return  # eager has none
    op = f"max_pool{n}d_with_indices"
    x = operand(shape, dtype)
    judge = x if dtype.is_floating_point else x.cpu()  # on a GPU eager has no maxima of integers
    values, places = (t.to(DEVICE) for t in getattr(aten, op)(judge, *geometry))
    fn = decomp.by_name(f"aten.{op}.default")
    got, where = compiled(lambda p, a: fn(p, a, *geometry), [x], language)(x)
    assert got.dtype == dtype and where.dtype == torch.int64
    torch.testing.assert_close(got, values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(where, places)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WINDOWS)
def test_gradients_of_maxima(name, dtype, language):
    shape, *geometry = WINDOWS[name]
    op = f"max_pool{len(geometry[0])}d_with_indices"
    x = operand(shape, dtype)
    values, places = getattr(aten, op)(x, *geometry)
    grad = torch.randn_like(values)
    fn = decomp.by_name(f"aten.{op}_backward.default")
    graph = compiled(lambda p, g, a, i: fn(p, g, a, *geometry, i), [grad, x, places], language)
    assert len(graph.kernels) == 1 and not graph.externs and "scatter" not in graph.kernels[0].ops
    want = getattr(aten, f"{op}_backward")(grad.double(), x.double(), *geometry, places).to(dtype)
    limit = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(graph(grad, x, places)[0], want, rtol=limit, atol=limit)
