"""Kernels of gradients: of reads at known places, which gather, and of reads at places that are data."""

import pytest
import torch
from gen_support import check
from gradient_cases import CASES, inputs_of, scatters

from inductor_gen.device.cpu import processor
from prims import decomp


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_reads_at_known_places_gather(name, dtype):
    fn, shapes = CASES[name]
    case = check(fn, inputs_of(shapes, dtype), tol=1e-5 if dtype == torch.float32 else None)
    assert case.kernels and not scatters(case.compiled)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize(
    "shape,dims,many",
    [((9, 40), (0,), 70), ((9, 40), (1,), 70), ((6, 7, 8), (1,), 50), ((6, 7, 8), (2,), 50), ((6, 7, 8), (0, 2), 90),
     ((6, 7, 8), (1, 2), 90), ((5,), (0,), 30), ((3, 4, 5, 6), (1, 3), 40)],
)  # fmt: skip
def test_sums_at_places_that_are_data(shape, dims, many, dtype):
    """Whichever dimensions are indexed, and however often a place is: contiguous elements are walked innermost."""
    torch.manual_seed(1)
    x = torch.randn(shape).mul(100).to(dtype)
    indices = [torch.randint(-shape[d], shape[d], (many,)) for d in dims]
    rest = [s for d, s in enumerate(shape) if d not in dims]
    values = torch.randn(many, *rest).mul(100).to(dtype)

    def fn(p, x, v, *at):
        return p.index_put(x, at, dims, p.mul(v, 2), True)

    check(fn, [x, values, *indices], tol=1e-3 if dtype == torch.float32 else None)


@pytest.mark.parametrize("mode", ["set", "add", "max"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatters_along_every_dimension(dim, mode):
    torch.manual_seed(2)
    x, v = torch.randn(5, 6, 7), torch.randn(5, 6, 7)
    if mode == "set":  # which of several writes to one place counts is not said
        at = torch.rand(5, 6, 7).argsort(dim)
    else:
        at = torch.randint(0, 5, (5, 6, 7))
    check(lambda p, x, at, v: p.scatter(x, at, v, dim, mode), [x, at, v], tol=1e-5)


def test_a_scatter_over_columns_does_not_stride_through_memory_innermost():
    """Rows do not collide: they are shared among threads, and within one the columns of four rows are walked."""
    x, v, at = torch.randn(303, 40), torch.randn(70, 303), torch.randint(0, 40, (70,))
    case = check(lambda p, x, v, at: p.index_put(x, (at,), (1,), v, True), [x, v, at], tol=1e-4)
    (text,) = [k.source for k in case.compiled.kernels if "index_put" in k.ops]
    assert _loops(text) == ["#pragma omp parallel", "i1b += 4", "i0++", "i1 < i1b + 4"]


def _loops(text: str) -> list[str]:
    """What stands for each loop of a kernel."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(("for (", "#pragma omp parallel"))]
    parts = [line.removeprefix("for (").removesuffix(") {").split("; ") for line in lines]
    return [p[0][:20] if len(p) == 1 else p[1] if " + " in p[1] else p[2] for p in parts]


@pytest.mark.parametrize("rows", [4, 5, 7, 303])
def test_columns_by_index_are_looked_up_once_for_several_rows(rows):
    x, at = torch.randn(rows, 40), torch.randint(-40, 40, (70,))
    case = check(lambda p, x, at: p.mul(p.permute(p.index(x, (at,), (1,)), (1, 0)), 2.0), [x, at])
    (kernel,) = case.compiled.kernels
    assert _loops(kernel.source)[1:] == ["i0b += 4", "i1++", "i0 < i0b + 4"]


@pytest.mark.parametrize("step", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_steps_write_once_and_look_nothing_up(dim, start, step):
    """Also where the length is no multiple of the step, and the last row of steps is not whole."""
    shape = [10, 27]
    taken = torch.empty(shape)[(slice(None),) * dim + (slice(start, None, step),)].shape
    sliced = decomp.by_name("aten.slice_backward.default")
    case = check(lambda p, g: sliced(p, p.mul(g, 2.0), shape, dim, start, 1 << 62, step), [torch.randn(taken)])
    (kernel,) = case.compiled.kernels
    assert "bad_" not in kernel.source


def test_pairs_are_written_side_by_side():
    """The short loop goes inside the lane, where it is unrolled."""
    x = torch.randn(8, 40)
    both = lambda p, x: p.reshape(p.mul(p.broadcast(x, (8, 40, 2), (0, 1)), 3.0), (8, 80))
    case = check(both, [x])
    (kernel,) = case.compiled.kernels
    assert _loops(kernel.source)[1:] == ["i1++", "i0++"] and "#pragma GCC unroll" in kernel.source


def test_the_compiler_chooses_how_to_fill_memory():
    case = check(
        lambda p, x: p.broadcast(p.full((), 0.0, x.dtype, x.device), (300, 300), ()), [torch.ones(2)], exact=True
    )
    assert not any("simd" in k.source for k in case.compiled.kernels)


@pytest.mark.parametrize("vector", [32, 64])
def test_what_few_places_are_read_of_is_not_written(vector):
    """A log-softmax of which each row's class is taken: its rows are read twice, and nothing of their size is written,
    whether the kernel waits for memory or for its arithmetic."""
    log_softmax = decomp.by_name("aten._log_softmax.default")
    x, at = torch.randn(40, 300), torch.randint(0, 300, (40, 1))
    device = processor("two cores", 2, vector, 512 << 10, 32 << 20)
    taken = lambda p, x, at: p.gather(log_softmax(p, x, 1, False), at, 1)
    case = check(taken, [x, at], devices=lambda _: device)
    lines = [line.strip() for k in case.compiled.kernels for line in k.source.splitlines()]
    assert not [line for line in lines if line.startswith("out") and "i0*" in line]


def test_what_is_as_large_as_what_it_is_made_of_is_made_again_behind_an_operator():
    """As a batch norm's gradient around a convolution: no kernel writes the difference, which waits no shorter."""
    x, m, w = torch.randn(300, 300), torch.randn(300), torch.randn(300, 300)

    def fn(p, x, m, w):
        gap = p.sub(x, p.broadcast(m, (300, 300), (0,)))
        return p.mul(p.dot(p.maximum(gap, 0.0), w), gap)

    case = check(fn, [x, m, w], tol=1e-3)
    first, second = case.compiled.kernels
    assert "out1" not in first.source and "in3" in second.source, (first.source, second.source)
