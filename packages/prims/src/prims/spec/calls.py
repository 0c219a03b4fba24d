"""Python definitions of composite functions whose C++ definitions need sizes as plain numbers.

PyTorch decomposes a composite function in C++ before our dispatch sees anything. Some of those definitions read
``Tensor.sizes()``, which a symbolic size answers only by specialising. :class:`SymbolicCalls` replaces them, for
tensors with symbolic sizes, by the same decomposition in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prims.errors import DataDependentError
from prims.spec.layout import known_equal
from prims.spec.recurrent import gru, lstm, rnn_relu, rnn_tanh
from prims.spec.sym import from_torch
from prims.spec.tensorspec import spec_of

Call = Callable[..., Any]
# at::SDPBackend
FLASH, EFFICIENT, CUDNN = 1, 2, 3
aten = torch.ops.aten


def _is_symbolic(x: Any) -> bool:
    """Whether a symbol is among the arguments: a size by itself, or in a tensor, where C++ takes one for a tensor of
    symbols though only its place in memory is, and some definitions fail."""
    if isinstance(x, torch.Tensor):
        return bool(x._has_symbolic_sizes_strides)  # type: ignore[attr-defined]
    if isinstance(x, (list, tuple)):
        return any(map(_is_symbolic, x))
    return isinstance(x, (torch.SymInt, torch.SymFloat))


def reshape(input: torch.Tensor, *shape: Any) -> torch.Tensor:
    """``torch.reshape``: a view where one is known to do, without the questions that the C++ definition begins with
    (whether dimensions are of size one, which a batch may be); or where one does for the sizes at hand, which is asked:
    the C++ definition takes sizes that are equal by chance for different ones."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    spec = getattr(input, "spec", None)
    if spec is not None and _has_view(spec, sizes):
        return input.view(sizes)
    return aten.reshape(input, sizes)  # type: ignore[no-any-return]


