"""What a primitive is: one frozen table row, and the table.

Everything else (handler methods, graph construction, verification, the conformance kit, C and Triton code)
is generated from the rows, so a new elementwise primitive is one `define(...)` call in `elementwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

import torch

from prims.errors import UserError
from prims.records import record
from prims.registry import Definitions

__all__ = ["TABLE", "Param", "PrimOp", "Sample", "define", "lookup"]

Template = str | Mapping[str, str]
"""One expression, or one per dtype class (``"float" "int" "bool"``); see `prims.ops.templates`."""

_REQUIRED: Any = object()


class Param(NamedTuple):
    """One parameter of a primitive.

    `kind` is one of ``T`` (tensor), ``V`` (tensor or number), ``Ts`` (tensors), ``S`` (int or `Sym`), ``Ss``
    (tuple of them), ``ints`` (tuple of static ints), ``dim`` (one dimension of the first tensor), ``dims``
    (a set of its dimensions), ``perm`` (an ordered list of them), ``scalar``, ``dtype``, ``device``, ``str``,
    ``bool``.
    """

    name: str
    kind: str
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        """Has it no default?"""
        return self.default is _REQUIRED


class Sample(NamedTuple):
    """One call of a primitive: positional arguments, tensors real. `note` says what it probes."""

    args: tuple[Any, ...]
    note: str = ""


_PARSE_DEFAULT: dict[str, Any] = {"False": False, "True": True, "set": "set", "0": 0, "1": 1, "None": None}


def _parse_signature(signature: str) -> tuple[Param, ...]:
    """``"x: T, dims: dims, reduce: str = set"`` as parameters."""
    params = []
    for piece in signature.split(","):
        declared, _, default = piece.partition("=")
        name, _, kind = declared.partition(":")
        value = _PARSE_DEFAULT[default.strip()] if default else _REQUIRED
        params.append(Param(name.strip(), kind.strip(), value))
    return tuple(params)


def _wrap(dim: Any, ndim: int) -> int:
    dim = int(dim)
    return dim + ndim if -ndim <= dim < 0 else dim


def _canonical(kind: str, value: Any, ndim: int) -> Any:
    """The one form an attribute has in graphs, so that equal calls are equal nodes."""
    match kind:
        case "T" | "V" | "S" | "scalar" | "str" | "bool":
            return value
        case "Ts" | "Ss":
            return tuple(value)
        case "ints":
            return tuple(int(v) for v in value)
        case "dim":
            return _wrap(value, ndim)
        case "dims":
            return tuple(sorted(_wrap(v, ndim) for v in value))
        case "perm":
            return tuple(_wrap(v, ndim) for v in value)
        case "device":
            return torch.device(value)
        case _:
            return value


@record(eq=False)
class PrimOp:
    """One primitive.

    Attributes:
        name: its name in `TABLE`, in graphs and in the text form.
        signature: its parameters, as text; `params` is the parsed form.
        kind: ``unary binary ternary cast create random view index reduce scan dot``.
        meta: ``(*canonical args with TensorSpec for tensors) -> TensorSpec``. Sizes are ``int | Sym``. Raises
            `prims.errors.VerifierError` with one of `constraints`' labels.
        torch_ref: the meaning, in public torch calls; slow and literal.
        numpy_ref: the same meaning written independently in NumPy. float16 and bfloat16 arrive as float32,
            and the caller rounds the result.
        samples: ``(dtype) -> iterable of Sample``.
        dtypes: dtypes of the first tensor it is defined for.
        dtype_rule: ``same`` (as the first tensor), ``bool``, ``int64`` or ``attr`` (given by an attribute).
        c, triton: expression templates for elementwise primitives (`prims.ops.templates`); None for others.
        constraints: label to sentence; the labels stand in the errors and name the negative tests.
        since: the dialect version that introduced it.
        doc: one sentence.
    """

    name: str
    signature: str
    kind: str
    meta: Callable[..., Any]
    torch_ref: Callable[..., Any]
    numpy_ref: Callable[..., Any]
    samples: Callable[[torch.dtype], Iterable[Sample]]
    dtypes: tuple[torch.dtype, ...]
    dtype_rule: str = "same"
    c: Template | None = None
    triton: Template | None = None
    constraints: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (1, 0)
    doc: str = ""
    params: tuple[Param, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", _parse_signature(self.signature))

    @property
    def __name__(self) -> str:  # fx names nodes and prints code by it
        return self.name

    @property
    def elementwise(self) -> bool:
        """Is the value at each index a function of its operands' values at that index?"""
        return self.kind in ("unary", "binary", "ternary", "cast")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the PyTorch reference on real tensors (so a prim-dialect `GraphModule` runs as it is)."""
        return self.torch_ref(*self.bind(*args, **kwargs))

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """All arguments positional and in canonical form: tuples, non-negative dims, defaults filled in.

        Raises `prims.errors.UserError` for a missing, unknown or doubled argument.
        """
        if len(args) > len(self.params):
            raise UserError(
                f"prims.ops.{self.name} takes {len(self.params)} arguments, got {len(args)}",
                todo=f"its signature is {self.name}({self.signature})",
            )
        ndim = -1
        bound: list[Any] = []
        for i, param in enumerate(self.params):
            if i < len(args):
                value = args[i]
            elif param.name in kwargs:
                value = kwargs[param.name]
            elif not param.required:
                value = param.default
            else:
                raise UserError(
                    f"prims.ops.{self.name}: argument {param.name!r} is missing",
                    todo=f"its signature is {self.name}({self.signature})",
                )
            if ndim < 0 and param.kind in ("T", "Ts"):
                first = value if param.kind == "T" else next(iter(value), None)
                ndim = getattr(first, "ndim", -1)
            bound.append(_canonical(param.kind, value, ndim))
        if kwargs:
            known = {param.name for param in self.params[len(args) :]}
            if not known.issuperset(kwargs):
                raise UserError(
                    f"prims.ops.{self.name}: unexpected argument {sorted(set(kwargs) - known)[0]!r}",
                    todo=f"its signature is {self.name}({self.signature})",
                )
        return tuple(bound)

    def __repr__(self) -> str:
        return f"prims.ops.{self.name}"

    def __copy__(self) -> PrimOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrimOp:
        return self

    def __reduce__(self) -> tuple[Callable[[str], PrimOp], tuple[str]]:
        return lookup, (self.name,)


# Printed code and pickles refer to rows as prims.ops.<name>.
PrimOp.__module__ = "prims.ops"

TABLE: Definitions[PrimOp] = Definitions()
"""Every primitive by name, in the order of definition."""


def define(name: str, signature: str, kind: str, **fields: Any) -> PrimOp:
    """Add a row to `TABLE` and return it. Raises `ValueError` when the name is taken."""
    op = PrimOp(name=name, signature=signature, kind=kind, **fields)
    TABLE.define(name, op, "primitive")
    return op


def lookup(name: str) -> PrimOp:
    """The primitive of that name. Raises `UserError` when there is none."""
    try:
        return TABLE[name]
    except KeyError:
        raise UserError(f"no primitive is named {name!r}", todo="see prims.ops.TABLE for the set") from None
