"""StableHLO text parsed by jaxlib's dialect, its sizes filled in, and run by XLA on the CPU."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiles in half the time

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

ELEMENTS = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "ui8", "bool": "i1",
}  # fmt: skip


def _type(x: np.ndarray) -> str:
    return f"tensor<{''.join(f'{n}x' for n in x.shape)}{ELEMENTS[str(x.dtype)]}>"


def with_sizes(text: str, given: Sequence[np.ndarray]) -> str:
    """The module with a main function for arguments of these sizes, which calls the program's."""
    signature = re.search(r"func\.func public @main\((.*)\) -> \((.*)\) \{", text)
    assert signature is not None
    takes, gives = re.findall(r"%arg\d+: (tensor<[^>]*>)", signature[1]), signature[2]
    named = text.replace("func.func public @main(", "func.func private @program(")
    lines = [f"  func.func public @main({', '.join(f'%a{k}: {_type(x)}' for k, x in enumerate(given))}) -> ({gives}) {{"]
    for k, (x, wanted) in enumerate(zip(given, takes, strict=True)):
        lines.append(f"    %b{k} = stablehlo.convert %a{k} : ({_type(x)}) -> {wanted}")
    count = len(re.findall(r"tensor<", gives))
    names = ", ".join(f"%r#{k}" for k in range(count)) if count > 1 else "%r"
    lines.append(f"    %r{f':{count}' if count > 1 else ''} = call @program({', '.join(f'%b{k}' for k in range(len(given)))})"
                 f" : ({', '.join(takes)}) -> ({gives})")  # fmt: skip
    lines += [f"    return {names} : {gives}", "  }", "}"]
    return named.rstrip().removesuffix("}") + "\n".join(lines) + "\n"


def run(text: str, given: Sequence[np.ndarray]) -> list[Any]:
    """The results of the module's function.

    Raises:
        Exception: MLIR's or XLA's, if the text is none of theirs.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        module.operation.verify()
        if "?" in text:
            module = ir.Module.parse(with_sizes(text, given))
            written = io.BytesIO()
            module.operation.write_bytecode(written)
            refined = xla_client._xla.mlir.refine_polymorphic_shapes(
                written.getvalue(), enable_shape_assertions=False, validate_static_shapes=True
            )
            module = ir.Module.parse(refined)
        backend = xla_bridge.get_backend("cpu")
        devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
        program = backend.compile_and_load(module, devices, xla_client.CompileOptions())
        kept = [np.asarray(x) for x in given]
        results = program.execute_sharded([jax.device_put(x) for x in kept])
        return [np.asarray(one[0]) for one in results.disassemble_into_single_device_arrays()]
