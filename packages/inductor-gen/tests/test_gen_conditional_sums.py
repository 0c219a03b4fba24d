"""Sums that add nothing where a condition holds, in loops of ``omp simd reduction``, and unrolled steps under a condition: by
the compiler and flags at hand.

Told apart by the condition, a loop's paths read and write a partial sum on one of them only; gcc then takes the lanes of the
sum for an array that the loop walks through, and counts what lies behind it. Of unrolled steps it reads an operand on one
path only then, for which it uses the mask of the first of several vectors.
"""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from inductor_gen.device.cpu import ask
from inductor_gen.runtime import compiler
from inductor_gen.runtime.compiler import Compiler, find_compiler
from inductor_gen.runtime.libraries import FLAGS, OF_GCC

TEXT = """
#include <stdint.h>
#include <string.h>
static inline float rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (x != x) ? 0x7fc00000u : (bits + 0x7fffu + ((bits >> 16) & 1)) & 0xffff0000u;
    memcpy(&x, &bits, 4);
    return x;
}
void sums(float* restrict out, const float* restrict in, const int64_t* restrict w, double* res, int64_t n) {
    SUM s = 0;
    double whole = 0;
    for (int64_t b = 0; b < n; b += 256) {
        const int64_t e = n - b < 256 ? n : b + 256;
        float part = 0;
        #pragma omp simd reduction(+:s,part)
        for (int64_t i = b; i < e; i++) {
            const float v = in[i];
            const int above = v > 0.0f;
            const float lower = v * 0.2f;
            const float x = ROUNDED(above ? v : lower);
            const int c = (CONDITION);
            s += (TERM);
            part += (c ? 0.0f : x);
            out[i] = x;
        }
        whole += part;
    }
    res[0] = (double)s;
    res[1] = whole;
}
"""
TERMS = {
    "count": ("int64_t", "(int64_t)(c == 0)", lambda x, w: np.ones_like(w)),
    "constant": ("int64_t", "(c ? 0 : (int64_t)3)", lambda x, w: np.full_like(w, 3)),
    "integers": ("int64_t", "(c ? 0 : w[i])", lambda x, w: w),
    "doubles": ("double", "(c ? 0.0 : (double)x)", lambda x, w: x.astype(np.float64)),
    "floats": ("float", "(float)(c == 0)", lambda x, w: np.ones_like(w)),
}
CONDITIONS = {"nan": ("x != x", lambda x: x != x), "above": ("x > 0.5f", lambda x: x > 0.5)}


def _rounded(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("size", [37, 331])
@pytest.mark.parametrize("rounds", [False, True], ids=["as it is", "rounded"])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("term", TERMS)
def test_sums_are_those_of_the_terms(term, condition, rounds, size, tmp_path):
    kind, text, terms = TERMS[term]
    source = TEXT.replace("SUM", kind).replace("TERM", text).replace("CONDITION", CONDITIONS[condition][0])
    source = source.replace("ROUNDED", "rounded" if rounds else "")
    (tmp_path / "sums.c").write_text(source)
    compiler = find_compiler()
    subprocess.run([*compiler.command, *compiler.flags_of(source), "sums.c", "-o", "sums.so", "-lm"], cwd=tmp_path, check=True)
    given = np.linspace(-1, 1.5, size).astype(np.float32)
    numbers = np.where(given > 0, given, given * np.float32(0.2))
    numbers = _rounded(numbers) if rounds else numbers
    weights = np.arange(size, dtype=np.int64) % 7
    out, found = np.zeros_like(given), np.zeros(2)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (out, given, weights, found)]
    ctypes.CDLL(str(tmp_path / "sums.so")).sums(*pointers, ctypes.c_int64(size))
    left = ~CONDITIONS[condition][1](numbers)
    assert np.array_equal(out, numbers)
    np.testing.assert_allclose(found, [terms(numbers, weights)[left].sum(), numbers[left].sum()], rtol=1e-5)


STEPS = """
#include <stdint.h>
#include <math.h>
void steps(float* restrict out0, float* restrict out1, const float* restrict in0, const float* restrict in1, int64_t n) {
    #pragma omp simd
    for (int64_t i1 = 0; i1 < n; i1++) {
        const int first = (i1 == 0);
        #pragma GCC unroll 4
        for (int64_t i0 = 0; i0 < STEPS; i0++) {
            const float a = FUNCTION(in0[i0 + i1 * STEPS]) * 2.0f;
            const float other = (first ? 0.0f : a);
            const float b = in1[i0 + i1 * STEPS];
            const float kept = (first ? 0.0f : b);
            out0[i0 * n + i1] = other;
            out1[i0 + i1 * STEPS] = DIVIDED;
        }
    }
}
"""


