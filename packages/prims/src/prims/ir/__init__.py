"""The IR contract between the stages: envelopes, verifier, text form, serialisation, passes, versions."""

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
from prims.ir.source import SourceLoc

__all__ = [
    "DIALECTS",
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
    "print_observer",
    "run_passes",
]
