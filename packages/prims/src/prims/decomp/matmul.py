"""Matrix products in terms of `dot`, and of one another where a backend claims the simpler ones."""

from __future__ import annotations

from typing import Any

import torch

from prims.decomp.common import (
    REDUCED,
    Value,
    broadcast_shapes,
    expand,
    number,
    opmath,
    prod,
    to_dtype,
    unsupported,
)
from prims.decomp.elementwise import add, mul
from prims.decomp.registry import call, decomposition
from prims.decomp.views import reshaped, swapped


def _dot(p: Any, x: Value, y: Value) -> Value:
    if x.dtype != y.dtype:
        raise TypeError(f"matrix product of {x.dtype} and {y.dtype}")
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise unsupported(f"matrix product of {x.dtype}")
    return p.dot(x, y)


@decomposition("aten.mm.default")
def mm(p: Any, self: Value, mat2: Value) -> Value:
    """[m, k] @ [k, n]"""
    return _dot(p, self, mat2)


@decomposition("aten.bmm.default")
def bmm(p: Any, self: Value, mat2: Value) -> Value:
    """[b, m, k] @ [b, k, n]"""
    return _dot(p, self, mat2)


def _plus(p: Any, bias: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * bias + alpha * product, in float32 for reduced precision; beta 0 ignores the bias."""
    dtype = product.dtype
    compute = opmath(dtype)
    out = to_dtype(p, product, compute)
    if alpha != 1:
        out = p.mul(out, number(alpha, compute))
    if beta != 0:
        b = expand(p, to_dtype(p, bias, compute), out.shape)
        out = p.add(out, b if beta == 1 else p.mul(b, number(beta, compute)))
    return to_dtype(p, out, dtype)


def _product(p: Any, name: str, x: Value, y: Value) -> Value:
    """A product whose sum with a bias is rounded once: unclaimed reduced precision widens its inputs."""
    if name not in p.claims and x.dtype in REDUCED:
        return p.dot(to_dtype(p, x, torch.float32), to_dtype(p, y, torch.float32))
    return call(p, name, x, y)


@decomposition("aten.addmm.default")
def addmm(p: Any, self: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * mat1 @ mat2"""
    return to_dtype(p, _plus(p, self, _product(p, "aten.mm.default", mat1, mat2), beta, alpha), mat1.dtype)


@decomposition("aten.baddbmm.default")
def baddbmm(p: Any, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * batch1 @ batch2"""
    product = _product(p, "aten.bmm.default", batch1, batch2)
    return to_dtype(p, _plus(p, self, product, beta, alpha), batch1.dtype)


@decomposition("aten.addbmm.default")
def addbmm(p: Any, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * sum over the batch of batch1 @ batch2, as one long product."""
    b, m, k = batch1.shape
    n = batch2.shape[2]
    left = p.reshape(p.permute(batch1, (1, 0, 2)), (m, b * k))
    return addmm(p, self, left, p.reshape(batch2, (b * k, n)), beta=beta, alpha=alpha)


def _columns(p: Any, v: Value) -> Value:
    return p.reshape(v, (v.shape[0], 1))


@decomposition("aten.mv.default")
def mv(p: Any, self: Value, vec: Value) -> Value:
    """[m, k] @ [k]"""
    return p.reshape(call(p, "aten.mm.default", self, _columns(p, vec)), (self.shape[0],))


@decomposition("aten.addmv.default")
def addmv(p: Any, self: Value, mat: Value, vec: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * mat @ vec"""
    product = p.reshape(_product(p, "aten.mm.default", mat, _columns(p, vec)), (mat.shape[0],))
    return to_dtype(p, _plus(p, self, product, beta, alpha), mat.dtype)


@decomposition("aten.dot.default", "aten.vdot.default")
def dot(p: Any, self: Value, tensor: Value) -> Value:
    """[k] . [k]"""
    compute = opmath(self.dtype)
    x, y = to_dtype(p, self, compute), to_dtype(p, tensor, compute)
    return to_dtype(p, p.sum(mul(p, x, y), (0,)), self.dtype)


@decomposition("aten.addr.default")
def addr(p: Any, self: Value, vec1: Value, vec2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * outer(vec1, vec2)"""
    shape = (vec1.shape[0], vec2.shape[0])
    dtype = torch.promote_types(self.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    if dtype == torch.bool:
        raise unsupported("addr of bool tensors")
    if not dtype.is_floating_point and (isinstance(beta, float) or isinstance(alpha, float)):
        raise unsupported("addr of integers and a factor that is none")
    compute = opmath(dtype)
    a = p.broadcast(to_dtype(p, vec1, compute), shape, (0,))
    b = p.broadcast(to_dtype(p, vec2, compute), shape, (1,))
    return to_dtype(p, _plus(p, self, p.mul(a, b), beta, alpha), dtype)


# ---- products of any rank -------------------------------------------------------------------------------


@decomposition("aten.matmul.default")
def matmul(p: Any, self: Value, other: Value) -> Value:
    """torch.matmul: vectors, matrices and broadcast batches."""
    if self.ndim == 1 and other.ndim == 1:
        return dot(p, self, other)
    if self.ndim == 1:
        out = matmul(p, p.reshape(self, (1, self.shape[0])), other)
        return p.reshape(out, (*out.shape[:-2], out.shape[-1]))
    if other.ndim == 1:
        out = matmul(p, self, _columns(p, other))
        return p.reshape(out, tuple(out.shape[:-1]))
    m, k, n = self.shape[-2], self.shape[-1], other.shape[-1]
    if other.ndim == 2:
        rows = reshaped(p, self, (prod(self.shape[:-1]), k))
        return reshaped(p, call(p, "aten.mm.default", rows, other), (*self.shape[:-1], n))
    batch = broadcast_shapes(self.shape[:-2], other.shape[:-2])
    b = prod(batch)
    left = reshaped(p, expand(p, self, (*batch, m, k)), (b, m, k))
    right = reshaped(p, expand(p, other, (*batch, k, n)), (b, k, n))
    return reshaped(p, call(p, "aten.bmm.default", left, right), (*batch, m, n))


@decomposition("aten.linear.default")
def linear(p: Any, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weight.T + bias"""
    right = swapped(p, weight, 0, 1) if weight.ndim == 2 else weight
    if bias is None or weight.ndim != 2 or input.ndim == 1:
        out = matmul(p, input, right)
        return out if bias is None else add(p, out, bias)
    rows = reshaped(p, input, (prod(input.shape[:-1]), input.shape[-1]))
    out = call(p, "aten.addmm.default", bias, rows, right)
    return reshaped(p, out, (*input.shape[:-1], weight.shape[0]))
