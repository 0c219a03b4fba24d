"""The programs that people learn PyTorch with, in our own words and small: one graph each where that is possible."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from reports import captured
from torch import nn

import compile_api


def generated(report: Any, graphs: int | None = 1) -> None:
    """Nothing left to eager, kernels generated, and as many graphs as said."""
    assert not report.fallbacks, report.fallbacks
    assert report.kernels
    if graphs is not None:
        assert len(captured(report)) == graphs and not report.breaks, (captured(report), report.breaks)


def train(model: nn.Module, batches: list[Any], loss_of: Any, steps: int = 3, graphs: int | None = 1) -> Any:
    """Train a compiled copy beside the model; losses and parameters must stay together. The report."""
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(twin)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (twin, model))
    for step in range(steps):
        batch = batches[step % len(batches)]
        losses = []
        for module, optimizer in ((compiled, ours), (model, theirs)):
            optimizer.zero_grad()
            loss = loss_of(module, *batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-4)
    for (name, a), b in zip(twin.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    generated(compiled.report(), graphs)
    return compiled.report()


def test_a_first_function():
    @compile_api.compile
    def foo(x, y):
        return torch.sin(x) + torch.cos(y)

    x, y = torch.randn(10, 10), torch.randn(10, 10)
    torch.testing.assert_close(foo(x, y), x.sin() + y.cos())
    generated(foo.report())
    assert len(foo.report().kernels) == 1


def test_a_branch_on_data_breaks_the_graph():
    def bar(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    compiled = compile_api.compile(bar)
    for sign in (1, -1, 1):
        a, b = torch.randn(10), torch.full((10,), float(sign))
        torch.testing.assert_close(compiled(a, b), bar(a, b))
    assert len(captured(compiled.report())) == 3 and not compiled.report().fallbacks


def test_mnist_training():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)
    )
    batches = [(torch.randn(4, 1, 16, 16), torch.randint(0, 10, (4,))) for _ in range(2)]
    train(model, batches, lambda m, x, y: F.nll_loss(F.log_softmax(m(x), 1), y))


class CharRNN(nn.Module):
    """A cell written out, run over a sequence."""

    def __init__(self, letters: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embed, self.cell, self.out = nn.Embedding(letters, 8), nn.LSTMCell(8, hidden), nn.Linear(hidden, letters)

    def forward(self, text):
        h = c = torch.zeros(text.shape[0], self.hidden)
        results = []
        for t in range(text.shape[1]):
            h, c = self.cell(self.embed(text[:, t]), (h, c))
            results.append(self.out(h))
        return torch.stack(results, 1)


def test_char_rnn():
    text = torch.randint(0, 12, (3, 6))
    train(
        CharRNN(12, 16), [(text[:, :-1], text[:, 1:])], lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten())
    )


class Attention(nn.Module):
    """Additive attention over an encoder's states, one decoder step at a time, fed with the target."""

    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.encoder, self.decoder = (
            nn.Embedding(words, hidden),
            nn.GRUCell(hidden, hidden),
            nn.GRUCell(2 * hidden, hidden),
        )
        self.query, self.key, self.score = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden, words)

    def forward(self, source, target):
        h = torch.zeros(source.shape[0], self.out.in_features)
        states = []
        for t in range(source.shape[1]):
            h = self.encoder(self.embed(source[:, t]), h)
            states.append(h)
        keys = torch.stack(states, 1)
        results = []
        for t in range(target.shape[1]):
            weights = self.score(torch.tanh(self.query(h)[:, None] + self.key(keys))).softmax(1)
            context = (weights * keys).sum(1)
            h = self.decoder(torch.cat([self.embed(target[:, t]), context], -1), h)
            results.append(self.out(h).log_softmax(-1))
        return torch.stack(results, 1)


def test_sequence_to_sequence_with_attention():
    source, target = torch.randint(0, 9, (2, 4)), torch.randint(0, 9, (2, 3))
    train(Attention(9, 8), [(source, target)], lambda m, x, y: F.nll_loss(m(x, y).flatten(0, 1), y.flatten()))


