"""Programs that speak of memory: offsets, strided views of it, results of another size, sizes as data."""

from __future__ import annotations

import keyword

import pytest
import torch

import compile_api

OFFSETS = (3, 4, 0, 3, 5, 2)


def _written(x, offset):
    x = x.clone()
    y = x.as_strided((2, 2), (2, 1), offset)
    y.add_(1)
    y.as_strided((2,), (1,)).mul_(2)
    return x * 2


def _input_written(x, offset):
    y = x.as_strided((2, 2), (2, 1), offset)
    y.add_(1)
    y.as_strided((2,), (2,)).mul_(2)
    return x * 2


STRIDED = {
    "read": lambda x: x.as_strided((2, 3), (2, 1), 4) + 0,
    "before the tensor": lambda x: x.as_strided((2, 3), (2, 1), 1) + 0,
    "past the tensor": lambda x: x.as_strided((2, 3), (4, 1), 5) * 2,
    "the result": lambda x: x.as_strided((2, 3), (2, 1), 4),
    "the result, before the tensor": lambda x: x.as_strided((2, 3), (2, 1), 0),
    "the whole": lambda x: x.as_strided((8,), (1,), x.storage_offset()) + 1,
    "where the tensor is": lambda x: x.as_strided((2, 2), (1, 3)) + 1,
    "of a view": lambda x: x[2:6].view(2, 2).t().as_strided((2, 2), (2, 1)) + 1,
    "of a view, with an offset": lambda x: x[2:6].as_strided((2, 2), (2, 1), 6) + 1,
    "of other elements": lambda x: x.view(torch.int16).as_strided((2, 2), (2, 1), 10) + 1,
    "pooled": lambda x: torch.nn.functional.adaptive_avg_pool1d(x.as_strided((2, 3), (2, 1), 4), 3),
    "copied": lambda x: torch.as_strided_copy(x, (2, 2), (2, 1), 5),
    "the operator": lambda x: torch.ops.aten.as_strided.default(x, (2, 2), (2, 1), 5) + 1,
    "written": lambda x: _written(x, 2),
    "input written": lambda x: (x, _input_written(x, 5)),
    "scattered": lambda x: x.as_strided_scatter(torch.ones(2, 2), (2, 2), (2, 1), 5) + 0,
    "the offset": lambda x: x * x.storage_offset(),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", STRIDED)
def test_inputs_at_offsets(name, dynamic):
    program = STRIDED[name]
    compiled = compile_api.compile(program, dynamic=dynamic)
    for offset in OFFSETS:
        ours, theirs = torch.arange(20.0), torch.arange(20.0)
        got, want = compiled(ours[offset : offset + 8]), program(theirs[offset : offset + 8])
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()
        assert torch.equal(ours, theirs)


def _sorted(x):
    values, at = torch.tensor(0.0), torch.tensor(0)
    torch.sort(x.flatten(), out=(values, at))
    return values + 1, at, values.shape, values.stride()


RESIZED = {
    "add": lambda x: _filled(torch.add, x, 1),
    "mul": lambda x: _filled(torch.mul, x, x),
    "sum": lambda x: _filled(torch.sum, x, 0),
    "cat": lambda x: _filled(torch.cat, [x, x], 1),
    "matmul": lambda x: _filled(torch.matmul, x, x.t()),
    "full": lambda x: _filled(torch.full, (2, 5), 3.0),
    "arange": lambda x: _filled(torch.arange, 7),
    "sort": _sorted,
}


def _filled(function, *args):
    out = torch.empty(0)
    function(*args, out=out)
    return out * 2, out.shape, out.stride(), out.numel()


@pytest.mark.filterwarnings("ignore:An output with one or more elements")
@pytest.mark.parametrize("name", RESIZED)
def test_results_of_another_size(name):
    x = torch.randn(3, 4)
    want, got = RESIZED[name](x), compile_api.compile(RESIZED[name])(x)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got, want, strict=True))


