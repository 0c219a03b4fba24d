"""Which way programs of a GPU's reductions go through memory: along what is contiguous there, whatever they write beside it.

Rows that lie next to each other are read by one program each; columns by programs of many at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.device.record import known
from inductor_gen.pipeline import lower_graph
from prims.options import Options
from prims.spec import TensorSpec

GPU = torch.device("cuda", 0)
ROWS, COLUMNS = 4096, 2048


def first_kernel(function: Callable[..., Any], *inputs: TensorSpec) -> Any:
    env = build(function, inputs, claims=inductor_gen.claims("cuda"))
    return lower_graph(env, Options(verify="every_pass"), devices=lambda _: known("H200")).sources()[0]


def block(source: Any, name: str) -> int:
    return int(source.text.partition(f"{name}: tl.constexpr = ")[2].split()[0])


def rows_of_a_program(function: Callable[..., Any], *inputs: TensorSpec) -> int:
    return block(first_kernel(function, *inputs), "XBLOCK")


def matrix(dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec((ROWS, COLUMNS), dtype, GPU)


def shifted(p: Any, x: Any, dim: int) -> Any:
    """Less its largest number, which a second result is."""
    return p.sub(x, p.broadcast(p.amax(x, (dim,)), (ROWS, COLUMNS), (1 - dim,)))


ALONG: dict[str, Callable[..., Any]] = {
    "one sum": lambda p, x, d: p.sum(x, (d,)),
    "least and greatest": lambda p, x, d: (p.amin(x, (d,)), p.amax(x, (d,))),
    "four results": lambda p, x, d: (p.amin(x, (d,)), p.amax(x, (d,)), p.sum(x, (d,)), p.prod(x, (d,))),
    "greatest, and where": lambda p, x, d: (p.amax(x, (d,)), p.argmax(x, d)),
    "logarithm of sums, and the shift": lambda p, x, d: (p.sum(p.exp(shifted(p, x, d)), (d,)), p.amax(x, (d,))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALONG)
def test_rows_are_read_along_them_whatever_is_written(name: str, dtype: torch.dtype) -> None:
    assert rows_of_a_program(lambda p, x: ALONG[name](p, x, 1), matrix(dtype)) <= 2
    assert rows_of_a_program(lambda p, x: ALONG[name](p, x, 0), matrix(dtype)) >= 16


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("name", ["one sum", "least and greatest"])
def test_steps_that_share_what_memory_hands_over_are_along_them_too(name: str, step: int) -> None:
    wide = TensorSpec((ROWS, COLUMNS * step), torch.float32, GPU)
    every = lambda p, x: p.slice(x, (0, 0), (ROWS, COLUMNS * step), (1, step))
    assert rows_of_a_program(lambda p, x: ALONG[name](p, every(p, x), 1), wide) <= 2


@pytest.mark.parametrize("name", ["one sum", "least and greatest"])
def test_backwards_is_along_them_too(name: str) -> None:
    assert rows_of_a_program(lambda p, x: ALONG[name](p, p.flip(x, (1,)), 1), matrix()) <= 2


@pytest.mark.parametrize("name", ["one sum", "least and greatest"])
def test_matrices_that_are_transposed_are_read_as_they_lie(name: str) -> None:
    turned = TensorSpec((COLUMNS, ROWS), torch.float32, GPU)
    assert rows_of_a_program(lambda p, x: ALONG[name](p, p.permute(x, (1, 0)), 1), turned) >= 16


def test_numbers_of_each_row_beside_the_matrix_do_not_decide() -> None:
    """As a normalisation's gradient for its weight: sums over rows, of rows less their means by their deviations."""
    row = TensorSpec((ROWS,), torch.float32, GPU)

    def function(p: Any, x: Any, mean: Any, rate: Any, g: Any) -> Any:
        spread = lambda v: p.broadcast(v, (ROWS, COLUMNS), (0,))
        normal = p.mul(p.sub(x, spread(mean)), spread(rate))
        return p.sum(p.mul(g, normal), (0,)), p.sum(g, (0,))

    assert rows_of_a_program(function, matrix(), row, row, matrix()) >= 16


@pytest.mark.parametrize(
    ("name", "operands", "elements"),
    [("one sum", 1, 32), ("least and greatest", 1, 32), ("greatest, and where", 1, 16), ("one sum", 8, 8)],
)
def test_loops_over_columns_have_the_elements_and_registers_of_their_share(name: str, operands: int, elements: int) -> None:
    def function(p: Any, *xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = p.mul(y, x)
        return ALONG[name](p, y, 0)

    source = first_kernel(function, *[matrix()] * operands)
    assert source.registers == 128
    assert block(source, "XBLOCK") * block(source, "RBLOCK") == elements * 32 * source.warps == elements * 128


def test_what_the_share_cannot_hold_is_left_to_the_compiler() -> None:
    def product(p: Any, *xs: Any) -> Any:
        y = xs[0]
        for x in xs[1:]:
            y = p.mul(y, x)
        return p.sum(y, (0,))

    assert first_kernel(product, *[matrix()] * 16).registers == 0


def test_rows_and_what_is_held_at_once_are_left_to_the_compiler() -> None:
    assert first_kernel(lambda p, x: p.sum(x, (1,)), matrix()).registers == 0
    short = TensorSpec((16, 4096), torch.float32, GPU)
    assert first_kernel(lambda p, x: p.sum(x, (0,)), short).registers == 0
