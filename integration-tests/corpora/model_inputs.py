"""Inputs of a transformers model, from its forward's signature and its configuration: no list of models."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["example_inputs"]

BATCH, LENGTH, SAMPLES, FRAMES = 2, 9, 2000, 64


class Sizes:
    """A configuration's sizes, wherever they stand in it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of these attributes that the configuration or one of its parts has."""
        for part in self.parts(self.config):
            for name in names:
                value = getattr(part, name, None)
                if value is not None:
                    return value
        return default

    def parts(self, config: Any, depth: int = 0) -> Iterator[Any]:
        yield config
        for name, value in vars(config).items():
            if hasattr(value, "to_dict") and name.endswith("config") and depth < 3:
                yield from self.parts(value, depth + 1)

    def vocabulary(self) -> int:
        """The smallest vocabulary of all parts."""
        sizes = [getattr(part, "vocab_size", None) for part in self.parts(self.config)]
        return min((size for size in sizes if isinstance(size, int) and size > 8), default=100)

    def image(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        side = self.find("image_size", "input_size", "img_size", default=64)
        if isinstance(side, dict):
            side = (side.get("height", 64), side.get("width", 64))
        height, width = (side, side) if isinstance(side, int) else tuple(side)[-2:]
        channels = self.find("num_channels", "in_channels", "in_chans", default=3)
        return channels if isinstance(channels, int) else 3, height, width


def value(name: str, sizes: Sizes) -> torch.Tensor | None:
    """An example for a parameter of this name, or None where nothing is known of it."""
    ids = torch.randint(5, max(sizes.vocabulary() - 8, 6), (BATCH, LENGTH))
    match name:
        case "input_ids" | "decoder_input_ids" | "input":
            return ids
        case "attention_mask" | "decoder_attention_mask":
            return torch.ones_like(ids)
        case "token_type_ids":
            return torch.zeros_like(ids)
        case "bbox" | "boxes":
            corner = torch.randint(0, 20, (BATCH, LENGTH, 2))
            return torch.cat([corner, corner + torch.randint(1, 20, (BATCH, LENGTH, 2))], -1)
        case "pixel_values":
            return torch.randn(BATCH, *sizes.image())
        case "input_values":
            return torch.randn(BATCH, SAMPLES)
        case "input_features":
            return torch.randn(BATCH, sizes.find("num_mel_bins", "feature_size", default=80), FRAMES)
        case "past_values" | "inputs" if sizes.find("context_length") is not None:
            return torch.randn(BATCH, sizes.find("context_length"), sizes.find("num_input_channels", default=1))
        case "inputs_embeds" | "hidden_states":
            return torch.randn(BATCH, LENGTH, sizes.find("hidden_size", "d_model", default=32))
    return None


def variants(name: str, sizes: Sizes) -> list[torch.Tensor]:
    """Other examples for what models of the same input read differently: videos, features before time, long sounds."""
    channels, height, width = sizes.image()
    match name:
        case "pixel_values":
            frames = sizes.find("num_frames", "tubelet_size", default=2)
            frames = frames if isinstance(frames, int) else 2
            side = 224 if height != 224 else 64
            return [torch.randn(BATCH, channels, side, side), torch.randn(BATCH, frames, channels, height, width),
                    torch.randn(BATCH, 1, channels, height, width)]  # fmt: skip
        case "input_features":
            bins = sizes.find("num_mel_bins", "feature_size", "input_feat_per_channel", default=80)
            wide = sizes.find("feature_projection_input_dim", "input_dim", default=bins)
            long = 2 * sizes.find("max_source_positions", default=FRAMES)
            return [torch.randn(BATCH, FRAMES, bins), torch.randn(BATCH, FRAMES, wide), torch.randn(BATCH, bins, long),
                    torch.randn(BATCH, 1, 1001, bins)]  # fmt: skip
        case "input_values":
            return [torch.randn(BATCH, 1, 4 * SAMPLES), torch.randn(BATCH, 1024, 128), torch.randn(BATCH, 8 * SAMPLES)]
        case "past_values":
            return [torch.randn(BATCH, sizes.find("context_length", default=32))]
    return []


def example_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Sets of inputs to try, the fullest first; which of them the model takes, a run of it tells."""
    sizes = Sizes(model.config)
    parameters = inspect.signature(model.forward).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
    main = getattr(model, "main_input_name", "input_ids")
    main = main if main in parameters else next(iter(parameters))
    optional = [
        name for name in ("input_ids", "attention_mask", "decoder_input_ids", "bbox", "pixel_values", "input_features")
        if name in parameters
    ]  # fmt: skip
    # A mask is for text: that of an image or a sound has another length.
    masks = ("attention_mask", "decoder_attention_mask") if "input_ids" not in (main, *required) else ()
    full = [name for name in dict.fromkeys([main, *required, *optional]) if name not in masks]
    text = [name for name in full if name not in ("pixel_values", "input_features") or name in (main, *required)]
    bare = list(dict.fromkeys([main, *required]))
    tried: list[list[str]] = []
    for names in (full, text, [*bare, *(n for n in ("decoder_input_ids",) if n in full)], bare):
        given = {name: value(name, sizes) for name in names}
        given = {name: x for name, x in given.items() if x is not None}
        if not given or list(given) in tried:
            continue
        tried.append(list(given))
        yield given
        for name in given:
            for other in variants(name, sizes):
                yield {**given, name: other}
