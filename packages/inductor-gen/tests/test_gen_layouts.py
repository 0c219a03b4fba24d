"""Strides, sizes and dtypes: what arrives strided, what must leave strided, symbolic and zero sizes, large sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, check, laid_out, reference
from test_gen_fusion import gelu, keep, layer_norm, softmax

import inductor_gen
from inductor_gen.loops.graph import Node
from prims.lower.custom import STRIDES


@pytest.fixture(autouse=True)
def _two_threads() -> Any:
    """Parallel loops are only taken with more than one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def strided_inputs() -> list[Any]:
    base = torch.randn(12, 10, 9)
    return [
        pytest.param(base.permute(2, 0, 1), id="permuted"),
        pytest.param(base[1:9:2, 3:, ::3], id="sliced"),
        pytest.param(torch.randn(1, 10, 1).expand(6, 10, 7), id="expanded"),
        pytest.param(torch.randn(400)[37:].as_strided((5, 6, 7), (1, 5, 30)), id="offset"),
        pytest.param(torch.randn(1, 5, 1), id="ones"),
        pytest.param(torch.randn(0, 5, 3), id="empty"),
    ]


@pytest.mark.parametrize("x", strided_inputs())
def test_strided_inputs(x: torch.Tensor) -> None:
    def fn(p: Any, x: Any) -> Any:
        y = p.mul(p.sin(x), 2.0)
        return y, p.sum(y, (0, 2)), p.permute(y, (1, 2, 0)), p.reshape(y, (x.shape[0] * x.shape[1], x.shape[2]))

    check(fn, [x])


def test_outputs_have_the_strides_asked_for() -> None:
    x = torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)
    case = check(lambda p, x: p.mul(x, 2.0), [x], strides=[x.stride()])
    assert case.outputs[0].stride() == x.stride()


