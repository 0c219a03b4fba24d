"""Composite operators that ask tensors or sizes for numbers compile whole: fixed sizes and symbolic, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import compile_api

VALUE = torch.tensor(2.5, requires_grad=True)
WEIGHTS = [torch.linspace(-1, 1, n).reshape(n // 4, 4) for n in (48, 16)]
SHAPES = [(6, 8), (7, 10), (9, 14)]


def attention(x: torch.Tensor) -> torch.Tensor:
    """Attention over rows of four numbers, of which none is padding."""
    rows = x[:, :4].unsqueeze(1)
    padding = torch.zeros(1, rows.shape[0], dtype=torch.bool)
    given = (WEIGHTS[0], torch.zeros(12), None, None, False, 0.0, WEIGHTS[1], torch.zeros(4))
    return F.multi_head_attention_forward(rows, rows, rows, 4, 2, *given, key_padding_mask=padding)[0]


def checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] > 2, lambda: "too few rows")
    torch._check_with(ValueError, x.shape[1] % 2 == 0, lambda: f"{x.shape[1]} columns")
    return x * 2


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cov": torch.cov,
    "cov of a row": lambda x: x[0].cov(correction=0),
    "cov of whole numbers": lambda x: (torch.cov((x * 4).long()), x),
    "cov in 64 bits": lambda x: torch.cov(x.double()),
    "corrcoef": torch.corrcoef,
    "corrcoef of a row": lambda x: x[0].corrcoef(),
    "corrcoef of complex numbers": lambda x: torch.view_as_real(torch.corrcoef(torch.complex(x, x * x))),
    "tensor_split": lambda x: torch.tensor_split(x, 3),
    "tensor_split along": lambda x: [part * 2 for part in x.tensor_split(3, dim=-1)],
    "tensor_split at": lambda x: x.tensor_split((1, 3), 1),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([2, 0]), 3.0),
    "index_fill with a tensor": lambda x: x.t().index_fill(-1, torch.tensor([2, 0, 2]), VALUE),
    "padding of keys": attention,
    "checks": checked,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_composite(program: str, dynamic: bool) -> None:
    fn = PROGRAMS[program]
    compiled = compile_api.compile(fn, dynamic=dynamic, fullgraph=True)
    for shape in SHAPES:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
        found = []
        for f in (fn, compiled):
            results = f(x)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            loss = sum(
                (t.double() * torch.arange(t.numel()).reshape(t.shape)).sum() for t in results if t.requires_grad
            )
            grads = torch.autograd.grad(loss, [x, VALUE], allow_unused=True)
            found.append((results, [t.stride() for t in results], [g for g in grads if g is not None]))
        (eager, strides, gradients), (ours, our_strides, our_gradients) = found
        assert strides == our_strides
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(our_gradients, gradients, atol=1e-3, rtol=1e-4)
    report = compiled.report()
    captured = [graph for graph in report.graphs if graph.dialect == "torch"]
    assert not report.fallbacks and (not dynamic or len(captured) == 1)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
def test_checks_that_fail_raise_as_in_eager(dynamic: bool) -> None:
    compiled = compile_api.compile(checked, dynamic=dynamic)
    compiled(torch.ones(4, 4))
    for shape, kind in (((2, 4), RuntimeError), ((4, 5), ValueError)):
        with pytest.raises(kind) as eager:
            checked(torch.ones(shape))
        with pytest.raises(kind) as ours:
            compiled(torch.ones(shape))
        assert str(ours.value) == str(eager.value)


def test_what_only_data_tell_is_left_to_eager() -> None:
    """Weights may be negative or 0, too few observations are warned about, and each error is eager's."""
    compiled = compile_api.compile(lambda x, w: torch.cov(x, fweights=w))
    x = torch.randn(3, 4)
    torch.testing.assert_close(
        compiled(x, torch.tensor([1, 2, 1, 3])), torch.cov(x, fweights=torch.tensor([1, 2, 1, 3]))
    )
    with pytest.raises(RuntimeError, match="negative"):
        compiled(x, torch.tensor([1, 2, 1, -3]))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert bool(compile_api.compile(torch.cov)(torch.ones(3, 1)).isnan().all())
    with pytest.raises(RuntimeError, match="two or fewer dimensions"):
        compile_api.compile(lambda x: x.cov())(torch.ones(2, 2, 2))


def _frequencies(x):
    fft = torch.fft
    return (x + fft.fftfreq(5, 0.5), fft.fftfreq(8), fft.fftfreq(1), fft.fftfreq(6, dtype=torch.float64),
            fft.rfftfreq(7, 2.0), fft.rfftfreq(2), fft.rfftfreq(1), fft.fftshift(fft.fftfreq(5)))  # fmt: skip


def test_frequencies_of_fourier_transforms():
    compiled = compile_api.compile(_frequencies, fullgraph=True)
    for ours, theirs in zip(compiled(torch.zeros(5)), _frequencies(torch.zeros(5)), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
    assert not compiled.report().fallbacks


def test_repetitions_counted_by_a_tensor():
    def fn(x, counts):
        return torch.repeat_interleave(x, counts, dim=0, output_size=5) * 2

    compiled = compile_api.compile(fn, fullgraph=True)
    x = torch.randn(3, 2)
    for counts in ([1, 3, 1], [0, 5, 0], [2, 2, 1]):
        assert torch.equal(compiled(x, torch.tensor(counts)), fn(x, torch.tensor(counts)))
    assert not compiled.report().fallbacks
    with pytest.raises(RuntimeError, match="allocated size"):
        compiled(x, torch.tensor([1, 1, 1]))
