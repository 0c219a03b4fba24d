"""Every ATen call that PyTorch's operator database makes, forward and backward: its results' metadata against eager's, for
operands of several layouts. A result that lies otherwise than its metadata says is copied, and is not laid out as eager's."""

from __future__ import annotations

import warnings
from collections import defaultdict

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from prims.errors import DataDependentError
from prims.spec import TensorSpec, infer, spec_of

pytest.importorskip("expecttest")  # torch.testing's own need
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 5
#: Whether a lazily conjugated operand is one is not in its metadata; in graphs there is none.
CONJUGATED = {"aten.linalg_solve_triangular.default"}


def turned(x):
    """The same numbers, the first dimension innermost in memory."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.ndim < 2:
        return x
    order = range(x.ndim - 1, -1, -1)
    return x.detach().permute(*order).contiguous().permute(*order).requires_grad_(x.requires_grad)


def channels_last(x):
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.ndim not in (4, 5):
        return x
    last = torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return x.detach().to(memory_format=last).requires_grad_(x.requires_grad)


def differs(spec: TensorSpec, made: torch.Tensor) -> bool:
    theirs = spec_of(made)
    strides = zip(theirs.shape, spec.strides, theirs.strides, strict=True)
    return (spec.shape, spec.dtype, spec.storage_offset) != (theirs.shape, theirs.dtype, theirs.storage_offset) or (
        made.numel() > 1 and any(size > 1 and a != b for size, a, b in strides)
    )


class Calls(TorchDispatchMode):
    """Compares each call's results with what is inferred from its operands."""

    def __init__(self):
        super().__init__()
        self.wrong = defaultdict(list)
        self.right = defaultdict(int)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        operands = tree_leaves((args, kwargs))
        plain = all(x.layout is torch.strided for x in operands if isinstance(x, torch.Tensor))
        given = tree_map(lambda x: spec_of(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)) if plain else None
        result = func(*args, **kwargs)
        if given is not None and not func._schema.is_mutable:
            try:
                inferred = infer(func, *given)
            except DataDependentError:
                return result
            specs = [x for x in tree_leaves(inferred) if isinstance(x, TensorSpec)]
            made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            for spec, one in zip(specs, made, strict=True):
                if one.layout is torch.strided and not one._is_zerotensor():
                    if differs(spec, one):
                        self.wrong[str(func)].append(f"inferred {spec}, eager's {spec_of(one)}, of {given}")
                    else:
                        self.right[str(func)] += 1
        return result


def run(op, dtype, change, calls):
    for _, sample in zip(range(SAMPLES), op.sample_inputs_func(op, "cpu", dtype, True)):
        first, args, kwargs = inputs = tree_map(change, (sample.input, sample.args, sample.kwargs))
        with calls:
            try:
                result = op.op(first, *args, **kwargs)
                if sample.output_process_fn_grad is not None:
                    result = sample.output_process_fn_grad(result)
                results = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
                wanted = [x for x in tree_leaves(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
                if results and wanted:
                    coming = [change(torch.randn_like(x)) for x in results]
                    torch.autograd.grad(results, wanted, coming, allow_unused=True)
            except (RuntimeError, NotImplementedError, ValueError):
                continue  # eager refuses some


@pytest.mark.parametrize("change", [lambda x: x, turned, channels_last], ids=["row-major", "turned", "channels-last"])
def test_results_lie_as_inferred(change):
    calls = Calls()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            for dtype in (torch.float32, torch.complex64):
                if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"):
                    run(op, dtype, change, calls)
    wrong = {name: found[0] for name, found in calls.wrong.items() if name not in CONJUGATED}
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
    assert len(calls.right) > 400 and sum(calls.right.values()) > 20_000
