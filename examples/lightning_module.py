"""A Lightning module with Quintet: its steps are compiled, for they are what the trainer calls.

    python examples/lightning_module.py

Lightning calls ``training_step`` and ``validation_step``, not ``forward``, so these are what to compile:
``model.training_step = compile_api.compile(model.training_step)``. The forward pass, the loss and what else the step
computes are one graph, and its backward pass another. What is no tensor operation, such as ``self.log``, would end the
graph: it stands in ``on_train_batch_end`` here, which gets what the step returns. ``model.net`` alone can be compiled,
too (``compile_api.compile_(model.net)``), and then a step may log as it likes.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch

import compile_api

Batch = tuple[torch.Tensor, torch.Tensor]


class Learner(lightning.LightningModule):
    """A small network that learns which of the first four numbers is the greatest."""

    def __init__(self) -> None:
        super().__init__()
        # No bias before the normalisation, which takes it away: its gradient would be noise, of which Adam makes steps.
        self.net = torch.nn.Sequential(
            torch.nn.Linear(32, 128, bias=False), torch.nn.BatchNorm1d(128), torch.nn.GELU(), torch.nn.Linear(128, 4)
        )
        self.losses: list[float] = []
        self.validated: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Batch, at: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: Batch, at: int) -> dict[str, torch.Tensor]:
        x, y = batch
        scores = self(x)
        right = (scores.argmax(1) == y).float().mean()
        return {"loss": torch.nn.functional.cross_entropy(scores, y), "right": right}

    def on_train_batch_end(self, outputs: Any, batch: Batch, at: int) -> None:
        self.log("loss", outputs["loss"])
        self.losses.append(outputs["loss"].item())

    def on_validation_batch_end(self, outputs: Any, batch: Batch, at: int, dataloader_idx: int = 0) -> None:
        self.log("right", outputs["right"], batch_size=len(batch[0]))
        self.validated.append(outputs["loss"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def data(count: int, seed: int) -> torch.utils.data.DataLoader[Any]:
    """Batches of 16: the last one may be smaller."""
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=16)


def fitted(compiled: bool, folder: str) -> Learner:
    """A module after three epochs of 10 steps, saved in the folder."""
    lightning.seed_everything(0, verbose=False)
    model = Learner()
    if compiled:  # these two lines are new
        model.training_step = compile_api.compile(model.training_step)
        model.validation_step = compile_api.compile(model.validation_step)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, gradient_clip_val=1.0, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, data(152, 1), data(64, 2))
    trainer.save_checkpoint(Path(folder) / "last.ckpt")
    return model


def main() -> int:
    """0 where the compiled run was compiled and gives the other's losses."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # about workers of data loaders
    with tempfile.TemporaryDirectory() as folder:
        eager = fitted(False, folder)
        compiled = fitted(True, folder)
        saved = Learner.load_from_checkpoint(Path(folder) / "last.ckpt", weights_only=True)
    print("losses, eager:   ", *(f"{loss:.3f}" for loss in eager.losses))
    print("losses, compiled:", *(f"{loss:.3f}" for loss in compiled.losses))
    print("validation, compiled:", *(f"{loss:.3f}" for loss in compiled.validated))
    torch.testing.assert_close(compiled.losses, eager.losses, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(compiled.validated, eager.validated, atol=1e-4, rtol=1e-4)
    assert compiled.losses[-1] < compiled.losses[0]

    assert saved.state_dict().keys() == Learner().state_dict().keys()
    for key, value in compiled.state_dict().items():
        assert torch.equal(saved.state_dict()[key], value), key
    print(f"saved and loaded: {len(saved.state_dict())} tensors under the plain module's names")

    reports = [compile_api.report_of(step) for step in (compiled.training_step, compiled.validation_step)]
    for report in reports:
        for each in (*report.breaks, *report.fallbacks, *report.recompiles):
            print(each.reason)
    verdicts = [report.verdict for report in reports]
    print(f"verdict: {verdicts[0]}; of validation: {verdicts[1]}")
    return 0 if verdicts == ["compiled", "compiled"] else 1


if __name__ == "__main__":
    sys.exit(main())
