"""A loop of Accelerate's with Quintet: gradients accumulated, clipped, in bfloat16, and state that is saved and loaded.

    python examples/accelerate_loop.py

The model that ``accelerator.prepare()`` gives is compiled: ``compile_api.compile(accelerator.prepare(model))``, or
``compile_api.compile_(model)`` in place, before or after. Accelerate's ``autocast`` around ``forward`` and its
conversion of the results to float32 are captured with the model. A loop in eager mode gives the same losses, and a loop
that goes on from the saved state those of the loop that saved it.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import compile_api

STEPS, ACCUMULATED = 16, 2


class Classifier(torch.nn.Module):
    """A network with normalisation, to which bfloat16 makes a difference."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(
            torch.nn.Linear(32, 96), torch.nn.LayerNorm(96), torch.nn.GELU(), torch.nn.Linear(96, 64), torch.nn.GELU()
        )
        self.outer = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))


class Loop:
    """A model, its optimizer, schedule and data, as a training script has them."""

    def __init__(self, compiled: bool) -> None:
        set_seed(0)
        self.accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATED)
        model = Classifier()
        x = torch.randn(STEPS * 16, 32)
        rows = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        self.model, self.optimizer, self.schedule, self.batches = self.accelerator.prepare(
            model, optimizer, schedule, torch.utils.data.DataLoader(rows, batch_size=16)
        )
        if compiled:
            self.model = compile_api.compile(self.model)  # the only line that is new

    def run(self, skip: int = 0, save: tuple[int, str] | None = None) -> list[float]:
        """Losses of one epoch, without its first batches; its state is saved before a batch where that is asked for."""
        losses = []
        batches = self.accelerator.skip_first_batches(self.batches, skip)
        for place, (x, y) in enumerate(batches, skip):
            if save is not None and place == save[0]:
                self.accelerator.save_state(save[1])
            with self.accelerator.accumulate(self.model):
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def main() -> int:
    """0 where the compiled loop was compiled and gives the other's losses."""
    eager, compiled = Loop(False), Loop(True)
    with tempfile.TemporaryDirectory() as folder:
        losses = eager.run()
        compiled_losses = compiled.run(save=(STEPS // 2, folder))
        again = Loop(True)
        again.accelerator.load_state(folder)
        gone_on = again.run(skip=STEPS // 2)
    print("losses, eager:   ", *(f"{loss:.3f}" for loss in losses))
    print("losses, compiled:", *(f"{loss:.3f}" for loss in compiled_losses))
    print(f"from the state before batch {STEPS // 2}:", *(f"{loss:.3f}" for loss in gone_on))
    torch.testing.assert_close(compiled_losses, losses, atol=2e-2, rtol=2e-2)  # products are rounded to bfloat16
    torch.testing.assert_close(gone_on, compiled_losses[STEPS // 2 :], atol=1e-6, rtol=1e-6)
    assert losses[-1] < losses[0]

    plain = compiled.accelerator.unwrap_model(compiled.model)
    assert isinstance(plain, Classifier) and plain.state_dict().keys() == Classifier().state_dict().keys()
    report = compile_api.report_of(compiled.model)
    for each in (*report.breaks, *report.fallbacks, *report.recompiles):
        print(each.reason)
    print(f"verdict: {report.verdict}")
    return 0 if report.verdict == "compiled" and not report.recompiles else 1


if __name__ == "__main__":
    sys.exit(main())
