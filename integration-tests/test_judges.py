"""The judge of gradients block by block: right models pass, and it sees damage (in bfloat16, where rounding hides most)."""

from __future__ import annotations

import functools

import pytest
import torch
from anchored import Judgement, assert_judged, blocks, damages, judged, not_as_good
from torch import nn
from torch.utils import _pytree as pytree
from zoo import build

import compile_api

CASES = {"transformer": {}, "convnet": {}, "resnet18": {"batch": 4}, "bert": {"length": 32}, "llama": {"length": 32}}


def case_in(name, dtype):
    case = build(name, small=True, **CASES[name])
    for module in case.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    low = lambda t: t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
    case.args, case.kwargs = pytree.tree_map(low, (case.args, case.kwargs))
    case.model.train().to(dtype)
    return case


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_block_by_block(name, dtype):
    case = case_in(name, dtype)
    judgement, compiled = judged(case.model, compile_api.compile, case.args, case.kwargs)
    assert_judged(judgement)
    assert compiled.report().kernels and not compiled.report().fallbacks and not compiled.report().breaks


@pytest.mark.parametrize("kind", ["zero", "a quarter too large", "two blocks exchanged"])
def test_a_damaged_gradient_inside_the_model_is_found(kind):
    """Not in the judge's copy, but on the way through the model: one weight of one block gets another gradient."""
    case = case_in("convnet", torch.bfloat16)

    def compile_damaged(model):
        model.model[4].conv2.weight.register_hook(lambda grad: dict(damages(grad))[kind])
        return compile_api.compile(model)

    judgement, _ = judged(case.model, compile_damaged, case.args, case.kwargs)
    assert [text.split(":")[0] for text in judgement.wrong] == ["the gradient of model.4.conv2.weight"]


def test_what_a_blind_judge_gets():
    blind = Judgement(planted=40, unseen=["x: zero"] * 3)
    with pytest.raises(AssertionError, match=r"0\.925 of damage seen"):
        assert_judged(blind)


def test_blocks_are_the_smallest_members_with_layers():
    inner = lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([inner(), inner()]), nn.ReLU())
    assert blocks(model) == ["1.0", "1.1"]


def test_another_dtype_or_shape_is_wrong():
    right = torch.ones(4)
    assert not_as_good(right.double(), right, right.double()) is not None
    assert not_as_good(torch.ones(2, 2), right, right.double()) is not None
    assert functools.reduce(lambda a, b: a and b, [not_as_good(right, right, right.double()) is None])
