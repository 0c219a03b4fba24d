"""Training programs: a module or function of random layers, some steps of training, second derivatives, hooks.

What is compared: losses, gradients, second gradients, what hooks saw, parameters, buffers and optimiser state. Activations
have the shape ``(batch, WIDTH)`` between layers, so that any layer can follow any other.
"""

from __future__ import annotations

import itertools
import random
import warnings

from fuzz.program import Program, observe

__all__ = ["generate"]

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from fuzz.inputs import make, ramp

WIDTH = {width}
DEVICE = {device!r}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x * ctx.scale, None


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.inner(self.inner(x) * self.gain)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.free = nn.Parameter(torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("average", torch.zeros(WIDTH))
"""
#: Layers: attributes made in ``__init__`` ("" for none), then lines of ``forward`` that change ``h``.
LAYERS = """
self.l{i} = nn.Linear(WIDTH, WIDTH) ;; h = self.l{i}(h)
self.l{i} = nn.Linear(WIDTH, WIDTH, bias=False) ;; h = self.l{i}(h).relu()
self.l{i} = nn.LayerNorm(WIDTH) ;; h = self.l{i}(h)
self.l{i} = nn.BatchNorm1d(WIDTH) ;; h = self.l{i}(h)
self.l{i} = nn.BatchNorm1d(WIDTH, momentum=None) ;; h = self.l{i}(h) + x
self.l{i} = nn.GroupNorm(2, WIDTH) ;; h = self.l{i}(h)
self.l{i} = nn.RMSNorm(WIDTH) ;; h = self.l{i}(h)
self.l{i} = nn.Conv1d(1, 2, 3, padding=1) ;; h = self.l{i}(h.unsqueeze(1)).mean(1)
self.l{i} = nn.Conv1d(2, 2, 1) ;; h = self.l{i}(torch.stack([h, x], 1))[:, 0]
self.l{i} = nn.ReLU(inplace=True) ;; h = self.l{i}(h + 0.1)
self.l{i} = nn.Sequential(nn.Linear(WIDTH, 5), nn.GELU(), nn.Linear(5, WIDTH)) ;; h = h + self.l{i}(h)
self.l{i} = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)]) ;; h = sum(layer(h) for layer in self.l{i})
self.l{i} = nn.ModuleDict(dict(a=nn.Linear(WIDTH, WIDTH))) ;; h = self.l{i}['a'](h).tanh()
self.l{i} = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(1))]) ;; h = h * self.l{i}[0] + self.l{i}[1]
self.l{i} = nn.Embedding(5, WIDTH) ;; h = h + self.l{i}(ids)
self.l{i} = nn.Embedding(5, WIDTH, padding_idx=0) ;; h = h * self.l{i}(ids)
self.l{i} = nn.MultiheadAttention(WIDTH, 2, batch_first=True) ;; h = h + self.l{i}(h[None], h[None], h[None], need_weights=False)[0][0]
self.l{i} = nn.PReLU() ;; h = self.l{i}(h)
self.l{i} = nn.Bilinear(WIDTH, WIDTH, WIDTH) ;; h = self.l{i}(h, x) * 0.1
self.l{i} = nn.GRUCell(WIDTH, WIDTH) ;; h = self.l{i}(x, h)
self.l{i} = nn.Dropout(0.0) ;; h = self.l{i}(h)
self.l{i} = Twice() ;; h = self.l{i}(h)
self.l{i} = nn.Linear(WIDTH, WIDTH) ; self.l{i}.weight = self.linear.weight ;; h = self.l{i}(h)
self.l{i} = self.linear ;; h = self.l{i}(h)
self.l{i} = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)) ;; h = self.l{i}(h)
 ;; h = h + self.linear(x)
 ;; h = F.linear(h, self.linear.weight.t())
 ;; h = F.linear(h, self.linear.weight[:, :WIDTH] * 0.5, self.free[0])
 ;; h = h * self.free[1] + self.free.view(-1)[:WIDTH]
 ;; h = h @ (self.free.t() @ self.free)
 ;; h = h + self.free.sum(0).detach()
 ;; h = h * self.free.expand(2, 3, WIDTH).mean((0, 1))
 ;; h = h - self.free.transpose(0, 1)[..., 0]
 ;; h = torch.sin(h) * x
 ;; h = h.exp().log1p()
 ;; h = F.softmax(h, -1) * x
 ;; h = F.gelu(h)
 ;; h = F.silu(h) + h.sigmoid()
 ;; h = h / (h.norm(dim=-1, keepdim=True) + 1)
 ;; h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1).sqrt()
 ;; h = h.masked_fill(mask, 0.5)
 ;; h = torch.where(mask, h, x * h)
 ;; h = h * mask
 ;; h = h.cumsum(-1)
 ;; h = h.sort(-1).values
 ;; h = h + h.amax(-1, keepdim=True)
 ;; h = h.index_select(1, torch.arange(WIDTH - 1, -1, -1, device=h.device))
 ;; h = h.gather(1, (ids % WIDTH)[:, None].expand(-1, WIDTH)) + h
 ;; h = torch.cat([h[:, 1:], h[:, :1] * 2], 1)
 ;; h = h.unflatten(1, (2, -1)).flip(1).flatten(1)
 ;; h = h.t().contiguous().t() * 1.5
 ;; h = F.max_pool1d(h[:, None], 3, 1, 1)[:, 0]
 ;; h = F.avg_pool1d(h[:, None], 3, 1, 1)[:, 0]
 ;; h = F.scaled_dot_product_attention(h[None, None], x[None, None], h[None, None])[0, 0]
 ;; h = F.scaled_dot_product_attention(h[None, None], h[None, None], h[None, None], is_causal=True)[0, 0]
 ;; h = F.pad(h, (1, 1))[:, 1:-1].clone()
 ;; h = h.clone() ; h.add_(x)
 ;; h = h * 2 ; h[:, 0] = 0
 ;; h = h + 1 ; h[:, 1:] *= self.free[2, 1:]
 ;; h = h * 1 ; h.mul_(self.free[0])
 ;; h = h + 0 ; h[mask] = 1.5
 ;; h = h.clone() ; v = h[:, :2] ; v.mul_(3) ; h = h + 1
 ;; h = h.clone() ; h.t()[0].sub_(x[:, 0])
 ;; h = F.relu(h + 0.25, inplace=True)
 ;; h = Square.apply(h, 0.5)
 ;; h = checkpoint(lambda t: (t * self.free[0]).tanh(), h, use_reentrant=False)
 ;; h = h.detach() * 0.5 + h
 ;; h = h.detach().requires_grad_(True) * self.free[0] if self.training else h
 ;; s{i} = 0 ; with torch.no_grad(): s{i} = h.sum() * 0.1 ; h = h + s{i}
 ;; with torch.no_grad(): self.seen.add_(1)
 ;; self.seen += h.detach().mean()
 ;; self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
 ;; self.average = self.average * 0.5 + h.detach().mean(0)
 ;; self.seen.copy_(self.seen + 1) ; h = h + self.seen
 ;; h = h * self.average.cos()
 ;; h.register_hook(lambda grad: grad * 2) ; h = h + 0
 ;; h = h.clone() ; h.register_hook(lambda grad: LOG.append(tuple(grad.shape)))
 ;; h = h * (1.0 if self.training else 0.5)
 ;; h = h + (h.sum() > 0) * 0.25
 ;; for i in range(2): h = h.tanh() + self.free[i]
 ;; h = h.double().sin().to(h.dtype)
 ;; h = h.to(torch.bfloat16).to(x.dtype) * 1.5
 ;; h = torch.einsum('bi,ij->bj', h, self.linear.weight)
 ;; h = torch.addmm(self.free[0], h, self.linear.weight)
 ;; h = h + torch.linalg.vector_norm(h, 2, -1, keepdim=True)
 ;; a, b = h.chunk(2, 1) ; h = torch.cat([b, a * b.sigmoid()], 1)
 ;; h = torch.lerp(h, x, 0.3) ; h = h.clamp(-2, 2)
 ;; h = h + F.interpolate(h[:, None], scale_factor=2)[:, 0, ::2]
 ;; h = h.roll(1, 0) * h
 ;; h = h.pow(3) * 0.1
 ;; h = torch.logsumexp(torch.stack([h, x]), 0)
 ;; h = h.abs().add(0.1).sqrt()
 ;; h = torch.zeros_like(h).scatter_add(1, (ids % WIDTH)[:, None].expand(-1, WIDTH), h) + h
 ;; h = torch.zeros_like(h).index_add(0, torch.arange(h.shape[0], device=h.device), h) - x
