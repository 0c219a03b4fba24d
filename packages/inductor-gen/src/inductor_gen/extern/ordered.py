"""Products and convolutions on the CPU whose sums go through their terms in one order, whatever the sizes around them.

A result is the sum over stretches of ``STRETCH`` terms, each added up from 0 in one lane of a vector, term by term.
Rows and columns are dealt with in tiles of ``ROWS`` by ``COLUMNS``, short ones padded with zeros: the same instructions
compute every result, wherever it stands and however many threads there are. 16-bit factors are added up in float32 and
rounded once, integers by PyTorch, for whose sums any order will do.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from inductor_gen.device.backends import backend
from inductor_gen.unit import Unit
from prims.forking import compiling
from prims.options import Options

if TYPE_CHECKING:
    from inductor_gen.loops.graph import Node

__all__ = ["FUNCTIONS", "get_ready", "ordered_function"]

_TEXT = """\
typedef @T@ o@T@ __attribute__((vector_size(32), aligned(32)));
enum { @T@_lanes = 32 / sizeof(@T@), @T@_columns = 2 * @T@_lanes, @T@_rows = 4, @T@_stretch = 256, @T@_wide = 4 };

/* The product of a tile's rows, `a[k][rows]`, and columns, `b[k][columns]`, over `terms`: into `sum`. */
static void @T@_tile(const @T@* a, const @T@* b, int64_t terms, @T@* sum) {
    o@T@ acc[@T@_rows][2] = {0};
    for (int64_t k = 0; k < terms; k++) {
        const o@T@ left = *(const o@T@*)(b + k * @T@_columns), right = *(const o@T@*)(b + k * @T@_columns + @T@_lanes);
        for (int i = 0; i < @T@_rows; i++) {
            acc[i][0] += left * a[k * @T@_rows + i];
            acc[i][1] += right * a[k * @T@_rows + i];
        }
    }
    memcpy(sum, acc, sizeof acc);
}

typedef struct {
    const @T@* x;
    int64_t strides[6], groups, kernel[3], stride[3], padding[3], dilation[3], in[3], out[3];
} @T@_right;

/* Terms `from` to `to` of the columns from `first` on, of the right factor of product `item`: a matrix, or the places
   of an image that lie under a convolution's kernel. */
static void @T@_pack(const @T@_right* r, int64_t item, int64_t from, int64_t to, int64_t first, int64_t columns,
                     @T@* restrict into) {
    const int last = columns - first < @T@_columns ? columns - first : @T@_columns;
    if (last < @T@_columns) memset(into, 0, (to - from) * @T@_columns * sizeof(@T@));
    if (!r->groups) {
        const @T@* x = r->x + item * r->strides[0] + first * r->strides[2];
        const int64_t down = r->strides[1], across = r->strides[2];
        int64_t k = from;
        if (last == @T@_columns && down == 1)
            for (; k + 8 <= to; k += 8)  /* eight terms of each column at a time, as they lie in memory */
                for (int j = 0; j < @T@_columns; j++)
                    for (int t = 0; t < 8; t++)
                        into[(k + t - from) * @T@_columns + j] = x[j * across + k + t];
        for (; k < to; k++)
            for (int j = 0; j < last; j++) into[(k - from) * @T@_columns + j] = x[k * down + j * across];
        return;
    }
    const @T@* x = r->x + item / r->groups * r->strides[0] + item % r->groups * r->strides[1];
    int64_t start[3][@T@_columns], at[3], tap[3] = {0};
    for (int j = 0; j < last; j++) {
        at[0] = (first + j) / (r->out[1] * r->out[2]);
        at[1] = (first + j) / r->out[2] % r->out[1];
        at[2] = (first + j) % r->out[2];
        for (int d = 0; d < 3; d++) start[d][j] = at[d] * r->stride[d] - r->padding[d];
    }
    const int64_t area = r->kernel[0] * r->kernel[1] * r->kernel[2];
    int64_t channel = from / area;
    tap[0] = from % area / (r->kernel[1] * r->kernel[2]);
    tap[1] = from / r->kernel[2] % r->kernel[1];
    tap[2] = from % r->kernel[2];
    for (int64_t k = from; k < to; k++) {
        @T@* line = into + (k - from) * @T@_columns;
        for (int j = 0; j < last; j++) {
            int64_t step = channel * r->strides[2];
            int inside = 1;
            for (int d = 0; d < 3; d++) {
                at[d] = start[d][j] + tap[d] * r->dilation[d];
                inside &= (uint64_t)at[d] < (uint64_t)r->in[d];
                step += at[d] * r->strides[3 + d];
            }
            line[j] = inside ? x[step] : 0;
        }
        for (int d = 2; d >= 0 && ++tap[d] == r->kernel[d]; d--) {
            tap[d] = 0;
            channel += d == 0;
        }
    }
}

