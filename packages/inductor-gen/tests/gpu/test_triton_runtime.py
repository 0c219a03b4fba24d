"""What of the GPU's runtime can be tested without a GPU: Triton to machine code, and the launcher with a made-up driver."""

from __future__ import annotations

import importlib.util
import os
import threading
import types

import pytest
import torch
from gen_support import build
from gradient_cases import normalized

import inductor_gen
from inductor_gen.extern import cuda
from inductor_gen.extern.cuda import with_aligned_rows
from inductor_gen.pipeline import lower_graph
from inductor_gen.runtime.triton_build import compile_kernel, load_module_text, module_text
from prims.errors import Refused, Unsupported
from prims.options import Options

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def sources(fn, inputs, **kw):
    """The Triton kernels of ``fn(p, *values)``."""
    unit = lower_graph(build(fn, inputs, **kw), Options(verify="off"), triton=True)
    return unit.sources()


def softmax(p, a):
    top = p.broadcast(p.amax(a, (1,)), a.shape, (0,))
    e = p.exp(p.sub(a, top))
    return p.div(e, p.broadcast(p.sum(e, (1,)), a.shape, (0,)))


def test_text_repeats_and_equal_layers_share_it():
    one = sources(softmax, [torch.randn(64, 100)])
    two = sources(softmax, [torch.randn(64, 100)])
    assert [s.text for s in one] == [s.text for s in two] and len(one) == 1
    both = sources(lambda p, a, b: (softmax(p, a), softmax(p, b)), [torch.randn(64, 100), torch.randn(64, 100)])
    (launch,) = both
    assert module_text(both).count(f"def {one[0].name}_part(") == 1 and module_text(both).count("_part(") == 3
    assert [s.text for s in launch.joined] == [one[0].text] * 2


def test_layers_that_draw_at_different_places_share_a_kernel():
    def drawn(at):
        return sources(
            lambda p, seed: p.random_uniform((512, 512), seed, at, torch.float32, seed.device), [torch.tensor(7)]
        )

    found = [source for at in (2048, 4096) for source in drawn(at)]
    assert len(found) == 2 and len({s.name for s in found}) == 1 and found[0].sizes != found[1].sizes


def test_split_reduction_has_two_kernels():
    assert len(sources(lambda p, a: p.sum(a, (0, 1)), [torch.randn(1000, 100)])) == 2


def test_positions_beyond_31_bits_are_64_bit():
    x = torch.empty(1, device="meta").expand(2**31 + 5)
    text = sources(lambda p, a: p.neg(a), [x])[0].text
    assert ".to(tl.int64)" in text and ":i64" in text
    assert ".to(tl.int64)" not in sources(lambda p, a: p.neg(a), [torch.randn(50)])[0].text


def lowered(fn, inputs, **kw):
    env = build(fn, inputs, **kw)
    unit = lower_graph(env, Options(verify="off"), triton=True)
    text = "".join(s.text for s in unit.sources())
    return text, [str(guard.expr) for guard in env.symbols.context.guards]


def test_symbolic_sizes_are_guarded_where_positions_are_32_bit():
    def fn(p, a, b):
        return p.add(a, b), p.sum(p.mul(a, b), (1,))

    small = [torch.empty(40, 300, device="meta")] * 2
    text, guards = lowered(fn, small, dynamic={0: (0, 1), 1: (0, 1)})
    assert guards == [f"s0*s1 <= {2**31 - 2**16 - 1}"] and "int64" not in text
    large = [torch.empty(2**16, 2**15 + 1, device="meta")] * 2
    text, guards = lowered(fn, large, dynamic={0: (0, 1), 1: (0, 1)})
    assert not guards and ".to(tl.int64)" in text


def test_strides_count_too():
    far = torch.empty(3000, 2**20, device="meta")[:, :10]
    index = torch.zeros(3000, dtype=torch.int32, device="meta")
    assert ".to(tl.int64)" in lowered(lambda p, a: p.neg(a), [far])[0]
    text, _ = lowered(lambda p, a, i: p.index(a, (i,), (0,)), [far, index])
    assert "tl.load" in text and ".to(tl.int64)" in text


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    found = sources(softmax, [torch.randn(64, 100)]) + sources(
        lambda p, a, b: p.tanh(p.add(p.permute(a, (1, 0)), b)), [torch.randn(40, 70), torch.randn(70, 40)]
    )
    module = load_module_text(module_text(found), tmp_path)
    for source in found:
        cubin, name, shared = compile_kernel(module, source, (9, 0))
        assert cubin[:4] == b"\x7fELF" and name == source.name and shared >= 0


