"""The models of ``device_time.py``: name to a builder of ``(model, args, kwargs)`` on the CPU, with their sizes.

Those of the zoo keep its builders; the others are built here, with random weights, so that nothing is fetched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import zoo
from torch import Tensor, nn

Built = tuple[Any, tuple[Any, ...], dict[str, Any]]
MODELS: dict[str, Callable[[], Built]] = {}
#: Those whose training step is measured too.
TRAINED = ("resnet50", "gpt2", "vit_b_16", "bert", "llama")
#: Those whose whole step is.
STEPPED = ("resnet50_b128", "bert_b32", "gpt2_l1024", "vit_b128", "llama_12", "unet")


def model(name: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Register a builder."""

    def register(builder: Callable[[], Built]) -> Callable[[], Built]:
        MODELS[name] = builder
        return builder

    return register


def _of_zoo(name: str, here: str | None = None, **settings: Any) -> None:
    """A model of the zoo, under another name ``here``."""

    def builder() -> Built:
        case = zoo.build(name, **settings)
        return case.model, case.args, case.kwargs

    MODELS[here or name] = builder


_of_zoo("resnet50", batch=32)
_of_zoo("gpt2", batch=8, length=512)
_of_zoo("vit_b_16", batch=64)
_of_zoo("bert", batch=16, length=512)
_of_zoo("llama", batch=4, length=1024)
_of_zoo("t5_encoder", batch=16, length=512)
_of_zoo("densenet121", batch=16, side=128)
_of_zoo("convnext_tiny", batch=64)
_of_zoo("efficientnet_b0", batch=64)
_of_zoo("resnet50", "resnet50_b128", batch=128)
_of_zoo("bert", "bert_b32", batch=32, length=512)
_of_zoo("gpt2", "gpt2_l1024", batch=8, length=1024)
_of_zoo("vit_b_16", "vit_b128", batch=128)
_of_zoo("sine", length=64 << 20, rounds=20)


def _vision(name: str) -> Built:
    built = getattr(zoo.import_torchvision().models, name)(weights=None)
    return built, (torch.randn(64, 3, 224, 224),), {}


model("mobilenet_v3_large")(lambda: _vision("mobilenet_v3_large"))
model("swin_t")(lambda: _vision("swin_t"))


class _Double(nn.Sequential):
    """Two 3x3 convolutions, each with a batch norm and a ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for source in (inputs, outputs):
            layers += [nn.Conv2d(source, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Ronneberger et al. 2015 with batch norm and bilinear upsampling. Images ``(batch, 3, side, side)``."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.first = _Double(3, width)
        self.down = nn.ModuleList(_Double(a, b) for a, b in itertools.pairwise(sizes))
        self.up = nn.ModuleList(_Double(a + b, a) for a, b in itertools.pairwise(sizes))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.first(x)]
        for block in self.down:
            skips.append(block(nn.functional.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for block in reversed(self.up):
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = block(torch.cat([skips.pop(), x], 1))
        return self.last(x)


@model("unet")
def _unet() -> Built:
    return UNet(), (torch.randn(8, 3, 256, 256),), {}


class DLRM(nn.Module):
    """Naumov et al. 2019: embedding bags, a bottom and a top MLP, pairwise interactions."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 128) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        features = tables + 1
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)
        self.top = nn.Sequential(nn.Linear(width + features * (features - 1) // 2, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))  # fmt: skip

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = [bag(indices[i], offsets[i]) for i, bag in enumerate(self.bags)]
        stacked = torch.stack([x, *rows], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))


@model("dlrm")
def _dlrm() -> Built:
    batch, each, tables = 2048, 4, 26
    indices = torch.randint(0, 100_000, (tables, batch * each))
    offsets = torch.arange(0, batch * each, each).repeat(tables, 1)
    return DLRM(), (torch.randn(batch, 13), indices, offsets), {}


class _Norms(nn.Module):
    """Normalisations that no library kernel covers, one after the other."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight
        x = x / x.abs().amax(-1, keepdim=True).clamp_min(1e-4)
        x = torch.nn.functional.normalize(x, p=3.0, dim=-1) * x.shape[-1] ** 0.5
        mean = x.mean((0, 1), keepdim=True)
        x = (x - mean) * torch.rsqrt((x - mean).square().mean((0, 1), keepdim=True) + 1e-5)
        return torch.softmax(x, -1) * torch.logsumexp(x, -1, keepdim=True) + self.bias


@model("norms")
def _norms() -> Built:
    return nn.Sequential(*(_Norms() for _ in range(4))), (torch.randn(64, 512, 1024),), {}


def _transformers() -> Any:
    return zoo._transformers()


@model("deberta_v2")
def _deberta() -> Built:
    library = _transformers()
    config = library.DebertaV2Config(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
                                     vocab_size=32_000, relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm",
                                     share_att_key=True, pos_att_type=["p2c", "c2p"])  # fmt: skip
    ids = torch.randint(0, 32_000, (4, 256))
    return library.DebertaV2Model(config), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@model("llama_12")
def _llama_12() -> Built:
    library = _transformers()
    config = library.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
                                 num_key_value_heads=16, vocab_size=32_000, use_cache=False)  # fmt: skip
    return library.LlamaForCausalLM(config), (torch.randint(0, 32_000, (4, 1024)),), {}


@model("mixtral")
def _mixtral() -> Built:
    library = _transformers()
    config = library.MixtralConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
                                   num_key_value_heads=4, num_local_experts=8, vocab_size=8_000, use_cache=False)  # fmt: skip
    return library.MixtralForCausalLM(config), (torch.randint(0, 8_000, (4, 256)),), {}


@model("whisper_encoder")
def _whisper() -> Built:
    library = _transformers()
    config = library.WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(config), (torch.randn(8, 80, 3000),), {}


@model("linear_relu")
def _linear_relu() -> Built:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU()), (torch.randn(32, 512),), {}
