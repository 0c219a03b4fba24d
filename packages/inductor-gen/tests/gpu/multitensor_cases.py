"""Kernels over many tensors; run under TRITON_INTERPRET=1 (or on a GPU) by test_triton_kernels.py."""

from __future__ import annotations

import math
import os

import pytest
import torch
from gen_support import build, reference

import inductor_gen
from inductor_gen.device.record import device_of, known
from inductor_gen.pipeline import lower_graph
from prims.ir import Mutation, OutputDesc
from prims.options import Options

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
DEVICES = (lambda _: known("H100")) if DEVICE == "cpu" else device_of

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="PyTorch finds no CUDA device; TRITON_INTERPRET is not 1"
)

#: Lengths below a block, of whole blocks, beyond them, and odd ones; more than may run side by side as they are.
SIZES = [(1,), (7,), (16,), (3, 5), (300,), (1024,), (33, 31), (4097,), (64, 128), (1, 2, 3)]


def decayed(p, x, g):
    """What an optimizer does to a value and its history, in float32."""
    wide, step = p.convert(x, torch.float32), p.convert(g, torch.float32)
    return p.convert(p.sub(p.mul(wide, 0.9), p.mul(step, 0.25)), x.dtype)


def programs():
    """``(function of all tensors, tensors of one size)`` by name."""

    def by_its_own_number(p, xs, gs, rates):
        return [p.sub(x, p.mul(g, p.broadcast(r, x.shape, ()))) for x, g, r in zip(xs, gs, rates, strict=True)]

    def by_one_number(p, xs, gs, rates):
        power = p.pow(rates[0], 3.0)
        return [p.sub(x, p.mul(g, p.broadcast(power, x.shape, ()))) for x, g in zip(xs, gs, strict=True)]

    return {
        "values": lambda p, xs, gs, rates: [decayed(p, x, g) for x, g in zip(xs, gs, strict=True)],
        "by its own number": by_its_own_number,
        "by one number": by_one_number,
        "conditions": lambda p, xs, gs, rates: [p.where(p.gt(x, g), x, p.neg(g)) for x, g in zip(xs, gs, strict=True)],
    }


def tensors(dtype, sizes=SIZES):
    torch.manual_seed(0)
    xs, gs = ([torch.randn(size).to(DEVICE, dtype) for size in sizes] for _ in range(2))
    rates = [torch.tensor(0.1 * k, dtype=dtype, device=DEVICE) for k in range(1, len(sizes) + 1)]
    return xs, gs, rates


def compiled(program, xs, gs, rates, in_place, **options):
    """The compiled graph, the kernels' sources and the reference's results."""
    count = len(xs)

    def graph(p, *given):
        return tuple(program(p, given[:count], given[count : 2 * count], given[2 * count :]))

    inputs = [*xs, *gs, *rates]
    env = build(graph, inputs, claims=inductor_gen.claims(DEVICE))
    if in_place:
        given = [d.spec for d in env.inputs[:count]]
        env = env.replace(
            outputs=tuple(OutputDesc("mutation", spec) for spec in given),
            mutations=tuple(Mutation(k, k) for k in range(count)),
        )
    unit = lower_graph(env, Options(verify="every_pass", **options), triton=True, devices=DEVICES, in_place=in_place)
    function = inductor_gen.compile_graph(
        env, options=Options(verify="off", **options), triton=True, devices=DEVICES, in_place=in_place
    )
    return function, unit


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", programs())
def test_one_kernel_for_all_sizes(name, dtype, in_place):
    xs, gs, rates = tensors(dtype)
    program = programs()[name]
    function, unit = compiled(program, xs, gs, rates, in_place)
    many = [s for s in unit.sources() if s.words]
    beside = name == "by one number"  # whose kernel takes the tensor of one element, too
    assert [s.loops for s in many] == [len(SIZES) - beside], [s.name for s in unit.sources()]
    assert len(unit.sources()) == 1 + beside
    count = len(xs)
    graph = lambda p, *given: tuple(program(p, given[:count], given[count : 2 * count], given[2 * count :]))
    wanted = reference(graph, [*xs, *gs, *rates], False)
    before = [x.clone() for x in xs]
    limit = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    limit = max(limit, 1e-6 if name == "values" else 0)  # computed in float32, whatever the dtype
    for _ in range(2):  # the second time other memory, and so other addresses
        given = [x.clone() for x in before]
        results = function(*given, *(g.clone() for g in gs), *rates)
        for got, want in zip(results, wanted, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=limit, atol=limit)
        if in_place:
            assert all(map(torch.equal, given, results)), "written where they are"


def test_tensors_of_two_dtypes_are_two_kernels():
    xs, gs, rates = tensors(torch.float32)
    more, steps, _ = tensors(torch.bfloat16)
    _, unit = compiled(programs()["values"], xs + more, gs + steps, rates, True)
    assert sorted(s.loops for s in unit.sources() if s.words) == [len(SIZES)] * 2


def test_few_small_ones_run_side_by_side():
    xs, gs, rates = tensors(torch.float32, SIZES[:3])
    _, unit = compiled(programs()["values"], xs, gs, rates, True)
    assert not any(s.words for s in unit.sources()) and len(unit.calls) == 1


