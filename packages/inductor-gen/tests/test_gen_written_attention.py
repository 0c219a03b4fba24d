"""Attention that programs write out becomes a fused kernel, where that gives the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gen_support import build, check

import inductor_gen
from inductor_gen.device.record import known
from inductor_gen.pipeline import rewritten_graph
from prims.options import Options
from prims.spec import TensorSpec

aten = torch.ops.aten
ROW = "written attention"
B, H, T, D = 2, 3, 128, 16


def softmax(p: Any, x: Any, wide: bool = False) -> Any:
    """As ``softmax(x, -1)`` becomes primitives; ``wide``: in float32."""
    narrow, x = x.dtype, p.convert(x, torch.float32) if wide else x
    dims = tuple(range(x.ndim - 1))
    e = p.exp(p.sub(x, p.broadcast(p.amax(x, (x.ndim - 1,)), x.shape, dims)))
    return p.convert(p.div(e, p.broadcast(p.sum(e, (x.ndim - 1,)), x.shape, dims)), narrow)


def scores(p: Any, q: Any, k: Any) -> Any:
    """``[B, H, T, T]`` of ``[B, H, T, D]``, through a product of three dimensions."""
    width = q.shape[3]
    turned = p.reshape(p.permute(k, (0, 1, 3, 2)), (B * H, width, T))
    return p.reshape(p.aten(aten.bmm.default, p.reshape(q, (B * H, T, width)), turned), (B, H, T, T))


def weighted(p: Any, weights: Any, v: Any) -> Any:
    flat = p.aten(aten.bmm.default, p.reshape(weights, (B * H, T, T)), p.reshape(v, (B * H, T, v.shape[3])))
    return p.neg(p.reshape(flat, tuple(v.shape)))


def attention(change: Any = None, wide: bool = False) -> Any:
    """A program whose scores ``change(p, scores, *more)`` scales and masks."""

    def fn(p: Any, q: Any, k: Any, v: Any, *more: Any) -> Any:
        x = scores(p, q, k)
        return weighted(p, softmax(p, x if change is None else change(p, x, *more), wide), v)

    return fn


def later(p: Any, x: Any, ahead: int = 1) -> Any:
    """What comes at least so much later, as ``triu`` gives it."""
    place = p.iota(T, 0, 1, torch.int64, x.device)
    apart = p.sub(p.broadcast(place, (T, T), (1,)), p.broadcast(place, (T, T), (0,)))
    return p.broadcast(p.ge(apart, ahead), (B, H, T, T), (2, 3))


def hiding(number: float, ahead: int = 1) -> Any:
    return lambda p, x: p.where(later(p, x, ahead), number, p.div(x, 4.0))


def padded(p: Any, x: Any, given: Any) -> Any:
    """A padding mask as language models make it: truth values times the lowest number."""
    mask = p.mul(p.convert(p.logical_not(given), x.dtype), torch.finfo(x.dtype).min)
    return p.add(p.mul(x, 0.25), p.broadcast(mask, (B, H, T, T), (0, 3)))


def flat(p: Any, q: Any, k: Any, v: Any) -> Any:
    """Of three dimensions throughout."""
    q, k, v = (p.reshape(x, (B * H, T, D)) for x in (p.mul(q, 0.25), k, v))
    weights = softmax(p, p.aten(aten.bmm.default, q, p.permute(k, (0, 2, 1))))
    return p.neg(p.aten(aten.bmm.default, weights, v))


LOWEST = torch.finfo(torch.float32).min
SEEN = torch.rand(B, T) > 0.3
SEEN[:, 0] = True

#: name -> a program, its inputs beside queries, keys and values, and whether it becomes causal.
SAME: dict[str, tuple[Any, list[torch.Tensor], bool]] = {
    "plain": (attention(), [], False),
    "scaled": (attention(lambda p, x: p.mul(p.div(x, 8.0), 2.0)), [], False),
    "in float32": (attention(wide=True), [], False),
    "causal by minus infinity": (attention(hiding(-math.inf)), [], True),
    "causal by the lowest number": (attention(hiding(LOWEST)), [], True),
    "a few ahead": (attention(hiding(-math.inf, 4)), [], False),
    "rows that see nothing, by the lowest number": (attention(hiding(LOWEST, -3)), [], False),
    "padded": (attention(padded), [SEEN], False),
    "three dimensions": (flat, [], False),
}


def operands(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(B, T, H, D, dtype=dtype).transpose(1, 2) for _ in range(3)]


@pytest.mark.parametrize("name", SAME)
def test_a_formula_is_the_fused_kernel(name: str) -> None:
    fn, more, causal = SAME[name]
    inputs = [*operands(), *more]
    made = rewritten_graph(build(fn, inputs), Options(verify="every_pass"))
    (call,) = [n for n in made.graph.nodes if n.kind == "extern"]
    assert made.fired == {ROW: 1} and "flash_attention_for_cpu" in call.op
    assert call.args[4] is causal and (call.kwargs["attn_mask"] is None) == (causal or name in list(SAME)[:3] + ["three dimensions"])
    check(fn, inputs, tol=1e-5, options=Options(verify="every_pass"))


def unscaled_mask(p: Any, x: Any, given: Any) -> Any:
    return p.mul(p.add(x, p.broadcast(p.convert(given, x.dtype), (B, H, T, T), (0, 3))), 0.5)


def twice(p: Any, q: Any, k: Any, v: Any) -> Any:
    weights = softmax(p, scores(p, q, k))
    return weighted(p, weights, v), weights


def other_axis(p: Any, q: Any, k: Any, v: Any) -> Any:
    x = scores(p, q, k)
    e = p.exp(p.sub(x, p.broadcast(p.amax(x, (2,)), x.shape, (0, 1, 3))))
    return weighted(p, p.div(e, p.broadcast(p.sum(e, (2,)), x.shape, (0, 1, 3))), v)


BIAS = torch.randn(B, H, T, T)
#: Programs that stay as they are.
OTHER: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "rows that see nothing give NaN": (attention(hiding(-math.inf, -3)), []),
    "minus infinity may be given": (attention(lambda p, x, b: p.add(x, b)), [BIAS]),
    "minus infinity by what is given": (
        attention(lambda p, x, s: p.where(p.broadcast(s, (B, H, T, T), (0, 3)), x, -math.inf)), [SEEN],
    ),
    "hidden by a number that scores may reach": (attention(hiding(-1e4)), []),
    "a mask that is scaled": (attention(unscaled_mask), [SEEN]),
    "weights that are given too": (twice, []),
    "another axis": (other_axis, []),
    "scores by another function": (attention(lambda p, x: p.tanh(x)), []),
}  # fmt: skip


@pytest.mark.parametrize("why", OTHER)
def test_what_is_something_else_stays(why: str) -> None:
    fn, more = OTHER[why]
    assert not rewritten_graph(build(fn, [*operands(), *more]), Options(verify="every_pass")).fired
    check(fn, [*operands(), *more], tol=1e-5)


def test_short_ones_stay() -> None:
    """A fused kernel works at whole blocks."""
    x = torch.randn(1, 40, D)
    fn = lambda p, q, k, v: p.aten(aten.bmm.default, softmax(p, p.aten(aten.bmm.default, q, p.permute(k, (0, 2, 1)))), v)
    assert not rewritten_graph(build(fn, [x, x + 1, x + 2]), Options(verify="every_pass")).fired


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
def test_where_roundings_count_it_stays(numerics: str) -> None:
    assert not rewritten_graph(build(attention(), operands()), Options(verify="off", numerics=numerics)).fired


@pytest.mark.parametrize(
    "dtype,width,mask,kernel",
    [
        (torch.bfloat16, 16, False, "cudnn"), (torch.float16, 16, True, "cudnn"),
        (torch.float16, 160, False, "flash"), (torch.float16, 160, True, "efficient"), (torch.float32, 16, False, "efficient"),
    ],
)  # fmt: skip
def test_on_a_gpu_it_is_the_kernel_that_pytorch_would_choose(
    dtype: torch.dtype, width: int, mask: bool, kernel: str
) -> None:
    gpu = torch.device("cuda", 0)
    specs = [TensorSpec((B, H, T, width), dtype, gpu)] * 3
    more = [TensorSpec((B, T), torch.bool, gpu)] if mask else []
    env = build(attention(padded if mask else None), [*specs, *more], claims=inductor_gen.claims("cuda"))
    made = rewritten_graph(env, Options(verify="every_pass"), devices=lambda _: known("H200"))
    assert [n.op for n in made.graph.nodes if n.kind == "extern"] == [f"aten._scaled_dot_product_{kernel}_attention.default"]
