"""Attention on a GPU with symbolic sizes: one fused operator, and no size made a number.

The operator that C++ takes for numbers cannot be asked here: a build of PyTorch without CUDA has none to choose from.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from prims.spec import SymbolContext, SymbolicCalls, TensorSpec, abstract_from_spec, calls, contiguous_strides, spec_of
from prims.spec.expr import evaluate
from prims.spec.rules import attention

GPU = torch.device("cuda")


class Recorder(TorchDispatchMode):
    """The names of the attention operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def run(length: Any, dtype: torch.dtype, mask: str | None, head: int) -> tuple[torch.Tensor, list[str]]:
    def tensor(*shape: Any, kind: torch.dtype = dtype) -> torch.Tensor:
        return abstract_from_spec(TensorSpec(shape, kind, GPU, contiguous_strides(shape)))

    query, key, value = (tensor(2, 4, length, head) for _ in range(3))
    bias = tensor(2, 1, length, length) if mask else None
    with SymbolicCalls(), Recorder() as recorder:
        out = F.scaled_dot_product_attention(query, key, value, bias, is_causal=mask is None)
    return out, recorder.calls


@pytest.mark.parametrize("mask", [None, "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head", [16, 64])
def test_symbolic_lengths_take_one_fused_kernel_without_a_guard(
    dtype: torch.dtype, mask: str | None, head: int
) -> None:
    context = SymbolContext()
    length = context.new_symbol(96, "length", min=2, max=512)
    out, calls = run(length, dtype, mask, head)
    assert [str(guard.expr) for guard in context.guards] == []
    kernel = "efficient" if dtype == torch.float32 else "cudnn"
    assert calls == [f"aten._scaled_dot_product_{kernel}_attention.default"]
    assert tuple(out.shape[:2]) == (2, 4) and type(out.shape[2]) is torch.SymInt and out.shape[3] == head


@pytest.mark.parametrize("steps", ["dense", "one for all", "turned"])
@pytest.mark.parametrize("kind", ["bools", "numbers"])
@pytest.mark.parametrize("head", [5, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_any_layout_need_no_guard(dtype: torch.dtype, head: int, kind: str, steps: str) -> None:
    """A mask that fused kernels refuse, as one that ``expand`` makes of a column, takes the formula's operators."""
    context = SymbolContext()
    length = context.new_symbol(96, "length", min=2, max=512)
    strides = {"dense": (length * length, 0, length, 1), "one for all": (0, 0, 1, 0), "turned": (0, 0, 1, length)}[steps]

    def tensor(shape: Any, dtype: torch.dtype, strides: Any) -> torch.Tensor:
        return abstract_from_spec(TensorSpec(shape, dtype, GPU, strides))

    shape = (2, 4, length, head)
    query, key, value = (tensor(shape, dtype, contiguous_strides(shape)) for _ in range(3))
    mask = tensor((2, 1, length, length), torch.bool if kind == "bools" else dtype, strides)
    with SymbolicCalls():
        out = F.scaled_dot_product_attention(query, key, value, mask)
    assert [str(guard.expr) for guard in context.guards] == []
    assert type(out.shape[2]) is torch.SymInt and out.dtype == dtype


REFUSED = {
    "a mask of integers": {"attn_mask": torch.int64},
    "a mask of another type": {"attn_mask": torch.float64},
    "a mask beside causal": {"attn_mask": torch.float32, "is_causal": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    context = SymbolContext()
    length = context.new_symbol(6, "length", min=2, max=512)
    options = dict(REFUSED[name])
    kind = options.pop("attn_mask")

    def run(length: Any) -> None:
        def tensor(shape: Any, dtype: torch.dtype) -> torch.Tensor:
            spec = TensorSpec(shape, dtype, GPU, contiguous_strides(shape))
            return torch.ones(shape, dtype=dtype) if length == 6 and type(length) is int else abstract_from_spec(spec)

        # No fused kernel serves operands whose last dimension has steps.
        query, key, value = (tensor((2, 4, 8, length), torch.float32).mT for _ in range(3))
        F.scaled_dot_product_attention(query, key, value, tensor((length, length), kind), **options)

    with pytest.raises(RuntimeError) as eager:
        run(6)
    with SymbolicCalls(), pytest.raises(RuntimeError) as ours:
        run(length)
    assert str(ours.value).partition("\n")[0] == str(eager.value).partition("\n")[0]


FORMULAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bools": {"attn_mask": torch.rand(2, 1, 6, 6) > 0.3},
    "nothing to see": {"attn_mask": torch.zeros(6, 6, dtype=torch.bool)},
    "numbers": {"attn_mask": torch.randn(6, 6)},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.3},
    "scale": {"scale": 0.3},
    "a negative scale": {"scale": -0.5},
    "no scale": {"scale": 0.0},
    "shared heads": {"enable_gqa": True},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_has_eagers_bits(name: str, dtype: torch.dtype, reduced: bool) -> None:
    """And its gradients', for the operators are the same."""
    options = dict(FORMULAS[name])
    mask = options.pop("attn_mask", None)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    drop, causal, scale, shared = (options.get(k, d) for k, d in
                                   (("dropout_p", 0.0), ("is_causal", False), ("scale", None), ("enable_gqa", False)))  # fmt: skip
    shapes = [(2, 4, 6, 8)] + [(2, 2 if shared else 4, 6, 8)] * 2
    operands = [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]
    bias = mask if mask is None or mask.dtype != torch.bool else torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduced)
    try:
        results = []
        for run in (
            lambda q, k, v: calls._attention_by_parts(q, k, v, mask, drop, causal, scale, shared),
            lambda q, k, v: torch.ops.aten._scaled_dot_product_attention_math(
                q, k, v, bias, drop, causal, scale=scale, enable_gqa=shared
            )[0],
        ):
            torch.manual_seed(0)
            out = run(*operands)
            results.append([out, *torch.autograd.grad(out.float().sin().sum(), operands)])
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)
    for ours, eagers in zip(*results, strict=True):
        assert ours.dtype == eagers.dtype and torch.equal(ours.nan_to_num(7.0), eagers.nan_to_num(7.0))


def laid_out(shape: tuple[int, ...], layout: str) -> torch.Tensor:
    *lead, width = shape
    return {
        "dense": torch.empty(shape),
        "steps": torch.empty(*lead, 2 * width)[..., ::2],
        "turned": torch.empty(*lead[:-1], width, lead[-1]).transpose(-1, -2),
        "one for all": torch.empty(*lead, 1).expand(shape),
    }[layout]


@pytest.mark.parametrize("layouts", list(itertools.product(("dense", "steps", "turned", "one for all"), repeat=3)))
@pytest.mark.parametrize("width", [1, 8])
def test_the_choice_on_a_cpu_is_pytorchs(width: int, layouts: tuple[str, ...]) -> None:
    q, k, v = (laid_out((2, 4, 6, width), layout) for layout in layouts)
    assert attention.sdp_choice(spec_of(q), spec_of(k), spec_of(v), None, 0.0, False) == torch._fused_sdp_choice(q, k, v)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What PyTorch is asked about, with a GPU as the CPU."""
    seen: list[Any] = []

    def choice(*operands: Any, **_: Any) -> int:
        assert all(type(x) is torch.Tensor for x in operands[:3])
        seen.append(operands)
        return attention.FLASH

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, device, **kw: empty(*sizes, **kw))
    return seen


def given(context: SymbolContext | None, shape: tuple[int, ...]) -> TensorSpec:
    """Metadata with these sizes; a symbol for each of them but heads and 1, equal ones for equal sizes."""
    sizes = [n if context is None or n == 1 else context.new_symbol(n, "n", min=2) for n in shape]
    return TensorSpec(tuple(sizes), torch.float16, GPU)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_pytorch_is_asked_about_small_tensors_like_these(causal: bool, symbolic: bool, asked: list[Any]) -> None:
    context = SymbolContext() if symbolic else None
    q, k = given(context, (300, 12, 4096, 64)), given(context, (300, 12, 5000, 64))
    with SymbolicCalls(), Recorder() as recorder:
        assert attention.sdp_choice(q, k, k, None, 0.0, causal) == attention.FLASH
    assert recorder.calls == []
    (small_q, small_k, small_v, mask, dropout, is_causal) = asked[0]
    assert tuple(small_q.shape) == (2, 2, 2, 64) and mask is None and dropout == 0.0 and is_causal is causal
    assert tuple(small_k.shape) == tuple(small_v.shape) == (2, 2, 3 if causal else 2, 64)
    if context is not None:
        compared = [g for g in context.guards if str(q.shape[2].expr) in str(g.expr)]
        assert len(compared) == causal  # with the keys' length


@pytest.mark.parametrize(
    "shapes, small",
    [
        (((1, 8, 1, 64), (1, 2, 9, 64), None), ((1, 4, 1, 64), (1, 2, 2, 64), None)),
        (((3, 8, 7, 64), (3, 8, 9, 64), (7, 9)), ((2, 2, 2, 64), (2, 2, 2, 64), (2, 2))),
        (((3, 8, 7, 64), (3, 8, 9, 64), (3, 1, 1, 9)), ((2, 2, 2, 64), (2, 2, 2, 64), (2, 1, 1, 2))),
        (((3, 8, 7, 64), (3, 8, 1, 64), (1, 8, 7, 1)), ((2, 2, 2, 64), (2, 2, 1, 64), (1, 2, 2, 1))),
    ],
)
@pytest.mark.parametrize("dense", [True, False])
def test_ones_shared_heads_and_rows_with_gaps(shapes: Any, small: Any, dense: bool, asked: list[Any]) -> None:
    specs = [None if s is None else TensorSpec(s, torch.float16, GPU) for s in (shapes[0], shapes[1], shapes[1], shapes[2])]
    if not dense:
        last = 2 if specs[3] is None else 3
        specs[last] = specs[last].replace(strides=tuple(2 * s for s in specs[last].strides))
    shared = shapes[0][1] != shapes[1][1]
    attention.sdp_choice(*specs, 0.0, False, shared)
    (operands,) = asked
    sizes = [None if x is None else tuple(x.shape) for x in operands[:4]]
    assert sizes == [small[0], small[1], small[1], small[2]]
    assert [x.stride(-1) == 1 for x in operands[:4] if x is not None].count(False) == (0 if dense else 1)


def test_widths_of_heads_are_guarded_by_what_pytorch_asks(asked: list[Any]) -> None:
    context = SymbolContext()
    width = context.new_symbol(80, "width", min=2)
    x = TensorSpec((2, 4, 6, width), torch.float16, GPU)
    attention.sdp_choice(x, x, x, None, 0.0, False)
    assert asked[0][0].shape[3] == 80
    kept = [n for n in range(2, 300) if all(evaluate(g.expr, {str(width.expr): n}) for g in context.guards)]
    assert kept == [72, 80, 88, 96, 104, 112, 120, 128]


def test_heads_of_one_width_stay_so(asked: list[Any]) -> None:
    context = SymbolContext()
    first, second = (context.new_symbol(64, name, min=2) for name in ("first", "second"))
    q, v = (TensorSpec((2, 4, 6, width), torch.float16, GPU) for width in (first, second))
    attention.sdp_choice(q, q, v, None, 0.0, False)
    holds = lambda a, b: all(evaluate(g.expr, {str(first.expr): a, str(second.expr): b}) for g in context.guards)
    assert holds(64, 64) and holds(40, 40) and not holds(64, 40)
