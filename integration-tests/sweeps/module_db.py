"""One module of PyTorch's own database through ``compile()``, against eager: results, buffers and all gradients."""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from sweeps import agreement
from torch.testing._internal.common_modules import module_db

#: Their results are random numbers.
RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
          "FractionalMaxPool2d", "FractionalMaxPool3d"}  # fmt: skip


def comparable(dtype_name: str) -> list[int]:
    """Indices of the modules that can be compared with eager's in this dtype."""
    dtype = getattr(torch, dtype_name)
    return [k for k, info in enumerate(module_db) if dtype in info.dtypes and info.module_cls.__name__ not in RANDOM]


def check(
    info: Any, dtype_name: str, kind: str, options: argparse.Namespace, dynamic: bool = False
) -> tuple[str, str]:
    """The verdict on one module and the reason: an evaluation (``forward``) or a training step."""
    import compile_api

    grad = kind != "forward"
    dtype, verdict, why, compared = getattr(torch, dtype_name), "generated", "", 0
    tolerance = 2e-2 if dtype in (torch.bfloat16, torch.float16) else 2e-4
    samples = info.module_inputs_func(info, device=options.device, dtype=dtype, requires_grad=grad, training=grad)
    for sample in agreement.chosen(list(samples), options.samples):
        torch.manual_seed(0)
        built = sample.constructor_input
        module = _without_dropout(info.module_cls(*built.args, **built.kwargs)).to(options.device, dtype).train(grad)
        twin, exact = copy.deepcopy(module), copy.deepcopy(module).double()
        try:
            expected = _step(twin, twin, sample.forward_input, kind)
        except (NotImplementedError, RuntimeError):
            continue
        compile_api.reset()
        compiled = compile_api.compile(module, dynamic=dynamic)
        try:
            got = _step(module, compiled, sample.forward_input, kind)
        except Exception as failure:
            if kind == "second" and agreement.DECLINED in str(failure):
                return "declined", " ".join(str(failure).split())[:300]
            return "error", f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"

        def reference(sample: Any = sample, exact: Any = exact) -> Any:
            try:
                return _step(exact, exact, sample.forward_input, kind, agreement.double)
            except (NotImplementedError, RuntimeError):
                return None

        for which, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            reason = agreement.difference(ours, theirs, reference, which, tolerance)
            if reason:
                return "wrong", reason
        compared += 1
        left = agreement.reasons(compiled.report())
        if left:
            verdict, why = "eager", left[0]
    return (verdict, why) if compared else ("skipped", "eager refuses every sample")


def _step(
    module: Any, function: Any, forward: Any, kind: str, prepare: Any = agreement.clone
) -> tuple[list[torch.Tensor], ...]:
    """Results and buffers, gradients of inputs and parameters, and gradients of those, as far as ``kind`` goes."""
    args, kwargs = prepare(forward.args), prepare(forward.kwargs)
    given: tuple[list[torch.Tensor], ...] = ([],)
    with torch.set_grad_enabled(kind != "forward"):
        results = function(*args, **kwargs)
        inputs = (args, kwargs, list(module.parameters()))
        if kind == "gradients":
            given = (agreement.gradients(results, inputs),)
        elif kind == "second":
            given = agreement.second_gradients(results, inputs)
    return [t.detach() for t in agreement.tensors(results)] + [b.clone() for b in module.buffers()], *given


def _without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    for part in module.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        elif isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module
