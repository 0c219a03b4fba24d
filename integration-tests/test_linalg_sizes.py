"""Linear algebra over matrices whose sizes change: one graph for all of them, results laid out as eager's."""

from __future__ import annotations

import pytest
import torch

import compile_api

L = torch.linalg


def definite(a):
    return a @ a.transpose(-2, -1) + torch.eye(a.shape[-1], dtype=a.dtype)


SQUARE = {
    "cholesky": lambda a: L.cholesky(definite(a)), "inv": lambda a: L.inv(definite(a)), "det": lambda a: L.det(a),
    "slogdet": lambda a: L.slogdet(definite(a))[1], "logdet": lambda a: torch.logdet(definite(a)),
    "eigh": lambda a: L.eigh(definite(a))[0], "eigvalsh": lambda a: L.eigvalsh(definite(a)),
    "solve": lambda a: L.solve(definite(a), a), "solve a vector": lambda a: L.solve(definite(a), a[..., 0]),
    "cholesky_solve": lambda a: torch.cholesky_solve(a, L.cholesky(definite(a))),
    "solve_triangular": lambda a: L.solve_triangular(definite(a).tril(), a, upper=False),
    "lu": lambda a: L.lu(definite(a))[1:], "lu_factor": lambda a: L.lu_factor(definite(a))[0],
    "lu_solve": lambda a: L.lu_solve(*L.lu_factor(definite(a)), a), "qr": lambda a: L.qr(definite(a)),
    "svdvals": lambda a: L.svdvals(a), "pinv": lambda a: L.pinv(definite(a)), "matrix_exp": lambda a: L.matrix_exp(a * 0.1),
    "matrix_power": lambda a: L.matrix_power(a, 3), "cholesky_inverse": lambda a: torch.cholesky_inverse(L.cholesky(definite(a))),
    "norm": lambda a: L.matrix_norm(a, 2), "cond": lambda a: L.cond(definite(a)), "inv_ex": lambda a: L.inv_ex(definite(a))[0],
    "a likelihood": lambda a: -0.5 * (a[..., 0] * torch.cholesky_solve(a[..., :1], L.cholesky(definite(a)))[..., 0]).sum()
    - L.cholesky(definite(a)).diagonal(dim1=-2, dim2=-1).log().sum(),
}  # fmt: skip
OBLONG = {
    "qr": lambda a: L.qr(a), "complete qr": lambda a: L.qr(a, mode="complete")[0].abs(), "r of qr": lambda a: L.qr(a, mode="r")[1],
    "svdvals": lambda a: L.svdvals(a), "svd": lambda a: L.svd(a, full_matrices=False)[1],
    "whole svd": lambda a: [each.abs() for each in L.svd(a, full_matrices=True)], "lu": lambda a: L.lu(a)[1:],
    "pinv": lambda a: L.pinv(a), "rank": lambda a: L.matrix_rank(a), "lstsq": lambda a: L.lstsq(a, a[..., :2]).solution,
    "nuclear": lambda a: L.matrix_norm(a, "nuc"),
}  # fmt: skip
#: No gradient, or none that PyTorch knows for such sizes.
WITHOUT = {"complete qr", "r of qr", "whole svd", "rank", "lu", "pinv", "lstsq", "eigvalsh"}


def compare(run, compiled, shape, gradients):
    generator = torch.Generator().manual_seed(sum(shape))
    a = torch.randn(*shape, dtype=torch.float64, generator=generator)
    found = []
    for each in (run, compiled):
        given = a.clone().requires_grad_(gradients)
        results = each(given)
        results = results if isinstance(results, (tuple, list)) else (results,)
        rows = list(results)
        if gradients:
            loss = sum(x.square().sum() for x in results if x.requires_grad)
            rows += torch.autograd.grad(loss, given)
        found.append(rows)
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)
        assert got.numel() < 2 or got.stride() == wanted.stride()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices_of_any_size(name, gradients):
    compiled = compile_api.compile(SQUARE[name])
    fixed = 5 if name == "norm" else 0  # whose composite in C++ asks for the number of singular values
    for shape in ((5, 5), (4, 4), (7, 7), (3, 3), (9, 9), (11, 11)):
        compare(SQUARE[name], compiled, shape, gradients)
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) <= 1 + fixed
    for shape in ((2, 5, 5), (3, 4, 4), (4, 7, 7), (5, 3, 3)):
        compare(SQUARE[name], compiled, shape, gradients)
    assert fixed or (compiled.report().verdict == "compiled" and len(compiled.report().recompiles) <= 3)


@pytest.mark.parametrize("name", OBLONG)
@pytest.mark.parametrize("gradients", [False, True])
def test_oblong_matrices_of_any_size(name, gradients):
    if gradients and name in WITHOUT:
        gradients = False
    compiled = compile_api.compile(OBLONG[name])
    for shape in ((5, 3), (6, 4), (7, 2), (9, 5), (3, 5), (4, 7), (2, 6), (8, 8), (5, 5), (2, 4, 3), (3, 5, 9), (4, 6, 6)):
        compare(OBLONG[name], compiled, shape, gradients)
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) <= 8
