"""Calls that eager refuses for their operands' sizes raise when compiled, used or not, where sizes are symbolic.

A graph is made for two good sizes first; the third is refused by eager. Each row lists the operands' sizes in the three
calls: tuples are of numbers, lists of indices, which are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import compile_api

REFUSED = (RuntimeError, IndexError, ValueError)
Row = tuple[Callable[..., Any], list[Any], list[Any], list[Any]]


def pad(mode: str, *sizes: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: F.pad(x, sizes, mode=mode)


ROWS: dict[str, Row] = {
    # products
    "mm": (torch.mm, [(4, 3), (3, 5)], [(5, 4), (4, 6)], [(5, 4), (5, 6)]),
    "addmm": (torch.addmm, [(4, 3), (4, 2), (2, 3)], [(5, 3), (5, 2), (2, 3)], [(2, 3), (1, 2), (2, 3)]),
    "addmv": (torch.addmv, [(4,), (4, 6), (6,)], [(5,), (5, 7), (7,)], [(5,), (1, 7), (7,)]),
    "addbmm": (torch.addbmm, [(4, 3), (2, 4, 2), (2, 2, 3)], [(5, 3), (2, 5, 2), (2, 2, 3)], [(5, 3), (2, 1, 2), (2, 2, 3)]),
    "baddbmm": (
        torch.baddbmm,
        [(2, 4, 3), (2, 4, 2), (2, 2, 3)],
        [(2, 5, 3), (2, 5, 2), (2, 2, 3)],
        [(2, 5, 3), (2, 1, 2), (2, 2, 3)],
    ),
    "addr": (torch.addr, [(4, 3), (4,), (3,)], [(5, 3), (5,), (3,)], [(5, 3), (1,), (3,)]),
    "bilinear": (F.bilinear, [(4, 2), (4, 3), (5, 2, 3)], [(6, 2), (6, 3), (5, 2, 3)], [(6, 2), (5, 3), (5, 2, 3)]),
    "cdist": (torch.cdist, [(4, 3), (5, 3)], [(5, 4), (6, 4)], [(5, 4), (6, 3)]),
    "dist": (torch.dist, [(5, 4), (5, 4)], [(6, 4), (6, 4)], [(6, 4), (7, 4)]),
    # linear algebra
    "ormqr": (torch.ormqr, [(5, 3), (3,), (5, 2)], [(6, 4), (4,), (6, 2)], [(6, 4), (4,), (5, 2)]),
    "ormqr from the right": (
        lambda x, tau, y: torch.ormqr(x, tau, y, left=False),
        [(5, 3), (3,), (2, 5)],
        [(6, 4), (4,), (2, 6)],
        [(6, 4), (4,), (6, 2)],
    ),
    "householder_product": (torch.linalg.householder_product, [(5, 3), (3,)], [(6, 4), (4,)], [(3, 5), (3,)]),
    "reflectors": (torch.linalg.householder_product, [(5, 3), (3,)], [(6, 4), (4,)], [(6, 4), (5,)]),
    "cholesky_inverse": (torch.cholesky_inverse, [(4, 4)], [(5, 5)], [(4, 5)]),
    "eig": (torch.linalg.eig, [(4, 4)], [(5, 5)], [(4, 5)]),
    "matrix_exp": (torch.matrix_exp, [(4, 4)], [(5, 5)], [(5, 4)]),
    "solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        [(4, 4), (4, 2)],
        [(5, 5), (5, 2)],
        [(5, 5), (4, 2)],
    ),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b)[0], [(4, 3), (4, 2)], [(5, 3), (5, 2)], [(5, 3), (4, 2)]),
    # windows
    "reflection": (pad("reflect", 3, 3), [(2, 5)], [(2, 6)], [(2, 3)]),
    "reflection of planes": (pad("reflect", 3, 3, 2, 2), [(2, 5, 5)], [(2, 6, 6)], [(2, 2, 6)]),
    "replication": (pad("replicate", -2, -1), [(2, 5)], [(2, 6)], [(2, 3)]),
    "circular": (pad("circular", 4, 4), [(1, 2, 5)], [(1, 2, 6)], [(1, 2, 3)]),
    "conv bias": (F.conv1d, [(1, 2, 5), (3, 2, 2), (3,)], [(1, 2, 6), (4, 2, 2), (4,)], [(1, 2, 6), (4, 2, 2), (3,)]),
    "conv_transpose bias": (
        F.conv_transpose1d,
        [(1, 2, 5), (2, 3, 2), (3,)],
        [(1, 2, 6), (2, 4, 2), (4,)],
        [(1, 2, 6), (2, 4, 2), (3,)],
    ),
    "conv groups": (
        lambda x, w: F.conv1d(x, w, groups=2),
        [(1, 4, 5), (4, 2, 2)],
        [(1, 4, 6), (6, 2, 2)],
        [(1, 4, 6), (5, 2, 2)],
    ),
    "conv kernel": (F.conv1d, [(1, 2, 5), (3, 2, 4)], [(1, 2, 6), (4, 2, 4)], [(1, 2, 3), (4, 2, 4)]),
    "avg_pool": (lambda x: F.avg_pool2d(x, 4), [(1, 2, 5, 5)], [(1, 2, 6, 6)], [(1, 2, 3, 6)]),
    "max_pool": (lambda x: F.max_pool2d(x, 4), [(1, 2, 5, 5)], [(1, 2, 6, 6)], [(1, 2, 3, 6)]),
    "unfold": (lambda x: F.unfold(x, 4), [(2, 1, 5, 5)], [(3, 1, 6, 6)], [(3, 1, 3, 6)]),
    "fold": (lambda x: F.fold(x, (4, 4), 2), [(2, 4, 9)], [(3, 8, 9)], [(3, 8, 8)]),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [(2, 1, 4, 4), (2, 3, 3, 2)],
        [(3, 1, 4, 4), (3, 3, 3, 2)],
        [(3, 1, 4, 4), (2, 3, 3, 2)],
    ),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [(1, 4, 2, 2)], [(1, 8, 2, 2)], [(1, 6, 2, 2)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), [(1, 4, 2, 4)], [(1, 8, 2, 6)], [(1, 6, 2, 5)]),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), [(1, 4, 2, 2)], [(1, 6, 2, 2)], [(1, 5, 2, 2)]),
    # norms and losses
    "layer_norm": (lambda x, w: F.layer_norm(x, x.shape[-1:], w), [(4, 3), (3,)], [(5, 4), (4,)], [(5, 4), (3,)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w), [(4, 3), (3,)], [(5, 4), (4,)], [(5, 4), (3,)]),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), [(4, 4), (4,)], [(5, 6), (6,)], [(5, 6), (4,)]),
    "batch_norm": (F.batch_norm, [(4, 3), (3,), (3,)], [(5, 4), (4,), (4,)], [(5, 4), (3,), (3,)]),
    "nll_loss": (F.nll_loss, [(4, 3), [4]], [(5, 3), [5]], [(5, 3), [4]]),
    "nll_loss weights": (F.nll_loss, [(4, 3), [4], (3,)], [(5, 4), [5], (4,)], [(5, 4), [5], (3,)]),
    "nll_loss2d weights": (
        F.nll_loss,
        [(4, 3, 2, 2), [4, 2, 2], (3,)],
        [(5, 4, 3, 3), [5, 3, 3], (4,)],
        [(5, 4, 3, 3), [5, 3, 3], (3,)],
    ),
    "multilabel_margin_loss": (F.multilabel_margin_loss, [(4, 3), [4, 3]], [(5, 4), [5, 4]], [(5, 4), [5, 3]]),
    # selection
    "gather": (lambda x, i: x.gather(0, i), [(5, 5), [5, 5]], [(6, 6), [6, 6]], [(6, 6), [6, 8]]),
    "index_copy": (lambda x, i, y: x.index_copy(0, i, y), [(5, 4), [1], (1, 4)], [(6, 4), [2], (2, 4)], [(6, 4), [2], (3, 4)]),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), [(5, 4), [2], (2, 4)], [(6, 4), [3], (3, 4)], [(6, 4), [4], (3, 4)]),
    "index_put": (lambda x, i, y: x.index_put((i,), y), [(5, 4), [3], (3, 4)], [(6, 4), [4], (4, 4)], [(6, 4), [5], (4, 4)]),
    "scatter_add": (
        lambda x, i, y: x.scatter_add(0, i, y),
        [(5, 5), [5, 5], (5, 5)],
        [(6, 6), [6, 6], (6, 6)],
        [(6, 6), [6, 6], (5, 6)],
    ),
    "kthvalue": (lambda x: x.kthvalue(3)[0], [(2, 5)], [(2, 6)], [(2, 2)]),
    "topk": (lambda x: x.topk(3)[0], [(2, 5)], [(2, 6)], [(2, 2)]),
    "searchsorted": (torch.searchsorted, [(2, 4), (2, 3)], [(3, 5), (3, 4)], [(3, 5), (2, 4)]),
    "glu": (F.glu, [(2, 4)], [(2, 6)], [(2, 5)]),
    "narrow": (lambda x: x.narrow(0, 2, 3), [(6,)], [(7,)], [(4,)]),
    "windows of a line": (lambda x: x.unfold(0, 4, 1), [(5,)], [(6,)], [(3,)]),
}  # fmt: skip


def operands(sizes: list[Any]) -> list[torch.Tensor]:
    return [torch.rand(s) if isinstance(s, tuple) else torch.zeros(s, dtype=torch.int64) for s in sizes]


@pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
@pytest.mark.parametrize("row", ROWS)
def test_sizes_that_eager_refuses_raise(row: str, used: bool) -> None:
    fn, *good, bad = ROWS[row]

    def unused(*given: torch.Tensor) -> torch.Tensor:
        fn(*given)
        return given[0] * 2

    compiled = compile_api.compile(fn if used else unused, dynamic=True)
    for sizes in good:
        compiled(*operands(sizes))
    assert compiled.report().graphs
    given = operands(bad)
    with pytest.raises(REFUSED) as eager:
        fn(*given)
    with pytest.raises(REFUSED) as ours:
        compiled(*given)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("order", [(2, 5, -2, 3), (2, 5, -2, -1, 1), (-2, -3, -1, 6)], ids=str)
@pytest.mark.parametrize(
    "reshape",
    [lambda x, n: x.reshape(n, -1), lambda x, n: x.reshape(-1, n), lambda x, n: x.view(n, 3), lambda x, n: x.unflatten(0, (n, -1))],
    ids=["rows", "columns", "view", "unflatten"],
)  # fmt: skip
def test_negative_numbers_are_no_sizes(reshape: Callable[..., Any], order: tuple[int, ...]) -> None:
    """Nor where the number is a symbol, whatever it was before; -1 is the size that is solved for."""

    def program(x: torch.Tensor, n: int) -> Any:
        try:
            return tuple(reshape(x, n).shape)
        finally:
            pass

    compiled = compile_api.compile(program)
    for rows, n in enumerate(order):
        x = torch.arange(rows * 3.0).reshape(rows, 3)
        answers = []
        for call in (program, compiled):
            try:
                answers.append(call(x, n))
            except REFUSED as error:
                answers.append(type(error))
        assert answers[0] == answers[1], (rows, n)
