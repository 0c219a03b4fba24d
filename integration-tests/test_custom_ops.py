"""Operators that a program brings with it: one graph, one named call, right values, writes and gradients."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest
import torch
from reports import captured
from torch import Tensor

import compile_api

LIBRARY = torch.library.Library("quintet_test", "DEF")


def _define(schema, function, fake=None):
    """An operator of the low-level interface: no autograd kernel, no version counters."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CPU")
    if fake is not None:
        torch.library.register_fake(f"quintet_test::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.quintet_test, name)


def _add_to(x, total, *, alpha=1.0):
    total.add_(x, alpha=alpha)
    return x * 2


def _swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def _shift(x, y):
    kept = x.clone()
    y.copy_(kept)


LOGGED: list[float] = []


def _log(x):
    LOGGED.append(float(x.sum()))


def _bump(xs, by):
    for x in xs:
        x.add_(1 if by is None else by)


scale_ = _define("scale_(Tensor(a!) x, float s) -> Tensor(a!)", lambda x, s: x.mul_(s))
add_to = _define(
    "add_to(Tensor x, Tensor(a!) total, *, float alpha=1.0) -> Tensor",
    _add_to,
    lambda x, total, *, alpha=1.0: torch.empty_like(x),
)
swap = _define("swap(Tensor(a!) x, Tensor(b!) y) -> ()", _swap)
shift = _define("shift(Tensor x, Tensor(a!) y) -> ()", _shift)
log = _define("log(Tensor x) -> ()", _log)
bump = _define("bump(Tensor(a!)[] xs, Tensor? by) -> ()", _bump)
strides_of = _define(
    "strides_of(Tensor x) -> Tensor",
    lambda x: torch.tensor(x.stride(), dtype=torch.float32),
    lambda x: x.new_empty(x.dim()),
)
same_memory = _define("same_memory(Tensor x) -> Tensor", lambda x: x, torch.empty_like)
secret_write = _define("secret_write(Tensor x) -> Tensor", lambda x: x.add_(1).clone(), torch.empty_like)


@torch.library.custom_op("quintet_test::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(__import__("numpy").sin(x.numpy()))  # opaque: no tensor operator inside


@sine.register_fake
def _(x):
    return torch.empty_like(x)


sine.register_autograd(
    lambda ctx, gradient: gradient * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("quintet_test::parts", mutates_args=())
def parts(xs: list[Tensor], bias: Tensor | None, n: int, scale: float = 2.0) -> tuple[Tensor, list[Tensor]]:
    total = sum(xs) * scale if bias is None else sum(xs) * scale + bias
    return total, [x.repeat(n) for x in xs]


@parts.register_fake
def _(xs, bias, n, scale=2.0):
    return torch.empty_like(xs[0]), [x.new_empty(x.shape[0] * n) for x in xs]


@torch.library.custom_op("quintet_test::accumulate", mutates_args={"total"})
def accumulate(x: Tensor, total: Tensor) -> Tensor:
    total.add_(x)
    return total * 2


@accumulate.register_fake
def _(x, total):
    return torch.empty_like(total)


@torch.library.custom_op("quintet_test::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x * 3


def run(function, *args, calls=2, dynamic=None):
    """Compare with eager, the arguments afterwards too; the report."""
    compiled = compile_api.compile(function, dynamic=dynamic)
    for _ in range(calls):
        ours = [a.clone() if isinstance(a, Tensor) else a for a in args]
        theirs = [a.clone() if isinstance(a, Tensor) else a for a in args]
        torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)
    return compiled.report()


def assert_one_graph(report, *names):
    """One captured graph, nothing left to eager, and exactly these operators called by name."""
    assert not report.fallbacks and not report.breaks
    assert len(captured(report)) == 1
    assert sorted(record.name for record in report.externs) == sorted(names)


def test_functional_operator_stays_one_call_between_kernels():
    report = run(lambda x: sine(x + 1) * 2, torch.randn(5, 7))
    assert_one_graph(report, "quintet_test.sine.default")
    assert len(report.kernels) == 2


def test_gradient_formula_is_compiled():
    def loss(x):
        return (sine(x * 2) * 3).sum()

    x = torch.randn(8, requires_grad=True)
    compiled = compile_api.compile(loss)
    (ours,) = torch.autograd.grad(compiled(x), x)
    (theirs,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(ours, theirs)
    assert not compiled.report().fallbacks
    assert any(graph.dialect == "aten" and graph.name == "backward" for graph in compiled.report().graphs)


def test_lists_optionals_defaults_and_several_results():
    def program(x, y):
        total, repeated = parts([x + 1, y], None, 2)
        other, _ = parts([x, y], y, 1, scale=0.5)
        return total + other, repeated[1] * 2, repeated[0]

    report = run(program, torch.randn(4), torch.randn(4))
    assert_one_graph(report, *["quintet_test.parts.default"] * 2)


def test_symbolic_sizes():
    compiled = compile_api.compile(lambda x: parts([x * 2], None, 3)[1][0] + 1, dynamic=True)
    for n in (4, 7, 9):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), (x * 2).repeat(3) + 1)
    assert_one_graph(compiled.report(), "quintet_test.parts.default")


def test_written_arguments():
    def program(x, total):
        y = x + 1
        doubled = accumulate(y, total)
        inner = y * 0
        accumulate(doubled, inner)
        return inner + total, doubled

    report = run(program, torch.randn(6), torch.randn(6))
    assert_one_graph(report, *["quintet_test.accumulate.default"] * 2)


def test_low_level_operators_that_advance_no_version_counter():
    def program(x, total):
        y = x + 1
        scale_(y, 2.0)
        z = add_to(y, total, alpha=3.0)
        scale_(total[1], 5.0)
        bump([y, total], None)
        bump([x], y)
        return y * z

    report = run(program, torch.randn(4, 5), torch.randn(4, 5))
    assert_one_graph(
        report, *["quintet_test.scale_.default"] * 2, "quintet_test.add_to.default", *["quintet_test.bump.default"] * 2
    )


def test_one_tensor_given_twice_and_disjoint_views_of_one():
    def program(x):
        y = x * 2
        swap(y, y)
        swap(x[:2], x[2:])
        left, right = y.chunk(2, dim=1)
        swap(left, right)
        return y

    report = run(program, torch.randn(4, 6))
    assert_one_graph(report, *["quintet_test.swap.default"] * 3)


def test_overlapping_views_run_eagerly_with_the_reason():
    def program(x):
        shift(x[:3], x[1:])
        return x + 1

    report = run(program, torch.randn(4, 5))
    assert any("share" in record.reason for record in report.fallbacks), report.fallbacks


def test_inputs_that_share_memory_run_eagerly():
    compiled = compile_api.compile(lambda x, y: (swap(x, y), x + 1)[1])
    for _ in range(2):
        ours, theirs = torch.arange(6.0), torch.arange(6.0)
        compiled(ours[:3], ours[3:])
        swap(theirs[:3], theirs[3:])
        torch.testing.assert_close(ours, theirs)
    ours = torch.randn(3)
    torch.testing.assert_close(compiled(ours, ours), ours + 1)


def test_an_operator_with_an_effect_is_called_in_its_place():
    def program(x):
        y = x * 2
        log(y)
        return y + 1

    LOGGED.clear()
    x = torch.randn(5)
    compiled = compile_api.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert pytest.approx([float((x * 2).sum())] * 3) == LOGGED
    assert any("quintet_test::log" in record.reason for record in compiled.report().breaks)


def test_no_fake_implementation_is_a_break_with_the_remedy():
    report = run(lambda x: without_fake(x + 1) * 2, torch.randn(5))
    assert any("register_fake" in record.reason for record in report.breaks), report.breaks
    with pytest.raises(Exception, match="register_fake"):
        compile_api.compile(lambda x: without_fake(x + 1) * 2, fullgraph=True)(torch.randn(5))


def test_operands_keep_the_strides_of_eager():
    def program(x):
        y = (x * 2).t()
        return (
            strides_of(y), strides_of(y.contiguous()), strides_of(y[1:]), strides_of(x[:, ::2]),
            strides_of((x + 1)[:, None].expand(4, 3, 5)), strides_of((x + 1).view(2, 2, 5).permute(2, 0, 1)),
        )  # fmt: skip

    assert_one_graph(run(program, torch.randn(4, 5)), *["quintet_test.strides_of.default"] * 6)


def test_a_wrong_schema_is_not_silent():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compile_api.compile(lambda x: same_memory(x * 2) + 1)(torch.randn(3))
        compile_api.compile(lambda x: secret_write(x * 2) + 1)(torch.randn(3))
    texts = [str(w.message) for w in caught]
    assert any("same_memory" in t and "returns memory" in t for t in texts)
    assert any("secret_write" in t and "writes to an argument" in t for t in texts)


SOURCE = r"""
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

at::Tensor square_plus(const at::Tensor& x, const at::Tensor& y, double a) {
  auto in = x.contiguous(), other = y.contiguous();
  auto out = at::empty_like(in);
  const float *p = in.data_ptr<float>(), *q = other.data_ptr<float>();
  float* o = out.data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); i++) o[i] = p[i] * p[i] + (float)a * q[i];
  return out;
}
at::Tensor square_plus_meta(const at::Tensor& x, const at::Tensor&, double) { return at::empty_like(x); }

struct SquarePlus : torch::autograd::Function<SquarePlus> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y, double a) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("quintet_cpp::square_plus", "")
                         .typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>();
    ctx->save_for_backward({x});
    ctx->saved_data["a"] = a;
    return op.call(x, y, a);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list g) {
    auto x = ctx->get_saved_variables()[0];
    return {g[0] * x * 2, g[0] * ctx->saved_data["a"].toDouble(), at::Tensor()};
  }
};
at::Tensor square_plus_autograd(const at::Tensor& x, const at::Tensor& y, double a) { return SquarePlus::apply(x, y, a); }

void negate_(at::Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "negate_ needs a contiguous tensor");
  float* p = x.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); i++) p[i] = -p[i];
}

TORCH_LIBRARY(quintet_cpp, m) {
  m.def("square_plus(Tensor x, Tensor y, float a=0.5) -> Tensor");
  m.def("negate_(Tensor(a!) x) -> ()");
}
TORCH_LIBRARY_IMPL(quintet_cpp, CPU, m) { m.impl("square_plus", square_plus); m.impl("negate_", negate_); }
TORCH_LIBRARY_IMPL(quintet_cpp, Meta, m) { m.impl("square_plus", square_plus_meta); }
TORCH_LIBRARY_IMPL(quintet_cpp, Autograd, m) { m.impl("square_plus", square_plus_autograd); }
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """A C++ extension, built with the compiler alone."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if compiler is None or not headers.exists():
        pytest.skip("building a C++ extension takes a C++ compiler and Python's headers")
    folder = tmp_path_factory.mktemp("extension")
    (folder / "ops.cpp").write_text(SOURCE)
    root = Path(torch.__file__).parent
    includes = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}", f"-I{headers.parent}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    command = [compiler, "-O0", "-std=c++20", "-shared", "-fPIC", abi, *includes, "ops.cpp", "-o", "ops.so",
               f"-L{root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    torch.ops.load_library(str(folder / "ops.so"))
    return torch.ops.quintet_cpp


# ---- metadata functions that are wrong -------------------------------------------------------------------------------

#: What an operator does, and what it says of its results.
LIES = {
    "fewer_rows": (lambda x: x[:1].clone(), torch.empty_like),
    "more_rows": (lambda x: torch.cat([x, x]), torch.empty_like),
    "another_dtype": (lambda x: x.double(), torch.empty_like),
    "a_number": (lambda x: x.sum(), lambda x: x.new_empty(3)),
    "flat": (lambda x: x.flatten() * 1, torch.empty_like),
}


@pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")
@pytest.mark.parametrize("name", LIES)
def test_a_wrong_metadata_function_is_found_out(name):
    """Kernels read a result as its metadata function says: in the first call it is looked at, and eager's answer given."""
    works, says = LIES[name]
    operator = torch.library.custom_op(f"quintet_lies::{name}", works, mutates_args=(), schema="(Tensor x) -> Tensor")
    operator.register_fake(says)

    def program(x):
        y = operator(x) * 2
        return y + 1 if name == "more_rows" else y.sum() + x

    compiled = compile_api.compile(program)
    x = torch.randn(4, 3)
    for _ in range(2):
        ours, theirs = compiled(x), program(x)
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)
    (fallback,) = compiled.report().fallbacks
    assert "register_fake" in fallback.reason and name in fallback.reason
    with pytest.raises(Exception, match="register_fake"):
        compile_api.compile(program, options={"strict": True})(x)


@pytest.mark.skipif(sys.platform != "linux", reason="builds a shared object")
def test_cpp_extension(extension):
    def program(x, y):
        z = extension.square_plus(x * 2, y + 1) - 1
        extension.negate_(z)
        extension.negate_(x)
        return z.relu() + x

    report = run(program, torch.randn(4, 5), torch.randn(4, 5))
    assert_one_graph(report, "quintet_cpp.square_plus.default", *["quintet_cpp.negate_.default"] * 2)

    def loss(x, y):
        return (extension.square_plus(x * 2, y, 3.0) * y).sum()

    x, y = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
    compiled = compile_api.compile(loss)
    ours = torch.autograd.grad(compiled(x, y), (x, y))
    torch.testing.assert_close(ours, torch.autograd.grad(loss(x, y), (x, y)))
    assert not compiled.report().fallbacks and not compiled.report().breaks
