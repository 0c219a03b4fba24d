"""Programs that launch Triton kernels of their own, compiled and compared with eager.

Run by ``test_user_triton.py`` in Triton's interpreter, and as they are on a GPU (``pytest user_triton_cases.py``).
"""

from __future__ import annotations

import os

import pytest
import torch
import triton
import triton.language as tl
from reports import captured

import compile_api

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU and no interpreter")


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def _put(pointer, offsets, value, mask):
    tl.store(pointer + offsets, value, mask=mask)


@triton.jit
def scale_kernel(x_ptr, n, factor, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    _put(x_ptr, offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask)


@triton.jit
def row_kernel(x_ptr, sum_ptr, largest_ptr, row_stride, column_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    place = x_ptr
    place += row * row_stride + offsets * column_stride
    values = tl.load(place, mask=offsets < columns, other=0.0)
    tl.store(sum_ptr + row, tl.sum(values, 0))
    tl.atomic_max(largest_ptr + row, tl.max(values, 0))


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    index = tl.load(index_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, tl.load(x_ptr + index, mask=mask), mask=mask)


def _first_is_fastest(run, quantiles):
    run()
    return [1.0, 1.0, 1.0]


tuned_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"],
    **({"do_bench": _first_is_fastest} if INTERPRETED else {}),
)(add_kernel)  # fmt: skip
heuristic_kernel = triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})(scale_kernel)


def added(x, y):
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](x, y, out, out.numel(), BLOCK=32)
    return out


def random(*shape):
    return torch.randn(*shape, device=DEVICE)


def run(function, *args, calls=2, dynamic=None):
    """Compare with eager, the arguments afterwards too; the report."""
    compiled = compile_api.compile(function, dynamic=dynamic)
    for _ in range(calls):
        ours, theirs = ([a.clone() for a in args] for _ in range(2))
        torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)
    return compiled.report()


def assert_one_graph(report, *kernels):
    """One captured graph, nothing left to eager, and exactly these kernels launched by name."""
    assert not report.fallbacks and not report.breaks, (report.fallbacks, report.breaks)
    assert len(captured(report)) == 1
    names = sorted(record.name.split(".")[1].rpartition("_")[0] for record in report.externs)
    assert names == sorted(kernels)
    assert all(record.name.startswith("triton_kernels.") for record in report.externs)


def test_written_parameters_are_found():
    from dynamo_capture.triton_ops import written_parameters

    assert written_parameters(add_kernel) & {"x_ptr", "y_ptr", "out_ptr"} == {"out_ptr"}
    assert written_parameters(tuned_kernel) & {"x_ptr", "y_ptr", "out_ptr"} == {"out_ptr"}
    assert "x_ptr" in written_parameters(heuristic_kernel)
    assert written_parameters(row_kernel) & {"x_ptr", "sum_ptr", "largest_ptr"} == {"sum_ptr", "largest_ptr"}
    assert written_parameters(gather_kernel) & {"x_ptr", "index_ptr", "out_ptr"} == {"out_ptr"}


def test_grid_of_sizes_between_kernels():
    def program(x, y):
        x = x * 2
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(out.numel(), 32),)](x, y, out, out.numel(), BLOCK=32)
        return out + 1

    report = run(program, random(100), random(100))
    assert_one_graph(report, "add_kernel")
    assert len(report.kernels) == 2  # memory for the kernel to fill is not filled before


def test_grid_from_the_arguments():
    assert_one_graph(run(lambda x, y: added(x + 1, y) * x, random(100), random(100)), "add_kernel")


def test_dynamic_sizes():
    compiled = compile_api.compile(lambda x, y: added(x * 2, y), dynamic=True)
    for n in (40, 100, 130):
        x, y = random(n), random(n)
        torch.testing.assert_close(compiled(x, y), x * 2 + y)
    assert_one_graph(compiled.report(), "add_kernel")


def test_written_inputs_and_intermediates():
    def program(x, y):
        scale_kernel[(4,)](x, x.numel(), 0.5, BLOCK=32)
        z = x + 1
        scale_kernel[(4,)](z, z.numel(), factor=3.0, BLOCK=32)
        scale_kernel[(2,)](y[1], 50, factor=2.0, BLOCK=32)
        return z

    assert_one_graph(run(program, random(100), random(3, 50)), *["scale_kernel"] * 3)


def test_one_tensor_read_and_written():
    def program(x):
        add_kernel[(4,)](x, x, x, x.numel(), BLOCK=32)
        return x + 1

    assert_one_graph(run(program, random(128)), "add_kernel")


def test_several_results_and_strides_of_eager():
    def program(x):
        x = (x + 1).t()
        sums, largest = torch.empty(x.shape[0], device=x.device), torch.full((x.shape[0],), -1.0, device=x.device)
        row_kernel[(x.shape[0],)](x, sums, largest, x.stride(0), x.stride(1), x.shape[1], BLOCK=16)
        return sums * 2, largest

    assert_one_graph(run(program, random(10, 20)), "row_kernel")


