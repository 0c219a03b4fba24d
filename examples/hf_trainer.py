"""Hugging Face's ``Trainer`` with Quintet: one line before it is made.

    python examples/hf_trainer.py

``TrainingArguments(torch_compile_backend=...)`` takes the backends that Accelerate lists, and no others.
``compile_api.compile_(model)`` needs no argument of the trainer's: the model stays the object that it is, so that there
is nothing to unwrap, and ``save_pretrained()`` writes what it always writes. Training, evaluation, checkpoints and
going on from one are compared with the same run without that line.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

import compile_api

LENGTH, WORDS, STEPS = 24, 200, 20


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """Made-up texts of one to ``LENGTH`` words, padded; their class is that of their first word."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        ids = torch.randint(1, WORDS, (LENGTH,), generator=generator)
        mask = (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (), generator=generator)).long()
        rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": int(ids[0] < WORDS / 2)})
    return rows


def classifier() -> BertForSequenceClassification:
    """A small random model.

    It has no dropout, as compiled code draws other random numbers than eager's, and nothing could be compared. The kind
    of problem is said here: otherwise the first call writes it into the config, for which the second is captured again.
    """
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        problem_type="single_label_classification",
    ))  # fmt: skip


def trainer(compiled: bool, folder: str) -> Trainer:
    """A trainer of a new model."""
    model = classifier()
    if compiled:
        compile_api.compile_(model)  # the only line that is new
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, seed=0, max_steps=STEPS, learning_rate=2e-3, warmup_steps=2,
        per_device_train_batch_size=16, per_device_eval_batch_size=16, logging_steps=1, save_steps=STEPS // 2,
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    made = Trainer(model=model, args=arguments, train_dataset=texts(128, 1), eval_dataset=texts(64, 2))
    made.remove_callback(PrinterCallback)
    return made


def losses(of: Trainer) -> list[float]:
    """The loss of each step."""
    return [row["loss"] for row in of.state.log_history if "loss" in row]


def main() -> int:
    """0 where the compiled run was compiled and gives the other's losses."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        eager, compiled, resumed = trainer(False, other), trainer(True, folder), trainer(True, folder)
        eager.train()
        compiled.train()
        resumed.train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{STEPS // 2}"))
        saved = BertForSequenceClassification.from_pretrained(Path(folder) / f"checkpoint-{STEPS}")
    evaluated, compiled_evaluated = (each.evaluate()["eval_loss"] for each in (eager, compiled))

    print("losses, eager:   ", *(f"{loss:.4f}" for loss in losses(eager)))
    print("losses, compiled:", *(f"{loss:.4f}" for loss in losses(compiled)))
    print(f"evaluation: {evaluated:.4f} eager, {compiled_evaluated:.4f} compiled")
    torch.testing.assert_close(losses(compiled), losses(eager), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(compiled_evaluated, evaluated, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(losses(resumed), losses(compiled), atol=1e-3, rtol=1e-3)
    print(f"gone on from step {STEPS // 2}: the same losses")

    assert saved.state_dict().keys() == classifier().state_dict().keys()
    for key, value in compiled.model.state_dict().items():
        assert torch.equal(saved.state_dict()[key], value), key
    print(f"saved and loaded: {len(saved.state_dict())} tensors under the plain model's names")

    report = compile_api.report_of(compiled.model)
    for recompile in report.recompiles:  # evaluation, which is another program than training
        print(f"captured again: {recompile.reason}")
    print(f"verdict: {report.verdict}")
    return 0 if report.verdict == "compiled" and len(report.recompiles) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
