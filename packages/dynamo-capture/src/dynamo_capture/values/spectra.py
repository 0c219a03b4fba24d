"""``torch.stft`` of a symbolic size and ``torch.istft``, written as Python.

PyTorch's transform takes its size as an int. The inverse looks at the sum of the windows, which may raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.functions import FunctionValue
from dynamo_capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["istft", "stft"]

_NAMES = ("input", "n_fft", "hop_length", "win_length", "window", "center", "normalized", "onesided", "length",
          "return_complex")  # fmt: skip


def istft(
    input: torch.Tensor, n_fft: int, hop: int, window: torch.Tensor, center: bool, norm: str | None, real: bool,
    length: int | None,
) -> torch.Tensor:  # fmt: skip
    """The signal of least squares (Griffin and Lim, "Signal estimation from modified short-time Fourier transform",
    1984): the inverse transforms of all frames, windowed and added, over the sum of the squared windows.

    Args:
        input: of shape (frequencies, frames), or that with a batch before.
        window: of ``n_fft`` elements.
        real: the signal is real, and half of its frequencies are given.
    """
    batch = input if input.dim() == 3 else input.unsqueeze(0)
    frames = batch.transpose(1, 2)
    total = n_fft + hop * (frames.shape[1] - 1)
    parts = torch.fft.irfft(frames, n_fft, norm=norm) if real else torch.fft.ifft(frames, norm=norm)
    signal = _added(parts * window, total, n_fft, hop)
    weight = _added(window.square().expand(1, frames.shape[1], n_fft), total, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    signal, weight = signal[:, start : min(end, total)], weight[:, start : min(end, total)]
    if weight.abs().min() < 1e-11:
        raise RuntimeError("window overlap add min: 1")
    signal = signal / weight
    if end > total:
        signal = F.pad(signal, (0, end - total))
    return signal if input.dim() == 3 else signal.squeeze(0)


def _added(parts: torch.Tensor, total: int, n_fft: int, hop: int) -> torch.Tensor:
    """Frames of shape (batch, frames, n_fft), each ``hop`` after the last, added to one signal."""
    return torch.ops.aten.unfold_backward.default(parts, [parts.shape[0], total], 1, n_fft, hop)  # type: ignore[no-any-return]


@builtin(torch.istft)
def _istft(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What eager would refuse or warn of is eager's to see."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    spectrum = given["input"].realize() if "input" in given else None
    window = given.get("window", ConstantValue(None)).realize()
    length = given.get("length", ConstantValue(None)).realize()
    known = _settings(given, _NAMES) if length.pytype in (int, type(None)) else None
    if known is None or not isinstance(spectrum, TensorValue) or not _is_plain(spectrum, window, known):
        return tx.graph_call(torch.istft, args, kwargs)
    n_fft, hop, width, real = known["n_fft"], known["hop_length"], known["win_length"], not known["return_complex"]
    if not isinstance(window, TensorValue):
        dtype, device = ConstantValue(spectrum.example.real.dtype), ConstantValue(spectrum.example.device)
        made: dict[str, Value] = {"dtype": dtype, "device": device}
        window = tx.graph_call(torch.ones, [ConstantValue(width)], made).realize()
    norm = "ortho" if known["normalized"] else None
    rest = map(ConstantValue, (known["center"], norm, real))
    sizes = ConstantValue(n_fft), ConstantValue(hop)
    return tx.inline(istft, spectrum, *sizes, _widened(tx, window, n_fft, width), *rest, length)


def stft(
    input: torch.Tensor, n_fft: int, hop: int, window: torch.Tensor, norm: str | None, onesided: bool
) -> torch.Tensor:
    """The transforms of frames of ``n_fft`` elements, each ``hop`` after the last: of shape (frequencies, frames), or
    that with a batch before."""
    frames = (input if input.dim() == 2 else input.unsqueeze(0)).unfold(1, n_fft, hop) * window
    found = torch.fft.rfft(frames, norm=norm) if onesided else torch.fft.fft(frames, norm=norm)
    found = found.transpose(1, 2)
    return found if input.dim() == 2 else found.squeeze(0)


@builtin(torch.stft)
def _stft(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor = (args[0] if args else kwargs.get("input", ConstantValue(None))).realize()
    if isinstance(tensor, TensorValue) and any(isinstance(size, torch.SymInt) for size in tensor.example.shape):
        return tx.interpreted(FunctionValue(torch.stft), args, kwargs)  # which pads
    return tx.graph_call(torch.stft, args, kwargs)


_FORTH = ("input", "n_fft", "hop_length", "win_length", "window", "normalized", "onesided", "return_complex",
          "align_to_window")  # fmt: skip
_transform: Any = torch._VF.stft  # type: ignore[attr-defined]


@builtin(_transform)
def _stft_inside(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(_FORTH, args, strict=False)) | kwargs
    tensor, window = (given.get(name, ConstantValue(None)).realize() for name in ("input", "window"))
    known = _settings(given, _FORTH)
    if known is None or not isinstance(tensor, TensorValue) or not isinstance(window, TensorValue):
        return tx.graph_call(_transform, args, kwargs)
    example, n_fft, width = tensor.example, known["n_fft"], known["win_length"]
    is_complex = example.is_complex() or window.example.is_complex()
    onesided = not is_complex if known["onesided"] is None else known["onesided"]
    plain = example.dim() in (1, 2) and 0 < width <= n_fft and known["hop_length"] > 0
    plain = plain and not known.get("align_to_window") and (known["return_complex"] or is_complex)
    plain = plain and not (onesided and is_complex) and (example.is_floating_point() or example.is_complex())
    plain = plain and window.example.dim() == 1 and bool(window.example.shape[0] == width)
    if not plain or not bool(example.shape[-1] >= n_fft):
        return tx.graph_call(_transform, args, kwargs)
    norm = "ortho" if known["normalized"] else None
    rest = [ConstantValue(n_fft), ConstantValue(known["hop_length"]), _widened(tx, window, n_fft, width)]
    return tx.inline(stft, tensor, *rest, ConstantValue(norm), ConstantValue(bool(onesided)))


def _widened(tx: Capture, window: Value, n_fft: int, width: int) -> Value:
    """A window of ``width`` elements in the middle of ``n_fft``."""
    if width == n_fft:
        return window
    left = (n_fft - width) // 2
    return tx.graph_call(F.pad, [window, tx.from_python((left, n_fft - width - left))], {})


def _settings(given: dict[str, Value], names: tuple[str, ...]) -> dict[str, Any] | None:
    """The numbers and truth values of a call, with eager's defaults; None where one is not known."""
    found: dict[str, Any] = {"hop_length": None, "win_length": None, "center": True, "normalized": False,
                             "onesided": None, "return_complex": False}  # fmt: skip
    for name, value in given.items():
        if name in ("input", "window", "length"):
            continue
        if name not in names or not value.realize().is_const:
            return None
        found[name] = value.realize().const()
    n_fft = found.get("n_fft")
    if type(n_fft) is not int:
        return None
    found["hop_length"] = n_fft // 4 if found["hop_length"] is None else found["hop_length"]
    found["win_length"] = n_fft if found["win_length"] is None else found["win_length"]
    return found


def _is_plain(spectrum: TensorValue, window: Value, known: dict[str, Any]) -> bool:
    """Whether eager takes these, for the signal of which half or all frequencies are given."""
    example, n_fft, width = spectrum.example, known["n_fft"], known["win_length"]
    half = not known["return_complex"] if known["onesided"] is None else known["onesided"]
    if not example.is_complex() or example.dim() not in (2, 3) or half is known["return_complex"]:
        return False
    rows = n_fft // 2 + 1 if half else n_fft
    if not bool(example.shape[-2] == rows) or not bool(example.shape[-1] > 0):
        return False
    if isinstance(window, TensorValue):
        if window.example.dim() != 1 or not bool(window.example.shape[0] == width):
            return False
        if window.example.is_complex() and not known["return_complex"]:
            return False
    elif not window.is_const or window.const() is not None:
        return False
    return 0 < known["hop_length"] <= width <= n_fft
