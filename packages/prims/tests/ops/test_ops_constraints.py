"""A negative example per labelled constraint of every row."""

import pytest
import torch

from prims.errors import VerifierError
from prims.ops import TABLE
from prims.spec import TensorSpec

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
F32, F64, I64, BOOL, C64 = torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64


def t(*shape, dtype=F32, device=CPU):
    return TensorSpec(shape, dtype, device)


def i(*shape, device=CPU):
    return t(*shape, dtype=I64, device=device)


CASES = {
    "WHERE-C1": (t(2), t(2), t(2)),
    "WHERE-C2": (t(2, dtype=BOOL), 1.0, 2.0),
    "WHERE-C3": (t(2, dtype=BOOL), t(3), 0.0),
    "WHERE-C4": (t(2, dtype=BOOL), t(2), t(2, dtype=F64)),
    "WHERE-C5": (t(2, dtype=BOOL), i(2), 0.5),
    "WHERE-C6": (t(2, dtype=BOOL), t(2, device=GPU), 0.0),
    "WHERE-C7": (t(2, dtype=BOOL), t(2, dtype=C64), t(2, dtype=C64)),
    "CONVERT-C1": (t(2), C64),
    "BITCAST-C1": (t(2), I64),
    "BITCAST-C2": (t(2, dtype=torch.uint8), BOOL),
    "FULL-C1": ((2,), 1.0, C64, CPU),
    "FULL-C2": ((-1,), 1.0, F32, CPU),
    "FULL-C3": ((2,), 0.5, I64, CPU),
    "IOTA-C1": (3, 0, 1, BOOL, CPU),
    "IOTA-C2": (-1, 0, 1, I64, CPU),
    "IOTA-C3": (3, 0.5, 1, I64, CPU),
    "BROADCAST-C1": (t(2), (2, 2), ()),
    "BROADCAST-C2": (t(2, 3), (2, 3), (1, 0)),
    "BROADCAST-C3": (t(2), (3,), (0,)),
    "BROADCAST-C4": (t(1), (2, -1), (0,)),
    "RESHAPE-C1": (t(2, 3), (5,)),
    "RESHAPE-C2": (t(6), (-2, -3)),
    "PERMUTE-C1": (t(2, 3), (0, 0)),
    "SLICE-C1": (t(2, 3), (0,), (2,), (1,)),
    "SLICE-C2": (t(2), (0,), (3,), (1,)),
    "SLICE-C3": (t(2), (0,), (2,), (0,)),
    "PAD-C1": (t(2), 0.0, (0, 0), (1, 1)),
    "PAD-C2": (t(2), 0.0, (-1,), (-2,)),
    "PAD-C3": (i(2), 0.5, (1,), (1,)),
    "CONCAT-C1": ((), 0),
    "CONCAT-C2": ((t(2),), 1),
    "CONCAT-C3": ((t(2, 3), t(2, 4)), 0),
    "CONCAT-C4": ((t(2), i(2)), 0),
    "CONCAT-C5": ((t(2), t(2, device=GPU)), 0),
    "FLIP-C1": (t(2), (0, 0)),
    "GATHER-C1": (t(2), i(2), 1),
    "GATHER-C2": (t(2), t(2), 0),
    "GATHER-C3": (t(2, 3), i(3, 3), 1),
    "SCATTER-C1": (t(2), i(2), t(2), 1, "set"),
    "SCATTER-C2": (t(2), t(2, dtype=torch.uint8), t(2), 0, "set"),
    "SCATTER-C3": (t(2, 3), i(2), t(2), 0, "set"),
    "SCATTER-C4": (t(2), i(2), t(1), 0, "set"),
    "SCATTER-C5": (t(2), i(2), i(2), 0, "set"),
    "SCATTER-C6": (t(2), i(2), t(2), 0, "mean"),
    "SCATTER-C7": (t(2), i(2), t(2, device=GPU), 0, "set"),
    "INDEX-C1": (t(2, 3), (i(2),), (0, 1)),
    "INDEX-C2": (t(2, 3), (i(2), i(2)), (1, 0)),
    "INDEX-C3": (t(2, 3), (t(2, dtype=BOOL),), (0,)),
    "INDEX-C4": (t(2, 3), (i(2), i(1)), (0, 1)),
    "INDEX_PUT-C1": (t(2, 3), (), (), t(2, 3), False),
    "INDEX_PUT-C2": (t(2, 3), (i(2),), (2,), t(2, 2), False),
    "INDEX_PUT-C3": (t(2, 3), (i(2, device=GPU),), (0,), t(2, 3), False),
    "INDEX_PUT-C4": (t(2, 3), (i(2), i(1)), (0, 1), t(2), False),
    "INDEX_PUT-C5": (t(2, 3), (i(5),), (0,), t(5), False),
    "INDEX_PUT-C6": (t(2, 3), (i(5),), (0,), i(5, 3), False),
    "INDEX_PUT-C7": (t(2, 3), (i(5),), (0,), t(5, 3, device=GPU), False),
    "DOT-C1": (t(3), t(3)),
    "DOT-C2": (t(2, 3), t(4, 2)),
    "DOT-C3": (t(5, 2, 3), t(4, 3, 2)),
    "DOT-C4": (t(2, 3), t(3, 2, dtype=F64)),
    "DOT-C5": (t(2, 3, dtype=BOOL), t(3, 2, dtype=BOOL)),
    "DOT-C6": (t(2, 3), t(3, 2, device=GPU)),
}


