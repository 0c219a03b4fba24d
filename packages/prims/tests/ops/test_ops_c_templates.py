"""The C templates of all elementwise rows, compiled with gcc, conform to the references in every dtype."""

import ctypes
import math
import subprocess

import prims_c_harness as harness
import pytest
import torch

from prims.conformance import check_backend
from prims.ops import TABLE
from prims.ops.templates import c_expr, c_literal, c_prelude, c_type

pytestmark = pytest.mark.skipif(harness.compiler() is None, reason="no gcc")
DTYPES = TABLE["eq"].dtypes


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return harness.CBackend(tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def branchless(tmp_path_factory):
    return harness.CBackend(tmp_path_factory.mktemp("branchless"), branchless=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_choices_without_branches_conform(branchless, dtype):
    chosen = [name for name in ("where", "maximum", "minimum", "fmax", "fmin") if dtype in TABLE[name].dtypes]
    report = check_backend(branchless, ops=chosen, dtypes=[dtype])
    assert report.ok and not report.unsupported, str(report)
    for name in chosen:
        plain, bits = (c_expr(TABLE[name], ["x", "y", "z"], dtype, way) for way in (False, True))
        assert "?" not in bits and ("?" in plain) == (plain != bits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_choices_without_branches_keep_every_bit(branchless, dtype):
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -5e-324, 1.0]
    x, y = (t.flatten() for t in torch.meshgrid(*[torch.tensor(special, dtype=dtype)] * 2, indexing="ij"))
    for c in (torch.zeros(64), torch.ones(64), torch.arange(64) % 2):
        got = branchless(TABLE["where"], (c.bool(), x, y))
        want = torch.where(c.bool(), x, y)
        whole = torch.int32 if dtype == torch.float32 else torch.int64
        assert torch.equal(got.view(whole), want.view(whole))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_templates_conform(backend, dtype):
    report = check_backend(backend, dtypes=[dtype])
    assert report.ok, str(report)
    done = {op.name for op in TABLE.values() if dtype in op.dtypes} - set(report.unsupported)
    assert {"eq", "where", "convert", "logical_and"} <= done
    elementwise = {op.name for op in TABLE.values() if op.c is not None and dtype in op.dtypes}
    assert elementwise <= done


def test_bodies_are_vectorised(backend):
    """libm calls go to libmvec, and no helper call is left in the hot branch-free rows."""
    library = backend.library(torch.float32)
    symbols = subprocess.run(["nm", "-D", library._name], capture_output=True, text=True).stdout
    if "_ZGV" not in symbols:
        pytest.skip("this gcc or glibc has no libmvec")
    for name in ("tanhf", "erfcf", "logf", "powf", "sinf"):
        assert f"v_{name}" in symbols or f"vv_{name}" in symbols, name
    assert "v_expm1f" not in symbols and "U expm1f" not in symbols  # arithmetic: compilers make vectors themselves


@pytest.mark.parametrize("name, limit", [("exp", 1.0), ("expm1", 1.6)])
def test_exponentials_are_right_to_a_unit_for_all_floats(backend, name, limit):
    """Every 1,021st float32: what overflows, what is subnormal, NaNs and infinities are like the others. The limits hold
    for processors without fused operations too."""
    x = torch.arange(-(2**31), 2**31, 1021).to(torch.int32).view(torch.float32)
    got, want = backend(TABLE[name], (x,)), getattr(torch, name)(x.double())
    rounded = want.float()
    assert torch.equal(got.isnan(), want.isnan())
    edge = (rounded == 0) | rounded.isinf()
    assert torch.equal(got[edge], rounded[edge]) and torch.equal(got[edge].signbit(), rounded[edge].signbit())
    some = ~edge & ~want.isnan()
    exponent = torch.frexp(rounded[some].double()).exponent.clamp(min=-125)
    units = (got[some].double() - want[some]).abs() / 2.0 ** (exponent - 24).double()
    assert units.max() <= limit and (got[some] != rounded[some]).double().mean() < 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_literals(dtype, tmp_path):
    if dtype.is_floating_point:
        values = [0.0, -0.0, 1.0, 0.1, -2.5, 1e30, 1e-30, 3.4e38, math.pi, math.inf, -math.inf, math.nan, 7]
    elif dtype == torch.bool:
        values = [False, True]
    else:
        info = torch.iinfo(dtype)
        values = [0, 1, info.max, info.min, 5, True]
    ctype = c_type(dtype)
    text = f"{ctype} values[] = {{{', '.join(c_literal(v, dtype) for v in values)}}};\n"
    (tmp_path / "l.c").write_text(c_prelude(text) + text)
    so = tmp_path / "l.so"
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", str(tmp_path / "l.c"), "-o", str(so)], check=True)
    library = ctypes.CDLL(str(so))
    store = harness.storage(dtype)
    address = ctypes.addressof(ctypes.c_char.in_dll(library, "values"))
    raw = ctypes.string_at(address, len(values) * store.itemsize)
    got = torch.frombuffer(bytearray(raw), dtype=store)
    want = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else store).to(store)
    assert torch.equal(got.nan_to_num(1.25), want.nan_to_num(1.25))
    if dtype.is_floating_point:
        assert torch.equal(torch.signbit(got), torch.signbit(want))
        assert torch.equal(got.isnan(), want.isnan())


def test_integer_division_by_zero_does_not_trap(backend):
    x = torch.tensor([1, -1, -(2**63), 0])
    for name in ("trunc_div", "floor_div", "remainder", "fmod"):
        assert backend(TABLE[name], (x, torch.zeros_like(x))).tolist() == [0, 0, 0, 0]
        low = backend(TABLE[name], (x, -torch.ones_like(x)))
        assert low.tolist() == ([-1, 1, -(2**63), 0] if name.endswith("div") else [0, 0, 0, 0])


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_floats_to_integers_of_fewer_bits(backend, source):
    """Eager's are those of an integer of 32 bits, of unsigned bytes those of one of 64: past their ends, too."""
    x = torch.tensor([3000019712.0, -3007654321.0, 8589938695.0, 300.75, -300.75, 70000.0, 1e20, math.inf, -math.inf, math.nan])
    for target in (torch.int8, torch.int16, torch.uint8, torch.int32, torch.int64):
        assert torch.equal(backend(TABLE["convert"], (x.to(source), target)), x.to(source).to(target)), target


def test_prelude_has_only_what_is_used():
    assert "q_philox" not in c_prelude("float y = expf(x);")
    assert "float expf(float);" in c_prelude("float y = expf(x);")
    assert "simd" not in c_prelude("float y = expf(x);", simd=False)
    text = c_prelude("q_normal32(seed, offset, i)")
    assert text.index("q_philox4(") < text.index("q_normal32(") and "cosf" in text
