"""Functions of torch that look at data or take ints only, captured as Python with the same meaning."""

from __future__ import annotations

import pytest
import torch

SIZES = (3, 4, 6, 9)


def check_sizes(capture, fn, graphs=2):
    compiled = capture(fn)
    for n in SIZES:
        x = torch.randn(n)
        mine, eager = compiled(x), fn(x)
        assert mine.dtype == eager.dtype and torch.equal(mine, eager)
    assert len(compiled.graphs) <= graphs and not compiled.report.breaks


@pytest.mark.parametrize("of", [torch.tril_indices, torch.triu_indices])
@pytest.mark.parametrize("offset", [-7, -2, -1, 0, 1, 2, 7])
@pytest.mark.parametrize("shape", ["square", "wide", "high", "two rows", "two columns"])
def test_indices_of_triangles(capture, of, offset, shape):
    def fn(x):
        n = x.shape[0]
        rows, columns = {
            "square": (n, n), "wide": (n, 2 * n + 1), "high": (n + 3, n), "two rows": (2, n), "two columns": (n, 2)
        }[shape]  # fmt: skip
        return of(rows, columns, offset, dtype=torch.int32 if offset else torch.int64)

    check_sizes(capture, fn, graphs=4)  # where the diagonal ends outside, a size decides


@pytest.mark.parametrize("again", [False, True])
def test_combinations(capture, again):
    check_sizes(capture, lambda x: torch.combinations(x, with_replacement=again))


def test_other_combinations_are_eagers(capture):
    compiled = capture(lambda x: torch.combinations(x, r=3) + 1)
    x = torch.randn(5)
    assert torch.equal(compiled(x), torch.combinations(x, r=3) + 1)


SPECTRA = {
    "plain": ({"n_fft": 8, "hop_length": 4, "window": torch.hann_window(8)}, {}),
    "a narrow window": ({"n_fft": 8, "hop_length": 2, "win_length": 6, "window": torch.hann_window(6)}, {"length": 31}),
    "a longer signal": ({"n_fft": 8, "hop_length": 4, "window": torch.hann_window(8)}, {"length": 60}),
    "normalized": ({"n_fft": 8, "normalized": True, "window": torch.ones(8)}, {}),
    "not centred": ({"n_fft": 8, "hop_length": 4, "window": torch.ones(8), "center": False}, {}),
    "complex": (
        {"n_fft": 9, "hop_length": 3, "window": torch.hamming_window(9), "onesided": False}, {"return_complex": True}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECTRA)
def test_inverse_spectra(capture, name):
    forth, back = SPECTRA[name]

    def fn(x):
        spectrum = torch.stft(x, return_complex=True, **forth)
        signal = torch.istft(spectrum * 2, **{**forth, **back})
        return signal.abs() if signal.is_complex() else signal

    compiled = capture(fn)
    for shape in ((2, 36), (2, 45), (2, 54), (36,)):
        x = torch.randn(shape)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        mine, eager = compiled(ours), fn(theirs)
        torch.testing.assert_close(mine, eager)
        mine.sum().backward()
        eager.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert not compiled.report.breaks and len(compiled.graphs) == 3


def test_a_window_that_leaves_a_hole_raises_as_in_eager(capture):
    window = torch.hann_window(8)

    def fn(x):
        spectrum = torch.stft(x, 8, hop_length=8, window=window, center=False, return_complex=True)
        return torch.istft(spectrum, 8, hop_length=8, window=window, center=False)

    compiled = capture(fn)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        compiled(torch.randn(32))


def test_hessians_of_changing_sizes(capture):
    def fn(x):
        return torch.func.hessian(lambda z: (z.sin() * z).sum())(x)

    compiled = capture(fn)
    for n in SIZES:
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), fn(x))
    assert not compiled.report.breaks and len(compiled.graphs) == 2


def test_packed_sequences_break_for_their_data(capture):
    from torch.nn.utils import rnn

    def fn(x, lengths):
        packed = rnn.pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(packed, batch_first=True)[0] + 1

    compiled = capture(fn)
    x, lengths = torch.randn(2, 5, 3), torch.tensor([3, 5])
    assert torch.equal(compiled(x, lengths), fn(x, lengths))
    assert all("QB02" in brk.reason for brk in compiled.report.breaks) and compiled.report.breaks
