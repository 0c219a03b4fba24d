"""transformers' models with tiny configurations: every type's base model, heads with losses, and decoding."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sweep_transformers
import torch
from model_judge import Case, without_chance

import compile_api

#: name -> (class, task, configuration beyond the tiny values).
HEADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "lm", {}), "bert-cls": ("BertForSequenceClassification", "class", {}),
    "bert-tok": ("BertForTokenClassification", "lm", {}), "bert-qa": ("BertForQuestionAnswering", "qa", {}),
    "roberta": ("RobertaForMaskedLM", "lm", {}), "distilbert": ("DistilBertForMaskedLM", "lm", {}),
    "albert": ("AlbertForMaskedLM", "lm", {}), "electra": ("ElectraForPreTraining", "lm2", {}),
    "deberta-v2": ("DebertaV2ForMaskedLM", "lm", {}), "mpnet": ("MPNetForMaskedLM", "lm", {}),
    "xlnet": ("XLNetLMHeadModel", "lm", {}), "gpt2": ("GPT2LMHeadModel", "lm", {}),
    "gpt_neo": ("GPTNeoForCausalLM", "lm", {"attention_types": [[["global", "local"], 1]]}),
    "gpt_neox": ("GPTNeoXForCausalLM", "lm", {}), "gptj": ("GPTJForCausalLM", "lm", {"rotary_dim": 4}),
    "opt": ("OPTForCausalLM", "lm", {}), "bloom": ("BloomForCausalLM", "lm", {}), "llama": ("LlamaForCausalLM", "lm", {}),
    "mistral": ("MistralForCausalLM", "lm", {}), "mixtral": ("MixtralForCausalLM", "lm", {"output_router_logits": True}),
    "qwen2": ("Qwen2ForCausalLM", "lm", {}), "qwen3": ("Qwen3ForCausalLM", "lm", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "lm", {}), "gemma": ("GemmaForCausalLM", "lm", {}),
    "gemma2": ("Gemma2ForCausalLM", "lm", {}), "gemma3_text": ("Gemma3ForCausalLM", "lm", {}),
    "phi": ("PhiForCausalLM", "lm", {}), "phi3": ("Phi3ForCausalLM", "lm", {}), "falcon": ("FalconForCausalLM", "lm", {}),
    "mamba": ("MambaForCausalLM", "lm", {}), "mamba2": ("Mamba2ForCausalLM", "lm", {"num_heads": 8, "head_dim": 8, "n_groups": 2}),
    "rwkv": ("RwkvForCausalLM", "lm", {"attention_hidden_size": 32, "num_hidden_layers": 2}), "t5": ("T5ForConditionalGeneration", "lm", {}),
    "bart": ("BartForConditionalGeneration", "lm", {}), "pegasus": ("PegasusForConditionalGeneration", "lm", {}),
    "marian": ("MarianMTModel", "lm", {"decoder_vocab_size": 128}), "whisper": ("WhisperForConditionalGeneration", "speech2seq", {}),
    "wav2vec2": ("Wav2Vec2ForCTC", "ctc", {}), "hubert": ("HubertForCTC", "ctc", {}), "clip": ("CLIPModel", "clip", {}),
    "siglip": ("SiglipModel", "clip", {}), "vit": ("ViTForImageClassification", "image", {}),
    "deit": ("DeiTForImageClassification", "image", {}), "swin": ("SwinForImageClassification", "image", {"image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}),
    "beit": ("BeitForImageClassification", "image", {}),
    "convnext": ("ConvNextForImageClassification", "image", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 64, "patch_size": 4}),
    "dinov2": ("Dinov2ForImageClassification", "image", {}),
    "segformer": ("SegformerForSemanticSegmentation", "segment", {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16}),
    "resnet": ("ResNetForImageClassification", "image", {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}),
    "mobilevit": ("MobileViTForImageClassification", "image", {"image_size": 64, "patch_size": 2}),
    "regnet": ("RegNetForImageClassification", "image", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 8, "embedding_size": 8}),
    "vilt": ("ViltModel", "vilt", {}),
    "timesformer": ("TimesformerForVideoClassification", "video", {"num_frames": 2}),
    "videomae": ("VideoMAEForVideoClassification", "video", {"num_frames": 2}),
    "dpt": ("DPTForDepthEstimation", "image1", {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "backbone_out_indices": [0, 0, 1, 1]}),
    "time_series_transformer": ("TimeSeriesTransformerModel", "series", {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]}),
    "patchtst": ("PatchTSTForPrediction", "patchtst", {"num_input_channels": 2, "context_length": 32, "patch_length": 4, "prediction_length": 4}),
    "roformer": ("RoFormerForMaskedLM", "lm", {}), "funnel": ("FunnelForMaskedLM", "lm", {"block_sizes": [1, 1, 1]}),
    "longformer": ("LongformerForMaskedLM", "lm", {"attention_window": [8, 8]}), "big_bird": ("BigBirdForMaskedLM", "lm", {"attention_type": "original_full"}),
    "xlm": ("XLMWithLMHeadModel", "lm", {}), "ctrl": ("CTRLLMHeadModel", "lm", {}),
    "codegen": ("CodeGenForCausalLM", "lm", {"rotary_dim": 4}), "biogpt": ("BioGptForCausalLM", "lm", {}), "xglm": ("XGLMForCausalLM", "lm", {}),
    "stablelm": ("StableLmForCausalLM", "lm", {}), "starcoder2": ("Starcoder2ForCausalLM", "lm", {}), "olmo2": ("Olmo2ForCausalLM", "lm", {}),
    "cohere": ("CohereForCausalLM", "lm", {}), "granite": ("GraniteForCausalLM", "lm", {}), "nemotron": ("NemotronForCausalLM", "lm", {"num_key_value_heads": 2, "head_dim": 8}),
    "led": ("LEDForConditionalGeneration", "lm", {"attention_window": [8, 8]}), "mbart": ("MBartForConditionalGeneration", "lm", {}),
    "m2m_100": ("M2M100ForConditionalGeneration", "lm", {}), "prophetnet": ("ProphetNetForConditionalGeneration", "lm", {}),
    "speech_to_text": ("Speech2TextForConditionalGeneration", "speech2seq", {}),
    "wavlm": ("WavLMForCTC", "ctc", {}), "sew": ("SEWForCTC", "ctc", {}), "data2vec-audio": ("Data2VecAudioForCTC", "ctc", {}),
    "layoutlm": ("LayoutLMForMaskedLM", "lm", {}), "mobilebert": ("MobileBertForMaskedLM", "lm", {}), "squeezebert": ("SqueezeBertForMaskedLM", "lm", {"embedding_size": 32}),
    "convbert": ("ConvBertForMaskedLM", "lm", {}), "fnet": ("FNetForMaskedLM", "lmnomask", {}), "nystromformer": ("NystromformerForMaskedLM", "lm", {"num_landmarks": 3, "segment_means_seq_len": 9}),
    "modernbert": ("ModernBertForMaskedLM", "lm", {}),
    "switch_transformers": ("SwitchTransformersForConditionalGeneration", "lm", {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    "jamba": ("JambaForCausalLM", "lm", {"use_mamba_kernels": False}), "recurrent_gemma": ("RecurrentGemmaForCausalLM", "lm", {"lru_width": 32}),
    "gpt_oss": ("GptOssForCausalLM", "lm", {}), "deepseek_v3": ("DeepseekV3ForCausalLM", "lm", {"n_group": 1, "topk_group": 1, "num_key_value_heads": 4}),
    "llama4_text": ("Llama4ForCausalLM", "lm", {}), "zamba2": ("Zamba2ForCausalLM", "lm", {}),
}  # fmt: skip
#: Sizes: batch and length.
SHAPES = ((2, 9), (3, 14))


def text(task: str, vocabulary: int, decoder: bool) -> Callable[[int], dict[str, Any]]:
    def inputs(size: int) -> dict[str, Any]:
        batch, length = SHAPES[size]
        ids = torch.randint(3, vocabulary, (batch, length))
        given: dict[str, Any] = {"input_ids": ids}
        if task != "lmnomask":
            given["attention_mask"] = torch.ones_like(ids)
            if not decoder:
                given["attention_mask"][0, -2:] = 0
        if task in ("lm", "lmnomask"):
            given["labels"] = torch.randint(3, vocabulary, ids.shape)
        elif task == "lm2":
            given["labels"] = torch.randint(0, 2, ids.shape)
        elif task == "class":
            given["labels"] = torch.randint(0, 2, (batch,))
        elif task == "qa":
            given |= {"start_positions": torch.randint(0, 9, (batch,)), "end_positions": torch.randint(0, 9, (batch,))}
        return given

    return inputs


def others(task: str, config: Any) -> Callable[[int], dict[str, Any]]:
    def inputs(size: int) -> dict[str, Any]:
        batch, length = SHAPES[size]
        vision = getattr(config, "vision_config", config)
        side = getattr(vision, "image_size", 64)
        side = side[0] if isinstance(side, (tuple, list)) else side if isinstance(side, int) else 64
        if task in ("image", "image1", "segment"):
            given = {"pixel_values": torch.randn(batch, 3, side, side)}
            if task == "image":
                given["labels"] = torch.randint(0, 2, (batch,))
            if task == "segment":
                given["labels"] = torch.randint(0, 2, (batch, side, side))
            return given
        if task == "video":
            return {"pixel_values": torch.randn(batch, 2, 3, side, side), "labels": torch.randint(0, 2, (batch,))}
        if task == "clip":
            ids = torch.randint(3, 99, (batch, length))
            ids[:, -1] = 2
            return {"input_ids": ids, "pixel_values": torch.randn(batch, 3, side, side), "return_loss": True}
        if task == "vilt":
            return {
                "input_ids": torch.randint(3, 99, (batch, length)),
                "pixel_values": torch.randn(batch, 3, side, side),
            }
        if task == "ctc":
            return {"input_values": torch.randn(batch, 2000 + 400 * size), "labels": torch.randint(3, 30, (batch, 2))}
        if task == "speech2seq":
            frames = 64 if config.model_type == "whisper" else (64, 80)[size]
            bins = (
                (8, frames)
                if config.model_type == "whisper"
                else (frames, getattr(config, "input_feat_per_channel", 80))
            )
            return {"input_features": torch.randn(batch, *bins), "labels": torch.randint(3, 99, (batch, length))}
        if task == "series":
            past = config.context_length + max(config.lags_sequence)
            return {
                "past_values": torch.randn(batch, past), "past_time_features": torch.randn(batch, past, config.num_time_features),
                "past_observed_mask": torch.ones(batch, past), "future_values": torch.randn(batch, 4),
                "future_time_features": torch.randn(batch, 4, config.num_time_features),
            }  # fmt: skip
        if task == "patchtst":
            return {"past_values": torch.randn(batch, 32, 2), "future_values": torch.randn(batch, 4, 2)}
        return {"input_ids": torch.randint(3, 99, (batch, length))}

    return inputs


def head_config(name: str, **more: Any) -> tuple[Any, Any, str]:
    """The class, its tiny configuration, and its task."""
    import transformers

    cls_name, task, given = HEADS[name]
    model_type = name.split("-")[0] if name.startswith("bert-") else name
    config_class = transformers.CONFIG_MAPPING[model_type]
    config = sweep_transformers.shrink(config_class())
    for key, value in {**given, **more}.items():
        setattr(config, key, value)
    for key, value in {"num_labels": 2}.items():
        if task in ("class", "image", "video", "segment") or name == "bert-tok":
            setattr(config, key, value)
    if task == "clip":
        config.text_config.eos_token_id = 2
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = 1
    return getattr(transformers, cls_name), config, task


def head(name: str, **more: Any) -> Case:
    """A model with a head and its labels."""
    implementation = more.pop("attn_implementation", None)
    checkpointing = more.pop("checkpointing", False)
    cls, config, task = head_config(name, **more)
    if implementation:
        config._attn_implementation = implementation
    torch.manual_seed(0)
    model = cls(config)
    if checkpointing:
        model.gradient_checkpointing_enable()
    if task in ("lm", "lm2", "lmnomask", "class", "qa"):
        vocabulary = 2 if name == "bert-tok" else 99
        decoder = any(word in type(model).__name__ for word in ("CausalLM", "LMHead"))
        inputs = text(task, vocabulary, decoder)
        if name == "bert-tok":
            inputs = _token_labels(text("none", 99, decoder))
        return Case(model, inputs)
    return Case(model, others(task, config))


def _token_labels(inner: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    def inputs(size: int) -> dict[str, Any]:
        given = inner(size)
        return {**given, "labels": torch.randint(0, 2, given["input_ids"].shape)}

    return inputs


def auto(model_type: str) -> Case:
    """The base model of one type, as ``sweep_transformers`` builds it."""
    model, first, _ = sweep_transformers.build(model_type)
    torch.manual_seed(0)

    def inputs(size: int) -> dict[str, Any]:
        if not size:
            return first
        return {k: torch.cat([v, v[:1]]) if isinstance(v, torch.Tensor) and v.ndim else v for k, v in first.items()}

    return Case(model, inputs)


def generating(name: str, cache: str | None, tokens: int = 20, **more: Any) -> dict[str, Any]:
    """Greedy decoding by a compiled model: eager's tokens, and how often it was captured."""
    cls, config, _ = head_config(name, **more)
    torch.manual_seed(0)
    model = without_chance(cls(config)).eval()
    settings: dict[str, Any] = {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "do_sample": False,
        "pad_token_id": 0,
    }
    if cache == "static":
        settings["cache_implementation"] = "static"
    if cache == "none":
        settings["use_cache"] = False
    config = model.generation_config
    config.disable_compile = True
    wrong, seconds = [], []
    forward = model.forward
    compiled = compile_api.compile(forward)
    for turn, (batch, length) in enumerate(((2, 7), (2, 7), (2, 9), (3, 12))):
        torch.manual_seed(turn)
        ids = torch.randint(3, 99, (batch, length))
        key = "input_ids"
        given = {key: ids, "attention_mask": torch.ones_like(ids)}
        model.forward = forward
        expected = model.generate(**given, **settings)
        model.forward = compiled
        start = time.perf_counter()
        got = model.generate(**given, **settings)
        seconds.append(round(time.perf_counter() - start, 2))
        if not torch.equal(got, expected):
            wrong.append(f"call {turn}: tokens differ: {got.tolist()} eager {expected.tolist()}"[:300])
    from model_judge import summary

    record = {**summary(compiled.report()), "wrong": wrong, "call_seconds": seconds}
    record["status"] = (
        "wrong" if wrong else "fallback" if record["fallbacks"] else "break" if record["breaks"] else "ok"
    )
    if record["status"] == "ok" and len(record["recompiles"]) > 6:
        record["status"] = "recompiles"
    return record


