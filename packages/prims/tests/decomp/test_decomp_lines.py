"""Gradients of reads whose places are known when compiled gather: they scatter nothing, and are eager's."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from recorded_calls import Recorder, check

import prims.decomp as decomp
from prims.decomp import lines, resampling
from prims.handlers import GraphHandler, TorchHandler
from prims.spec import SymbolContext, TensorSpec, spec_of

SIZES = [(1, 1), (1, 5), (4, 1), (2, 3), (5, 5), (4, 8), (8, 4), (7, 3), (16, 37), (9, 20), (20, 9), (3, 40)]
MODES = {"nearest": 1, "nearest-exact": 1, "linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def resized():
    """Interpolations of every mode and number of dimensions, by sizes and by scales."""
    for (mode, n), corners in itertools.product(MODES.items(), (False, True)):
        if corners and mode.startswith("nearest"):
            continue
        how = {"mode": mode, **({"align_corners": True} if corners else {})}
        for size, out in SIZES[::n]:
            sizes, outs = (size, 6, 5)[:n], (out, 4, 11)[:n]
            yield (2, 1, *sizes), {"size": outs, **how}
        for scale in (2, 0.5, 1.7, 3.3, 0.37, 1.1, 2.1):
            yield (1, 2, *(6, 5, 7)[:n]), {"scale_factor": scale, "recompute_scale_factor": False, **how}
    for n, scale in itertools.product((2, 3), (2, 1.3)):
        yield (1, 2, 4, 3, 2)[: 2 + n], {"scale_factor": scale, "mode": "nearest"}


def gradient_calls(fn, x):
    """The calls of fn(x)'s backward pass that are written in primitives."""
    x = x.requires_grad_()
    out = fn(x)
    with Recorder() as recorder:
        torch.autograd.grad(out, x, torch.randn_like(out))
    return recorder.calls


def primitives(call):
    """The names of the primitives that a call becomes."""
    op, args, kwargs, _ = call
    p = GraphHandler(torch.fx.Graph())
    given = [p.placeholder(f"x{i}", spec_of(a)) if isinstance(a, torch.Tensor) else a for i, a in enumerate(args)]
    out = decomp.by_name(str(op))(p, *given, **kwargs)
    live, todo = set(), [out.node]
    while todo:
        node = todo.pop()
        if node not in live:
            live.add(node)
            todo += node.all_input_nodes
    return {node.target.name for node in live if node.op == "call_function"}


def gathers(fn, shape, dtypes=(torch.float64, torch.float32, torch.bfloat16, torch.float16)):
    """Is every call of the gradient eager's in every dtype, and none a scatter? And the read itself eager's."""
    with Recorder() as recorder:
        fn(torch.randn(shape, dtype=torch.float64))
    for call in recorder.calls:
        assert check(call) is None
    for dtype in dtypes:
        calls = gradient_calls(fn, torch.randn(shape).to(dtype))
        assert calls
        for call in calls:
            assert check(call) is None
            assert not primitives(call) & {"index_put", "scatter"}


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_interpolation_gather(mode):
    torch.manual_seed(0)
    cases = [(shape, how) for shape, how in resized() if how["mode"] == mode]
    assert len(cases) >= 11
    for shape, how in cases:
        gathers(lambda x, how=how: F.interpolate(x, **how), shape, (torch.float64, torch.bfloat16))