def test_an_index_tensor():
    def program(x):
        order = torch.argsort(x)
        out = torch.empty_like(x)
        gather_kernel[(4,)](x, order, out, x.numel(), BLOCK=32)
        return out

    report = run(program, random(100))
    assert "triton_kernels.gather_kernel_0.default" in {record.name for record in report.externs}
    assert not report.fallbacks and not report.breaks


@pytest.mark.parametrize("dynamic", [None, True])
def test_autotuned(dynamic):
    def program(x, y):
        out = torch.empty_like(x)
        tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return out * x

    assert_one_graph(run(program, random(100), random(100), dynamic=dynamic), "add_kernel")


@pytest.mark.parametrize("dynamic", [None, True])
def test_heuristics(dynamic):
    def program(x):
        heuristic_kernel[lambda m: (x.numel() // m["BLOCK"] if m["EVEN"] else triton.cdiv(x.numel(), m["BLOCK"]),)](
            x, x.numel(), 2.0, BLOCK=32
        )
        return x + 1

    assert_one_graph(run(program, random(128), dynamic=dynamic), "scale_kernel")


def test_no_gradient_goes_through_a_kernel():
    def loss(x, w):
        y = x * w
        return (added(y, y) * w).sum()

    x, w = random(100), random(100).requires_grad_()
    compiled = compile_api.compile(loss)
    (ours,) = torch.autograd.grad(compiled(x, w), w)
    (theirs,) = torch.autograd.grad(loss(x, w), w)
    torch.testing.assert_close(ours, theirs)
    assert not compiled.report().fallbacks and not compiled.report().breaks


class Doubled(torch.autograd.Function):
    """A kernel with a gradient, as users write one."""

    @staticmethod
    def forward(ctx, x):
        return added(x, x)

    @staticmethod
    def backward(ctx, gradient):
        return added(gradient.contiguous(), gradient.contiguous())


def test_gradient_by_autograd_function():
    def loss(x):
        return (Doubled.apply(x * 3) * x).sum()

    x = random(100).requires_grad_()
    compiled = compile_api.compile(loss)
    (ours,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(ours, 12 * x.detach())
    assert not compiled.report().breaks


def test_triton_op():
    @torch.library.triton_op("quintet_triton_test::add", mutates_args={})
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(add_kernel)[(4,)](x, y, out, out.numel(), BLOCK=32)
        return out

    @torch.library.triton_op("quintet_triton_test::scale_", mutates_args={"x"})
    def scale_(x: torch.Tensor) -> None:
        torch.library.wrap_triton(scale_kernel)[(4,)](x, x.numel(), 2.0, BLOCK=32)

    def program(x, y):
        scale_(x)
        return torch.ops.quintet_triton_test.add(x * 2, y) + 1

    assert_one_graph(run(program, random(100), random(100)), "add_kernel", "scale_kernel")


@pytest.mark.skipif(INTERPRETED, reason="torch.library.wrap_triton has no fake form in the interpreter")
def test_triton_op_with_a_gradient_formula():
    @torch.library.triton_op("quintet_triton_test::graded", mutates_args={})
    def graded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.library.wrap_triton(add_kernel)[(4,)](x, y, out, out.numel(), BLOCK=32)
        return out

    graded.register_autograd(lambda ctx, gradient: (gradient * 1, gradient * 2))

    def loss(x, y):
        return (graded(x * 2, y) * 3).sum()

    x, y = random(100).requires_grad_(), random(100).requires_grad_()
    compiled = compile_api.compile(loss)
    ours = torch.autograd.grad(compiled(x, y), (x, y))
    torch.testing.assert_close(ours, torch.autograd.grad(loss(x, y), (x, y)))
    assert not compiled.report().fallbacks and not compiled.report().breaks


def test_any_backend_can_run_the_graph():
    for backend in ("eager", "aot_eager"):
        compiled = compile_api.compile(lambda x, y: added(x + 1, y) * 2, backend=backend)
        x, y = random(100), random(100)
        torch.testing.assert_close(compiled(x, y), (x + 1 + y) * 2)
        assert not compiled.report().fallbacks and not compiled.report().breaks


def test_modes():
    for mode in ("reduce-overhead", "max-autotune"):
        compiled = compile_api.compile(lambda x, y: added(x + 1, y) * 2, mode=mode)
        for _ in range(4):
            x, y = random(100), random(100)
            torch.testing.assert_close(compiled(x, y), (x + 1 + y) * 2)


def test_run_is_a_launch_too():
    def program(x, y):
        out = torch.empty_like(x)
        add_kernel.run(x, y, out, x.numel(), grid=(4,), warmup=False, BLOCK=32)
        return out * 2

    assert_one_graph(run(program, random(100), random(100)), "add_kernel")


def test_other_uses_of_a_kernel_break_the_graph():
    def program(x, y):
        out = added(x, y)
        return out * len(add_kernel.arg_names)

    report = run(program, random(100), random(100))
    assert any("Triton kernel" in record.reason for record in report.breaks) and not report.fallbacks
