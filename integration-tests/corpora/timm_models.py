"""One smallest model of each of timm's families (its modules), with random weights."""

from __future__ import annotations

import timm
import torch
from sweeps.sweep_vision import rank, timm_model

from corpora.programs import Program

__all__ = ["build", "names"]

#: So many of a family's models, first those whose names say that they are small, are built without memory and counted.
CANDIDATES = 12


def names() -> list[str]:
    """timm's modules that have models."""
    return [module for module in timm.list_modules() if timm.list_models(module=module)]


def build(name: str) -> Program:
    """The model of the family with the fewest parameters, in evaluation, and two images of a small size it takes."""
    choices = sorted(timm.list_models(module=name), key=rank)[:CANDIDATES]
    chosen = min(choices, key=parameters) if len(choices) > 1 else choices[0]
    torch.manual_seed(0)
    _, model, inputs = timm_model(chosen)
    return Program(model.eval(), inputs, detail=chosen)


def parameters(name: str) -> float:
    """How many parameters a model has; infinite where it cannot be built without memory."""
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except Exception:  # a model that computes with its own weights while it is made
        return float("inf")
    return sum(p.numel() for p in model.parameters())
