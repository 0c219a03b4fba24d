"""Kernels of gradients: of reads at known places, which gather, and of reads at places that are data."""

import pytest
import torch
from gen_support import check
from gradient_cases import CASES, inputs_of, scatters


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
    """Rows do not collide: they are shared among threads, and within one the columns are walked."""
    x, v, at = torch.randn(300, 40), torch.randn(70, 300), torch.randint(0, 40, (70,))
    case = check(lambda p, x, v, at: p.index_put(x, (at,), (1,), v, True), [x, v, at], tol=1e-4)
    (text,) = [k.source for k in case.compiled.kernels if "index_put" in k.ops]
    loops = [line.strip() for line in text.splitlines() if line.strip().startswith(("for (", "#pragma omp parallel"))]
    assert loops[0].startswith("#pragma omp parallel") and len(loops) == 3
