"""``backward()`` inside compiled functions: gradients are accumulated as in eager, and whole training steps are one graph."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from reports import captured
from torch import nn

import compile_api

DOUBLE = torch.float64


def _model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3).to(memory_format=torch.channels_last), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4), nn.Tanh(),
        nn.Linear(4, 3),
    ).to(DOUBLE)  # fmt: skip


def _loss(model, x, y):
    return F.cross_entropy(model(x), y)


def _accumulates(model, optimizer, x, y):
    loss = _loss(model, x, y)
    loss.backward()
    return loss


def _sets(model, optimizer, x, y):
    optimizer.zero_grad()
    _loss(model, x, y).backward()
    return sum(p.grad.pow(2).sum() for p in model.parameters())


def _steps(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = _loss(model, x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


def _steps_by_parts(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)
    for half in (slice(0, 3), slice(3, 6)):
        (_loss(model, x[half], y[half]) / 2).backward()
    optimizer.step()


def _several_losses(model, optimizer, x, y):
    optimizer.zero_grad()
    hidden = model[:4](x)
    first, second = hidden.pow(2).sum(), model[4:](hidden).sin()
    first.backward(retain_graph=True)
    torch.autograd.backward([second, hidden], [torch.ones_like(second), hidden.detach()])
    optimizer.step()
    return second.detach()


def _frozen(model, optimizer, x, y):
    optimizer.zero_grad()
    with torch.no_grad():
        hidden = model[:4](x)
    loss = F.cross_entropy(model[4:](hidden), y)
    loss.backward()
    optimizer.step()
    return [p.grad is None for p in model.parameters()]


def _layout(x):
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("program", [_accumulates, _sets, _steps, _steps_by_parts, _several_losses, _frozen],
                         ids=lambda f: f.__name__.strip("_"))  # fmt: skip
def test_steps(program):
    runs = []
    for compiles in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        call = compile_api.compile(program, fullgraph=True) if compiles else program
        x, y = torch.randn(6, 1, 4, 4, dtype=DOUBLE), torch.randint(0, 3, (6,))
        results = [call(model, optimizer, x, y) for _ in range(4)]
        gradients = [p.grad for p in model.parameters()]
        runs.append((results, list(model.parameters()), gradients, [g is not None and _layout(g) for g in gradients]))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-9, atol=1e-11)
    report = call.report()
    assert report.verdict == "compiled" and not report.breaks and not report.fallbacks and report.kernels
    assert len(captured(report)) <= 2  # the first step makes gradients or the optimizer's state


def test_gradients_are_tensors_of_their_own():
    def program(a, b, c):
        (a + b).sum().backward()
        c.view(-1).backward(c.detach().view(-1) * 2)
        return a.grad

    runs = []
    for call in (program, compile_api.compile(program, fullgraph=True)):
        a, b, c = (torch.ones(2, 3, requires_grad=True) for _ in range(3))
        assert call(a, b, c) is a.grad
        c.grad.add_(1)
        a.grad.mul_(5)
        assert torch.equal(c, torch.ones(2, 3))
        runs.append([(x.grad.clone(), x.grad.stride()) for x in (a, b, c)])
    torch.testing.assert_close(runs[0], runs[1])


def test_a_second_backward_pass_raises():
    def program(w):
        loss = w.sin().sum()
        loss.backward()
        return loss

    for call in (program, compile_api.compile(program, fullgraph=True)):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            call(torch.ones(3, requires_grad=True)).backward()


def _told(w, log):
    w.register_hook(lambda gradient: gradient * 10)


def _told_after(w, log):
    w.register_post_accumulate_grad_hook(lambda tensor: log.append(tensor.grad.clone()))


@pytest.mark.parametrize("kind", ["backward", "grad"])
def test_a_pass_that_is_refused_for_a_write_frees_nothing(kind):
    """What autograd says is what eager says: the graph is retained, and a weight has been written since."""
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4)

    def fn():
        h = (x @ weight).tanh() @ weight
        h.pow(2).sum().backward(retain_graph=True)
        with torch.no_grad():
            weight.mul_(0.5)
        if kind == "backward":
            h.sum().backward()
        else:
            torch.autograd.grad(h.sum(), weight)

    compiled = compile_api.compile(fn)
    for each in (fn, compiled, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            each()


@pytest.mark.parametrize("tell", [_told, _told_after])
def test_hooks_that_come_later(tell):
    def program(w):
        (w * 2).sum().backward()
        return w + 1

    runs = []
    for call in (program, compile_api.compile(program)):
        w, log = torch.ones(3, requires_grad=True), []
        call(w)
        tell(w, log)
        call(w)
        runs.append((w.grad, log))
    torch.testing.assert_close(runs[0], runs[1])


def test_what_was_computed_before():
    def program(h):
        (h * h).sum().backward()
        return h * 2

    runs = []
    for call in (program, compile_api.compile(program)):
        w = torch.ones(3, requires_grad=True)
        call(w.detach().requires_grad_())  # a leaf first
        call(w * 3)
        runs.append(w.grad)
    torch.testing.assert_close(runs[0], runs[1])


def test_gradients_with_a_history():
    def program(w):
        (w**3).sum().backward(create_graph=True)
        return w.grad.pow(2).sum()

    runs = []
    for call in (program, compile_api.compile(program)):
        w = torch.full((3,), 2.0, requires_grad=True)
        runs.append(torch.autograd.grad(call(w), w)[0])
    torch.testing.assert_close(runs[0], runs[1])


def _penalty(model, x):
    """The norm of the gradients is part of the loss."""
    loss = model(x).square().mean()
    loss.backward(create_graph=True)
    norm = sum(p.grad.square().sum() for p in model.parameters())
    model.zero_grad()
    (loss + 0.1 * norm).backward()
    return loss.detach()


def _twice(model, x):
    """A second pass adds to gradients that have a history, out of place."""
    loss = model(x).square().mean()
    loss.backward(create_graph=True)
    before = [p.grad for p in model.parameters()]
    torch.autograd.backward(loss.exp(), create_graph=True)
    assert all(p.grad is not b for p, b in zip(model.parameters(), before, strict=True))
    return sum((p.grad - b).square().sum() for p, b in zip(model.parameters(), before, strict=True))


def _left_behind(model, x):
    """What the caller differentiates is behind ``grad``."""
    model(x).exp().mean().backward(create_graph=True)


def _product(model, x):
    """A Hessian times a vector, by the gradients that a pass leaves."""
    model(x).tanh().sum().backward(create_graph=True)
    held = [p.grad for p in model.parameters()]
    model.zero_grad()
    return torch.autograd.grad(sum(h.sum() for h in held if h.requires_grad), list(model.parameters()), allow_unused=True)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
@pytest.mark.parametrize("program", [_penalty, _twice, _left_behind, _product], ids=lambda f: f.__name__.strip("_"))
def test_gradients_that_can_be_differentiated(program):
    found = []
    for compiles in (False, True):
        model = _model()
        f = compile_api.compile(program, fullgraph=True) if compiles else program
        x = torch.randn(6, 1, 4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
        seen = []
        for _ in range(3):
            results = f(model, x)
            grads = [p.grad for p in model.parameters()]
            seen += [results, [g if g is None else (g.detach().clone(), g.requires_grad, g.stride()) for g in grads]]
            if program is _left_behind:
                behind = sum(g.square().sum() for g in grads if g.requires_grad)
                seen.append(torch.autograd.grad(behind, list(model.parameters()), allow_unused=True))
            if program is not _penalty:
                model.zero_grad()
        found.append(seen)
    torch.testing.assert_close(*found)
    report = f.report()
    assert report.verdict == "compiled" and not report.breaks and not report.fallbacks and report.kernels


# ---- inputs, hooks, several optimizers -------------------------------------------------------------------------------


def _to_some(model, optimizer, x, y):
    optimizer.zero_grad()
    _loss(model, x, y).backward(inputs=[model[3].weight, model[0].bias])
    optimizer.step()
    torch.autograd.backward([_loss(model, x, y)], inputs=model[5].weight)


def _step_by_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = _loss(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _gradient_hooks(model, optimizer):
    model[0].weight.register_hook(lambda gradient: gradient * 0.5)
    model[0].weight.register_hook(lambda gradient: None)
    model[5].bias.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def _logging_hooks(model, optimizer):
    """They are called in the order in which autograd comes to the leaves."""
    log = model.__dict__["log"] = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: log.append(name))
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: log.append((name, tuple(p.grad.shape))))


def _hooks_after(model, optimizer):
    def scale(parameter):
        parameter.grad.mul_(0.5)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(scale)


def _optimizer_in_backward(model, optimizer):
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("prepare", [None, _gradient_hooks, _logging_hooks, _hooks_after, _optimizer_in_backward])
@pytest.mark.parametrize("program", [_to_some, _step_by_step, _steps_by_parts])
def test_hooks_and_inputs(program, prepare):
    runs = []
    for compiles in (False, True):
        model = _model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        if prepare is not None:
            prepare(model, optimizer)
        call = compile_api.compile(program, fullgraph=True) if compiles else program
        x, y = torch.randn(6, 1, 4, 4, dtype=DOUBLE), torch.randint(0, 3, (6,))
        results = [call(model, optimizer, x, y) for _ in range(4)]
        gradients = [p.grad for p in model.parameters()]
        runs.append((results, list(model.parameters()), gradients, model.__dict__.get("log")))
    assert runs[0][3] == runs[1][3]
    torch.testing.assert_close(runs[0][:3], runs[1][:3], rtol=1e-9, atol=1e-11)
    report = call.report()
    assert report.verdict == "compiled" and not report.breaks and not report.fallbacks and report.kernels
    assert len(captured(report)) <= 3 or prepare is _logging_hooks  # whose list has another length in each step


def test_hooks_that_eager_refuses():
    def program(w):
        (w * 2).sum().backward()

    errors = []
    for call in (program, compile_api.compile(program)):
        w = torch.ones(3, requires_grad=True)
        w.register_post_accumulate_grad_hook(lambda parameter: parameter.grad * 2)
        with pytest.raises(RuntimeError, match="should return None") as caught:
            call(w)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_patterns_of_gradients_that_repeat():
    """A parameter that gets no gradient in some steps: each pattern is captured once."""

    def program(model, optimizer, x, whole):
        optimizer.zero_grad()
        (model(x) if whole else model[:4](x)).pow(2).sum().backward()
        optimizer.step()

    runs = []
    for compiles in (False, True):
        model = _model()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        call = compile_api.compile(program, fullgraph=True) if compiles else program
        x = torch.randn(6, 1, 4, 4, dtype=DOUBLE)
        counts = []
        for n in range(12):
            call(model, optimizer, x, n % 3 != 1)
            counts.append(len(captured(call.report())) if compiles else 0)
        runs.append(list(model.parameters()))
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-11)
    assert counts[-1] == counts[6], counts


def test_two_optimizers_of_a_game():
    def program(maker, judge, optimizers, x, noise):
        made = maker(noise)
        optimizers[1].zero_grad()
        real, false = judge(x), judge(made.detach())
        (F.softplus(-real).mean() + F.softplus(false).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.softplus(-judge(made)).mean().backward()
        optimizers[0].step()

    runs = []
    for compiles in (False, True):
        torch.manual_seed(0)
        maker, judge = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, n)).to(DOUBLE) for n in (4, 1))
        optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (maker, judge)]
        call = compile_api.compile(program, fullgraph=True) if compiles else program
        for _ in range(5):
            call(maker, judge, optimizers, torch.randn(6, 4, dtype=DOUBLE), torch.randn(6, 4, dtype=DOUBLE))
        parameters = [*maker.parameters(), *judge.parameters()]
        runs.append((parameters, [p.grad for p in parameters]))
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-11)
    assert len(captured(call.report())) <= 2, str(call.report())


def test_to_leaves_made_inside():
    """Examples of losses do so; each broke the graph at ``backward()``."""

    def fn(target):
        x = torch.ones(3, 5, requires_grad=True)
        loss = torch.nn.functional.smooth_l1_loss(x * 2, target)
        loss.backward()
        return loss, x.grad

    compiled = compile_api.compile(fn, fullgraph=True)
    for seed in range(2):
        target = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))
        for ours, theirs in zip(compiled(target), fn(target), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert not compiled.report().breaks and not compiled.report().fallbacks


#: name -> what ``inputs`` of ``torch.autograd.grad`` may be: anything that gives tensors.
INPUTS = {
    "a dict's values": lambda w: w.values(),
    "a generator": lambda w: (v for v in w.values()),
    "map": lambda w: map(w.get, w),
    "one tensor": lambda w: w["a"],
    "a list": lambda w: [*w.values()],
    "a chain": lambda w: itertools.chain([w["b"]], [w["a"]]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_derivatives_by_anything_that_gives_tensors(name):
    def step(w, x):
        loss = (w["a"] * w["b"] * x).square().sum()
        outputs, seeds = (y for y in [loss, loss * 2]), iter([x.sum(), x.prod()])
        return torch.autograd.grad(outputs, INPUTS[name](w), seeds)

    w = {k: torch.arange(1.0, 4.0).add(n).requires_grad_() for n, k in enumerate("ab")}
    compiled, x = compile_api.compile(step, fullgraph=True), torch.linspace(1, 2, 3)
    for ours, theirs in zip(compiled(w, x), step(w, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert compiled.report().kernels


def _appended(loss, kept):
    kept.append(loss.detach())
    return loss.detach()


def _kept_as_attribute(loss, kept):
    kept.last = loss.detach()
    return loss, loss.detach()


class _Kept(list):
    last = None


ALIKE = {
    "appended": _appended,
    "kept": _kept_as_attribute,
    "two": lambda loss, kept: (loss.detach(), loss.detach()),
    "loss first": lambda loss, kept: (loss, loss.detach()),
    "data": lambda loss, kept: (loss.data, loss.data),
    "views": lambda loss, kept: (loss.detach().view(1), loss.detach(), loss.view(1, 1)),
    "named": lambda loss, kept: {"loss": loss.detach(), "again": loss.detach(), "exp": loss.detach().exp()},
}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("name", ALIKE)
def test_results_that_share_the_losss_memory(name, retain):
    """A step whose history has been used up, or written over, gives them all; a second pass says what eager's says."""

    def run(wrap):
        model, kept = _model(), _Kept()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = _loss(model, x, y)
            loss.backward(retain_graph=retain)
            optimizer.step()
            return ALIKE[name](loss, kept)

        call, made = wrap(step), []
        for seed in range(3):
            torch.manual_seed(seed)
            result = call(torch.randn(4, 1, 4, 4, dtype=DOUBLE), torch.tensor([0, 1, 2, 0]))
            results = list(result.values()) if isinstance(result, dict) else result
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            made += [*results, *([] if kept.last is None else [kept.last]), *kept[-1:]]
        shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in made for b in made]
        errors = []
        for each in made:
            if each.requires_grad:
                with pytest.raises(RuntimeError) as caught:
                    each.sum().backward()
                errors.append(str(caught.value)[:60])
        return made, shared, errors, [p.detach().clone() for p in model.parameters()], call

    ours, theirs = run(compile_api.compile), run(lambda step: step)
    assert [x.requires_grad for x in ours[0]] == [x.requires_grad for x in theirs[0]]
    torch.testing.assert_close([x.detach() for x in ours[0]], [x.detach() for x in theirs[0]])
    assert ours[1:3] == theirs[1:3]
    torch.testing.assert_close(ours[3], theirs[3])
    assert ours[4].report().verdict == "compiled", ours[4].report()


