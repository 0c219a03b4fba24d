"""Selective checkpoints: what a policy saves is not computed again in the backward pass, and gradients are eager's."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import compile_api

ADDMM = torch.ops.aten.addmm.default
SAVED = {ADDMM}


def products(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


def every_second(met):
    def policy(ctx, op, *args, **kwargs):
        key = ctx.is_recompute
        met[key] += op == ADDMM
        return CheckpointPolicy.MUST_SAVE if op == ADDMM and met[key] % 2 else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def every_second_anew():
    return create_selective_checkpoint_contexts(every_second(defaultdict(int)))


def by_a_list():
    return functools.partial(create_selective_checkpoint_contexts, [ADDMM])


def by_a_function_of_the_region():
    def policy(ctx, op, *args, **kwargs):
        return op == ADDMM

    return functools.partial(create_selective_checkpoint_contexts, policy)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, context):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.context = context

    def forward(self, x):
        for block in self.blocks:
            kinds = {"context_fn": self.context()} if self.context is not None else {}
            x = checkpoint(lambda t, block=block: block(block(t)), x, use_reentrant=False, **kinds)
        return x


#: What makes a context_fn, and how many of the four products of each of three checkpoints the backward pass makes again.
#: The last product of a checkpoint is read by nothing there.
CONTEXTS = {
    "none": (None, 3),
    "a policy": (lambda: functools.partial(create_selective_checkpoint_contexts, products), 0),
    "a list": (by_a_list, 0),
    "a policy that counts": (lambda: every_second_anew, 1),
    "a policy of the region": (by_a_function_of_the_region, 0),
    "a function of the region": (lambda: lambda: create_selective_checkpoint_contexts(products), 0),
    "another operator": (lambda: functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]), 3),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_what_a_policy_saves_is_not_computed_again(name):
    torch.manual_seed(0)
    context, again = CONTEXTS[name]
    model = Net(context)
    compiled = compile_api.compile(copy.deepcopy(model))
    for rows in (5, 7):
        x = torch.randn(rows, 16)
        found = []
        for run in (model, compiled):
            run.zero_grad()
            given = x.clone().requires_grad_()
            run(given).square().sum().backward()
            found.append([given.grad, *(parameter.grad for parameter in run.parameters())])
        torch.testing.assert_close(found[1], found[0])
        if rows == 5:
            assert compiled.report().extern_counts()["aten.addmm.default"] == 12 + 3 * again
    assert compiled.report().verdict == "compiled" and not compiled.report().breaks


def test_a_policy_that_changes_is_asked_again(monkeypatch):
    model = Net(CONTEXTS["a policy"][0])
    compiled = compile_api.compile(model)
    x = torch.randn(5, 16)
    compiled(x).sum().backward()
    monkeypatch.setattr(f"{__name__}.SAVED", set())
    compiled(x).sum().backward()
    assert "SAVED" in compiled.report().recompiles[0].reason
    assert compiled.report().extern_counts()["aten.addmm.default"] == 12 + 12 + 9


LOG: list = []
TABLE: dict = {}
COUNT = 0


def logging(ctx, op, *args, **kwargs):
    LOG.append(op)
    return False


def noting(ctx, op, *args, **kwargs):
    TABLE[op] = len(args)
    return False


def counting(ctx, op, *args, **kwargs):
    global COUNT
    COUNT = COUNT + 1
    return False


@pytest.mark.parametrize("policy", [logging, noting, counting])
def test_a_policy_that_keeps_state_is_eagers(policy):
    LOG.clear()
    net = Net(lambda: functools.partial(create_selective_checkpoint_contexts, policy))
    compiled = compile_api.compile(net)
    x = torch.randn(5, 16)
    before = COUNT
    for _ in range(2):
        compiled(x).sum().backward()
    report = compiled.report()
    assert report.breaks and all("context_fn" in found.reason for found in report.breaks)
    assert {logging: len(LOG) % 2 == 0 and LOG, noting: TABLE, counting: before < COUNT}[policy]


def test_an_error_of_a_policy_is_the_programs():
    def policy(ctx, op, *args, **kwargs):
        raise ArithmeticError("the policy's own")

    compiled = compile_api.compile(Net(lambda: functools.partial(create_selective_checkpoint_contexts, policy)))
    with pytest.raises(ArithmeticError, match="the policy's own"):
        compiled(torch.randn(5, 16))


def test_attention_is_saved_and_random_numbers_are_drawn_once():
    def block(t):
        return F.dropout(F.scaled_dot_product_attention(t, t, t), 0.5).sin()

    kept = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    contexts = functools.partial(create_selective_checkpoint_contexts, [kept])
    compiled = compile_api.compile(
        lambda t: checkpoint(block, t, use_reentrant=False, context_fn=contexts), options={"numerics": "eager_exact"}
    )
    results = []
    for run in (block, compiled):
        torch.manual_seed(3)
        given = torch.randn(1, 2, 8, 4, requires_grad=True)
        run(given).sum().backward()
        results.append(given.grad)
    torch.testing.assert_close(results[1], results[0])
    assert compiled.report().extern_counts()[str(kept)] == 1
