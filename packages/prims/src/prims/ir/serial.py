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

from prims.errors import StoredGraphError, UserError
from prims.forking import compiling
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
from prims.ir.names import storable_name
from prims.ir.stored import (
    MAX_DEPTH,
    MAX_FILE,
    call_node,
    callable_value,
    checked_form,
    constant_name,
    device_of,
    float_named,
    integer,
    list_of,
    plain_name,
    read_file,
    size_of,
    source_of,
    tensor_spec,
    text_of,
    torch_value,
)
from prims.ir.symbols import expr_of
from prims.ir.tensors import read_tensors
from prims.ir.verifier import verify

__all__ = ["FILE_VERSION", "from_json", "load", "save", "to_json"]

#: ``(major, minor)`` of the file's own schema.
FILE_VERSION = (1, 0)


def to_json(env: Envelope, *, indent: int | None = 1) -> str:
    """``env`` as JSON; constants by name, type and digest only.

    Args:
        indent: None for a text in one line, which takes a fifth of the time.
    """
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
    if env.default_dtype != torch.float32:
        data["default_dtype"] = str(env.default_dtype).removeprefix("torch.")
    return json.dumps(data, indent=indent, separators=(",", ":") if indent is None else None)


class _Encoder:
    """Values as JSON. Plain JSON values stand for themselves; everything else is ``{"kind": value}``."""

    def __init__(self, index: Mapping[torch.fx.Node, int]) -> None:
        self.index = index
        self._names: dict[Any, str] = {}  # a graph has few kinds of calls

    def name(self, target: Any) -> str:
        """The name of a call's target."""
        known = self._names.get(target)
        if known is None:
            known = self._names[target] = storable_name(target)
        return known

    def node(self, node: torch.fx.Node) -> dict[str, Any]:
        data: dict[str, Any]
        if node.op == "get_attr":
            data = {"constant": node.target}
        else:
            target = self.name(node.target) if node.op == "call_function" else f".{node.target}"
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
            name = storable_name(value)
            callable_value(name)
            return {"target": name}
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

    Nothing that the text names is imported or run; what it may say is bounded (:mod:`prims.ir.stored`).

    Raises:
        StoredGraphError: not such a text, of a newer schema, it names a callable that a file may not name, or a
            constant is missing or has another content.
    """
    try:
        data = json.loads(text, parse_constant=_no_number)
        major, _ = (integer(part) for part in list_of(data["version"], "the version", 2))
    except StoredGraphError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise StoredGraphError(
            "FILE-C2", "this is not a serialised envelope", todo="Expected JSON with a 'version' first."
        ) from error
    if major != FILE_VERSION[0]:
        raise StoredGraphError(
            "FILE-C2",
            f"the file has schema version {data['version']}, this package reads {FILE_VERSION[0]}.x",
            todo="Install a version of quintet-prims that reads it.",
        )
    decoder = _Decoder(data, _checked_constants(data, dict(constants or {})))
    with checked_form(lambda: decoder.at):
        return decoder.envelope()


def _no_number(text: str) -> Any:
    raise ValueError(f"the number {text!r}: floats stand as hexadecimal strings")


def _checked_constants(data: dict[str, Any], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The constants that the text names, each with the content that it had."""
    from prims.ir.text import digest

    with checked_form("the constants"):
        named = dict(data["constants"])
        for name, expected in named.items():
            constant_name(name)
            if name not in given:
                raise StoredGraphError(
                    "FILE-C4", f"constant {name!r} was not given", todo="Load the safetensors file beside the JSON."
                )
            if digest(given[name]) != expected:
                raise StoredGraphError(
                    "FILE-C4", f"constant {name!r} has another content than when the envelope was written"
                )
        return {name: given[name] for name in named}


