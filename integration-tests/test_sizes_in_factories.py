"""What makes tensors by a size that changes between calls, and whose C++ takes no symbol: one graph for all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

PROGRAMS = {
    "linspace": lambda x: x + torch.linspace(-1, 2.5, x.shape[0]),
    "linspace of more": lambda x: x[0] + torch.linspace(0, 1, 2 * x.shape[0] + 1, dtype=torch.float64),
    "linspace of less": lambda x: x.sum() + torch.linspace(0, 1, x.shape[0] - 2),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[0] + 1) * x[:, None],
    "hann_window": lambda x: x * torch.hann_window(x.shape[0]),
    "hann_window, both ends": lambda x: x * torch.hann_window(x.shape[0], periodic=False),
    "hamming_window": lambda x: x.sum() * torch.hamming_window(x.shape[0] + 3, False, 0.3, 0.2),
    "circular padding": lambda x: F.pad(x[None, None], (x.shape[0] // 2, x.shape[0] - 1), mode="circular"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_sizes(name):
    program = PROGRAMS[name]
    compiled = compile_api.compile(program)
    for size in (4, 6, 7, 9, 12):
        x = torch.linspace(-1, 1, size)
        torch.testing.assert_close(compiled(x), program(x))
    report = compiled.__quintet_optimizer__.report
    assert not report.fallbacks and not report.breaks and len(report.recompiles) == 1


@pytest.mark.parametrize("by", [1, -1])
def test_classes_that_do_not_exist_are_eagers_error(by):
    def program(i):
        return F.one_hot(i + by, i.shape[0])

    compiled = compile_api.compile(program)
    for size in (4, 6, 7):
        found = []
        for run in (compiled, program):
            with pytest.raises(RuntimeError) as error:
                run(torch.arange(size))
            found.append(str(error.value))
        assert found[0] == found[1]


def test_a_circle_gone_round_twice_is_eagers_error():
    def program(x):
        return F.pad(x[None, None], (x.shape[0] + 1, 0), mode="circular")

    compiled = compile_api.compile(program)
    for size in (4, 6, 7):
        with pytest.raises(RuntimeError, match="wrapping around more than once"):
            compiled(torch.ones(size))


ENDS = [(-1, 1), (0.1, 0.7), (-3.3, 2.2), (5.0, 5.0), (-0.0, 0.0), (1e-3, 1e3)]
#: By what rounds as eager's CPU kernels do: float32 and float64 in one step, others after each operation.
ROUNDED = {
    torch.float32: ("fast", "eager_exact"), torch.float64: ("fast", "eager_exact"),
    torch.float16: ("eager_close", "eager_exact"), torch.bfloat16: ("eager_close", "eager_exact"),
}  # fmt: skip


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="eager's kernels round products, too")
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_linspace_is_eagers_to_the_bit(dtype, dynamic):
    def program(x):
        made = [torch.linspace(start, end, x.shape[0], dtype=dtype) for start, end in ENDS]
        return *made, *(-values for values in made)

    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for numerics in ROUNDED[dtype]:
        compiled = compile_api.compile(program, dynamic=dynamic, options={"numerics": numerics})
        for size in range(71) if dynamic else (1, 2, 33, 70):
            x = torch.ones(size)
            for got, want in zip(compiled(x), program(x), strict=True):
                assert torch.equal(got.view(bits), want.view(bits)), (numerics, size)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_grids_of_affine_maps(dims, align_corners):
    """A spatial transformer's: the sizes come from the image, whose batch and sides change, with gradients."""

    def program(theta, x):
        grid = F.affine_grid(theta, x.size(), align_corners=align_corners)
        return grid, F.grid_sample(x, grid, align_corners=align_corners)

    compiled = compile_api.compile(program)
    for batch, side in ((3, 5), (4, 7), (5, 6), (3, 9), (6, 4)):
        theta = torch.randn(batch, dims, dims + 1, dtype=torch.float64, requires_grad=True)
        x = torch.randn(batch, 2, *range(side, side + dims), dtype=torch.float64)
        got, expected = compiled(theta, x), program(theta, x)
        torch.testing.assert_close(got, expected)
        for one, other in zip(got, expected, strict=True):
            gradients = [torch.autograd.grad(y.square().sum(), theta, retain_graph=True)[0] for y in (one, other)]
            torch.testing.assert_close(*gradients)
    report = compiled.report()
    assert report.verdict == "compiled" and len(report.recompiles) == 1, report
