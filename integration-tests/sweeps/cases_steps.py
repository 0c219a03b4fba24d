"""More programs: training steps, transforms of functions, parametrisations, classic algorithms."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from cases_programs import program, steps
from model_judge import Case
from torch import nn


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def _batch(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6 + turn, 8), torch.randint(0, 3, (6 + turn,))


@program
def whole_step_sgd() -> Case:
    def make() -> Any:
        net = _net()
        return {"net": net, "opt": torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)}

    def step(state: Any, x: Any, y: Any) -> Any:
        state["opt"].zero_grad()
        loss = F.cross_entropy(state["net"](x), y)
        loss.backward()
        state["opt"].step()
        return loss.detach()

    return steps(make, _batch, step)


@program
def whole_step_adamw_clipped() -> Case:
    def make() -> Any:
        net = _net()
        return {"net": net, "opt": torch.optim.AdamW(net.parameters(), lr=0.01)}

    def step(state: Any, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(state["net"](x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(state["net"].parameters(), 1.0)
        state["opt"].step()
        state["opt"].zero_grad(set_to_none=True)
        return loss.detach(), norm

    return steps(make, _batch, step)


@program
def accumulation() -> Case:
    def make() -> Any:
        net = _net()
        return {"net": net, "opt": torch.optim.SGD(net.parameters(), lr=0.1)}

    def step(state: Any, x: Any, y: Any) -> Any:
        total = 0.0
        for a, b in zip(x.chunk(3), y.chunk(3), strict=True):
            loss = F.cross_entropy(state["net"](a), b) / 3
            loss.backward()
            total = total + loss.detach()
        state["opt"].step()
        state["opt"].zero_grad()
        return total

    return steps(make, _batch, step)


@program
def weights_ema() -> Case:
    def make() -> Any:
        net = _net()
        return {"net": net, "ema": copy.deepcopy(net)}

    @torch.no_grad()
    def update(state: Any, shift: Any) -> Any:
        for e, p in zip(state["ema"].parameters(), state["net"].parameters(), strict=True):
            e.mul_(0.9).add_(p + shift, alpha=0.1)
        return shift * 2

    return steps(make, lambda turn: (torch.tensor(0.01),), update)


@program
def ema_lerp_foreach() -> Case:
    def make() -> Any:
        return {"a": list(torch.randn(3, 4).unbind()), "b": list(torch.randn(3, 4).unbind())}

    @torch.no_grad()
    def update(state: Any, x: Any) -> Any:
        torch._foreach_mul_(state["a"], 0.9)
        torch._foreach_add_(state["a"], state["b"], alpha=0.1)
        torch._foreach_lerp_(state["b"], state["a"], 0.5)
        return torch._foreach_norm(state["a"])

    return steps(make, lambda turn: (torch.randn(2),), update)


@program
def dqn_step() -> Case:
    def make() -> Any:
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        return {
            "policy": net,
            "target": copy.deepcopy(net),
            "opt": torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True),
        }

    def batch(turn: int) -> Any:
        n = 8 + turn
        return torch.randn(n, 4), torch.randint(0, 2, (n, 1)), torch.randn(n), torch.randn(n, 4), torch.rand(n) > 0.3

    def step(state: Any, s: Any, a: Any, r: Any, following: Any, alive: Any) -> Any:
        value = state["policy"](s).gather(1, a)
        best = torch.zeros(s.shape[0])
        with torch.no_grad():
            best[alive] = state["target"](following[alive]).max(1).values
        loss = F.smooth_l1_loss(value, (best * 0.99 + r).unsqueeze(1))
        state["opt"].zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(state["policy"].parameters(), 100)
        state["opt"].step()
        with torch.no_grad():
            for t, p in zip(state["target"].parameters(), state["policy"].parameters(), strict=True):
                t.copy_(p * 0.005 + t * 0.995)
        return loss.detach()

    return steps(make, batch, step)


@program
def reinforce_returns() -> Case:
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, states: Any, actions: Any, rewards: Any) -> Any:
            logp = torch.distributions.Categorical(logits=self.net(states)).log_prob(actions)
            returns, total = [], 0.0
            for r in rewards.unbind(0)[::-1]:
                total = r + 0.99 * total
                returns.insert(0, total)
            back = torch.stack(returns)
            back = (back - back.mean()) / (back.std() + 1e-6)
            return -(logp * back).sum()

    return Case(Policy(), lambda s: (torch.randn(6 + s, 4), torch.randint(0, 2, (6 + s,)), torch.randn(6 + s)))


@program
def ppo_loss() -> Case:
    class PPO(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic, self.spread = nn.Linear(5, 2), nn.Linear(5, 1), nn.Parameter(torch.zeros(2))

        def forward(self, s: Any, a: Any, old: Any, advantage: Any, returns: Any) -> Any:
            dist = torch.distributions.Normal(self.actor(s), self.spread.exp())
            logp = dist.log_prob(a).sum(-1)
            ratio = (logp - old).exp()
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            return (
                -surrogate.mean() + 0.5 * F.mse_loss(self.critic(s).squeeze(-1), returns) - 0.01 * dist.entropy().mean()
            )

    return Case(
        PPO(),
        lambda s: (
            torch.randn(6 + s, 5),
            torch.randn(6 + s, 2),
            torch.randn(6 + s),
            torch.randn(6 + s),
            torch.randn(6 + s),
        ),
    )


@program
def per_sample_gradients() -> Case:
    net = _net()
    weights = {k: v.detach() for k, v in net.named_parameters()}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(torch.func.functional_call(net, weights, (x[None],)), y[None])

    def per_sample(x: Any, y: Any) -> Any:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)

    return Case(per_sample, lambda s: (torch.randn(6 + s, 8), torch.randint(0, 3, (6 + s,))), train=False, exact=True)


@program
def functional_gradient() -> Case:
    net = _net()
    weights = {k: v.detach() for k, v in net.named_parameters()}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    def step(x: Any, y: Any) -> Any:
        grads, value = torch.func.grad_and_value(loss)(weights, x, y)
        return {k: weights[k] - 0.1 * g for k, g in grads.items()}, value

    return Case(step, lambda s: (torch.randn(6 + s, 8), torch.randint(0, 3, (6 + s,))), train=False, exact=True)


@program
def jacobians() -> Case:
    def f(x: Any) -> Any:
        return torch.func.jacrev(lambda v: (v.sin() * v.sum()).exp())(x), torch.func.hessian(lambda v: (v**3).sum())(x)

    return Case(f, lambda s: (torch.randn(4 + s) * 0.3,), train=False)


@program
def vmapped_model_ensemble() -> Case:
    nets = [_net() for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(nets)
    stacked = {k: v.detach() for k, v in stacked.items()}
    base = nets[0]

    def ensemble(x: Any) -> Any:
        return torch.func.vmap(lambda w, v: torch.func.functional_call(base, w, (v,)), in_dims=(0, None))(stacked, x)

    return Case(ensemble, lambda s: (torch.randn(6 + s, 8),), train=False, exact=True)


@program
def maml_inner_step() -> Case:
    class MAML(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.b1 = nn.Parameter(torch.randn(16, 1) * 0.5), nn.Parameter(torch.zeros(16))
            self.w2, self.b2 = nn.Parameter(torch.randn(1, 16) * 0.5), nn.Parameter(torch.zeros(1))

        def forward(self, x: Any, y: Any, x2: Any, y2: Any) -> Any:
            weights = [self.w1, self.b1, self.w2, self.b2]

            def apply(w: Any, v: Any) -> Any:
                return F.linear(torch.tanh(F.linear(v, w[0], w[1])), w[2], w[3])

            with torch.enable_grad():
                grads = torch.autograd.grad(F.mse_loss(apply(weights, x), y), weights, create_graph=True)
            return F.mse_loss(apply([w - 0.1 * g for w, g in zip(weights, grads, strict=True)], x2), y2)

    return Case(MAML(), lambda s: tuple(torch.randn(5 + s, 1) for _ in range(4)))


@program
def gradient_penalty() -> Case:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))

        def forward(self, real: Any, fake: Any, mix: Any) -> Any:
            with torch.enable_grad():
                between = (mix * real + (1 - mix) * fake).requires_grad_(True)
                (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
            penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
            return self.net(fake).mean() - self.net(real).mean() + 10 * penalty

    return Case(Critic(), lambda s: (torch.randn(4 + s, 6), torch.randn(4 + s, 6), torch.rand(4 + s, 1)))


@program
def autocast_bfloat16() -> Case:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))

        def forward(self, x: Any, y: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                out = self.net(x)
                return F.cross_entropy(out.float(), y)

    def same(a: int) -> Any:
        return torch.randn(6 + a, 16), torch.randint(0, 4, (6 + a,))

    return Case(Mixed(), same)


@program
def autocast_attention() -> Case:
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return self.layer(x).float()

    return Case(Mixed(), lambda s: (torch.randn(2 + s, 6 + s, 16),))


@program
def frozen_batch_norm_finetuning() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    for p in net[:2].parameters():
        p.requires_grad_(False)
    return Case(net, lambda s: (torch.randn(3 + s, 3, 10, 10),))


@program
def weight_and_spectral_norm() -> Case:
    from torch.nn.utils import parametrizations

    net = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), parametrizations.spectral_norm(nn.Linear(8, 3))
    )
    return Case(net, lambda s: (torch.randn(4 + s, 6),))


@program
def pruning_and_parametrize() -> Case:
    from torch.nn.utils import parametrize, prune

    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

    a, b = nn.Linear(6, 6), nn.Linear(6, 3)
    parametrize.register_parametrization(a, "weight", Symmetric())
    prune.l1_unstructured(b, "weight", amount=0.3)
    return Case(nn.Sequential(a, nn.Tanh(), b), lambda s: (torch.randn(4 + s, 6),))


@program
def custom_autograd_function() -> Case:
    class P3(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return 0.5 * (5 * x**3 - 3 * x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * 1.5 * (5 * x**2 - 1)

    class Poly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))

        def forward(self, x: Any) -> Any:
            a, b, c, d = self.w
            return a + b * P3.apply(c + d * x)

    return Case(Poly(), lambda s: (torch.linspace(-1, 1, 10 + s),))


@program
def checkpointed() -> Case:
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (
                nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))),
                nn.Linear(8, 8),
            )

        def forward(self, x: Any) -> Any:
            x = checkpoint_sequential(self.a, 2, x, use_reentrant=False)
            return checkpoint(lambda v: self.b(v).sin(), x, use_reentrant=False)

    return Case(Deep(), lambda s: (torch.randn(4 + s, 8),))


@program
def learned_optimiser_lbfgs_closure() -> Case:
    def make() -> Any:
        w = nn.Linear(4, 1)
        return {"net": w, "opt": torch.optim.LBFGS(w.parameters(), max_iter=3, lr=0.5)}

    def step(state: Any, x: Any, y: Any) -> Any:
        def closure() -> Any:
            state["opt"].zero_grad()
            loss = F.mse_loss(state["net"](x), y)
            loss.backward()
            return loss

        return state["opt"].step(closure).detach()

    return steps(make, lambda turn: (torch.randn(8 + turn, 4), torch.randn(8 + turn, 1)), step, rounds=2)


@program
def gpt_from_scratch() -> Case:
    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.n1, self.n2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.register_buffer("tril", torch.tril(torch.ones(32, 32)))

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).split(c, 2))
            w = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
            w = F.softmax(w.masked_fill(self.tril[:t, :t] == 0, float("-inf")), -1)
            x = x + self.proj((w @ v).transpose(1, 2).contiguous().view(b, t, c))
            return x + self.mlp(self.n2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30, 16), nn.Embedding(32, 16)
            self.blocks, self.norm, self.head = (
                nn.Sequential(*(Block(16, 2) for _ in range(2))),
                nn.LayerNorm(16),
                nn.Linear(16, 30, bias=False),
            )
            self.head.weight = self.words.weight

        def forward(self, idx: Any, targets: Any = None) -> Any:
            x = self.words(idx) + self.places(torch.arange(idx.shape[1], device=idx.device))
            logits = self.head(self.norm(self.blocks(x)))
            loss = (
                None
                if targets is None
                else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
            )
            return logits, loss

    return Case(
        GPT(),
        lambda s: (torch.randint(0, 30, (2 + s, 8 + s)), torch.randint(0, 30, (2 + s, 8 + s))),
        loss=lambda out: out[1],
    )


@program
def gpt_sampling_loop() -> Case:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)

        @torch.no_grad()
        def forward(self, idx: Any) -> Any:
            for _ in range(6):
                logits = self.out(self.embed(idx[:, -4:]).mean(1)) / 0.8
                top, _ = torch.topk(logits, 5)
                logits[logits < top[:, [-1]]] = -float("inf")
                nxt = F.softmax(logits, -1).argmax(-1, keepdim=True)
                idx = torch.cat((idx, nxt), 1)
            return idx

    return Case(Tiny(), lambda s: (torch.randint(0, 20, (2 + s, 5 + s)),), train=False)


@program
def detection_matching() -> Case:
    def match(pred: Any, boxes: Any) -> Any:
        def area(b: Any) -> Any:
            return (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])

        low, high = torch.max(pred[:, None, :2], boxes[:, :2]), torch.min(pred[:, None, 2:], boxes[:, 2:])
        inter = (high - low).clamp(min=0).prod(2)
        iou = inter / (area(pred)[:, None] + area(boxes) - inter)
        best, which = iou.max(1)
        which = torch.where(best < 0.3, -1, which)
        labels = (which >= 0).to(pred.dtype)
        return iou, which, labels.sum(), torch.where(which >= 0)[0]

    def inputs(s: int) -> Any:
        a, b = torch.rand(6 + s, 2), torch.rand(3 + s, 2)
        return torch.cat([a, a + 0.5], 1), torch.cat([b, b + 0.5], 1)

    return Case(match, inputs, train=False)


@program
def einops_like_patches() -> Case:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.cls, self.pos = (
                nn.Linear(48, 16),
                nn.Parameter(torch.randn(1, 1, 16)),
                nn.Parameter(torch.randn(1, 17, 16)),
            )

        def forward(self, x: Any) -> Any:
            b, c, h, w = x.shape
            x = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, 48)
            x = torch.cat([self.cls.expand(b, -1, -1), self.lin(x)], 1) + self.pos
            return torch.einsum("bnd,bmd->bnm", x, x).softmax(-1) @ x

    return Case(Patches(), lambda s: (torch.randn(2 + s, 3, 16, 16),))


@program
def capsule_routing() -> Case:
    class Caps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(1, 6, 3, 4, 5) * 0.1)

        def forward(self, u: Any) -> Any:
            hat = (u[:, :, None, None] @ self.w).squeeze(3)
            logits = torch.zeros(*hat.shape[:3], dtype=u.dtype)
            for i in range(3):
                c = logits.softmax(2)
                s = (c[..., None] * hat).sum(1)
                n = (s**2).sum(-1, keepdim=True)
                v = n / (1 + n) * s / (n.sqrt() + 1e-8)
                if i < 2:
                    logits = logits + (hat * v[:, None]).sum(-1)
            return v.norm(dim=-1)

    return Case(Caps(), lambda s: (torch.randn(2 + s, 6, 4),))


@program
def kmeans_step() -> Case:
    def step(x: Any, centres: Any) -> Any:
        for _ in range(3):
            owner = torch.cdist(x, centres).argmin(1)
            counts = torch.bincount(owner, minlength=3).clamp(min=1)
            centres = torch.zeros_like(centres).index_add_(0, owner, x) / counts[:, None]
        return centres, owner

    return Case(step, lambda s: (torch.randn(12 + s, 2), torch.randn(3, 2)), train=False)


@program
def gaussian_process_nll() -> Case:
    class GP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.noise = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.tensor(-2.0))

        def forward(self, x: Any, y: Any) -> Any:
            k = torch.exp(-torch.cdist(x, x).square() / (2 * self.scale.exp()))
            k = k + torch.eye(x.shape[0], dtype=x.dtype) * self.noise.exp()
            chol = torch.linalg.cholesky(k)
            a = torch.cholesky_solve(y[:, None], chol)
            return 0.5 * (y @ a).squeeze() + chol.diagonal().log().sum()

    return Case(GP(), lambda s: (torch.randn(6 + s, 2), torch.randn(6 + s)))


@program
def normalising_flow() -> Case:
    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(4))

        def forward(self, x: Any) -> Any:
            total = x.new_zeros(x.shape[0])
            for i, net in enumerate(self.nets):
                a, b = x.chunk(2, -1)
                if i % 2:
                    a, b = b, a
                s, t = net(a).chunk(2, -1)
                s = torch.tanh(s)
                x = torch.cat([a, b * s.exp() + t], -1)
                total = total + s.sum(-1)
            prior = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=x.dtype), torch.eye(4, dtype=x.dtype))
            return -(prior.log_prob(x) + total).mean()

    return Case(Coupling(), lambda s: (torch.randn(5 + s, 4),))


@program
def stft_vocoder() -> Case:
    class Audio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(17, 17, 3, padding=1)
            self.register_buffer("window", torch.hann_window(32))

        def forward(self, x: Any) -> Any:
            spec = torch.stft(x, 32, 8, window=self.window, return_complex=True)
            mask = torch.sigmoid(self.conv(spec.abs()))
            return torch.istft(spec * mask, 32, 8, window=self.window, length=x.shape[-1])

    return Case(Audio(), lambda s: (torch.randn(2 + s, 128),))


@program
def fourier_neural_operator() -> Case:
    class FNO(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.lin = nn.Parameter(torch.randn(4, 4, 5, 2) * 0.1), nn.Conv1d(4, 4, 1)

        def forward(self, x: Any) -> Any:
            f = torch.fft.rfft(x)
            out = torch.zeros_like(f)
            out[:, :, :5] = torch.einsum("bix,iox->box", f[:, :, :5], torch.view_as_complex(self.w))
            return F.gelu(torch.fft.irfft(out, n=x.size(-1)) + self.lin(x))

    return Case(FNO(), lambda s: (torch.randn(2 + s, 4, 16),))


@program
def dataclass_and_dict_batches() -> Case:
    from dataclasses import dataclass

    @dataclass
    class Batch:
        x: Any
        extra: dict[str, Any]

        def widen(self) -> Any:
            return torch.cat([self.x, *(self.extra[k] for k in sorted(self.extra))], -1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(6, 2), "b": nn.Linear(6, 3)})

        def forward(self, x: Any, u: Any, v: Any) -> Any:
            wide = Batch(x, {"u": u, "v": v}).widen()
            return {name: head(wide) for name, head in self.heads.items()}

    return Case(Model(), lambda s: (torch.randn(3 + s, 2), torch.randn(3 + s, 2), torch.randn(3 + s, 2)))


@program
def variable_length_bucket_padding() -> Case:
    from torch.nn.utils.rnn import pad_sequence

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 4)

        def forward(self, a: Any, b: Any, c: Any) -> Any:
            x = pad_sequence([a, b, c], batch_first=True)
            mask = torch.arange(x.shape[1])[None] < torch.tensor([len(a), len(b), len(c)])[:, None]
            return (self.lin(x) * mask[..., None]).sum(1)

    return Case(Model(), lambda s: (torch.randn(4 + s, 3), torch.randn(2, 3), torch.randn(5 + 2 * s, 3)))


@program
def label_smoothing_mixup_cutmix() -> Case:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, y: Any, lam: Any, order: Any) -> Any:
            x = lam * x + (1 - lam) * x[order]
            x = x.clone()
            x[:, :, 1:3, 1:3] = x[order][:, :, 1:3, 1:3]
            out = self.net(x)
            return lam * F.cross_entropy(out, y, label_smoothing=0.1) + (1 - lam) * F.cross_entropy(
                out, y[order], label_smoothing=0.1
            )

    return Case(
        Mix(),
        lambda s: (
            torch.randn(4 + s, 3, 4, 4),
            torch.randint(0, 5, (4 + s,)),
            torch.tensor(0.7),
            torch.randperm(4 + s),
        ),
    )


@program
def focal_dice_losses() -> Case:
    class Seg(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 1, 3, padding=1)

        def forward(self, x: Any, y: Any) -> Any:
            z = self.conv(x).squeeze(1)
            bce = F.binary_cross_entropy_with_logits(z, y, reduction="none")
            p = torch.exp(-bce)
            focal = (0.25 * (1 - p) ** 2 * bce).mean()
            s = z.sigmoid()
            dice = 1 - (2 * (s * y).sum((1, 2)) + 1) / (s.sum((1, 2)) + y.sum((1, 2)) + 1)
            return focal + dice.mean()

    return Case(Seg(), lambda s: (torch.randn(2 + s, 3, 8, 8), (torch.rand(2 + s, 8, 8) > 0.5).float()))
