"""What the program's ``saved_tensors_hooks`` see of a compiled region: each tensor that it saves, once."""

from __future__ import annotations

import copy
import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import compile_api


def between(x, w):
    h = torch.tanh(x @ w)
    return h, h.exp()


def three(x, w):
    h = torch.tanh(x @ w)
    return h, h.exp(), h.sin()


def chain(x, w):
    h = x.sigmoid()
    g = h.exp()
    return h, g, (g * w).tanh()


def of_a_view(x, w):
    h = x.exp()
    return h, h[0], h[1].sigmoid() * w


def written(x, w):
    h = x * 0.5
    y = h.exp_()
    return y, (y * w).tanh()


#: name -> a region; the results of all but the last ones are computed from each other.
REGIONS = {
    "one result": lambda x, w: torch.tanh(x @ w),
    "one from the other": between,
    "two from one": three,
    "a chain": chain,
    "views": of_a_view,
    "written": written,
    "apart": lambda x, w: (x.exp(), w.tanh()),
    "apart, and both": lambda x, w: (x.exp(), w.tanh(), x @ w),
    "complex": lambda x, w: (lambda h: (h, h.sin()))(torch.complex(x, w).exp()),
    "nothing saved": lambda x, w: (x + w, (x + w) * 2),
}


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(2)]


def losses(results):
    results = results if isinstance(results, tuple) else (results,)
    return sum((y.abs() if y.is_complex() else y.cos()).sum() for y in results)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("name", REGIONS)
def test_each_is_seen_once(name, warm):
    """No more bytes than in eager, nothing twice, and gradients of what the hooks give back."""
    region, seen, gradients = REGIONS[name], [], []
    compiled = compile_api.compile(region)
    if warm:
        compiled(*inputs())
    for call in (region, compiled):
        packed = []

        def pack(tensor, packed=packed):
            packed.append((tensor.data_ptr(), tensor.storage_offset(), tensor.nbytes))
            return tensor.detach().clone()

        given = inputs()
        with saved_tensors_hooks(pack, lambda packed: packed.clone()):
            results = call(*given)
        seen.append(packed)
        gradients.append(torch.autograd.grad(losses(results), given, allow_unused=True))
    theirs, ours = (sum(nbytes for _, _, nbytes in packed) for packed in seen)
    assert ours <= theirs
    assert len({place for place, *_ in seen[1]}) == len(seen[1])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("name", REGIONS)
def test_hooks_on_results_beside_them(name):
    """A second run, hooks on results and second derivatives, with what the hooks give back, and results that are gone."""
    region, found = REGIONS[name], []
    for call in (region, compile_api.compile(region)):
        given, seen = inputs(), []
        with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda packed: packed):
            results = call(*given)
        first = results[0] if isinstance(results, tuple) else results
        first.register_hook(lambda gradient, seen=seen: seen.append(gradient.detach().clone()))
        loss = losses(results)
        del first, results
        gradients = [g for g in torch.autograd.grad(loss, given, create_graph=True, allow_unused=True) if g is not None]
        again = torch.autograd.grad(sum(g.sin().sum() for g in gradients), given, allow_unused=True)
        found.append((*[g.detach() for g in gradients], *[g for g in again if g is not None], *seen))
    torch.testing.assert_close(found[1], found[0])


def test_what_is_packed_is_let_go():
    """A result that the hooks have put elsewhere dies when the program drops it: no link holds it."""
    for name in ("one from the other", "two from one", "a chain"):
        for call in (REGIONS[name], compile_api.compile(REGIONS[name])):
            given = inputs()
            with saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda packed: packed):
                results = call(*given)
            held = [weakref.ref(result.untyped_storage()) for result in results]
            loss = sum(result.sum() for result in results)
            del results
            gc.collect()
            assert not any(storage() for storage in held), (name, call)
            loss.backward()


def test_a_link_holds_no_result():
    """What a result is computed from is held by nothing but what eager saves; hooks on it are called all the same."""

    def region(x):
        h = x + 1
        return h, h * 2

    for call in (region, compile_api.compile(region)):
        x, seen = torch.ones(3, requires_grad=True), []
        first, second = call(x)
        first.register_hook(seen.append)
        storage = weakref.ref(first.untyped_storage())
        del first
        gc.collect()
        assert storage() is None
        second.sum().backward()
        assert [gradient.tolist() for gradient in seen] == [[2.0] * 3]
        assert x.grad.tolist() == [2.0] * 3