class _Decoder:
    def __init__(self, data: dict[str, Any], constants: dict[str, torch.Tensor]) -> None:
        self.data = data
        self.constants = constants
        self.graph = torch.fx.Graph()
        self.nodes: list[torch.fx.Node] = []
        self.context: Any = None
        self.depth = 0
        self.at = "its head"

    def envelope(self) -> Envelope:
        data = self.data
        symbols = self.symbols()
        inputs = []
        for number, item in enumerate(list_of(data["inputs"], "the inputs")):
            self.at = f"input {number}"
            desc = self.input(item)
            node = self.graph.placeholder(desc.name)
            node.meta["spec"] = desc.spec
            self.nodes.append(node)
            inputs.append(desc)
        for number, item in enumerate(list_of(data["nodes"], "the nodes")):
            self.at = f"node {number}"
            self.nodes.append(self.node(item))
        self.at = "the results"
        self.graph.output(tuple(self.value(item) for item in list_of(data["results"], "the results")))
        version = [integer(part, 0, 2**31) for part in list_of(data["dialect_version"], "the dialect's version", 2)]
        return Envelope(
            dialect=text_of(data["dialect"], "the dialect"),
            version=(version[0], version[1]),
            producer=text_of(data["producer"], "the producer"),
            producer_version=text_of(data["producer_version"], "the producer's version"),
            graph=self.graph,
            inputs=tuple(inputs),
            outputs=tuple(map(self.output, list_of(data["outputs"], "the outputs"))),
            symbols=symbols,
            mutations=tuple(map(_mutation, list_of(data["mutations"], "the mutations"))),
            aliases=tuple(map(self.alias, list_of(data["aliases"], "the aliases"))),
            constants=self.constants,
            default_dtype=float_named(text_of(data.get("default_dtype", "float32"), "the default dtype")),
        )

    def input(self, item: dict[str, Any]) -> InputDesc:
        if not isinstance(item["requires_grad"], bool):
            raise StoredGraphError("FILE-C2", "requires_grad is neither true nor false")
        return InputDesc(
            plain_name(item["name"], "an input"),
            text_of(item["kind"], "a kind"),
            self.spec(item["spec"]),
            item["requires_grad"],
            _optional_text(item["source"]),
        )

    def output(self, item: dict[str, Any]) -> OutputDesc:
        return OutputDesc(text_of(item["kind"], "a kind"), self.spec(item["spec"]), _optional_text(item["source"]))

    def alias(self, item: Any) -> Alias:
        output, kind, base, view = list_of(item, "an alias", 4)
        spec = None if view is None else self.spec(view)
        return Alias(_index(output), text_of(kind, "a base's kind"), _index(base), spec)

    def symbols(self) -> SymbolTable:
        if not list_of(self.data["symbols"], "the symbols"):
            return SymbolTable()
        from prims.spec import SymbolContext

        self.context = SymbolContext()
        entries = []
        for item in self.data["symbols"]:
            name = plain_name(item["name"], "a symbol")
            low, high = (None if item[key] is None else integer(item[key]) for key in ("min", "max"))
            hint = item["hint"] if item["hint"] is None or type(item["hint"]) is float else integer(item["hint"])
            binding = None
            if item["binding"] is not None:
                index, dim = list_of(item["binding"], "a binding", 2)
                binding = SymbolBinding(_index(index), None if dim is None else _index(dim))
            entries.append(SymbolEntry(name, low, high, hint, binding))
            self.context.declare(name, hint, low, high)
        return SymbolTable(self.context, tuple(entries))

    def node(self, item: dict[str, Any]) -> torch.fx.Node:
        if "constant" in item:
            if item["constant"] not in self.constants:
                raise StoredGraphError("FILE-C2", f"no constant is named {str(item['constant'])[:200]!r}")
            node = self.graph.create_node("get_attr", item["constant"])
        else:
            args = tuple(self.value(value) for value in list_of(item["args"], "the arguments"))
            kwargs = {key: self.value(value) for key, value in dict(item.get("kwargs", {})).items()}
            node = call_node(self.graph, item["target"], args, kwargs)
        if "spec" in item:
            node.meta["spec"] = self.spec(item["spec"])
        if "source" in item:
            node.meta["source"] = source_of(*list_of(item["source"], "a source", 3))
        return node

    def value(self, value: Any) -> Any:
        if not isinstance(value, (list, dict)):
            if isinstance(value, float):
                _no_number(str(value))
            return integer(value) if type(value) is int else value
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise StoredGraphError("FILE-C2", f"a value is nested more than {MAX_DEPTH} deep")
        found = [self.value(item) for item in value] if isinstance(value, list) else self.tagged(value)
        self.depth -= 1
        return found

    def tagged(self, value: dict[str, Any]) -> Any:
        ((kind, content),) = value.items()
        match kind:
            case "node":
                return self.nodes[_index(content)]
            case "float":
                return float.fromhex(text_of(content, "a float"))
            case "complex":
                real, imaginary = list_of(content, "a complex number", 2)
                return complex(float.fromhex(real), float.fromhex(imaginary))
            case "tuple":
                return tuple(self.value(item) for item in list_of(content, "a tuple"))
            case "dict":
                return {
                    _key(self.value(k)): self.value(v)
                    for k, v in (list_of(pair, "an item", 2) for pair in list_of(content, "a dictionary"))
                }
            case "slice":
                return slice(*(self.value(item) for item in list_of(content, "a slice", 3)))
            case "torch":
                return torch_value(content)
            case "device":
                return device_of(content)
            case "ellipsis":
                return Ellipsis
            case "target":
                return callable_value(content)
            case "size":
                return size_of(content, self.context)
        raise StoredGraphError("FILE-C2", f"unknown value kind {kind[:80]!r}")

    def spec(self, spec: Any) -> Any:
        if isinstance(spec, dict) and "tuple" in spec:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise StoredGraphError("FILE-C2", f"metadata is nested more than {MAX_DEPTH} deep")
            found = tuple(self.spec(item) for item in list_of(spec["tuple"], "several results"))
            self.depth -= 1
            return found
        if not isinstance(spec, dict) or "dtype" not in spec:
            return _scalar(self.value(spec))
        shape, strides = (
            tuple(self.value(size) for size in list_of(spec[key], f"the {key}")) for key in ("shape", "strides")
        )
        return tensor_spec(shape, spec["dtype"], spec["device"], strides, self.value(spec["offset"]))


