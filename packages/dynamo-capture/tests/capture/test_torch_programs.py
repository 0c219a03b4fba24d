"""Programs of the kind found in PyTorch's tutorials and users' repositories, through capture with the eager backend.

Each case makes a module or function and its inputs. Unless it says otherwise it must be one graph; all must give
eager's results, also on a second call and with other values.
"""
# ruff: noqa

from __future__ import annotations

import collections
import copy
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dynamo_capture.contract import supports_dynamic_shapes
from dynamo_capture.frontend import optimize
from prims.options import Options
from prims.report import Report

CASES = []


def case(graphs=1, breaks=0, grad=False, train=False):
    """`graphs=None`: any number, as long as results are right."""

    def register(make):
        CASES.append(pytest.param(make, graphs, breaks, grad, train, id=make.__name__))
        return make

    return register


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in leaves(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in leaves(v)]
    if hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        return [t for v in vars(value).values() for t in leaves(v)]
    return []


# ---------------------------------------------------------------- modules


@case()
def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)), torch.randn(3, 4)


@case()
def nested_in_dicts():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
            self.lists = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            self.params = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)])
            self.pdict = nn.ParameterDict({"k": nn.Parameter(torch.ones(4))})

        def forward(self, x):
            for name, layer in self.layers.items():
                x = layer(x) if name == "a" else -layer(x)
            for i, layer in enumerate(self.lists):
                x = layer(x) + i
            for p in self.params:
                x = x * p
            return x + self.pdict["k"] + len(self.lists) + self.layers["b"].weight.sum()

    return M(), torch.randn(2, 4)


@case()
def modules_in_plain_containers():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.steps = [self.a, torch.tanh, self.b]
            self.table = {"x": self.a, "f": F.gelu}

        def forward(self, x):
            for step in self.steps:
                x = step(x)
            return self.table["f"](self.table["x"](x))

    return M(), torch.randn(2, 4)


@case()
def buffers_and_registered_constants():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.arange(4.0))
            self.register_buffer("hidden", torch.ones(4), persistent=False)
            self.register_buffer("none", None)
            self.eps = 1e-5
            self.shape = (2, 2)

        def forward(self, x):
            if self.none is None:
                x = x * self.scale + self.hidden
            return (x + self.eps).reshape(-1, *self.shape)

    return M(), torch.randn(3, 4)


@case(graphs=2)  # the attribute is missing only the first time
def lazily_created_attribute():
    class M(nn.Module):
        cache = None

        def forward(self, x):
            if self.cache is None:
                self.cache = torch.ones(4) * 3
            if not hasattr(self, "steps"):
                self.steps = 0
            return x * self.cache

    return M(), torch.randn(2, 4)


@case(graphs=2)  # the cache is empty only the first time
def rotary_cache():
    class Rotary(nn.Module):
        def __init__(self, dim, base=10000):
            super().__init__()
            self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)
            self.seq_len_cached = None
            self.cos_cached = self.sin_cached = None

        def forward(self, x):
            n = x.shape[1]
            if n != self.seq_len_cached:
                self.seq_len_cached = n
                t = torch.arange(n, device=x.device).type_as(self.inv_freq)
                freqs = torch.einsum("i,j->ij", t, self.inv_freq)
                emb = torch.cat((freqs, freqs), dim=-1)
                self.cos_cached, self.sin_cached = emb.cos()[None], emb.sin()[None]
            half = x.shape[-1] // 2
            rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
            return x * self.cos_cached + rotated * self.sin_cached

    return Rotary(8), torch.randn(2, 5, 8)


@case()
def attention_by_hand():
    class SelfAttention(nn.Module):
        def __init__(self, dim=16, heads=4):
            super().__init__()
            self.heads, self.dim = heads, dim // heads
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.register_buffer("mask", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.qkv(x).split(C, dim=2)
            q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
            return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))

    return SelfAttention(), torch.randn(2, 6, 16)


@case()
def multihead_attention():
    m = nn.MultiheadAttention(16, 4, batch_first=True)
    return (lambda x: m(x, x, x, need_weights=False)[0]), torch.randn(2, 5, 16)


@case()
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu", norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 16)


@case()
def transformer_encoder_default():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2), torch.randn(2, 5, 16)


@case()
def transformer_whole():
    m = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    return m, torch.randn(2, 5, 16), torch.randn(2, 4, 16)


@case()
def convnet():
    return (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 3), nn.LogSoftmax(-1),
        ),
        torch.randn(2, 3, 16, 16),
    )


@case(train=True)
def batchnorm_in_training():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), torch.randn(2, 3, 8, 8)


