"""Programs as tutorials and examples write them, in our own words: models, steps, loops and transforms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from model_judge import Case, compare, leaves, summary
from torch import nn

import compile_api

_FOUND: dict[str, Callable[[], Case]] = {}


def program(function: Callable[[], Case]) -> Callable[[], Case]:
    """Register a builder under its name."""
    _FOUND["program/" + function.__name__.replace("_", "-")] = function
    return function


def cases() -> dict[str, Callable[[], Case]]:
    """All of them by name, those of ``cases_steps`` too."""
    import cases_steps

    del cases_steps
    return dict(_FOUND)


def steps(
    make: Callable[[], Any],
    batch: Callable[[int], Any],
    step: Callable[..., Any],
    rounds: int = 4,
    tolerance: float = 1e-4,
) -> Case:
    """``step(state, *batch)`` compiled beside eager for some rounds, on two copies of ``make()``'s state.

    The state is anything with tensors in it; what the step returns and the state's tensors must stay together.
    """

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        eager = make()
        torch.manual_seed(0)
        ours = make()
        compiled = compile_api.compile(step)
        wrong, worst = [], 0.0
        for turn in range(rounds):
            torch.manual_seed(turn)
            given = batch(turn // 2)
            results = []
            for function, state in ((compiled, ours), (step, eager)):
                torch.manual_seed(5)
                results.append(leaves(function(state, *copy.deepcopy(given))) + _state(state))
            off, said = compare(results[0], results[1], None)
            worst = max(worst, off * tolerance / 1e-3)
            if said:
                wrong.append(f"round {turn}: {said}")
        record = {**summary(compiled.report()), "worst": worst, "wrong": wrong}
        record["status"] = (
            "wrong" if wrong else "fallback" if record["fallbacks"] else "break" if record["breaks"] else "ok"
        )
        return record

    return Case(run=run)


def _state(value: Any) -> list[torch.Tensor]:
    if isinstance(value, nn.Module):
        return [t.detach() for t in (*value.parameters(), *value.buffers())]
    if isinstance(value, torch.optim.Optimizer):
        return [t for s in value.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _state(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _state(v)]
    return [value.detach()] if isinstance(value, torch.Tensor) else []


# --- models -----------------------------------------------------------------------------------------------------


@program
def dcgan_generator() -> Case:
    g = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    return Case(g, lambda s: (torch.randn(3 + s, 8, 1, 1),))


@program
def dcgan_discriminator() -> Case:
    d = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip
    return Case(
        d,
        lambda s: (torch.randn(3 + s, 3, 16, 16),),
        loss=lambda out: F.binary_cross_entropy(out, torch.ones_like(out)),
    )


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU())
        self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
        self.decode = nn.Sequential(
            nn.Linear(8, 256), nn.ReLU(), nn.Unflatten(1, (4, 8, 8)), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        )

    def forward(self, x: Any, noise: Any) -> Any:
        h = self.encode(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + (0.5 * spread).exp() * noise
        rebuilt = torch.sigmoid(self.decode(z))
        bce = F.binary_cross_entropy(rebuilt, x, reduction="sum")
        return bce - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())


@program
def vae() -> Case:
    return Case(VAE(), lambda s: (torch.rand(3 + s, 1, 16, 16), torch.randn(3 + s, 8)))


class Seq2Seq(nn.Module):
    """GRU encoder, Bahdanau attention, a decoder fed with its own output."""

    def __init__(self, words: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed, self.encoder, self.decoder = (
            nn.Embedding(words, width),
            nn.GRU(width, width, batch_first=True),
            nn.GRU(2 * width, width, batch_first=True),
        )
        self.wa, self.ua, self.va, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, 1),
            nn.Linear(width, words),
        )

    def forward(self, source: Any) -> Any:
        states, hidden = self.encoder(self.embed(source))
        word = torch.zeros(source.shape[0], 1, dtype=torch.long)
        outputs = []
        for _ in range(5):
            query = hidden.permute(1, 0, 2)
            weights = F.softmax(self.va(torch.tanh(self.wa(query) + self.ua(states))).squeeze(2).unsqueeze(1), -1)
            context = torch.bmm(weights, states)
            output, hidden = self.decoder(torch.cat((self.embed(word), context), 2), hidden)
            logits = self.out(output)
            outputs.append(logits)
            word = logits.argmax(-1).detach()
        return F.log_softmax(torch.cat(outputs, 1), -1)


@program
def seq2seq_attention() -> Case:
    return Case(Seq2Seq(), lambda s: (torch.randint(0, 12, (2 + s, 6 + 2 * s)),))


class CharRNN(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(20, 12),
            kind(12, 16, num_layers=2, batch_first=True, dropout=0.0),
            nn.Linear(16, 20),
        )

    def forward(self, x: Any) -> Any:
        y, _ = self.rnn(self.embed(x))
        return self.out(y)


@program
def char_lstm() -> Case:
    return Case(CharRNN(nn.LSTM), lambda s: (torch.randint(0, 20, (2 + s, 7 + s)),))


@program
def char_gru() -> Case:
    return Case(CharRNN(nn.GRU), lambda s: (torch.randint(0, 20, (2 + s, 7 + s)),))


@program
def char_rnn() -> Case:
    return Case(CharRNN(nn.RNN), lambda s: (torch.randint(0, 20, (2 + s, 7 + s)),))


class PackedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = (
            nn.Embedding(20, 12, padding_idx=0),
            nn.LSTM(12, 8, batch_first=True, bidirectional=True),
            nn.Linear(16, 4),
        )

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.rnn(packed)
        return self.out(torch.cat([hidden[0], hidden[1]], -1))


@program
def packed_lstm() -> Case:
    return Case(PackedLSTM(), lambda s: (torch.randint(1, 20, (3, 7 + s)), torch.tensor([7, 3, 5])))


class TransformerLM(nn.Module):
    def __init__(self, words: int = 30, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 32, 0.0)
        self.encoder, self.embed, self.out, self.width = (
            nn.TransformerEncoder(layer, 2),
            nn.Embedding(words, width),
            nn.Linear(width, words),
            width,
        )
        places = torch.arange(64.0)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        table = torch.zeros(64, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(places), torch.cos(places)
        self.register_buffer("table", table)

    def forward(self, text: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(len(text))
        x = self.embed(text) * math.sqrt(self.width)
        x = x + self.table[: x.size(0)].to(x.dtype)
        return self.out(self.encoder(x, mask.to(x.dtype)))


@program
def transformer_lm() -> Case:
    return Case(TransformerLM(), lambda s: (torch.randint(0, 30, (9 + s, 2 + s)),))


@program
def encoder_decoder() -> Case:
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.net, self.out = (
                nn.Embedding(20, 16),
                nn.Embedding(20, 16),
                nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True),
                nn.Linear(16, 20),
            )

        def forward(self, src: Any, tgt: Any) -> Any:
            mask = self.net.generate_square_subsequent_mask(tgt.shape[1])
            pad = src == 0
            return self.out(
                self.net(
                    self.a(src),
                    self.b(tgt),
                    tgt_mask=mask.to(self.out.weight.dtype),
                    src_key_padding_mask=pad,
                    memory_key_padding_mask=pad,
                )
            )

    def inputs(s: int) -> Any:
        src = torch.randint(1, 20, (2 + s, 7 + s))
        src[0, -2:] = 0
        return src, torch.randint(1, 20, (2 + s, 5 + s))

    return Case(Translator(), inputs)


@program
def cbow() -> Case:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(25, 6), nn.Linear(6, 25)

        def forward(self, context: Any) -> Any:
            return F.log_softmax(self.out(self.embed(context).mean(1)), -1)

    return Case(Bag(), lambda s: (torch.randint(0, 25, (4 + s, 4)),))


@program
def skipgram_negative_sampling() -> Case:
    class SkipGram(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Embedding(25, 6), nn.Embedding(25, 6)

        def forward(self, centre: Any, around: Any, negatives: Any) -> Any:
            v = self.a(centre)
            good = F.logsigmoid((v * self.b(around)).sum(-1))
            bad = F.logsigmoid(-torch.bmm(self.b(negatives), v.unsqueeze(2)).squeeze(2)).sum(1)
            return -(good + bad).mean()

    return Case(
        SkipGram(),
        lambda s: (torch.randint(0, 25, (4 + s,)), torch.randint(0, 25, (4 + s,)), torch.randint(0, 25, (4 + s, 3))),
    )


@program
def embedding_bag_classifier() -> Case:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.EmbeddingBag(25, 8, mode="mean"), nn.Linear(8, 4)

        def forward(self, text: Any, offsets: Any) -> Any:
            return self.out(self.embed(text, offsets))

    return Case(Classifier(), lambda s: (torch.randint(0, 25, (10 + s,)), torch.tensor([0, 3, 7])))


@program
def spatial_transformer() -> Case:
    class STN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(True))
            self.theta = nn.Sequential(nn.Linear(144, 8), nn.ReLU(True), nn.Linear(8, 6))
            self.conv, self.drop, self.out = nn.Conv2d(1, 4, 5), nn.Dropout2d(), nn.Linear(144, 10)
            self.theta[2].bias.data.copy_(torch.tensor([1, 0.1, 0, 0.1, 0.9, 0.05]))

        def forward(self, x: Any) -> Any:
            theta = self.theta(self.look(x).view(-1, 144)).view(-1, 2, 3)
            x = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
            x = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2)).view(-1, 144)
            return F.log_softmax(self.out(x), 1)

    return Case(STN(), lambda s: (torch.randn(3 + s, 1, 16, 16),))


@program
def neural_style() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()
    )
    for p in net.parameters():
        p.requires_grad_(False)

    def gram(x: Any) -> Any:
        a, b, c, d = x.size()
        rows = x.view(a * b, c * d)
        return torch.mm(rows, rows.t()).div(a * b * c * d)

    class Style(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.image = net, nn.Parameter(torch.rand(1, 3, 16, 16))

        def forward(self, content: Any, style: Any) -> Any:
            losses = []
            x, c, s = self.image.clamp(0, 1), content, style
            for name, layer in self.net.named_children():
                x, c, s = layer(x), layer(c), layer(s)
                if isinstance(layer, nn.Conv2d):
                    losses.append(F.mse_loss(gram(x), gram(s).detach()) * 1e3)
                    if name == "3":
                        losses.append(F.mse_loss(x, c.detach()))
            return sum(losses)

    return Case(Style(), lambda s: (torch.rand(1, 3, 16, 16), torch.rand(1, 3, 16 + 2 * s, 16)))


class Residual(nn.Module):
    """A block of a diffusion UNet: group norm, time embedding, attention."""

    def __init__(self, a: int, b: int, attend: bool = False) -> None:
        super().__init__()
        self.n1, self.c1, self.n2, self.c2 = (
            nn.GroupNorm(4, a),
            nn.Conv2d(a, b, 3, padding=1),
            nn.GroupNorm(4, b),
            nn.Conv2d(b, b, 3, padding=1),
        )
        self.time, self.skip = nn.Linear(32, b), nn.Conv2d(a, b, 1) if a != b else nn.Identity()
        self.attend = nn.MultiheadAttention(b, 2, batch_first=True) if attend else None

    def forward(self, x: Any, t: Any) -> Any:
        h = self.c1(F.silu(self.n1(x))) + self.time(F.silu(t))[:, :, None, None]
        h = self.c2(F.silu(self.n2(h))) + self.skip(x)
        if self.attend is not None:
            b, c, hh, ww = h.shape
            rows = h.flatten(2).transpose(1, 2)
            h = h + self.attend(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(b, c, hh, ww)
        return h


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.t = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32)),
        )
        self.d1, self.d2, self.mid = Residual(8, 16), Residual(16, 16), Residual(16, 16, True)
        self.down, self.up = nn.Conv2d(16, 16, 3, 2, 1), nn.ConvTranspose2d(16, 16, 4, 2, 1)
        self.u1, self.u2, self.last = Residual(32, 16), Residual(32, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Any, steps: Any) -> Any:
        freqs = torch.exp(-math.log(1e4) * torch.arange(8, device=x.device) / 8)
        angles = steps[:, None].to(x.dtype) * freqs.to(x.dtype)[None]
        t = self.t(torch.cat([angles.sin(), angles.cos()], -1))
        a = self.d1(self.first(x), t)
        b = self.d2(self.down(a), t)
        m = self.mid(b, t)
        u = self.u1(torch.cat([m, b], 1), t)
        return self.last(self.u2(torch.cat([self.up(u), a], 1), t))


@program
def diffusion_unet() -> Case:
    return Case(UNet(), lambda s: (torch.randn(2 + s, 3, 16, 16 + 8 * s), torch.randint(0, 100, (2 + s,))))


@program
def diffusion_loss() -> Case:
    net = UNet()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.register_buffer("bar", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

        def forward(self, x: Any, noise: Any, t: Any) -> Any:
            a = self.bar[t].view(-1, 1, 1, 1)
            return F.mse_loss(self.net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)

    return Case(
        Loss(),
        lambda s: (torch.randn(2 + s, 3, 16, 16), torch.randn(2 + s, 3, 16, 16), torch.randint(0, 100, (2 + s,))),
    )


@program
def graph_convolution() -> Case:
    class GCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def layer(self, x: Any, edges: Any, lin: Any) -> Any:
            src, dst = edges
            degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, dst, torch.ones(dst.shape[0], dtype=x.dtype))
            weight = degree.clamp(min=1).rsqrt()
            h = lin(x)
            out = torch.zeros_like(h)
            return out.index_add(0, dst, h[src] * (weight[src] * weight[dst])[:, None]) + h

        def forward(self, x: Any, edges: Any) -> Any:
            return F.log_softmax(self.layer(F.relu(self.layer(x, edges, self.a)), edges, self.b), -1)

    return Case(GCN(), lambda s: (torch.randn(7 + s, 6), torch.randint(0, 7, (2, 15 + 3 * s))))


@program
def graph_attention() -> Case:
    class GAT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.a, self.b = nn.Linear(6, 8, bias=False), nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Any, edges: Any) -> Any:
            src, dst = edges[0], edges[1]
            h = self.lin(x)
            e = F.leaky_relu(self.a(h)[src] + self.b(h)[dst], 0.2).squeeze(-1)
            top = torch.full((x.shape[0],), -1e9, dtype=x.dtype).scatter_reduce(0, dst, e, "amax")
            e = (e - top[dst]).exp()
            total = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, dst, e)
            alpha = e / total[dst]
            return torch.zeros_like(h).scatter_add_(0, dst[:, None].expand(-1, 8), alpha[:, None] * h[src])

    return Case(GAT(), lambda s: (torch.randn(7 + s, 6), torch.randint(0, 7, (2, 15 + 3 * s))))


@program
def lora() -> Case:
    class LoRA(nn.Module):
        def __init__(self, base: nn.Linear, rank: int = 2) -> None:
            super().__init__()
            self.base, self.scale = base, 0.5
            self.a, self.b = (
                nn.Parameter(torch.randn(rank, base.in_features) * 0.1),
                nn.Parameter(torch.randn(base.out_features, rank) * 0.1),
            )
            for p in base.parameters():
                p.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale

    net = nn.Sequential(LoRA(nn.Linear(12, 16)), nn.GELU(), nn.LayerNorm(16), LoRA(nn.Linear(16, 4)))
    return Case(net, lambda s: (torch.randn(5 + s, 12),))


@program
def distillation() -> Case:
    class Distil(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)), nn.Linear(8, 5)

        def forward(self, x: Any, y: Any) -> Any:
            with torch.no_grad():
                soft = F.softmax(self.teacher(x) / 2.0, -1)
            out = self.student(x)
            kl = torch.sum(soft * (soft.log() - F.log_softmax(out / 2.0, -1))) / out.size()[0] * 4.0
            return 0.25 * kl + 0.75 * F.cross_entropy(out, y)

    return Case(Distil(), lambda s: (torch.randn(6 + s, 8), torch.randint(0, 5, (6 + s,))))


@program
def contrastive() -> Case:
    class SimCLR(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, a: Any, b: Any) -> Any:
            z = F.normalize(torch.cat([self.net(a), self.net(b)]), dim=1)
            similar = z @ z.T / 0.1
            n = a.shape[0]
            similar = similar.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
            target = torch.cat([torch.arange(n) + n, torch.arange(n)])
            return F.cross_entropy(similar, target)

    return Case(SimCLR(), lambda s: (torch.randn(5 + s, 10), torch.randn(5 + s, 10)))


@program
def triplet_and_siamese() -> Case:
    net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))

    class Triplet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = net, nn.TripletMarginLoss(margin=1.0)

        def forward(self, a: Any, p: Any, n: Any) -> Any:
            a, p, n = self.net(a), self.net(p), self.net(n)
            return self.loss(a, p, n) + F.cosine_embedding_loss(a, n, -torch.ones(a.shape[0], dtype=a.dtype))

    return Case(Triplet(), lambda s: tuple(torch.randn(4 + s, 10) for _ in range(3)))


class CRF(nn.Module):
    """A linear chain: log partition by the forward algorithm, Viterbi by the same with a maximum."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.emit, self.step = nn.Linear(6, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, x: Any, tags: Any) -> Any:
        emissions = self.emit(x)
        score = emissions[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = emissions[:, 0]
        for t in range(1, x.shape[1]):
            score = (
                score + self.step[tags[:, t - 1], tags[:, t]] + emissions[:, t].gather(1, tags[:, t : t + 1]).squeeze(1)
            )
            alpha = torch.logsumexp(alpha[:, :, None] + self.step[None] + emissions[:, t][:, None], 1)
        return (torch.logsumexp(alpha, 1) - score).mean()


@program
def crf() -> Case:
    return Case(CRF(), lambda s: (torch.randn(2 + s, 6, 6), torch.randint(0, 5, (2 + s, 6))))


@program
def viterbi() -> Case:
    def decode(emissions: Any, step: Any) -> Any:
        best, back = emissions[0], []
        for t in range(1, emissions.shape[0]):
            scores = best[:, None] + step
            best, where = scores.max(0)
            best = best + emissions[t]
            back.append(where)
        tag = best.argmax()
        path = [tag]
        for where in reversed(back):
            tag = where[tag]
            path.append(tag)
        return torch.stack(path[::-1]), best.max()

    return Case(decode, lambda s: (torch.randn(6 + s, 5), torch.randn(5, 5)), train=False)


@program
def beam_search() -> Case:
    class Beam(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.out = nn.Embedding(15, 8), nn.GRUCell(8, 12), nn.Linear(12, 15)

        def forward(self, hidden: Any) -> Any:
            batch, beams = hidden.shape[0], 3
            h = hidden[:, None].expand(-1, beams, -1).reshape(batch * beams, -1)
            scores = torch.full((batch, beams), -1e9, dtype=hidden.dtype)
            scores[:, 0] = 0
            words = torch.zeros(batch, beams, 1, dtype=torch.long)
            for _ in range(4):
                h = self.cell(self.embed(words[:, :, -1].reshape(-1)), h)
                logp = F.log_softmax(self.out(h), -1).view(batch, beams, -1)
                total = (scores[:, :, None] + logp).view(batch, -1)
                scores, index = total.topk(beams, -1)
                beam, word = index // 15, index % 15
                rows = (beam + torch.arange(batch)[:, None] * beams).view(-1)
                h = h[rows]
                words = torch.cat(
                    [words.gather(1, beam[:, :, None].expand(-1, -1, words.shape[2])), word[:, :, None]], -1
                )
            return words, scores

    return Case(Beam(), lambda s: (torch.randn(2 + s, 12),), train=False)


@program
def ctc_speech() -> Case:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.rnn, self.out = (
                nn.Conv1d(8, 12, 3, 2, 1),
                nn.GRU(12, 8, batch_first=True, bidirectional=True),
                nn.Linear(16, 10),
            )

        def forward(self, x: Any, y: Any) -> Any:
            h, _ = self.rnn(F.relu(self.conv(x)).transpose(1, 2))
            logp = F.log_softmax(self.out(h), -1).transpose(0, 1)
            n, t = x.shape[0], logp.shape[0]
            return F.ctc_loss(logp, y, torch.full((n,), t), torch.full((n,), y.shape[1]), zero_infinity=True)

    return Case(Speech(), lambda s: (torch.randn(2 + s, 8, 24), torch.randint(1, 10, (2 + s, 4))))


@program
def neural_ode() -> Case:
    class ODE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))

        def rate(self, t: Any, y: Any) -> Any:
            return self.f(torch.cat([y**3, torch.full_like(y[..., :1], t)], -1))

        def forward(self, y: Any) -> Any:
            path, h = [y], 0.1
            for i in range(5):
                t = i * h
                k1 = self.rate(t, y)
                k2 = self.rate(t + h / 2, y + h / 2 * k1)
                k3 = self.rate(t + h / 2, y + h / 2 * k2)
                k4 = self.rate(t + h, y + h * k3)
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                path.append(y)
            return torch.stack(path)

    return Case(ODE(), lambda s: (torch.randn(4 + s, 2),))


