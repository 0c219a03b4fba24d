"""Abstract tensors: metadata, autograd, aliasing, modes, devices, inference mode, speed of import."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prims.errors import DataDependentError, Unsupported
from prims.spec import (
    AbstractMode,
    AbstractTensor,
    SymbolContext,
    TensorSpec,
    abstract,
    abstract_from_spec,
    infer,
    meta_rule,
    spec_of,
)


def same(a: torch.Tensor, e: torch.Tensor) -> None:
    assert isinstance(a, AbstractTensor)
    assert a.spec == spec_of(e)
    assert a.shape == e.shape and a.stride() == e.stride() and a.dtype == e.dtype
    assert a.storage_offset() == e.storage_offset()


def test_spec_is_a_value():
    a = TensorSpec((2, 3), torch.float32, torch.device("cpu"))
    assert a.strides == (3, 1) and a.ndim == 2 and a.numel() == 6 and a.is_contiguous()
    assert a == TensorSpec([2, 3], torch.float32, "cpu", (3, 1)) and hash(a) == hash(a.replace())
    assert a != a.replace(strides=(1, 2)) and not a.replace(strides=(1, 2)).is_contiguous()
    assert a.replace(shape=(4,)).strides == (1,)
    assert repr(a.replace(strides=(1, 2), storage_offset=5)) == "float32[2, 3] strides (1, 2) offset 5 cpu"
    with pytest.raises(AttributeError, match="immutable"):
        a.shape = (1,)
    assert TensorSpec((0, 3), torch.float32, "cpu").strides == torch.empty(0, 3).stride()


def test_abstract_keeps_what_matters():
    p = nn.Parameter(torch.randn(3, 4))
    a = abstract(p)
    assert isinstance(a, nn.Parameter) and a.requires_grad and a.is_leaf
    b = abstract(torch.randn(4, 3).t()[1:])
    assert not isinstance(b, nn.Parameter) and not b.requires_grad and b.stride() == (1, 3)
    c = abstract(p * 2)
    assert c.requires_grad and not c.is_leaf
    assert "float32[3, 4]" in repr(a)


def test_any_device_without_having_it():
    spec = TensorSpec((2, 3), torch.bfloat16, torch.device("cuda", 0))
    x = abstract_from_spec(spec)
    y = F.softmax(x @ x.t(), dim=-1).float().sum()
    assert y.device == torch.device("cuda", 0) and y.dtype is torch.float32 and y.is_cuda
    if torch.version.cuda is None:
        with pytest.raises(Unsupported, match="CUDA build of torch"):
            abstract_from_spec(spec, requires_grad=True)
        return
    x = abstract_from_spec(spec, requires_grad=True)
    if not torch.cuda.is_available():
        return  # the autograd engine asks the driver about the device
    (g,) = torch.autograd.grad(F.softmax(x @ x.t(), dim=-1).float().sum(), x)
    assert g.shape == (2, 3) and g.dtype is torch.bfloat16 and g.is_cuda


def test_training_step_through_autograd():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))
    x, target = torch.randn(5, 8), torch.randint(0, 4, (5,))
    loss = F.cross_entropy(model(x), target)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    with AbstractMode():
        parameters = {k: abstract(v) for k, v in model.named_parameters()}
        out = torch.func.functional_call(model, parameters, (abstract(x),))
        grads = torch.autograd.grad(F.cross_entropy(out, abstract(target)), list(parameters.values()))
    for a, e in zip(grads, expected, strict=True):
        same(a, e)


def test_views_know_their_base():
    x = abstract(torch.randn(4, 6))
    v = x[1:, ::2].t()
    assert v._is_view() and v._base is x
    assert v.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert (x + 1).untyped_storage()._cdata != x.untyped_storage()._cdata
    parts = x.split(2)
    assert all(p._base is x for p in parts)
    same(v, torch.randn(4, 6)[1:, ::2].t())


def test_in_place_gives_the_tensor_itself():
    x = abstract(torch.randn(4, 6))
    assert x.add_(1) is x and x[0].mul_(2)._base is x
    version = x._version
    x.zero_()
    assert x._version == version + 1
    out = abstract(torch.empty(4, 6))
    assert torch.add(x, 1, out=out) is out


def test_in_place_changes_of_metadata():
    for change in (
        lambda t: t.transpose_(0, 1),
        lambda t: t.squeeze_(),
        lambda t: t.unsqueeze_(1),
        lambda t: t.t_(),
        lambda t: t.as_strided_((2, 2), (1, 2), 1),
        lambda t: t.resize_(3, 9),
    ):
        e, x = torch.randn(6, 1), abstract(torch.randn(6, 1))
        a = change(x)
        assert a is x
        same(a, change(e))
    out = abstract(torch.empty(0))
    torch.cat([abstract(torch.randn(2, 3))] * 2, out=out)
    assert out.shape == (4, 3) and out.spec.shape == (4, 3)


def test_in_place_on_a_leaf_raises_as_eager():
    x = abstract(torch.randn(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: bool(t.any()),
        lambda t: t.nonzero(),
        lambda t: t[t > 0],
        lambda t: t.numpy(),
        lambda t: t.data_ptr(),
        lambda t: float(t[0, 0]),
        lambda t: torch.equal(t, t),
    ],
)
def test_reading_data_raises(read):
    with pytest.raises(DataDependentError):
        read(abstract(torch.randn(2, 2)))


def test_mode_makes_factories_abstract():
    with AbstractMode():
        made = [
            torch.zeros(2, 3),
            torch.arange(4),
            torch.tensor([1.0, 2.0]),
            torch.full((2,), 1),
            torch.randn(3, dtype=torch.float64),
            torch.ones(3) + torch.ones(3),
        ]
    assert all(isinstance(t, AbstractTensor) for t in made)
    assert [t.dtype for t in made[:5]] == [torch.float32, torch.int64, torch.float32, torch.int64, torch.float64]
    assert type(torch.zeros(1)) is torch.Tensor


def test_real_tensors_count_as_constants():
    x = abstract(torch.randn(2, 3))
    same(x * torch.ones(3), torch.randn(2, 3))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_grad_modes(mode):
    layer = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU())
    x = torch.randn(2, 5, 6)
    heads = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    abstract_parameters = {k: abstract(v) for k, v in layer.named_parameters()}
    with mode():
        expected = layer(x), F.scaled_dot_product_attention(*heads), layer[0].weight.t()[1:]
        with AbstractMode():
            a = torch.func.functional_call(layer, abstract_parameters, (abstract(x),))
            b = F.scaled_dot_product_attention(*map(abstract, heads))
            c = abstract_parameters["0.weight"].t()[1:]
    for got, want in zip((a, b, c), expected, strict=True):
        same(got, want)


def test_symbolic_sizes_flow_and_do_not_guard():
    ctx = SymbolContext()
    x = abstract(torch.randn(4, 10, 16), ctx, [0, 1])
    weight, bias = abstract(torch.randn(32, 16)), abstract(torch.randn(32))
    y = F.layer_norm(F.gelu(F.linear(x, weight, bias)), (32,), bias, bias)
    y = y.view(y.shape[0], y.shape[1], 4, 8).transpose(1, 2)
    out = F.scaled_dot_product_attention(y, y, y).transpose(1, 2).reshape(x.shape[0], -1, 32)
    assert str(out.spec) == "float32[s0, s1, 32] cpu"
    assert not ctx.guards
    assert torch.cat([out, out], 1).spec.shape[1] == 2 * x.spec.shape[1]


def test_symbolic_strides_follow_the_sizes():
    ctx = SymbolContext()
    t = torch.randn(4, 5, 6).permute(2, 0, 1)
    x = abstract(t, ctx, [0, 1, 2])
    s0, s1, s2 = x.spec.shape
    assert x.spec.strides == (1, s2 * s0, s0)
    shared = abstract(torch.randn(4), ctx, {0: s1})
    assert shared.spec.shape[0] is s1
    one = abstract(torch.randn(1, 3), ctx, [0])
    assert one.spec.shape == (1, 3)


def test_equal_sizes_are_guarded_once():
    ctx = SymbolContext()
    x, y = abstract(torch.randn(4, 3), ctx, [0]), abstract(torch.randn(4, 3), ctx, [0])
    z = x + y
    x * y + z
    assert [str(g.expr) for g in ctx.guards] == ["s0 == s1"]
    assert ctx.guards[0].where.filename == __file__


def test_errors_are_eagers():
    x = abstract(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        x + abstract(torch.randn(3, 5))
    with pytest.raises(RuntimeError, match="is invalid for input of size 12"):
        x.view(5, -1)
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.sum(2)


def test_infer_takes_specs_and_tensors():
    a = TensorSpec((3, 4), torch.float32, "cpu")
    out = infer(torch.ops.aten.mm.default, (a, torch.randn(4, 5)))
    assert out == TensorSpec((3, 5), torch.float32, "cpu")
    values, indices = infer(torch.ops.aten.max.dim, (a, 1), {"keepdim": True})
    assert values.shape == (3, 1) and indices.dtype is torch.int64
    assert infer(torch.ops.aten.sym_size.int, (a, 1)) == 4
    assert infer(torch.ops.aten.matmul.default, (a, a.replace(shape=(4, 2)))).shape == (3, 2)
    assert infer(torch.ops.aten.add_.Tensor, (a, 1)) is a


def test_unknown_operators_are_unsupported():
    with pytest.raises(Unsupported, match=r"no metadata rule for aten\._to_sparse"):
        abstract(torch.randn(2, 2)).to_sparse()
    with pytest.raises(ValueError, match="is defined twice"):
        meta_rule("aten.mm.default")(lambda *a: None)


def test_custom_operator_with_a_fake():
    @torch.library.custom_op("quintet_spec_test::halve", mutates_args=())
    def halve(x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2].clone()

    @halve.register_fake
    def _(x):
        return x.new_empty(x.shape[0] // 2, *x.shape[1:])

    out = infer(torch.ops.quintet_spec_test.halve.default, (TensorSpec((6, 2), torch.float32, "cpu"),))
    assert out == TensorSpec((3, 2), torch.float32, "cpu")


PROGRAM = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
from prims.spec import AbstractMode, SymbolContext, abstract

model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
ctx = SymbolContext()
with AbstractMode():
    parameters = {k: abstract(v) for k, v in [*model.named_parameters(), *model.named_buffers()]}
    x = abstract(torch.randn(4, 3, 16, 16), ctx, [0])
    out = torch.func.functional_call(model, parameters, (x,))
    loss = F.cross_entropy(out, torch.zeros(x.shape[0], dtype=torch.int64))
    torch.autograd.grad(loss, [p for p in parameters.values() if p.requires_grad])
    y = torch.randn(2, 5, 8)
    for f in (lambda: y + 1, lambda: y.mean(-1), lambda: F.gelu(y), lambda: torch.cat([y, y]),
              lambda: torch.where(y > 0, y, 0.0), lambda: y.rsqrt().pow(2), lambda: y[:, [0, 1]],
              lambda: F.scaled_dot_product_attention(y, y, y), lambda: y.cumsum(1), lambda: y.sort(),
              lambda: F.interpolate(y, scale_factor=2.0), lambda: torch.einsum("bij,bkj->bik", y, y),
              lambda: F.pad(y, (1, 1)), lambda: y.std(), lambda: torch.linalg.norm(y), lambda: y.topk(2),
              lambda: torch.fft.rfft(y), lambda: F.dropout(y, 0.5), lambda: y.unfold(1, 2, 1),
              lambda: torch.linalg.qr(y), lambda: F.embedding(torch.zeros(2, dtype=torch.int64), y[0])):
        f()
assert not [str(g.expr) for g in ctx.guards], ctx.guards
bad = sorted(m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor", "sympy", "networkx")))
assert not bad, bad
"""


