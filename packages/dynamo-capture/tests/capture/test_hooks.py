"""Hooks that a region sets, on modules and tensors: in one graph, with eager's results, gradients and hooks left behind."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
from torch import nn

LOG = []


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


# --- modules ----------------------------------------------------------------------------------------------------------


def features(m, x):
    found = {}
    handles = [each.register_forward_hook(lambda m, i, o, at=at: found.__setitem__(at, o)) for at, each in enumerate(m)]
    y = m(x)
    for handle in handles:
        handle.remove()
    return y, list(found.values()), m(x)


def before(m, x):
    handle = m[1].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    try:
        return m(x)
    finally:
        handle.remove()


def as_a_context(m, x):
    with m[0].register_forward_hook(lambda m, i, o: o + 1), m[2].register_forward_pre_hook(lambda m, i: (-i[0],)):
        y = m(x)
    return y + m(x)


def with_keywords(m, x):
    a = m.register_forward_hook(lambda m, args, kwargs, out: out * 2, with_kwargs=True, prepend=True)
    b = m.register_forward_hook(lambda m, args, out: out + 1, always_call=True, prepend=True)
    y = m(x)
    a.remove()
    z = m(x)
    b.remove()
    return y, z, m(x)


def removed_twice(m, x):
    handle = m.register_forward_hook(lambda m, args, out: out * 2)
    handle.remove()
    handle.remove()
    return m(x)


def left_behind(m, x):
    m[0].register_forward_hook(lambda m, i, o: o * 2)
    return m(x)


def handle_given(m, x):
    handle = m[1].register_forward_hook(lambda m, i, o: o * 2)
    return m(x), handle


@pytest.mark.parametrize("program", [features, before, as_a_context, with_keywords, removed_twice])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hooks_on_modules(capture, program, dtype):
    m = net().to(dtype)
    compiled, x = capture(lambda x: program(m, x)), torch.randn(2, 4, dtype=dtype)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), program(m, x))
        assert not any(each._forward_hooks or each._forward_pre_hooks for each in m.modules())
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


@pytest.mark.parametrize("program", [left_behind, handle_given])
def test_hooks_that_stay(capture, program):
    ours, theirs, x = net(), net(), torch.randn(2, 4)
    compiled = capture(program, strict=False)
    for at in range(3):
        found, wanted = compiled(ours, x), program(theirs, x)
        hooks = [[len(each._forward_hooks) for each in m.modules()] for m in (ours, theirs)]
        assert hooks[0] == hooks[1] and sum(hooks[0]) == at + 1
        if program is handle_given:
            numbers = list(ours[1]._forward_hooks)
            assert numbers == sorted(set(numbers)) and found[1].id == numbers[-1]
            found, wanted = found[0], wanted[0]
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(ours(x), theirs(x))
    assert compiled.report.breaks == []
    if program is handle_given:
        found = compiled(ours, x)[1]
        found.remove()
        assert len(ours[1]._forward_hooks) == 3


def test_a_number_of_a_handle_is_not_another_handles(capture):
    m, x = net(), torch.randn(2, 4)
    compiled = capture(lambda x: handle_given(m, x)[1], strict=False)
    handles = [compiled(x), m[1].register_forward_hook(lambda m, i, o: None), compiled(x)]
    assert len({handle.id for handle in handles}) == 3 == len(m[1]._forward_hooks)


# --- tensors ----------------------------------------------------------------------------------------------------------


def scaled(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * 0.5)
    return (y * 3).sum() + (y * y).sum()


def clamped_by(x):
    limit = x.detach().abs().amax()
    y = x * 10
    y.register_hook(lambda grad: grad.clamp(-limit, limit) * y.detach())
    return (y.exp() * 1e-3).sum()


def twice(x):
    y = x.sin()
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad * 2)
    return y.sum()


def twice_and_much_behind(x):
    made = []
    for at in range(8):
        y = x.sin()
        y.register_hook(lambda grad: grad + 1)
        y.register_hook(lambda grad: grad * 2)
        made += [y.cos() + at, y.exp(), x.cos() * at]
    return torch.stack(made).sum(0)


def unchanged(x):
    y = x.sin()
    y.register_hook(lambda grad: None)
    return y.sum()


def both_parts(x):
    a, b = x.split(2)
    a.register_hook(lambda grad: grad * 5)
    return (a * b).sum()


def given_back(x):
    y = x.cos()
    y.register_hook(lambda grad: grad * 7)
    return y


def on_input(x):
    x.register_hook(lambda grad: grad * 2)
    return (x * 3).sum()


def on_computed_input(x):
    z = x * 1
    torch._assert(True, "")
    z.register_hook(lambda grad: grad - 1)
    return z.sum()


def removed_from_input(x):
    handle = x.register_hook(lambda grad: grad * 2)
    y = (x * 3).sum()
    handle.remove()
    return y


def as_a_context_of_a_tensor(x):
    with x.register_hook(lambda grad: grad * 2):
        y = x * 3
    return y.sum()


def with_backward(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * 3)
    (y * y).sum().backward()
    return y.detach()


def logged_on_input(x):
    x.register_hook(lambda grad: LOG.append(grad))
    return (x * x).sum()


def halved(grad, depth):
    return grad if depth == 0 else added(grad * 0.5, depth - 1)


def added(grad, depth):
    return grad if depth == 0 else halved(grad + 1, depth - 1)


def of_one_another(x):
    y = x.sin()
    y.register_hook(lambda grad: halved(grad, 3))
    return y.sum()


ONE_GRAPH = (scaled, clamped_by, twice, twice_and_much_behind, unchanged, both_parts, on_input, on_computed_input,
             removed_from_input, as_a_context_of_a_tensor, with_backward, logged_on_input, of_one_another)  # fmt: skip


def removed(x):
    y = x.sin()
    handle = y.register_hook(lambda grad: grad * 3)
    z = (y * 2).sum()
    handle.remove()
    return z


def kept(x):
    y = x.sin()
    return [y.register_hook(lambda grad: grad * 3), (y * 2).sum()][1]


def handed_on(x):
    y = x.sin()
    return (y * 2).sum(), y.register_hook(lambda grad: grad * 3)


def saved(x):
    y = x.sin()
    y.register_hook(lambda grad: LOG.append(grad))
    return (y * 2).sum()


def used_before(x):
    y = x.sin()
    z = y * 2
    y.register_hook(lambda grad: grad * 3)
    return z.sum()


def written_after(x):
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    y.mul_(2)
    return y.sum()


def input_written_after(x):
    x = x * 1
    return input_written(x)


def input_written(x):
    x.register_hook(lambda grad: grad * 3)
    x.mul_(2)
    return x.sum()


def input_with_backward(x):
    x.register_hook(lambda grad: grad * 3)
    (x * x).sum().backward()
    return x.detach() * 2


IN_PARTS = (removed, given_back, handed_on, saved, used_before, input_with_backward)


def gradient(run, x):
    LOG.clear()
    out = run(x)
    out = out[0] if isinstance(out, tuple) else out
    if out.requires_grad:
        (out * torch.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
    return out.detach(), x.grad, [each.clone() for each in LOG]


def leaf(dtype=torch.float32):
    return torch.linspace(-1, 1, 4, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hooks_on_tensors(capture, program, dtype):
    compiled = capture(program)
    for _ in range(3):
        found, wanted = gradient(compiled, leaf(dtype)), gradient(program, leaf(dtype))
        torch.testing.assert_close(found, wanted)
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


def test_what_two_hooks_leave_behind_is_no_other_tensors(capture):
    """A tensor that two hooks leave behind has no identity that another may get."""
    for _ in range(5):
        compiled = capture(twice_and_much_behind)
        found, wanted = gradient(compiled, leaf()), gradient(twice_and_much_behind, leaf())
        torch.testing.assert_close(found, wanted)
        assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


@pytest.mark.parametrize("program", [*IN_PARTS, kept, written_after, input_written_after], ids=lambda fn: fn.__name__)
def test_hooks_for_which_the_region_ends(capture, program):
    compiled = capture(program, strict=False)
    for _ in range(3):
        torch.testing.assert_close(gradient(compiled, leaf()), gradient(program, leaf()))
    assert (program not in IN_PARTS) or compiled.report.breaks


# --- what a hook reads is read when it is called -----------------------------------------------------------------------


class Settings:
    factor = 2.0


SETTINGS, NUMBERS = Settings(), {0: 2.0}
FACTOR = 2.0


def later_value(x):
    factor = 2.0
    y = x.sin()
    y.register_hook(lambda grad: grad * factor)
    factor = 3.0
    return y.sum()


def last_of_a_loop(x):
    for at in range(1, 4):
        x = x.sin()
        x.register_hook(lambda grad: grad * at)  # noqa: B023
    return x.sum()


def each_of_a_loop(x):
    for at in range(1, 4):
        x = x.sin()
        x.register_hook(lambda grad, at=at: grad * at)
    return x.sum()


def later_tensor(x):
    factor = x.detach() * 2
    y = x.sin()
    y.register_hook(lambda grad: grad * factor)
    factor = factor + 5
    return y.sum()


def later_in_an_inlined_function(x):
    return last_of_a_loop(x) * 2


def later_by_another_function(x):
    factor = 2.0

    def change():
        nonlocal factor
        factor = 7.0

    y = x.sin()
    y.register_hook(lambda grad: grad * factor)
    change()
    return y.sum()


def of_a_global(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * FACTOR)
    return y.sum()


def of_an_attribute(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * SETTINGS.factor)
    return y.sum()


def of_a_class(x):
    y = x.sin()
    y.register_hook(lambda grad: grad * Settings.factor)
    return y.sum()


def of_an_item(x):
    numbers = NUMBERS
    y = x.sin()
    y.register_hook(lambda grad: grad * numbers[0])
    return y.sum()


def by_a_helper(x):
    y = x.sin()
    y.register_hook(lambda grad: helped(grad))
    return y.sum()


def helped(grad):
    return grad * FACTOR


def by_a_plain_helper(x):
    y = x.sin()
    y.register_hook(functools.partial(clamped, 0.3))
    return y.sum()


def clamped(limit, grad):
    return torch.clamp(grad, -limit, abs(limit))


READING = (later_value, last_of_a_loop, each_of_a_loop, later_tensor, later_in_an_inlined_function,
           later_by_another_function, of_a_global, of_an_attribute, of_a_class, of_an_item, by_a_helper,
           by_a_plain_helper)  # fmt: skip


@pytest.mark.parametrize("program", READING, ids=lambda fn: fn.__name__)
def test_a_hook_reads_when_it_is_called(capture, monkeypatch, program):
    compiled = capture(program, strict=False)
    for value in (2.0, 5.0, 3.0):
        found = []
        for run in (compiled, program):
            x = leaf()
            out = run(x)
            with monkeypatch.context() as patch:
                patch.setitem(globals(), "FACTOR", value)
                patch.setattr(Settings, "factor", value)
                patch.setitem(NUMBERS, 0, value)
                out.backward()
            found.append(x.grad)
        torch.testing.assert_close(*found)
    one_graph = program in (each_of_a_loop, by_a_plain_helper)
    assert (compiled.report.breaks == []) is one_graph


def test_hooks_on_all_modules(capture):
    def fn(m, x):
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o + 1)
        try:
            y = m(x)
        finally:
            handle.remove()
        return y, m(x)

    m, x = net(), torch.randn(2, 4)
    compiled = capture(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(m, x), fn(m, x))
        assert not nn.modules.module._global_forward_hooks
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


def test_an_input_that_is_written_later(capture):
    compiled, found = capture(input_written, strict=False), []
    for run in (compiled, input_written, compiled):
        x = leaf()
        run(x * 1).backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[1]) and torch.equal(found[2], found[1])


def test_gradients_after_accumulation(capture):
    def fn(p, x):
        p.register_post_accumulate_grad_hook(lambda p: LOG.append(p.grad.clone()))
        return (p * x).sum()

    compiled = capture(fn)
    for run in (compiled, fn):
        LOG.clear()
        p = nn.Parameter(torch.ones(4))
        run(p, torch.arange(4.0)).backward()
        assert len(LOG) == 1 and torch.equal(LOG[0], torch.arange(4.0))
    assert compiled.report.breaks == []


def test_the_order_of_hooks_inside_and_outside(capture):
    compiled, found = capture(given_back, strict=False), []
    for run in (compiled, given_back):
        x = leaf()
        y = run(x)
        y.register_hook(lambda grad: grad + 1)
        y.sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_a_tensor_that_needs_no_gradient(capture):
    for program in (scaled, on_input):
        with pytest.raises(RuntimeError, match="gradient"):
            capture(program, strict=False)(torch.ones(4))


def test_threads(capture):
    compiled, found = capture(scaled), {}

    def work(at):
        found[at] = []
        for _ in range(10):
            x = torch.full((4,), float(at)).requires_grad_()
            compiled(x).backward()
            found[at].append(x.grad)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, grads in found.items():
        x = torch.full((4,), float(at)).requires_grad_()
        scaled(x).backward()
        assert len(grads) == 10 and all(torch.allclose(grad, x.grad) for grad in grads)


# --- what a tensor's grad_fn is asked ---------------------------------------------------------------------------------


def asked(x):
    y = x * 2
    function = y.grad_fn
    if function is None or None is y.grad_fn:
        return y + 1
    return y + (2 if function else 3) + (x.grad_fn is None) + (y.detach().grad_fn is None)


def of_an_input(x):
    return (x + (1 if x.grad_fn is None else 2)) * (1 if x.is_leaf else 3)


def test_whether_there_is_a_grad_fn(capture):
    for program in (asked, of_an_input):
        compiled = capture(program)
        for make in (leaf, lambda: leaf().detach(), lambda: leaf() * 2):
            for _ in range(2):
                torch.testing.assert_close(compiled(make()), program(make()))
        assert compiled.report.breaks == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: [(y := x * 2), y.grad_fn.name()][1],
        lambda x: type((x * 2).grad_fn).__name__,
        lambda x: (x * 2).grad_fn,
        lambda x: (x * 2, x.grad_fn),
        lambda x: {(x * 2).grad_fn: 1},
        lambda x: (x * 2).grad_fn.next_functions[0][0],
    ],
    ids=["name", "type", "given", "of_an_input", "key", "next"],
)
def test_what_is_seen_of_a_grad_fn_is_eagers(capture, fn):
    compiled = capture(fn, strict=False)
    for make in (leaf, lambda: leaf() * 2):
        found, wanted = compiled(make()), fn(make())
        assert type(found) is type(wanted)
        if isinstance(found, tuple):
            assert type(found[1]) is type(wanted[1])
        if isinstance(found, str):
            assert found == wanted


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_module_with_backward_hooks_ends_the_graph_alone(capture, register):
    ours, theirs = net(), net()
    for m in (ours, theirs):
        getattr(m[1], register)(lambda m, *grads: LOG.append(grads))
    compiled, x = capture(ours), torch.randn(2, 4)
    for _ in range(2):
        found = []
        for run in (compiled, theirs):
            LOG.clear()
            out = run(x).sum()
            out.backward()
            found.append((out.detach(), [p.grad for p in run_parameters(run, ours)], len(LOG), LOG[0][0]))
        torch.testing.assert_close(*found)
        ours.zero_grad()
        theirs.zero_grad()
    assert {brk.reason for brk in compiled.report.breaks} == {
        "autograd is driven from inside the region: backward hooks of a Tanh module [QB12]"
    }
    assert len(compiled.report.graphs) == 3 and compiled.report.fallbacks == []
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), theirs(x))


def run_parameters(run, ours):
    return list(run.parameters() if isinstance(run, nn.Module) else ours.parameters())
