"""Which of PyTorch's CPU kernels computes a product or a convolution, and in which layout: where several can."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from inductor_gen.device.cpu import facts
from inductor_gen.loops.index import ONE, Hint

if TYPE_CHECKING:
    from inductor_gen.loops.graph import Node

__all__ = [
    "FUNCTIONS", "Range", "by_linear", "conv_form", "cpu_function", "is_row", "linear",
    "linear_by_onednn", "onednn_range", "takes_linear",
]  # fmt: skip

#: Multiply-adds below which the call costs more than the product.
SMALL = 1 << 21
#: Values of a weight up to which its reordering for a convolution with channels last costs less than that of the
#: images would otherwise.
LIGHT_WEIGHT = 1 << 18
#: Values of a weight from which any reordering costs more than gathering the patches of a small image.
HEAVY_WEIGHT = 1 << 19
#: Positions in a kernel up to which patches are gathered.
MAX_POSITIONS = 25

_PRODUCTS = frozenset({"aten.mm.default", "aten.addmm.default"})


@functools.cache
def onednn() -> Callable[..., Any] | None:
    """PyTorch's operator for a linear layer through oneDNN: ``(x[..., k], weight[n, k], bias | None, "none", [], "")``.

    None where this build of PyTorch has none, or the processor is not one that it was measured on.
    """
    if platform.machine() != "x86_64" or not torch.backends.mkldnn.is_available():
        return None
    packet = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return getattr(packet, "default", None)


@functools.cache
def blas_is_slow() -> bool:
    """Is this a processor on which MKL leaves half the vector units idle?

    MKL takes its AVX-512 kernels on Intel's processors only; oneDNN asks the processor what it can do. On an AMD EPYC
    (Zen 5) with two threads, float32: 130-190 GFLOP/s by MKL, 320-390 by oneDNN. On one without AVX-512 (Zen 3), one
    thread: 79-95 by MKL, 69-84 by oneDNN, for 128 and more rows.
    """
    if onednn() is None or not torch.backends.mkl.is_available():
        return False
    return facts().get("vendor_id") != "GenuineIntel" and "avx512f" in facts().get("flags", "").split()


def _plain_float(node: Node) -> bool:
    return node.dtype == torch.float32 and node.device is not None and node.device.type == "cpu"


# ---- products -------------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """Which products ``[rows, inner] @ [inner, columns]`` oneDNN computes faster than BLAS."""

    rows: int  #: the least and
    most_rows: int  #: the most of them
    values: int  #: of the right factor, the least
    columns_first: bool  #: does the right factor have to lie as a linear layer's weight, ``[columns, inner]``?

    def holds(self, rows: int, inner: int, columns: int, *, in_rows: bool, columns_first: bool) -> bool:
        """Does it pay, also where the left factor must be copied into rows first?"""
        lies = (columns_first or not self.columns_first) and (in_rows or inner >= 64)
        large = inner * columns >= self.values and rows * inner * columns >= SMALL
        return lies and large and self.rows <= rows <= self.most_rows


_ANY = 1 << 62

#: By what the processor is and whether a product has several threads. MKL packs a weight that lies by columns anew in
#: each call, which few rows do not earn back, the less so the more threads wait for it. From sweeps over weights of
#: 512x512 to 1024x32000 and 2 to 256 rows (``benchmarks/device_constants.py linears``), MKL's times by oneDNN's in the
#: ranges: Zen 3 with two threads 0.88 to 3.2 (1.3 to 3.2 for 4 to 16 rows, 1.07 in mean for 64 and 128), with one 1.16
#: to 1.8; an Intel Xeon with AVX-512, by other shapes, 1.06 to 1.31 with one thread, 1.08 to 2.5 with four.
_RANGES = {
    ("slow", False): Range(2, _ANY, 0, False),
    ("slow", True): Range(2, _ANY, 0, False),
    ("AuthenticAMD", False): Range(4, 32, 1 << 24, True),
    ("AuthenticAMD", True): Range(2, 128, 1 << 21, True),
    ("GenuineIntel", False): Range(16, 128, 1 << 24, True),
    ("GenuineIntel", True): Range(16, 128, 1 << 24, True),
}


def onednn_range() -> Range | None:
    """The products that oneDNN is faster at here, with the threads there are now; None where it is not known to be."""
    if onednn() is None or not torch.backends.mkldnn.enabled:
        return None
    said = facts()
    kind = "slow" if blas_is_slow() else said.get("vendor_id", "")
    if kind == "GenuineIntel" and "avx512f" not in said.get("flags", "").split():
        return None
    return _RANGES.get((kind, torch.get_num_threads() > 1))


def cpu_function(node: Node, args: tuple[Any, ...]) -> tuple[str, Callable[..., Any]] | None:
    """``(readable name, callable)`` for a product on the CPU, None where the plain call is best.

    ``args`` are the node's arguments with a ``ViewRef`` for each tensor.
    """
    if node.op not in _PRODUCTS or node.kwargs or not _plain_float(node) or (where := onednn_range()) is None:
        return None
    if any(x.dtype != torch.float32 for x in node.ins) or len(args) != 2 + (node.op == "aten.addmm.default"):
        return None
    left, right = args[-2:]
    columns_first = right.strides[0] is ONE
    if not _is_matrix(right) or columns_first < where.columns_first:
        return None
    if len(args) == 3 and not is_row(args[0], right):
        return None
    sizes = (*left.shape, right.shape[1])
    if not all(s.is_const for s in sizes):
        return "linear", _linear_where_it_pays
    numbers = (int(s.value) for s in sizes)
    pays = where.holds(*numbers, in_rows=left.strides[1] is ONE, columns_first=columns_first)
    return ("linear", by_linear) if pays else None


def is_row(bias: Any, right: Any) -> bool:
    """Is a view what a linear layer takes for the bias of a product with this right factor?"""
    return len(bias.shape) == 1 and bias.strides == (ONE,) and bias.shape[0] is right.shape[1]


def _is_matrix(ref: Any) -> bool:
    """Are a view's rows or its columns contiguous, and one after the other?"""
    (rows, columns), (down, across) = ref.shape, ref.strides
    for step, line, apart in ((across, columns, down), (down, rows, across)):
        apart_enough = apart is line or (apart.is_const and line.is_const and apart.value >= line.value)
        if step is ONE and apart_enough:
            return True
    return False


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x [..., k] @ weight [n, ...] + bias`` by BLAS, or by oneDNN where that is slow."""
    by = linear_by_onednn if blas_is_slow() else torch.nn.functional.linear
    return by(x, weight.flatten(1), bias)


def linear_by_onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x [..., k] @ weight [n, k].T + bias`` by oneDNN."""
    return onednn()(x, weight, bias, "none", [], "")  # type: ignore[misc,no-any-return]


