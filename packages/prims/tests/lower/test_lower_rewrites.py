"""Each rewrite on the smallest program that it applies to, checked against eager."""

import math

import pytest
import torch
from aten_programs import aten, envelope, lowered

from prims.lower import lower
from prims.lower.ranges import Bounds, bounds_of
from prims.lower.rewrites import FAST_REWRITES, LOWER_REWRITES, rewrites_for
from prims.options import Options


def prims_of(env):
    return [getattr(n.target, "name", str(n.target)) for n in env.graph.nodes if n.op == "call_function"]


def ops(program, *inputs, **options):
    return prims_of(lowered(program, *inputs, **options)[0])


X = torch.randn(3, 4)
BOOL = X > 0


def full(call, value, shape=(3, 4), dtype=torch.float32):
    return call(aten.full.default, list(shape), value, dtype=dtype)


def test_constants_fold():
    assert ops(lambda call: call(aten.exp.default, call(aten.add.Tensor, full(call, 1.0), full(call, 2.0)))) == ["full"]


def test_constant_operand_becomes_a_number():
    assert ops(lambda call, x: call(aten.mul.Tensor, x, full(call, 2.5)), X) == ["mul"]
    assert ops(lambda call, x: call(aten.sub.Tensor, full(call, 2.5), x), X) == ["sub"]


def test_constant_of_reduced_precision_is_rounded_first():
    """full(0.1) in bfloat16 holds 0.10009765625."""
    x = X.bfloat16()
    env, _ = lowered(lambda call, x: call(aten.mul.Tensor, x, full(call, 0.1, dtype=torch.bfloat16)), x)
    [node] = [n for n in env.graph.nodes if n.op == "call_function"]
    assert node.args[1] == 0.10009765625


def test_constant_views_fold():
    def program(call):
        x = call(aten.slice.Tensor, call(aten.t.default, full(call, 1.5)), 0, 1, 3)
        return call(aten.expand.default, call(aten.unsqueeze.default, x, 0), [5, 2, 3])

    assert ops(program) == ["full"]


def test_where_with_a_constant_condition():
    yes = lambda call, x: call(aten.where.self, full(call, True, dtype=torch.bool), x, call(aten.neg.default, x))
    assert ops(yes, X) == []
    no = lambda call, x: call(aten.where.self, full(call, False, dtype=torch.bool), x, call(aten.neg.default, x))
    assert ops(no, X) == ["neg"]


def test_where_of_true_and_false_is_the_condition():
    def program(call, c):
        yes, no = (full(call, v, dtype=torch.bool) for v in (True, False))
        return call(aten.where.self, c, yes, no)

    assert ops(program, BOOL) == []


def test_logic_with_constants():
    def with_(op, value):
        return lambda call, c: call(op, c, full(call, value, dtype=torch.bool))

    assert ops(with_(aten.logical_and.default, True), BOOL) == []
    assert ops(with_(aten.logical_and.default, False), BOOL) == ["full"]
    assert ops(with_(aten.logical_or.default, False), BOOL) == []
    assert ops(with_(aten.logical_or.default, True), BOOL) == ["full"]


def test_lossless_conversion_is_skipped():
    def program(call, x):
        return call(aten._to_copy.default, call(aten._to_copy.default, x, dtype=torch.float64), dtype=torch.bfloat16)

    assert ops(program, X.bfloat16()) == []


def test_lossy_conversion_stays():
    def program(call, x):
        return call(aten._to_copy.default, call(aten._to_copy.default, x, dtype=torch.int64), dtype=torch.float32)

    assert ops(program, 9 * X) == ["convert", "convert"]


def test_rounding_between_ops_is_dropped_only_when_fast():
    """gelu rounds to bfloat16, silu widens again."""

    def program(call, x):
        return call(aten.silu.default, call(aten.gelu.default, x))

    x = X.bfloat16()
    env, _ = envelope(program, x)
    assert prims_of(lower(env, options=Options(numerics="fast"))).count("convert") == 2
    assert ops(program, x, numerics="eager_close").count("convert") == 4


def test_rounding_that_the_program_asks_for_stays():
    """The part of x that bfloat16 does not hold is not zero."""

    def program(call, x):
        high = call(aten._to_copy.default, call(aten._to_copy.default, x, dtype=torch.bfloat16), dtype=torch.float32)
        return call(aten.sub.Tensor, x, high)

    env, _ = lowered(program, X, numerics="fast")
    assert prims_of(env).count("convert") == 2


