"""Tiny configurations of transformers' models, made from the configuration class: no list of models.

A size is known by its name's form (``hidden_size``, ``d_model`` and ``vision_embed_dim`` are widths) and made small;
lists with an entry for each layer are cut with the number of layers, with one layer of each kind kept; ids of special
tokens are moved into the vocabulary. What a class wants to be consistent in ways that names do not tell is not guessed:
there are several ways to shrink, from the smallest on, and the first one that builds and runs is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["WAYS", "tiny_configs"]

#: Form of a name -> the most its value may be. The first form that matches counts.
SIZES: list[tuple[str, int]] = [
    (r"(^|_)(num_)?(key_value|kv)_heads?$|num_key_value_heads", 2),
    (r"heads?$|^n_head|num_attention_heads", 4),
    (r"(^|_)head_dim$|^d_kv$|_head_dim$|^dim_head$|^attention_head_size$", 8),
    (r"(^|_)(num_hidden_layers|num_layers|n_layers?|layers|depth|num_blocks)$", 2),
    (r"num_(decoder|encoder)_layers$", 2),
    (r"(intermediate|ffn|mlp|feedforward).*(size|dim)$|^(d_ff|n_inner|ffn_dim)$|(moe|expert).*intermediate_size", 64),
    (r"(^|_)(hidden_size|d_model|n_embd|embed_dim|emb_dim|dim|hidden_dim|embedding_dim|output_dim)$", 32),
    (r"(hidden_size|embed_dim|embedding_size|proj_dim|projection_dim|projection_size|hidden_dim)$", 32),
    (r"vocab_size$|^codebook_size$|^num_embeddings$", 128),
    (r"(max_position_embeddings|n_positions|max_seq_len|max_(source|target)_positions|max_sequence_length)$", 64),
    (r"^(image_size|input_size|pretrain_image_size|img_size)$", 64),
    (r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"(num_experts_per_tok|moe_topk|moe_k)$", 2),
    (r"^(q_lora_rank|kv_lora_rank)$", 16),
    (r"^(qk_nope_head_dim|qk_rope_head_dim|v_head_dim|index_head_dim)$", 8),
    (r"^(num_queries|num_latents|num_patches)$", 16),
    (r"^(state_size|mamba_d_state|ssm_state_size)$", 8),
]  # fmt: skip
#: What the gentler ways make small: numbers of layers, and vocabularies.
DEPTH = re.compile(r"(^|_)(num_hidden_layers|num_layers|n_layers?|layers|depth|num_decoder_layers|num_encoder_layers)$")
VOCABULARY = re.compile(r"vocab_size$")
#: Ids of special tokens, in sub-configurations too.
TOKEN = re.compile(r"_token_(id|index)$")


def limit(name: str) -> int | None:
    """The most that a size of this name may be, or None where the name is no size."""
    for form, most in SIZES:
        if re.search(form, name):
            return most
    return None


def gentle(name: str) -> int | None:
    """The same for widths left alone."""
    return 2 if DEPTH.search(name) else 128 if VOCABULARY.search(name) else None


def shallow(name: str) -> int | None:
    """The same for layers alone."""
    return 2 if DEPTH.search(name) else None


def untouched(name: str) -> int | None:
    """Nothing is made small."""
    return None


def changes(config: Any, most: Callable[[str], int | None]) -> dict[str, Any]:
    """What is to be different in a configuration, sub-configurations as dictionaries."""
    found: dict[str, Any] = {}
    cut: dict[int, int] = {}
    values = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for name, value in values.items():
        wanted = most(name)
        if wanted is not None and isinstance(value, int) and not isinstance(value, bool) and value > wanted:
            found[name] = wanted
            if DEPTH.search(name):
                cut[value] = wanted
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and len(value) in cut and not name.startswith(("out_", "stage_")):
            found[name] = type(value)(kinds(value, cut[len(value)]))
        elif hasattr(value, "to_dict") and name.endswith("config"):
            inner = changes(value, most)
            if inner:
                found[name] = {**value.to_dict(), **inner}
    vocabulary = found.get("vocab_size", values.get("vocab_size"))
    if not isinstance(vocabulary, int):
        vocabulary = next((v["vocab_size"] for v in found.values() if isinstance(v, dict) and "vocab_size" in v), None)
    if isinstance(vocabulary, int):
        taken = 3
        for name in sorted(values):
            value = values[name]
            if TOKEN.search(name) and isinstance(value, int) and value >= vocabulary:
                found[name] = vocabulary - taken
                taken += 1
    return found


def kinds(entries: Any, count: int) -> list[Any]:
    """So many entries of a list with one for each layer, of as many kinds as there is room for, in their order."""
    chosen = [k for k, entry in enumerate(entries) if entry not in entries[:k]][:count]
    chosen += [k for k in range(len(entries)) if k not in chosen][: count - len(chosen)]
    return [entries[k] for k in sorted(chosen)]


def by_constructor(cls: type, most: Callable[[str], int | None]) -> Any:
    """A configuration made with the changed values, from which it derives others."""
    return cls(**changes(cls(), most))


def by_attributes(cls: type, most: Callable[[str], int | None]) -> Any:
    """The default configuration with values changed in place; what is derived stays."""
    config = cls()
    _assign(config, changes(config, most))
    return config


def _assign(config: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        old = getattr(config, name, None)
        try:
            if isinstance(value, dict) and hasattr(old, "to_dict"):
                _assign(old, {k: v for k, v in value.items() if v != getattr(old, k, None)})
            else:
                setattr(config, name, value)
        except Exception:  # an attribute that is computed, or checked alone
            continue


#: Ways to shrink, the smallest first.
WAYS: dict[str, Callable[[type], Any]] = {
    "all sizes": lambda cls: by_constructor(cls, limit),
    "all sizes, in place": lambda cls: by_attributes(cls, limit),
    "layers and vocabulary": lambda cls: by_constructor(cls, gentle),
    "layers and vocabulary, in place": lambda cls: by_attributes(cls, gentle),
    "layers": lambda cls: by_constructor(cls, shallow),
    "as it is": lambda cls: by_constructor(cls, untouched),
}


def tiny_configs(cls: type) -> Iterator[tuple[str, Any]]:
    """Configurations of a class, the smallest first, with how each was made; one that cannot be made is left out."""
    for way, make in WAYS.items():
        try:
            yield way, make(cls)
        except Exception:  # the class checks its values: the next way keeps more of them
            continue