@program
def forward_hooks() -> Case:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
            self.kept: dict[str, Any] = {}
            for name, layer in self.net.named_children():
                layer.register_forward_hook(self.keep(name))
            self.net[0].register_forward_pre_hook(lambda m, args: (args[0] * 0.5,))

        def keep(self, name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                self.kept[name] = output

            return hook

        def forward(self, x: Any) -> Any:
            y = self.net(x)
            return y, self.kept["1"].abs().mean()

        def __deepcopy__(self, memo: Any) -> Any:
            twin = Hooked()
            twin.to(self.net[0].weight.dtype)
            twin.load_state_dict(self.state_dict())
            return twin

    return Case(Hooked(), lambda s: (torch.randn(4 + s, 6),))


@program
def mixture_of_experts_routed() -> Case:
    class MoE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Any) -> Any:
            weights, chosen = F.softmax(self.gate(x), -1).topk(2, -1)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                rows, slot = torch.where(chosen == i)
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
            return out

    return Case(MoE(), lambda s: (torch.randn(6 + s, 8),))


@program
def deep_sets_masked() -> Case:
    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(16, 2)

        def forward(self, x: Any, mask: Any) -> Any:
            h = F.relu(self.a(x)).masked_fill(~mask[..., None], 0.0)
            mean = h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
            top = h.masked_fill(~mask[..., None], -1e4).amax(1)
            return self.b(torch.cat([mean, top], -1))

    return Case(Sets(), lambda s: (torch.randn(3 + s, 5 + s, 4), torch.rand(3 + s, 5 + s) > 0.3))


