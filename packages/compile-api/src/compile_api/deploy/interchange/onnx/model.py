"""``to_onnx()``: an exported program as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

from compile_api.deploy.exported import Exported
from compile_api.deploy.interchange.onnx.builder import DTYPES, Builder, T, as_proto, raw
from compile_api.deploy.interchange.onnx.table import ONNX
from compile_api.deploy.interchange.program import Argument, Program, Weight, dim_text, program_of
from compile_api.deploy.interchange.walk import Missing, NotMapped, not_mapped, walk
from prims.errors import UserError
from prims.spec import TensorSpec

__all__ = ["model_of", "write"]

LEAST_OPSET = 18
#: Protocol buffers hold no more than 2 GB; beside weights there are the nodes.
LARGEST_FILE = 2**31 - 2**26


def write(exported: Exported, path: str | os.PathLike[str], opset: int, external_data: bool | None) -> Path:
    """See :func:`compile_api.to_onnx`."""
    if not LEAST_OPSET <= opset <= onnx.defs.onnx_opset_version():
        newest = onnx.defs.onnx_opset_version()
        raise UserError(f"opset is {opset!r}", todo=f"This version of onnx knows {LEAST_OPSET} to {newest}.")
    program = program_of(exported, ONNX.takes, ONNX.name)
    file = Path(path)
    model, weights = model_of(program, opset, file.stem)
    model.graph.doc_string = str(exported.contract)
    size = sum(w.numel() * w.element_size() for _, w in weights)
    apart = size > LARGEST_FILE if external_data is None else external_data
    file.parent.mkdir(parents=True, exist_ok=True)
    _add_weights(model.graph, weights, file.with_name(file.name + ".data") if apart else None)
    onnx.save_model(model, file)
    onnx.checker.check_model(os.fspath(file))
    return file


def model_of(program: Program, opset: int, name: str) -> tuple[onnx.ModelProto, list[tuple[str, torch.Tensor]]]:
    """A model without its weights, and these.

    Raises:
        UserError: operators do not map.
    """
    missing = Missing()
    builder = Builder(program, opset)
    values: dict[torch.fx.Node, Any] = {}
    inputs, weights = _inputs(program, builder, values, missing)
    builder.reserve(name for name, _ in program.results)
    walk(program, ONNX, builder, values, missing)
    missing.refuse(ONNX)
    outputs = _outputs(program, builder, values)
    graph = onnx.helper.make_graph(builder.nodes, name, inputs, outputs, builder.initializers)
    version = onnx.helper.make_opsetid("", opset)
    model = onnx.helper.make_model(
        graph, opset_imports=[version], producer_name="quintet",
        ir_version=onnx.helper.find_min_ir_version_for([version], ignore_unknown=True),
    )  # fmt: skip
    return model, weights


def _add_weights(graph: onnx.GraphProto, weights: Sequence[tuple[str, torch.Tensor]], data: Path | None) -> None:
    """Weights as initializers: in the model, or one after another in a file beside it, at multiples of 64 bytes."""
    inside = [(name, value) for name, value in weights if data is None or not value.numel()]
    for name, value in inside:
        graph.initializer.append(as_proto(name, value))
    if data is None:
        return
    with data.open("wb") as stream:
        for name, value in weights:
            if not value.numel():
                continue
            stream.write(bytes(-stream.tell() % 64))
            start = stream.tell()
            stream.write(raw(value))
            made = graph.initializer.add()
            made.name, made.data_type, made.data_location = name, DTYPES[value.dtype], onnx.TensorProto.EXTERNAL
            made.dims.extend(value.shape)
            for key, text in (("location", data.name), ("offset", start), ("length", stream.tell() - start)):
                entry = made.external_data.add()
                entry.key, entry.value = key, str(text)


def _inputs(
    program: Program, builder: Builder, values: dict[torch.fx.Node, Any], missing: Missing
) -> tuple[list[onnx.ValueInfoProto], list[tuple[str, torch.Tensor]]]:
    """Arguments, and the weights that the program writes: their values at the start are what they are by default."""
    inputs: list[onnx.ValueInfoProto] = []
    weights: list[tuple[str, torch.Tensor]] = []
    for given in program.inputs:
        if given.dtype not in ONNX.dtypes:
            missing.add(f"input {given.name}", not_mapped(given.dtype))
            continue
        name = builder.free(given.name)
        if isinstance(given, Weight):
            weights.append((name, given.value))
        if isinstance(given, Argument) or given.written:
            inputs.append(onnx.helper.make_tensor_value_info(name, DTYPES[given.dtype], list(given.shape)))
        if given.node is not None:
            values[given.node] = T(name, given.dtype)
            builder.names[given.node] = name
    for node in program.graph.nodes:
        if node.op == "placeholder" and node not in values:
            values[node] = builder.unknown(node)
    return inputs, weights


def _outputs(program: Program, builder: Builder, values: dict[torch.fx.Node, Any]) -> list[onnx.ValueInfoProto]:
    found = []
    for name, value in program.results:
        if isinstance(value, torch.fx.Node):
            spec: TensorSpec = value.meta["spec"]
            whole, shape, dtype = builder.full(values[value], spec), spec.shape, spec.dtype
        else:
            try:
                whole, shape, dtype = builder.const(value, torch.int64), (), torch.int64
            except NotMapped as error:
                raise UserError(f"the program cannot be written as ONNX: {name}: {error}") from error
        builder.nodes.append(onnx.helper.make_node("Identity", [whole.name], [name]))
        sizes = [dim_text(n, program.dims) for n in shape]
        found.append(onnx.helper.make_tensor_value_info(name, DTYPES[dtype], sizes))
    return found