@case()
def unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1)])
            self.up = nn.ModuleList([nn.ConvTranspose2d(8, 4, 2, 2), nn.ConvTranspose2d(8, 1, 2, 2)])

        def forward(self, x):
            skips = []
            for layer in self.down:
                x = F.relu(layer(x))
                skips.append(x)
            for layer, skip in zip(self.up, reversed(skips)):
                x = layer(torch.cat([x, skip], 1) if x.shape[1] != skip.shape[1] else x)
                if skips and x.shape == skips[0].shape:
                    x = torch.cat([x, skips.pop(0)], 1)
            return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    return UNet(), torch.randn(1, 1, 16, 16)


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent(cls, layers):
    m = cls(4, 6, num_layers=layers, batch_first=True, bidirectional=layers == 2).eval()
    check(m, copy.deepcopy(m), (torch.randn(2, 5, 4),), None, 0)


@case(graphs=None, breaks=None)
def lstm_cell_loop():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.LSTMCell(4, 6), nn.Linear(6, 4)

        def forward(self, x):
            h = c = torch.zeros(x.shape[0], 6)
            outs = []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                outs.append(self.out(h))
            return torch.stack(outs, 1)

    return M(), torch.randn(2, 3, 4)


@case()
def embeddings():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(10, 4, padding_idx=0)
            self.p = nn.Parameter(torch.randn(1, 8, 4))

        def forward(self, ids):
            mask = ids != 0
            x = self.e(ids) + self.p[:, : ids.size(1)]
            return (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

    return M(), torch.randint(0, 10, (3, 5))


@case()
def embedding_bag():
    return nn.EmbeddingBag(10, 4, mode="mean"), torch.randint(0, 10, (3, 5))


@case()
def weight_norm_old():
    return nn.utils.weight_norm(nn.Linear(4, 4)), torch.randn(2, 4)


@case()
def weight_norm_parametrized():
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), torch.randn(2, 4)


@case()
def spectral_norm():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), torch.randn(2, 4)


@case()
def parametrize():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    m = nn.Linear(4, 4)
    nn.utils.parametrize.register_parametrization(m, "weight", Symmetric())
    return m, torch.randn(2, 4)


@case()
def forward_hooks():
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    m[0].register_forward_hook(lambda mod, args, out: out * 2)
    m[1].register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    return m, torch.randn(2, 4)


@case(graphs=2)  # the dict is empty only the first time
def hook_that_collects():
    features = {}
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def save(mod, args, out):
        features["relu"] = out

    m[1].register_forward_hook(save)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = m

        def forward(self, x):
            y = self.m(x)
            return y, features["relu"]

    return M(), torch.randn(2, 4)


@case()
def residual_with_stochastic_depth_off():
    class DropPath(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            if self.p == 0.0 or not self.training:
                return x
            keep = 1 - self.p
            mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
            return x * mask / keep

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.d = nn.Linear(4, 4), DropPath(0.1)

        def forward(self, x):
            return x + self.d(self.f(x))

    return nn.Sequential(Block(), Block()), torch.randn(2, 4)


@case()
def mixture_of_experts_dense():
    class MoE(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
            out = torch.stack([e(x) for e in self.experts], 1)
            picked = out.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 4))
            return (picked * weights.unsqueeze(-1)).sum(1)

    return MoE(), torch.randn(5, 4)


@case()
def output_dataclass():
    import dataclasses

    @dataclasses.dataclass
    class Out:
        logits: torch.Tensor
        loss: torch.Tensor | None = None

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            logits = self.f(x)
            loss = F.cross_entropy(logits, labels) if labels is not None else None
            return Out(logits=logits, loss=loss)

    return M(), torch.randn(2, 4), torch.tensor([0, 2])


@case()
def vae():
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.mu, self.lv, self.dec = nn.Linear(8, 4), nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 8)

        def reparameterize(self, mu, logvar):
            std = torch.exp(0.5 * logvar)
            return mu + std * 0.5

        def forward(self, x):
            h = torch.relu(self.enc(x))
            mu, logvar = self.mu(h), self.lv(h)
            recon = torch.sigmoid(self.dec(self.reparameterize(mu, logvar)))
            bce = F.binary_cross_entropy(recon, x.sigmoid(), reduction="sum")
            kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            return recon, bce + kld

    return VAE(), torch.randn(3, 8)


@case()
def state_space_scan():
    def scan(u, delta, A, B, C):
        h = torch.zeros(u.shape[0], A.shape[0])
        ys = []
        for t in range(u.shape[1]):
            dA = torch.exp(delta[:, t, None] * A)
            h = dA * h + delta[:, t, None] * B[:, t] * u[:, t, None]
            ys.append((h * C[:, t]).sum(-1))
        return torch.stack(ys, dim=1)

    return scan, torch.randn(2, 6), torch.rand(2, 6), -torch.rand(4), torch.randn(2, 6, 4), torch.randn(2, 6, 4)


