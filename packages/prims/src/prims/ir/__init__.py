"""The IR contract between the stages: envelopes, verifier, text form, serialisation, passes, versions."""

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
from prims.ir.equality import structural_difference
from prims.ir.parse import parse_text
from prims.ir.passes import Fuel, Observer, Pass, print_observer, run_passes
from prims.ir.serial import from_json, load, save, to_json
from prims.ir.source import SourceLoc
from prims.ir.text import hash_envelope, print_text
from prims.ir.verifier import verify
from prims.ir.versions import (
    CURRENT,
    VersionError,
    consumable,
    convert,
    negotiate,
    producible,
)

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
