"""Compiles every elementwise row's C template for one dtype into one library and runs primitives through it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from prims.errors import Unsupported
from prims.ops import TABLE, PrimOp
from prims.ops.templates import c_convert, c_expr, c_prelude, c_random, c_type

FLAGS = [
    "-O3", "-march=native", "-std=gnu11", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fwrapv",
    "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-function", "-Wno-unknown-pragmas",
]  # fmt: skip
STORAGE = {
    "float": torch.float32, "double": torch.float64, "int64_t": torch.int64, "int32_t": torch.int32,
    "int16_t": torch.int16, "int8_t": torch.int8, "uint8_t": torch.uint8,
}  # fmt: skip


def compiler() -> str | None:
    return shutil.which("gcc")


def storage(dtype: torch.dtype) -> torch.dtype:
    """The dtype that holds a dtype's compute values in memory, for the harness."""
    return torch.bool if dtype == torch.bool else STORAGE[c_type(dtype)]


def _function(name: str, inputs: list[str], out: str, expr: str) -> str:
    params = ", ".join(f"const {t} *restrict p{i}" for i, t in enumerate(inputs))
    loads = "\n".join(f"    {t} x{i} = p{i}[i];" for i, t in enumerate(inputs))
    return (
        f"void {name}(int64_t n, {params}, {out} *restrict out) {{\n"
        f"  #pragma omp simd\n  for (int64_t i = 0; i < n; i++) {{\n{loads}\n    out[i] = {expr};\n  }}\n}}\n"
    )


def elementwise_source(dtype: torch.dtype, branchless: bool = False) -> str:
    """One function per elementwise row defined for `dtype`, and one per conversion from it."""
    ctype = c_type(dtype)
    parts = []
    for op in TABLE.values():
        if op.c is None or dtype not in op.dtypes:
            continue
        types = ["uint8_t", ctype, ctype] if op.name == "where" else [ctype] * len(op.params)
        out = "uint8_t" if op.dtype_rule == "bool" else ctype
        names = [f"x{i}" for i in range(len(types))]
        parts.append(_function(f"prim_{op.name}", types, out, c_expr(op, names, dtype, branchless)))
    for target in TABLE["convert"].dtypes:
        name = f"convert_{str(target).removeprefix('torch.')}"
        parts.append(_function(name, [ctype], c_type(target), c_convert("x0", dtype, target)))
    for op in TABLE.values():
        if op.kind == "random" and dtype in op.dtypes:
            call = c_random(op, "seed", "offset", "i", dtype)
            parts.append(
                f"void prim_{op.name}(int64_t n, int64_t seed, int64_t offset, {ctype} *out) {{\n"
                f"  for (int64_t i = 0; i < n; i++) out[i] = {call};\n}}\n"
            )
    text = "\n".join(parts)
    return c_prelude(text) + "\n" + text


def build(dtype: torch.dtype, folder: Path, branchless: bool = False) -> ctypes.CDLL:
    tag = str(dtype).removeprefix("torch.")
    source, library = folder / f"{tag}.c", folder / f"{tag}.so"
    source.write_text(elementwise_source(dtype, branchless))
    done = subprocess.run(
        [str(compiler()), *FLAGS, str(source), "-o", str(library), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{source}:\n{done.stderr}"
    return ctypes.CDLL(str(library))


class CBackend:
    """``run_op`` of the conformance kit, by compiled C."""

    def __init__(self, folder: Path, branchless: bool = False) -> None:
        self.folder = folder
        self.branchless = branchless
        self.libraries: dict[torch.dtype, ctypes.CDLL] = {}

    def library(self, dtype: torch.dtype) -> ctypes.CDLL:
        if dtype not in self.libraries:
            self.libraries[dtype] = build(dtype, self.folder, self.branchless)
        return self.libraries[dtype]

    def __call__(self, op: PrimOp, args: tuple[Any, ...]) -> torch.Tensor:
        if op.kind == "random":
            return self._random(op, args)
        if op.name == "convert":
            return self._loop(args[0].dtype, f"convert_{str(args[1]).removeprefix('torch.')}", args[:1], args[1])
        if op.c is None:
            raise Unsupported(op.name)
        operands = args[1:] if op.name == "where" else args
        dtype = next(a.dtype for a in operands if isinstance(a, torch.Tensor))
        out = torch.bool if op.dtype_rule == "bool" else dtype
        return self._loop(dtype, f"prim_{op.name}", args, out)

    def _loop(self, dtype: torch.dtype, name: str, args: tuple[Any, ...], out: torch.dtype) -> torch.Tensor:
        shape = next(a.shape for a in args if isinstance(a, torch.Tensor))
        buffers = []
        for a in args:
            if isinstance(a, torch.Tensor):
                buffers.append(a.to(storage(a.dtype)).contiguous())
            else:
                buffers.append(torch.full(shape, a, dtype=storage(dtype)))
        result = torch.empty(shape, dtype=storage(out))
        function = getattr(self.library(dtype), name)
        pointers = [ctypes.c_void_p(b.data_ptr()) for b in (*buffers, result)]
        function(ctypes.c_int64(result.numel()), *pointers)
        return result.to(out)

    def _random(self, op: PrimOp, args: tuple[Any, ...]) -> torch.Tensor:
        shape, seed, offset, dtype, _ = args
        result = torch.empty(shape, dtype=storage(dtype))
        function = getattr(self.library(dtype), f"prim_{op.name}")
        function(
            ctypes.c_int64(result.numel()), ctypes.c_int64(int(seed)), ctypes.c_int64(offset),
            ctypes.c_void_p(result.data_ptr()),
        )  # fmt: skip
        return result.to(dtype)
