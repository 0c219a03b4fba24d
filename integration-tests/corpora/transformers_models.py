"""Every type of model that transformers can build, with a tiny configuration and random weights."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from corpora.model_inputs import example_inputs
from corpora.programs import Program, Unbuilt
from corpora.tiny import tiny_configs

__all__ = ["build", "names"]

#: A model with more parameters is not small.
LARGEST = 80_000_000


def names() -> list[str]:
    """The types that have a configuration."""
    return sorted(CONFIG_MAPPING_NAMES)


def build(name: str) -> Program:
    """The smallest model of a type that builds and runs in eager, in evaluation.

    Raises:
        Unbuilt: none does.
    """
    transformers.logging.set_verbosity_error()
    config_class = transformers.CONFIG_MAPPING[name]
    reasons: dict[str, str] = {}
    for way, config in tiny_configs(config_class):
        try:
            model = model_of(name, config)
        except Exception as error:
            reasons.setdefault(f"{type(error).__name__}: {str(error)[:150]}", way)
            continue
        for given in example_inputs(model):
            try:
                with torch.no_grad():
                    torch.manual_seed(0)
                    output = copy.deepcopy(model)(**given)
                if all(t.isnan().any() for t in _floating(output)):
                    raise ValueError("all results have NaNs")
            except Exception as error:
                reasons.setdefault(f"{type(error).__name__}: {str(error)[:150]}", way)
                continue
            shapes = {key: tuple(x.shape) for key, x in given.items()}
            return Program(model, kwargs=given, detail=f"{type(model).__name__}, {way} small, {shapes}")
    raise Unbuilt("; ".join(f"{way}: {why}" for why, way in reasons.items()) or "no configuration can be made")


def _floating(output: Any) -> list[torch.Tensor]:
    from sweeps.model_judge import leaves

    return [t for t in leaves(output) if t.is_floating_point()] or [torch.zeros(1)]


def model_of(name: str, config: Any) -> Any:
    """The base model of a configuration.

    Raises:
        Unbuilt: there is none, or it is not small.
    """
    cls = base_class(name, config)
    with torch.device("meta"):
        try:
            size = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
        except Exception:  # a model that computes with its own weights while it is made
            size = 0
    if size > LARGEST:
        raise Unbuilt(f"{size} parameters are not small")
    torch.manual_seed(0)
    return cls(config).eval()


def base_class(name: str, config: Any) -> type:
    """The model class that transformers names for the type, or else the one beside the configuration's class."""
    named = MODEL_MAPPING_NAMES.get(name)
    if named is not None:
        return getattr(transformers, named if isinstance(named, str) else named[0])
    module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    found = [
        cls for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
        and cls.__module__ == module.__name__ and getattr(cls, "config_class", None) is type(config)
        and not cls.__name__.endswith("PreTrainedModel")
    ]  # fmt: skip
    if not found:
        raise Unbuilt("no model class is known for the configuration")
    return min(found, key=lambda cls: (not cls.__name__.endswith("Model"), len(cls.__name__), cls.__name__))
