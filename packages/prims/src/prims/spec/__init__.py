"""Abstract tensors, symbolic sizes and metadata rules."""

from prims.spec.abstract import abstract_spec, free_strides
from prims.spec.calls import OF_PLAIN_TENSORS, SymbolicCalls
from prims.spec.infer import has_rule, infer, meta_rule
from prims.spec.layout import contiguous_strides, is_channels_last_contiguous, is_contiguous, is_dense
from prims.spec.sym import (
    Expr,
    SizeGuard,
    Sym,
    SymbolContext,
    SymbolInfo,
    SymBool,
    SymFloat,
    from_torch,
    parse_expr,
    sym_max,
    sym_min,
    to_torch,
)
from prims.spec.tensor import AbstractMode, AbstractTensor, abstract, abstract_from_spec, dispatch, plain_saving
from prims.spec.tensorspec import TensorSpec, spec_of

__all__ = [
    "AbstractMode",
    "AbstractTensor",
    "Expr",
    "OF_PLAIN_TENSORS",
    "SizeGuard",
    "Sym",
    "SymBool",
    "SymFloat",
    "SymbolContext",
    "SymbolicCalls",
    "SymbolInfo",
    "TensorSpec",
    "abstract",
    "abstract_from_spec",
    "abstract_spec",
    "contiguous_strides",
    "dispatch",
    "free_strides",
    "from_torch",
    "has_rule",
    "infer",
    "is_channels_last_contiguous",
    "is_contiguous",
    "is_dense",
    "meta_rule",
    "parse_expr",
    "plain_saving",
    "spec_of",
    "sym_max",
    "sym_min",
    "to_torch",
]
