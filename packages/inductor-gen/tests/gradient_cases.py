"""Gradients of reads whose places are known when compiled, for both languages of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prims import decomp

__all__ = ["CASES", "normalized", "scatters"]


def _case(name: str, shape: tuple[int, ...], *args: Any, like: tuple[int, ...] | None = None) -> Any:
    """A decomposition of a gradient of ``shape``; ``like``: of an input that it takes for its shape alone."""
    fn = decomp.by_name(f"aten.{name}.default")
    inputs = (shape,) if like is None else (shape, like)
    return lambda p, *given: fn(p, *given, *args), inputs


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": _case("upsample_linear1d_backward", (2, 3, 23), [23], [2, 3, 9], False),
    "bilinear": _case("upsample_bilinear2d_backward", (2, 3, 16, 18), [16, 18], [2, 3, 8, 9], False, 2.0, 2.0),
    "bilinear with corners": _case("upsample_bilinear2d_backward", (2, 3, 17, 9), [17, 9], [2, 3, 5, 14], True),
    "bicubic": _case("upsample_bicubic2d_backward", (1, 2, 11, 7), [11, 7], [1, 2, 6, 5], False),
    "trilinear": _case("upsample_trilinear3d_backward", (1, 2, 6, 3, 10), [6, 3, 10], [1, 2, 3, 5, 5], False),
    "nearest": _case("upsample_nearest2d_backward", (2, 3, 11, 6), [11, 6], [2, 3, 7, 9]),
    "nearest, doubled": _case("upsample_nearest2d_backward", (2, 3, 14, 18), [14, 18], [2, 3, 7, 9]),
    "exact nearest": _case("_upsample_nearest_exact2d_backward", (2, 3, 11, 6), [11, 6], [2, 3, 7, 9]),
    "reflection": _case("reflection_pad2d_backward", (2, 3, 12, 13), [1, 2, 3, 4], like=(2, 3, 5, 10)),
    "reflection, 3d": _case("reflection_pad3d_backward", (2, 6, 7, 8), [1] * 6, like=(2, 4, 5, 6)),
    "replication": _case("replication_pad2d_backward", (2, 3, 12, 23), [12, 1, 3, 4], like=(2, 3, 5, 10)),
    "adaptive pooling": _case("_adaptive_avg_pool2d_backward", (2, 3, 5, 7), like=(2, 3, 13, 17)),
    "windows": _case("unfold_backward", (4, 5, 3, 7), [4, 19, 3], 1, 7, 3),
}


def normalized(dim: int) -> Callable[..., Any]:
    """The gradient of a matrix divided by its norms along ``dim``, of the matrix and of what comes in."""

    def fn(p: Any, x: Any, g: Any) -> Any:
        rows = lambda v: p.broadcast(v, x.shape, (1 - dim,))
        norm = p.sqrt(p.sum(p.mul(x, x), (dim,)))
        below = p.maximum(norm, 1e-12)
        y = p.div(x, rows(below))
        moved = p.sum(p.mul(p.neg(g), p.div(y, rows(below))), (dim,))
        moved = p.where(p.ge(norm, 1e-12), moved, 0.0)
        along = p.where(rows(p.eq(norm, 0.0)), 0.0, p.div(x, rows(norm)))
        return p.add(p.div(g, rows(below)), p.mul(rows(moved), along))

    return fn


def scatters(compiled: Any) -> list[str]:
    """The kernels of a compiled graph that write to places that are computed."""
    return [k.name for k in compiled.kernels if any(op in ("index_put", "scatter") for op in k.ops)]


def inputs_of(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Random inputs."""
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype) for s in shapes]
