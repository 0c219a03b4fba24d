"""``torch.use_deterministic_algorithms``: on a GPU what is scattered is added up in an order of its own by atomics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build

import inductor_gen
from inductor_gen.pipeline import lower_graph
from prims.errors import Unsupported


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def summed(p: Any, x: Any, at: Any, values: Any) -> Any:
    return p.index_put(x, (at,), (0,), values, True)


INPUTS = [torch.zeros(5, 3), torch.tensor([1, 4, 1, 0]), torch.randn(4, 3)]


def test_the_gpus_own_kernels_sum(deterministic: None) -> None:
    name = "aten.index_put.default"
    assert name in inductor_gen.claims("cuda") and name not in inductor_gen.claims("cpu")
    op = torch.ops.aten.index_put.default
    env = build(lambda p, x, at, v: p.mul(p.aten(op, x, [at], v, True), 2.0), INPUTS, claims=inductor_gen.claims("cuda"))
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    assert compiled.externs == (name,)
    x, at, values = INPUTS
    torch.testing.assert_close(compiled(*INPUTS)[0], x.index_put((at,), values, accumulate=True) * 2)


def test_no_atomic_addition_of_floating_numbers(deterministic: None) -> None:
    with pytest.raises(Unsupported, match="deterministic algorithms"):
        lower_graph(build(summed, INPUTS), OPTIONS, triton=True)
    whole = [t.long() for t in INPUTS]
    lower_graph(build(summed, whole), OPTIONS, triton=True)  # integers have one sum


def test_atomics_otherwise() -> None:
    assert "aten.index_put.default" not in inductor_gen.claims("cuda")
    lower_graph(build(summed, INPUTS), OPTIONS, triton=True)