"""
LOSSES = """
out.sum()
(out * out).mean()
out.exp().mean()
F.cross_entropy(out, ids % WIDTH)
F.mse_loss(out, x.detach())
out.std() + out[0].sum()
(out * ramp(out, *out.shape)).sum()
F.smooth_l1_loss(out, x.detach().roll(1, 0))
out.norm()
"""
STEPS = """
loss.backward()
loss.backward()
loss.backward() ;; net.zero_grad(set_to_none=False) ;; (g(x, mask, ids).sum() * 2).backward()
loss.backward(retain_graph=True) ;; loss.backward()
loss.backward() ;; g(x, mask, ids).mean().backward()
grads = torch.autograd.grad(loss, WATCHED, create_graph=True, allow_unused=True) ;; see('first', list(grads)) ;; sum([(q * q).sum() for q in grads if q is not None]).backward()
grads = torch.autograd.grad(loss, WATCHED, create_graph=True, allow_unused=True) ;; (loss + sum([q.tanh().sum() for q in grads if q is not None])).backward()
(gx,) = torch.autograd.grad(loss, [x], create_graph=True) ;; see('gx', gx) ;; ((gx.norm(dim=-1) - 1) ** 2).mean().backward()
grads = torch.autograd.grad(loss, WATCHED, allow_unused=True, retain_graph=True) ;; see('first', list(grads)) ;; loss.backward()
(gx,) = torch.autograd.grad(loss, [x], create_graph=True) ;; (hx,) = torch.autograd.grad(gx.sin().sum(), [x], allow_unused=True, retain_graph=True) ;; see('second', hx) ;; loss.backward()
out.backward(ramp(out, *out.shape))
torch.autograd.backward([loss, out.mean()])
"""
AFTER = """
pass
pass
pass
net.eval()
net.train()
net.linear.requires_grad_(not net.linear.weight.requires_grad)
net.free.data.mul_(0.5)
net.linear.weight.grad = None
handle = net.register_forward_hook(lambda m, a, o: o * 1.5)
handle = net.linear.register_forward_pre_hook(lambda m, a: (a[0] + 1,))
handle = net.linear.register_full_backward_hook(lambda m, gi, go: go == (None,) or LOG.append(len(gi)))
handle = net.free.register_hook(lambda grad: grad * 0.5)
net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()}, strict=True)
see('evaluated', torch.no_grad()(lambda: g(x, mask, ids))())
see('parameters', [p.requires_grad for p in net.parameters()])
torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
net.linear.weight.data = net.linear.weight.data.clone().t()
"""
OPTIMISERS = [
    "SGD(net.parameters(), 0.1)",
    "SGD(net.parameters(), 0.05, momentum=0.9)",
    "Adam(net.parameters(), 0.01)",
    "AdamW(net.parameters(), 0.01)",
]


def generate(seed: int, device: str = "cpu") -> str:
    """The program of a seed; programs that raise in eager are mostly written anew."""
    may_raise = random.Random(seed).random() < 0.04
    for attempt in itertools.count():
        text = _write(random.Random(f"training {seed} {attempt}"), device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = observe(Program("training", seed, text), lambda fn, **options: fn)
        if may_raise or attempt > 30 or not any("error" in label for label, _ in seen.trees):
            return text
    raise AssertionError


def _lines(text: str, indent: int) -> list[str]:
    """Statements separated by ``;``; one after a colon stays on its line."""
    return [" " * indent + part.strip() for part in text.split(";") if part.strip()]


def _write(pick: random.Random, device: str) -> str:
    width = pick.choice([4, 6, 8, 8, 16])
    layers = [pick.choice(LAYERS.strip("\n").splitlines()).format(i=i) for i in range(pick.choice([2, 3, 4, 6]))]
    lines = ["LOG = []", *HEAD.format(width=width, device=device).splitlines()]
    for layer in layers:
        lines += _lines(layer.split(";;")[0], 8)
    lines += ["", "    def forward(self, x, mask, ids):", "        h = x"]
    for layer in layers:
        lines += _lines(layer.split(";;")[1], 8)
    lines += ["        return h", "", ""]
    functional = pick.random() < 0.15
    if functional:
        lines += ["def call(net, x, mask, ids):", "    return net(x, mask, ids) * 0.5", "", ""]
    dynamic = pick.choice(["None", "None", "None", "True", "False"])
    lines += [
        "def program(compile, see):",
        f"    torch.manual_seed({pick.randrange(99)})",
        "    net = Net().to(DEVICE)",
    ]
    if pick.random() < 0.08:
        lines += ["    net = net.double()"]
    if functional:
        lines += [f"    h = compile(call, dynamic={dynamic})", "    g = lambda *args: h(net, *args)"]
    else:
        lines += [f"    g = compile(net, dynamic={dynamic})"]
    lines += ["    WATCHED = [net.linear.weight, net.free]", f"    opt = torch.optim.{pick.choice(OPTIMISERS)}"]
    batches = [pick.choice([2, 3, 4, 5])] * 3
    if pick.random() < 0.3:
        batches = [pick.choice([2, 3, 4, 6]) for _ in batches]
    grad = pick.random() < 0.5
    hooked = any("h.register_hook" in layer for layer in layers)
    for step in range(pick.choice([2, 3])):
        body = _step(pick, step, batches[step], grad, hooked)
        lines += ["    " + line for line in body]
    lines += ["    see('log', list(LOG))", "    see('state', list(net.state_dict().items()))"]
    return "\n".join(lines) + "\n"


def _step(pick: random.Random, step: int, batch: int, grad: bool, hooked: bool) -> list[str]:
    layout = pick.choice(["contiguous", "contiguous", "transposed", "sliced", "offset"])
    actions = STEPS.strip().splitlines()
    if hooked and pick.random() < 0.7:  # where these matter to a second derivative it is refused: few of such programs
        actions = [text for text in actions if "create_graph" not in text]
    action = pick.choice(actions)
    lines = [
        f"x = make(({batch}, WIDTH), str(net.free.dtype)[6:], {layout!r}, seed={step}, grad={grad or '[x]' in action}, device=DEVICE)",
        f"mask = make(({batch}, WIDTH), 'bool', seed={step + 50}, device=DEVICE)",
        f"ids = make(({batch},), 'int64', seed={step + 70}, device=DEVICE).abs() % 5",
        "out = g(x, mask, ids)",
        f"loss = {pick.choice(LOSSES.strip().splitlines())}",
        f"see('loss {step}', [loss, out])",
        *[part.strip() for part in action.split(";;")],
        f"see('gradients {step}', [x.grad, *[p.grad for p in net.parameters()]])",
    ]
    if pick.random() < 0.7:
        lines += ["see.step(net, opt)", "opt.zero_grad()"]
    lines += [pick.choice(AFTER.strip().splitlines()), f"see('buffers {step}', [*net.buffers()])"]
    return lines
