"""Linear algebra and Fourier transforms: results of LAPACK-style kernels, most of them column-major."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from prims.spec import layout
from prims.spec.fallback import fallback_rule
from prims.spec.infer import Rule, meta_rule
from prims.spec.iterator import broadcast_shapes
from prims.spec.promote import complex_dtype, real_dtype, to_float_dtype
from prims.spec.rules.creation import with_format
from prims.spec.rules.views import wrap_dim
from prims.spec.sym import sym_max, sym_min
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def column_major(shape: tuple[Size, ...], dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """A batch of Fortran-ordered matrices."""
    n = len(shape)
    return TensorSpec(shape, dtype, device, layout.strides_in_order(shape, (n - 2, n - 1, *range(n - 3, -1, -1))))


def _require(name: str, holds: bool, *operands: TensorSpec) -> None:
    if not holds:
        raise RuntimeError(f"{name}: sizes {', '.join(str(list(x.shape)) for x in operands)} do not fit together")


def _square(name: str, x: TensorSpec) -> None:
    _require(name, x.ndim >= 2 and x.shape[-2] == x.shape[-1], x)


@meta_rule("aten.linalg_matrix_exp.default")
def matrix_exp(x: TensorSpec) -> TensorSpec:
    _square("linalg.matrix_exp", x)
    if any(layout.known_equal(x.shape[-1], n) for n in (0, 1)):  # a copy, or exp
        return with_format(x, None, x.dtype, x.device)
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten._linalg_check_errors.default")
def check_errors(info: TensorSpec, api_name: str, *, is_matrix: bool) -> None:
    """A check of values; it has no result, and whoever runs the graph makes it."""


@meta_rule("aten.cholesky.default")
def cholesky(x: TensorSpec, upper: bool = False) -> TensorSpec:
    _square("cholesky", x)
    return column_major(x.shape, x.dtype, x.device)


@meta_rule("aten.cholesky_inverse.default")
def cholesky_inverse(x: TensorSpec, upper: bool = False) -> TensorSpec:
    _square("cholesky_inverse", x)
    return column_major(x.shape, x.dtype, x.device)


@meta_rule("aten._cholesky_solve_helper.default")
def cholesky_solve(x: TensorSpec, a: TensorSpec, upper: bool) -> TensorSpec:
    return column_major(x.shape, x.dtype, x.device)


@meta_rule("aten.geqrf.default")
def geqrf(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    tau = TensorSpec((*x.shape[:-2], sym_min(x.shape[-2], x.shape[-1])), x.dtype, x.device)
    return column_major(x.shape, x.dtype, x.device), tau


@meta_rule("aten.ormqr.default")
def ormqr(x: TensorSpec, tau: TensorSpec, other: TensorSpec, left: bool = True, transpose: bool = False) -> TensorSpec:
    fit = x.ndim >= 2 and x.ndim == other.ndim == tau.ndim + 1 and x.shape[:-2] == tau.shape[:-1] == other.shape[:-2]
    rows = other.shape[-2 if left else -1] if fit else 0
    fit = fit and rows == x.shape[-2] and tau.shape[-1] <= rows and tau.shape[-1] <= x.shape[-1]
    _require("ormqr", fit, x, tau, other)
    return column_major(other.shape, other.dtype, other.device)


@meta_rule("aten.linalg_householder_product.default")
def householder_product(x: TensorSpec, tau: TensorSpec) -> TensorSpec:
    fit = x.ndim >= 2 and x.ndim == tau.ndim + 1 and x.shape[:-2] == tau.shape[:-1]
    _require("householder_product", fit and x.shape[-2] >= x.shape[-1] >= tau.shape[-1], x, tau)
    return column_major(x.shape, x.dtype, x.device)


@meta_rule("aten.linalg_eig.default")
def linalg_eig(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    _square("linalg.eig", x)
    dtype = complex_dtype(x.dtype)
    vectors = column_major(x.shape, dtype, x.device) if x.device.type == "cpu" else TensorSpec(x.shape, dtype, x.device)
    return TensorSpec(x.shape[:-1], dtype, x.device), vectors


@meta_rule("aten.linalg_solve_triangular.default")
def solve_triangular(
    a: TensorSpec, b: TensorSpec, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> TensorSpec:
    _square("linalg.solve_triangular", a)
    _require("linalg.solve_triangular", a.shape[-1] == b.shape[-2 if left else -1], a, b)
    batch = broadcast_shapes((a.shape[:-2], b.shape[:-2]))
    return column_major((*batch, *b.shape[-2:]), b.dtype, b.device)


@meta_rule("aten.linalg_lstsq.default")
def lstsq(a: TensorSpec, b: TensorSpec, rcond: Any = None, *, driver: str | None = None) -> tuple[TensorSpec, ...]:
    m, n = a.shape[-2:]
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    _require("linalg.lstsq", m == b.shape[-1 if vector else -2], a, b)
    columns: Size = 1 if vector else b.shape[-1]
    # ATen takes the batch of a right-hand side with one dimension less as if it were of vectors.
    others = b.shape[:-1] if a.ndim - 1 == b.ndim else b.shape[:-2]
    batch = a.shape[:-2] if vector else broadcast_shapes((a.shape[:-2], others))
    rows = m if m > n else n
    work = column_major((*batch, rows, columns), a.dtype, a.device)
    solution = TensorSpec((*batch, n, columns), a.dtype, a.device, work.strides)
    if vector:
        solution = TensorSpec(solution.shape[:-1], a.dtype, a.device, solution.strides[:-1])
    driver = driver or ("gelsy" if a.device.type == "cpu" else "gels")
    full = m > n and driver != "gelsy"
    residuals = TensorSpec((*batch, columns) if full else (0,), real_dtype(a.dtype), a.device)
    # Of the matrices alone: right-hand sides may be more, by broadcasting.
    rank = TensorSpec(a.shape[:-2] if driver != "gels" else (0,), torch.int64, a.device)
    smallest = m if m < n else n
    singular = (*a.shape[:-2], smallest) if driver in ("gelss", "gelsd") else (0,)
    values = TensorSpec(singular, real_dtype(a.dtype), a.device)
    return solution, residuals, rank, values


# ---- batches of matrices whose number is a symbol ----------------------------------------------------------


class _Batched(NamedTuple):
    """How an operator takes batches of matrices.

    Attributes:
        ranks: by tensor argument, the dimensions of one matrix (2) or vector (1).
        own: results that have the batch of the first argument alone; the others have that of all together.
    """

    ranks: tuple[int, ...]
    own: frozenset[int] = frozenset()


_ONE = _Batched((2,))
_BATCHED = {
    "_linalg_det": _ONE, "_linalg_slogdet": _ONE, "linalg_inv_ex": _ONE, "linalg_cholesky_ex": _ONE,
    "_linalg_eigh": _ONE, "_linalg_svd": _ONE, "linalg_qr": _ONE, "linalg_lu_factor_ex": _ONE, "linalg_lu": _ONE,
    "linalg_ldl_factor_ex": _ONE, "_linalg_eigvals": _ONE, "lu_unpack": _Batched((2, 1)),
    "_linalg_solve_ex": _Batched((2, 2), frozenset((1, 2, 3))), "linalg_lu_solve": _Batched((2, 1, 2)),
    "linalg_ldl_solve": _Batched((2, 1, 2)), "triangular_solve": _Batched((2, 2)), "cholesky_solve": _Batched((2, 2)),
}  # fmt: skip


def _batched(name: str, batched: _Batched) -> Rule:
    """PyTorch's own metadata function, which takes plain sizes, asked about one matrix of the batch."""
    func = getattr(torch.ops.aten, name).default
    of_one = fallback_rule(func)

    def rule(*args: Any, **kwargs: Any) -> Any:
        operands, ranks = args[: len(batched.ranks)], list(batched.ranks)
        vector = name == "_linalg_solve_ex" and _is_vector(*operands)
        if vector:
            ranks[1] = 1
        fit = all(x.ndim >= rank for x, rank in zip(operands, ranks, strict=True))
        sizes = [size for x in operands for size in x.shape]
        plain = [size for size in sizes if type(size) is int]
        if not fit or len(plain) == len(sizes) or 0 in plain:
            return of_one(*args, **kwargs)
        batches = [x.shape[: x.ndim - rank] for x, rank in zip(operands, ranks, strict=True)]
        whole = broadcast_shapes(batches)
        single = [
            TensorSpec(x.shape[x.ndim - rank :], x.dtype, x.device) for x, rank in zip(operands, ranks, strict=True)
        ]
        if any(type(size) is not int for x in single for size in x.shape):
            found = _of_any_sizes(of_one, single, args[len(operands) :], kwargs)
        else:
            found = of_one(*single, *args[len(operands) :], **kwargs)
        results = found if isinstance(found, tuple) else (found,)
        made = [_in_batch(one, batches[0] if n in batched.own else whole) for n, one in enumerate(results)]
        if vector and made[0].ndim > 1 and kwargs.get("left", True):  # ATen lays out the batch of vectors as a matrix
            made[0] = column_major(made[0].shape, made[0].dtype, made[0].device)
        return tuple(made) if isinstance(found, tuple) else made[0]

    return rule


