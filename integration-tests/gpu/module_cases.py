"""PyTorch's own module database on a GPU: results, buffers and all gradients through ``compile()``, against eager.

Run by test_gpu_modules.py in processes of its own: importing the database forbids to set PyTorch's flags.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from on_gpu import DEVICE
from sweeps import sweep_op_db as sweep
from torch.testing._internal.common_modules import module_db

import compile_api

#: Their results are random numbers.
RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
          "FractionalMaxPool2d", "FractionalMaxPool3d"}  # fmt: skip
MODULES = [info for info in module_db if info.module_cls.__name__ not in RANDOM]


def trained(module, function, forward):
    """Results, buffers, and gradients of inputs and parameters, of one training step."""
    args, kwargs = sweep.clone(forward.args), sweep.clone(forward.kwargs)
    results = function(*args, **kwargs)
    given = sweep.gradients(results, (args, kwargs, list(module.parameters())))
    return [t.detach() for t in sweep.tensors(results)] + [b.clone() for b in module.buffers()], given


def without_dropout(module):
    for part in module.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        elif isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module.train()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("info", MODULES, ids=lambda info: info.formatted_name)
def test_module(info, dtype):
    warnings.simplefilter("ignore")
    samples = list(info.module_inputs_func(info, device=DEVICE, dtype=dtype, requires_grad=True, training=True))
    compared = 0
    for sample in sweep.chosen(samples, 2):
        built = sample.constructor_input
        module = without_dropout(info.module_cls(*built.args, **built.kwargs).to(DEVICE, dtype))
        twin, exact = copy.deepcopy(module), copy.deepcopy(module).double()
        try:
            expected = trained(twin, twin, sample.forward_input)
        except (NotImplementedError, RuntimeError):
            continue
        compile_api.reset()
        compiled = compile_api.compile(module)
        got = trained(module, compiled, sample.forward_input)

        def reference(sample=sample, exact=exact):
            forward = copy.copy(sample.forward_input)
            forward.args, forward.kwargs = sweep.double(forward.args), sweep.double(forward.kwargs)
            return trained(exact, exact, forward)

        for which, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            tolerance = 2e-4 if dtype == torch.float32 else 2e-2
            assert sweep.difference(ours, theirs, reference, which, tolerance) is None
        compared += 1
    if not compared:
        pytest.skip(f"eager has no {info.formatted_name} in {dtype} on a GPU")
