"""The text form: typed SSA with a header. ``parse_text(print_text(env))`` is structurally equal to ``env``.

::

    envelope aten 1.0 by aot_autograd 0.1.0
    symbol s0 in [2, inf] hint 7 from input 0 dim 1
    input %x : float32[3, s0] cpu kind=input grad source="x"
    constant %c : float32[3] cpu sha256=...
    %0 = aten.sum.dim_IntList(%x, [1]) : float32[3] cpu
    %1 = aten.mul.Tensor(%0, %c) : float32[3] cpu  # "model.py":12 in "forward"
    return %1
    output 0 : float32[3] cpu kind=output

The names of values are numbers in program order, so that two dumps can be compared line by line. A size
expression among arguments stands in backquotes. A constant is given by name, type and digest; its data stands beside
the text (see :mod:`prims.ir.serial`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from prims.errors import InternalError
from prims.ir.envelope import Envelope, InputDesc, OutputDesc, SymbolEntry
from prims.ir.metadata import describe_spec
from prims.ir.names import target_name
from prims.ir.symbols import expr_of

__all__ = ["digest", "hash_envelope", "print_text"]


def print_text(env: Envelope, *, sources: bool = True) -> str:
    """The text form of ``env``.

    Args:
        sources: also print the user's source locations and input sources, which do not belong to its meaning.
    """
    lines = [
        f"envelope {env.dialect} {env.version[0]}.{env.version[1]} by {env.producer} {env.producer_version}",
        *([] if env.default_dtype == torch.float32 else [f"default {env.default_dtype}".replace("torch.", "")]),
        *map(_symbol_line, env.symbols),
        *(_input_line(desc, sources) for desc in env.inputs),
        *(_constant_line(name, value) for name, value in sorted(env.constants.items())),
    ]
    names: dict[torch.fx.Node, str] = {}
    placeholders = iter(env.inputs)
    for node in env.graph.nodes:
        if node.op == "placeholder":
            desc = next(placeholders, None)
            names[node] = f"%{desc.name if desc is not None else node.name}"
        elif node.op == "output":
            results = node.args[0]
            items = results if isinstance(results, (tuple, list)) else [results]
            lines.append(" ".join(["return", ", ".join(_argument(item, names) for item in items)]).rstrip())
        else:
            names[node] = f"%{len(names) - len(env.inputs)}"
            lines.append(_node_line(node, names, sources))
    lines.extend(_output_line(index, desc, sources) for index, desc in enumerate(env.outputs))
    lines.extend(f"mutation of input {m.input_index} by output {m.output_index}" for m in env.mutations)
    for alias in env.aliases:
        view = "" if alias.view is None else f" as {describe_spec(alias.view)}"
        lines.append(f"alias of {alias.base_kind} {alias.base_index} by result {alias.output_index}{view}")
    return "\n".join(lines) + "\n"


def _symbol_line(entry: SymbolEntry) -> str:
    low = "-inf" if entry.min is None else entry.min
    high = "inf" if entry.max is None else entry.max
    line = f"symbol {entry.name} in [{low}, {high}]"
    if entry.hint is not None:
        line += f" hint {entry.hint}"
    if entry.binding is not None:
        line += f" from input {entry.binding.input_index}"
        if entry.binding.dim is not None:
            line += f" dim {entry.binding.dim}"
    return line


def _input_line(desc: InputDesc, sources: bool) -> str:
    line = f"input %{desc.name} : {describe_spec(desc.spec)} kind={desc.kind}"
    if desc.requires_grad:
        line += " grad"
    if sources and desc.source is not None:
        line += f" source={json.dumps(desc.source)}"
    return line


def _output_line(index: int, desc: OutputDesc, sources: bool) -> str:
    line = f"output {index} : {describe_spec(desc.spec)} kind={desc.kind}"
    if sources and desc.source is not None:
        line += f" source={json.dumps(desc.source)}"
    return line


def _constant_line(name: str, value: torch.Tensor) -> str:
    from prims.spec import spec_of

    return f"constant ${name} : {describe_spec(spec_of(value))} sha256={digest(value)}"


def _node_line(node: torch.fx.Node, names: Mapping[torch.fx.Node, str], sources: bool) -> str:
    if node.op == "get_attr":
        call = f"${node.target}"
    else:
        parts = [_argument(item, names) for item in node.args]
        parts.extend(f"{key}={_argument(item, names)}" for key, item in node.kwargs.items())
        if node.op == "call_function":
            callee = target_name(node.target)
        elif node.op == "call_method":
            callee = f".{node.target}"
        else:
            raise InternalError(f"a node of kind {node.op!r} has no text form: {node.format_node()}")
        call = f"{callee}({', '.join(parts)})"
    line = f"{names[node]} = {call}"
    if "spec" in node.meta:
        line += f" : {describe_spec(node.meta['spec'])}"
    source = node.meta.get("source")
    if sources and source is not None:
        line += f"  # {json.dumps(source.filename)}:{source.line} in {json.dumps(source.function)}"
    return line


def _argument(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    kind = type(value)
    if kind is int or value is None or kind is bool:
        return repr(value)
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, tuple):
        inner = ", ".join(_argument(item, names) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return "[" + ", ".join(_argument(item, names) for item in value) + "]"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "nan" if value != value else ("inf" if value > 0 else "-inf")
    if isinstance(value, complex):
        return f"complex({_argument(value.real, names)}, {_argument(value.imag, names)})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"device({json.dumps(str(value))})"
    if isinstance(value, slice):
        bounds = (value.start, value.stop, value.step)
        return "slice(" + ", ".join(_argument(item, names) for item in bounds) + ")"
    if value is Ellipsis:
        return "..."
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_argument(v, names)}" for k, v in value.items()) + "}"
    expr = expr_of(value)
    if expr is not None:
        return f"`{expr}`"
    if callable(value):
        return target_name(value)
    raise InternalError(f"an argument of type {type(value).__name__} has no text form: {value!r}")


def digest(value: torch.Tensor) -> str:
    """Hex SHA-256 of a tensor's dtype, shape and contents."""
    tensor = value.detach()
    sha = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.device.type != "meta":
        flat = tensor.cpu().contiguous().reshape(-1)
        sha.update(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    return sha.hexdigest()


def hash_envelope(env: Envelope) -> str:
    """Hex SHA-256 of the text without sources; constants count by their digests."""
    return hashlib.sha256(print_text(env, sources=False).encode()).hexdigest()
