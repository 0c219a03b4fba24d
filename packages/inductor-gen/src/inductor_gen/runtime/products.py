"""Matrix products of 16-bit matrices by cuBLASLt, with everything that is known beforehand done beforehand.

PyTorch's ``mm``, ``addmm`` and ``bmm`` cost the host two to three times what the library's own call does, and small
models wait for the host. Here a product's descriptors are made and its algorithm is asked for when a graph is compiled;
a call passes pointers (``ql_product`` in ``runtime/launch.py``). The library, its handle's device, its rules and the
flags that it obeys are PyTorch's: on an H200 the results of ``mm`` are the same to the bit. What is not plain (other
flags, an operand that does not begin at a multiple of 256 bytes, an error) goes to PyTorch's operator.

Source of the calls and numbers: NVIDIA's cuBLAS documentation, "Using the cuBLASLt API".
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from prims.records import record

__all__ = ["Product", "Products", "plain", "products_on", "unusual"]

_TYPES = {torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
_COMPUTE_32F, _REAL_32F = 68, 0
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS = 3, 4, 7, 8  # attributes of a product's description
_ADDS_BIAS = 4  # an epilogue: a number for each row of the library's result
_COUNT, _APART = 5, 6  # attributes of a layout: how many matrices, how many elements from one to the next
_MAX_WORKSPACE = 1  # an attribute of a preference
_ALGORITHM_WORDS = 8  # of the result of a heuristic; its workspace's bytes and its status follow

#: The most bytes of workspace that an algorithm may ask for, and the most that is given to one.
_ASKED, _GIVEN = 32 << 20, 8 << 20

#: The least rows and columns: thinner products are other kernels in PyTorch.
_LEAST = 16


@record(frozen=False)
class Product:
    """The table of one product.

    Attributes:
        table: what ``ql_product`` reads.
        workspace: bytes.
        key: the arguments of :meth:`Products.product` that it was made for.
    """

    table: Sequence[int]
    workspace: int
    key: tuple[Any, ...] = ()
    method: ClassVar[int] = 1

    def words(self) -> Sequence[int]:
        """The table as the C side reads it."""
        return self.table


def unusual() -> bool:
    """Whether a flag asks for other sums of 16-bit products than PyTorch's defaults, or for products by other means."""
    usual = (True, (True, True))
    c = torch._C
    return not (
        c._get_cublas_allow_bf16_reduced_precision_reduction() in usual
        and c._get_cublas_allow_fp16_reduced_precision_reduction() in usual
        and not c._get_cublas_allow_fp16_accumulation()
    )


def plain() -> bool:
    """Whether a graph that is compiled now may call the library."""
    return not (unusual() or torch.are_deterministic_algorithms_enabled() or torch.cuda.tunable.is_enabled())


class _RefusedError(Exception):
    """A function of the library failed."""