@needs_triton
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_what_norms_divide_compile(dim, tmp_path):
    """Triton 3.6 failed on those of short rows of unknown length."""
    for shape in [(4, 2), (2, 4), (300, 7), (20, 3000)]:
        found = sources(normalized(dim), [torch.randn(shape)] * 2, dynamic={0: (0, 1), 1: (0, 1)})
        module = load_module_text(module_text(found), tmp_path)
        for source in found:
            assert compile_kernel(module, source, (9, 0))[0][:4] == b"\x7fELF"


def test_numbers_beside_integers_compile(tmp_path):
    """A power of a number, and a negative number beside bytes."""
    powers = sources(lambda p, e: p.pow(2, e), [torch.arange(40)])
    bytes_ = sources(lambda p, x: p.mul(-1, x), [torch.arange(40, dtype=torch.uint8)])
    module = load_module_text(module_text(powers + bytes_), tmp_path)
    for source in powers + bytes_:
        assert compile_kernel(module, source, (9, 0))[0][:4] == b"\x7fELF"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [32, 33, 40, 1])
def test_rows_of_a_bias_are_aligned(columns, dtype):
    plain = torch.randn(2, 3, 5, columns).to(dtype)
    shared = torch.randn(2, 1, 5, columns).to(dtype).expand(2, 3, 5, columns)
    for bias in (plain, shared, plain.transpose(0, 1), torch.randn(2, 3, columns, 5).to(dtype).mT):
        aligned = with_aligned_rows(bias)
        assert torch.equal(aligned, bias)
        assert aligned.stride(-1) == 1 and all(s * bias.element_size() % 16 == 0 for s in aligned.stride()[:-1])
    assert with_aligned_rows(shared).stride(1) == 0
    assert with_aligned_rows(None) is None
    if columns in (32, 40):
        assert with_aligned_rows(plain) is plain


def test_cudnns_backward_is_asked_once_for_what_it_refuses(monkeypatch):
    """Then the memory-efficient attention does both passes; here plain arithmetic stands in for its kernels."""
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3)
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(out, (q, k, v), grad)
    asked = []

    def refuses(*args, **kw):
        asked.append(args)
        raise RuntimeError("No valid execution plans")

    def forward(q, k, v, bias, summed, dropout, causal, *, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, scale=scale), *[torch.zeros(())] * 3

    def backward(grad, q, k, v, bias, out, summed, seed, offset, dropout, mask, causal, *, scale):
        leaves = [t.detach().requires_grad_() for t in (q, k, v)]
        again = torch.nn.functional.scaled_dot_product_attention(*leaves, bias, scale=scale)
        return *torch.autograd.grad(again, leaves, grad), None

    fakes = {"cudnn_attention_backward": refuses, "efficient_attention": forward, "efficient_attention_backward": backward}
    aten = {f"_scaled_dot_product_{name}": types.SimpleNamespace(default=fake) for name, fake in fakes.items()}
    ops = types.SimpleNamespace(aten=types.SimpleNamespace(**aten))
    monkeypatch.setattr(cuda, "torch", types.SimpleNamespace(ops=ops, OutOfMemoryError=torch.OutOfMemoryError))
    monkeypatch.setattr(cuda, "_REFUSED", set())
    rest = (out, None, None, None, None, None, None, 5, 5, 0.0, False)
    for _ in range(2):
        found = cuda.cudnn_attention_backward(grad, q.detach(), k.detach(), v.detach(), *rest, scale=0.3)
        torch.testing.assert_close(found, wanted)
    assert len(asked) == 1
    with pytest.raises(Refused, match="No valid"):  # dropout's mask is cuDNN's own
        cuda.cudnn_attention_backward(grad[:1], q[:1], k[:1], v[:1], out[:1], *rest[1:-2], 0.5, False, scale=0.3)


