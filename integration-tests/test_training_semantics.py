"""How autograd is used around and inside compiled code, construct by construct, as in eager.

Each case is a program that gets ``compiled``, a function that compiles (or, for the expected outcome, does nothing). Its
result is compared leaf by leaf; errors are part of it, by type and message.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.autograd.forward_ad as fw
import torch.nn.functional as F
import torch.nn.utils.parametrize as P
from torch import nn
from torch.utils.checkpoint import checkpoint

import compile_api

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def leaf(*s, dtype=torch.float32):
    return torch.randn(*s, dtype=dtype).requires_grad_()


def outcome(f):
    try:
        return ("ok", f())
    except Exception as e:
        return ("err", type(e).__name__, str(e))


# each case: function(compiled) -> comparable results ; comp is compile or identity
@case
def leaf_inplace(compiled):
    f = compiled(lambda x: x.add_(1) * 2)
    x = leaf(4)
    return outcome(lambda: f(x).detach())


@case
def wrong_grad_shape(compiled):
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(4, 3)
    o = f(x)
    return outcome(lambda: o.backward(torch.ones(3, 3))), outcome(lambda: torch.autograd.grad(f(x), x, torch.ones(2)))


@case
def nonscalar_backward(compiled):
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(4, 3)
    return outcome(lambda: f(x).backward())


@case
def wrong_grad_dtype(compiled):
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(4, 3)
    o = f(x)
    o.backward(torch.ones(4, 3, dtype=torch.float64))
    return x.grad


@case
def freed(compiled):
    f = compiled(lambda x: x.sin() * 2)
    x = leaf(4, 3)
    o = f(x).sum()
    o.backward()
    return outcome(lambda: o.backward())


@case
def retain(compiled):
    f = compiled(lambda x, y: (x * y).sin() * 2)
    x = leaf(4, 3)
    y = leaf(4, 3)
    o = f(x, y)
    o.sum().backward(retain_graph=True)
    g1 = x.grad.clone()
    o.sum().backward(retain_graph=True)
    (o * o).sum().backward()
    return g1, x.grad, y.grad


@case
def saved_modified(compiled):
    f = compiled(lambda x, y: (x * y).sin())
    x = leaf(4, 3)
    y = torch.randn(4, 3)
    o = f(x, y)
    y.add_(1)
    return outcome(lambda: (o.sum().backward(), x.grad))[:2]


@case
def grad_subset(compiled):
    m = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    c = compiled(m)
    x = leaf(4, 3)
    o = c(x)
    g = torch.autograd.grad(o.sum(), [m[0].weight], retain_graph=True)
    g2 = torch.autograd.grad(o.sum(), [x, m[2].bias])
    return g, g2, [p.grad for p in m.parameters()]


@case
def grad_unused(compiled):
    f = compiled(lambda x, y: x * 2)
    x = leaf(3)
    y = leaf(3)
    o = f(x, y)
    return outcome(lambda: torch.autograd.grad(o.sum(), [x, y], retain_graph=True)), torch.autograd.grad(
        o.sum(), [x, y], allow_unused=True
    )


@case
def double_backward(compiled):
    f = compiled(lambda x: (x**3).sum())
    x = leaf(3)

    def g():
        (gx,) = torch.autograd.grad(f(x), x, create_graph=True)
        (ggx,) = torch.autograd.grad(gx.sum(), x)
        return gx.detach(), ggx

    return outcome(g)


@case
def gradient_penalty(compiled):
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    c = compiled(m)
    x = leaf(4, 3)

    def g():
        o = c(x)
        (gx,) = torch.autograd.grad(o.sum(), x, create_graph=True)
        (o.mean() + ((gx.norm(2, dim=1) - 1) ** 2).mean()).backward()
        return [p.grad for p in m.parameters()], x.grad

    return outcome(g)


@case
def create_graph_only(compiled):
    f = compiled(lambda x: (x**3).sum())
    x = leaf(3)
    f(x).backward(create_graph=True)
    return x.grad.detach()


@case
def hessian(compiled):
    f = compiled(lambda x: (x**3).sum() * x[0])
    return outcome(lambda: torch.autograd.functional.hessian(f, torch.ones(3)))


@case
def jvp(compiled):
    f = compiled(lambda x: (x**3).sin())
    f(torch.ones(3))  # the graph of this call must not serve the next one

    def g():
        with fw.dual_level():
            d = fw.make_dual(torch.ones(3), torch.arange(3.0))
            return fw.unpack_dual(f(d)).tangent

    return outcome(g)


def hookmod():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@case
def hooks_before(compiled):
    ev = []
    m = hookmod()
    m[0].register_forward_pre_hook(lambda mod, a: (a[0] * 2,))
    m[1].register_forward_hook(lambda mod, a, o: o + 1)
    m[0].register_full_backward_hook(
        lambda mod, gi, go: ev.append(("fb", [None if g is None else g.clone() for g in gi], [g.clone() for g in go]))
    )
    m[2].register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,))
    m[0].weight.register_hook(lambda g: g * 2)
    m[2].weight.register_post_accumulate_grad_hook(lambda p: ev.append(("pa", p.grad.clone())))
    c = compiled(m)
    x = leaf(5, 3)
    for _ in range(2):
        c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad, ev


@case
def hooks_after(compiled):
    ev = []
    m = hookmod()
    c = compiled(m)
    x = leaf(5, 3)
    c(x).square().sum().backward()
    m[0].register_forward_pre_hook(lambda mod, a: (a[0] * 2,))
    h = m[1].register_forward_hook(lambda mod, a, o: o + 1)
    m[0].register_full_backward_hook(
        lambda mod, gi, go: ev.append(("fb", [None if g is None else g.clone() for g in gi], [g.clone() for g in go]))
    )
    m[2].register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,))
    m[0].weight.register_hook(lambda g: g * 2)
    m[2].weight.register_post_accumulate_grad_hook(lambda p: ev.append(("pa", p.grad.clone())))
    for _ in range(2):
        c(x).square().sum().backward()
    h.remove()
    c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad, ev


@case
def hooks_root_module(compiled):
    m = nn.Linear(3, 3)
    c = compiled(m)
    m.register_forward_hook(lambda mod, a, o: o * 2)
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 5,) if gi[0] is not None else None)
    x = leaf(2, 3)
    c(x).sum().backward()
    return m.weight.grad, x.grad


@case
def tensor_hook_input(compiled):
    f = compiled(lambda x: (x * 2).sin())
    ev = []
    x = leaf(3)
    x.register_hook(lambda g: ev.append(g.clone()) or g * 3)
    f(x).sum().backward()
    y = leaf(3)
    z = y * 2
    z.register_hook(lambda g: g * 10)
    z.retain_grad()
    f(z).sum().backward()
    return x.grad, ev, y.grad, z.grad


@case
def tensor_hook_inter(compiled):

    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sin()

    f = compiled(f)
    x = leaf(3)
    f(x).sum().backward()
    return x.grad


@case
def tensor_hook_output(compiled):
    f = compiled(lambda x: ((x * 2).sin(), x.cos()))
    x = leaf(3)
    a, b = f(x)
    a.register_hook(lambda g: g * 7)
    a.retain_grad()
    (a.sum() + b.sum()).backward()
    return x.grad, a.grad


@case
def retain_grad_inside(compiled):
    keep = []

    def f(x):
        y = x * 2
        y.retain_grad()
        keep.append(y)
        return y.sin()

    f = compiled(f)
    x = leaf(3)
    f(x).sum().backward()
    return x.grad, keep[-1].grad


@case
def out_is_input(compiled):
    f = compiled(lambda x, y: (x, x * y, y))
    x = leaf(3)
    y = leaf(3)
    a, b, c = f(x, y)
    (a.sum() * 2 + b.sum() + c.sum()).backward()
    return a is x, c is y, x.grad, y.grad


@case
def out_view_input(compiled):
    f = compiled(lambda x: (x.view(-1), x.t(), x[1]))
    z = leaf(3, 4)
    x = z * 1
    a, b, c = f(x)
    r = [a._base is x, b._base is x, a._is_view()]
    a.mul_(2)
    (a.sum() + (b * b).sum() + c.sum()).backward()
    return r, z.grad, x.detach()


@case
def out_view_of_leaf_inplace(compiled):
    f = compiled(lambda x: x.view(-1))
    x = leaf(3, 4)
    v = f(x)
    return outcome(lambda: v.mul_(2))


@case
def out_views_of_each_other(compiled):
    f = compiled(lambda x: (lambda y: (y, y.view(-1), y[0]))(x * 2))
    x = leaf(3, 4)
    a, b, c = f(x)
    b.mul_(3)
    (a.sum() + (b * b).sum() + c.sum()).backward()
    return x.grad, a.detach(), b._base is a


@case
def unbind_outputs(compiled):
    f = compiled(lambda x: x.unbind(0))
    z = leaf(4, 3)
    x = z * 1
    o = f(x)
    (o[0].sum() * 2 + o[3].sum()).backward()
    return z.grad, len(o)


@case
def same_twice(compiled):
    f = compiled(lambda x, y: (x * y).sin())
    x = leaf(3)
    f(x, x).sum().backward()
    y = leaf(3)
    f(x, y).sum().backward()
    return x.grad, y.grad


@case
def same_twice_mut(compiled):
    def f(x, y):
        x.add_(1)
        return x * y

    f = compiled(f)
    z = leaf(3)
    w = z * 1
    f(w, w).sum().backward()
    return z.grad


@case
def toggles(compiled):
    f = compiled(lambda x, y: (x * y).sin())
    out = []
    for rx, ry in [(1, 0), (0, 1), (1, 1), (0, 0), (1, 0)]:
        x = torch.ones(3, requires_grad=bool(rx))
        y = torch.full((3,), 2.0, requires_grad=bool(ry))
        o = f(x, y)
        if o.requires_grad:
            o.sum().backward()
        out.append((o.detach(), o.requires_grad, x.grad, y.grad))
    return out


@case
def freeze_params(compiled):
    m = hookmod()
    c = compiled(m)
    x = torch.randn(2, 3)
    out = []
    for fr in (False, True, False):
        for p in m[0].parameters():
            p.requires_grad_(not fr)
        m.zero_grad()
        c(x).sum().backward()
        out.append([None if p.grad is None else p.grad.clone() for p in m.parameters()])
    return out


@case
def noncontig_tangent(compiled):
    f = compiled(lambda x: x.sin())
    x = leaf(3, 4)
    f(x).backward(torch.randn(4, 3).t())
    a = x.grad.clone()
    f(x).sum().backward()
    f(x).backward(torch.ones(1, 1).expand(3, 4))
    return a, x.grad


@case
def noncontig_input(compiled):
    f = compiled(lambda x: x.sin() @ x.t())
    z = leaf(4, 3)
    f(z.t()).sum().backward()
    return z.grad


@case
def zero_size(compiled):
    f = compiled(lambda x, w: (x @ w).relu().sum(1))
    x = leaf(0, 3)
    w = leaf(3, 2)
    o = f(x, w)
    o.sum().backward()
    return o.detach(), x.grad, w.grad


@case
def complex_in(compiled):
    f = compiled(lambda x: (x * x.conj()).real.sum() + torch.view_as_real(x).sum())
    x = leaf(3, dtype=torch.complex64)
    f(x).backward()
    return x.grad


@case
def complex_out(compiled):
    f = compiled(lambda x: torch.fft.fft(x) * (2 + 1j))
    x = leaf(8)
    o = f(x)
    o.abs().sum().backward()
    return o.detach(), x.grad


@case
def ckpt_nonreentrant(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    f = compiled(lambda x: checkpoint(m, x, use_reentrant=False).sin())
    x = leaf(2, 3)
    f(x).sum().backward()
    return x.grad, [p.grad for p in m.parameters()]


@case
def ckpt_reentrant(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    f = compiled(lambda x: checkpoint(m, x, use_reentrant=True).sin())
    x = leaf(2, 3)
    f(x).sum().backward()
    return x.grad, [p.grad for p in m.parameters()]


@case
def ckpt_outside(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    c = compiled(m)
    r = []
    for re in (True, False):
        x = leaf(2, 3)
        m.zero_grad()
        checkpoint(c, x, use_reentrant=re).sin().sum().backward()
        r.append((x.grad, [p.grad.clone() for p in m.parameters()]))
    return r


@case
def autocast_inside(compiled):
    m = nn.Linear(8, 8)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = m(x)
        return y.float().sin()

    f = compiled(f)
    x = leaf(2, 8)
    o = f(x)
    o.sum().backward()
    return o.detach(), x.grad, m.weight.grad


@case
def gradscaler(compiled):
    m = hookmod()
    c = compiled(m)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)
    sc = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _i in range(3):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = c(torch.ones(2, 3)).float().sum()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        sc.step(opt)
        sc.update()
    return [p.detach() for p in m.parameters()], sc.get_scale()


@case
def inplace_nonleaf(compiled):
    def f(x):
        x.mul_(2)
        return x.sin()

    f = compiled(f)
    z = leaf(3)
    x = z * 1
    o = f(x)
    (o.sum() + x.sum()).backward()
    return z.grad, x.detach(), type(x.grad_fn).__name__ is not None


@case
def inplace_buf(compiled):
    def f(b, x):
        b.mul_(0.9).add_(x.detach().mean())
        return x * b

    f = compiled(f)
    b = torch.ones(())
    x = leaf(3)
    for _ in range(3):
        f(b, x).sum().backward()
    return b, x.grad


@case
def batchnorm(compiled):
    m = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3, momentum=None))
    c = compiled(m)
    x = leaf(2, 2, 6, 6)
    for _ in range(3):
        c(x).square().sum().backward()
    m.eval()
    o = c(x)
    return list(m.state_dict().values()), [p.grad for p in m.parameters()], o.detach(), x.grad


@case
def dropout_consistent(compiled):
    f = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(64, 64, requires_grad=True)
    o = f(x)
    o.sum().backward()
    return torch.equal((o != 0), (x.grad != 0)), bool(0.3 < (o != 0).float().mean() < 0.7)


@case
def dropout_relu_chain(compiled):
    f = compiled(lambda x, w: F.dropout(F.relu(x @ w), 0.3))
    x = torch.ones(32, 32, requires_grad=True)
    w = torch.eye(32, requires_grad=True)
    o = f(x, w)
    o.sum().backward()
    return torch.allclose(x.grad, (o.detach() != 0).float() / 0.7 @ torch.eye(32))


@case
def functional_call(compiled):
    m = hookmod()
    c = compiled(lambda p, x: torch.func.functional_call(m, p, (x,)))
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    x = leaf(2, 3)
    c(p, x).sum().backward()
    return [v.grad for v in p.values()], x.grad, [q.grad for q in m.parameters()]


@case
def functional_call_compiled(compiled):
    m = hookmod()
    c = compiled(m)
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    x = leaf(2, 3)
    torch.func.functional_call(c, p, (x,)).sum().backward()
    return [v.grad for v in p.values()], x.grad, [q.grad for q in m.parameters()]


@case
def tied(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(7, 4)
            s.l = nn.Linear(4, 7, bias=False)
            s.l.weight = s.e.weight

        def forward(s, i):
            return s.l(s.e(i).tanh())

    m = M()
    c = compiled(m)
    c(torch.tensor([1, 2, 2])).square().sum().backward()
    return m.e.weight.grad, len(list(m.parameters()))


@case
def parametrized(compiled):
    class Sym(nn.Module):
        def forward(s, X):
            return X.triu() + X.triu(1).transpose(-1, -2)

    m = nn.Linear(4, 4)
    P.register_parametrization(m, "weight", Sym())
    c = compiled(m)
    x = leaf(2, 4)
    for _ in range(2):
        c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad


@case
def weight_norm(compiled):
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    c = compiled(m)
    x = leaf(2, 4)
    c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad


@case
def weight_norm_old(compiled):
    m = nn.utils.weight_norm(nn.Linear(4, 4))
    c = compiled(m)
    x = leaf(2, 4)
    for _ in range(2):
        c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad


@case
def spectral_norm(compiled):
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    c = compiled(m)
    x = leaf(2, 4)
    for _ in range(3):
        c(x).square().sum().backward()
    m.eval()
    o = c(x)
    return [p.grad for p in m.parameters()], x.grad, o.detach(), list(m.buffers())


@case
def spectral_norm_old(compiled):
    m = nn.utils.spectral_norm(nn.Linear(4, 4))
    c = compiled(m)
    x = leaf(2, 4)
    for _ in range(3):
        c(x).square().sum().backward()
    return [p.grad for p in m.parameters()], x.grad, list(m.buffers())


@case
def no_grad_backward(compiled):
    f = compiled(lambda x: (x * 2).sin())
    x = leaf(3)
    o = f(x).sum()
    with torch.no_grad():
        o.backward()
    return x.grad


@case
def call_no_grad_then_grad(compiled):
    f = compiled(lambda x: (x * 2).sin())
    x = leaf(3)
    out = []
    with torch.no_grad():
        out.append(f(x).requires_grad)
    with torch.inference_mode():
        out.append(f(x).is_inference())
    o = f(x)
    o.sum().backward()
    return out, o.requires_grad, x.grad


@case
def grad_under_no_grad_enable(compiled):
    def f(x):
        with torch.enable_grad():
            return (x * 2).sin()

    f = compiled(f)
    x = leaf(3)
    with torch.no_grad():
        o = f(x)
    o.sum().backward()
    return o.requires_grad, x.grad


@case
def backward_inside(compiled):
    def f(x):
        y = (x * 2).sin().sum()
        y.backward()
        return x.grad * 2

    f = compiled(f)
    x = leaf(3)
    return f(x), x.grad


@case
def grad_inside(compiled):
    def f(x):
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g * 2

    f = compiled(f)
    x = leaf(3)
    f(x).sum().backward()
    return x.grad


@case
def requires_grad_inside(compiled):
    def f(x):
        y = (x * 2).detach().requires_grad_()
        return (y * 3).sum(), y

    f = compiled(f)
    x = leaf(3)
    o, y = f(x)
    o.backward()
    return x.grad, y.grad, y.is_leaf


@case
def detach_inplace(compiled):
    def f(x):
        y = x * 2
        y.detach_()
        return y * x

    f = compiled(f)
    x = leaf(3)
    f(x).sum().backward()
    return x.grad


@case
def data_write(compiled):
    def f(m, x):
        m.weight.data.mul_(0.5)
        return m(x)

    m = nn.Linear(3, 3)
    f = compiled(f)
    x = leaf(2, 3)
    f(m, x).sum().backward()
    return m.weight.detach(), m.weight.grad, x.grad


@case
def accumulate(compiled):
    m = hookmod()
    c = compiled(m)
    for i in range(3):
        c(torch.full((2, 3), float(i + 1))).sum().backward()
    return [p.grad for p in m.parameters()]


@case
def chained_compiled(compiled):
    a = compiled(nn.Linear(3, 3))
    b = compiled(nn.Linear(3, 2))
    x = leaf(2, 3)
    b(a(x).relu()).square().sum().backward()
    return x.grad, [p.grad for p in a.parameters()]


@case
def saved_hooks(compiled):
    f = compiled(lambda x: (x * 2).sin().exp())
    x = leaf(3)
    n = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t)[1], lambda t: t):
        o = f(x)
    o.sum().backward()
    return x.grad, len(n) > 0


@case
def save_on_cpu(compiled):
    f = compiled(lambda x: (x * 2).sin().exp())
    x = leaf(3)
    with torch.autograd.graph.save_on_cpu():
        o = f(x)
    o.sum().backward()
    return x.grad


@case
def int_and_bool_outputs(compiled):
    f = compiled(lambda x: (x * 2, x.argmax(), x > 0, x.topk(2)))
    x = leaf(5)
    a, b, c, d = f(x)
    (a.sum() + d.values.sum()).backward()
    return x.grad, b, c, d.indices, [t.requires_grad for t in (a, b, c, d.values, d.indices)]


@case
def embedding_sparse(compiled):
    m = nn.Embedding(10, 4, sparse=True)
    c = compiled(m)
    c(torch.tensor([1, 2])).sum().backward()
    return m.weight.grad.is_sparse, m.weight.grad.to_dense()


@case
def embedding_padding(compiled):
    m = nn.Embedding(10, 4, padding_idx=1, max_norm=1.0)
    c = compiled(m)
    c(torch.tensor([1, 2])).sum().backward()
    return m.weight.grad, m.weight.detach()


@case
def rnn(compiled):
    m = nn.LSTM(3, 4, 2)
    c = compiled(m)
    x = leaf(5, 2, 3)
    o, (h, _cc) = c(x)
    (o.sum() + h.sum()).backward()
    return x.grad, [p.grad for p in m.parameters()]


@case
def deepcopy_out(compiled):
    m = hookmod()
    c = compiled(m)
    c2 = copy.deepcopy(c)
    x = leaf(2, 3)
    c2(x).sum().backward()
    c(x).sum().backward()
    return [p.grad for p in c2.parameters()], [p.grad for p in m.parameters()]


@case
def grad_none_out(compiled):
    f = compiled(lambda x, y: (x * 2, y * 3))
    x = leaf(3)
    y = leaf(3)
    a, _b = f(x, y)
    a.sum().backward()
    return x.grad, y.grad


@case
def minmax_ties(compiled):
    f = compiled(
        lambda x: (
            x.max(),
            x.amax(),
            x.max(0).values.sum(),
            x.median(),
            x.clamp(0, 1).sum(),
            x.abs().sum(),
            torch.maximum(x, x.flip(0)).sum(),
        )
    )
    x = torch.tensor([1.0, 1.0, 0.0, 0.0], requires_grad=True)
    sum(f(x)).backward()
    return x.grad


@case
def optimizer_closure(compiled):
    m = nn.Linear(3, 1)
    c = compiled(m)
    o = torch.optim.LBFGS(m.parameters(), max_iter=3)
    x = torch.ones(4, 3)

    def cl():
        o.zero_grad()
        loss = (c(x) - 2).square().mean()
        loss.backward()
        return loss

    o.step(cl)
    return [p.detach() for p in m.parameters()]


@case
def zero_grad_set(compiled):
    m = hookmod()
    c = compiled(m)
    x = torch.ones(2, 3)
    c(x).sum().backward()
    g = m[0].weight.grad
    m.zero_grad(set_to_none=False)
    c(x).sum().backward()
    return g is m[0].weight.grad, [p.grad for p in m.parameters()]


@case
def ctc(compiled):
    f = compiled(lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])))
    x = leaf(5, 1, 4)
    f(x).backward()
    return x.grad


#: Cases that leave a part to eager, with a reason: the rest must be one region without fallbacks.
NOT_WHOLE = {
    "leaf_inplace": "a leaf Variable",
    "hooks_before": "backward hooks of a Linear module",
    "hooks_after": "backward hooks of a Linear module",
    "retain_grad_inside": "retain_grad",
    "jvp": "forward-mode differentiation",
    "requires_grad_inside": "requires_grad_()",
    "embedding_sparse": "sparse",
    "ctc": "ctc_loss",
}


def leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def run(function, compiled):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return leaves(function(compiled))


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    reports = []

    def compiled(program):
        result = compile_api.compile(program)
        reports.append(result.report)
        return result

    expected = run(CASES[name], lambda program: program)
    got = run(CASES[name], compiled)
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert ours == theirs
    left = [item.reason for report in reports for item in (*report().breaks, *report().fallbacks)]
    if name in NOT_WHOLE:
        assert any(NOT_WHOLE[name] in reason for reason in left), left
    else:
        assert not left
        assert any(report().graphs for report in reports)


def test_the_backward_pass_goes_the_way_the_forward_pass_went():
    """A sum that is 0 but for roundings, compared with 0: either way is right, both in one step are not."""

    def f(x, weight, bias, forced=None):
        h = F.group_norm(x.pow(3) * 0.15, 2, weight, bias)
        positive = h.sum() > 0 if forced is None else forced
        h = h + positive * 0.25
        return (F.silu(h) + h.sigmoid()).abs().add(0.1).sqrt()

    compiled = compile_api.compile(f, fullgraph=True)

    def step(call, x, *forced):
        x = x.clone().requires_grad_()
        weight, bias = (make(8, dtype=x.dtype, requires_grad=True) for make in (torch.ones, torch.zeros))
        out = call(x, weight, bias, *forced)
        out.norm().backward()
        return torch.stack([out.detach(), x.grad])

    for seed in range(30):
        torch.manual_seed(seed)
        x = torch.randn(5, 8)
        ours = step(compiled, x)
        ways = [step(f, x.double(), forced) for forced in (0.0, 1.0)]
        assert min(float((ours - way).abs().max()) for way in ways) < 1e-5
    assert compiled.report().kernels
