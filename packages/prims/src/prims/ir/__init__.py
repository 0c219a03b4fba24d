"""The IR contract between the stages: envelopes, verifier, text form, serialisation, passes, versions.

What reads and writes files, which a compilation does not do, is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prims.ir.callables import register_callable
from prims.ir.constraints import CONSTRAINTS, FILE_RULES
from prims.ir.envelope import (
    DIALECTS,
    INPUT_KINDS,
    OUTPUT_KINDS,
    Alias,
    Envelope,
    InputDesc,
    Mutation,
    OutputDesc,
    SymbolBinding,
    SymbolEntry,
    SymbolTable,
)
from prims.ir.passes import Fuel, Observer, Pass, print_observer, run_passes
from prims.ir.verifier import verify
from prims.source import SourceLoc

if TYPE_CHECKING:
    from prims.ir.equality import structural_difference
    from prims.ir.parse import parse_text
    from prims.ir.serial import from_json, load, save, to_json
    from prims.ir.text import hash_envelope, print_text
    from prims.ir.versions import CURRENT, VersionError, consumable, convert, negotiate, producible

__all__ = [
    "CONSTRAINTS",
    "CURRENT",
    "DIALECTS",
    "FILE_RULES",
    "INPUT_KINDS",
    "OUTPUT_KINDS",
    "Alias",
    "Envelope",
    "Fuel",
    "InputDesc",
    "Mutation",
    "Observer",
    "OutputDesc",
    "Pass",
    "SourceLoc",
    "SymbolBinding",
    "SymbolEntry",
    "SymbolTable",
    "VersionError",
    "consumable",
    "convert",
    "from_json",
    "hash_envelope",
    "load",
    "negotiate",
    "parse_text",
    "print_observer",
    "print_text",
    "producible",
    "register_callable",
    "run_passes",
    "save",
    "structural_difference",
    "to_json",
    "verify",
]

_ON_USE = {"structural_difference": "equality", "parse_text": "parse", "hash_envelope": "text", "print_text": "text"}
_ON_USE |= dict.fromkeys(("from_json", "load", "save", "to_json"), "serial")
_ON_USE |= dict.fromkeys(("CURRENT", "VersionError", "consumable", "convert", "negotiate", "producible"), "versions")


def __getattr__(name: str) -> Any:
    if name not in _ON_USE:
        raise AttributeError(f"module 'prims.ir' has no attribute {name!r}")
    return getattr(importlib.import_module(f"prims.ir.{_ON_USE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