def test_a_batch_of_tangents_is_left_to_eager_for_its_call():
    """``is_grads_batched`` calls the backward pass with tensors that stand for a batch; later passes are compiled."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    compiled, x = compile_api.compile(model), torch.randn(2, 4, requires_grad=True)
    unit = torch.eye(6).view(6, 2, 3)
    for _ in range(2):
        with pytest.warns(compile_api.CompileWarning, match="batch of tangents") if _ == 0 else nullcontext():
            (ours,) = torch.autograd.grad(compiled(x), x, unit, is_grads_batched=True)
        (theirs,) = torch.autograd.grad(model(x), x, unit, is_grads_batched=True)
        torch.testing.assert_close(ours, theirs)
    ours, theirs = (torch.autograd.grad(call(x).sum(), x) for call in (compiled, model))
    torch.testing.assert_close(ours, theirs)
    (record,) = compiled.report().fallbacks
    assert "report" not in (record.todo or "") and "internal" not in record.reason


@pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")
@pytest.mark.parametrize("which", ["bias", "all", "thawed"])
def test_parameters_frozen_after_their_use(which):
    """Nothing is accumulated in them, and gradients with a history of their own pass where they were used."""

    def make():
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 1)

        def program(x, whole):
            out = layer(x) * x
            (layer if which == "all" else layer.bias).requires_grad_(False)
            y = out * x
            if which == "thawed":
                layer.bias.requires_grad_(True)
            if not whole:
                float(out.sum())  # the region ends here
            out.sum().backward(retain_graph=True)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return gradient.sum()

        return layer, program

    for whole in (True, False):
        found = []
        for compiles in (False, True):
            layer, program = make()
            run = compile_api.compile(program) if compiles else program
            for _ in range(3):
                x = torch.ones(3, 4, requires_grad=True)
                loss = run(x, whole)
                loss.backward()
                found.append([loss.detach(), x.grad, *[p.grad for p in layer.parameters()]])
        torch.testing.assert_close(found[3:], found[:3])
        if whole:
            assert run.report().verdict == "compiled", run.report()