int KERNEL(void* const* p_, const int64_t* n_) {
    const @T@* left = p_[0];
    @T@* out = p_[2];
    const int64_t items = n_[0], lefts = n_[1], rows = n_[2], columns = n_[3], terms = n_[4];
    const int64_t *step = n_ + 5, down = (rows + @T@_rows - 1) / @T@_rows;
    @T@_right r = {p_[1]};
    memcpy(r.strides, n_ + 8, sizeof r - ((char*)r.strides - (char*)&r));
    const int64_t width = @T@_columns * @T@_wide, across = (columns + width - 1) / width;
    const size_t bytes = (size_t)(lefts * down * @T@_rows * terms + 1) * sizeof(@T@);
    @T@* a = aligned_alloc(64, (bytes + 63) / 64 * 64);
    int bad = !a;
    if (bad) return 3;
    #pragma omp parallel for collapse(2) if (lefts * rows * terms > 16384)
    for (int64_t c = 0; c < lefts; c++)
        for (int64_t y = 0; y < down; y++) {
            @T@* into = a + (c * down + y) * @T@_rows * terms;
            for (int64_t i = 0; i < @T@_rows; i++) {
                const int64_t row = y * @T@_rows + i;
                const @T@* from = left + c * step[0] + row * step[1];
                for (int64_t k = 0; k < terms; k++) into[k * @T@_rows + i] = row < rows ? from[k * step[2]] : 0;
            }
        }
    #pragma omp parallel for collapse(2) reduction(|:bad) if (items * rows * columns * terms > 16384)
    for (int64_t c = 0; c < items; c++)
        for (int64_t x = 0; x < across; x++) {
            @T@* b = aligned_alloc(64, width * @T@_stretch * sizeof(@T@));
            @T@ sum[@T@_rows * @T@_columns] __attribute__((aligned(32)));
            if (!b) { bad |= 1; continue; }
            for (int64_t from = 0; from == 0 || from < terms; from += @T@_stretch) {
                const int64_t to = terms - from < @T@_stretch ? terms : from + @T@_stretch;
                const int64_t stop = columns - x * width < width ? columns - x * width : width;
                for (int64_t q = 0; q < stop; q += @T@_columns)
                    @T@_pack(&r, c, from, to, x * width + q, columns, b + q * @T@_stretch);
                for (int64_t y = 0; y < down; y++)
                    for (int64_t q = 0; q < stop; q += @T@_columns) {
                        const @T@* tile = a + ((c % lefts * down + y) * terms + from) * @T@_rows;
                        @T@_tile(tile, b + q * @T@_stretch, to - from, sum);
                        for (int64_t i = 0; i < @T@_rows && y * @T@_rows + i < rows; i++) {
                            @T@* line = out + (c * rows + y * @T@_rows + i) * columns + x * width + q;
                            const int64_t last = stop - q < @T@_columns ? stop - q : @T@_columns;
                            for (int64_t j = 0; j < last; j++)
                                line[j] = from ? line[j] + sum[i * @T@_columns + j] : sum[i * @T@_columns + j];
                        }
                    }
            }
            free(b);
        }
    free(a);
    return bad ? 3 : 0;
}
"""

_UNITS = {
    dtype: Unit(f"ordered_{name}", _TEXT.replace("@T@", name))
    for dtype, name in ((torch.float32, "float"), (torch.float64, "double"))
}
#: What factors are added up in.
_SUMMED = {torch.float32: torch.float32, torch.float64: torch.float64, torch.float16: torch.float32,
           torch.bfloat16: torch.float32}  # fmt: skip
_MATRIX = (0,) * (3 + 1 + 18)  # the rest of a right factor that is a matrix: no strides beyond three, no groups

_FUNCTIONS: dict[torch.dtype, Callable[..., int]] = {}


def get_ready(options: Options) -> None:
    """Compile what is called later, into the cache of these options."""
    for dtype in _UNITS:
        _function(dtype, options)


def _function(dtype: torch.dtype, options: Options | None = None) -> Callable[..., int]:
    found = _FUNCTIONS.get(dtype)
    if found is None:
        options = options or Options.from_environment()
        plain = Options(cache=options.cache, cache_dir=options.cache_dir, cache_size_limit=options.cache_size_limit)
        with compiling():
            addresses, _ = backend("cpu")["load"]([_UNITS[dtype]], plain)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        found = _FUNCTIONS[dtype] = kind(addresses[_UNITS[dtype].name])
    return found


def _run(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, numbers: Sequence[int]) -> None:
    pointers = (ctypes.c_void_p * 3)(left.data_ptr(), right.data_ptr(), out.data_ptr())
    if out.numel() and _function(out.dtype)(pointers, (ctypes.c_int64 * len(numbers))(*numbers)):
        raise MemoryError("there is no memory for the tiles of a product")


# ---- products ---------------------------------------------------------------------------------------------------


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a [..., m, k] @ b [..., k, n]``, with equal dimensions before those."""
    dtype = a.dtype
    if dtype not in _SUMMED:
        return torch.matmul(a, b)
    summed = _SUMMED[dtype]
    batch, (m, k), n = a.shape[:-2], a.shape[-2:], b.shape[-1]
    items = math.prod(batch)
    left, right = (x.to(summed).reshape(items, *x.shape[-2:]) for x in (a, b))
    out = torch.empty((*batch, m, n), dtype=summed, device=a.device)
    _run(left, right, out, (items, items, m, n, k, *left.stride(), *right.stride(), *_MATRIX))
    return out.to(dtype)


