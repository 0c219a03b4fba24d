"""Every transformers model type that builds small with random weights: is its forward captured as one graph?

    python integration-tests/sweeps/sweep_transformers.py [model_type ...] [--all]

For each type a tiny configuration is made, the model is run eagerly, and then with ``fullgraph=True`` and a backend
that runs the captured graph as it is. One line per type: ``ok`` (one graph, equal outputs), ``break`` (with the
reason), ``wrong``, ``error``, or ``unbuilt`` (the tiny configuration does not build or run eagerly). At the end, the
share of the built ones that are ok.
"""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import zoo

import dynamo_capture
from prims.errors import Unsupported
from prims.options import Options

#: Attribute of a configuration -> its tiny value.
TINY: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32, "num_hidden_layers": 2,
    "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2,
    "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "intermediate_size": 64, "ffn_dim": 64, "d_ff": 64, "hidden_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "n_inner": 64, "vocab_size": 128, "max_position_embeddings": 64, "n_positions": 64, "image_size": 32,
    "patch_size": 8, "num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 32, "embedding_size": 16,
    "word_embed_proj_dim": 32, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "projection_dim": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "type_vocab_size": 2, "state_size": 4,
    "mlp_ratio": 2, "max_seq_len": 64, "sliding_window": 8, "attention_window": 8,
}  # fmt: skip


class TooLong(Exception):
    """A model took longer than its share of time."""


def shrink(config: Any, depth: int = 0) -> Any:
    """Set every size that the configuration has to its tiny value, in nested configurations too."""
    for name, value in TINY.items():
        old = getattr(config, name, None)
        if isinstance(old, int) and not isinstance(old, bool) and old > value or name.endswith("_token_id") and old:
            try:
                setattr(config, name, value)
            except (AttributeError, NotImplementedError, ValueError):
                continue
    if depth < 2:
        for name in list(vars(config)):
            if name.endswith("_config") and hasattr(getattr(config, name), "to_dict"):
                shrink(getattr(config, name), depth + 1)
    return config


def inputs_for(model: Any) -> dict[str, Any]:
    """Example inputs by the model's main input."""
    config = model.config
    ids = torch.randint(5, 100, (2, 9))
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        size = getattr(getattr(config, "vision_config", config), "image_size", 32)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), height, width)}
    if main == "input_values":
        return {"input_values": torch.randn(2, 2000)}
    if main == "input_features":
        bins = getattr(config, "num_mel_bins", 8)
        return {"input_features": torch.randn(2, bins, 64), "decoder_input_ids": ids}
    result = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(config, "is_encoder_decoder", False):
        result["decoder_input_ids"] = ids
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        size = getattr(config.vision_config, "image_size", 32)
        if isinstance(size, int):
            result["pixel_values"] = torch.randn(2, 3, size, size)
    return result


def build(model_type: str) -> tuple[Any, dict[str, Any], Any]:
    """A tiny model, its inputs, and its eager output.

    Raises:
        Exception: it does not build or run; tried with images and without.
    """
    import transformers

    config = shrink(transformers.CONFIG_MAPPING[model_type]())
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    inputs = inputs_for(model)
    for attempt in (inputs, {k: v for k, v in inputs.items() if k != "pixel_values"},
                    {k: v for k, v in inputs.items() if k != "attention_mask"}):  # fmt: skip
        try:
            with torch.no_grad():
                torch.manual_seed(0)
                return model, attempt, model(**attempt)
        except Exception as error:
            last = error
    raise last


def check(model_type: str) -> tuple[str, str]:
    """The verdict on one model type, with a detail."""
    try:
        model, inputs, expected = build(model_type)
    except TooLong:
        return "unbuilt", "too slow"
    except Exception as error:
        return "unbuilt", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    start = time.perf_counter()
    compiled: Any = dynamo_capture.optimize(model, lambda gm, xs: gm.forward, options=Options(fullgraph=True, strict=True))
    try:
        with torch.no_grad():
            torch.manual_seed(0)
            got = compiled(**inputs)
    except Unsupported as error:
        lines = str(error).splitlines()
        return "break", " | ".join(line.strip() for line in lines[:3])
    except TooLong:
        return "error", "too slow"
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    seconds = f"{time.perf_counter() - start:.2f} s"
    if equal(got, expected):
        return "ok", seconds
    return ("ok", seconds + ", as eager's own branch for compilers") if equal(got, as_compiling(model, inputs)) else ("wrong", seconds)


def equal(got: Any, expected: Any) -> bool:
    """Whether two outputs have the same type and equal tensors."""
    a, b = zoo.tensors(got), zoo.tensors(expected)
    if type(got) is not type(expected) or len(a) != len(b):
        return False
    return all(x.shape == y.shape and torch.allclose(x, y, atol=1e-5, equal_nan=True) for x, y in zip(a, b, strict=True))


def as_compiling(model: Any, inputs: dict[str, Any]) -> Any:
    """Eager's output with ``torch.compiler.is_compiling()`` true: a few models mask differently then."""
    original = torch.compiler.is_compiling
    torch.compiler.is_compiling = lambda: True  # type: ignore[assignment]
    try:
        with torch.no_grad():
            torch.manual_seed(0)
            return model(**inputs)
    finally:
        torch.compiler.is_compiling = original


def main(arguments: list[str]) -> None:
    """Sweep the model types named, or all."""
    warnings.filterwarnings("ignore")
    zoo.build("resnet18", small=True)  # makes torchvision importable
    import transformers

    transformers.logging.set_verbosity_error()

    def alarm(signum: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, alarm)
    names = [a for a in arguments if not a.startswith("-")] or sorted(transformers.CONFIG_MAPPING)
    verdicts: Counter[str] = Counter()
    for name in names:
        signal.alarm(60)
        try:
            verdict, detail = check(name)
        except TooLong:
            verdict, detail = "error", "too slow"
        finally:
            signal.alarm(0)
        verdicts[verdict] += 1
        print(f"{verdict:8} {name:32} {detail[:400]}", flush=True)
        dynamo_capture.reset()
    built = sum(verdicts.values()) - verdicts["unbuilt"]
    print(f"{verdicts['ok']} of {built} built types in one graph; {dict(verdicts)}")


if __name__ == "__main__":
    main(sys.argv[1:])
