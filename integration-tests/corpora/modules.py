"""The modules of PyTorch's own tests (``module_db``): samples of each, in evaluation and in training."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from corpora.programs import Program, Unbuilt

__all__ = ["build", "names"]


#: So many samples of a module are one program: more would exceed how often a frame is captured, where it has a break.
TOGETHER = 8


def names() -> list[str]:
    """The modules for float32, those of one name by number, and of each so many samples."""
    return list(_parts())


@functools.cache
def _parts() -> dict[str, tuple[Any, int]]:
    """Each program's module and its first sample."""
    found: dict[str, tuple[Any, int]] = {}
    for name, info in _infos().items():
        for first in range(0, len(_samples(info)), TOGETHER):
            found[f"{name}/{first}" if first else name] = info, first
    return found


def _samples(info: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True))


def _infos() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for info in module_db:
        if torch.float32 in info.dtypes:
            found[_name(info, found)] = info
    return found


def _name(info: Any, taken: dict[str, Any]) -> str:
    base = info.module_cls.__module__.replace("torch.", "", 1).split(".modules")[0] + "." + info.module_cls.__name__
    same = [name for name in taken if name.split("#")[0] == base]
    return f"{base}#{len(same)}" if same else base


class Samples(torch.nn.Module):
    """Several samples of one module, each with its own arguments: one program, as a list of results."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, inputs: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        return [part(*args, **kwargs) for part, (args, kwargs) in zip(self.parts, inputs)]


def build(name: str) -> Program:
    """Some samples of a module in one program, those that eager takes."""
    info, first = _parts()[name]
    samples = _samples(info)[first : first + TOGETHER]
    parts, inputs, refused = [], [], ""
    for sample in samples:
        made = sample.constructor_input
        module = info.module_cls(*made.args, **made.kwargs).float().eval()
        given = sample.forward_input
        args, kwargs = pytree.tree_map(_detached, (tuple(given.args), dict(given.kwargs)))
        try:
            for training in (False, True):
                twin = copy.deepcopy(module).train(training)
                with torch.no_grad():
                    twin(*pytree.tree_map(_detached, args), **pytree.tree_map(_detached, kwargs))
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
            continue
        parts.append(module)
        inputs.append((args, kwargs))
    if not parts:
        raise Unbuilt(f"eager refuses every sample: {refused}")
    return Program(Samples(parts), (inputs,), detail=f"{len(parts)} samples")


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