def by_linear(*operands: torch.Tensor) -> torch.Tensor:
    """``a @ b`` or ``bias + a @ b`` by oneDNN."""
    *bias, a, b = operands
    return linear_by_onednn(a, b.t(), bias[0] if bias else None)


def _linear_where_it_pays(*operands: torch.Tensor) -> torch.Tensor:
    """The same where the product is large enough, else by PyTorch's choice."""
    a, b = operands[-2:]
    where = onednn_range()
    sizes = a.shape[0], *b.shape
    if where and where.holds(*sizes, in_rows=a.stride(1) == 1, columns_first=b.stride(0) == 1):
        return by_linear(*operands)
    return torch.mm(a, b) if len(operands) == 2 else torch.addmm(*operands)


# ---- convolutions ---------------------------------------------------------------------------------------------


def conv_form(node: Node, hint: Hint) -> str:
    """How a convolution on the CPU is best computed.

    ``"plain"``: as eager would with these inputs; ``"channels_last"``: oneDNN then reads and writes images as they
    lie, but lays the weight out anew more slowly; ``"linear"``: a 1x1 kernel as a product over channels-last images,
    which reads the weight as it lies; ``"patches"``: a product too, after the patches of the image under the kernel
    have been gathered into the rows of a matrix (``rewrite.convolutions``), for large kernels on small images, where
    BLAS is slow: PyTorch's own convolution of such images gathers them and calls BLAS.
    """
    if node.op != "aten.convolution.default" or not _plain_float(node) or len(node.shape) != 4 or onednn() is None:
        return "plain"
    x, weight, _, stride, padding, _, transposed, _, groups = node.args
    if transposed or not torch.backends.mkldnn.enabled or any(n.dtype != torch.float32 for n in node.ins):
        return "plain"
    if not all(isinstance(v, int) for v in (*stride, *padding, groups)):
        return "plain"
    n, out, height, width = (hint(s) for s in node.shape)
    channels, height_in, width_in = (hint(s) for s in x.shape[1:])
    if n * height * width < 16 or channels < 3:
        return "plain"
    if groups not in (1, channels):
        return "plain"
    kernel = [hint(s) for s in weight.shape[2:]]
    parameters = out * (channels // groups) * kernel[0] * kernel[1]
    values = n * (channels * height_in * width_in + out * height * width)
    if groups == 1 and kernel == [1, 1] and not any(padding) and 4 * parameters > values:
        return "linear"
    if parameters <= max(values, LIGHT_WEIGHT):
        return "channels_last"
    gathered = n * height * width * channels * kernel[0] * kernel[1]
    static = all(s.is_const for s in (*x.shape, *weight.shape, *node.shape))
    few = groups == 1 and kernel[0] * kernel[1] <= MAX_POSITIONS and gathered <= parameters
    return "patches" if blas_is_slow() and few and static and parameters >= HEAVY_WEIGHT else "plain"


def takes_linear(node: Node) -> Callable[..., Any]:
    """The callable for a 1x1 convolution whose form is ``"linear"``; it takes the node's own arguments."""
    down, right = (*node.args[3], *node.args[3])[:2]
    return _conv1x1 if down == right == 1 else _strided_conv1x1


def _conv1x1(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *_: Any) -> torch.Tensor:
    return linear(x.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def _strided_conv1x1(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], *_: Any
) -> torch.Tensor:
    return _conv1x1(x[:, :, :: stride[0], :: stride[-1]], weight, bias)


#: The functions of this module that generated code calls, by name.
FUNCTIONS = {
    f.__name__: f for f in (linear, linear_by_onednn, by_linear, _linear_where_it_pays, _conv1x1, _strided_conv1x1)
}
