"""Runs primitives through their Triton templates: one generated kernel per elementwise row and dtype."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from prims.dtypes import HALVES, KEPT_FLOATS
from prims.errors import Unsupported
from prims.ops import TABLE, PrimOp
from prims.ops.templates import triton_convert, triton_expr, triton_prelude, triton_random

STORAGE = dict.fromkeys((*HALVES, *KEPT_FLOATS), torch.float32)


def storage(dtype: torch.dtype) -> torch.dtype:
    """The dtype that holds a dtype's compute values in memory, for the harness."""
    return STORAGE.get(dtype, dtype)


def _kernel(name: str, count: int, expr: str) -> str:
    params = ", ".join([*(f"p{i}" for i in range(count)), "out", "n", "BLOCK: tl.constexpr"])
    loads = "\n".join(f"    x{i} = tl.load(p{i} + at, mask)" for i in range(count))
    return (
        f"\n@triton.jit\ndef {name}({params}):\n    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        f"    mask = at < n\n{loads}\n    tl.store(out + at, {expr}, mask)\n"
    )


def module_source(dtype: torch.dtype) -> str:
    """One kernel per elementwise row defined for `dtype`, per conversion from it and per random draw."""
    parts = []
    for op in TABLE.values():
        if dtype not in op.dtypes:
            continue
        if op.triton is not None:
            args = [f"x{i}" for i in range(len(op.params))]
            parts.append(_kernel(f"prim_{op.name}", len(args), triton_expr(op, args, dtype)))
        elif op.kind == "random":
            expr = triton_random(op, "tl.load(p0)", "tl.load(p1)", "at.to(tl.int64)", dtype)
            parts.append(_kernel(f"prim_{op.name}", 2, expr).replace("    x0 = tl.load(p0 + at, mask)\n", "").replace(
                "    x1 = tl.load(p1 + at, mask)\n", ""))  # fmt: skip
    for target in TABLE["convert"].dtypes:
        name = f"convert_{str(target).removeprefix('torch.')}"
        parts.append(_kernel(name, 1, triton_convert("x0", dtype, target)))
    text = "".join(parts)
    return triton_prelude(text) + text


class TritonBackend:
    """``run_op`` of the conformance kit, by Triton kernels on the GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[torch.dtype, Any] = {}

    def module(self, dtype: torch.dtype) -> Any:
        if dtype not in self.modules:
            name = f"triton_{str(dtype).removeprefix('torch.')}"
            path = self.folder / f"{name}.py"
            path.write_text(module_source(dtype))
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            self.modules[dtype] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self.modules[dtype])
        return self.modules[dtype]

    def __call__(self, op: PrimOp, args: tuple[Any, ...]) -> torch.Tensor:
        if op.kind == "random":
            shape, seed, offset, dtype, _ = args
            operands = [seed, torch.tensor(offset)]
            return self._launch(dtype, f"prim_{op.name}", operands, shape, dtype)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if op.name == "convert":
            name = f"convert_{str(args[1]).removeprefix('torch.')}"
            return self._launch(tensors[0].dtype, name, tensors, tensors[0].shape, args[1])
        if op.triton is None:
            raise Unsupported(op.name)
        values = args[1:] if op.name == "where" else args
        dtype = next(a.dtype for a in values if isinstance(a, torch.Tensor))
        shape = tensors[0].shape
        full = [a if isinstance(a, torch.Tensor) else torch.full(shape, a, dtype=storage(dtype)) for a in args]
        out = torch.bool if op.dtype_rule == "bool" else dtype
        return self._launch(dtype, f"prim_{op.name}", full, shape, out)

    def _launch(self, dtype: torch.dtype, name: str, operands: Any, shape: Any, out: torch.dtype) -> torch.Tensor:
        buffers = [t.to(storage(t.dtype)).contiguous().cuda() for t in operands]
        result = torch.empty(tuple(shape), dtype=storage(out), device="cuda")
        n = result.numel()
        if n:
            getattr(self.module(dtype), name)[(-(-n // 128),)](*buffers, result, n, BLOCK=128)
        return result.cpu().to(out)
