"""What is fused: the number of kernels of common patterns, their results, and where work is not repeated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import build, check, compile_fn, lines_run

import inductor_gen
from inductor_gen.pipeline import lower_graph
from prims.errors import VerifierError
from prims.options import Options


def keep(p: Any, v: Any, like: Any, dims: tuple[int, ...]) -> Any:
    """A reduction's result, broadcast back over the dimensions that it dropped."""
    n = len(like.shape)
    shape = tuple(1 if d in dims else like.shape[d] for d in range(n))
    return p.broadcast(p.reshape(v, shape), like.shape, tuple(range(n)))


def softmax(p: Any, x: Any, dim: int = -1) -> Any:
    dims = (dim % len(x.shape),)
    e = p.exp(p.sub(x, keep(p, p.amax(x, dims), x, dims)))
    return p.div(e, keep(p, p.sum(e, dims), x, dims))


def layer_norm(p: Any, x: Any, w: Any, b: Any) -> Any:
    n = len(x.shape)
    dims = (n - 1,)
    count = float(x.shape[-1]) if isinstance(x.shape[-1], int) else x.shape[-1]
    mean = p.div(p.sum(x, dims), count)
    d = p.sub(x, keep(p, mean, x, dims))
    var = p.div(p.sum(p.mul(d, d), dims), count)
    y = p.mul(d, keep(p, p.rsqrt(p.add(var, 1e-5)), x, dims))
    return p.add(p.mul(y, p.broadcast(w, x.shape, dims)), p.broadcast(b, x.shape, dims))


def gelu(p: Any, x: Any) -> Any:
    return p.mul(p.mul(x, 0.5), p.add(p.erf(p.mul(x, 0.7071067811865476)), 1.0))


def test_softmax_is_one_kernel_of_three_loops() -> None:
    case = check(softmax, [torch.randn(64, 333)])
    assert case.kernels == 1
    assert case.compiled.kernels[0].loops == 3


def test_softmax_over_an_outer_dimension() -> None:
    case = check(lambda p, x: softmax(p, x, 1), [torch.randn(5, 77, 300)])
    assert case.kernels == 1


def test_softmax_of_many_columns_and_large_values() -> None:
    case = check(softmax, [torch.randn(3, 70000) * 50])
    assert case.kernels == 1


def test_layer_norm_with_residual_and_gelu_is_one_kernel() -> None:
    def fn(p: Any, x: Any, r: Any, w: Any, b: Any) -> Any:
        s = p.add(x, r)
        return gelu(p, layer_norm(p, s, w, b)), s

    case = check(fn, [torch.randn(4, 50, 768), torch.randn(4, 50, 768), torch.randn(768), torch.randn(768)], tol=1e-5)
    assert case.kernels == 1


def test_batch_norm_inference_with_relu_and_add_is_one_kernel() -> None:
    def fn(p: Any, x: Any, mean: Any, var: Any, w: Any, b: Any, r: Any) -> Any:
        def spread(v: Any) -> Any:
            return p.broadcast(v, x.shape, (1,))

        scale = p.mul(w, p.rsqrt(p.add(var, 1e-5)))
        y = p.add(p.mul(p.sub(x, spread(mean)), spread(scale)), spread(b))
        return p.maximum(p.add(y, r), 0.0)

    c = [torch.randn(24) for _ in range(4)]
    c[1].abs_()
    case = check(fn, [torch.randn(2, 24, 15, 17), *c, torch.randn(2, 24, 15, 17)], tol=1e-5)
    assert case.kernels == 1


def test_batch_norm_training_is_one_kernel() -> None:
    def fn(p: Any, x: Any, w: Any, running: Any) -> Any:
        dims = (0, 2, 3)
        count = float(x.shape[0] * x.shape[2] * x.shape[3])
        mean = p.div(p.sum(x, dims), count)
        d = p.sub(x, p.broadcast(mean, x.shape, (1,)))
        var = p.div(p.sum(p.mul(d, d), dims), count)
        y = p.mul(d, p.broadcast(p.mul(w, p.rsqrt(p.add(var, 1e-5))), x.shape, (1,)))
        return y, p.add(p.mul(running, 0.9), p.mul(mean, 0.1)), var

    case = check(fn, [torch.randn(4, 16, 9, 11), torch.randn(16), torch.randn(16)], tol=1e-5)
    assert case.kernels == 1