def test_heads_are_repeated_where_cudnn_refuses_to_share_them(monkeypatch):
    """It is asked once."""
    asked = []

    def fused(q, k, v, bias, summed, dropout, causal, *, scale):
        asked.append(k.shape[1])
        if k.shape[1] != q.shape[1]:
            raise RuntimeError("No valid execution plans")
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, dropout, causal, scale=scale),)

    aten = types.SimpleNamespace(_scaled_dot_product_cudnn_attention=types.SimpleNamespace(default=fused))
    fake = types.SimpleNamespace(ops=types.SimpleNamespace(aten=aten), OutOfMemoryError=torch.OutOfMemoryError)
    monkeypatch.setattr(cuda, "torch", fake)
    monkeypatch.setattr(cuda, "_REFUSED", set())
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for _ in range(2):
        found = cuda.cudnn_attention(q, k, v, None, False, 0.0, True, scale=8**-0.5)
        torch.testing.assert_close(found[0], wanted)
    assert asked == [3, 6, 6]


def given_to_cudnn(monkeypatch):
    """The operands of each call of cuDNN's backward, which computes nothing here."""
    given = []
    op = types.SimpleNamespace(default=lambda *args, **kw: given.append(args))
    aten = types.SimpleNamespace(_scaled_dot_product_cudnn_attention_backward=op)
    stand_in = types.SimpleNamespace(ops=types.SimpleNamespace(aten=aten), empty_strided=torch.empty_strided)
    monkeypatch.setattr(cuda, "torch", stand_in)
    monkeypatch.setattr(cuda, "_PLANS", threading.local())
    return given


def test_cudnns_backward_is_given_rows(monkeypatch):
    """It refuses operands whose last dimension has another stride than 1."""
    given = given_to_cudnn(monkeypatch)
    turned = [torch.randn(2, 3, 8, 5).mT for _ in range(5)]
    cuda.cudnn_attention_backward(*turned, None, None, None, None, None, None, 5, 5, 0.0, False)
    for got, want in zip(given[0], turned, strict=False):
        assert got.stride(-1) == 1 and torch.equal(got, want)


def test_cudnns_backward_is_given_one_layout_of_results_and_gradients(monkeypatch):
    """PyTorch's plans are kept by queries, keys, values and bias alone, and hold for the layouts that they were made for."""
    given = given_to_cudnn(monkeypatch)
    plain, turned = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 3, 8).transpose(1, 2)
    rest = (None, None, None, None, None, None, 5, 5, 0.0)
    for grad, query, out, causal in (
        (turned, plain, plain, False), (plain, plain, turned, False), (plain, turned, turned, False),
        (turned, plain, turned, True), (plain[..., :1].expand(2, 3, 5, 8), plain, plain, False),
    ):  # fmt: skip
        cuda.cudnn_attention_backward(grad, query, plain, plain, out, *rest, causal)
        assert torch.equal(given[-1][0], grad) and torch.equal(given[-1][4], out)
    layouts = [(args[0].stride(), args[4].stride()) for args in given]
    first, other = (turned.stride(), plain.stride()), (plain.stride(), turned.stride())
    assert layouts == [first, first, other, (turned.stride(),) * 2, first]
    thread = threading.Thread(target=cuda.cudnn_attention_backward, args=(plain, plain, plain, plain, plain, *rest, False))
    thread.start()
    thread.join()
    assert given[-1][0].stride() == plain.stride()  # plans are kept by thread


@needs_triton
def test_cpu_kernels_need_the_interpreter():
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter is on")
    with pytest.raises(Unsupported, match="TRITON_INTERPRET"):
        inductor_gen.compile_graph(build(softmax, [torch.randn(4, 5)]), options=Options(), triton=True)


def test_operators_with_several_results_on_a_gpu_are_called_as_there():
    from inductor_gen.extern.calls import function_for
    from inductor_gen.loops.graph import Node
    from prims.spec import TensorSpec

    def function(device):
        spec = TensorSpec((2, 3, 5, 8), torch.float32, torch.device(device))
        node = Node(0, "extern", "aten._scaled_dot_product_efficient_attention_backward.default", (), (spec, None, spec))
        node.target = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
        return function_for(node)[0]

    assert function("cuda") == "efficient_attention_backward"
    assert function("cpu") == "aten._scaled_dot_product_efficient_attention_backward.default"