def test_mask_as_a_number_and_back():
    def program(call, c):
        return call(aten.ne.Scalar, call(aten._to_copy.default, c, dtype=torch.int64), 0)

    assert ops(program, BOOL) == []


@pytest.mark.parametrize(
    ("divisor", "op"), [(8.0, "mul"), (0.25, "mul"), (-2.0, "mul"), (3.0, "div"), (math.inf, "div")]
)
def test_division_by_powers_of_two(divisor, op):
    assert ops(lambda call, x: call(aten.div.Tensor, x, divisor), X) == [op]


def test_integer_division_is_no_multiplication():
    assert "mul" not in ops(
        lambda call, x: call(aten.div.Tensor_mode, x, 2, rounding_mode="floor"), torch.arange(-5, 5)
    )


def test_keepdim_reduction_broadcasts_directly():
    def program(call, x):
        return call(aten.sub.Tensor, x, call(aten.amax.default, x, [1], True))

    assert ops(program, X) == ["amax", "broadcast", "sub"]


def test_broadcast_of_a_squeezed_value():
    def program(call, x):
        return call(aten.expand.default, call(aten.view.default, x, [1, 4, 1]), [3, 4, 5])

    assert "broadcast" in ops(program, torch.randn(1, 4))


def test_reductions_and_scans_over_one_element():
    x = torch.randn(3, 1, 4, 1)
    # A sum begins with 0 also where it has one term: it is never -0.0. Nor is it a loop.
    assert ops(lambda call, x: call(aten.sum.dim_IntList, x, [1, 3]), x) == ["reshape", "add"]
    assert ops(lambda call, x: call(aten.sum.dim_IntList, x, [1, 3]), x.long()) == ["reshape"]
    assert ops(lambda call, x: call(aten.amax.default, x, [1, 2]), x) == ["reshape", "amax"]
    assert ops(lambda call, x: call(aten.cumsum.default, x, 1), x) == ["add"]
    assert ops(lambda call, x: call(aten.cumprod.default, x, 1), x) == []


def test_reductions_of_what_is_repeated():
    x = torch.randn(3, 1, 4)

    def repeated(reduction, *dims):
        return lambda call, x: call(reduction, call(aten.expand.default, x, [6, 3, 5, 4]), *dims)

    total, largest = aten.sum.dim_IntList, aten.amax.default
    assert ops(repeated(total, [0, 2]), x) == ["reshape", "mul", "add"]  # which is never -0.0
    assert ops(repeated(total, [0, 3]), x) == ["broadcast", "sum", "mul"]
    assert ops(repeated(total, [0, 1, 2, 3]), x) == ["reshape", "sum", "mul"]
    assert ops(repeated(total, [1]), x) == ["broadcast", "sum"]
    assert ops(repeated(total, [0, 2]), x.long()) == ["reshape", "mul"]
    assert ops(repeated(largest, [0, 2]), x) == ["reshape"]
    assert ops(repeated(total, [0, 2]), x, numerics="eager_close") == ["broadcast", "sum"]
    assert ops(lambda call, x: call(total, call(aten.expand.default, x, [0, 3, 1, 4]), [0]), x).count("mul") == 0


def test_slices_of_slices():
    def program(call, x):
        return call(aten.slice.Tensor, call(aten.slice.Tensor, x, 0, 1, 9, 2), 0, 1, 4, 2)

    assert ops(program, torch.randn(10, 2)) == ["slice"]


@pytest.mark.parametrize("dim", [0, 1])
def test_any_slice_of_a_concatenation_reads_only_what_it_takes(dim):
    """Every start, stop and step over pieces of several sizes, one of them empty."""
    pieces = [torch.randn((n, 6) if dim == 0 else (6, n)) for n in (3, 0, 1, 4)]
    for start in range(8):
        for stop in range(start + 1, 9):
            for step in (1, 2, 3):

                def program(call, *xs, place=(dim, start, stop, step)):
                    return call(aten.slice.Tensor, call(aten.cat.default, list(xs), dim), *place)

                env, _ = lowered(program, *pieces)  # which compares with eager
                covered = sum(max(start, a) < min(stop, b) for a, b in ((0, 3), (3, 4), (4, 8)))
                if step == 1 or covered == 1:
                    assert prims_of(env).count("concat") == (covered > 1)


