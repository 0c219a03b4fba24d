"""The dtypes that code is generated for: one row each, from which every stage takes what it needs to know."""

from __future__ import annotations

import functools

import torch

from prims.errors import Unsupported
from prims.records import record

__all__ = ["HALVES", "KEPT_FLOATS", "REAL_FLOATS", "ROWS", "DType", "compute_dtype", "saturates"]


@record
class DType:
    """A dtype in generated code.

    Attributes:
        dtype: the dtype.
        name: a short name, part of helpers' names.
        c: the C type that values are computed in.
        triton: the same in Triton.
        pointer: what a Triton pointer to elements points to.
        in_c: the C type of an element in memory, where it is another.
        in_triton: the same in Triton.
        reads: the C expression of an element ``{}`` as a value to compute with.
        writes: the C expression of a value as an element.
        computed: the dtype that values are computed in, where it is another.
        summed: the dtype of a reduction's partial results in Triton, where it is wider.
        bits: for floats to compute with, the significant bits: so many of a random word make a number.
    """

    dtype: torch.dtype
    name: str
    c: str
    triton: str
    pointer: str
    in_c: str = ""
    in_triton: str = ""
    reads: str = "{}"
    writes: str = "{}"
    computed: torch.dtype | None = None
    summed: torch.dtype | None = None
    bits: int = 0


class _Rows(dict[torch.dtype, DType]):
    def __missing__(self, dtype: torch.dtype) -> DType:
        raise Unsupported(f"no code is generated for {dtype}")


_F32, _I32 = torch.float32, torch.int32

#: The row of each dtype; asking for another one raises ``Unsupported``.
ROWS = _Rows({
    row.dtype: row
    for row in (
        DType(torch.float32, "f32", "float", "tl.float32", "fp32", bits=24),
        DType(torch.float64, "f64", "double", "tl.float64", "fp64", bits=53),
        DType(torch.float16, "f16", "float", "tl.float32", "fp16", "uint16_t", "tl.float16", "q_from_f16({})",
              "q_to_f16({})", _F32, bits=11),
        DType(torch.bfloat16, "bf16", "float", "tl.float32", "bf16", "uint16_t", "tl.bfloat16", "qi_from_bf16({})",
              "qi_to_bf16({})", _F32, bits=8),
        *(
            DType(dtype, name, "float", "tl.float32", "u8", "uint8_t", "tl.uint8", f"q_from_{name}({{}})",
                  f"q_to_{name}({{}})", _F32)
            for dtype, name in ((torch.float8_e4m3fn, "e4m3"), (torch.float8_e5m2, "e5m2"))
        ),
        DType(torch.int64, "i64", "int64_t", "tl.int64", "i64"),
        DType(torch.int32, "i32", "int32_t", "tl.int32", "i32"),
        DType(torch.int16, "i16", "int16_t", "tl.int16", "i16", summed=_I32),
        DType(torch.int8, "i8", "int8_t", "tl.int8", "i8", summed=_I32),
        DType(torch.uint8, "u8", "uint8_t", "tl.uint8", "u8", summed=_I32),
        # Any byte but 0 is true: of a mask of 255s that is a view of bytes, say.
        DType(torch.bool, "bool", "uint8_t", "tl.int1", "u8", in_triton="tl.uint8", reads="({} != 0)", summed=_I32),
    )
})  # fmt: skip

#: Floats that are computed in float32.
HALVES = tuple(row.dtype for row in ROWS.values() if row.computed is not None and row.bits)
#: Floats that are only kept in memory: moved, and converted from and to.
KEPT_FLOATS = tuple(row.dtype for row in ROWS.values() if row.computed is not None and not row.bits)
REAL_FLOATS = tuple(row.dtype for row in ROWS.values() if row.bits)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values are computed in: float32 for floats of 16 and of 8 bits, else the dtype itself."""
    row = ROWS.get(dtype)
    return dtype if row is None else row.computed or dtype


@functools.cache
def saturates() -> bool:
    """Whether numbers too large for float8_e4m3fn become its greatest one, as from PyTorch 2.13 on, rather than NaN."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        return not torch.tensor([1e30], device="cpu").to(torch.float8_e4m3fn).float().isnan().any().item()
