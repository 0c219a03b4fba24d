"""Short-time Fourier transforms of signals whose length changes: one graph, results and gradients as eager's."""

from __future__ import annotations

import pytest
import torch

import compile_api

HANN, SHORT = torch.hann_window(16), torch.hann_window(12)
SPECTROGRAMS = {
    "magnitudes": lambda x: torch.stft(x, 16, hop_length=4, window=HANN, return_complex=True).abs(),
    "a short window": lambda x: torch.stft(x, 16, 4, 12, SHORT, normalized=True, return_complex=True).abs().square(),
    "not centred": lambda x: torch.stft(x, 16, 4, window=HANN, center=False, return_complex=True).real,
    "both sides": lambda x: torch.stft(x, 16, return_complex=True, onesided=False).imag,
    "pairs": lambda x: torch.stft(x, 16, 4, window=HANN, return_complex=False),
    "no window": lambda x: torch.stft(x, 16, 4, 10, return_complex=True).abs(),
    "zeros around": lambda x: torch.stft(x, 16, 4, window=HANN, pad_mode="constant", return_complex=True).abs(),
    "a method": lambda x: x.stft(16, 4, window=HANN, return_complex=True).abs().log1p(),
    "complex signals": lambda x: torch.stft(torch.complex(x, x.cos()), 16, 4, return_complex=True).abs(),
}
LENGTHS = {"one": lambda i: (44 + 3 * i,), "three": lambda i: (3, 40 + 5 * i), "batches": lambda i: (2 + i, 50 + i)}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", SPECTROGRAMS)
def test_signals_of_any_length(name, lengths):
    compiled = compile_api.compile(SPECTROGRAMS[name])
    for i in range(11):
        found = []
        for run in (SPECTROGRAMS[name], compiled):
            x = torch.randn(*LENGTHS[lengths](i), generator=torch.Generator().manual_seed(i)).requires_grad_()
            result = run(x)
            found.append([result, *torch.autograd.grad(result.sin().sum(), x)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
        assert found[1][0].stride() == found[0][0].stride()
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "refused",
    [
        lambda x: torch.stft(x, 64, 4, return_complex=True),
        lambda x: torch.stft(x, 16, 0, return_complex=True),
        lambda x: torch.stft(x, 16, 4, 20, return_complex=True),
        lambda x: torch.stft(x, 16, 4, window=SHORT, return_complex=True),
        lambda x: torch.stft(x, 16, 4),
        lambda x: x.stft(16, 4, return_complex=True, align_to_window=True),
    ],
)
def test_what_eager_refuses(refused, dynamic):
    compiled = compile_api.compile(refused, dynamic=dynamic)
    for length in (20, 24, 28):
        x = torch.randn(length)
        with pytest.raises(RuntimeError) as wanted:
            refused(x)
        with pytest.raises(RuntimeError) as got:
            compiled(x)
        assert str(got.value).splitlines()[0][:30] == str(wanted.value).splitlines()[0][:30]
