"""What the program's ``saved_tensors_hooks`` see of a compiled region: each tensor that it saves, once."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

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
    h = x * 2
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
