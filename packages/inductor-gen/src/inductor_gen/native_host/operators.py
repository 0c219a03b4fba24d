"""Operators as C statements: most by the dispatcher's stack, those with arguments that it does not take by functions.

What neither can call is refused when the package is made, with the operator's name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.layout.record import ViewRef
from inductor_gen.loops.graph import Node
from inductor_gen.native_host.interface import CODES
from prims.errors import Unsupported

__all__ = ["BUILD", "Values", "arguments_of", "operator_name", "refuse"]

#: The version of PyTorch that the stack's form is that of.
BUILD = "((2ULL << 56) | (10ULL << 48))"


def refuse(node: Node, why: str) -> Unsupported:
    """The error that an operator cannot be called without Python."""
    return Unsupported(f"the operator {node.op} cannot be called without Python: {why}", where=node.source)


def operator_name(node: Node) -> tuple[str, str]:
    """``("aten::mm", "")``, as the dispatcher names an operator."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "mkldnn"):
        raise refuse(node, "it is not one of PyTorch's own")
    return target._schema.name, target._schema.overload_name


def arguments_of(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """``(type, value)`` of every argument of an operator, defaults among them."""
    found = []
    for k, argument in enumerate(node.target._schema.arguments):
        if k < len(args) and not argument.kwarg_only:
            value = args[k]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise refuse(node, f"its argument {argument.name} is missing")
        found.append((argument.type, value))
    return found


class Values:
    """The values on an operator's stack as C statements, in ``lines``."""

    def __init__(
        self, node: Node, tensor: Callable[[Any], str], number: Callable[[Any], str], label: str = "torch"
    ) -> None:
        self.node = node
        self.tensor = tensor
        self.number = number
        self.label = label
        self.lines: list[str] = []
        self.count = 0

    def put(self, kind: Any, value: Any, place: str) -> None:
        """Put a value of a schema's type at a place of C."""
        what = kind.kind()
        if what == "OptionalType":
            if value is None:
                self.lines.append(f"{place} = 0;")
                return
            inner = self._local()
            self.put(kind.getElementType(), value, inner)
            self._checked(f"qv_some({inner}, &{place})")
        elif what == "TensorType":
            if not isinstance(value, (ViewRef, str)):
                raise refuse(self.node, f"an argument is {value!r}, expected a tensor")
            self._checked(f"qv_tensor({self.tensor(value)}, &{place})")
        elif what == "ListType":
            self._list(kind, value, place)
        elif what == "FloatType":
            self.lines.append(f"{place} = {struct.unpack('Q', struct.pack('d', float(value)))[0]}ULL; /* {value!r} */")
        elif what == "BoolType":
            self.lines.append(f"{place} = {int(bool(value))};")
        elif what in ("IntType", "SymIntType"):
            self.lines.append(f"{place} = (uint64_t)({self.number(value)});")
        elif what == "ScalarTypeType" or (isinstance(value, torch.dtype) and value in CODES):
            self.lines.append(f"{place} = {CODES[value]};")
        elif what == "StringType":
            self._checked(f'qv_string("{value}", &{place})')
        else:
            raise refuse(self.node, f"PyTorch's C interface takes no argument of type {kind}")

    def _list(self, kind: Any, value: Any, place: str) -> None:
        values = list(value) if isinstance(value, (tuple, list)) else [value]
        name = f"l{self.count}"
        self.count += 1
        self.lines.append(f"uint64_t {name}[{len(values) or 1}];")
        for k, one in enumerate(values):
            self.put(kind.getElementType(), one, f"{name}[{k}]")
        self._checked(f"qv_list({len(values)}, {name}, &{place})")

    def _local(self) -> str:
        name = f"u{self.count}"
        self.count += 1
        self.lines.append(f"uint64_t {name} = 0;")
        return name

    def _checked(self, call: str) -> None:
        self.lines.append(f"if ({call}) goto {self.label};")
