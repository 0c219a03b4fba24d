"""Matrix products of a graph, and how the kernel that reads one lies over its rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from inductor_gen.fuse.cluster import Cluster
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.build import Builder
from inductor_gen.layout.record import Layout, Prepared, ViewRef
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, coefficient, contiguous_strides, product
from prims.dtypes import HALVES
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Fit", "Product", "Split", "fit", "laid_over", "plain_body", "product_of", "read_at", "store_product"]

#: Operators that are products, and the position of their left factor; an operand before it is added.
_FACTORS = {
    "aten.mm.default": 0, "aten.bmm.default": 0, "dot": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1,
}  # fmt: skip
_DTYPES = (torch.float32, *HALVES)


@record
class Product:
    """``alpha * a @ b + beta * bias``: ``a`` is ``[*batch, m, k]``, ``b`` ``[*batch, k, n]``, ``bias`` broadcasts."""

    node: Node
    batch: tuple[Expr, ...]
    m: Expr
    n: Expr
    k: Expr
    a: ViewRef
    b: ViewRef
    bias: ViewRef | None
    alpha: float
    beta: float


def product_of(node: Node, prepared: Prepared, layouts: Mapping[Node, Layout]) -> Product | None:
    """The product that an operator computes; None where it is none that a template can compute."""
    first = _FACTORS.get(node.op)
    if first is None or node.dtype not in _DTYPES or not node.shape:
        return None
    args, kwargs = prepared.externs[node]
    if len(args) != first + 2 or set(kwargs) - {"alpha", "beta"} or len(node.shape) < 2:
        return None
    alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
    if not all(isinstance(x, (int, float)) for x in (alpha, beta)):
        return None
    operands = list(args)
    if not all(isinstance(x, ViewRef) and x.base.dtype == node.dtype for x in operands):
        return None
    if any(x.base.device != node.device for x in operands):
        return None
    a, b = operands[first], operands[first + 1]
    bias = operands[0] if first and beta != 0 else None
    *batch, m, n = node.shape
    k = a.shape[-1]
    if len(a.shape) != len(node.shape) or len(b.shape) != len(node.shape) or any(s is ZERO for s in (*node.shape, k)):
        return None
    layout = layouts.get(node)
    if layout is None or layout.strides != contiguous_strides(node.shape):
        return None
    return Product(node, tuple(batch), m, n, k, a, b, bias, float(alpha), float(beta))


@record
class Fit:
    """A body's loop variables as the product's batch, rows and columns, outermost first."""

    batch: list[Expr]
    rows: list[Expr]
    columns: list[Expr]


@record
class Split:
    """A loop variable to be split, its inner part of this size, before the body can fit."""

    variable: Expr
    inner: Expr


def fit(body: Body, p: Product) -> Fit | Split | None:
    """How a pointwise body that reads the product lies over it: it must read each element once, under no condition."""
    reads = [v for v in body.vals if v.op == "load" and v.attr is p.node]
    at = reads[0].at if reads else None
    if at is None or body.inner or any(v.at is not at or v.args for v in reads):
        return None
    strides: dict[Expr, Expr] = {}
    total = ZERO
    for v in body.space:
        stride = coefficient(at, v)
        if stride is None or stride is ZERO:
            return None
        strides[v] = stride
        total = ex.add(total, ex.mul(stride, v))
    if total is not at:
        return None
    step = ONE
    groups: list[list[Expr]] = []
    for extent in (p.n, p.m, product(p.batch)):
        group: list[Expr] = []
        seen = ONE
        while seen is not extent:
            found = [v for v, stride in strides.items() if stride is step]
            if not found:
                return None
            v = found[0]
            size = body.space[v]
            rest = ex.floordiv(extent, seen)
            if ex.mul(rest, seen) is extent and size is not rest:
                over = ex.floordiv(size, rest)
                if ex.mul(over, rest) is size and over is not ONE:
                    return Split(v, rest)
            del strides[v]
            group.insert(0, v)
            seen, step = ex.mul(seen, size), ex.mul(step, size)
            if len(group) > 16:
                return None
        groups.append(group)
    columns, rows, batch = groups
    return None if strides else Fit(batch, rows, columns)


def laid_over(
    builder: Builder, cluster: Cluster, place: Callable[[Body], Fit | Split | None]
) -> tuple[Body, Fit] | None:
    """A fresh body of a cluster and how it lies, its loops split where that lets it; None where it lies in no way."""
    cluster = cluster.copy()
    for _ in range(6):
        body, cluster = builder.traced(cluster)
        found = place(body)
        if isinstance(found, Fit):
            return body, found
        if found is None or not builder.fusion.split(cluster, found.variable, found.inner):
            break
    return None


def plain_body(p: Product, variables: list[Expr]) -> tuple[Body, Fit]:
    """The body that only stores the product; ``variables`` are fresh, one per dimension."""
    index = tuple(ZERO if extent is ONE else v for v, extent in zip(variables, p.node.shape, strict=True))
    space = {v: extent for v, extent in zip(variables, p.node.shape, strict=True) if extent is not ONE}
    body = Body(list(space), [], space)
    body.nodes = []
    store_product(body, p, Layout(contiguous_strides(p.node.shape)).position(index))
    body.refresh()
    batch = [v for v in variables[:-2] if v in space]
    rows, columns = ([v] if v in space else [] for v in variables[-2:])
    return body, Fit(batch, rows, columns)


def store_product(body: Body, p: Product, at: Expr) -> None:
    """Let the body also store the product itself."""
    found = next((v for v in body.vals if v.op == "load" and v.attr is p.node), None)
    if found is None:
        found = Val("load", (), p.node.dtype, p.node, at)  # type: ignore[arg-type]
        found.id = max((v.id for v in body.vals), default=-1) + 1
        body.vals.append(found)
    body.stores.append(Store(p.node, at, found))


def read_at(body: Body, p: Product) -> Expr:
    """The position at which a fitting body reads the product."""
    at = next(v.at for v in body.vals if v.op == "load" and v.attr is p.node)
    assert at is not None
    return at
