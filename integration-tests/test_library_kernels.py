"""Programs around operators that are one kernel of a library in PyTorch: calls within a compiled graph, not breaks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import aot_autograd
import compile_api
import inductor_gen
from prims.lower import lower
from prims.options import Options


def check(program, *inputs, sizes=(), dynamic=None, tolerance=1e-5):
    """Results, strides and gradients as in eager, without a break or a fallback; returns the report."""
    compile_api.reset()
    compiled = compile_api.compile(program, dynamic=dynamic)
    parameters = list(program.parameters()) if isinstance(program, nn.Module) else []
    for given in (inputs, *sizes):
        wanted = [x for x in (*given, *parameters) if x.requires_grad]
        ours, theirs = pytree.tree_leaves(compiled(*given)), pytree.tree_leaves(program(*given))
        for a, b in zip(ours, theirs, strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        weights = [torch.randn_like(b) for b in theirs]
        for a, b in zip(
            torch.autograd.grad(ours, wanted, weights), torch.autograd.grad(theirs, wanted, weights), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    report = compiled.report()
    assert [item.reason for item in (*report.breaks, *report.fallbacks)] == []
    return report


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def externs(report):
    return {record.name for record in report.externs}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}])
def test_lstm_in_training(options, dynamic):
    """Other lengths and batches reuse the graph, whose saved workspace has a size that only the library knows."""
    model = nn.LSTM(5, 6, **options)
    others = [(leaf(9, 4, 5),), (leaf(4, 2, 5),)] if dynamic else []
    report = check(model, leaf(7, 3, 5), sizes=others, dynamic=dynamic)
    assert {"quintet.lstm_layer.default", "aten.mkldnn_rnn_layer_backward.default"} <= externs(report)
    assert not report.recompiles


class Tagger(nn.Module):
    """What is around the layer is compiled in the same graph."""

    def __init__(self):
        super().__init__()
        self.inner, self.rnn, self.out = nn.Linear(4, 5), nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        hidden, _ = self.rnn(torch.tanh(self.inner(x)))
        return F.log_softmax(self.out(hidden), -1)


def test_lstm_with_what_is_around_it():
    report = check(Tagger(), leaf(2, 5, 4))
    assert len([g for g in report.graphs if g.dialect == "torch"]) == 1


def test_a_long_recurrence_is_not_unrolled_in_training():
    compiled = compile_api.compile(nn.GRU(4, 4))
    compiled(torch.randn(100, 2, 4))[0].sum().backward()
    assert "unrolled over 100 steps" in compiled.report().breaks[0].reason


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"scale_factor": 2}, {"size": (9, 5)}])
def test_interpolation_of_symbolic_sizes(mode, options):
    def program(x):
        return F.interpolate(x, mode=mode, **options) + 1

    report = check(program, leaf(2, 3, 5, 6), sizes=[(leaf(3, 3, 7, 4),)], dynamic=True)
    assert not externs(report) and not report.recompiles


def rotary(x, factors):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors[None, : x.shape[1], None]).flatten(3)


def fourier(x, weight):
    """A global filter (Rao et al. 2021)."""
    spectrum = torch.fft.rfft2(x, norm="ortho")
    return torch.fft.irfft2(spectrum * torch.view_as_complex(weight), s=x.shape[-2:], norm="ortho") + x


SPECTRAL = {
    "rotary": (rotary, lambda: (leaf(2, 5, 3, 8), torch.polar(torch.ones(16, 4), torch.randn(16, 4)))),
    "global filter": (fourier, lambda: (leaf(2, 4, 8, 8), leaf(4, 8, 5, 2))),
    "mixing": (lambda x: torch.fft.fft2(x).real + 1, lambda: (leaf(2, 8, 6),)),
    "phase": (lambda a, b: (torch.complex(a, b) * torch.polar(a.abs(), b)).abs(), lambda: (leaf(3, 4), leaf(3, 4))),
    "complex result": (lambda a, b: (torch.complex(a, b).t() * 2, a + 1), lambda: (leaf(3, 4), leaf(3, 4))),
    "complex sum": (lambda z: z.sum() * 2, lambda: (leaf(3, 4, dtype=torch.complex64),)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", SPECTRAL)
def test_complex_numbers(name, dynamic):
    program, inputs = SPECTRAL[name]
    check(program, *inputs(), dynamic=dynamic)


def test_what_a_rotary_embedding_calls():
    report = check(*(SPECTRAL["rotary"][0], *SPECTRAL["rotary"][1]()))
    assert not {"aten.mul.Tensor", "aten.view_as_complex.default", "aten.complex.default"} & externs(report)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 5, 0), (0, 4)), ((0, 5, 3), (3, 4)), ((2, 5, 0), (2, 0, 4))])
@pytest.mark.parametrize("dynamic", [None, True])
def test_products_without_elements(shapes, dynamic):
    check(lambda a, b: (a @ b).relu() + 1, *(leaf(*shape) for shape in shapes), dynamic=dynamic)


LIBRARY = {
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + 3 * torch.eye(4)) * 2,
    "slogdet": lambda x: torch.linalg.slogdet(x)[1] + 1,
    "pinv": lambda x: torch.linalg.pinv(x) + 1,
    "matrix_exp": lambda x: torch.linalg.matrix_exp(x) * 2,
    "cummax": lambda x: x.cummax(0).values.sin(),
    "logcumsumexp": lambda x: x.sin().logcumsumexp(0) + 1,
    "polygamma": lambda x: torch.polygamma(1, x.abs() + 1) * 2,
    "i0": lambda x: torch.special.i0e(x * 2) + 1,
    "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x[None, None] * 2, 2, return_indices=True), 2) + 1,
    "embedding_bag": lambda x: F.embedding_bag(torch.arange(4).view(2, 2), x * 2) + 1,
    "pdist": lambda x: F.pdist(x * 2) + 1,
}


@pytest.mark.parametrize("name", LIBRARY)
def test_library_calls_between_kernels(name):
    report = check(LIBRARY[name], leaf(4, 4), tolerance=1e-4)
    assert externs(report) and report.kernels


#: Operators along one dimension whose kernels are PyTorch's.
ALONG = ("median", "nanmedian", "mode", "sort", "cummax", "cummin", "logcumsumexp")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ALONG)
def test_copies_of_expanded_tensors(name, dynamic):
    """Such a copy is no operator of its own here; some kernels read behind a tensor whose elements share memory."""

    def function(x, sizes, dim):
        return getattr(torch, name)(x.expand(sizes).contiguous(), dim)

    compiled = compile_api.compile(function, dynamic=dynamic, options={"recompile_limit": 10})  # ranks and dimensions
    for shape, sizes in [((1,), (5,)), ((3, 1), (3, 4)), ((1, 4), (3, 4)), ((1, 1), (4, 6)), ((2, 1, 3), (2, 5, 3))]:
        for dim in (0, -1):
            x = torch.randn(shape)
            ours, eager = (f(x, sizes, dim) for f in (compiled, function))
            if isinstance(eager, tuple):  # values, and indices of which equal elements have several
                ours, eager = ours[0], eager[0]
            torch.testing.assert_close(ours, eager)
    assert compiled.report().graphs and not compiled.report().fallbacks


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mixture_of_experts(dynamic):
    """Rows sorted by their expert, the product of each group of them with its expert's matrix, and back."""

    def program(x, scores, weight):
        expert, order = scores.argmax(1).sort()
        ends = torch.histc(expert.float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
        out = torch._grouped_mm(x[order], weight.mT, offs=ends)
        return torch.empty_like(out).index_copy(0, order, out).relu()

    def given(rows):
        return leaf(rows, 16, dtype=torch.bfloat16), torch.randn(rows, 4), leaf(4, 24, 16, dtype=torch.bfloat16)

    report = check(program, *given(40), sizes=[given(33)] if dynamic else [], dynamic=dynamic, tolerance=2e-2)
    assert "aten._grouped_mm.default" in externs(report)


@pytest.mark.parametrize("kernel,calls", [(3, 0), (5, 1), (15, 2)])
def test_maxima_of_windows_that_stay_calls_on_a_gpu(kernel, calls):
    """Of windows of many elements, and gradients where many windows cover an element: eager's kernels are as good."""
    graph = torch.fx.symbolic_trace(lambda x: F.max_pool2d(x * 2, kernel, 1))
    env = aot_autograd.joint_graph(graph, [torch.randn(1, 2, 30, 30, requires_grad=True)]).envelope
    for device, expected in (("cuda", calls), ("cpu", 2)):
        made = lower(env, claims=inductor_gen.claims(device), options=Options())
        assert sum(str(node.target).startswith("aten.max_pool2d") for node in made.op_nodes) == expected