@pytest.mark.parametrize("size", [2, 8, 37])
@pytest.mark.parametrize("divided", ["kept / a", "(kept * 2.0f) / a"])
@pytest.mark.parametrize("function", ["", "sqrtf"])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_steps_under_a_condition_are_those_of_their_lanes(steps, function, divided, size, tmp_path):
    source = STEPS.replace("STEPS", str(steps)).replace("FUNCTION", function).replace("DIVIDED", divided)
    (tmp_path / "steps.c").write_text(source)
    compiler = find_compiler()
    subprocess.run([*compiler.command, *compiler.flags_of(source), "steps.c", "-o", "steps.so", "-lm"], cwd=tmp_path, check=True)
    a, b = (np.arange(k, size * steps + k, dtype=np.float32).reshape(size, steps) for k in (1, 3))
    turned, found = np.zeros((steps, size), np.float32), np.zeros_like(b)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (turned, found, a, b)]
    ctypes.CDLL(str(tmp_path / "steps.so")).steps(*pointers, ctypes.c_int64(size))
    root = (np.sqrt(a) if function else a) * np.float32(2)
    lasting = np.arange(size)[:, None] > 0
    np.testing.assert_array_equal(turned, np.where(lasting, root, 0).T)
    np.testing.assert_array_equal(found, np.where(lasting, b * np.float32(2 if "*" in divided else 1), 0) / root)


def test_other_compilers_are_not_told_gccs_flags():
    gcc = Compiler(("gcc",), "gcc 13\nCopyright (C) 2023 Free Software Foundation, Inc.")
    assert gcc.flags[: len(FLAGS)] == FLAGS and gcc.flags_of(TEXT) == gcc.flags
    assert OF_GCC <= set(FLAGS) and not OF_GCC & set(Compiler(("zig", "cc"), "clang version 20.1").flags)


@pytest.mark.parametrize(("bytes_wide", "told"), [(16, ()), (32, ("-mprefer-vector-width=256",)), (64, ())])
def test_gcc_uses_vectors_as_wide_as_the_processors(monkeypatch, bytes_wide, told):
    record = replace(ask(torch.device("cpu")), vector_bytes=bytes_wide)
    monkeypatch.setattr(compiler, "ask", lambda device: record)
    compiler._whole_vectors.cache_clear()
    try:
        gcc = Compiler(("gcc",), "Free Software Foundation")
        assert gcc.flags == (*FLAGS, *told)
        assert set(gcc.flags_of(SUM.replace("LINE", "v0"))) == {*FLAGS, *told} - OF_GCC
        assert "-mprefer-vector-width=256" not in Compiler(("zig", "cc"), "clang version 20.1").flags
    finally:
        compiler._whole_vectors.cache_clear()


SUM = """int k(void* const* p_, const int64_t* n_) {
    for (int64_t b_ = 0; b_ < n0; b_ += 256) {
        const int64_t e_ = n0 - b_ < 256 ? n0 : b_ + 256;
        #pragma omp simd reduction(+:v1c)
        for (int64_t i0 = b_; i0 < e_; i0++) {
            const float v0 = in1[i0];
            v1c += LINE;
        }
    }
}"""


@pytest.mark.parametrize(("line", "apart"), [
    ("v0 * v0", False), ("v0", False), ("(v0 > v2 ? v0 : v2)", True), ("(v0 != v0)", True), ("(v0 < v2)", True),
    ("q_round_bf16(v0)", True), ("(v0 == v2)", True), ("(!v0)", True), ("(v0 && v2)", True),
])  # fmt: skip
def test_sums_of_arithmetic_alone_are_compiled_as_others_are(line, apart):
    gcc = Compiler(("gcc",), "Free Software Foundation")
    assert (OF_GCC <= set(gcc.flags_of(SUM.replace("LINE", line)))) is apart
    other = SUM.replace("LINE", line).replace("reduction(", "safelen(")
    assert not OF_GCC & set(gcc.flags_of(other))
    unrolled = other.replace("            v1c", "            #pragma GCC unroll 4\n            for (int i1 = 0; i1 < 4; i1++)\n v1c")
    assert (OF_GCC <= set(gcc.flags_of(unrolled))) is apart