def test_nothing_imports_the_compiler():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)


def test_symbolic_calls_keep_sizes_symbolic():
    ctx = SymbolContext()
    x, q = abstract(torch.randn(2, 3, 4, 4), ctx, [0]), abstract(torch.randn(2, 4, 8, 16), ctx, [0, 2])
    weight, vector = abstract(torch.randn(16, 5)), abstract(torch.randn(16))
    nn_calls = torch._C._nn
    with AbstractMode():
        shapes = [
            nn_calls.upsample_bilinear2d(x, None, False, [2.0, 2.0]).spec.shape,
            nn_calls.upsample_nearest2d(x, (7, 9), None).spec.shape,
            (q @ q.transpose(-1, -2)).spec.shape,
            (q @ weight).spec.shape,
            torch.matmul(q, vector).spec.shape,
            (weight.t() @ q.transpose(-1, -2)).spec.shape,
            torch.matmul(vector, q.transpose(-1, -2)).spec.shape,
        ]
    assert [str(s) for s in shapes] == [
        "(s0, 3, 8, 8)",
        "(s0, 3, 7, 9)",
        "(s1, 4, s2, s2)",
        "(s1, 4, s2, 5)",
        "(s1, 4, s2)",
        "(s1, 4, 5, s2)",
        "(s1, 4, s2)",
    ]
    assert not ctx.guards


@pytest.mark.parametrize("arguments", [(5,), (5, False), (5, True, 4.0)])
def test_kaiser_window(arguments):
    with AbstractMode():
        window = torch.kaiser_window(*arguments, dtype=torch.float64)
    assert isinstance(window, AbstractTensor)
    assert window.spec == TensorSpec((5,), torch.float64, torch.device("cpu"))


def test_operators_know_no_default_device():
    torch.set_default_device("meta")
    try:
        with AbstractMode():
            assert torch.ops.aten.ones.default([2]).device == torch.device("cpu")
            assert torch.ones(2).device == torch.device("meta")
        assert torch.ops.aten.ones.default([2]).device == torch.device("cpu")
    finally:
        torch.set_default_device(None)
