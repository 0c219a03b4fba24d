"""The models and programs that tests, benchmarks and the demo share.

Every model has random weights and is built from its configuration: nothing is downloaded. ``build(name)`` gives a
``Case``: an eager module in ``eval()`` mode with example inputs. Sizes are the published ones unless ``small=True``,
which keeps every kind of layer and shrinks widths and depths so that a test is fast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Case:
    """One program to compile: ``model(*args, **kwargs)``.

    ``external`` says that building it imports torchvision, timm or transformers, which import PyTorch's compiler on
    their own.
    """

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    external: bool = False

    def __call__(self) -> Any:
        return self.model(*self.args, **self.kwargs)


_BUILDERS: dict[str, Callable[..., Case]] = {}


def case(name: str) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """Register the builder of the case ``name``."""

    def register(builder: Callable[..., Case]) -> Callable[..., Case]:
        _BUILDERS[name] = builder
        return builder

    return register


def names() -> list[str]:
    """All names that ``build`` takes."""
    return list(_BUILDERS)


def build(name: str, *, seed: int = 0, **settings: Any) -> Case:
    """Build the case ``name``; ``settings`` go to its builder (``batch``, ``length``, ``small`` ...).

    Raises:
        KeyError: no case has that name.
    """
    if name not in _BUILDERS:
        raise KeyError(f"no case named {name!r}; there are {', '.join(_BUILDERS)}")
    torch.manual_seed(seed)
    built = _BUILDERS[name](**settings)
    if isinstance(built.model, nn.Module):
        built.model.eval()
    return built


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in a model's output, in order (``ModelOutput``s and dataclasses included)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "items"):
        return [t for _, v in value.items() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


# --- programs of torch alone --------------------------------------------------------------------------------------


@case("sine")
def _sine(rounds: int = 20, length: int = 10_000) -> Case:
    def sine(x: torch.Tensor) -> torch.Tensor:
        for _ in range(rounds):
            y = torch.sin(x)
            x = x + y
        return x

    return Case("sine", sine, (torch.randn(length),))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A decoder in plain PyTorch: pre-norm blocks, causal attention as one call, tied to nothing outside torch."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@case("transformer")
def _transformer(batch: int = 2, length: int = 128, width: int = 256, depth: int = 4, small: bool = False) -> Case:
    if small:
        width, depth, length = 64, 2, 32
    model = Transformer(1000, width, 4, depth, max(length, 256))
    return Case("transformer", model, (torch.randint(0, 1000, (batch, length)),))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


@case("convnet")
def _convnet(batch: int = 4, side: int = 64, small: bool = False) -> Case:
    if small:
        batch, side = 2, 32
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return Case("convnet", model, (torch.randn(batch, 3, side, side),))


# --- torchvision ---------------------------------------------------------------------------------------------------


def import_torchvision() -> Any:
    """Import torchvision beside a CPU build of torch.

    A torchvision wheel built for CUDA has no C++ operators that this torch can load; its Python models need none, but
    registering their shape rules needs the two operators' schemas to exist.
    """
    if importlib.util.find_spec("torchvision") is None:
        raise ImportError("this case needs torchvision: pip install --no-deps torchvision==0.28.0")
    try:
        import torchvision
    except RuntimeError:
        for schema in (
            "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        ):
            _LIBRARIES.append(torch.library.Library("torchvision", "FRAGMENT"))
            _LIBRARIES[-1].define(schema)
        import torchvision
    return torchvision


_LIBRARIES: list[torch.library.Library] = []


def _vision(name: str, classes: int, side: int) -> Callable[..., Case]:
    def builder(batch: int = 1, side: int = side, small: bool = False, **settings: Any) -> Case:
        models = import_torchvision().models
        if small:
            side = 64
        model = getattr(models, name)(weights=None, num_classes=classes, **settings)
        # Random running statistics: the initial ones (0 and 1) would hide a wrong normalisation.
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        return Case(name, model, (torch.randn(batch, 3, side, side),), external=True)

    return builder


for _name in ("resnet18", "resnet50", "resnext101_32x8d", "densenet121", "convnext_tiny", "efficientnet_b0"):
    case(_name)(_vision(_name, 2 if _name == "resnext101_32x8d" else 1000, 224))


@case("vit_b_16")
def _vit(batch: int = 1, small: bool = False) -> Case:
    models = import_torchvision().models
    if small:
        model = models.VisionTransformer(image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64,
                                         mlp_dim=128, num_classes=10)  # fmt: skip
    else:
        model = models.vit_b_16(weights=None)
    # torchvision starts the head at zero, which would hide every error before it.
    nn.init.normal_(model.heads.head.weight, std=0.02)
    side = 64 if small else 224
    return Case("vit_b_16", model, (torch.randn(batch, 3, side, side),), external=True)


# --- transformers ---------------------------------------------------------------------------------------------------


def _transformers() -> Any:
    import_torchvision()
    import transformers

    return transformers


@case("bert")
def _bert(batch: int = 1, length: int = 128, small: bool = False) -> Case:
    library = _transformers()
    sizes: dict[str, Any] = {}
    if small:
        sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    model = library.BertModel(library.BertConfig(**sizes))
    return Case("bert", model, kwargs=_text(batch, length), external=True)


def _text(batch: int, length: int, vocabulary: int = 1000) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, vocabulary, (batch, length)),
            "attention_mask": torch.ones(batch, length, dtype=torch.long)}  # fmt: skip


@case("gpt2")
def _gpt2(batch: int = 1, length: int = 128, small: bool = False) -> Case:
    library = _transformers()
    sizes: dict[str, Any] = dict(n_embd=64, n_layer=2, n_head=4) if small else {}
    model = library.GPT2LMHeadModel(library.GPT2Config(use_cache=False, **sizes))
    return Case("gpt2", model, (torch.randint(0, 1000, (batch, length)),), external=True)


@case("llama")
def _llama(batch: int = 1, length: int = 128, small: bool = False, layers: int | None = None) -> Case:
    library = _transformers()
    sizes: dict[str, Any] = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
                                 num_key_value_heads=4)  # fmt: skip
    if small:
        sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)  # fmt: skip
    if layers is not None:
        sizes["num_hidden_layers"] = layers
    model = library.LlamaForCausalLM(library.LlamaConfig(vocab_size=1000, use_cache=False, **sizes))
    return Case("llama", model, (torch.randint(0, 1000, (batch, length)),), external=True)


@case("t5_encoder")
def _t5(batch: int = 1, length: int = 128, small: bool = False) -> Case:
    library = _transformers()
    sizes: dict[str, Any] = dict(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4) if small else {}
    model = library.T5EncoderModel(library.T5Config(**sizes))
    return Case("t5_encoder", model, kwargs=_text(batch, length), external=True)
