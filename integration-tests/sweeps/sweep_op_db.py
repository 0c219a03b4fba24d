"""Every operator of PyTorch's own database through ``compile()``, forward or with gradients, against eager.

``python integration-tests/sweeps/sweep_op_db.py [--grad] [--dtype float32] [--device cpu] [--samples 2] [--only NAME]``
prints one line per operator that did not simply agree, and a summary: *generated* (all in generated kernels and
library calls without a recorded fallback), *eager* (right, with a recorded fallback or break), *wrong*, *error*.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import warnings
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import compile_api

#: Their results are uninitialised memory, random numbers, or defined only up to signs and order.
INCOMPARABLE = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "bernoulli", "cauchy",
    "exponential", "geometric", "log_normal", "multinomial", "normal", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "uniform", "pca_lowrank", "svd_lowrank", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.scaled_dot_product_attention", "torch.ops.aten._flash_attention_forward",
    "torch.ops.aten._efficient_attention_forward", "linalg.eig", "linalg.svd", "svd", "linalg.eigh", "geqrf",
}  # fmt: skip


def clone(tree: Any) -> Any:
    return pytree.tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t, tree
    )


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def gradients(outputs: Any, inputs: Any) -> list[torch.Tensor]:
    outs = [t for t in tensors(outputs) if t.requires_grad]
    ins = [t for t in tensors(inputs) if t.requires_grad]
    if not outs or not ins:
        return []
    grads = torch.autograd.grad(outs, ins, [torch.ones_like(t) for t in outs], allow_unused=True)
    return [g for g in grads if g is not None]


def run(function: Any, sample: Any, grad: bool) -> tuple[Any, Any]:
    args, kwargs, first = clone(sample.args), clone(sample.kwargs), clone(sample.input)
    with torch.set_grad_enabled(grad):
        out = function(first, *args, **kwargs)
        return tensors(out), gradients(out, (first, args, kwargs)) if grad else []


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float) -> str | None:
    """What differs, or None."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results instead of {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return f"{a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        try:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
    return None


def check(op: Any, options: argparse.Namespace) -> tuple[str, str]:
    """The verdict on one operator and the reason."""
    dtype, verdict, why = getattr(torch, options.dtype), "generated", ""
    tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 2e-4
    samples = op.sample_inputs(options.device, dtype, requires_grad=options.grad)
    for sample in itertools.islice(samples, options.samples):
        try:
            expected = run(op.op, sample, options.grad)
        except Exception:
            continue
        compile_api.reset()
        compiled = compile_api.compile(lambda *a, **k: op.op(*a, **k), dynamic=options.dynamic)
        try:
            got = run(compiled, sample, options.grad)
        except Exception as error:
            return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        for ours, theirs in zip(got, expected, strict=True):
            difference = same(ours, theirs, tolerance)
            if difference:
                return "wrong", difference
        report = compiled.report()
        left = [item.reason for item in (*report.fallbacks, *report.breaks)]
        if left:
            verdict, why = "eager", " ".join(left[0].split())[:120]
    return verdict, why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--dynamic", action="store_const", const=True, default=False)
    parser.add_argument("--only", default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    dtype = getattr(torch, options.dtype)
    for op in op_db:
        if options.only and op.name != options.only or op.name in INCOMPARABLE:
            continue
        supported = op.supported_backward_dtypes(options.device) if options.grad else op.supported_dtypes(options.device)
        if dtype not in supported or (options.grad and not op.supports_autograd):
            continue
        verdict, why = check(op, options)
        counts[verdict] += 1
        if verdict != "generated":
            print(f"{verdict:6} {op.formatted_name}: {why}", flush=True)
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