@pytest.mark.parametrize("step", [11, 1, 7])
@pytest.mark.parametrize("turned", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("made", ["gathered", "computed", "reduced", "sorted"])
def test_results_have_the_strides_of_dimensions_of_one_element_too(made: str, turned: Any, step: int) -> None:
    """By them eager chooses the layout of what it computes of the result."""

    def fn(p: Any, x: Any, place: Any) -> Any:
        match made:
            case "gathered":
                y = p.index(x, (place,), (0,))
            case "computed":
                y = p.reshape(p.exp(x), (11, 1, 1))
            case "reduced":
                y = p.reshape(p.sum(p.broadcast(x, (11, 1, 1, 4), (0, 1, 2)), (3,)), (11, 1, 1))
            case _:
                y = p.aten(torch.ops.aten.sort.default, x, 0)[0]
        return p.permute(p.permute(y, (1, 2, 0)), turned)

    strides = tuple(1 if d == 2 else step for d in turned)
    case = check(fn, [torch.randn(11, 1, 1), torch.arange(11).flip(0)], strides=[strides], claims=inductor_gen.claims("cpu"))
    assert case.outputs[0].stride() == strides


def test_an_input_returned_is_a_copy() -> None:
    x = torch.randn(3, 4)
    (got,) = check(lambda p, x: p.reshape(x, (4, 3)), [x]).outputs
    assert got.data_ptr() != x.data_ptr()


def test_one_value_twice_is_two_tensors() -> None:
    a, b = check(lambda p, x: (p.exp(x), p.exp(x)), [torch.randn(5)]).outputs
    assert a.data_ptr() != b.data_ptr()


def test_intermediates_follow_channels_last() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        y = p.maximum(x, 0.0)
        return p.aten(torch.ops.aten.convolution.default, y, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    x = torch.randn(2, 8, 10, 12).to(memory_format=torch.channels_last)
    w = torch.randn(4, 8, 3, 3)
    expected = torch.conv2d(x.relu(), w, padding=1)
    env = build(fn, [x, w], strides=[expected.stride()])
    (got,) = inductor_gen.compile_graph(env, options=OPTIONS)(x, w)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert got.stride() == expected.stride()


def beside_a_convolution(p: Any, x: Any, w: Any, q: Any) -> Any:
    image = p.aten(torch.ops.aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return p.mul(image, 2.0), p.mul(q, 0.5)


def test_of_what_is_saved_only_images_travel_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values are saved as they are: attention reads their rows."""
    monkeypatch.setattr(Node, "on_gpu", True)
    x, w, q = (torch.randn(s).bfloat16() for s in ((2, 8, 10, 12), (4, 8, 3, 3), (3, 17, 2, 64)))
    env = build(beside_a_convolution, [x, w, q], claims=inductor_gen.claims("cuda"))
    env = env.replace(outputs=tuple(dataclasses.replace(desc, kind="saved") for desc in env.outputs))
    image, operands = laid_out(env).outputs
    strides = [tuple(s.value for s in ref.strides) for ref in (image, operands)]
    assert strides == [(480, 1, 48, 4), (2176, 128, 64, 1)]


@pytest.mark.parametrize("concatenated", [False, True])
def test_a_matrix_and_its_transpose_are_one_copy(concatenated: bool) -> None:
    """What strides cannot express is copied once, and operators read views of the copy."""

    def fn(p: Any, g: Any, w: Any, x: Any) -> Any:
        y = p.permute(p.add(g, 1.0), (1, 0, 2))
        y = p.concat((y, p.neg(y)), 2) if concatenated else y
        y = p.reshape(y, (35, y.shape[2]))
        mm = torch.ops.aten.mm.default
        return p.aten(mm, y, w), p.aten(mm, p.permute(y, (1, 0)), x)

    width = 48 if concatenated else 24
    inputs = [torch.randn(7, 5, 24), torch.randn(width, 16), torch.randn(35, 16)]
    env = build(fn, inputs)
    copies = [n for n in laid_out(env).graph.nodes if n.op == "copy"]
    assert len(copies) == 1, copies
    check(fn, inputs)


def test_fused_attention_reads_rows() -> None:
    """Operands whose last dimension lies apart, or is one element for all, are copied."""

    def fn(p: Any, q: Any, k: Any, mask: Any) -> Any:
        turned = p.permute(k, (0, 1, 3, 2))
        op = torch.ops.aten._scaled_dot_product_cudnn_attention.default
        return p.aten(op, q, turned, turned, mask, True)[0]

    inputs = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 8, 5), torch.randn(2, 3, 5, 1).expand(2, 3, 5, 5)]
    prepared = laid_out(build(fn, inputs, claims=inductor_gen.claims("cuda")))
    ((args, _),) = prepared.externs.values()
    assert [ref.strides[-1].value for ref in args[:4]] == [1, 1, 1, 1]
    assert args[0].base.kind == "input" and args[1].base.op == args[3].base.op == "copy"


def test_fused_attention_reads_rows_that_begin_at_16_bytes() -> None:
    """In eager each operand is a fresh tensor; here a slice of an input would be a view at an odd place."""

    def fn(p: Any, x: Any, wide: Any) -> Any:
        q = p.slice(x, (0, 0, 0, 1), (2, 3, 5, 9), (1, 1, 1, 1))
        k = p.slice(wide, (0, 0, 0, 8), (2, 3, 5, 16), (1, 1, 1, 1))
        op = torch.ops.aten._scaled_dot_product_efficient_attention.default
        return p.aten(op, q, k, k, None, False)[0]

    inputs = [torch.randn(2, 3, 5, 9), torch.randn(2, 3, 5, 16)]
    prepared = laid_out(build(fn, inputs, claims=inductor_gen.claims("cuda")))
    ((args, _),) = prepared.externs.values()
    assert args[0].base.op == "copy" and args[1].base.kind == args[2].base.kind == "input"


@pytest.mark.parametrize("turned", [True, False])
def test_queries_lie_as_the_result_of_attention_is_read(turned: bool) -> None:
    """Where that is token by token, no kernel turns the result before the product that reads it."""

    def fn(p: Any, q: Any, k: Any, w: Any) -> Any:
        op = torch.ops.aten._scaled_dot_product_cudnn_attention.default
        result = p.aten(op, p.mul(q, 2.0), k, k, None, False)[0]
        result = p.permute(result, (0, 2, 1, 3)) if turned else result
        return p.dot(p.reshape(result, (10, 24)), w)

    inputs = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(24, 4)]
    prepared = laid_out(build(fn, inputs, claims=inductor_gen.claims("cuda")))
    (query, *_), _ = next(iter(prepared.externs.values()))
    assert [s.value for s in query.strides] == ([120, 8, 24, 1] if turned else [120, 40, 8, 1])
    assert not any(node.op == "copy" for node in prepared.graph.nodes)


@pytest.mark.parametrize("summed", [False, True])
def test_heads_that_queries_share_are_given_once(summed: bool) -> None:
    """Unless a backward pass will follow, which knows nothing of it."""

    def fn(p: Any, q: Any, k: Any, v: Any) -> Any:
        def repeated(x: Any) -> Any:
            return p.reshape(p.broadcast(x, (2, 3, 2, 5, 8), (0, 1, 3, 4)), (2, 6, 5, 8))

        op = torch.ops.aten._scaled_dot_product_cudnn_attention.default
        return p.aten(op, q, repeated(p.mul(k, 2.0)), repeated(v), None, summed)[0]

    inputs = [torch.randn(2, 6, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)]
    prepared = laid_out(build(fn, inputs, claims=inductor_gen.claims("cuda")))
    ((args, _),) = prepared.externs.values()
    assert [ref.shape[1].value for ref in args[:3]] == ([6, 6, 6] if summed else [6, 3, 3])
    assert sum(node.op == "copy" for node in prepared.graph.nodes) == (2 if summed else 0)


def test_the_gradient_for_cudnns_attention_lies_as_in_eager() -> None:
    """One without rows lies as the result, as PyTorch lays it out itself; the others lie as they come."""

    def fn(p: Any, grad: Any, q: Any, out: Any) -> Any:
        op = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
        return p.aten(op, p.mul(grad, 2.0), q, q, q, out, None, None, None, None, None, None, 5, 5, 0.0, False)[0]

    plain, tokens, spread = (120, 40, 8, 1), (120, 8, 24, 1), (0, 0, 0, 0)
    inputs = [torch.randn(2, 3, 5, 8), torch.randn(2, 5, 3, 8).transpose(1, 2), torch.randn(2, 5, 3, 8).transpose(1, 2)]
    for known, wanted in ((tokens, tokens), (plain, plain), (spread, tokens)):
        env = build(fn, inputs, claims=inductor_gen.claims("cuda"))
        (node,) = (n for n in env.graph.nodes if "cudnn" in str(n.target))
        node.meta[STRIDES] = (known, *([tokens] * 4))
        ((args, _),) = laid_out(env).externs.values()
        assert tuple(s.value for s in args[0].strides) == wanted
        assert all(ref.base.kind == "input" for ref in args[1:5])


SHAPES = [(3, 5), (2, 2), (700, 33), (2, 5000), (64, 64)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda p, x: softmax(p, x),
        lambda p, x: softmax(p, x, 0),
        lambda p, x: gelu(p, x),
        lambda p, x: (p.sum(x, (0, 1)), p.amax(x, (0,)), p.argmax(x, 1)),
        lambda p, x: p.reshape(p.permute(p.exp(x), (1, 0)), (x.shape[0] * x.shape[1],)),
        lambda p, x: p.concat((x, p.mul(x, 2.0)), 1),
        lambda p, x: p.pad(x, 1.5, (1, 0), (0, 2)),
        lambda p, x: p.cumsum(p.flip(x, (1,)), 1),
        lambda p, x: p.sub(x, keep(p, p.div(p.sum(x, (1,)), x.shape[1]), x, (1,))),
    ],
    ids=["softmax", "softmax0", "gelu", "reductions", "transpose", "concat", "pad", "cumsum", "center"],
)
def test_symbolic_sizes_serve_every_size(fn: Any) -> None:
    first = torch.randn(*SHAPES[0])
    env = build(fn, [first], dynamic={0: (0, 1)})
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    for shape in SHAPES:
        x = torch.randn(*shape)
        for got, want in zip(compiled(x), reference(fn, [x], False), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)
            assert got.is_contiguous()


def test_symbolic_sizes_through_an_extern() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        y = p.aten(torch.ops.aten.mm.default, p.reshape(x, (x.shape[0] * x.shape[1], 16)), p.permute(w, (1, 0)))
        return p.maximum(p.reshape(y, (x.shape[0], x.shape[1], 8)), 0.0)

    w = torch.randn(8, 16)
    env = build(fn, [torch.randn(3, 5, 16), w], dynamic={0: (0, 1)})
    compiled = inductor_gen.compile_graph(env, options=OPTIONS)
    for shape in [(3, 5, 16), (4, 9, 16)]:
        x = torch.randn(*shape)
        torch.testing.assert_close(compiled(x, w)[0], (x @ w.t()).relu(), rtol=1e-5, atol=1e-5)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(300, 700), (1, 200_000), (40_000, 6), (7, 5, 3000)], ids=str)
def test_large_reductions_are_as_accurate_as_eager(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.rand(shape).to(dtype)
    last = len(shape) - 1
    dims = [(last,), (0,), tuple(range(len(shape)))]

    def fn(p: Any, x: Any) -> Any:
        return tuple(p.sum(x, d) for d in dims) + tuple(p.amax(x, d) for d in dims)

    env = build(fn, [x])
    outputs = inductor_gen.compile_graph(env, options=OPTIONS)(x)
    for got, d in zip(outputs[:3], dims, strict=True):
        exact = x.double().sum(d)
        eager = (x.sum(d).double() - exact).abs().max()
        mine = (got.double() - exact).abs().max()
        floor = exact.abs().max() * torch.finfo(dtype).eps
        assert mine <= 2 * eager + floor, (mine, eager)
    for got, d in zip(outputs[3:], dims, strict=True):
        torch.testing.assert_close(got, x.amax(d), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_of_many_rows(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(500, 257).to(dtype), torch.randn(257).to(dtype), torch.randn(257).to(dtype)

    def fn(p: Any, x: Any, w: Any, b: Any) -> Any:
        wide = tuple(p.convert(v, torch.float32) if dtype.itemsize < 4 else v for v in (x, w, b))
        y = layer_norm(p, *wide)
        return p.convert(y, dtype) if dtype.itemsize < 4 else y

    (got,) = inductor_gen.compile_graph(build(fn, [x, w, b]), options=OPTIONS)(x, w, b)
    exact = torch.nn.functional.layer_norm(x.double(), (257,), w.double(), b.double())
    eager = torch.nn.functional.layer_norm(x, (257,), w, b)
    assert (got.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-14


def test_nan_and_infinity_pass_through_reductions() -> None:
    x = torch.randn(40, 5000)
    x[3, 77], x[5, 9], x[6, 4] = float("nan"), float("inf"), float("-inf")
    check(lambda p, x: (p.amax(x, (1,)), p.amin(x, (0,)), p.amax(x, (0, 1)), p.argmax(x, 1), p.argmin(x, 0)), [x])


def test_zero_sized_reductions() -> None:
    check(lambda p, x: (p.sum(x, (1,)), p.prod(x, (0, 1)), p.any(p.gt(x, 0.0), (1,))), [torch.randn(4, 0)])


def test_mean_of_everything_then_use() -> None:
    def fn(p: Any, x: Any) -> Any:
        m = p.div(p.sum(x, (0, 1)), float(x.shape[0] * x.shape[1]))
        return p.sub(x, p.broadcast(m, x.shape, ()))

    check(fn, [torch.randn(300, 400)], tol=1e-5)


def test_embedding_and_its_gradient() -> None:
    def fn(p: Any, table: Any, ids: Any, grad: Any) -> Any:
        zero = p.full(table.shape, 0.0, torch.float32, torch.device("cpu"))
        return p.index(table, (ids,), (0,)), p.index_put(zero, (ids,), (0,), grad, True)

    ids = torch.randint(-50, 50, (8, 40))
    check(fn, [torch.randn(50, 64), ids, torch.randn(8, 40, 64)], tol=1e-5)


def test_many_dimensions() -> None:
    x = torch.randn(2, 3, 4, 2, 3, 2)
    check(lambda p, x: p.add(p.permute(x, (5, 0, 3, 1, 4, 2)), 1.0), [x])
    check(lambda p, x: p.sum(x, (0, 2, 5)), [x], tol=1e-5)


def test_random_operators_keep_their_order_and_always_run() -> None:
    def fn(p: Any, x: Any) -> Any:
        first = p.aten(torch.ops.aten.bernoulli.p, x, 0.5)
        p.aten(torch.ops.aten.bernoulli.p, x, 0.5)
        third = p.aten(torch.ops.aten.bernoulli.p, p.exp(x), 0.25)
        return third, first

    x = torch.randn(100)
    compiled = inductor_gen.compile_graph(build(fn, [x], claims=frozenset({"aten.bernoulli.p"})), options=OPTIONS)
    assert len(compiled.externs) == 3
    torch.manual_seed(0)
    third, first = compiled(x)
    torch.manual_seed(0)
    wanted = [torch.ops.aten.bernoulli.p(x, p) for p in (0.5, 0.5, 0.25)]
    assert torch.equal(first, wanted[0]) and torch.equal(third, wanted[2])


def test_scans_of_one_element_and_of_a_broadcast() -> None:
    def fn(p: Any, x: Any, y: Any) -> Any:
        return p.cumsum(x, 0), p.cumsum(p.broadcast(y, (5, 4), ()), 1), p.cumprod(p.cumsum(x, 0), 0)

    check(fn, [torch.randn(1), torch.randn(())])


@pytest.mark.parametrize("shape", [(7, 300), (7, 3), (300, 7)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_that_is_read_again_after_a_reduction_starts_anew(dim: int, shape: tuple[int, int]) -> None:
    def over(p: Any, x: Any) -> Any:
        return p.broadcast(x, shape, (1 - dim,))

    def fn(p: Any, x: Any) -> Any:
        total = over(p, p.sum(x, (dim,)))
        added, multiplied = p.cumsum(x, dim), p.cumprod(x, dim)
        centred = p.sub(added, over(p, p.amax(added, (dim,))))
        again = p.mul(p.cumsum(p.add(added, total), dim), added)
        return p.mul(total, multiplied), centred, again, p.sub(added, over(p, p.sum(again, (dim,))))

    check(fn, [torch.rand(shape, dtype=torch.float64) * 0.4 + 0.8])


def test_kernels_of_equal_text_and_different_names() -> None:
    check(lambda p, x: (p.sum(x, (0,)), p.amax(x, (0,))), [torch.randn(1, 7)], options=OPTIONS.replace(cache=False))


@pytest.mark.parametrize("shape", [(64, 96), (100, 33), (3, 70, 130), (40, 5, 64)], ids=str)
def test_transpositions_go_in_patches(shape: tuple[int, ...]) -> None:
    order = tuple(reversed(range(len(shape))))
    case = check(lambda p, x, y: p.add(p.permute(x, order), y), [torch.randn(shape), torch.randn(shape[::-1])])
    assert case.kernels == 1


@pytest.mark.parametrize("rows", [0, 4])
def test_halves_of_an_empty_tensor(rows: int) -> None:
    def fn(p: Any, x: Any) -> Any:
        x = p.convert(x, torch.float32)
        a = p.slice(x, (0, 0), (x.shape[0], 1), (1, 1))
        b = p.slice(x, (0, 1), (x.shape[0], 2), (1, 1))
        return p.convert(p.mul(a, p.sigmoid(b)), torch.bfloat16)

    check(fn, [torch.randn(rows, 2).bfloat16()])


def test_a_product_used_along_and_across_a_tile() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        scaled = p.mul(w, 2.0)
        y = p.mul(x, p.broadcast(scaled, x.shape, (1,)))
        total = p.sum(p.broadcast(scaled, x.shape, (1,)), (0,))
        return p.sum(y, (0,)), total, p.add(y, p.broadcast(total, x.shape, (1,)))

    check(fn, [torch.randn(50, 300), torch.randn(300)], tol=1e-4)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("around", ["flip", "permute", "reshape", "both"])
def test_scans_and_first_occurrences_keep_their_order(dim: int, around: str) -> None:
    def turn(p: Any, x: Any) -> Any:
        if around in ("flip", "both"):
            x = p.flip(x, (dim,))
        if around in ("permute", "both"):
            x = p.permute(x, (1, 0))
        if around == "reshape":
            x = p.reshape(p.permute(p.reshape(x, (4, 6, 20)), (1, 0, 2)), (24, 20))
        return x

    def fn(p: Any, x: Any, ties: Any) -> Any:
        y = turn(p, p.add(x, 1.0))
        scanned = p.cumsum(y, dim)
        back = turn(p, p.mul(scanned, 2.0))
        t = turn(p, p.mul(ties, 2))
        return back, p.cumprod(y, dim), p.argmax(t, dim), p.argmin(t, dim), p.add(p.cumsum(back, dim), x if (
            back.shape == x.shape) else p.permute(x, (1, 0)))  # fmt: skip

    x = torch.rand(24, 20) * 0.1
    check(fn, [x, torch.randint(0, 3, (24, 20))], tol=1e-4)