@program
def nerf() -> Case:
    class NeRF(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.colour, self.sigma = (
                nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()),
                nn.Linear(32, 3),
                nn.Linear(32, 1),
            )

        def forward(self, origins: Any, directions: Any) -> Any:
            t = torch.linspace(0.1, 2.0, 8, dtype=origins.dtype)
            points = origins[:, None] + directions[:, None] * t[None, :, None]
            code = torch.cat([points] + [f(points * 2**i) for i in range(4) for f in (torch.sin, torch.cos)], -1)
            h = self.net(code)
            sigma, rgb = F.softplus(self.sigma(h)).squeeze(-1), torch.sigmoid(self.colour(h))
            gaps = torch.cat([t[1:] - t[:-1], torch.full((1,), 1e3, dtype=t.dtype)])
            alpha = 1 - torch.exp(-sigma * gaps)
            through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
            return ((alpha * through)[..., None] * rgb).sum(1)

    return Case(NeRF(), lambda s: (torch.randn(5 + s, 3), F.normalize(torch.randn(5 + s, 3), dim=-1)))


@program
def yolo_head_decode() -> Case:
    def decode(x: Any) -> Any:
        b, _, h, w = x.shape
        x = x.view(b, 3, 7, h, w).permute(0, 1, 3, 4, 2)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([xs, ys], -1).to(x.dtype)
        anchors = torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]], dtype=x.dtype).view(1, 3, 1, 1, 2)
        centre = (x[..., :2].sigmoid() * 2 - 0.5 + grid) * 8
        size = (x[..., 2:4].sigmoid() * 2) ** 2 * anchors
        return torch.cat([centre, size, x[..., 4:].sigmoid()], -1).view(b, -1, 7)

    return Case(decode, lambda s: (torch.randn(2 + s, 21, 4, 5),))


@program
def nms_loop() -> Case:
    def nms(boxes: Any, scores: Any) -> Any:
        order = scores.argsort(descending=True)
        keep = []
        while order.numel() > 0:
            i = order[0]
            keep.append(i)
            if order.numel() == 1:
                break
            rest = boxes[order[1:]]
            low, high = torch.max(boxes[i, :2], rest[:, :2]), torch.min(boxes[i, 2:], rest[:, 2:])
            inter = (high - low).clamp(min=0).prod(1)
            areas = (rest[:, 2:] - rest[:, :2]).prod(1) + (boxes[i, 2:] - boxes[i, :2]).prod() - inter
            order = order[1:][inter / areas <= 0.5]
        return torch.stack(keep)

    def inputs(s: int) -> Any:
        corner = torch.rand(6 + s, 2)
        return torch.cat([corner, corner + 0.5], -1), torch.rand(6 + s)

    return Case(nms, inputs, train=False)
