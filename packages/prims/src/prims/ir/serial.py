"""Files: JSON with the version first, and the constants beside it as safetensors. Never pickle.

The graph stands in the JSON as data (not as text to parse), so that other languages can read it. The schema of the
file is :data:`FILE_VERSION`; the dialect has its own version inside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from prims.errors import UserError
from prims.ir.envelope import (
    Alias,
    Envelope,
    InputDesc,
    Mutation,
    OutputDesc,
    SymbolBinding,
    SymbolEntry,
    SymbolTable,
)
from prims.ir.metadata import is_tensor_spec
from prims.ir.names import target_name, target_of
from prims.ir.source import SourceLoc
from prims.ir.symbols import expr_of

__all__ = ["FILE_VERSION", "from_json", "load", "save", "to_json"]

#: ``(major, minor)`` of the file's own schema.
FILE_VERSION = (1, 0)


def to_json(env: Envelope) -> str:
    """``env`` as JSON; constants by name, type and digest only."""
    from prims.ir.text import digest

    index = {node: number for number, node in enumerate(n for n in env.graph.nodes if n.op != "output")}
    encode = _Encoder(index)
    data = {
        "version": list(FILE_VERSION),
        "dialect": env.dialect,
        "dialect_version": list(env.version),
        "producer": env.producer,
        "producer_version": env.producer_version,
        "symbols": [
            {
                "name": e.name,
                "min": e.min,
                "max": e.max,
                "hint": e.hint,
                "binding": None if e.binding is None else [e.binding.input_index, e.binding.dim],
            }
            for e in env.symbols
        ],
        "inputs": [
            {
                "name": d.name,
                "kind": d.kind,
                "spec": encode.spec(d.spec),
                "requires_grad": d.requires_grad,
                "source": d.source,
            }
            for d in env.inputs
        ],
        "constants": {name: digest(value) for name, value in sorted(env.constants.items())},
        "nodes": [encode.node(node) for node in env.graph.nodes if node.op not in ("placeholder", "output")],
        "results": [encode.value(item) for item in env.results()],
        "outputs": [{"kind": d.kind, "spec": encode.spec(d.spec), "source": d.source} for d in env.outputs],
        "mutations": [[m.input_index, m.output_index] for m in env.mutations],
        "aliases": [
            [a.output_index, a.base_kind, a.base_index, None if a.view is None else encode.spec(a.view)]
            for a in env.aliases
        ],
    }
    return json.dumps(data, indent=1)


class _Encoder:
    """Values as JSON. Plain JSON values stand for themselves; everything else is ``{"kind": value}``."""

    def __init__(self, index: Mapping[torch.fx.Node, int]) -> None:
        self.index = index

    def node(self, node: torch.fx.Node) -> dict[str, Any]:
        data: dict[str, Any]
        if node.op == "get_attr":
            data = {"constant": node.target}
        else:
            target = target_name(node.target) if node.op == "call_function" else f".{node.target}"
            data = {"target": target, "args": [self.value(item) for item in node.args]}
            if node.kwargs:
                data["kwargs"] = {key: self.value(item) for key, item in node.kwargs.items()}
        if "spec" in node.meta:
            data["spec"] = self.spec(node.meta["spec"])
        source = node.meta.get("source")
        if source is not None:
            data["source"] = [source.filename, source.line, source.function]
        return data

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, torch.fx.Node):
            return {"node": self.index[value]}
        if isinstance(value, float):
            return {"float": float.hex(value)}
        if isinstance(value, complex):
            return {"complex": [float.hex(value.real), float.hex(value.imag)]}
        if isinstance(value, tuple):
            return {"tuple": [self.value(item) for item in value]}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {"dict": [[self.value(k), self.value(v)] for k, v in value.items()]}
        if isinstance(value, slice):
            return {"slice": [self.value(item) for item in (value.start, value.stop, value.step)]}
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if value is Ellipsis:
            return {"ellipsis": True}
        expr = expr_of(value)
        if expr is not None:
            return {"size": str(expr)}
        if callable(value):
            return {"target": target_name(value)}
        raise UserError(f"cannot serialise an argument of type {type(value).__name__}: {value!r}")

    def spec(self, spec: Any) -> Any:
        if isinstance(spec, (tuple, list)):
            return {"tuple": [self.spec(item) for item in spec]}
        if not is_tensor_spec(spec):
            return self.value(spec)
        return {
            "shape": [self.value(size) for size in spec.shape],
            "dtype": str(spec.dtype).removeprefix("torch."),
            "device": str(spec.device),
            "strides": [self.value(stride) for stride in spec.strides],
            "offset": self.value(spec.storage_offset),
        }


def from_json(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Envelope:
    """The envelope of a text that :func:`to_json` wrote.

    Raises:
        UserError: not such a text, of a newer schema, or a constant is missing or has another content.
    """
    from prims.ir.text import digest

    try:
        data = json.loads(text)
        major = data["version"][0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError("this is not a serialised envelope", todo="Expected JSON with a 'version' first.") from error
    if major != FILE_VERSION[0]:
        raise UserError(
            f"the file has schema version {data['version']}, this package reads {FILE_VERSION[0]}.x",
            todo="Install a version of quintet-prims that reads it.",
        )
    given = dict(constants or {})
    for name, expected in data["constants"].items():
        if name not in given:
            raise UserError(f"constant {name!r} was not given", todo="Load the safetensors file beside the JSON.")
        if digest(given[name]) != expected:
            raise UserError(f"constant {name!r} has another content than when the envelope was written")
    return _Decoder(data, given).envelope()


class _Decoder:
    def __init__(self, data: dict[str, Any], constants: dict[str, torch.Tensor]) -> None:
        self.data = data
        self.constants = {name: constants[name] for name in data["constants"]}
        self.graph = torch.fx.Graph()
        self.nodes: list[torch.fx.Node] = []
        self.context: Any = None

    def envelope(self) -> Envelope:
        data = self.data
        symbols = self.symbols()
        inputs = []
        for item in data["inputs"]:
            desc = InputDesc(
                item["name"], item["kind"], self.spec(item["spec"]), item["requires_grad"], item["source"]
            )
            node = self.graph.placeholder(desc.name)
            node.meta["spec"] = desc.spec
            self.nodes.append(node)
            inputs.append(desc)
        for item in data["nodes"]:
            self.nodes.append(self.node(item))
        self.graph.output(tuple(self.value(item) for item in data["results"]))
        return Envelope(
            dialect=data["dialect"],
            version=tuple(data["dialect_version"]),
            producer=data["producer"],
            producer_version=data["producer_version"],
            graph=self.graph,
            inputs=tuple(inputs),
            outputs=tuple(OutputDesc(o["kind"], self.spec(o["spec"]), o["source"]) for o in data["outputs"]),
            symbols=symbols,
            mutations=tuple(Mutation(*item) for item in data["mutations"]),
            aliases=tuple(
                Alias(output, kind, base, None if view is None else self.spec(view))
                for output, kind, base, view in data["aliases"]
            ),
            constants=self.constants,
        )

    def symbols(self) -> SymbolTable:
        if not self.data["symbols"]:
            return SymbolTable()
        from prims.spec import SymbolContext

        self.context = SymbolContext()
        entries = []
        for item in self.data["symbols"]:
            binding = None if item["binding"] is None else SymbolBinding(*item["binding"])
            entries.append(SymbolEntry(item["name"], item["min"], item["max"], item["hint"], binding))
            self.context.declare(item["name"], item["hint"], item["min"], item["max"])
        return SymbolTable(self.context, tuple(entries))

    def node(self, item: dict[str, Any]) -> torch.fx.Node:
        if "constant" in item:
            node = self.graph.create_node("get_attr", item["constant"])
        else:
            args = tuple(self.value(value) for value in item["args"])
            kwargs = {key: self.value(value) for key, value in item.get("kwargs", {}).items()}
            target = item["target"]
            if target.startswith("."):
                node = self.graph.call_method(target[1:], args, kwargs)
            else:
                node = self.graph.call_function(target_of(target), args, kwargs)
        if "spec" in item:
            node.meta["spec"] = self.spec(item["spec"])
        if "source" in item:
            node.meta["source"] = SourceLoc(*item["source"])
        return node

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        match kind:
            case "node":
                return self.nodes[content]
            case "float":
                return float.fromhex(content)
            case "complex":
                return complex(*map(float.fromhex, content))
            case "tuple":
                return tuple(self.value(item) for item in content)
            case "dict":
                return {self.value(k): self.value(v) for k, v in content}
            case "slice":
                return slice(*(self.value(item) for item in content))
            case "torch":
                return getattr(torch, content)
            case "device":
                return torch.device(content)
            case "ellipsis":
                return Ellipsis
            case "target":
                return target_of(content)
            case "size":
                from prims.spec.exprtext import parse

                return self.context.make(parse(content))
        raise UserError(f"unknown value kind {kind!r} in a serialised envelope")

    def spec(self, spec: Any) -> Any:
        if isinstance(spec, dict) and "tuple" in spec:
            return tuple(self.spec(item) for item in spec["tuple"])
        if not isinstance(spec, dict) or "dtype" not in spec:
            return self.value(spec)
        from prims.spec import TensorSpec

        return TensorSpec(
            tuple(self.value(size) for size in spec["shape"]),
            getattr(torch, spec["dtype"]),
            torch.device(spec["device"]),
            tuple(self.value(stride) for stride in spec["strides"]),
            self.value(spec["offset"]),
        )


def save(env: Envelope, path: str | os.PathLike[str]) -> None:
    """Write ``path`` (JSON) and, where there are constants, ``path + ".safetensors"`` beside it."""
    target = os.fspath(path)
    if env.constants:
        from safetensors.torch import save_file

        tensors = {name: value.detach().contiguous().clone() for name, value in env.constants.items()}
        save_file(tensors, target + ".safetensors")
    with open(target, "w", encoding="utf-8") as file:
        file.write(to_json(env))


def load(path: str | os.PathLike[str]) -> Envelope:
    """Read what :func:`save` wrote."""
    source = os.fspath(path)
    constants: dict[str, torch.Tensor] = {}
    if os.path.exists(source + ".safetensors"):
        from safetensors.torch import load_file

        constants = load_file(source + ".safetensors")
    with open(source, encoding="utf-8") as file:
        return from_json(file.read(), constants)
