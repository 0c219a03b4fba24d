"""Every operator of PyTorch's own operator database: metadata on abstract tensors against eager's results.

``UNCOVERED`` and ``DATA_DEPENDENT`` are asserted exactly, so that progress and regressions both show.
"""

from __future__ import annotations

import warnings
from collections import defaultdict

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from prims.errors import DataDependentError
from prims.spec import AbstractMode, AbstractTensor, SymbolContext, TensorSpec, abstract, spec_of

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 4
DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64)
# Nothing gives their metadata: sparse results, and a tensor of section positions that C++ code reads.
UNCOVERED = {"tensor_split", "to_sparse"}
# Symbolic sizes: C++ code above the dispatcher that cannot take them.
UNCOVERED_SYMBOLIC = UNCOVERED | {"cov", "istft"}
# Some sample's result, or its size, depends on the values of a tensor.
DATA_DEPENDENT = set(
    """allclose argwhere bincount combinations corrcoef cov equal istft item masked_select nn_functional_ctc_loss
    nn_functional_gaussian_nll_loss nn_functional_one_hot nonzero repeat_interleave tensor_split unique
    unique_consecutive""".split()
)

if torch.__version__ < "2.12":
    DATA_DEPENDENT |= {"quantile", "nanquantile"}  # these read their q there


def _hint(size):
    return size if isinstance(size, int) else size.hint


def _difference(got, want):
    if isinstance(want, torch.Tensor):
        if want.layout is not torch.strided:
            return None
        if not isinstance(got, AbstractTensor):
            return f"not abstract: {type(got)}"
        s, w = got.spec, spec_of(want)
        a = TensorSpec(map(_hint, s.shape), s.dtype, s.device, map(_hint, s.strides), _hint(s.storage_offset))
        fields = ("shape", "dtype", "device", "storage_offset")
        if any(getattr(a, f) != getattr(w, f) for f in fields):
            return f"got {a}, eager gives {w}"
        if want.numel() > 1:
            for size, x, y in zip(w.shape, a.strides, w.strides, strict=True):
                if size > 1 and x != y:
                    return f"got {a}, eager gives {w}"
        return None
    if isinstance(want, (int, float, bool)) and isinstance(got, (int, float, bool)):
        return None if got == want else f"got {got}, eager gives {want}"
    return None


def _turned(x):
    """The same numbers, the first dimension innermost in memory."""
    if not isinstance(x, torch.Tensor) or x.ndim < 2:
        return x
    return x.permute(*range(x.ndim - 1, -1, -1)).contiguous().permute(*range(x.ndim - 1, -1, -1))


def _run(op, symbolic: bool, turned: bool = False):
    """Yields an outcome per sample: None if right, "data dependent", or what is wrong."""
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        # Not op.sample_inputs, which inspects the call stack for every sample.
        for _, sample in zip(range(SAMPLES), op.sample_inputs_func(op, "cpu", dtype, False)):
            inputs = (sample.input, sample.args, sample.kwargs)
            if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in tree_leaves(inputs)):
                continue
            inputs = tree_map(_turned, inputs) if turned else inputs
            ctx = SymbolContext()

            def lift(x, ctx=ctx):
                if not isinstance(x, torch.Tensor):
                    return x
                return abstract(x, ctx, range(x.ndim) if symbolic else ())

            first, args, kwargs = tree_map(lift, inputs)
            try:
                want = op.op(inputs[0], *inputs[1], **inputs[2])
            except (RuntimeError, NotImplementedError, AssertionError):
                continue  # eager has no such kernel here
            try:
                with AbstractMode():
                    got = op.op(first, *args, **kwargs)
            except DataDependentError:
                yield "data dependent"
                continue
            except Exception as error:
                yield f"{dtype}: {type(error).__name__}: {str(error).splitlines()[0]}"
                continue
            a, e = tree_leaves(got), tree_leaves(want)
            if len(a) != len(e):
                yield f"{dtype}: {len(a)} results instead of {len(e)}"
                continue
            yield next((f"{dtype}: {d}" for x, y in zip(a, e) if (d := _difference(x, y))), None)


@pytest.mark.parametrize("symbolic,turned", [(False, False), (True, False), (False, True)], ids=["static", "symbolic", "turned"])
def test_operator_database(symbolic, turned):
    wrong, dependent, right = defaultdict(list), set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if op.name == "narrow" or op.name == "nn.functional.rrelu":
                continue  # takes a tensor as a number; draws its noise in Python
            for outcome in _run(op, symbolic, turned):
                if outcome is None:
                    right += 1
                elif outcome == "data dependent":
                    dependent.add(op.formatted_name)
                else:
                    wrong[op.formatted_name].append(outcome)
    expected = UNCOVERED_SYMBOLIC if symbolic else UNCOVERED
    unexpected = {name: messages[0] for name, messages in wrong.items() if name not in expected}
    assert not unexpected, "\n" + "\n".join(f"{name}: {message}" for name, message in unexpected.items())
    assert set(wrong) == expected
    assert dependent <= DATA_DEPENDENT, dependent - DATA_DEPENDENT
    if not symbolic:
        assert dependent == DATA_DEPENDENT
    assert right > 8000
