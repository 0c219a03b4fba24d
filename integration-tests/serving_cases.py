"""Small language models that serve requests of mixed batch, prompt length and generation mode."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
import zoo

from dynamo_capture import _native

#: Architecture to its class and settings; the weights are random.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "gpt_neox": ("GPTNeoX", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "t5": (
        "T5",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    ),
    "bart": (
        "Bart",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
         "forced_eos_token_id": None},
    ),
}  # fmt: skip
_COMMON = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "max_position_embeddings": 128}  # fmt: skip
_TOKENS = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "decoder_start_token_id": 1}

#: Generation mode to the settings of ``generate``.
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20},
    "beam": {"do_sample": False, "num_beams": 3},
}
BATCHES = (1, 2, 4)
LENGTHS = (5, 7, 9, 12)


def model_of(architecture: str) -> Any:
    """A model with random weights, the same at each call."""
    zoo.import_torchvision()
    import transformers

    name, settings = ARCHITECTURES[architecture]
    encoder_decoder = name in ("T5", "Bart")
    common = {} if encoder_decoder or name == "GPT2" else dict(_COMMON)
    if name == "GPTNeoX":
        common.pop("num_key_value_heads")
    config = getattr(transformers, f"{name}Config")(**{**common, **_TOKENS, **settings})
    kind = "ForConditionalGeneration" if encoder_decoder else "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    torch.manual_seed(5)
    return getattr(transformers, f"{name}{kind}")(config).eval()


def requests(modes: tuple[str, ...] = tuple(MODES), seed: int = 0) -> list[tuple[str, int, int]]:
    """Mode, batch and prompt length of 12 requests for each mode, in a mixed order."""
    mixed = list(itertools.product(modes, BATCHES, LENGTHS))
    random.Random(seed).shuffle(mixed)
    return mixed


def serve(
    model: Any, cache: str, mode: str, batch: int, length: int, *, tokens: int = 5, padded: bool = False
) -> torch.Tensor:
    """The tokens that a request gets.

    Args:
        padded: the first row of a batch is shorter, and padded on the left.
    """
    generator = torch.Generator().manual_seed(100 * batch + length)
    prompt = torch.randint(2, 96, (batch, length), generator=generator)
    mask = torch.ones_like(prompt)
    if padded and batch > 1:
        mask[0, :2] = 0
        prompt[0, :2] = 0
    torch.manual_seed(17)
    return model.generate(
        prompt, attention_mask=mask, max_new_tokens=tokens, cache_implementation=None if cache == "dynamic" else cache,
        disable_compile=True, **MODES[mode],
    )  # fmt: skip


def compiled_forward(model: Any, compile: Callable[[Any], Any]) -> Any:
    """Compile the forward that ``generate`` calls."""
    model.forward = compile(model.forward)
    return model.forward


def live_entries(compiled: Any) -> list[Any]:
    """The cache entries of a compiled function itself."""
    return _native.entries(compiled.__wrapped__.__code__)  # type: ignore[no-any-return]
