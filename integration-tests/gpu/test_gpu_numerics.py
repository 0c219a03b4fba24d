"""``numerics="eager_exact"`` and ``"eager_close"`` on a GPU: the CPU's programs and models, and eager's products.

All operators: ``python integration-tests/sweeps/sweep_op_db.py --device cuda --numerics eager_exact --dtype float32 bfloat16
float16 --forward --grad --jobs 8``.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from numeric_cases import DTYPES, EXACT, MODELS, STEPS, operands, program, steps
from on_gpu import DEVICE, gpu_case
from sweeps.agreement import other_bits
from test_special_gradients import LOSSES, REDUCTIONS, agree, in_pairs
from zoo import tensors

import compile_api


def moved(values):
    return [value.to(DEVICE) for value in values]


@pytest.mark.parametrize("numerics", ["eager_exact", "eager_close"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_rounded_once_is_fused_and_exact(seed, dtype, numerics):
    f = program(seed)
    compiled = compile_api.compile(f, fullgraph=True, options={"numerics": numerics, "strict": True})
    x, y = moved(operands(dtype, seed))
    assert other_bits(list(compiled(x, y)), list(f(x, y)), 0) is None
    report = compiled.report()
    assert not report.externs and not report.fallbacks and not report.inexact
    assert max(len(kernel.ops) for kernel in report.kernels) > 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_each_step(name, dtype):
    x, y = moved(operands(dtype, 0))
    compiled = compile_api.compile(STEPS[name], options=EXACT)
    assert other_bits([compiled(x, y)], [STEPS[name](x, y)], 0) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "residual"])
def test_training_gives_eagers_bits(name, dtype):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to(DEVICE, dtype)
    model(torch.randn(shape).to(DEVICE, dtype))  # lazy layers
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(twin, fullgraph=True, options=EXACT)
    assert other_bits(steps(twin, compiled, shape, dtype), steps(model, model, shape, dtype), 1) is None
    assert not compiled.report().fallbacks


def test_batch_norm_in_training_is_named():
    """cuDNN's kernel may compute it in eager, so that its bits are not promised, which the report says."""
    make, shape = MODELS["residual"]
    model = make().to(DEVICE)
    compiled = compile_api.compile(model, fullgraph=True, options=EXACT)
    compiled(torch.randn(shape, device=DEVICE)).sum().backward()
    named = {record.op for record in compiled.report().inexact}
    assert named == {"aten._native_batch_norm_legit_functional.default", "aten.native_batch_norm_backward.default"}
    assert "not eager's bits" in str(compiled.report())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["transformer", "convnet", "bert", "gpt2", "llama"])
def test_models_give_eagers_bits(name, dtype):
    case = gpu_case(name, dtype, small=True)
    # The program as captured: models of libraries take another branch where ``torch.compiler.is_compiling()``.
    eager = compile_api.compile(case.model, backend="eager")
    with torch.no_grad():
        ours = tensors(compile_api.compile(case.model, options=EXACT)(*case.args, **case.kwargs))
        theirs = tensors(eager(*case.args, **case.kwargs))
    assert other_bits(ours, theirs, 0) is None


@pytest.mark.parametrize("extremum", [torch.max, torch.min, torch.median, torch.nanmedian])
def test_gradients_shared_among_equals_are_products_with_a_mask(extremum):
    """On the CPU eager fills zeros in instead: no zero is negative there, and no infinite gradient makes NaN."""
    for weight in (1.0, -1.0, float("-inf")):
        found = []
        for run in (extremum, compile_api.compile(extremum)):
            x = torch.tensor([1.0, 3.0, 3.0, -2.0, -2.0], device="cuda", requires_grad=True)
            found += torch.autograd.grad(run(x), x, torch.tensor(weight, device="cuda"))
        torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(*((x.signbit() & ~x.isnan()) for x in found))


NO_INTEGERS = [
    math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e10, -1e10, 2.0**31, -(2.0**31), 70000.0, -70000.0, 40000.0, -40000.0,
    32767.5, -32768.5, 300.0, -300.0, 127.5, -128.5, 255.9, 256.2, 9.3e18, -9.3e18, 1.9e19, -1.0,
]  # fmt: skip


@pytest.mark.parametrize("target", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_numbers_that_an_integer_does_not_hold(dtype, target):
    """Narrow integers have the low bits of wide ones, as eager's compiler makes them."""
    compiled = compile_api.compile(lambda x: (x * 1).to(target), options={"strict": True})
    x = torch.tensor(NO_INTEGERS, dtype=torch.float64).to(dtype).to(DEVICE)
    assert torch.equal(compiled(x), x.to(target))
    assert compiled.report().kernels


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses_of_special_values(name, reduction):
    agree(lambda x, y: LOSSES[name](x, y, reduction=reduction), tuple(x.to(DEVICE) for x in in_pairs(torch.float32)))
