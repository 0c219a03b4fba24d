"""Reductions over columns on a GPU, cut into tiles of other shapes than the renderer's: ``python benchmarks/columns.py --out FILE``.

What ``inductor_gen.codegen.tritonreduce._share`` decides comes from this sweep: sums, a layer norm's and a batch norm's
gradients, a gelu's, variances, greatest elements and their places, of matrices from [2048, 50257] to [401408, 64]. A
setting is the rows of a tile, the elements of a thread, the warps, the programs of a multiprocessor that columns are
split for, and whether a thread's registers are said to be its share (else ptxas chooses). ``--jobs`` processes compile
everything beforehand. A line holds a case, the microseconds that its bytes take (at ``--bandwidth`` bytes a second), and
those of each setting, ``None`` being the renderer's own; at the end, how far each setting is from each case's best.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import hardware
from operators import on_gpu

import compile_api
from inductor_gen.codegen import tritonreduce

Setting = tuple[int, int, int, int, bool]

SETTINGS: list[Setting | None] = [
    None,
    *((64, each, warps, programs, said) for each, warps in ((32, 4), (16, 4), (8, 4), (16, 8), (8, 8))
      for programs in (4, 8) for said in (False, True)),
    *((128, each, warps, 4, True) for each, warps in ((16, 4), (32, 4), (16, 8))),
]  # fmt: skip
#: The setting that is tried now.
TRIED: Setting | None = None


class Shape(tritonreduce.Shape):
    """A shape by the setting that is tried, where columns are looped over."""

    def __init__(self, nest: Any, hint: Any, tiling: Any, device: Any, in_order: bool = False) -> None:
        super().__init__(nest, hint, tiling, device, in_order)
        space = nest.body.space
        count = lambda group: max(hint(tritonreduce.ex.product(space[v] for v in group)), 1)
        rows, columns = count(nest.outer), count(nest.inner)
        if TRIED is None or nest.lane_is_inner or not nest.outer or rows < 8 or self.persistent:
            return
        tile, each, self.warps, programs, said = TRIED
        self.x = max(16, min(1 << max(rows - 1, 0).bit_length(), tile))
        self.r = max(each * self.warps * device.warp // self.x, 1)
        blocks, self.split = -(-rows // self.x), 1
        if blocks < 2 * device.multiprocessors and columns >= 4 * self.r:
            wanted = -(-programs * device.multiprocessors // blocks)
            self.split = max(1, min(wanted, -(-columns // (2 * self.r)), 1024))
        share = device.registers // (programs * device.warp * self.warps) // 8 * 8
        self.registers = min(share, 255) if said else 0


def gradients(g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rate: torch.Tensor) -> Any:
    """Of a normalisation's weight and bias."""
    return (g.float() * ((x.float() - mean) * rate)).sum(0), g.float().sum(0)


def behind_relu(g: torch.Tensor, x: torch.Tensor, y: torch.Tensor, mean: torch.Tensor, rate: torch.Tensor) -> Any:
    """The same, behind a ReLU."""
    return gradients(torch.where(y > 0, g.float(), 0.0), x, mean, rate)


def cases() -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor]]]:
    """Names, functions and operands."""
    half = torch.bfloat16
    made = lambda *shape, dtype=torch.float32: torch.randn(*shape, device="cuda", dtype=dtype)
    for dtype in (torch.float32, half):
        for n, c in ((12608, 3072), (100352, 256), (401408, 64), (8192, 768), (4096, 4096), (2048, 50257)):
            yield f"sum [{n}, {c}] {dtype}", lambda x: x.float().sum(0), [made(n, c, dtype=dtype)]
    for n, c in ((16384, 768), (12608, 768), (4096, 4096)):
        rows = [made(n, c, dtype=half) for _ in range(2)] + [made(n, 1) for _ in range(2)]
        yield f"layer norm's gradients [{n}, {c}]", gradients, rows
    for n, c in ((401408, 64), (100352, 256), (25088, 1024), (6272, 2048), (25088, 256)):
        rows = [made(n, c, dtype=half) for _ in range(3)] + [made(c) for _ in range(2)]
        yield f"batch norm's gradients [{n}, {c}]", behind_relu, rows
    for n, c in ((12608, 3072), (8192, 4096)):
        rows = [made(n, c, dtype=half) for _ in range(2)]
        yield f"gelu's gradient [{n}, {c}]", lambda g, x: torch.ops.aten.gelu_backward(g, x).float().sum(0), rows
    for n, c in ((8192, 8192), (100352, 256)):
        yield f"var [{n}, {c}]", lambda x: x.var(0), [made(n, c)]
        yield f"var_mean [{n}, {c}]", lambda x: torch.var_mean(x.float(), 0), [made(n, c, dtype=half)]
        yield f"argmax [{n}, {c}]", lambda x: x.argmax(0), [made(n, c)]
        yield f"max [{n}, {c}]", lambda x: x.max(0), [made(n, c)]


def run(function: Callable[..., Any], operands: list[torch.Tensor], setting: Setting | None) -> Callable[[], Any]:
    """The function compiled by a setting, called once."""
    global TRIED
    TRIED = setting
    compile_api.reset()
    compiled = compile_api.compile(function, fullgraph=True, options={"program_cache": False})
    compiled(*operands)
    return lambda: compiled(*operands)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--part", type=int, help="compile this part of all, of as many as --jobs says, and time nothing"
    )
    parser.add_argument("--bandwidth", type=float, default=4.2e12)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tritonreduce.Shape = Shape  # type: ignore[misc]
    if options.part is not None:
        for at, (case, setting) in enumerate(itertools.product(list(cases()), SETTINGS)):
            if at % options.jobs == options.part:
                run(*case[1:], setting)
        return
    command = [sys.executable, __file__, "--jobs", str(options.jobs), "--part"]
    for process in [subprocess.Popen([*command, str(k)]) for k in range(options.jobs)]:
        process.wait()
    said = {"torch": torch.__version__, "hardware": hardware("cuda"), "date": datetime.date.today().isoformat()}
    behind: dict[str, list[float]] = {}
    for name, function, operands in cases():
        took = {
            str(setting): round(1e3 * min(on_gpu(call) for call in [run(function, operands, setting)] * 4), 1)
            for setting in SETTINGS
        }
        size = sum(x.numel() * x.element_size() for x in operands)
        line = {"case": name, "floor": round(size / options.bandwidth * 1e6, 1), "microseconds": took, **said}
        print(name, line["floor"], took["None"], sorted((v, k) for k, v in took.items())[:3], flush=True)
        for setting, value in took.items():
            behind.setdefault(setting, []).append(math.log(value / min(took.values())))
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    for setting, values in sorted(behind.items(), key=lambda pair: sum(pair[1])):
        print(f"{math.exp(sum(values) / len(values)):.3f}, at most {math.exp(max(values)):.2f}: {setting}")


if __name__ == "__main__":
    main()