@case()
def inherited_forward():
    class Base(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x, **kwargs):
            return self.head(self.f(x), **kwargs)

        def head(self, x, scale=1):
            return x * scale

    class Child(Base):
        def head(self, x, scale=2, **kwargs):
            return super().head(x, scale=scale) + 1

    return Child(), torch.randn(2, 4)


@case()
def module_with_getattr():
    class Wrapper(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.inner = m

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, x):
            return self.inner(x) + self.weight.sum() + self.in_features

    return Wrapper(nn.Linear(4, 4)), torch.randn(2, 4)


# ---------------------------------------------------------------- functional code


@case()
def einops_like():
    def rearrange(x):
        b, h, w, c = x.shape
        return x.permute(0, 3, 1, 2).reshape(b, c, h // 2, 2, w // 2, 2).transpose(3, 4).flatten(1).unflatten(1, (c, -1))

    return rearrange, torch.randn(2, 4, 4, 3)


@case()
def einsums():
    def f(q, k, v):
        s = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("b h i j, b h j d -> b h i d", s.softmax(-1), v)

    return f, *(torch.randn(1, 2, 3, 4) for _ in range(3))


@case()
def losses():
    def f(x, t):
        return (
            F.cross_entropy(x, t, label_smoothing=0.1), F.nll_loss(x.log_softmax(-1), t), F.mse_loss(x, x * 2),
            F.smooth_l1_loss(x, x + 1), F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
            F.cosine_similarity(x, x + 1), F.normalize(x, dim=-1), F.pairwise_distance(x, x * 2), F.hinge_embedding_loss(x, x.sign()),
        )  # fmt: skip

    return f, torch.randn(3, 4), torch.tensor([0, 1, 3])


@case()
def indexing():
    def f(x, i):
        y = x.clone()
        y[0] = 1
        y[:, i] = 2
        y[..., -1] += 3
        y[torch.arange(2), torch.arange(2)] = 0
        z = x[i][:, None].expand(-1, 2, -1)
        return y, z, x.index_select(0, i), x.take_along_dim(x.argsort(-1), -1), torch.where(x > 0, x, 0)

    return f, torch.randn(4, 4), torch.tensor([1, 2])


@case()
def creation():
    def f(x):
        n = x.size(0)
        return (
            torch.zeros(n, 2), torch.ones_like(x), torch.full((n,), 2.5), torch.arange(n), torch.eye(n), x.new_zeros(3),
            torch.linspace(0, 1, 5), torch.tensor([1.0, 2.0]), torch.tensor(n), torch.triu(torch.ones(n, n), 1).bool(),
            torch.meshgrid(torch.arange(n), torch.arange(2), indexing="ij")[0], torch.empty(0), x + 1,
        )  # fmt: skip

    return f, torch.randn(3, 2)


@case()
def shape_arithmetic():
    def f(x):
        b, c, *spatial = x.shape
        n = math.prod(spatial)
        pad = [(4 - s % 4) % 4 for s in spatial]
        y = F.pad(x, (0, pad[1], 0, pad[0]))
        windows = y.unfold(2, 4, 4).unfold(3, 4, 4)
        return windows.contiguous().view(b, c, -1, 16), n, y.numel() // b, x.stride(), tuple(y.shape), x.dim() * 2

    return f, torch.randn(2, 3, 6, 7)


@case()
def dtype_juggling():
    def f(x):
        y = x.to(torch.float64).half().float()
        if y.dtype == torch.float32 and x.is_floating_point() and not x.is_cuda and x.device.type == "cpu":
            y = y.type_as(x) + torch.finfo(x.dtype).eps
        return y, y.long().bool().to(x.dtype), x.to(x), torch.promote_types(torch.int8, torch.float16) == torch.float16

    return f, torch.randn(3)


@case()
def in_place_chain():
    def f(x):
        y = x.clone().add_(1).mul_(2).clamp_(0, 3)
        y.copy_(y.flip(0))
        y.masked_fill_(y > 2, -1.0)
        y[1:].zero_()
        return y.T.contiguous()

    return f, torch.randn(3, 4)


@case()
def torch_numpy_names():
    def f(x):
        return torch.concat([x, x]), torch.hstack((x, x)), x.swapaxes(0, 1), torch.moveaxis(x, 0, -1), torch.atleast_2d(x), x.square().mean().rsqrt(), torch.clip(x, 0), x.ravel()

    return f, torch.randn(3, 4)


@case()
def sorting_and_topk():
    def f(x):
        v, i = x.topk(2)
        s = x.sort(descending=True)
        m = x.max(-1)
        return v, i, s.values, s.indices, m.values, m[1], x.argmax(), torch.cummax(x, 0)[0], x.unique_consecutive is not None, x.kthvalue(1)[0]

    return f, torch.randn(3, 4)


@case()
def polar_and_complex():
    def f(x):
        z = torch.view_as_complex(x.reshape(2, -1, 2))
        return torch.view_as_real(z * torch.polar(torch.ones(2), torch.ones(2))).flatten(1), z.abs(), z.real

    return f, torch.randn(2, 4)


@case(graphs=None, breaks=None)
def data_dependent_size():
    def f(x):
        y = x[x > 0]
        return y * 2, x.nonzero().shape[1]

    return f, torch.randn(6)


@case(graphs=None, breaks=None)
def item_calls():
    def f(x):
        n = int(x.abs().sum().item() * 0 + 2)
        return x * n + x.tolist()[0][0] * 0

    return f, torch.randn(2, 3)


@case(graphs=None, breaks=None)
def vmap():
    return (lambda x: torch.vmap(lambda row: (row * 2).sum())(x) + 1), torch.randn(2, 3)


@case(graphs=None, breaks=None)
def func_grad():
    return (lambda x: torch.func.grad(lambda v: (v**2).sum())(x) + 1), torch.randn(3)


@case(graphs=None, breaks=None)
def functional_call():
    m = nn.Linear(4, 4)
    p = {k: v.detach() * 2 for k, v in m.named_parameters()}
    return (lambda x: torch.func.functional_call(m, p, (x,))), torch.randn(2, 4)


@case(graphs=None, breaks=None)
def autograd_function():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return (lambda x: Square.apply(x) + 1), torch.randn(3)


@case(graphs=None, breaks=None)
def numpy_roundtrip():
    import numpy as np

    return (lambda x: torch.from_numpy(np.sin(x.numpy())) + 1), torch.randn(3)


@case(graphs=None, breaks=None)
def printing_and_logging():
    import logging

    def f(x):
        logging.getLogger("quiet").debug("x %s", x.shape)
        y = x + 1
        if torch.isnan(y).any():
            raise ValueError("nan")
        return y * 2

    return f, torch.randn(3)


@case(graphs=None, breaks=None)
def greedy_decoding():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.h = nn.Embedding(11, 8), nn.Linear(8, 11)

        def forward(self, ids):
            for _ in range(3):
                logits = self.h(self.e(ids).cumsum(1))
                ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
            return ids

    return LM(), torch.randint(0, 11, (2, 4))


@case(graphs=None, breaks=None)
def deepcopy_and_string_work():
    cfg = {"a": [1, 2], "name": "net_v2"}

    def f(x):
        c = copy.deepcopy(cfg)
        c["a"].append(3)
        version = int(c["name"].split("_v")[1])
        parts = collections.OrderedDict((str(i), x * i) for i in c["a"])
        return functools.reduce(torch.add, parts.values()) * version, ",".join(parts)

    return f, torch.randn(3)


# ---------------------------------------------------------------- running


def check(fn, plain, inputs, graphs, breaks, *, train=False, grad=False):
    report = Report()
    captured = []

    @supports_dynamic_shapes
    def backend(gm, example_inputs):
        captured.append(gm)
        return gm.forward

    if isinstance(fn, nn.Module):
        fn.train(train)
        plain.train(train)
    compiled = optimize(fn, backend, options=Options(strict=True), report=report)
    with torch.set_grad_enabled(grad):
        for time in range(3):
            values = [t + time if t.is_floating_point() else t for t in inputs]
            torch.manual_seed(0)
            expected = plain(*[v.clone() for v in values])
            torch.manual_seed(0)
            got = compiled(*[v.clone() for v in values])
            assert type(got).__qualname__ == type(expected).__qualname__
            a, b = leaves(got), leaves(expected)
            assert len(a) == len(b)
            for p, q in zip(a, b):
                assert p.dtype == q.dtype and p.shape == q.shape
                assert torch.allclose(p, q, atol=1e-5, equal_nan=True) if p.is_floating_point() else torch.equal(p, q)
    if isinstance(fn, nn.Module):
        for (name, p), q in zip(fn.state_dict().items(), plain.state_dict().values()):
            assert torch.equal(p, q), name
    if breaks is not None:
        assert len(report.breaks) == breaks, [b.reason for b in report.breaks]
        assert not report.fallbacks, report.fallbacks
    if graphs is not None:
        assert len(captured) == graphs, report.recompiles


@pytest.mark.parametrize(("make", "graphs", "breaks", "grad", "train"), CASES)
def test_program(make, graphs, breaks, grad, train):
    torch.manual_seed(0)
    fn, *inputs = make()
    torch.manual_seed(0)
    plain, *_ = make()
    check(fn, plain, inputs, graphs, breaks, train=train, grad=grad)