def test_slice_of_a_concatenation_is_the_piece():
    def program(call, x, y):
        return call(aten.slice.Tensor, call(aten.cat.default, [x, y], 1), 1, 4, 6)

    assert ops(program, X, torch.randn(3, 2)) == []


def test_comparison_that_the_range_decides():
    def program(call, x):
        at = call(aten.arange.default, 4)
        inside = call(aten.logical_and.default, call(aten.ge.Scalar, at, 0), call(aten.lt.Scalar, at, 4))
        return call(aten.where.self, inside, x, call(aten.neg.default, x))

    assert ops(program, X) == []


def test_comparison_that_the_range_leaves_open():
    assert "lt" in ops(lambda call: call(aten.lt.Scalar, call(aten.arange.default, 4), 2))


def test_bounds_of_index_arithmetic():
    from prims.handlers import GraphHandler

    p = GraphHandler(torch.fx.Graph(), rewrites={})
    line = p.iota(5, 2, 3, torch.int64, torch.device("cpu"))
    assert bounds_of(line) == Bounds(2, 14)
    assert bounds_of(p.mul(line, -2)) == Bounds(-28, -4)
    assert bounds_of(p.minimum(p.add(line, line), 10)) == Bounds(4, 10)
    assert bounds_of(p.convert(line, torch.float32)) is None
    assert bounds_of(7) == Bounds(7, 7)


FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"


@pytest.mark.parametrize("mask", ["zeros", "true", "real"])
def test_attention_mask_that_allows_everything_is_dropped(mask):
    q = torch.randn(1, 2, 4, 8)

    def program(call, q):
        if mask == "zeros":
            ones = call(aten.ones.default, [1, 1, 4, 4])
            m = call(aten.mul.Tensor, call(aten.rsub.Scalar, ones, 1.0), -3.4e38)
        elif mask == "true":
            open_ = call(aten.ones.default, [1, 1, 4, 4], dtype=torch.bool)
            m = call(aten.where.ScalarSelf, open_, 0.0, call(aten.full.default, [1, 1, 4, 4], -math.inf))
        else:
            m = call(aten.tril.default, call(aten.ones.default, [1, 1, 4, 4]))
        return call.item(
            call(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q, attn_mask=m), 0
        )

    env, _ = lowered(program, q, claims=(FLASH,))
    [node] = [n for n in env.graph.nodes if str(n.target) == FLASH]
    assert ("attn_mask" in node.kwargs) == (mask == "real")


@pytest.mark.parametrize("dim", [0, 1])
def test_the_sum_of_a_row_that_is_0_but_at_one_place(dim):
    """Also where the place is not in the row."""
    size = X.shape[dim]
    at, x = torch.tensor([0, size - 1, size, -1])[: X.shape[1 - dim]], torch.randn(X.shape[1 - dim])

    def program(call, at, x):
        run = call(aten.arange.default, size, device=torch.device("cpu"))
        equal = call(aten.eq.Tensor, call(aten.unsqueeze.default, at, dim), call(aten.unsqueeze.default, run, 1 - dim))
        spread = call(aten.expand.default, call(aten.unsqueeze.default, x, dim), list(X.shape))
        return call(aten.sum.dim_IntList, call(aten.where.ScalarOther, equal, spread, 0), [dim])

    assert "sum" not in ops(program, at, x)


def test_rewrites_are_named_data():
    for table in (LOWER_REWRITES, FAST_REWRITES):
        for op, found in table.items():
            for rewrite in found:
                assert rewrite.op == op and rewrite.name.isidentifier()
    assert rewrites_for("eager_exact") is LOWER_REWRITES


def test_lowering_imports_nothing_of_the_compiler():
    import subprocess
    import sys

    code = (
        "import sys, torch, prims.lower, prims.decomp\n"
        "from prims.handlers import TorchHandler\n"
        "prims.decomp.by_name('aten.gelu.default')(TorchHandler(), torch.randn(3))\n"
        "bad = [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor', 'sympy', "
        "'networkx'))]\n"
        "assert not bad, bad\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_slice_written_at_a_known_place_is_a_concatenation():
    program = lambda call, x, y: call(aten.slice_scatter.default, x, y, 1, 1, 3)
    y = torch.randn(3, 2)
    assert ops(program, X, y) == ["slice", "slice", "concat"]
    back = lambda call, x, y: call(aten.slice.Tensor, program(call, x, y), 1, 1, 3)
    assert ops(back, X, y) == []
