"""The table itself: complete rows, stable identity, canonical arguments."""

import copy
import pickle

import pytest
import torch

import prims.ops as ops
from prims.errors import UserError
from prims.ops import TABLE, lookup
from prims.ops.row import define
from prims.ops.templates import c_expr, triton_expr

ROWS = list(TABLE.values())


def test_size_of_the_core_set():
    assert 95 <= len(TABLE) <= 130


def test_the_contract_set_is_there():
    names = """
        neg abs sign ceil floor trunc round exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan
        asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid isnan isinf
        bitwise_not logical_not add sub mul div trunc_div floor_div remainder fmod pow atan2 maximum minimum fmax
        fmin copysign nextafter hypot bitwise_and bitwise_or bitwise_xor shift_left shift_right logical_and
        logical_or logical_xor eq ne lt le gt ge where fma convert bitcast full iota random_uniform random_normal
        random_bits broadcast reshape permute slice pad concat flip gather index scatter index_put sum prod amax
        amin any all argmax argmin cumsum cumprod dot
    """.split()
    assert set(names) == set(TABLE)


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_row_is_complete(op):
    assert op.doc and op.dtypes and op.constraints and op.params
    assert all(label.startswith(op.name.upper() + "-C") for label in op.constraints)
    assert op.since == (1, 0)
    for dtype in op.dtypes:
        notes = [sample.note for sample in op.samples(dtype)]
        assert notes, f"{op.name} has no samples for {dtype}"
        if op.elementwise and op.kind != "cast":
            args = ["a", "b", "c"][: len(op.params)]
            assert c_expr(op, args, dtype)
            assert triton_expr(op, args, dtype)


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_identity_survives_copies_and_pickle(op):
    assert copy.copy(op) is op
    assert copy.deepcopy({"x": op})["x"] is op
    assert pickle.loads(pickle.dumps(op)) is op
    assert getattr(ops, op.name) is op is lookup(op.name)
    assert repr(op) == f"prims.ops.{op.name}"
    assert f"{op.__module__}.{op.__name__}" == repr(op)


def test_a_graph_module_of_primitives_runs_prints_and_copies():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(ops.sum, (graph.call_function(ops.exp, (x,)), (1,)))
    graph.output((y,))
    gm = torch.fx.GraphModule({}, graph)
    assert "prims.ops.sum(" in gm.code.replace("prims_ops_sum", "prims.ops.sum")
    data = torch.rand(3, 4)
    for module in (gm, copy.deepcopy(gm)):
        torch.testing.assert_close(module(data)[0], data.exp().sum(1))
    assert [n.name for n in graph.nodes] == ["x", "exp", "sum_1", "output"]


def test_bind_gives_one_canonical_form():
    x = torch.zeros(2, 3, 4)
    assert ops.sum.bind(x, [-1, 0])[1] == (0, 2)
    assert ops.permute.bind(x, dims=[-1, 0, 1])[1] == (2, 0, 1)
    assert ops.cumsum.bind(x, -1)[1] == 2
    assert ops.reshape.bind(x, torch.Size([6, 4]))[1] == (6, 4)
    assert ops.full.bind([2], 1.0, torch.float32, "cpu")[3] == torch.device("cpu")
    assert ops.scatter.bind(x, x, x, 0)[4] == "set"
    assert ops.index_put.bind(x, [x], [0], x)[4] is False


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="'y' is missing"):
        ops.add.bind(torch.zeros(1))
    with pytest.raises(UserError, match="unexpected argument 'alpha'"):
        ops.add.bind(torch.zeros(1), 1, alpha=2)
    with pytest.raises(UserError, match="takes 2 arguments, got 3"):
        ops.add.bind(torch.zeros(1), 1, 2)
    with pytest.raises(UserError, match="'gelu'"):
        lookup("gelu")
    with pytest.raises(AttributeError, match="gelu"):
        _ = ops.gelu


def test_a_name_is_defined_once():
    with pytest.raises(ValueError, match="defined twice"):
        define("add", "x: V, y: V", "binary", meta=None, torch_ref=None, numpy_ref=None, samples=None, dtypes=())


def test_references_take_numbers_on_both_sides():
    x = torch.tensor([1.0, 2.0])
    assert ops.sub(1.0, x).tolist() == [0.0, -1.0]
    assert ops.pow(2.0, x).tolist() == [2.0, 4.0]
    assert ops.where(x > 1, x, 0.0).tolist() == [0.0, 2.0]
    assert ops.where(x > 1, 0.0, x).tolist() == [1.0, 0.0]