def test_a_size_is_not_data():
    def program(x):
        made = x.new(x.size()).fill_(1)
        return made + 1, x.new((2, 3)), x.new(2, 3).shape, x.new(torch.Size([])).shape, x.new().shape

    x = torch.randn(4, 5)
    for a, b in zip(compile_api.compile(program)(x), program(x), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


KEYWORDS = {
    "by position": lambda x: x.clone().random_(0, 1),
    "by name": lambda x: x.clone().random_(**{"from": 0, "to": 1}),
    "by one name": lambda x: x.clone().uniform_(**{"from": 0.0}, to=1e-9).round(),
    "by the other name": lambda x: x.clone().uniform_(to=1e-9).round(),
    "the operator": lambda x: getattr(torch.ops.aten.random_, "from")(x.clone(), 0, 1),
    "the operator by name": lambda x: getattr(torch.ops.aten.random_, "from")(x.clone(), **{"from": 0, "to": 1}),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", KEYWORDS)
def test_graphs_with_names_that_are_keywords_can_be_written_down(name, backend):
    compiled = compile_api.compile(KEYWORDS[name], backend=backend)
    assert torch.equal(compiled(torch.ones(3)), torch.zeros(3))
    assert not compiled.report().fallbacks and not compiled.report().breaks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("number", [complex(1, float("-inf")), complex(float("nan"), 2), complex(0, float("nan"))], ids=str)
def test_graphs_with_complex_numbers_that_are_not_finite(number, backend):
    def program(x):
        return torch.view_as_real(torch.full((2,), number)) + x

    compiled = compile_api.compile(program, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)), equal_nan=True, rtol=0, atol=0)
    assert not compiled.report().breaks


def test_every_operator_can_be_written_down():
    from prims.ir.printable import make_printable

    for name in torch._C._dispatch_get_all_op_names():
        home, _, overload = name.partition(".")
        namespace, packet = home.split("::")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        overload = overload or "default"
        if overload not in getattr(torch.ops.aten, packet).overloads():
            continue
        function = getattr(getattr(torch.ops.aten, packet), overload)
        names = [a.name for a in function._schema.arguments]
        if not (keyword.iskeyword(overload) or any(map(keyword.iskeyword, names))):
            continue
        graph = torch.fx.Graph()
        inputs = {name: graph.placeholder(f"{name}_") for name in names if name != "self"}
        graph.output(graph.call_function(function, (graph.placeholder("x"),), inputs))
        make_printable(graph)
        compile(graph.python_code("self").src, name, "exec")


def sliding_windows(x, z):
    """Strided reads of a value that lies in a piece of memory behind another."""
    s = torch.fft.rfft(x).abs()
    y = torch.cat([x[:, :16].flip(1) * 2, x * 3, x[:, -16:].flip(1) * 4], 1)
    w = y.as_strided((y.shape[0], (y.shape[1] - 8) // 4 + 1, 8), (y.shape[1], 4, 1), 0)
    return (w * s[:, :8].unsqueeze(1)).sum(-1), s


def complex_windows(x, z):
    y = torch.cat([z[:, :16].flip(1) * 2, z * 3, z[:, -16:].flip(1) * 4], 1)
    w = y.as_strided((y.shape[0], (y.shape[1] - 8) // 4 + 1, 8), (y.shape[1], 4, 1), 0)
    return (w * x[:, :1].unsqueeze(1)).abs().sum(-1), y.abs().flip(0)


def back_and_forth(x, z):
    window = torch.hann_window(32)
    y = torch.istft(torch.complex(x[:, :21] * 0.5, x[:, 21:42] * 0.8).expand(17, -1, -1).movedim(1, 0), 32, 8, window=window)
    b = torch.stft(y, 32, 8, window=window, return_complex=True)
    return torch.view_as_real(b).sum(-1), b.abs()


def of_what_a_library_made(x, z):
    y = torch.linalg.solve(torch.eye(z.shape[1], dtype=z.dtype) * 2, torch.fft.fft(z).mT).mT.contiguous()
    w = y.as_strided((y.shape[0], 4, 3), (y.shape[1], 2, 1), 1)
    return w.abs().sum(-1) + x[:, :4], y.abs().flip(0)


@pytest.mark.parametrize("numerics", ["fast", "eager_close", "eager_exact"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", [sliding_windows, complex_windows, back_and_forth, of_what_a_library_made])
def test_strided_reads_of_shared_pieces(program, dynamic, numerics):
    """An operator that counts from where a storage begins is not called on a part of one."""
    compiled = compile_api.compile(program, dynamic=dynamic, options={"numerics": numerics})
    for rows in (2, 3):
        pick = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, 160, generator=pick)
        z = torch.complex(x, x.flip(1))
        torch.testing.assert_close(compiled(x, z), program(x, z), atol=1e-3, rtol=1e-3)
    report = compiled.report()
    assert report.verdict == "compiled", str(report)
    assert not any("as_strided" in each.name for each in report.externs)
