"""``to_stablehlo()``: an exported program as StableHLO text."""

from __future__ import annotations

from typing import Any

import torch

from compile_api.deploy.exported import Exported
from compile_api.deploy.interchange.program import Program, Weight, dim_text, program_of
from compile_api.deploy.interchange.stablehlo.builder import DTYPES, Builder, V, literal, type_of
from compile_api.deploy.interchange.stablehlo.table import STABLEHLO
from compile_api.deploy.interchange.walk import Missing, NotMapped, not_mapped, walk
from prims.errors import UserError
from prims.spec import TensorSpec

__all__ = ["text_of", "write"]


def write(exported: Exported, constants: bool) -> str:
    """See :func:`compile_api.to_stablehlo`."""
    return text_of(program_of(exported, STABLEHLO.takes, STABLEHLO.name), constants)


def text_of(program: Program, constants: bool) -> str:
    """The module of a program.

    Raises:
        UserError: operators do not map.
    """
    missing = Missing()
    builder = Builder(program)
    values: dict[torch.fx.Node, Any] = {}
    heads, signature = _inputs(program, builder, values, constants, missing)
    walk(program, STABLEHLO, builder, values, missing)
    missing.refuse(STABLEHLO)
    found = [(name, _result(name, value, builder, values)) for name, value in program.results]
    for at, ((name, v), (_, value)) in enumerate(zip(found, program.results, strict=True)):
        heads.append(f"// result {at}: {name}: {_typed(v.dtype, _spec_shape(value), program)}")
    types = ", ".join(type_of(v.dtype, v.shape) for _, v in found)
    returned = f"return {', '.join(str(v) for _, v in found)} : {types}" if found else "return"
    return "\n".join((
        *heads, "module @program {", f"  func.func public @main({', '.join(signature)}) -> ({types}) {{",
        *builder.lines, f"    {returned}", "  }", "}", "",
    ))  # fmt: skip


def _inputs(
    program: Program, builder: Builder, values: dict[torch.fx.Node, Any], constants: bool, missing: Missing
) -> tuple[list[str], list[str]]:
    """Lines that say what the arguments are, and the signature."""
    heads: list[str] = []
    signature: list[str] = []
    for given in program.inputs:
        if given.dtype not in DTYPES:
            missing.add(f"input {given.name}", not_mapped(given.dtype))
            continue
        weight = isinstance(given, Weight)
        if isinstance(given, Weight) and constants and not given.written:
            values[given.node] = _constant(builder, given.value)
            continue
        at = len(signature)
        sizes = "x".join([*("?" if isinstance(n, str) else str(n) for n in given.shape), DTYPES[given.dtype]])
        quoted = given.name.replace("\\", "/").replace('"', "'")
        signature.append(f'%arg{at}: tensor<{sizes}> loc("{quoted}")')
        typed = _typed(given.dtype, given.shape, program)
        heads.append(f"// argument {at}: {given.name}: {typed}{' (weight)' if weight else ''}")
        if given.node is not None:
            value = V(f"%arg{at}", given.dtype, tuple(given.node.meta["spec"].shape))
            values[given.node] = builder.names[given.node] = value
    for node in program.graph.nodes:
        if node.op == "placeholder" and node not in values:
            values[node] = builder.unknown(node)
    return heads, signature


def _constant(builder: Builder, value: torch.Tensor) -> V:
    """A weight's elements, as bytes where MLIR takes them."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        text = ""
    elif value.dtype == torch.bool or flat.numel() == 1:
        parts = [literal(v, value.dtype) for v in flat.tolist()]
        text = _nested(parts, list(value.shape)) if value.dim() else parts[0]
    else:
        text = f'"0x{bytes(flat.view(torch.uint8).numpy().data).hex().upper()}"'
    return builder.emit(f"stablehlo.constant dense<{text}> : {type_of(value.dtype, value.shape)}", value.dtype,
                        tuple(value.shape))  # fmt: skip


def _nested(parts: list[str], shape: list[int]) -> str:
    if not shape:
        return parts[0]
    step = len(parts) // shape[0]
    return f"[{', '.join(_nested(parts[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0]))}]"


def _result(name: str, value: Any, builder: Builder, values: dict[torch.fx.Node, Any]) -> V:
    if isinstance(value, torch.fx.Node):
        found: V = values[value]
        return found
    try:
        return builder.scalar(value, torch.int64)
    except NotMapped as error:
        raise UserError(f"the program cannot be written as StableHLO: {name}: {error}") from error


def _spec_shape(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, torch.fx.Node):
        return ()
    spec: TensorSpec = value.meta["spec"]
    return tuple(spec.shape)


def _typed(dtype: torch.dtype, shape: Any, program: Program) -> str:
    sizes = [n if isinstance(n, str) else str(dim_text(n, program.dims)) for n in shape]
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