class Products:
    """The products on one device. Descriptors live as long as the process: one set for each kind of product."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.known: dict[Any, Product | None] = {}
        self.handle = ctypes.c_void_p()
        self.lib: Any = None
        try:
            lib = ctypes.CDLL(torch._C.__file__)  # a symbol is looked up in all that PyTorch depends on
            with torch.cuda.device(device):
                if lib.cublasLtCreate(ctypes.byref(self.handle)) == 0:
                    self.lib = lib
        except (OSError, AttributeError):
            return

    def product(
        self, dtype: torch.dtype | None, shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...],
        offsets: tuple[int, ...],
    ) -> Product | None:  # fmt: skip
        """The product of ``[m, k]`` and ``[k, n]`` into a contiguous ``[m, n]``, of one pair or of many; None where
        PyTorch's operator is to do it.

        Args:
            shape: ``m, n, k``, behind the number of pairs where they are matrices of three dimensions.
            a: the strides of the left matrix.
            b: those of the right one.
            offsets: the bytes into the operands' memory at which they begin; a third is that of a bias ``[n]``.
        """
        key = (dtype, shape, a, b, offsets)
        if key not in self.known:
            try:
                self.known[key] = self._made(*key)
            except _RefusedError:
                self.known[key] = None
        return self.known[key]

    def _made(
        self, dtype: torch.dtype | None, shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...],
        offsets: tuple[int, ...],
    ) -> Product | None:  # fmt: skip
        *pairs, m, n, k = shape
        left, right = _leading(m, k, a[-2:]), _leading(k, n, b[-2:])
        if self.lib is None or dtype not in _TYPES or min(m, n, k) < _LEAST or left is None or right is None:
            return None
        kind, biased = _TYPES[dtype], len(offsets) > 2
        # The library counts columns first: it computes the transposed result, b' a'.
        with torch.cuda.device(self.device):
            description = self._new("MatmulDescCreate", _COMPUTE_32F, _REAL_32F)
            self._describe("MatmulDesc", description, _TRANSPOSE_A, ctypes.c_int32(right[1]))
            self._describe("MatmulDesc", description, _TRANSPOSE_B, ctypes.c_int32(left[1]))
            if biased:
                self._describe("MatmulDesc", description, _EPILOGUE, ctypes.c_int32(_ADDS_BIAS))
                self._describe("MatmulDesc", description, _BIAS, ctypes.c_int64(256))  # a place; calls give theirs
            first = self._layout(kind, (k, n) if right[1] else (n, k), right[0], pairs, b[0])
            second = self._layout(kind, (m, k) if left[1] else (k, m), left[0], pairs, a[0])
            result = self._layout(kind, (n, m), n, pairs, m * n)
            found = self._algorithm(description, first, second, result)
        if found is None:
            return None
        algorithm, workspace = found
        matmul = _address(self.lib.cublasLtMatmul)
        describe = _address(self.lib.cublasLtMatmulDescSetAttribute) if biased else 0
        objects = [x.value or 0 for x in (self.handle, description, first, second, result)]
        places = [0, *offsets, *[0] * (3 - len(offsets))]
        table = [matmul, *objects, describe, workspace, 3 + biased, *places, *algorithm]
        return Product(table, workspace, (dtype, shape, a, b, offsets))

    def _algorithm(self, description: Any, *layouts: Any) -> tuple[list[int], int] | None:
        preference = self._new("MatmulPreferenceCreate")
        limit = ctypes.c_uint64(_ASKED)
        self._call("MatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, ctypes.byref(limit), ctypes.c_size_t(8))
        found, count = (ctypes.c_int64 * 32)(), ctypes.c_int(0)
        first, second, result = layouts
        code = self.lib.cublasLtMatmulAlgoGetHeuristic(
            self.handle, description, first, second, result, result, preference, 1, found, ctypes.byref(count)
        )
        self.lib.cublasLtMatmulPreferenceDestroy(preference)
        workspace, status = found[_ALGORITHM_WORDS], found[_ALGORITHM_WORDS + 1] & 0xFFFFFFFF
        if code or not count.value or status or workspace > _GIVEN:
            return None
        return list(found[:_ALGORITHM_WORDS]), workspace

    def _layout(self, kind: int, shape: tuple[int, int], leading: int, pairs: list[int], apart: int) -> Any:
        rows, columns = map(ctypes.c_uint64, shape)
        made = self._new("MatrixLayoutCreate", kind, rows, columns, ctypes.c_int64(leading))
        for count in pairs:
            self._describe("MatrixLayout", made, _COUNT, ctypes.c_int32(count))
            self._describe("MatrixLayout", made, _APART, ctypes.c_int64(apart))
        return made

    def _describe(self, kind: str, made: Any, attribute: int, value: Any) -> None:
        self._call(f"{kind}SetAttribute", made, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _new(self, name: str, *args: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *args)
        return made

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self.lib, f"cublasLt{name}")(*args)
        if code:
            raise _RefusedError(f"cublasLt{name}: {code}")


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


products_on = functools.lru_cache(maxsize=None)(Products)


def _leading(rows: int, columns: int, strides: tuple[int, ...]) -> tuple[int, bool] | None:
    """The distance of a matrix's rows, or of its columns, which is then True; None where neither is dense."""
    if strides[1] == 1 and strides[0] >= columns:
        return strides[0], False
    if strides[0] == 1 and strides[1] >= rows:
        return strides[1], True
    return None
