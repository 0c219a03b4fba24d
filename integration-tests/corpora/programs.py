"""What a corpus gives: the names of its programs, and each of them built."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KINDS", "Program", "Unbuilt", "build", "names"]

#: The kinds of programs, and the modules whose ``names()`` and ``build(name)`` give them.
KINDS = {
    "timm": "corpora.timm_models",
    "transformers": "corpora.transformers_models",
    "modules": "corpora.modules",
    "examples": "corpora.examples",
}


class Unbuilt(Exception):
    """A program that cannot be made here, or that eager refuses: it says nothing about the compiler."""


@dataclass
class Program:
    """What to compile, and on what.

    Attributes:
        function: a module, or a function.
        train: whether its gradients are asked for too.
        grad: whether inference, too, is without ``no_grad``, as the program takes gradients itself.
        detail: which model it is, and how it was made small.
        double: whether it may be run in float64 as a reference.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    train: bool = True
    grad: bool = False
    detail: str = ""
    double: bool = True


def names(kind: str) -> list[str]:
    """The programs of a kind, always in the same order."""
    return importlib.import_module(KINDS[kind]).names()


def build(kind: str, name: str) -> Program:
    """Build one program.

    Raises:
        Unbuilt: it cannot be made.
    """
    return importlib.import_module(KINDS[kind]).build(name)