def test_dcgan_step():
    g = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    d = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 1, 4), nn.Sigmoid(), nn.Flatten(0)
    )
    noise = torch.randn(3, 6, 1, 1)
    train(nn.Sequential(g, d), [(noise,)], lambda m, z: F.binary_cross_entropy(m(z), torch.ones(3)))


class VAE(nn.Module):
    """With the noise as an argument, so that eager and compiled draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mean, self.spread, self.b, self.c = (
            nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(4, 16), nn.Linear(16, 20),
        )  # fmt: skip

    def forward(self, x, noise):
        h = F.relu(self.a(x))
        mean, log_variance = self.mean(h), self.spread(h)
        z = mean + noise * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.c(F.relu(self.b(z)))), mean, log_variance


def test_variational_autoencoder():
    def loss(model, x, noise):
        out, mean, log_variance = model(x, noise)
        kl = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return (F.binary_cross_entropy(out, x, reduction="sum") + kl) / 50

    train(VAE(), [(torch.rand(5, 20), torch.randn(5, 4))], loss)


def test_q_learning_step():
    policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    target = copy.deepcopy(policy)

    def td_loss(policy, target, state, action, reward, following, final):
        value = policy(state).gather(1, action)
        with torch.no_grad():
            best = torch.zeros(state.shape[0]).masked_scatter(~final, target(following).max(1).values[~final])
        return F.smooth_l1_loss(value, (best * 0.99 + reward)[:, None])

    def masked(policy, target, state, action, reward, following, final):
        value = policy(state).gather(1, action)
        with torch.no_grad():
            best = torch.where(final, 0.0, target(following).max(1).values)
        return F.smooth_l1_loss(value, (best * 0.99 + reward)[:, None])

    batch = (torch.randn(8, 4), torch.randint(0, 2, (8, 1)), torch.randn(8), torch.randn(8, 4), torch.rand(8) > 0.7)
    compiled = compile_api.compile(masked)
    expected = torch.autograd.grad(td_loss(policy, target, *batch), policy.parameters())
    torch.testing.assert_close(torch.autograd.grad(compiled(policy, target, *batch), policy.parameters()), expected)
    generated(compiled.report())


class TransformerLM(nn.Module):
    """Encoder layers under a causal mask, sinusoids for positions."""

    def __init__(self, words: int = 30, width: int = 16) -> None:
        super().__init__()
        self.width, self.embed, self.out = width, nn.Embedding(words, width), nn.Linear(width, words)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        place = torch.arange(64.0)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("places", torch.stack([place.sin(), place.cos()], -1).flatten(1))

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        x = self.embed(text) * math.sqrt(self.width) + self.places[: text.shape[1]]
        return self.out(self.encoder(x, mask=mask, is_causal=True))


def test_transformer_language_model():
    text = torch.randint(0, 30, (2, 9))
    train(
        TransformerLM(), [(text[:, :-1], text[:, 1:])], lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten())
    )


def test_recurrent_layers():
    for layer in (nn.LSTM(4, 8, 2, batch_first=True), nn.GRU(4, 8, bidirectional=True), nn.RNN(4, 8)):
        compiled = compile_api.compile(lambda x, layer=layer: layer(x)[0] * 2 + 1)
        x = torch.randn(3, 5, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x)[0] * 2 + 1, rtol=1e-4, atol=1e-5)
        parameters = list(layer.parameters())
        ours = torch.autograd.grad(compiled(x).square().sum(), parameters)
        theirs = torch.autograd.grad((layer(x)[0] * 2 + 1).square().sum(), parameters)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        assert compiled.report().kernels


class SpatialTransformer(nn.Module):
    """A network that straightens its input before it classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(True), nn.Flatten(), nn.Linear(144, 6))
        self.say = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
        nn.init.zeros_(self.look[-1].weight)
        self.look[-1].bias.data.copy_(torch.tensor([1.0, 0.1, 0, 0, 0.9, 0]))

    def forward(self, x):
        theta = self.look(x).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        return self.say(F.grid_sample(x, grid, align_corners=False))


