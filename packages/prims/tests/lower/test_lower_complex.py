"""Complex values that are made of real ones stay pairs of them; the rest is called whole where a backend claims it."""

import pytest
import torch

from prims.ir import parse_text
from prims.lower import lower
from prims.reference import run_torch
from prims.report import Report

ROTARY = """
envelope aten 1.0 by test 1
input %x : float32[2, 3, 4, 2] cpu kind=input
input %f : complex64[3, 4] cpu kind=input
%0 = aten.view_as_complex.default(%x) : complex64[2, 3, 4] cpu
%1 = aten.mul.Tensor(%0, %f) : complex64[2, 3, 4] cpu
%2 = aten.view_as_real.default(%1) : float32[2, 3, 4, 2] cpu
return %2
output 0 : float32[2, 3, 4, 2] cpu kind=output
""".strip()

PRODUCT = """
envelope aten 1.0 by test 1
input %z : complex64[8, 4] cpu kind=input
input %x : float32[4, 2] cpu kind=input
%0 = aten.view_as_complex.default(%x) : complex64[4] cpu
%1 = aten.mul.Tensor(%z, %0) : complex64[8, 4] cpu
return %1
output 0 : complex64[8, 4] cpu kind=output
""".strip()


def calls(env):
    return [str(n.target) for n in env.graph.nodes if n.op == "call_function" and str(n.target).startswith("aten")]


def test_a_rotary_embedding_is_real_arithmetic():
    env = lower(parse_text(ROTARY), claims={"complex"})
    assert calls(env) == ["aten.view_as_real.default"]  # of the factors, which are an input
    x, f = torch.randn(2, 3, 4, 2), torch.randn(3, 4, dtype=torch.complex64)
    expected = torch.view_as_real(torch.view_as_complex(x) * f)
    torch.testing.assert_close(run_torch(env, [x, f])[0], expected)


def test_a_larger_complex_value_is_not_taken_apart():
    env = lower(parse_text(PRODUCT), claims={"complex"})
    assert calls(env) == ["aten.complex.default", "aten.mul.Tensor"]
    z, x = torch.randn(8, 4, dtype=torch.complex64), torch.randn(4, 2)
    torch.testing.assert_close(run_torch(env, [z, x])[0], z * torch.view_as_complex(x))


@pytest.mark.parametrize(("claims", "count"), [({"complex"}, 0), (set(), 1)])
def test_what_nobody_claims_is_a_fallback(claims, count):
    report = Report()
    lower(parse_text(PRODUCT), claims=claims, report=report)
    assert [f.reason for f in report.fallbacks if "complex numbers" in f.reason][:1] == [
        "aten.mul.Tensor: complex numbers"
    ][:count]