BLOCKS = {
    "norm": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh()),
    "norm at the end": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6)),
    "norm and dropout": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.0), nn.Linear(6, 6), nn.GELU()),
    "neither": lambda: nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)),
}


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_compiled_block_in_a_checkpoint(name, early_stop):
    """Which ends the forward pass that it runs again by an exception, once all that it wants has been saved."""
    torch.manual_seed(0)
    theirs = BLOCKS[name]()
    ours = copy.deepcopy(theirs)
    compiled = compile_api.compile(ours)
    x = torch.randn(8, 6)
    for _ in range(2):
        gradients = []
        for block in (compiled, theirs):
            given = x.clone().requires_grad_()
            with set_checkpoint_early_stop(early_stop):
                checkpoint(block, given, use_reentrant=False).sigmoid().sum().backward()
            gradients.append(given.grad)
        torch.testing.assert_close(*gradients)
    for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=key)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b)  # a batch norm moves its statistics twice
    report = compiled.report()
    assert report.verdict == "compiled" and report.kernels and not report.fallbacks


def test_what_is_checkpointed_where_a_region_ends_is_compiled_if_compiled_itself():
    """As the message of the break says."""
    torch.manual_seed(0)
    theirs = BLOCKS["norm"]()
    ours = copy.deepcopy(theirs)
    block, x = compile_api.compile(ours), torch.randn(8, 6)
    whole = compile_api.compile(lambda h: checkpoint(block, h * 2, use_reentrant=False).square().mean())
    for _ in range(2):
        whole(x).backward()
        checkpoint(theirs, x * 2, use_reentrant=False).square().mean().backward()
    torch.testing.assert_close([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))
    assert [brk.reason for brk in whole.report().breaks if "[QB27]" in brk.reason]
    assert block.report().verdict == "compiled" and block.report().kernels


@pytest.mark.parametrize("early_stop", [True, False])
def test_dropout_of_a_compiled_block_in_a_checkpoint(early_stop):
    """Both passes draw the same numbers: what was dropped has no gradient, what stayed has twice."""
    block = compile_api.compile(lambda x: F.dropout(x.sin(), 0.5) * x.exp())
    x = torch.linspace(0.5, 1.0, 400).requires_grad_()
    with set_checkpoint_early_stop(early_stop):
        out = checkpoint(block, x, use_reentrant=False)
        out.sum().backward()
    kept = out.detach() != 0
    assert 100 < kept.sum() < 300
    wanted = torch.where(kept, 2 * (x.cos() + x.sin()) * x.exp(), 0.0)
    torch.testing.assert_close(x.grad, wanted.detach())
    assert block.report().kernels and not block.report().fallbacks


class Counting:
    """A hook that is no function, and raises from some call on."""

    def __init__(self, most):
        self.most, self.calls = most, 0

    def __call__(self, tensor):
        self.calls += 1
        if self.calls > self.most:
            raise ValueError("no more room")
        return tensor

    def method(self, tensor):
        return self(tensor)


@pytest.mark.parametrize("kind", ["object", "method", "partial", "function"])
def test_what_a_hook_raises_comes_out(kind):
    """Once: the region is not run again for it, with hooks that would be called again, and what it wrote stays written."""
    counting = Counting(0)
    pack = {
        "object": counting, "method": counting.method, "partial": functools.partial(counting),
        "function": lambda tensor: counting(tensor),
    }[kind]
    norm = nn.BatchNorm1d(3)
    compiled = compile_api.compile(lambda x: F.dropout(norm(x), 0.0))
    x = torch.randn(5, 3)
    compiled(x.requires_grad_())
    counting.calls = 0
    with saved_tensors_hooks(pack, lambda packed: packed), pytest.raises(ValueError, match="no more room"):
        compiled(x)
    assert counting.calls == 1 and norm.num_batches_tracked == 2
    assert not compiled.report().fallbacks
