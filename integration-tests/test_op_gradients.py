"""Gradients of PyTorch's own operator and module databases through `compile()`, against eager.

Every module is run here; of the operators every fourth. The sweep script runs all, in a few minutes
(``python integration-tests/sweeps/sweep_op_db.py --grad --samples 1``): 490 of 521 without a fallback, none wrong.
What is listed in ``op_db_fallbacks.txt`` may leave a part to eager, with a reason in the report; everything else must be
generated. All must be right.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path

import pytest
import torch
from sweeps import sweep_op_db as sweep
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import compile_api

FALLBACKS = set(Path(__file__).with_name("op_db_fallbacks.txt").read_text().split())
SETTINGS = argparse.Namespace(
    grad=True, forward=False, device="cpu", dtype=["float32"], samples=1, dynamic=False, only=None,
    strided=False, errors=False, numerics="fast",
)
TASKS = [index for index, _, _ in sweep.tasks(SETTINGS)]
#: Their results are random numbers.
RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU",
          "FractionalMaxPool2d", "FractionalMaxPool3d"}  # fmt: skip


def judge(name: str, verdict: str, reason: str) -> None:
    assert verdict in ("generated", "eager"), f"{verdict}: {reason}"
    if verdict == "eager":
        assert reason
        assert name in FALLBACKS, f"{name} was generated, and now is not: {reason}"


def test_the_database_is_there():
    names = {op_db[index].formatted_name for index in TASKS}
    assert len(TASKS) > 480
    assert len(names & FALLBACKS) < len(names) / 4


@pytest.mark.parametrize("index", TASKS[::4], ids=lambda index: op_db[index].formatted_name)
def test_operator(index):
    warnings.simplefilter("ignore")
    judge(op_db[index].formatted_name, *sweep.check(op_db[index], "float32", True, SETTINGS))


def gradients(module, sample, compiled=False):
    """Results, and gradients of inputs and parameters, of one training step."""
    function = compile_api.compile(module) if compiled else module
    args, kwargs = sweep.clone(sample.forward_input.args), sweep.clone(sample.forward_input.kwargs)
    results = function(*args, **kwargs)
    given = sweep.gradients(results, (args, kwargs, list(module.parameters())))
    return [t.detach() for t in sweep.tensors(results)] + list(module.buffers()), given, function


def module_samples():
    for info in module_db:
        if torch.float32 not in info.dtypes or info.module_cls.__name__ in RANDOM:
            continue
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
        yield from ((info.formatted_name, info.module_cls, sample) for sample in sweep.chosen(samples, 1))


@pytest.mark.parametrize(("name", "cls", "sample"), [pytest.param(*c, id=c[0]) for c in module_samples()])
def test_module(name, cls, sample):
    warnings.simplefilter("ignore")
    module = cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train()
    for part in module.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
        elif isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    twin, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    try:
        *expected, _ = gradients(twin, sample)
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"eager refuses: {error}")
    *got, compiled = gradients(module, sample, compiled=True)

    def reference():
        forward = copy.copy(sample.forward_input)
        forward.args, forward.kwargs = sweep.double(forward.args), sweep.double(forward.kwargs)
        double = copy.copy(sample)
        double.forward_input = forward
        return gradients(exact, double)[:2]

    for which, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert sweep.difference(ours, theirs, reference, which, 2e-4) is None
    report = compiled.report()
    left = [item.reason for item in (*report.fallbacks, *report.breaks)]
    judge(f"nn.{cls.__name__}", "eager" if left else "generated", left[0] if left else "")