def _has_view(spec: Any, shape: tuple[Any, ...]) -> bool:
    from prims.spec.rules.views import infer_size, known_view, numel, view_strides  # the rules import this package

    sizes = tuple(from_torch(size) for size in shape)
    try:
        return known_view(spec, sizes) or view_strides(spec, infer_size(sizes, numel(spec.shape))) is not None
    except DataDependentError:  # nothing can be asked of a size that the data says
        return False


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` where an operand has three dimensions or more: one matrix product if the other has at
    most two, else a batched one over the broadcast batch dimensions.
    """
    a, b = input, other
    if a.ndim <= 2 and b.ndim <= 2:
        return aten.matmul(a, b)  # type: ignore[no-any-return]
    if a.ndim == 0 or b.ndim == 0:
        return aten.matmul(a, b)  # type: ignore[no-any-return]
    if b.ndim == 1 and a.requires_grad and not b.requires_grad and not _is_matrix(a):
        # Eager's product is a batched one here, and so are its gradients, whose sums begin with 0.
        batch, count = a.shape[:-2], math.prod(a.shape[:-2])
        columns = b.expand(*batch, *b.shape).reshape(count, *b.shape).unsqueeze(2)
        return aten._unsafe_view(a.reshape(count, *a.shape[-2:]).bmm(columns).squeeze(-1), a.shape[:-1])  # type: ignore[no-any-return]
    if b.ndim <= 2:
        if b.ndim == 1:  # a product of a matrix and a vector, which not every device's autocast knows
            a, b = _in_autocast(a), _in_autocast(b)
        rows = reshape(a, math.prod(a.shape[:-1]), a.shape[-1])
        out = rows.mv(b) if b.ndim == 1 else rows.mm(b)
        return aten._unsafe_view(out, (*a.shape[:-1], *b.shape[1:]))  # type: ignore[no-any-return]
    if a.ndim == 1:
        return matmul(b.mT, a)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 else b.shape[:-2]
    count = math.prod(batch)
    x = a.expand(*batch, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    y = b.expand(*batch, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    return aten._unsafe_view(x.bmm(y), (*batch, a.shape[-2], b.shape[-1]))  # type: ignore[no-any-return]


def _in_autocast(x: torch.Tensor) -> torch.Tensor:
    """An operand as autocast gives it to products; the C++ definition is run below it."""
    kind = x.device.type
    eligible = x.is_floating_point() and x.dtype != torch.float64 and torch.amp.is_autocast_available(kind)
    return x.to(torch.get_autocast_dtype(kind)) if eligible and torch.is_autocast_enabled(kind) else x


def _is_matrix(x: torch.Tensor) -> bool:
    """Whether all dimensions but the last are one in memory, so that a view has them as rows."""
    steps = pairwise(zip(x.shape[:-1], x.stride()[:-1], strict=True))
    return x.numel() == 0 or all(outer == inner * size for (_, outer), (size, inner) in steps)


def getitem(input: torch.Tensor, key: Any) -> torch.Tensor:
    """``input[key]``: an int selects whatever else is in the key, so that symbols do it first. C++ reads an int of a
    key as a plain number, and a step's or a position's graph would be that step's alone."""
    items = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(item, torch.SymInt) for item in items) or not all(map(_is_of_key, items)):
        return torch.Tensor.__getitem__(input, key)
    taken = [_dims_taken(item) for item in items]
    rest = input.dim() - sum(taken)
    if rest < 0 or sum(item is Ellipsis for item in items) > 1:
        return torch.Tensor.__getitem__(input, key)  # an error
    found, dim, others = input, 0, []
    for item, count in zip(items, taken, strict=True):
        if isinstance(item, torch.SymInt):
            found = found.select(dim, item)
            continue
        others.append(item)
        dim += rest if item is Ellipsis else count
    return found[tuple(others)] if others else found


def _is_of_key(item: Any) -> bool:
    """Whether it is plain how many dimensions a part of a key is for: not of bools and lists."""
    return item is None or item is Ellipsis or (
        isinstance(item, (int, slice, torch.SymInt, torch.Tensor)) and not isinstance(item, bool)
    )


def _dims_taken(item: Any) -> int:
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return item.dim()
    return 0 if item is None or item is Ellipsis else 1


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``torch.nn.functional.linear``: one ``addmm`` of contiguous rows, else a matrix product plus the bias."""
    if input.ndim > 2 and weight.ndim == 2 and not (bias is not None and input.is_contiguous()):
        product = matmul(input, weight.t())
        return product if bias is None else product + _in_autocast(bias)
    return aten.linear(input, weight, bias)  # type: ignore[no-any-return]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention``: the fused operator PyTorch would choose, or its formula.

    Where the C++ definition pads a head size or a mask, it is asked itself.
    """
    from prims.spec.rules.attention import CUDNN, EFFICIENT, FLASH, MATH, sdp_choice  # the rules import this package

    whole = aten.scaled_dot_product_attention
    options: dict[str, Any] = {"scale": scale}
    if query.device.type != "cuda":
        with _whose_batches_fit(query, attn_mask):
            return whole(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa, **options)  # type: ignore[no-any-return]
    tracks = torch.is_grad_enabled()
    lse = tracks and any(x.requires_grad for x in (query, key, value))
    choice = sdp_choice(
        spec_of(query), spec_of(key), spec_of(value), None if attn_mask is None else spec_of(attn_mask), dropout_p,
        is_causal, enable_gqa, gradients=(lse, tracks and attn_mask is not None and attn_mask.requires_grad),
    )  # fmt: skip
    if choice == MATH and _has_parts(query, key, value, attn_mask, is_causal, enable_gqa):
        return _attention_by_parts(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    mask = attn_mask
    if mask is not None and mask.dtype == torch.bool:
        mask = _bias_of(mask, query.dtype)
    if choice == CUDNN:
        fused = aten._scaled_dot_product_cudnn_attention
        return fused(query, key, value, mask, lse, dropout_p, is_causal, False, **options)[0]  # type: ignore[no-any-return]
    if choice == FLASH and query.shape[3] % 8 == 0:
        fused = aten._scaled_dot_product_flash_attention
        return fused(query, key, value, dropout_p, is_causal, False, **options)[0]  # type: ignore[no-any-return]
    if choice == EFFICIENT and (mask is None or mask.stride(-1) == 1):
        if mask is not None:
            rows = (*query.shape[:3], key.shape[2])
            spare = -mask.shape[-1] % 16
            padded = torch.nn.functional.pad(mask, (0, spare))
            mask = padded.narrow(-1, 0, mask.shape[-1]).expand(rows)
        fused = aten._scaled_dot_product_efficient_attention
        return fused(query, key, value, mask, lse, dropout_p, is_causal, **options)[0]  # type: ignore[no-any-return]
    return whole(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa, **options)  # type: ignore[no-any-return]


def _has_parts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
    shares_heads: bool,
) -> bool:  # fmt: skip
    """Are these operands that eager does not refuse, and heads of a width that is known?"""
    if query.dtype != key.dtype or key.dtype != value.dtype:
        return False
    if min(query.dim(), key.dim(), value.dim()) < (3 if shares_heads else 2):
        return False
    if mask is not None and (is_causal or mask.dtype not in (torch.bool, query.dtype)):
        return False
    return type(query.shape[-1]) is int


def _bias_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a mask of bools adds to scores."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask.logical_not(), float("-inf"))


def _attention_by_parts(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, shares_heads: bool,
) -> torch.Tensor:  # fmt: skip
    """The operators that eager computes where no fused kernel serves, with ``matmul`` of symbolic sizes.

    As ``aten::_scaled_dot_product_attention_math`` calls them in PyTorch 2.11 and 2.13: half of the scale goes to the
    queries, half to the keys, and types of 16 bits are computed in float32.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16) and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    root = math.sqrt(abs(factor))
    query = aten.mul.Scalar(query, math.copysign(root, factor))
    if is_causal:
        seen = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).tril()
        mask = _bias_of(seen, query.dtype)
    elif mask is not None and mask.dtype == torch.bool:
        mask = _bias_of(mask, dtype)
    if shares_heads:
        key, value = (_repeated(x, query.shape[-3]) for x in (key, value))
    scores = matmul(query, aten.mul.Scalar(key.transpose(-2, -1), root))
    weights = aten._safe_softmax(scores if mask is None else scores + mask, -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return matmul(weights, value).to(dtype)


def _repeated(x: torch.Tensor, heads: Any) -> torch.Tensor:
    """Each head several times, one behind the other, so that there are so many."""
    *batch, own, rows, columns = x.shape
    if known_equal(from_torch(own), from_torch(heads)):
        return x
    return x.unsqueeze(-3).expand(*batch, own, heads // own, rows, columns).reshape(*batch, heads, rows, columns)


def _whose_batches_fit(query: torch.Tensor, mask: torch.Tensor | None) -> AbstractContextManager[None]:
    """PyTorch asks whether a mask's batch is one, or the query's. Where it is known to be, which changes nothing."""
    if mask is None or mask.dim() != 4 or query.dim() != 4:
        return nullcontext()
    batch, of_mask = from_torch(query.shape[0]), from_torch(mask.shape[0])
    if type(batch) is int or not (known_equal(of_mask, 1) or known_equal(batch, of_mask)):
        return nullcontext()
    return batch.ctx.are_many()  # type: ignore[no-any-return]


def _upsample(name: str, spatial: int) -> Call:
    overload = getattr(aten, name).default

    def call(x: torch.Tensor, output_size: Any, *rest: Any) -> torch.Tensor:
        *flags, factors = rest
        sizes = list(output_size or ())
        scales = [None] * spatial if factors is None else [float(f) for f in factors]
        if not sizes:
            sizes = [_times(x.shape[2 + i], scales[i]) for i in range(spatial)]
        return overload(x, sizes, *flags, *scales)  # type: ignore[no-any-return]

    return call


def tensor_split(input: torch.Tensor, indices_or_sections: Any, dim: int = 0) -> Any:
    """``torch.tensor_split`` into a number of sections: the first ones have one element more where they must."""
    if type(indices_or_sections) is not int or indices_or_sections < 1:
        return torch.tensor_split(input, indices_or_sections, dim)
    base, more = input.shape[dim] // indices_or_sections, input.shape[dim] % indices_or_sections
    ends = [i * base + torch.sym_min(i, more) for i in range(indices_or_sections + 1)]
    return tuple(aten.slice(input, dim, start, end) for start, end in pairwise(ends))


def pad(input: torch.Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> torch.Tensor:
    """``torch.nn.functional.pad``; round a circle it joins pieces, where C++ copies inside one tensor."""
    wraps = mode == "circular" and len(pad) % 2 == 0 and input.ndim == len(pad) // 2 + 2
    if not wraps or not all(isinstance(n, (int, torch.SymInt)) and n >= 0 for n in pad):
        return torch._C._nn.pad(input, pad, mode, value)  # type: ignore[no-any-return]
    for i in range(0, len(pad), 2):
        before, after, dim = pad[i], pad[i + 1], input.ndim - 1 - i // 2
        size = input.shape[dim]
        torch._check(before <= size and after <= size, lambda: "Padding value causes wrapping around more than once.")
        first, last = aten.slice(input, dim, size - before, size), aten.slice(input, dim, 0, after)
        pieces = [*[first] * bool(before > 0), input, *[last] * bool(after > 0)]
        input = torch.cat(pieces, dim) if len(pieces) > 1 else input
    return input if any(pad) else input.clone()


def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """``torch.linspace`` of floats, by an operator that takes a symbolic number of steps."""
    chosen = torch.get_default_dtype() if dtype is None else dtype
    plain = all(isinstance(x, (int, float, torch.SymInt, torch.SymFloat)) for x in (start, end, steps))
    if not plain or not chosen.is_floating_point:
        return torch.linspace(start, end, steps, dtype=dtype, device=device)
    import prims.spec.rules.creation  # noqa: F401  (defines the operator; the rules import this package)

    made: torch.Tensor = torch.ops.quintet.linspace(start, end, steps, dtype=chosen, device=_device(device))
    return made


def _device(device: Any) -> Any:
    """The device, or the default one, as operators take it."""
    return torch.get_default_device() if device is None else torch.device(device)


def one_hot(tensor: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """``F.one_hot`` of a symbolic number of classes; whether each class exists is asked when it runs."""
    if not isinstance(num_classes, torch.SymInt) or tensor.dtype != torch.int64 or not num_classes > 0:
        return torch.nn.functional.one_hot(tensor, num_classes)
    made: torch.Tensor = torch.ops.quintet.one_hot(tensor, num_classes)
    return made


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.kron``: every element times the whole other tensor."""
    ndim = max(input.ndim, other.ndim)
    first, second = ((1,) * (ndim - x.ndim) + tuple(x.shape) for x in (input, other))
    spread = [(size, 1) for size in first], [(1, size) for size in second]
    a, b = (x.reshape([n for pair in pairs for n in pair]) for x, pairs in zip((input, other), spread, strict=True))
    return (a * b).reshape([m * n for m, n in zip(first, second, strict=True)])


def rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """``torch.fft.rfftfreq`` of a symbolic number of samples."""
    chosen = torch.get_default_dtype() if dtype is None else dtype
    return torch.arange(n // 2 + 1, dtype=chosen, device=device) * (1.0 / (n * d))


def fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """``torch.fft.fftfreq`` of a symbolic number of samples."""
    chosen = torch.get_default_dtype() if dtype is None else dtype
    at = torch.arange(n, device=device)
    return torch.where(at < (n + 1) // 2, at, at - n).to(chosen) * (1.0 / (n * d))


def hann_window(window_length: Any, periodic: bool = True, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """``torch.hann_window`` of a symbolic length."""
    if not isinstance(window_length, torch.SymInt):
        return torch.hann_window(window_length, periodic, dtype=dtype, device=device)
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype, device=device)


def hamming_window(
    window_length: Any, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None,
    device: Any = None,
) -> torch.Tensor:  # fmt: skip
    """``torch.hamming_window`` of a symbolic length, as C++ defines it."""
    chosen = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(window_length, torch.SymInt) or not chosen.is_floating_point or not window_length > 1:
        return torch.hamming_window(window_length, periodic, alpha, beta, dtype=dtype, device=device)
    length = window_length + 1 if periodic else window_length
    at = torch.arange(window_length, dtype=chosen, device=device)  # of a longer one all but the last
    return (at * (math.pi * 2 / (length - 1))).cos() * -beta + alpha


def stft(
    input: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """``torch.stft`` of a signal of symbolic length, without the padding around it: frames, times the window, each
    transformed."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    length = input.shape[-1] if input.ndim in (1, 2) else 0
    plain = all(type(n) is int for n in (n_fft, hop, width)) and 0 < width <= n_fft and hop > 0
    fits = plain and align_to_window is None and return_complex is not None and length >= n_fft
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    if not fits or (onesided and is_complex) or (window is not None and (window.ndim != 1 or window.shape[0] != width)):
        whole = torch._C._VariableFunctions.stft
        given = input, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window
        return whole(*given)  # type: ignore[no-any-return, call-overload]
    frames = input.unfold(-1, n_fft, hop)
    if width < n_fft:
        before = (n_fft - width) // 2
        if window is None:
            window = torch.ones(width, dtype=input.dtype, device=input.device)
        window = torch.nn.functional.pad(window, (before, n_fft - width - before))
    if window is not None:
        frames = frames * window
    norm = "ortho" if normalized else None
    halves = not is_complex and (onesided is None or onesided)
    found = (torch.fft.rfft if halves else torch.fft.fft)(frames, norm=norm).transpose(-2, -1)
    return found if return_complex else torch.view_as_real(found)


def stft_of_tensor(
    input: torch.Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: torch.Tensor | None = None, center: bool = True, pad_mode: str = "reflect", normalized: bool = False,
    onesided: bool | None = None, return_complex: bool | None = None, align_to_window: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """``Tensor.stft``: of the signal with its edges padded, where windows are to be centred."""
    if center and (align_to_window is not None or input.ndim not in (1, 2)):
        return torch.stft(input, n_fft, center=center, align_to_window=align_to_window)  # which says what is wrong
    if center:
        around = input if input.ndim == 2 else input.unsqueeze(0)  # what reflects has a batch
        input = torch._C._nn.pad(around, [n_fft // 2] * 2, pad_mode).view(*input.shape[:-1], -1)
    return stft(
        input, n_fft, hop_length, win_length, window, normalized, onesided, return_complex, align_to_window
    )


def affine_grid(theta: torch.Tensor, size: Any, align_corners: bool) -> torch.Tensor:
    """``torch.affine_grid_generator`` of symbolic sizes: where affine maps of [-1, 1] take each place, x first."""
    spatial = list(size[2:])
    dims = len(spatial)
    if not any(map(_is_symbolic, size)) or dims not in (2, 3) or theta.ndim != 3 or not theta.is_floating_point():
        return torch.affine_grid_generator(theta, size, align_corners)
    maps = theta.float() if theta.dtype in (torch.float16, torch.bfloat16) else theta
    column = lambda j: maps.select(2, j).reshape(size[0], *[1] * dims, dims)
    out = column(dims).expand(size[0], *spatial, dims)
    for j, extent in enumerate(reversed(spatial)):
        if extent == 1:
            continue  # its only place is 0
        end = 1.0 if align_corners else (extent - 1) / extent
        at = linspace(-end, end, extent, dtype=maps.dtype, device=maps.device)
        out = out + column(j) * at.view(*[extent if d == dims - 1 - j else 1 for d in range(dims)], 1)
    return out.to(theta.dtype)


def _times(size: Any, factor: Any) -> Any:
    """The whole part of a size times a factor, in integers where the factor is a short binary fraction."""
    above, below = float(factor).as_integer_ratio()
    return size * above // below if below <= 1024 else torch.sym_int(size * factor)


def _is_in_rows(x: torch.Tensor) -> bool:
    """Whether strides are those of rows, also where a size of one makes others as good."""
    if _is_symbolic(x):
        return x.is_contiguous()
    rows = [math.prod(max(n, 1) for n in x.shape[d + 1 :]) for d in range(x.ndim)]
    return list(x.stride()) == rows


def _in_rows(pool: Call) -> Call:
    """``max_pool1d``, whose kernel on the CPU for tensors of no subclass and without gradients makes rows: C++
    otherwise keeps the channels last."""

    def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        symbolic = _is_symbolic(input) and not (kwargs.get("return_indices") or len(args) > 5)
        out = (_of_one_row if symbolic else pool)(input, *args, **kwargs)
        follows = not isinstance(out, torch.Tensor) or torch.is_grad_enabled() and input.requires_grad
        if follows or input.device.type != "cpu" or _is_in_rows(out):
            return out
        return out.clone(memory_format=torch.contiguous_format)

    return call


def _of_one_row(
    input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``max_pool1d`` as pooling of images of one row, which C++ takes it for, too, where it asks for plain sizes."""
    single = lambda x: x[0] if isinstance(x, (tuple, list)) else x
    if stride is None or (isinstance(stride, (tuple, list)) and not stride):
        stride = kernel_size
    window = [(one, single(x)) for one, x in ((1, kernel_size), (1, stride), (0, padding), (1, dilation))]
    return torch.max_pool2d(input.unsqueeze(-2), *window, ceil_mode).squeeze(-2)


#: Functions whose C++ definitions do otherwise with tensors of a subclass, and what they do with others.
OF_PLAIN_TENSORS: dict[Any, Call] = {
    **{f: _in_rows(f) for f in (torch.max_pool1d, torch.nn.functional.max_pool1d)},
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}
CALLS: dict[Any, Call] = {
    torch.reshape: reshape,
    torch.Tensor.reshape: reshape,
    torch.Tensor.__getitem__: getitem,
    torch.matmul: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.__matmul__: matmul,
    torch.Tensor.__rmatmul__: lambda b, a: matmul(a, b),
    torch.nn.functional.linear: linear,
    torch.nn.functional.scaled_dot_product_attention: attention,
    torch.lstm: lstm,
    torch._C._nn.pad: pad,
    torch.linspace: linspace,
    torch.affine_grid_generator: affine_grid,
    torch.nn.functional.one_hot: one_hot,
    torch.kron: kron,
    torch.fft.fftfreq: fftfreq,
    torch.fft.rfftfreq: rfftfreq,
    torch.hann_window: hann_window,
    torch.hamming_window: hamming_window,
    torch._C._VariableFunctions.stft: stft,
    torch.Tensor.stft: stft_of_tensor,
    torch.tensor_split: tensor_split,
    torch.Tensor.tensor_split: tensor_split,
}
for _name, _spatial in (
    ("upsample_nearest1d", 1),
    ("upsample_nearest2d", 2),
    ("upsample_nearest3d", 3),
    ("_upsample_nearest_exact1d", 1),
    ("_upsample_nearest_exact2d", 2),
    ("_upsample_nearest_exact3d", 3),
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_bicubic2d", 2),
    ("upsample_trilinear3d", 3),
    ("_upsample_bilinear2d_aa", 2),
    ("_upsample_bicubic2d_aa", 2),
):
    CALLS[getattr(torch._C._nn, _name)] = _upsample(_name, _spatial)


class SymbolicCalls(TorchFunctionMode):
    """Runs the functions of ``CALLS`` by their Python definitions where an argument has symbolic sizes.

    :class:`prims.spec.AbstractMode` enters it. Code that runs a graph on abstract tensors under a dispatch mode
    of its own should enter it too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: list[Call] = []  # whose helper functions ask for overrides in their names

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call = OF_PLAIN_TENSORS.get(func)
        if call is not None:
            return call(*args, **kwargs)
        call = CALLS.get(func)
        if not any(map(_is_symbolic, (*args, *kwargs.values()))):
            return func(*args, **kwargs)
        if (
            call is None
            and isinstance(func, FunctionType)
            and func.__module__ in _MODULES
            and func not in self._running
        ):
            self._running.append(func)
            try:
                with self:
                    return _without_overrides(func)(*args, **kwargs)
            finally:
                self._running.pop()
        return (call if call is not None and _knows(call, kwargs) else func)(*args, **kwargs)


def _knows(call: Call, keywords: dict[str, Any]) -> bool:
    """Whether a definition has parameters of these names, which are PyTorch's; it has none for ``out=``."""
    code = call.__code__
    return keywords.keys() <= set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


#: Modules whose functions call others of ``CALLS``.
_MODULES = ("torch.nn.functional", "torch.functional")


def _without_overrides(func: FunctionType) -> Call:
    """PyTorch's own Python function, which does not ask for overrides before it begins.

    The mode is off while it handles a function, and the function would come back to it at once if it were not; its body
    is to run under the mode.
    """
    space = dict(func.__globals__)
    for question in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
        space[question] = _no
    body = FunctionType(func.__code__, space, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _no(*args: Any) -> bool:
    return False