def sum_of_product(
    bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """``beta * bias + alpha * a @ b``, each step rounded."""
    made = product(a, b)
    if alpha != 1:
        made *= alpha
    if beta != 0:
        made += bias if beta == 1 else bias * beta
    return made


# ---- convolutions -----------------------------------------------------------------------------------------------


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    """As ``aten.convolution``: a product of the kernel and the places of an image that lie under it."""
    dims = x.dim() - 2
    stride, padding, dilation, more = (_each(v, dims) for v in (stride, padding, dilation, output_padding))
    if x.dtype not in _SUMMED:
        return torch.convolution(x, weight, bias, stride, padding, dilation, transposed, more, groups)
    if transposed:
        x, weight, padding = _as_forward(x, weight, stride, padding, dilation, more, groups)
        stride = [1] * dims
    made = _forward(x, weight, stride, padding, dilation, groups)
    if bias is not None:
        made += bias.view(-1, *(1,) * dims)
    return made


def _each(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)


def _as_forward(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], padding: list[int], dilation: list[int], more: list[int],
    groups: int,
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:  # fmt: skip
    """Image, kernel and padding of the convolution with steps of one that a transposed one is."""
    dims = len(stride)
    sizes = [(n - 1) * s + 1 + o for n, s, o in zip(x.shape[2:], stride, more, strict=True)]
    apart = x.new_zeros((*x.shape[:2], *sizes))
    apart[(..., *(slice(0, (n - 1) * s + 1, s) for n, s in zip(x.shape[2:], stride, strict=True)))] = x
    kernel = weight.shape[2:]
    turned = weight.flip(tuple(range(2, 2 + dims))).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return apart, turned, [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]


def _forward(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> torch.Tensor:
    dtype, summed, fill = x.dtype, _SUMMED[x.dtype], 5 - x.dim()
    x, weight = x.to(summed), weight.to(summed)
    kernel, image = weight.shape[2:], x.shape[2:]
    places = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(image, kernel, stride, padding, dilation, strict=True)
    ]
    left = weight.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    count, channels = x.shape[0], weight.shape[1]
    out = torch.empty((count, weight.shape[0], *places), dtype=summed, device=x.device)
    columns = out[0, 0].numel() if count and weight.shape[0] else 0
    steps = (x.stride(0), x.stride(1) * channels, x.stride(1), *[0] * fill, *x.stride()[2:])
    around = [([1] * fill, kernel), ([1] * fill, stride), ([0] * fill, padding), ([1] * fill, dilation),
              ([1] * fill, image), ([1] * fill, places)]  # fmt: skip
    numbers = (count * groups, groups, *left.shape[1:2], columns, left.shape[2], *left.stride(), *steps, groups)
    _run(left, x, out, (*numbers, *(n for before, given in around for n in (*before, *given))))
    return out.to(dtype)


def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, biases: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """As ``aten.convolution_backward``; the gradients of weight and bias, sums over the whole batch, are PyTorch's."""
    dims = x.dim() - 2
    stride, padding, dilation, more = (_each(v, dims) for v in (stride, padding, dilation, output_padding))
    settings = (stride, padding, dilation, transposed, more, groups)
    operator, own = torch.ops.aten.convolution_backward.default, wanted[0] and x.dtype in _SUMMED
    _, by_weight, by_bias = operator(grad, x, weight, biases, *settings, [False, *wanted[1:]])
    if not own:
        by_image = operator(grad, x, weight, biases, *settings, [True, False, False])[0] if wanted[0] else None
    elif transposed:
        by_image = convolution(grad, weight, None, stride, padding, dilation, False, [0] * dims, groups)
    else:
        rest = [
            n - ((o - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, o, k, s, p, d in zip(
                x.shape[2:], grad.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
            )
        ]
        by_image = convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
    return by_image, by_weight, by_bias


_OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": product, "aten.bmm.default": product, "dot": product, "aten.addmm.default": sum_of_product,
    "aten.baddbmm.default": sum_of_product, "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
}  # fmt: skip

#: The functions of this module that generated code calls, by name.
FUNCTIONS = {f"ordered_{f.__name__}": f for f in dict.fromkeys(_OPERATORS.values())}


def ordered_function(node: Node, device: str) -> tuple[str, Callable[..., Any]] | None:
    """``(readable name, callable)`` for a product or convolution on the CPU; None for anything else."""
    function = _OPERATORS.get(node.op) if device == "cpu" else None
    return None if function is None else (f"ordered_{function.__name__}", function)
