"""Which overloads are covered, and the rules that all decompositions share."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import prims.decomp as decomp
from prims.decomp import registry
from prims.decomp.common import broadcast_shapes, result_dtype
from prims.errors import Unsupported
from prims.handlers import MetaHandler, TorchHandler
from prims.spec import SymbolContext, TensorSpec

CPU = torch.device("cpu")


def test_covered_overloads_are_exactly_those_listed():
    """Regenerate with: python -c "import prims.decomp as d; print('\\n'.join(d.covered()))" > covered.txt"""
    listed = (Path(__file__).parent / "covered.txt").read_text().split()
    assert list(decomp.covered()) == listed


def test_rare_families_define_what_is_listed():
    """What a family of `RARE` defines is found by its name alone, and no other family defines it."""
    for name in decomp.covered():
        home = registry._TABLE._homes[name]["__name__"].removeprefix("prims.decomp.")
        assert registry.family_of(name) == (home if home in registry.RARE else None), name


def test_rare_families_are_imported_on_use():
    program = "import sys, torch, prims.decomp as d; before = 'prims.decomp.windows' in sys.modules; "
    program += "print(before, d.get(torch.ops.aten.im2col.default).__name__, 'prims.decomp.windows' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "im2col", "True"]


def test_every_covered_overload_exists():
    """In the newest torch that is supported; older ones may lack some."""
    for name in decomp.covered():
        try:
            op = decomp.overload(name)
        except AttributeError:
            assert torch.__version__ < "2.13", name
            continue
        assert str(op) == name
        assert decomp.get(op) is decomp.by_name(name)


def test_uncovered_overload_has_none():
    assert decomp.get(torch.ops.aten.sort.default) is None


def test_second_registration_is_an_error():
    with pytest.raises(ValueError, match="is defined twice"):
        decomp.decomposition("aten.relu.default")(lambda p, x: x)


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)


def _operands():
    yield from (torch.ones(2, dtype=d) for d in DTYPES)
    yield from (torch.ones((), dtype=d) for d in DTYPES)
    yield from (True, 2, 2.5)


def test_promotion_equals_torch():
    for x, y in itertools.product(_operands(), repeat=2):
        if not (isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor)):
            continue
        assert result_dtype(x, y) == torch.result_type(x, y), (x, y)
    # Three operands: dimensions first, then 0-dim tensors, then numbers, whatever the order.
    x, zero = torch.ones(2, dtype=torch.float16), torch.ones((), dtype=torch.float64)
    for operands in itertools.permutations((x, zero, 2.5)):
        assert result_dtype(*operands) == torch.float16
    ints = torch.ones(2, dtype=torch.int32)
    for operands in itertools.permutations((ints, zero, 2)):
        assert result_dtype(*operands) == torch.float64


def test_complex_is_left_to_eager():
    with pytest.raises(Unsupported, match="complex"):
        decomp.by_name("aten.exp.default")(TorchHandler(), torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    "shapes", [((3,), (2, 3)), ((2, 1), (1, 3)), ((), (4,)), ((0, 1), (1, 5)), ((2, 3), (2, 3), (1,))]
)
def test_broadcast_shapes_equal_torch(shapes):
    assert broadcast_shapes(*shapes) == tuple(torch.broadcast_shapes(*shapes))


def test_broadcast_of_unequal_sizes_is_an_error():
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes((2,), (3,))


def _spec(*shape, dtype=torch.float32):
    return TensorSpec(shape, dtype, CPU)


def _symbol(ctx, hint):
    return ctx.new_symbol(hint, f"s{hint}")


PROGRAMS = {
    "aten._softmax.default": lambda b, t: ((_spec(b, t), -1, False), (b, t)),
    "aten.native_layer_norm.default": lambda b, t: ((_spec(b, t, 8), [8], _spec(8), _spec(8), 1e-5), (b, t, 8)),
    "aten.embedding.default": lambda b, t: ((_spec(10, 8), _spec(b, t, dtype=torch.int64)), (b, t, 8)),
    "aten.add.Tensor": lambda b, t: ((_spec(b, t, 8), _spec(t, 1)), (b, t, 8)),
    "aten.view.default": lambda b, t: ((_spec(b, t, 8), [b, t, 2, 4]), (b, t, 2, 4)),
    "aten.cat.default": lambda b, t: (([_spec(b, t), _spec(b, t)], 1), (b, 2 * t)),
    "aten.slice.Tensor": lambda b, t: ((_spec(512, 8), 0, 0, t), (t, 8)),
    "aten.mean.dim": lambda b, t: ((_spec(b, t, 8), [1]), (b, 8)),
    "aten.arange.default": lambda b, t: ((t,), (t,)),
    "aten.tril.default": lambda b, t: ((_spec(t, t),), (t, t)),
    "aten.addmm.default": lambda b, t: ((_spec(4), _spec(b * t, 8), _spec(8, 4)), (b * t, 4)),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": lambda b, t: (
        (_spec(b, 4, t, 8),) * 3,
        (b, 4, t, 8),
    ),
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_symbolic_sizes_stay_symbolic(name):
    """Neither the batch nor the length is specialised; only `slice` needs to know that t <= 512."""
    ctx = SymbolContext()
    b, t = _symbol(ctx, 3), _symbol(ctx, 17)
    args, shape = PROGRAMS[name](b, t)
    out = decomp.by_name(name)(MetaHandler(), *args)
    out = out[0] if isinstance(out, tuple) else out
    assert tuple(map(str, out.shape)) == tuple(map(str, shape))
    guards = [str(guard.expr) for guard in ctx.guards]
    assert len(guards) <= (1 if name == "aten.slice.Tensor" else 0), guards
