"""Remainders of floats, and the number after another, have libm's bits, in the vectors that compilers make of them."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import prims_c_harness as harness
import pytest
import torch

from prims.ops import TABLE, templates

pytestmark = pytest.mark.skipif(harness.compiler() is None, reason="no gcc")
NAMES = ("fmod", "remainder", "floor_div", "nextafter")
FLOATS = [torch.float32, torch.float64]
#: Instructions that a processor may lack.
WITHOUT = {"all": [], "no AVX2": ["-mno-avx2"], "no FMA": ["-mno-fma"], "no AVX": ["-mno-avx"]}


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers where something begins or ends: zeros, subnormal and normal numbers, whole ones, infinities, NaN."""
    info = torch.finfo(dtype)
    # From a quarter of the last whole number with a fraction beside it on, quotients are taken otherwise.
    edge = 2.0 ** {torch.float32: 21, torch.float64: 50}.get(dtype, 8)
    starts = [0.0, info.smallest_normal, 1.0, 2.0, 0.1, 3.0, 0.7, edge, 2 * edge, 4 * edge, 8 * edge, info.max, float("inf")]
    x = torch.tensor(starts, dtype=torch.float64).to(dtype)
    if dtype in FLOATS:
        x = torch.cat([x, torch.nextafter(x, torch.zeros_like(x)), torch.nextafter(x, x + torch.inf)])
    return torch.cat([x, -x, torch.tensor([float("nan")], dtype=dtype)])


def any_bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Numbers of all exponents."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    words = torch.randint(-(2**63), 2**63 - 1, (count,))
    return (words >> (64 - 8 * dtype.itemsize)).to(whole).view(dtype)


def operands(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Dividends and divisors: special ones, any two, any two that are near, and multiples with their neighbours."""
    torch.manual_seed(0)
    pairs = list(zip(*itertools.product(special(dtype).tolist(), repeat=2), strict=True))
    x, y = (torch.tensor(side, dtype=dtype) for side in pairs)
    cases = [(x, y), (any_bits(dtype, 4099), any_bits(dtype, 4099))]
    b = any_bits(dtype, 4099)
    cases.append((b * torch.randn(4099).exp().to(dtype) * 1000, b))
    times = (torch.rand(4099, dtype=torch.float64) * 2.0 ** (torch.rand(4099) * 60)).floor().to(dtype)
    product = torch.randn(4099).to(dtype) * times
    cases.append((product, product / times))
    if dtype in FLOATS:
        cases.append((torch.nextafter(product, torch.zeros_like(product)), product / times))
        cases.append((torch.nextafter(product, product * 2), product / times))
    return cases


def wanted(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What numpy has, of libm's functions."""
    with np.errstate(all="ignore"):
        a, b = x.numpy(), y.numpy()
        rest = np.fmod(a, b)
        if name in ("fmod", "nextafter"):
            return torch.from_numpy(rest if name == "fmod" else np.nextafter(a, b))
        if name == "remainder":
            return torch.from_numpy(np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest))
        q = (a - rest) / b
        q = np.where((rest != 0) & ((rest < 0) != (b < 0)), q - 1, q)
        whole = np.floor(q)
        whole = np.where(q - whole > 0.5, whole + 1, whole)
        whole = np.where(q == 0, np.copysign(np.zeros_like(a), a / b), whole)
        return torch.from_numpy(np.where(b == 0, a / b, whole))


def differ(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where the bits do, but those of a NaN."""
    whole = torch.int32 if got.dtype == torch.float32 else torch.int64
    return (got.view(whole) != want.view(whole)) & ~(got.isnan() & want.isnan())


@pytest.mark.parametrize("flags", WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_bits_are_those_of_libm(dtype: torch.dtype, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(harness, "FLAGS", [*harness.FLAGS, *flags])
    backend = harness.CBackend(tmp_path)
    for x, y in operands(dtype):
        for name in NAMES:
            for length in (len(x), 1, 2, 3, 5, 7, 13):  # what is left after whole vectors, too
                got, want = backend(TABLE[name], (x[:length], y[:length])), wanted(name, x[:length], y[:length])
                bad = differ(got, want)
                assert not bad.any(), (name, x[:length][bad][:3], y[:length][bad][:3], got[bad][:3], want[bad][:3])


def test_fmod_without_functions_for_lanes(tmp_path: Path):
    """The text that other compilers see, by gcc."""
    text = templates.c_prelude("q_fmodf").replace("!defined(__clang__)", "0")
    loop = "void f(int64_t n, const float *a, const float *b, float *o) { for (; n; n--) *o++ = q_fmodf(*a++, *b++); }"
    (tmp_path / "f.c").write_text(text + loop)
    made = [str(tmp_path / "f.c"), "-o", str(tmp_path / "f.so"), "-lm"]
    subprocess.run(["gcc", *harness.FLAGS, "-fno-builtin-fmodf", *made], check=True)
    function = ctypes.CDLL(str(tmp_path / "f.so")).f
    for x, y in operands(torch.float32):
        got = torch.empty_like(x)
        function(ctypes.c_int64(len(x)), *(ctypes.c_void_p(t.data_ptr()) for t in (x, y, got)))
        assert not differ(got, wanted("fmod", x, y)).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_loops_call_fmod_by_vectors(dtype: torch.dtype, tmp_path: Path):
    known = subprocess.run(
        [shutil.which("gcc"), *harness.FLAGS, "-dM", "-E", "-xc", "/dev/null"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    if not re.search(r"__FMA__ 1", known) or "__x86_64__" not in known or "__clang__" in known:
        pytest.skip("gcc and a processor with fused operations are needed")
    source = tmp_path / "all.c"
    source.write_text(harness.elementwise_source(dtype))
    done = ["gcc", *harness.FLAGS, "-S", str(source), "-o", "-"]
    text = subprocess.run(done, capture_output=True, text=True, check=True).stdout
    for name in ("fmod", "remainder", "floor_div"):
        body = text.split(f"\nprim_{name}:", 1)[1].split(".cfi_endproc", 1)[0]
        assert re.search(r"call\s+_ZGV[bcde]N\d+vv_fmod", body), name
    body = text.split("\nprim_nextafter:", 1)[1].split(".cfi_endproc", 1)[0]
    assert "call" not in body and re.search(r"vpadd[dq]\s", body)


def test_text_has_only_the_functions_it_uses():
    assert "_ZGV" not in templates.c_prelude("fmodf(x, 1.0f)")
    text = templates.c_prelude("q_remainderf(x, y)")
    assert "N8vv_fmodf" in text and "vv_fmod(" not in text
    assert templates.stays_scalar("fmod") and not templates.stays_scalar("nextafter")