def _generic(op):
    """The constraints that families of rows share."""
    up = op.name.upper()
    if op.kind in ("unary", "binary") or op.name == "fma":
        dtype = op.dtypes[0]
        good = t(2, dtype=dtype)
        rest = (good,) * (len(op.params) - 2)
        yield f"{up}-C3", (t(2, dtype=C64),) * len(op.params)
        yield f"{up}-C4", (1,) * len(op.params)
        if op.kind != "unary":
            integral = torch.int64 in op.dtypes
            yield f"{up}-C1", (good, t(3, dtype=dtype), *rest)
            yield f"{up}-C2", (good, t(2, dtype=op.dtypes[1]), *rest)
            number = 0.5 if integral else 1j
            holder = t(2, dtype=I64) if integral else good
            yield f"{up}-C5", (holder, number, *(holder for _ in rest))
            yield f"{up}-C6", (good, t(2, dtype=dtype, device=GPU), *rest)
    elif op.name in ("sum", "prod", "amax", "amin", "any", "all"):
        dtype = op.dtypes[0]
        yield f"{up}-C1", (t(2, 3, dtype=dtype), (2,))
        yield f"{up}-C2", (t(2, 3, dtype=C64), (0,))
        if f"{up}-C3" in op.constraints:
            yield f"{up}-C3", (t(0, 3), (0,))
    elif op.kind in ("reduce", "scan"):
        yield f"{up}-C1", (t(2, 3), 2)
        yield f"{up}-C2", (t(2, 3, dtype=BOOL), 0)
        if f"{up}-C3" in op.constraints:
            yield f"{up}-C3", (t(0, 3), 0)
    elif op.kind == "random":
        good = op.dtypes[0]
        yield f"{up}-C1", ((2,), i(1), 0, good, CPU)
        yield f"{up}-C2", ((2,), i(), 0, BOOL, CPU)
        yield f"{up}-C3", ((-2,), i(), 0, good, CPU)
        yield f"{up}-C4", ((2,), i(), -1, good, CPU)


NEGATIVE = {**CASES}
for _op in TABLE.values():
    NEGATIVE.update(_generic(_op))


def test_every_label_has_a_negative_example():
    labels = {label for op in TABLE.values() for label in op.constraints}
    assert labels == set(NEGATIVE)


@pytest.mark.parametrize("label", sorted(NEGATIVE))
def test_constraint(label):
    op = TABLE[label.rsplit("-C", 1)[0].lower()]
    with pytest.raises(VerifierError) as caught:
        op.meta(*NEGATIVE[label])
    assert caught.value.label == label, str(caught.value)
    assert f"[{label}]" in str(caught.value)
