"""Operands that are transposed for the loop that vector lanes take, on CPUs: patches and strips of them are copied."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from gen_support import check

from inductor_gen.device.record import device_of
from prims.errors import InvalidData

#: A first cache as most processors have it.
CPU = dataclasses.replace(device_of(torch.device("cpu")), first_cache=(4096, 8), shared_memory=1 << 19)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool]
#: Rows and columns of what is read, 1, 2, 4 and 8 KiB apart or not, whole and cut patches.
SIZES = [(512, 64), (1024, 33), (2048, 40), (100, 1024), (64, 1000), (45, 4096), (70, 50), (31, 512), (3, 2048)]


def text(case: Any) -> str:
    return "\n".join(k.source for k in case.compiled.kernels)


def turned(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A transposed tensor of this shape."""
    *lead, rows, columns = shape
    made = torch.randn(*lead, columns, rows, generator=torch.Generator().manual_seed(seed)) * 5
    return made.to(dtype).transpose(-1, -2)


def checked(fn: Any, inputs: list[torch.Tensor], **kw: Any) -> str:
    return text(check(fn, inputs, devices=lambda _: CPU, **kw))


def expects(x: torch.Tensor, steps: int = 32) -> bool:
    """Do so many steps along the last dimension lie where a cache of 64 places of 8 lines has no room for them?"""
    if min(x.shape[-2:]) < 32:
        return False
    starts = {(k * x.stride(-1) * x.element_size()) % 4096 // 64 for k in range(steps)}
    return len(starts) * 8 < steps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_patches_of_what_lies_powers_of_two_apart(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = turned(*shape, dtype=dtype)
    made = checked(lambda p, x: p.where(p.eq(x, x), x, x), [x], exact=True)
    if x.shape[-1] * x.element_size() >= 64:  # of shorter rows of the result several are written side by side
        assert ("patch0[" in made) == expects(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operands_in_several_orders(dtype: torch.dtype) -> None:
    """Two transposed ones of other sizes apart, one that is not, one that is both, a row and a column."""
    x, y = turned(3, 2048, 64, dtype=dtype), turned(3, 2064, 64, dtype=dtype, seed=1)[:, :2048]
    z = torch.randn(3, 2048, 64).to(dtype)
    row, column = torch.randn(64).to(dtype), torch.randn(2048).to(dtype)

    def program(p: Any, x: Any, y: Any, z: Any, row: Any, column: Any) -> Any:
        row, column = p.broadcast(row, z.shape, (2,)), p.broadcast(column, z.shape, (1,))
        return p.add(p.mul(p.exp(p.mul(x, 0.1)), row), p.sub(p.mul(y, z), column))

    made = checked(program, [x, y, z, row, column], tol=0.2 if dtype == torch.bfloat16 else 1e-4)
    assert "patch0[" in made


def test_what_is_read_under_a_condition_stays_where_it_is() -> None:
    x = turned(1024, 64)
    made = checked(lambda p, x: p.sin(p.pad(x, 0.0, (3, 2), (1, 5))), [x], tol=1e-5)
    assert "patch0[" not in made


def softmax(p: Any, x: Any) -> Any:
    """Over the last dimension."""
    last = x.ndim - 1
    spread = lambda y: p.broadcast(y, x.shape, tuple(range(last)))
    e = p.exp(p.sub(x, spread(p.amax(x, (last,)))))
    return p.div(e, spread(p.sum(e, (last,))))


def normed(p: Any, x: Any) -> Any:
    last, count = x.ndim - 1, float(x.shape[-1])
    spread = lambda y: p.broadcast(p.div(y, count), x.shape, tuple(range(last)))
    d = p.sub(x, spread(p.sum(x, (last,))))
    return p.mul(d, p.rsqrt(p.add(spread(p.sum(p.mul(d, d), (last,))), 1e-5)))


def best_and_rest(p: Any, x: Any) -> Any:
    """Of each row the place of its largest, and the elements less their mean."""
    last = x.ndim - 1
    mean = p.div(p.sum(x, (last,)), float(x.shape[-1]))
    return p.argmax(x, last), p.sub(x, p.broadcast(mean, x.shape, tuple(range(last))))


REDUCTIONS = {"softmax": softmax, "norm": normed, "best": best_and_rest, "running sum": lambda p, x: p.cumsum(x, x.ndim - 1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(64, 1024), (1000, 100), (2, 45, 600), (1024, 100), (33, 32), (17, 900), (5, 64, 49)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_of_reductions_are_strips(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = turned(*shape, dtype=dtype)
    if dtype == torch.bfloat16:
        program = lambda p, x: REDUCTIONS[name](p, p.convert(x, torch.float32))
    else:
        program = REDUCTIONS[name]
    made = checked(program, [x], tol=1e-4 if name == "running sum" else 2e-5)
    assert ("strip0[" in made) == expects(x, shape[-1])


@pytest.mark.parametrize("name", ["softmax", "shifted"])
def test_matrices_are_chosen_by_index(name: str) -> None:
    """Which matrix is turned is read from another tensor; a wrong index is an error as before."""
    x, index = turned(4, 1024, 64), torch.tensor([2, 0, 3, 2, 1])

    def program(p: Any, x: Any, index: Any) -> Any:
        rows = p.index(x, (index,), (0,))
        return softmax(p, rows) if name == "softmax" else p.exp(p.mul(rows, 0.1))

    case = check(program, [x, index], devices=lambda _: CPU, tol=1e-5)
    assert ("strip0[" if name == "softmax" else "patch0[") in text(case)
    with pytest.raises(InvalidData):
        case.compiled(x, index + 2)


def test_a_nan_stays_in_its_row() -> None:
    x = turned(1024, 128)
    x[3, 5], x[40, 127] = float("nan"), float("inf")
    made = checked(softmax, [x])
    assert "strip0[" in made


def test_rows_that_are_too_long_stay_where_they_are() -> None:
    x = turned(64, 1 << 14)
    assert "strip0[" not in checked(softmax, [x])


def test_sizes_that_change() -> None:
    """A kernel with strips and one with patches, of which the next sizes are others."""
    fn = lambda p, x, y: (softmax(p, p.permute(x, (1, 0))), p.exp(p.permute(y, (1, 0))))
    x, y = torch.randn(1024, 64), torch.randn(64, 2048).mul(0.1)
    case = check(fn, [x, y], dynamic={0: (0, 1), 1: (1,)}, devices=lambda _: CPU)
    assert "strip0[" in text(case) and "patch0[" in text(case)
    for rows, columns in ((1024, 64), (40, 70), (2, 1), (0, 5), (1000, 33)):
        x, y = torch.randn(rows, columns), torch.randn(64, 2 * rows).mul(0.1)
        first, second = case.compiled(x, y)
        torch.testing.assert_close(first, x.t().softmax(1))
        torch.testing.assert_close(second, y.t().exp())


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_have_strips_and_patches_of_their_own(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, y = turned(8, 300, 520), turned(8, 2048, 300, seed=1)
        assert "strip0[" in checked(softmax, [x])
        assert "patch0[" in checked(lambda p, x: p.exp(p.mul(x, 0.1)), [y])
    finally:
        torch.set_num_threads(before)


def test_the_device_says_what_is_too_much() -> None:
    x = turned(1024, 64)
    roomy = dataclasses.replace(CPU, first_cache=(1 << 16, 4))
    assert "patch0[" not in text(check(lambda p, x: p.exp(x), [x], devices=lambda _: roomy, tol=1e-4))
    narrow = dataclasses.replace(CPU, first_cache=(256, 2))
    y = turned(272, 64)
    assert "patch0[" not in text(check(lambda p, x: p.exp(x), [y], devices=lambda _: CPU, tol=1e-4))
    assert "patch0[" in text(check(lambda p, x: p.exp(x), [turned(272, 64)], devices=lambda _: narrow, tol=1e-4))