def test_spatial_transformer():
    batch = (torch.randn(2, 1, 16, 16), torch.randint(0, 10, (2,)))
    twin, model = copy.deepcopy(net := SpatialTransformer()), net
    compiled = compile_api.compile(twin)
    for module in (compiled, model):
        F.cross_entropy(module(batch[0]), batch[1]).backward()
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    generated(compiled.report())


def test_neural_style_loss():
    features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 3, padding=1))

    def gram(x):
        b, c, h, w = x.shape
        rows = x.view(b * c, h * w)
        return rows @ rows.t() / (b * c * h * w)

    def loss(image, content, style):
        total = 0.0
        x, c, s = image, content, style
        for layer in features:
            x, c, s = layer(x), layer(c), layer(s)
            if isinstance(layer, nn.Conv2d):
                total = total + F.mse_loss(gram(x), gram(s).detach()) * 100 + F.mse_loss(x, c.detach())
        return total

    pictures = [torch.rand(1, 3, 12, 12) for _ in range(3)]
    pictures[0].requires_grad_()
    compiled = compile_api.compile(loss)
    (ours,) = torch.autograd.grad(compiled(*pictures), pictures[0])
    (theirs,) = torch.autograd.grad(loss(*pictures), pictures[0])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    generated(compiled.report())


class Experts(nn.Module):
    """Each token goes to its two best experts; every expert sees all tokens, weighted."""

    def __init__(self, width: int = 8, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)) for _ in range(count)
        )

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            share = (weights * (chosen == i)).sum(-1, keepdim=True)
            result = result + share * expert(x)
        return result


def test_mixture_of_experts():
    train(Experts(), [(torch.randn(5, 8), torch.randn(5, 8))], lambda m, x, y: F.mse_loss(m(x), y))


class Decoder(nn.Module):
    """One attention layer with rotary positions and a cache of keys and values that grows as text is generated."""

    def __init__(self, words: int = 20, width: int = 16, heads: int = 2, longest: int = 32) -> None:
        super().__init__()
        self.heads, self.embed = heads, nn.Embedding(words, width)
        self.qkv, self.out, self.say = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, words)
        half = width // heads // 2
        angles = torch.arange(longest)[:, None] * 10000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turn(self, x, start):
        cos, sin = (t[start : start + x.shape[2]] for t in (self.cos, self.sin))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, words, cache=None):
        x = self.embed(words)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        start = 0 if cache is None else cache[0].shape[2]
        q, k = self.turn(q, start), self.turn(k, start)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.say(x + self.out(y.transpose(1, 2).flatten(2))), (k, v)


@torch.no_grad()
def test_decoding_with_a_growing_cache():
    model = Decoder().eval()
    compiled = compile_api.compile(model)
    told = {}
    for name, decoder in (("ours", compiled), ("eager", model)):
        words, text = torch.tensor([[3, 1, 4, 1]]), []
        logits, cache = decoder(words)
        for _ in range(9):
            words = logits[:, -1:].argmax(-1)
            text.append(words.item())
            logits, cache = decoder(words, cache)
        told[name] = text
    assert told["ours"] == told["eager"]
    report = compiled.report()
    assert not report.fallbacks and not report.breaks
    assert len(captured(report)) <= 4  # the prompt, the first step, and one for every later length


def test_word_vectors():
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.a, self.b = nn.Embedding(25, 6), nn.Linear(12, 16), nn.Linear(16, 25)

        def forward(self, context):
            return F.log_softmax(self.b(F.relu(self.a(self.embed(context).view(context.shape[0], -1)))), 1)

    train(Bag(), [(torch.randint(0, 25, (7, 2)), torch.randint(0, 25, (7,)))], lambda m, x, y: F.nll_loss(m(x), y))
