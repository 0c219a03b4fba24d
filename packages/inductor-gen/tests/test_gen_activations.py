"""Linear layers with a tanh-approximated gelu in one operator, as on a GPU; here the nodes only claim to be there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.kernel.ir import Call
from inductor_gen.loops.graph import Node
from inductor_gen.pipeline import lower_graph
from prims.options import Options

ADDMM = torch.ops.aten.addmm.default


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "on_gpu", True)


def formula(p: Any, x: Any) -> Any:
    """gelu as language models write it, the cube rounded to the operands' type."""
    wide = p.convert(x, torch.float32)
    cube = p.convert(p.mul(p.mul(wide, wide), wide), x.dtype)
    inner = p.mul(p.add(x, p.mul(cube, 0.044715)), math.sqrt(2 / math.pi))
    return p.mul(p.mul(x, 0.5), p.add(p.tanh(inner), 1.0))


def factored(p: Any, x: Any) -> Any:
    """The same otherwise."""
    square = p.mul(x, x)
    inner = p.mul(p.mul(x, 0.7978845608028654), p.add(p.mul(square, 0.044715), 1.0))
    return p.mul(p.mul(p.add(p.tanh(inner), 1.0), 0.5), x)


def almost(p: Any, x: Any) -> Any:
    """Another constant."""
    inner = p.mul(p.add(x, p.mul(p.mul(p.mul(x, x), x), 0.0447)), 0.7978845608028654)
    return p.mul(p.mul(x, 0.5), p.add(p.tanh(inner), 1.0))


def lowered(activation: Any, dtype: torch.dtype = torch.bfloat16, columns: int = 48, **flags: bool) -> tuple[Any, Any]:
    """The unit and the compiled graph of two layers with an activation between them, and the inputs."""

    def fn(p: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
        y = p.aten(ADDMM, b, p.reshape(x, (10, 16)), w)
        y = p.reshape(y, (2, 5, columns))
        z = activation(p, y)
        out = p.dot(p.reshape(z, (10, columns)), v)
        return (out, y) if flags.get("kept") else p.add(p.sum(z, (0, 1)), 1.0) if flags.get("summed") else out

    shapes = ((2, 5, 16), (16, columns), (columns,), (columns, 8))
    inputs = [torch.randn(s).mul(0.5).to(dtype) for s in shapes]
    env = build(fn, inputs, claims=inductor_gen.claims("cpu"))
    unit = lower_graph(env, Options(verify="off"))
    return [c.node.op for c in unit.calls if isinstance(c, Call)], (fn, env, inputs)


@pytest.mark.parametrize("activation", [formula, factored])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gelu_becomes_part_of_the_product(activation: Any, dtype: torch.dtype) -> None:
    ops, (_, env, (x, w, b, v)) = lowered(activation, dtype)
    assert ops == ["aten._addmm_activation.default", "dot"]
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"))
    assert not compiled.kernels
    hidden = torch.nn.functional.gelu((x.double().view(10, 16) @ w.double() + b.double()), approximate="tanh")
    # on the CPU the operator's gelu is the exact one, at most 5e-4 off
    torch.testing.assert_close(compiled(x, w, b, v)[0].double(), hidden @ v.double(), rtol=0.03, atol=0.05)


@pytest.mark.parametrize(
    "case",
    [
        {"activation": almost},
        {"activation": lambda p, y: p.mul(formula(p, y), y)},
        {"activation": formula, "dtype": torch.float32},
        {"activation": formula, "columns": 44},
        {"activation": formula, "kept": True},
        {"activation": formula, "summed": True},
    ],
    ids=["constant", "more", "float32", "misaligned", "kept", "fused"],
)
def test_what_is_no_gelu_or_read_by_others_stays(case: dict[str, Any]) -> None:
    assert "aten._addmm_activation.default" not in lowered(**case)[0]