def test_what_is_read_between_is_not_put_off():
    """The sum of the first new value is asked for by the second: each waits for the one before."""

    def chained(p, xs, gs, rates):
        made = []
        for x, g in zip(xs, gs, strict=True):
            total = p.sum(p.reshape(made[-1], (math.prod(made[-1].shape),)), (0,)) if made else rates[0]
            made.append(p.sub(x, p.mul(g, p.broadcast(total, x.shape, ()))))
        return made

    xs, gs, rates = tensors(torch.float64, SIZES[:6])
    function, unit = compiled(chained, xs, gs, rates, False)
    assert not any(s.words for s in unit.sources())
    want = []
    for x, g in zip(xs, gs, strict=True):
        want.append(x - g * (want[-1].sum() if want else rates[0]))
    for got, expected in zip(function(*xs, *gs, *rates), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_gathered_from_around_other_work():
    """Updates that only wait for inputs are one kernel wherever sums stand between them, and these are two."""

    def mixed(p, xs, gs, rates):
        made = []
        for x, g in zip(xs, gs, strict=True):
            made += [p.mul(x, 0.9), p.sum(p.reshape(g, (math.prod(g.shape),)), (0,))]
        return made

    xs, gs, rates = tensors(torch.float32)
    function, unit = compiled(mixed, xs, gs, rates, False)
    several = len(SIZES) - 1  # a tensor of one element is its sum
    assert [s.loops for s in unit.sources() if s.words] == [len(SIZES), several, several]
    results = function(*xs, *gs, *rates)
    for k, (x, g) in enumerate(zip(xs, gs, strict=True)):
        torch.testing.assert_close(results[2 * k], x * 0.9)
        torch.testing.assert_close(results[2 * k + 1], g.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [9, 16, 17, 33, 100])
def test_every_number_of_tensors(count):
    sizes = [(1 + 37 * k % 1500,) for k in range(count)]
    xs, gs, rates = tensors(torch.float32, sizes)
    function, unit = compiled(programs()["values"], xs, gs, rates, False)
    assert sum(s.loops for s in unit.sources() if s.words) == count
    for got, x, g in zip(function(*xs, *gs, *rates), xs, gs, strict=True):
        torch.testing.assert_close(got, x * 0.9 - g * 0.25)


def reductions():
    """``(function of one tensor and its number, the same in PyTorch)`` by name."""
    flat = lambda p, x: p.reshape(x, (math.prod(x.shape),))
    wide = lambda p, x: p.convert(flat(p, x), torch.float32)
    return {
        "norm": (lambda p, x, r: p.sqrt(p.sum(p.mul(wide(p, x), wide(p, x)), (0,))), lambda x, r: x.float().norm()),
        "scaled maximum": (
            lambda p, x, r: p.mul(p.amax(p.abs(wide(p, x)), (0,)), p.convert(r, torch.float32)),
            lambda x, r: x.float().abs().amax() * r.float(),
        ),
        "is one infinite": (lambda p, x, r: p.any(p.isinf(wide(p, x)), (0,)), lambda x, r: x.isinf().any()),
        "two at once": (
            lambda p, x, r: p.sub(p.sum(wide(p, x), (0,)), p.amin(wide(p, x), (0,))),
            lambda x, r: x.float().sum() - x.float().amin(),
        ),
        "of scaled elements": (
            lambda p, x, r: p.sum(p.mul(wide(p, x), p.broadcast(p.convert(r, torch.float32), (math.prod(x.shape),), ())), (0,)),
            lambda x, r: (x.float() * r.float()).sum(),
        ),
    }  # fmt: skip


LONG = [*SIZES[1:], (16_384,), (33_000,)]


@pytest.mark.parametrize("name, dtype", [*((name, torch.float32) for name in reductions()), ("norm", torch.bfloat16)])
def test_reductions_of_all_sizes_are_two_kernels(name, dtype):
    one, wanted = reductions()[name]
    xs, gs, rates = tensors(dtype, LONG)
    gs[-1][-1] = gs[0][5] = math.inf
    values = gs if "infinite" in name else xs
    function, unit = compiled(
        lambda p, a, b, rates: [one(p, x, r) for x, r in zip(b if "infinite" in name else a, rates, strict=True)],
        xs, gs, rates, False,
    )  # fmt: skip
    many = [s for s in unit.sources() if s.words]
    assert len(many) == 2 and len({s.loops for s in many}) == 1, [s.name for s in unit.sources()]
    assert many[0].loops == len(LONG)
    first = function(*xs, *gs, *rates)
    for got, x, r in zip(first, values, rates, strict=True):
        torch.testing.assert_close(got, wanted(x, r), rtol=2e-5, atol=2e-5)
    assert all(map(torch.equal, function(*xs, *gs, *rates), first)), "in the same order each time"


def test_a_nan_stays_one_in_its_own_tensor():
    one, _ = reductions()["scaled maximum"]
    xs, gs, rates = tensors(torch.float32, LONG)
    xs[-1][-1] = math.nan
    function, unit = compiled(
        lambda p, a, b, rates: [one(p, x, r) for x, r in zip(a, rates, strict=True)], xs, gs, rates, False
    )
    assert any(s.words for s in unit.sources())
    assert [bool(y.isnan()) for y in function(*xs, *gs, *rates)] == [False] * (len(LONG) - 1) + [True]


def test_what_reduces_no_tensor_is_no_row():
    """A sum of a number that is then scaled by a tensor, as the gradient of ``div(rounding_mode="floor")`` is."""

    def program(p, xs, gs, rates):
        nothing = p.sum(p.full((300,), 0.5, torch.float32, rates[0].device), (0,))
        return [*(p.mul(nothing, p.sign(r)) for r in rates), *(p.sum(p.reshape(x, (math.prod(x.shape),)), (0,)) for x in xs)]

    xs, gs, rates = tensors(torch.float32, LONG)
    function, unit = compiled(program, xs, gs, rates, False)
    results = function(*xs, *gs, *rates)
    assert any(s.words for s in unit.sources())
    for got, wanted in zip(results, [*(150 * r.sign() for r in rates), *(x.sum() for x in xs)], strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-4)
