"""Shapes and strides of operators on batches of matrices, against eager's, where one operand's batch is broadcast."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils._pytree import tree_leaves

from prims.spec import AbstractMode, SymbolContext, abstract

BATCHES = [(), (1,), (2,), (3, 1), (1, 2), (3, 2)]
SIZES = [(3, 3, 2), (4, 3, 2), (3, 5, 2), (3, 3, 1)]


def _triangular(x):
    return x.tril() + 4 * torch.eye(x.shape[-1])


#: Each takes matrices (m, n) and (m, k) with batches of their own.
CASES = {
    **{f"lstsq {driver}": lambda a, b, driver=driver: torch.linalg.lstsq(a, b, driver=driver)
       for driver in ("gels", "gelsy", "gelsd", "gelss")},
    "lstsq of vectors": lambda a, b: torch.linalg.lstsq(a, a[..., 0]),
    "solve": lambda a, b: torch.linalg.solve(_triangular(a), b),
    "solve_ex": lambda a, b: torch.linalg.solve_ex(_triangular(a), b),
    "solve from the right": lambda a, b: torch.linalg.solve(_triangular(a), b.mT, left=False),
    "solve_triangular": lambda a, b: torch.linalg.solve_triangular(_triangular(a), b, upper=False),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, _triangular(a), upper=False),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, _triangular(a)),
    "lu_solve": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(_triangular(a)), b),
    "matmul": lambda a, b: a.mT @ b,
    "svdvals": lambda a, b: torch.linalg.svdvals(a),
    "svd": lambda a, b: torch.linalg.svd(a, full_matrices=False),
    "svd in full": lambda a, b: torch.linalg.svd(a),
    "qr": lambda a, b: torch.linalg.qr(a),
    "pinv": lambda a, b: torch.linalg.pinv(a),
    "lu": lambda a, b: torch.linalg.lu(a),
    "eigh": lambda a, b: torch.linalg.eigh(a @ a.mT),
    "inv": lambda a, b: torch.linalg.inv(_triangular(a)),
    "det": lambda a, b: torch.linalg.det(_triangular(a)),
    "cholesky_ex": lambda a, b: torch.linalg.cholesky_ex(a @ a.mT + torch.eye(a.shape[-2])),
    "eigvalsh": lambda a, b: torch.linalg.eigvalsh(a @ a.mT),
    "lu_factor": lambda a, b: torch.linalg.lu_factor(a),
    "ldl": lambda a, b: torch.linalg.ldl_factor_ex(a @ a.mT),
    "solve of vectors": lambda a, b: torch.linalg.solve(_triangular(a), a[..., 0]),
    "slogdet": lambda a, b: torch.linalg.slogdet(_triangular(a)),
    "matrix_rank": lambda a, b: torch.linalg.matrix_rank(a),
    "cdist": lambda a, b: torch.cdist(a.mT, b.mT),
    "dist": lambda a, b: torch.dist(a[..., :1, :1], b[..., :1, :1]),
    "vecdot": lambda a, b: torch.linalg.vecdot(a[..., :1], b[..., :1]),
    "cross": lambda a, b: torch.linalg.cross(a[..., :3, :1], b[..., :3, :1], dim=-2),
}  # fmt: skip


def _facts(results):
    return [
        (tuple(t.shape), tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1), t.dtype)
        for t in tree_leaves(results)
    ]


@pytest.mark.parametrize("name", CASES)
def test_batches(name):
    compared = 0
    for (m, n, k), first, second in itertools.product(SIZES, BATCHES, BATCHES):
        a, b = torch.rand(*first, m, n), torch.rand(*second, m, k)
        try:
            expected = CASES[name](a, b)
        except RuntimeError:
            continue  # eager refuses the sizes
        with AbstractMode():
            found = CASES[name](abstract(a), abstract(b))
        assert _facts(found) == _facts(expected), (a.shape, b.shape)
        compared += 1
    assert compared >= 20


#: What PyTorch decomposes in C++ by plain sizes.
FIXED = {"matrix_rank", "cdist", "dist", "vecdot", "lstsq gels", "lstsq gelsy", "lstsq gelsd", "lstsq gelss"}


@pytest.mark.parametrize("name", CASES)
def test_batches_of_a_number_that_is_a_symbol(name):
    """The same where it is a symbol, which stays one."""
    compared = 0
    for (m, n, k), first, second in itertools.product(SIZES, BATCHES, BATCHES):
        if not any(size > 1 for size in first):
            continue
        a, b = torch.rand(*first, m, n), torch.rand(*second, m, k)
        try:
            expected = CASES[name](a, b)
        except RuntimeError:
            continue
        context = SymbolContext()
        given = [
            abstract(x, context, [d for d in range(x.ndim - 2) if x.shape[d] > 1], source)
            for x, source in ((a, "a"), (b, "b"))
        ]
        with AbstractMode():
            found = CASES[name](*given)
        hints = context.hints()
        rows = [
            (tuple(_value(s, hints) for s in t.spec.shape), tuple(_value(s, hints) for s in t.spec.strides), t.dtype)
            for t in tree_leaves(found)
        ]
        rows = [
            (shape, tuple(s for size, s in zip(shape, strides, strict=True) if size > 1), dtype)
            for shape, strides, dtype in rows
        ]
        assert rows == _facts(expected), (a.shape, b.shape)
        sizes = [size for x in given for size in x.spec.shape if not isinstance(size, int)]
        fixed = [size for size in sizes if context.simplify(size.expr).is_const]
        assert name in FIXED or not fixed, (a.shape, b.shape, [str(guard.expr) for guard in context.guards])
        compared += 1
    assert compared >= 10


def _value(size, hints):
    return size if isinstance(size, int) else int(size.expr.evaluate(hints))