def test_cross_entropy_is_at_most_two_kernels() -> None:
    def fn(p: Any, x: Any, target: Any) -> Any:
        dims = (1,)
        shifted = p.sub(x, keep(p, p.amax(x, dims), x, dims))
        logs = p.sub(shifted, keep(p, p.log(p.sum(p.exp(shifted), dims)), x, dims))
        picked = p.gather(logs, p.reshape(target, (x.shape[0], 1)), 1)
        return p.div(p.neg(p.sum(p.reshape(picked, (x.shape[0],)), (0,))), float(x.shape[0]))

    case = check(fn, [torch.randn(128, 1000), torch.randint(0, 1000, (128,))], tol=1e-5)
    assert case.kernels <= 2


def test_sine_rounds_are_one_kernel_and_linear_in_cost() -> None:
    def fn(rounds: int) -> Any:
        def run(p: Any, x: Any) -> Any:
            for _ in range(rounds):
                x = p.add(x, p.sin(x))
            return x

        return run

    x = torch.randn(10_000)
    case = check(fn(20), [x], tol=2e-5)
    assert case.kernels == 1
    assert case.compiled.kernels[0].source.count("sinf(") == 20

    def cost(rounds: int) -> int:
        env = build(fn(rounds), [x])
        compiled = []
        count = lines_run(lambda: compiled.append(inductor_gen.compile_graph(env, options=Options(verify="off"))))
        assert len(compiled[0].kernels) == 1
        return count

    assert cost(200) < 4.6 * cost(50)


def test_fuel_stops_fusion_and_keeps_the_result() -> None:
    x = torch.randn(32, 40)
    full = check(softmax, [x])
    none = check(softmax, [x], options=Options(verify="off", fuel=0))
    assert full.kernels == 1 and none.kernels > 1


def test_an_outer_and_inner_use_share_one_producer() -> None:
    def fn(p: Any, x: Any) -> Any:
        y = p.exp(x)
        return y, p.sum(y, (1,)), p.amax(y, (1,))

    case = check(fn, [torch.randn(30, 80)])
    assert case.kernels == 1


def test_attention_layout_change_is_folded_into_the_producer() -> None:
    def fn(p: Any, x: Any) -> Any:
        y = p.exp(x)
        y = p.permute(p.reshape(y, (2, 7, 3, 5)), (0, 2, 1, 3))
        return p.add(p.reshape(y, (2, 3, 35)), 1.0)

    assert check(fn, [torch.randn(2, 7, 15)]).kernels == 1


