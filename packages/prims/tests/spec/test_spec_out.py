"""``out=`` of another size, for every operator of the database that takes it: what an abstract run says of it."""

from __future__ import annotations

import warnings
from collections import defaultdict

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from prims.errors import DataDependentError, Unsupported
from prims.spec import AbstractMode, abstract, spec_of

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 3
#: Libraries lay out some results in their own way, and lists are not resized: refused, with a reason.
REFUSED = {"cholesky", "geqrf", "linalg_eig", "linalg_householder_product", "linalg_lstsq", "ormqr",
           "split_with_sizes_copy", "unbind_copy"}  # fmt: skip


def _outs(want, shape):
    return tree_map(lambda t: torch.empty(shape, dtype=t.dtype) if isinstance(t, torch.Tensor) else t, want)


def _run(op, shape):
    for _, sample in zip(range(SAMPLES), op.sample_inputs_func(op, "cpu", torch.float32, False)):
        inputs = (sample.input, sample.args, sample.kwargs)
        if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in tree_leaves(inputs)):
            continue
        try:
            out = _outs(op.op(sample.input, *sample.args, **sample.kwargs), shape)
            op.op(sample.input, *sample.args, **sample.kwargs, out=out)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # eager refuses it
        (first, args, kwargs), made = tree_map(
            lambda x: abstract(x) if isinstance(x, torch.Tensor) else x, (inputs, _outs(out, shape))
        )
        try:
            with AbstractMode():
                op.op(first, *args, **kwargs, out=made)
        except DataDependentError:
            continue
        except Unsupported:
            yield "refused"
            continue
        except Exception as error:
            yield f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        for a, e in zip(tree_leaves(made), tree_leaves(out), strict=True):
            same = (a.spec.shape, a.spec.dtype, a.shape) == (tuple(e.shape), e.dtype, e.shape) and _strides(a) == _strides(e)
            yield None if same else f"got {a.spec}, eager gives {spec_of(e)}"


def _strides(t):
    return [s for s, n in zip(t.stride(), t.shape) if n > 1] if t.numel() > 1 else []


@pytest.mark.parametrize("shape", [(0,), (3, 1, 2)], ids=str)
def test_out_of_another_size(shape):
    wrong, refused, right = defaultdict(list), set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if not op.supports_out or torch.float32 not in op.supported_dtypes("cpu") or op.name.startswith("empty"):
                continue
            for outcome in _run(op, shape):
                if outcome is None:
                    right += 1
                elif outcome == "refused":
                    refused.add(op.formatted_name)
                else:
                    wrong[op.formatted_name].append(outcome)
    assert not wrong, "\n" + "\n".join(f"{name}: {messages[0]}" for name, messages in wrong.items())
    assert {name for name in refused if not name.startswith("fft_")} <= REFUSED
    assert right > 900