@pytest.mark.parametrize("exact", ["", "_exact"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_nearest_elements_are_those_of_eager_whatever_the_scale_says(n, exact):
    """A scale may say other than the sizes, by rounding: 3 elements times 1.3 are 3."""
    name = f"aten.{'_' if exact else ''}upsample_nearest{exact}{n}d.default"
    for size, scale in itertools.product((1, 2, 3, 5, 10), (1.1, 1.3, 2.0, 2.1, 2.3, 0.9, 0.45)):
        out = int(size * scale)
        x = torch.arange(2.0 * size**n).view(1, 2, *[size] * n)
        args = ([out] * n, *[scale] * n)
        if out:
            assert torch.equal(decomp.by_name(name)(TorchHandler(), x, *args), decomp.overload(name)(x, *args))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_gradients_of_padding_gather(mode):
    torch.manual_seed(1)
    for shape, pad in [
        ((2, 3, 7), (2, 3)), ((2, 3, 7), (6, 6)), ((2, 3, 7), (0, 1)), ((1, 2, 5, 6), (1, 2, 3, 4)),
        ((1, 2, 5, 6), (5, 5, 4, 4)), ((1, 2, 5, 6), (0, 0, 2, 0)), ((2, 5, 6), (1, 1, 1, 1)),
        ((1, 1, 3, 4, 5), (1, 2, 1, 2, 1, 2)), ((1, 1, 3, 4, 5), (4, 4, 3, 3, 2, 2)), ((3, 12), (9, 11)),
    ]:  # fmt: skip
        gathers(lambda x, pad=pad: F.pad(x, pad, mode=mode), shape)
    for pad in [(-1, 2, 1, -2), (-2, -1, 0, 0), (3, -2, -1, 1)]:
        gathers(lambda x, pad=pad: F.pad(x, pad, mode=mode), (1, 2, 5, 6), (torch.float64,))


def test_gradients_of_windows_and_adaptive_pooling_gather():
    torch.manual_seed(2)
    for dim, size, step in [(0, 3, 1), (1, 4, 2), (1, 2, 5), (2, 7, 3), (2, 5, 5), (-1, 8, 2)]:
        gathers(lambda x, d=dim, n=size, s=step: x.unfold(d, n, s), (4, 9, 17))
    for size, out in [(17, 7), (7, 17), (5, 4), (9, 5), (3, 8)]:
        gathers(lambda x, out=out: F.adaptive_avg_pool2d(x, (out, 3)), (2, 3, size, 7))
        gathers(lambda x, out=out: F.adaptive_avg_pool3d(x, (2, out, 3)), (1, 3, 5, size, 7), (torch.float64,))


def test_many_readers_of_one_element_are_scattered():
    """An unrolled sum has a limit; beyond it the scatter is still right."""
    for fn, shape in [
        (lambda x: F.interpolate(x, size=300, mode="linear"), (2, 3, 2)), (lambda x: x.unfold(1, 99, 1), (2, 200)),
    ]:  # fmt: skip
        (call,) = gradient_calls(fn, torch.randn(shape, dtype=torch.float64))
        assert check(call) is None
        assert "index_put" in primitives(call)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_infinite_gradient_stays_where_it_belongs(bad):
    def programs(x):
        yield F.interpolate(x, size=(11, 9), mode="bilinear")
        yield F.interpolate(x, size=(11, 9), mode="nearest")
        yield F.interpolate(x, size=(3, 9), mode="bicubic", align_corners=True)
        yield F.pad(x, (2, 1, 1, 2), mode="reflect")
        yield F.adaptive_avg_pool2d(x, (3, 4))
        yield x.unfold(2, 3, 2)

    for k in range(6):
        for place in range(0, 40, 7):
            x = torch.randn(1, 1, 5, 6, requires_grad=True)
            out = list(programs(x))[k]
            grad = torch.ones(out.shape)
            grad.reshape(-1)[place % out.numel()] = bad
            with Recorder() as recorder:
                torch.autograd.grad(out, x, grad)
            for op, args, kwargs, expected in recorder.calls:
                got = decomp.by_name(str(op))(TorchHandler(), *args, **kwargs)
                assert torch.equal(got.isfinite(), expected.isfinite()), op


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("kind", ["_nearest", "_linear", "_cubic"])
def test_bounds_for_unknown_sizes_hold_for_all(kind, corners):
    """What stands in for sizes that are not known leaves out no reader of any input."""
    p = TorchHandler()
    for size, out in itertools.product([*range(1, 20), 64, 100], [*range(1, 50), 128, 150]):
        if kind == "_nearest":
            how = {"scale": None, "exact": corners}
        else:
            how = {"scale": None, "align_corners": corners, "dtype": torch.float32}
        taps = lambda p, o: getattr(resampling, kind)(p, o, size, out, **how)  # noqa: B023, E731
        line = resampling._line(p, size, out, taps, None, torch.device("cpu"))
        bound = lines._bounded_readers(line)
        if bound is None:
            assert out > size * lines.MAX_GROWTH
            continue
        i, o = torch.arange(size), torch.arange(out)
        first = torch.searchsorted(line.high(p, o), i)
        stop = torch.searchsorted(line.low(p, o), i, right=True)
        read = stop > first
        guess = (i * bound.step + bound.start).div(bound.divisor, rounding_mode="floor")
        assert (guess <= first)[read].all() and (stop <= guess + bound.slack)[read].all(), (size, out)
        assert int((stop - first).max()) <= bound.most, (size, out)


def test_gradients_of_sizes_that_are_not_known_gather():
    ctx = SymbolContext()
    h, w = ctx.new_symbol(8, "h"), ctx.new_symbol(10, "w")
    p = GraphHandler(torch.fx.Graph())
    cpu = torch.device("cpu")
    grad = p.placeholder("g", TensorSpec((2, 3, 2 * h, 3 * w), torch.float32, cpu))
    guards = len(ctx.guards)
    for name in ("upsample_bilinear2d_backward", "upsample_bicubic2d_backward"):
        for corners in (False, True):
            out = decomp.by_name(f"aten.{name}.default")(p, grad, (2 * h, 3 * w), (2, 3, h, w), corners, 2.0, 3.0)
            assert out.shape == (2, 3, h, w)
    decomp.by_name("aten.upsample_nearest2d_backward.default")(p, grad, (2 * h, 3 * w), (2, 3, h, w))
    x = p.placeholder("x", TensorSpec((2, 3, h, w), torch.float32, cpu))
    padded = p.placeholder("y", TensorSpec((2, 3, h + 2, w + 3), torch.float32, cpu))
    for kind in ("reflection", "replication"):
        decomp.by_name(f"aten.{kind}_pad2d_backward.default")(p, padded, x, (1, 2, 2, 0))
    assert not {n.target.name for n in p.graph.nodes if n.op == "call_function"} & {"index_put", "scatter"}
    assert len(ctx.guards) == guards, "a backward pass is lowered when guards can no longer be added"