def _of_any_sizes(of_one: Rule, operands: list[TensorSpec], rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What PyTorch's metadata function, which takes plain sizes, says of matrices some of whose sizes are symbols.

    It is asked twice, with a number in the place of each size: once with those that come first the smaller, once with
    those that come last. A size of a result is the one whose two numbers it has, or the least or the greatest of some.
    """
    sizes: dict[Any, Size] = {}
    for x in operands:
        sizes.update((_key(size), size) for size in x.shape)
    try:
        return _asked(of_one, operands, sizes, {key: key for key in sizes}, rest, kwargs)
    except (RuntimeError, _Unknown):
        pass  # some of the sizes have to be equal, which is then a guard
    first: dict[Any, Any] = {}
    for key, size in sizes.items():
        first[key] = next((other for other in first if first[other] is other and sizes[other] == size), key)
    try:
        return _asked(of_one, operands, sizes, first, rest, kwargs)
    except (RuntimeError, _Unknown):
        plain = [TensorSpec(tuple(int(size) for size in x.shape), x.dtype, x.device) for x in operands]
        return of_one(*plain, *rest, **kwargs)


class _Unknown(Exception):
    """A result's size or layout that does not follow from the operands' sizes."""


#: Numbers that no product, and no size of a result but through them, is likely to be.
_STAND_INS = (1009, 1013, 1019, 1021, 1031, 1033)


def _key(size: Size) -> Any:
    return size if type(size) is int else size.expr


def _asked(
    of_one: Rule, operands: list[TensorSpec], sizes: dict[Any, Size], first: dict[Any, Any], rest: Any, kwargs: Any
) -> Any:
    several = [key for key in sizes if first[key] is key and not (type(key) is int and key == 1)]
    if len(several) > len(_STAND_INS):
        raise _Unknown
    answers, numbers = [], []
    for order in (_STAND_INS, _STAND_INS[len(several) - 1 :: -1]):
        number = {1: 1} | dict(zip(several, order, strict=False))
        numbers.append(number)
        given = [
            TensorSpec(tuple(number[first[_key(size)]] for size in x.shape), x.dtype, x.device) for x in operands
        ]
        found = of_one(*given, *rest, **kwargs)
        answers.append(found if isinstance(found, tuple) else (found,))
    known: dict[tuple[int, int], Size] = {(0, 0): 0, (1, 1): 1}
    for pick in (sym_max, sym_min):
        chosen = min if pick is sym_min else max
        for a in several:
            for b in several:
                pair = chosen(numbers[0][a], numbers[0][b]), chosen(numbers[1][a], numbers[1][b])
                if a is not b:
                    known[pair] = pick(sizes[a], sizes[b])
    known |= {(numbers[0][key], numbers[1][key]): sizes[key] for key in several}
    made = tuple(_with_sizes(one, other, known) for one, other in zip(*answers, strict=True))
    return made if isinstance(found, tuple) else made[0]


def _with_sizes(one: TensorSpec, other: TensorSpec, known: dict[tuple[int, int], Size]) -> TensorSpec:
    """A result as it was with two choices of sizes, with the sizes themselves."""
    try:
        shape = tuple(known[pair] for pair in zip(one.shape, other.shape, strict=True))
    except (KeyError, ValueError):
        raise _Unknown from None
    if one.strides == tuple(layout.contiguous_strides(one.shape)):
        return TensorSpec(shape, one.dtype, one.device)
    if one.ndim >= 2 and one.strides == column_major(one.shape, one.dtype, one.device).strides:
        return column_major(shape, one.dtype, one.device)
    raise _Unknown


def _is_vector(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether right-hand sides are vectors, as ATen decides: by their number of dimensions, and by their sizes."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and all(m == n for m, n in zip(b.shape, a.shape[:-1], strict=True)))


def _in_batch(one: TensorSpec, batch: tuple[Size, ...]) -> TensorSpec:
    """A batch of what is laid out so, one after another. What is not computed stays empty."""
    if one.shape == (0,):
        return one
    elements = math.prod(max(size, 1) if type(size) is int else size for size in one.shape)
    outer = layout.contiguous_strides((*batch, elements))[:-1]
    return TensorSpec((*batch, *one.shape), one.dtype, one.device, (*outer, *one.strides))


for _name, _how in _BATCHED.items():
    meta_rule(f"aten.{_name}.default")(_batched(_name, _how))


# ---- Fourier transforms ------------------------------------------------------------------------------------


def _by_stride(x: TensorSpec, dims: list[int]) -> list[int]:
    """Dimensions from the largest stride to the smallest."""
    return layout.sort_dims(sorted(dims), x.shape, x.strides)[::-1]


def _transformed(x: TensorSpec, shape: tuple[Size, ...], dims: list[int], dtype: torch.dtype) -> TensorSpec:
    """Laid out as ATen's MKL path does: batch dimensions by descending stride, then the transformed ones."""
    order = [*_by_stride(x, [d for d in range(x.ndim) if d not in dims]), *dims]
    return TensorSpec(shape, dtype, x.device, layout.strides_in_order(shape, reversed(order)))


#: Dimensions that cuFFT transforms at once.
_AT_ONCE = 3


def _cufft(x: TensorSpec, shape: tuple[Size, ...], dims: list[int], dtype: torch.dtype) -> TensorSpec:
    """Laid out as ATen's cuFFT path does: a few dimensions at a time, sorted anew by the strides that the last left."""
    while True:
        dims = _by_stride(x, dims)
        dims, now = dims[:-_AT_ONCE], dims[-_AT_ONCE:]
        x = _transformed(x, shape, now, dtype)
        if not dims:
            return x


def _is_one_cufft(dims: list[int]) -> bool:
    """Whether ATen has cuFFT transform all dimensions of a real transform at once, as they come."""
    return len(dims) <= _AT_ONCE and dims[:2] != [0, 1]


@meta_rule("aten._fft_c2c.default")
def fft_c2c(x: TensorSpec, dim: Any, normalization: int, forward: bool) -> TensorSpec:
    if not dim:
        return with_format(x, None, x.dtype, x.device)
    dims = [wrap_dim(d, x.ndim) for d in dim]
    if x.device.type == "cuda":
        return _cufft(x, x.shape, dims, x.dtype)
    return _transformed(x, x.shape, _by_stride(x, dims), x.dtype)


@meta_rule("aten._fft_r2c.default")
def fft_r2c(x: TensorSpec, dim: Any, normalization: int, onesided: bool) -> TensorSpec:
    dims = [wrap_dim(d, x.ndim) for d in dim]
    *first, last = dims
    sizes = list(x.shape)
    if onesided:
        sizes[last] = sizes[last] // 2 + 1
    shape, dtype = tuple(sizes), complex_dtype(x.dtype)
    if x.device.type != "cuda":
        return _transformed(x, shape, [*_by_stride(x, first), last], dtype)
    if _is_one_cufft(dims):
        return _transformed(x, shape, dims, dtype)
    x = _transformed(x, shape, [last], dtype)
    return _cufft(x, shape, first, dtype) if first else x


@meta_rule("aten._fft_c2r.default")
def fft_c2r(x: TensorSpec, dim: Any, normalization: int, last_dim_size: Size) -> TensorSpec:
    dims = [wrap_dim(d, x.ndim) for d in dim]
    *first, last = dims
    sizes = list(x.shape)
    sizes[last] = last_dim_size
    shape, dtype = tuple(sizes), real_dtype(x.dtype)
    if x.device.type == "cuda" and _is_one_cufft(dims):
        return _transformed(TensorSpec(x.shape, x.dtype, x.device), shape, dims, dtype)  # of a contiguous copy
    if first:
        # A multi-dimensional one is a complex transform of the other dimensions first.
        x = fft_c2c(x, first, normalization, False)
    return _transformed(x, shape, [last], dtype)


# ---- distances ---------------------------------------------------------------------------------------------


@meta_rule("aten._cdist_forward.default")
def cdist_forward(x: TensorSpec, y: TensorSpec, p: float, compute_mode: int | None) -> TensorSpec:
    batch = broadcast_shapes((x.shape[:-2], y.shape[:-2]))
    return TensorSpec((*batch, x.shape[-2], y.shape[-2]), x.dtype, x.device)


@meta_rule("aten._euclidean_dist.default")
def euclidean_dist(x: TensorSpec, y: TensorSpec) -> TensorSpec:
    return TensorSpec((*x.shape[:-1], y.shape[-2]), x.dtype, x.device)


@meta_rule("aten._cdist_backward.default")
def cdist_backward(grad: TensorSpec, x: TensorSpec, y: TensorSpec, p: float, out: TensorSpec) -> TensorSpec:
    batch = broadcast_shapes((x.shape[:-2], y.shape[:-2]))
    if any(isinstance(size, int) and size == 0 for size in (*batch, *x.shape[-2:], y.shape[-2])):
        return with_format(x, None, x.dtype, x.device)  # eager returns zeros like x before it broadcasts
    return TensorSpec((*batch, *x.shape[-2:]), x.dtype, x.device)


@meta_rule("aten._pdist_forward.default")
def pdist_forward(x: TensorSpec, p: float = 2.0) -> TensorSpec:
    n = x.shape[0]
    return TensorSpec((n * (n - 1) // 2,), to_float_dtype(x.dtype), x.device)


@meta_rule("aten._pdist_backward.default")
def pdist_backward(grad: TensorSpec, x: TensorSpec, p: float, out: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)
