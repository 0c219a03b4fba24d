"""``tensor.data = value``: set when the graph has run, in one graph where nothing else is done with the tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")


def _average(m, t, x):
    for p, q in zip(m.parameters(), t.parameters(), strict=True):
        q.data = q.data * 0.9 + p.data * 0.1


def _average_without_gradients(m, t, x):
    with torch.no_grad():
        for p, q in zip(m.parameters(), t.parameters(), strict=True):
            q.data = q * 0.9 + p * 0.1
    return x * 2


def _share(m, t, x):
    for p, q in zip(m.parameters(), t.parameters(), strict=True):
        q.data = p.data


def _exchange(m, t, x):
    a, b = m[0].weight, t[0].weight
    kept = a.data
    a.data = b.data
    b.data = kept


def _grow(m, t, x):
    m[2].bias.data = torch.ones(5) * x.sum()


def _keep_the_old(m, t, x):
    p = m[0].weight
    old = p.data
    p.data = old * 2
    old.add_(1)
    return old


def _after_a_write(m, t, x):
    with torch.no_grad():
        m[0].weight.add_(1)
    m[0].weight.data = m[0].weight.data * 2
    return x + 1


def _of_a_view(m, t, x):
    whole = torch.arange(24.0)
    m[0].weight.data = whole[12:].view(4, 3) * x.mean()


def _use(m, t, x):
    q = t[0].weight
    q.data = q.data * 2
    return q.sum()


def _run(m, t, x):
    for p, q in zip(m.parameters(), t.parameters(), strict=True):
        q.data = q.data * 0.9 + p.data * 0.1
    return t(x)


def _twice(m, t, x):
    p = m[0].weight
    p.data = p.data + 1
    p.data = p.data * 2


def _with_a_history(m, t, x):
    loss = (m(x) * m[0].weight.sum()).sum()
    m[0].weight.data = m[0].weight.data * 2
    loss.backward()
    return loss.detach()


def _ask_for_its_shape(m, t, x):
    m[2].bias.data = torch.ones(5) * x.sum()
    return x * m[2].bias.shape[0]


def _momentum_encoder(m, t, x):
    """A loss with a history beside the average of an encoder that has none."""
    t.requires_grad_(False)
    y = m(x)
    with torch.no_grad():
        for p, q in zip(m.parameters(), t.parameters(), strict=True):
            q.data = q.data * 0.9 + p.data * 0.1
    loss = y.pow(2).sum()
    loss.backward()
    return loss.detach()


def _average_then_run(m, t, x):
    for p, q in zip(m.parameters(), t.parameters(), strict=True):
        q.requires_grad_(False)
        q.data = q.data * 0.9 + p.data * 0.1
    return t(x)


def _average_then_loss(m, t, x):
    for p, q in zip(m.parameters(), t.parameters(), strict=True):
        q.requires_grad_(False)
        q.data = q.data * 0.9 + p.data * 0.1
    loss = (m(x) - t(x)).pow(2).mean()
    loss.backward()
    return loss.detach()


def _twice_without_gradients(m, t, x):
    q = t[0].weight.requires_grad_(False)
    q.data = q.data + x.mean()
    q.data = q * 2
    return q + 1, q.sum()


def _held_by_a_history(m, t, x):
    """The product holds the tensor itself, in whose new data eager finds its gradient."""
    q = t[2].bias.requires_grad_(False)
    loss = (m(x) * q).sum()
    q.data = q.data * 2
    loss.backward()
    return loss.detach()


def _written_before(m, t, x):
    q = t[2].bias.requires_grad_(False)
    q.mul_(2)
    old = q.data
    q.data = q * 3
    old.add_(1)
    return old + q


def _views_of_the_old(m, t, x):
    q = t[0].weight.requires_grad_(False)
    view = q[0]
    q.data = q.data * 2
    return view + q[0]


def _returned(m, t, x):
    q = t[0].weight.requires_grad_(False)
    q.data = q.data * 2
    return q


def _inside_a_checkpoint(m, t, x):
    p = m[0].weight
    p.data = p.data * 2
    return torch.utils.checkpoint.checkpoint(lambda y: (y @ p.t()).sin(), x, use_reentrant=False)


ALONE = [
    _average, _average_without_gradients, _share, _exchange, _grow, _keep_the_old, _after_a_write, _of_a_view,
    _momentum_encoder, _average_then_run, _average_then_loss, _twice_without_gradients, _views_of_the_old, _returned,
    _use, _run, _twice, _inside_a_checkpoint, _written_before,
]  # fmt: skip
BROKEN = [_ask_for_its_shape, _with_a_history, _held_by_a_history]


@pytest.mark.parametrize("program", [*ALONE, *BROKEN], ids=lambda fn: fn.__name__.strip("_"))
def test_data(program):
    def run(call):
        torch.manual_seed(0)
        m, t = (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2))
        numbers, facts = [], []
        for k in range(3):
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(k))
            result = call(m, t, x)
            both = (*m.parameters(), *t.parameters())
            numbers += [p.detach().clone() for p in both]
            numbers += [p.grad.clone() for p in both if p.grad is not None]
            numbers += [each.detach().clone() for each in (result if isinstance(result, tuple) else (result,)) if each is not None]
            facts.append([p.data_ptr() == q.data_ptr() for p in both for q in both])
            facts.append([(p._version, p.requires_grad, p.is_leaf, p.grad is None) for p in both])
            if program is _grow or program is _ask_for_its_shape:
                break  # the model takes no input any more
        return numbers, facts

    compiled = compile_api.compile(program)
    (ours, facts), (theirs, expected) = run(compiled), run(program)
    assert facts == expected
    torch.testing.assert_close(ours, theirs)
    report = compiled.report()
    if program in ALONE:
        assert report.verdict == "compiled", report
    else:
        assert report.breaks, report


class Renewing(nn.Module):
    """A layer whose weight is given other data before it is used, as adapters, margins and normalised weights do."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x):
        weight = self.layer.weight
        if self.kind == "scaled":
            weight.data = weight.data * 0.99
        elif self.kind == "added to":
            weight.data += 0.01 * torch.ones(4, 4)
        elif self.kind == "normalised":
            weight.data = nn.functional.normalize(weight.data, dim=1)
        elif self.kind == "without gradients":
            with torch.no_grad():
                weight.data = weight.data.clamp(-0.1, 0.1)
        elif self.kind == "its own":
            weight.data = weight.data
        elif self.kind == "of an input":
            weight.data = x[:4].detach() * 1
        elif self.kind == "twice":
            weight.data = weight.data * 2
            weight.data = weight.data + 1
        return self.layer(x) if weight.is_leaf and weight.grad_fn is None else None


