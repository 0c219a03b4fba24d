"""Which products go into sums unrounded is said by the body, and compilers are told to choose nothing."""

from __future__ import annotations

import pytest
import torch
from gen_support import SERVER, build

from inductor_gen.compiled import compile_graph
from inductor_gen.device.cpu import facts
from inductor_gen.pipeline import lower_graph
from inductor_gen.runtime.libraries import FLAGS
from prims.options import Options
from prims.spec import TensorSpec

FMA = {"fma", "asimd"} & set((facts().get("flags") or facts().get("Features") or "").split())

#: name -> program of three tensors, how many products go into sums unrounded.
PROGRAMS = {
    "product and term": (lambda p, x, y, z: p.add(p.mul(x, y), z), 1),
    "term and product": (lambda p, x, y, z: p.add(z, p.mul(x, y)), 1),
    "product less a term": (lambda p, x, y, z: p.sub(p.mul(x, y), z), 1),
    "a term less a product": (lambda p, x, y, z: p.sub(z, p.mul(x, y)), 1),
    "two products": (lambda p, x, y, z: p.add(p.mul(x, y), p.mul(y, z)), 0),
    "less a product": (lambda p, x, y, z: p.sub(p.mul(x, x), p.neg(p.mul(y, z))), 0),
    "three products": (lambda p, x, y, z: p.add(p.sub(p.mul(x, x), p.mul(y, z)), p.mul(z, z)), 0),
    "a product and what is made of one": (lambda p, x, y, z: p.add(p.abs(p.mul(x, x)), p.mul(y, z)), 1),
    "a product in two sums": (lambda p, x, y, z: p.mul(p.add(p.mul(x, y), z), p.sub(p.mul(x, y), x)), 2),
    "a product that is read elsewhere": (lambda p, x, y, z: p.mul(p.add(p.mul(x, y), z), p.mul(p.mul(x, y), x)), 0),
    "a product twice": (lambda p, x, y, z: p.add(p.mul(p.add(p.mul(x, y), p.mul(x, y)), y), z), 1),
    "no product": (lambda p, x, y, z: p.add(p.add(x, y), z), 0),
}


def source(program, dtype=torch.float32, **options):
    specs = [TensorSpec((64,), dtype, torch.device("cpu"))] * 3
    env = build(program, specs)
    (made,) = lower_graph(env, Options(verify="off", **options), devices=lambda _: SERVER).sources()
    return made.text


@pytest.mark.parametrize("jump", ["floor", "ceil", "trunc", "round", "sign"])
def test_products_before_whole_numbers_are_rounded(jump):
    program = lambda p, x, y, z: p.add(getattr(p, jump)(p.add(p.mul(x, y), z)), p.mul(y, z))
    assert source(program).count("q_fma32(") == 1  # the other one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products_that_only_sums_take(name, dtype):
    program, count = PROGRAMS[name]
    call = "q_fma64(" if dtype == torch.float64 else "q_fma32("
    assert source(program, dtype).count(call) == (count if dtype.is_floating_point else 0)


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_where_roundings_are_eagers(name, numerics):
    assert "q_fma" not in source(PROGRAMS[name][0], numerics=numerics)


def test_compilers_choose_nothing():
    assert "-ffp-contract=off" in FLAGS


@pytest.mark.parametrize("numerics", ["fast", "eager_close"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["product and term", "term and product", "product less a term", "a term less a product"])
def test_results_are_rounded_as_said(name, dtype, numerics, tmp_path):
    """``(1 + e)(1 + e) - (1 + 2e)`` is ``e * e`` where the product is not rounded, and else 0."""
    e = 2.0 ** (-12 if dtype == torch.float32 else -27)
    minus = name.startswith(("product and", "term"))
    x, y = torch.full((64,), 1 + e, dtype=dtype), torch.full((64,), 1 + e, dtype=dtype)
    z = torch.full((64,), (1 + 2 * e) * (-1 if minus else 1), dtype=dtype)
    env = build(PROGRAMS[name][0], [TensorSpec((64,), dtype, torch.device("cpu"))] * 3)
    (got,) = compile_graph(env, options=Options(numerics=numerics, cache_dir=str(tmp_path))).boxed([x, y, z])
    whole = e * e if FMA and numerics == "fast" else 0.0
    assert torch.equal(got, torch.full((64,), -whole if name == "a term less a product" else whole, dtype=dtype))


#: name -> program of ``[16, 64]``, ``[16, 64]`` and ``[16]``, how many products go into sums unrounded.
TWICE = {
    "less what is read once for many": (lambda p, x, y, m: p.sub(p.mul(x, y), p.broadcast(m, (16, 64), (0,))), 0),
    "plus what is read once for many": (lambda p, x, y, m: p.add(p.mul(x, y), p.broadcast(m, (16, 64), (0,))), 1),
    "what is read once for many, less it": (lambda p, x, y, m: p.sub(p.broadcast(m, (16, 64), (0,)), p.mul(x, y)), 1),
    "less a constant": (lambda p, x, y, m: p.sub(p.mul(x, y), 0.3), 1),
    "less as many": (lambda p, x, y, m: p.sub(p.mul(x, y), y), 1),
    "in one form at two places": (lambda p, x, y, m: _turned(p, p.add(p.mul(x, y), y)), 2),
    "a product at two places": (lambda p, x, y, m: _turned(p, p.mul(x, y)), 0),
}


def _turned(p, h):
    """The numbers of a row less those of the next."""
    first = p.slice(h, (0, 0), (15, 64), (1, 1))
    second = p.slice(h, (1, 0), (16, 64), (1, 1))
    return p.sub(first, second)


@pytest.mark.parametrize("name", TWICE)
def test_what_was_rounded_elsewhere_is_rounded(name):
    """Numbers less their mean, made of rounded ones, or less themselves at another place."""
    program, count = TWICE[name]
    sizes = ((16, 64), (16, 64), (16,))
    env = build(program, [TensorSpec(size, torch.float32, torch.device("cpu")) for size in sizes])
    (made,) = lower_graph(env, Options(verify="off"), devices=lambda _: SERVER).sources()
    assert made.text.count("q_fma32(") == count


def test_a_number_has_one_form_in_all_stages(tmp_path):
    """A row less its own mean, where every element of the row is the same product in a sum: exactly 0."""

    def centred(p, x, y, z):
        row = p.add(p.mul(x, y), z)
        largest = p.broadcast(p.amax(row, (1,)), row.shape, (0,))
        return p.mul(p.sub(row, largest), p.add(p.mul(x, y), 1.0))

    spec = TensorSpec((16, 64), torch.float32, torch.device("cpu"))
    env = build(centred, [spec] * 3)
    x, y, z = (torch.rand(16, 1).expand(16, 64).contiguous() for _ in range(3))
    (got,) = compile_graph(env, options=Options(cache_dir=str(tmp_path))).boxed([x, y, z])
    assert torch.count_nonzero(got) == 0


def test_means_over_other_counts_have_one_text():
    """Counts that are powers of two too; what divides by one keeps it, for which a compiler has a product."""

    def text(program, count):
        env = build(program, [TensorSpec((128, count), torch.float32, torch.device("cpu"))])
        (made,) = lower_graph(env, Options(verify="off"), devices=lambda _: SERVER).sources()
        return made.text

    def mean(p, x):
        return p.mul(p.sum(x, (1,)), 1.0 / x.shape[1])

    def quotient(p, x):
        return p.div(p.exp(x), float(x.shape[1]))

    assert len({text(mean, count) for count in (512, 1000, 4096)}) == 1
    assert len({text(quotient, count) for count in (512, 1024, 4096)}) == 3