def _index(value: Any) -> int:
    return integer(value, 0, 2**31)


def _mutation(item: Any) -> Mutation:
    return Mutation(*map(_index, list_of(item, "a mutation", 2)))


def _optional_text(value: Any) -> str | None:
    return None if value is None else text_of(value, "a source")


def _key(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    raise StoredGraphError("FILE-C2", f"a dictionary has a key of type {type(value).__name__}")


def _scalar(value: Any) -> Any:
    """What stands as metadata where there is no tensor: a number, a size, or nothing."""
    if value is None or isinstance(value, (int, float, complex)) or expr_of(value) is not None:
        return value
    raise StoredGraphError("FILE-C2", f"metadata is a {type(value).__name__}")


@compiling()
def save(env: Envelope, path: str | os.PathLike[str]) -> None:
    """Write ``path`` (JSON) and, where there are constants, ``path + ".safetensors"`` beside it.

    Raises:
        StoredGraphError: the graph calls something that a file may not name (see ``prims.ir.register_callable``).
    """
    target = os.fspath(path)
    text = to_json(env)
    if env.constants:
        from safetensors.torch import save_file

        tensors = {name: value.detach().contiguous().clone() for name, value in env.constants.items()}
        save_file(tensors, target + ".safetensors")
    with open(target, "w", encoding="utf-8") as file:
        file.write(text)


@compiling()
def load(path: str | os.PathLike[str]) -> Envelope:
    """Read and verify what :func:`save` wrote.

    Files may come from anywhere: nothing that they name is imported, and nothing is run.

    Raises:
        StoredGraphError: it is not what :func:`save` writes, or names a callable that a file may not name.
        VerifierError: the graph breaks a constraint of its dialect.
    """
    source = os.fspath(path)
    data = read_file(source, MAX_FILE)
    constants: dict[str, torch.Tensor] = {}
    if os.path.lexists(source + ".safetensors"):
        constants = read_tensors(source + ".safetensors")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoredGraphError("FILE-C2", f"{source!r} is not UTF-8 text: {error}") from error
    env = from_json(text, constants)
    with checked_form(source):
        return verify(env)