@pytest.mark.parametrize("kind", ["scaled", "added to", "normalised", "without gradients", "its own", "of an input", "twice"])
def test_a_parameter_leads_to_its_new_data(kind):
    torch.manual_seed(0)
    model = Renewing(kind)
    other = copy.deepcopy(model)
    compiled = compile_api.compile(other)
    for _ in range(3):
        x = torch.randn(5, 4)
        for run, net in ((model, model), (compiled, other)):
            net.zero_grad()
            run(x).square().sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
        for mine, its in zip(other.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, its)
            torch.testing.assert_close(mine.grad, its.grad)
    assert compiled.report().verdict == "compiled" and not compiled.report().breaks


class SharpnessAware:
    """SAM's two steps, as its implementations write them: up the slope, and from where the weights were."""

    def __init__(self, parameters, base):
        self.parameters, self.base = list(parameters), base
        self.state = {parameter: {} for parameter in self.parameters}

    @torch.no_grad()
    def first(self):
        norm = torch.norm(torch.stack([parameter.grad.norm() for parameter in self.parameters]))
        for parameter in self.parameters:
            self.state[parameter]["old"] = parameter.data.clone()
            parameter.add_(parameter.grad * (0.05 / (norm + 1e-12)))
            parameter.grad = None

    @torch.no_grad()
    def second(self):
        for parameter in self.parameters:
            parameter.data = self.state[parameter]["old"]
        self.base.step()
        for parameter in self.parameters:
            parameter.grad = None


def sharpness_aware_step(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.first()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.second()
    return loss


@pytest.mark.parametrize("base", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.01)])
def test_a_sharpness_aware_step_is_one_graph(base):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    other = copy.deepcopy(model)
    optimizers = [SharpnessAware(each.parameters(), base(each.parameters())) for each in (model, other)]
    compiled = compile_api.compile(sharpness_aware_step)
    for _ in range(4):
        x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
        wanted = sharpness_aware_step(model, optimizers[0], x, y)
        torch.testing.assert_close(compiled(other, optimizers[1], x, y), wanted)
        for mine, its in zip(other.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, its)
    assert compiled.report().verdict == "compiled" and not compiled.report().breaks


def test_what_is_computed_before_keeps_eagers_data():
    """A backward pass that is still to come reads a leaf's new data in eager: the graph ends before they are set."""

    def run(weight, x):
        before = weight * x
        weight.data = weight.data * 3
        return before.sum()

    found = []
    for each in (run, compile_api.compile(run)):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3, 3))
        x = torch.randn(3, 3, requires_grad=True)
        each(weight, x).backward()
        found.append([weight.detach(), weight.grad, x.grad])
    torch.testing.assert_close(found[1], found[0])
