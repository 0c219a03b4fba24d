"""Equal layers of a model are built once, and come out as if each had been built: whole models, trained and not."""

import pytest
import torch
import zoo

import compile_api
from inductor_gen.kernel import build as kernel_build
from inductor_gen.kernel.alike import Structures

LAYERS = 4


class Each(Structures):
    """Every cluster is like none."""

    def of(self, cluster, stored):
        return object(), super().of(cluster, stored)[1]


def told(name, train, dynamic):
    """The kernels and calls of a model's graphs, with their sources, and how many kernels were built."""
    compile_api.reset()
    torch.manual_seed(0)
    case = zoo.build(name, small=True, length=16, layers=LAYERS)
    model = compile_api.compile(case.model, dynamic=dynamic)
    with torch.set_grad_enabled(train):
        result = model(*case.args, **case.kwargs)
        tensors = [t for t in result.values() if isinstance(t, torch.Tensor)]
        if train:
            tensors[0].float().sum().backward()
    report = model.report()
    assert report.verdict == "compiled"
    values = [*tensors, *(p.grad for p in case.model.parameters() if p.grad is not None)]
    return report.kernels, report.externs, [v.detach().clone() for v in values]


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("train", (False, True))
def test_a_model_is_as_if_each_layer_were_built(train, dynamic, monkeypatch):
    built = []
    old = kernel_build.Builder.kernel
    monkeypatch.setattr(kernel_build.Builder, "kernel", lambda *a: built.append(a) or old(*a))
    once = told("llama", train, dynamic)
    few = len(built)
    monkeypatch.setattr(kernel_build, "Structures", Each)
    each = told("llama", train, dynamic)
    assert once[:2] == each[:2]
    for a, b in zip(once[2], each[2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert few * 3 <= (len(built) - few) * 2
