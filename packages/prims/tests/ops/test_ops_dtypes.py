"""The table of dtypes."""

from __future__ import annotations

import pytest
import torch

from prims.dtypes import HALVES, KEPT_FLOATS, REAL_FLOATS, ROWS, compute_dtype
from prims.errors import Unsupported

_C_SIZES = {"float": 4, "double": 8}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_elements_have_the_size_that_they_have_in_memory(row):
    stored = row.in_c or row.c
    size = _C_SIZES.get(stored) or int("".join(c for c in stored if c.isdigit())) // 8
    assert size == row.dtype.itemsize
    assert int("".join(c for c in row.pointer if c.isdigit())) // 8 == row.dtype.itemsize


@pytest.mark.parametrize("dtype", REAL_FLOATS)
def test_floats_keep_their_significant_bits(dtype):
    assert 2.0 ** (1 - ROWS[dtype].bits) == torch.finfo(dtype).eps


def test_narrow_floats_are_computed_in_float32():
    assert set(HALVES) == {torch.float16, torch.bfloat16}
    assert set(KEPT_FLOATS) == {torch.float8_e4m3fn, torch.float8_e5m2} and not {*KEPT_FLOATS} & {*REAL_FLOATS}
    narrow = (*HALVES, *KEPT_FLOATS)
    assert all(compute_dtype(d) == (torch.float32 if d in narrow else d) for d in (*ROWS, torch.complex64))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e5m2fnuz])
def test_other_dtypes_have_no_code(dtype):
    with pytest.raises(Unsupported, match="no code is generated for torch"):
        ROWS[dtype]
