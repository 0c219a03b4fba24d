"""LoRA with Quintet: adapters are trained compiled, merged, and the merged model generates compiled.

    python examples/peft_lora.py

``compile_api.compile_(model)`` of what ``get_peft_model()`` gives compiles the model with its adapters, whose
gradients alone the compiled backward pass computes. ``generate()`` calls ``forward`` for each token:
``model.forward = compile_api.compile(model.forward)`` compiles it, once for the prompt and once for all that follows.
"""

from __future__ import annotations

import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import compile_api

WORDS = 96


def base() -> LlamaForCausalLM:
    """A small random Llama, the same each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        initializer_range=0.1,
    ))  # fmt: skip


def adapted() -> PeftModel:
    """The model with adapters of rank four, of which those that begin as zeros are made so that they tell."""
    adapters = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = get_peft_model(base(), adapters)
    torch.manual_seed(1)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.05)
    return model


def trained(compiled: bool, steps: int = 20) -> tuple[PeftModel, list[float]]:
    """The model and its losses, learning to count upwards."""
    model = adapted()
    if compiled:
        compile_api.compile_(model)  # the only line that is new
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    first = torch.randint(1, WORDS, (steps, 8, 1), generator=torch.Generator().manual_seed(2))
    losses = []
    for ids in (first + torch.arange(12)) % (WORDS - 1) + 1:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def generated(model: torch.nn.Module, lengths: tuple[int, ...] = (5, 9, 6)) -> list[torch.Tensor]:
    """20 tokens after each of some prompts. ``disable_compile``: ``generate()`` is not to call ``torch.compile``."""
    prompts = [torch.randint(1, WORDS, (2, n), generator=torch.Generator().manual_seed(n)) for n in lengths]
    settings = {"max_new_tokens": 20, "do_sample": False, "disable_compile": True}
    with torch.no_grad():
        return [model.generate(ids, attention_mask=torch.ones_like(ids), **settings) for ids in prompts]


def main() -> int:
    """0 where all was compiled, and losses, adapters and tokens are eager's."""
    warnings.filterwarnings("ignore", module="peft")
    eager, losses = trained(False)
    model, compiled_losses = trained(True)
    print("losses, eager:   ", *(f"{loss:.3f}" for loss in losses))
    print("losses, compiled:", *(f"{loss:.3f}" for loss in compiled_losses))
    torch.testing.assert_close(compiled_losses, losses, atol=1e-3, rtol=1e-3)
    assert losses[-1] < losses[0]
    training = compile_api.report_of(model)
    print(f"training: {training.verdict}, {len(training.recompiles)} recompilations")

    for ours, theirs in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)

    with tempfile.TemporaryDirectory() as folder:  # the adapters alone, under the names that peft gives them
        model.save_pretrained(folder)
        again = PeftModel.from_pretrained(base(), folder)
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    merged = again.merge_and_unload().eval()
    wanted = generated(merged)
    merged.forward = compile_api.compile(merged.forward)  # the only line that is new
    tokens = generated(merged)
    report = compile_api.report_of(merged.forward)
    before = len(report.recompiles)
    tokens += generated(merged, (7, 11, 4))
    for each in report.recompiles:
        print(f"captured again: {each.reason}")
    new = len(report.recompiles) - before
    print(f"{len(tokens)} prompts of 20 new tokens each: {before} recompilations in the first three, then {new}")
    print("the first prompt, continued:", *tokens[0][0].tolist())
    for ours, theirs in zip(tokens, wanted):
        assert torch.equal(ours, theirs)

    print(f"verdict: {training.verdict}; of generate(): {report.verdict}")
    compiled = training.verdict == report.verdict == "compiled"
    return 0 if compiled and not training.recompiles and before <= 4 and not new else 1


if __name__ == "__main__":
    sys.exit(main())
