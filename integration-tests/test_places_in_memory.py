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
