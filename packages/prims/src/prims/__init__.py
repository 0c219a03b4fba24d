"""The closed primitive operator set, abstract tensors and the IR contract of the Quintet compiler.

The names below come from the submodules on first use, so that ``import prims`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prims import conformance, decomp, errors, handlers, ir, lower, ops, options, reference, report, spec
    from prims.errors import (
        DataDependentError,
        InternalError,
        QuintetError,
        Unsupported,
        UserError,
        VerifierError,
    )
    from prims.ir import Envelope, InputDesc, OutputDesc, SourceLoc
    from prims.options import Options
    from prims.report import Report
    from prims.spec import AbstractTensor, Sym, SymbolContext, TensorSpec

__version__ = "0.1.0"

_MODULES = frozenset(
    "conformance decomp errors handlers ir lower ops options reference report spec".split()
)
_NAMES = {
    "DataDependentError": "errors",
    "InternalError": "errors",
    "QuintetError": "errors",
    "Unsupported": "errors",
    "UserError": "errors",
    "VerifierError": "errors",
    "Envelope": "ir",
    "InputDesc": "ir",
    "OutputDesc": "ir",
    "SourceLoc": "ir",
    "Options": "options",
    "Report": "report",
    "AbstractTensor": "spec",
    "Sym": "spec",
    "SymbolContext": "spec",
    "TensorSpec": "spec",
}

__all__ = [
    "AbstractTensor",
    "DataDependentError",
    "Envelope",
    "InputDesc",
    "InternalError",
    "Options",
    "OutputDesc",
    "QuintetError",
    "Report",
    "SourceLoc",
    "Sym",
    "SymbolContext",
    "TensorSpec",
    "Unsupported",
    "UserError",
    "VerifierError",
    "conformance",
    "decomp",
    "errors",
    "handlers",
    "ir",
    "lower",
    "ops",
    "options",
    "reference",
    "report",
    "spec",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"prims.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"prims.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'prims' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