def training(name: str) -> dict[str, Any]:
    """AdamW, a schedule, clipping and accumulation around a compiled model, beside eager."""
    import copy

    from model_judge import summary

    cls, config, task = head_config(name)
    torch.manual_seed(0)
    model = without_chance(cls(config)).train()
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(twin)
    inputs = text(task, 99, True)
    losses: list[list[float]] = [[], []]
    for index, (module, weights) in enumerate(((model, model), (compiled, twin))):
        optimizer = torch.optim.AdamW(weights.parameters(), lr=1e-3, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        torch.manual_seed(3)
        for step in range(8):
            loss = module(**inputs(0 if step < 6 else 1)).loss / 2
            loss.backward()
            losses[index].append(float(loss))
            if step % 2:
                torch.nn.utils.clip_grad_norm_(weights.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    worst = max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))
    gap = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    record = {**summary(compiled.report()), "worst": worst, "parameters_off": gap, "wrong": []}
    if worst > 1e-4 or gap > 2e-3:
        record["wrong"] = [f"losses {losses}"]
    record["status"] = (
        "wrong" if record["wrong"] else "fallback" if record["fallbacks"] else "break" if record["breaks"] else "ok"
    )
    return record


def cases() -> dict[str, Callable[[], Case]]:
    """All of them by name."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    del transformers
    found: dict[str, Callable[[], Case]] = {}
    for name in HEADS:
        found[f"hf/head/{name}"] = lambda name=name: head(name)
    for name in ("bert", "gpt2", "llama", "bart", "vit", "gpt_neox", "whisper", "clip"):
        found[f"hf/eager-attention/{name}"] = lambda name=name: head(name, attn_implementation="eager")
    for name in ("bert", "gpt2", "llama", "t5"):
        found[f"hf/hidden-states/{name}"] = lambda name=name: head(
            name, attn_implementation="eager", output_hidden_states=True, output_attentions=True
        )
    for name in ("bert", "gpt2", "llama", "t5", "vit"):
        found[f"hf/checkpointing/{name}"] = lambda name=name: head(name, checkpointing=True)
    for name in ("gpt2", "llama", "mistral", "gemma2", "t5", "opt", "bart", "qwen3"):
        for cache in ("dynamic", "static", "none"):
            found[f"hf/generate-{cache}/{name}"] = lambda name=name, cache=cache: Case(
                run=lambda: generating(name, cache)
            )
    for name in ("bert", "gpt2", "llama", "t5"):
        found[f"hf/training-loop/{name}"] = lambda name=name: Case(run=lambda: training(name))
    for name in sorted(CONFIG_MAPPING_NAMES):
        found[f"hf/auto/{name}"] = lambda name=name: auto(name)
    return found