def test_rotary_embedding_is_one_kernel_without_choices() -> None:
    def fn(p: Any, x: Any, cos: Any, sin: Any) -> Any:
        b, s, h = x.shape
        left = p.slice(x, (0, 0, 0), (b, s, h // 2), (1, 1, 1))
        right = p.slice(x, (0, 0, h // 2), (b, s, h), (1, 1, 1))
        turned = p.concat((p.neg(right), left), 2)
        return p.add(p.mul(x, p.broadcast(cos, x.shape, (1, 2))), p.mul(turned, p.broadcast(sin, x.shape, (1, 2))))

    case = check(fn, [torch.randn(3, 11, 32), torch.randn(11, 32), torch.randn(11, 32)])
    assert case.kernels == 1
    assert "?" not in case.compiled.kernels[0].source


def test_concatenations_share_functions() -> None:
    def fn(p: Any, x: Any) -> Any:
        parts = [x]
        for _ in range(6):
            parts.append(p.tanh(p.concat(tuple(parts), 1)))
        return parts[-1]

    check(fn, [torch.randn(2, 3, 10)], tol=1e-5)


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("parts", ["inputs", "numbers", "slices"])
def test_a_concatenation_costs_in_proportion_to_its_parts(parts: str, triton: bool) -> None:
    """Compiling one of four times as many takes about four times the steps: each part is found without a walk."""
    made: dict[str, Any] = {
        "inputs": lambda p, xs, k: xs[k],
        "numbers": lambda p, xs, k: p.full((1, 4), float(k), torch.float32, torch.device("cpu")),
        "slices": lambda p, xs, k: p.slice(xs[0], (2 * k, 0), (2 * k + 1, 4), (1, 1)),
    }

    def steps(n: int) -> int:
        inputs = [torch.randn(2 * n, 4)] if parts == "slices" else [torch.randn(1, 4) for _ in range(n)]
        program = lambda p, *xs: p.mul(p.concat(tuple(made[parts](p, xs, k) for k in range(n)), 0), 2.0)
        env = build(program, inputs)
        return lines_run(lambda: lower_graph(env, Options(), None, triton))

    assert steps(800) < 5 * steps(200)


def test_independent_shapes_do_not_mix() -> None:
    def fn(p: Any, x: Any, y: Any) -> Any:
        return p.exp(x), p.exp(y), p.sum(x, (0,)), p.sum(y, (1,))

    check(fn, [torch.randn(6, 8), torch.randn(9, 4)])


def test_horizontal_statistics_of_one_input() -> None:
    case = check(lambda p, x: (p.sum(x, (1,)), p.sum(p.mul(x, x), (1,))), [torch.randn(20, 300)], tol=1e-5)
    assert case.kernels <= 2


def test_what_takes_less_than_a_call_is_joined() -> None:
    count = lambda p, *counters: tuple(p.add(c, 1) for c in counters)
    assert check(count, [torch.tensor(n) for n in range(10)]).kernels == 1
    scaled = lambda p, *layers: tuple(p.maximum(p.mul(x, 2.0), 0.0) for x in layers)
    case = check(scaled, [torch.randn(512, 4) for _ in range(5)])  # one function, compiled once, for five calls
    assert case.kernels == 5
    assert len({kernel.source for kernel in case.compiled.kernels}) == 1


def test_copies_of_any_number_and_size_are_one_function() -> None:
    def doubled(p: Any, *xs: Any) -> Any:
        return tuple(p.concat((x, x), 0) for x in xs)

    case = check(doubled, [torch.randn(n) for n in (64, 64, 64, 128, 128, 256)])
    assert len({kernel.source for kernel in case.compiled.kernels}) == 1


@pytest.mark.parametrize("channels, length", [(64, 256), (128, 64), (256, 16), (512, 4)])
def test_what_a_channel_has_is_made_inside_once(channels: int, length: int) -> None:
    def fn(p: Any, x: Any, mean: Any, variance: Any, weight: Any) -> Any:
        scale = p.mul(p.reciprocal(p.sqrt(p.add(variance, 1e-5))), weight)
        along = lambda v: p.broadcast(v, (1, channels, length), (1,))
        x = p.add(p.mul(x, along(scale)), along(p.sub(mean, p.mul(mean, scale))))
        return p.maximum(x, 0.0)

    shape = (1, channels, length)
    case = check(fn, [torch.randn(shape), torch.randn(channels), torch.rand(channels) + 0.1, torch.randn(channels)])
    assert case.kernels == 1


def test_equal_layers_share_one_function() -> None:
    def fn(p: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
        first = layer_norm(p, x, w, b)
        return p.aten(torch.ops.aten.mm.default, first, v), layer_norm(p, p.mul(x, 2.0), w, b)

    compiled = compile_fn(fn, [torch.randn(10, 64), torch.randn(64), torch.randn(64), torch.randn(64, 3)])
    assert compiled.externs == ("aten.mm.default",)


def test_long_chains_through_slices_stay_within_limits() -> None:
    def fn(p: Any, x: Any) -> Any:
        for _ in range(300):
            n = x.shape[0]
            x = p.add(p.slice(x, (1,), (n,), (1,)), 0.5)
        return x

    case = check(fn, [torch.randn(1000)], tol=1e-4)
    assert case.kernels < 20


def test_a_stencil_does_not_repeat_its_expensive_input() -> None:
    def fn(p: Any, x: Any) -> Any:
        y = p.exp(p.sin(x))
        n = x.shape[0] - 4
        total = None
        for k in range(5):
            part = p.slice(y, (k,), (k + n,), (1,))
            total = part if total is None else p.add(total, part)
        return total

    case = check(fn, [torch.randn(500)], tol=1e-5)
    assert sum(k.source.count("expf(") for k in case.compiled.kernels) == 1


def test_a_shifted_and_an_aligned_use_of_one_value() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        y = p.maximum(x, 0.0)
        shifted = p.mul(p.pad(y, 0.0, (1,), (-1,)), w)
        return p.add(p.mul(shifted, 2.0), p.exp(y)), p.sub(y, shifted)

    check(fn, [torch.randn(40), torch.randn(40)])


def test_small_kernels_that_have_nothing_to_do_with_each_other_are_one() -> None:
    def fn(p: Any, *counters: Any) -> Any:
        return tuple(p.add(c, 1) for c in counters)

    case = check(fn, [torch.tensor(k) for k in range(20)])
    assert case.kernels == 1
    # Sixty-four buffers and nodes a kernel: more would run out of arguments.
    assert check(fn, [torch.tensor(k) for k in range(80)]).kernels == 3
    vectors = check(fn, [torch.randn(7, 5), torch.randn(5, 7), torch.randn(7, 5), torch.zeros(0, 5)])
    assert vectors.kernels == 3


def test_small_kernels_that_read_each_other_keep_their_order() -> None:
    def fn(p: Any, x: Any, y: Any) -> Any:
        first = p.aten(torch.ops.aten.mm.default, p.add(x, 1.0), y)
        return p.add(first, 2.0), p.mul(y, 3.0)

    check(fn, [torch.randn(4, 4), torch.randn(4, 4)], tol=1e-5)


@pytest.mark.parametrize("starts", [(0, 2), (2, 0), (1, 3), (0, 3)])
@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_value_that_lie_elsewhere_stay_in_their_bounds(starts: tuple[int, int], parts: int) -> None:
    """Equally large parts, each copied: a kernel of both would compute one of them where the other lies."""
    first, second = starts
    length = 5 - max(starts)

    def fn(p: Any, x: Any) -> Any:
        cut = [p.slice(x, (at, 0), (at + length, 6), (1, 1)) for at in (first, second, first)[:parts]]
        return tuple(p.mul(c, float(k + 1)) for k, c in enumerate(cut))

    x = torch.randn(5, 6)
    compiled = inductor_gen.compile_graph(build(fn, [x]), options=Options(verify="every_pass"))
    for k, (got, at) in enumerate(zip(compiled(x), (first, second, first)[:parts], strict=True)):
        torch.testing.assert_close(got, x[at : at + length] * (k + 1))


def test_the_verifier_sees_a_part_computed_where_another_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inductor_gen.fuse.legality._takes_each", lambda *a: True)
    env = build(lambda p, x: tuple(p.neg(p.slice(x, (at,), (at + 300,), (1,))) for at in (0, 200)), [torch.randn(500)])
    with pytest.raises(VerifierError, match="FUSE-C7"):
        inductor_gen.compile_graph(env, options=Options(verify="every_pass"))


@pytest.mark.parametrize("rows, lanes_across", [(3, True), (4, False), (5, True), (7, True), (8, False), (16, False)])
def test_lanes_go_along_rows_that_fill_vectors(rows: int, lanes_across: bool) -> None:
    """A channel's statistics over several images; 4 x 4 pixels are one row of 16."""
    square = rows == 16

    def fn(p: Any, x: Any) -> Any:
        dims = (0, *range(2, len(x.shape)))
        mean = p.mul(p.sum(x, dims), 1.0 / (2 * rows))
        inside = p.broadcast(mean, x.shape, (1,))
        return p.sub(x, inside)

    case = check(fn, [torch.randn(2, 64, *((4, 4) if square else (rows,)))], tol=1e-6)
    (kernel,) = case.compiled.kernels
    assert ("l_ = 0" in kernel.source) == lanes_across
    assert not square or "< 16;" in kernel.source


def test_what_leads_to_an_element_by_a_place_is_kept_for_the_loops_after_it() -> None:
    """With lanes across, a row's element at the place of a column's maximum is read in the pass after."""

    def fn(p: Any, x: Any, table: Any) -> Any:
        best = p.argmax(x, 0)
        picked = p.index(table, (best,), (0,))
        return p.sub(x, p.broadcast(picked, x.shape, (1,)))

    check(fn, [torch.randn(9, 40), torch.randn(9)], exact=True)


@pytest.mark.parametrize("kept", ["a float", "the double", "a difference"])
def test_sums_in_double_are_in_parts_only_where_it_is_seen(kept: str) -> None:
    def fn(p: Any, x: Any) -> Any:
        total = p.sum(p.convert(x, torch.float64), (1,))
        if kept == "a difference":
            total = p.sub(total, p.add(total, 1.0))
        return total if kept == "the double" else p.convert(p.mul(total, 0.5), torch.float32)

    case = check(fn, [torch.randn(64, 5000)], tol=1e-6)
    assert ("b_ = 0" in case.compiled.kernels[0].source) == (kept != "a float")


def test_sums_in_double_keep_the_programs_order_where_it_is_promised() -> None:
    program = lambda p, x: p.convert(p.mul(p.sum(p.convert(x, torch.float64), (1,)), 0.5), torch.float32)
    x = torch.randn(64, 5000)
    for invariant in (False, True):
        compiled = inductor_gen.compile_graph(build(program, [x]), options=Options(batch_invariant=invariant))
        assert ("reduction(" in compiled.kernels[0].source) != invariant
