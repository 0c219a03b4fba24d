"""Sweeps that the constants of device records and cost models are read from: ``python benchmarks/device_constants.py``.

Each family prints a table and, under it, the constant with the place that holds it:

    begin      programs of four warps that do nothing: clocks in which a multiprocessor begins one
    launch     empty kernels one after another: seconds of the device for a start
    blocks     bodies of growing arithmetic by positions a program takes, beside what ``flat_block`` chooses
    library    16-bit products, aligned and not: the share of its peak that a device comes to
    template   the same products in a tile of a template
    shallow    products with a reader, by depth: the library and a kernel against one template

    lengths    chains of each primitive: what Triton takes to compile one for each element of a thread, in additions
    linears    float32 linear layers of few and many rows on a CPU, one thread and all: BLAS against oneDNN

All but the last two on an NVIDIA GPU, alone on it: times are medians of the device's time over repeats, with the queue
full. The last two by name, on a machine with nothing else to do: ``lengths`` where Triton is installed, with or without a
GPU, by the processor's time; of ``linears`` the least of several, with a thread its own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import hardware

import compile_api
from inductor_gen.codegen import triton as generated
from inductor_gen.device.record import Device, device_of, known
from inductor_gen.extern import cpu
from inductor_gen.loops.cost import LIBRARY, TEMPLATE, op_length, product_seconds
from inductor_gen.templates import choice, tiles
from prims import ops
from prims.handlers import GraphHandler
from prims.ir.envelope import Envelope, InputDesc, OutputDesc
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec

GPU = torch.device("cuda")
LEAST = choice.LEAST
REPEATS = 20
LENGTHS = (
    "div sqrt rsqrt reciprocal remainder fmod exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid pow atan2 hypot"
)


def seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The device's time of a run, the median of several that are queued together."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda._sleep(20_000_000)  # some milliseconds, in which the rest is queued
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, floating numbers with four digits."""
    print(" | ".join(head))
    for row in rows:
        print(" | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row), flush=True)


def empty_kernel() -> Any:
    import triton

    @triton.jit
    def nothing(x):
        pass

    return nothing


def begin(device: Device) -> None:
    """The slope of the time over the number of programs that do nothing."""
    kernel, x = empty_kernel(), torch.empty(1, device=GPU)
    counts = [1 << k for k in range(13, 21)]
    times = [seconds(lambda n=n: kernel[(n,)](x, num_warps=4)) for n in counts]
    table(["programs", "us"], [(n, t * 1e6) for n, t in zip(counts, times, strict=True)])
    cost = (times[-1] - times[-2]) / (counts[-1] - counts[-2]) * device.multiprocessors
    clocks = cost * _clock(device)
    known = device.begin_cost * 1e9
    print(f"device/cuda.py BEGIN: {clocks:.0f} clocks, {cost * 1e9:.1f} ns; the record has {known:.1f} ns")


def _clock(device: Device) -> float:
    from inductor_gen.device.cuda import BEGIN

    return BEGIN / device.begin_cost


def launch(device: Device) -> None:
    """Empty kernels in a CUDA graph, one after another."""
    kernel, x = empty_kernel(), torch.empty(1, device=GPU)
    rows = []
    for count in (100, 200, 400):
        kernel[(1,)](x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                kernel[(1,)](x)
        eager = seconds(lambda count=count: [kernel[(1,)](x) for _ in range(count)], 5)
        rows.append((count, seconds(graph.replay) / count * 1e6, eager / count * 1e6))
    table(["kernels", "us each in a CUDA graph", "us each in a stream"], rows)
    known = device.launch_cost * 1e6
    print(f"device/cuda.py LAUNCH: {rows[-1][1]:.2f} to {rows[-1][2]:.2f} us; the record has {known:.2f} us")


def _sines(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def body(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x.sin()
        return x

    return body


BODIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copy": lambda x: x + 0, "relu": lambda x: x.relu(), "sum of 3": lambda x: x + x.roll(1) + x.roll(2),
    "gelu": lambda x: torch.nn.functional.gelu(x), "tanh gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "exp": lambda x: x.exp(), **{f"{n} sines": _sines(n) for n in (1, 2, 4, 8, 20, 40)},
}  # fmt: skip
BLOCKS = (64, 128, 256, 512, 1024, 2048)


def blocks(device: Device) -> None:
    """Bodies by positions of a program."""
    chosen_by = generated.flat_block
    x = torch.randn(1 << 26, device=GPU)
    rows = []
    for name, body in BODIES.items():
        took, chosen = [], []
        for block in (*BLOCKS, None):

            def choose(*args: Any, block: int | None = block, **more: Any) -> int:
                chosen.append(chosen_by(*args, **more))
                return block or chosen[-1]

            generated.flat_block = choose
            compile_api.reset()
            compiled = compile_api.compile(body, options={"cache": False})
            with torch.no_grad():
                took.append(seconds(lambda compiled=compiled: compiled(x)) * 1e6)
        best = min(took[:-1])
        rows.append((name, *took, chosen[-1], f"{took[-1] / best - 1:+.1%}"))
    generated.flat_block = chosen_by
    table(["body", *(f"{b} us" for b in BLOCKS), "chosen us", "block", "from the best"], rows)


SHAPES = [
    (4096, 4096, 4096), (8192, 8192, 8192), (8192, 768, 768), (8192, 3072, 768), (8192, 768, 3072), (4096, 50304, 768),
    (2048, 2048, 8192), (16384, 1024, 1024), (512, 4096, 4096), (64, 4096, 4096),
]  # fmt: skip


def _operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    make = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device=GPU)
    return make(m, k), make(k, n)


def library(device: Device) -> None:
    """Shares of the peak of a product's turns, as the library takes it."""
    rows, shares = [], []
    for m, n, k in SHAPES:
        a, b = _operands(m, n, k)
        odd, c = _operands(m, n - 1, k)
        peak = product_seconds(m, n, k, (64, 64), device)
        took, unaligned = seconds(lambda a=a, b=b: a @ b), seconds(lambda odd=odd, c=c: odd @ c)
        shares.append((peak / took, peak / unaligned))
        rows.append((f"{m}x{n}x{k}", took * 1e6, peak / took, unaligned * 1e6, peak / unaligned))
    table(["product", "us", "share of the peak", "unaligned us", "share"], rows)
    usual, odd_share = (statistics.median(x[i] for x in shares) for i in (0, 1))
    print(f"loops/cost.py LIBRARY: {usual:.2f}, {LIBRARY} is used; rewrite/products.py _UNALIGNED: {odd_share:.2f}")


def _compiled(take: bool, *args: torch.Tensor) -> Callable[..., torch.Tensor]:
    """A compiled product with its reader, a template where that is legal (``take``), or the library's."""
    compile_api.reset()
    choice.LEAST = 0.0 if take else float("inf")
    sign, tiles.spared = tiles.spared, lambda *_: 1.0
    run = compile_api.compile(_relu, options={"cache": False})
    try:
        run(*args)
    finally:
        tiles.spared, choice.LEAST = sign, LEAST
    return run


def _plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b)


def _relu(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.relu(a @ b + c)


def shallow(device: Device) -> None:
    """Products with a reader by depth, and what the model says that a template spares."""
    rows = []
    for m, n in ((100352, 256), (100352, 64), (25088, 512), (8192, 768), (8192, 3072)):
        for k in (64, 128, 256, 512, 768, 1024):
            tile = tiles.shallow_tile(m, n, k, torch.bfloat16, device)
            a, b = _operands(m, n, k)
            c = torch.randn(n, dtype=torch.bfloat16, device=GPU)
            took = []
            for take in (False, True):
                with torch.no_grad():
                    run = _compiled(take, a, b, c)
                    took.append(seconds(lambda run=run, a=a, b=b, c=c: run(a, b, c)) * 1e6)
            said = tiles.spared(m, n, k, tile or tiles.odd_tile(device), device) * 1e6
            rows.append((f"{m}x{n}x{k}", *took, took[0] - took[1], said, "template" if tile else "library"))
    table(["product", "library and kernel us", "template us", "spared us", "by the model us", "chosen"], rows)
    print("templates/tiles.py: the sign of the last two columns is to be the same where a template is legal")


def template(device: Device) -> None:
    """Templates of deep products, by measurement among all tiles."""
    rows, shares = [], []
    for m, n, k in SHAPES:
        a, b = _operands(m, n, k)
        compile_api.reset()
        run = compile_api.compile(_plain, mode="max-autotune-no-cudagraphs", options={"cache": False})
        with torch.no_grad():
            run(a, b)
        report: Report = run.report()
        for problem in report.tunings[:1]:
            times = {name: ms for name, ms in problem.times.items() if not name.startswith("library")}
            if times:
                best = min(times, key=lambda name: times[name])
                share = product_seconds(m, n, k, (64, 64), device) / (times[best] / 1e3)
                shares.append(share)
                rows.append((f"{m}x{n}x{k}", best, times[best] * 1e3, share))
    table(["product", "best tile", "us", "share of the peak"], rows)
    print(f"loops/cost.py TEMPLATE: {statistics.median(shares):.2f}, {TEMPLATE} is used")


def linears() -> None:
    """Linear layers by BLAS and by oneDNN."""
    sizes = ((512, 512), (768, 768), (768, 3072), (3072, 768), (1024, 4096), (2048, 2048), (4096, 4096), (1024, 32000))
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        rows = []
        for m, (k, n) in itertools.product((2, 4, 16, 64, 128, 256), sizes):
            if not cpu.SMALL <= m * k * n <= 2e10:
                continue
            x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
            least = [float("inf")] * 2
            for _ in range(5):
                for which, linear in enumerate((torch.nn.functional.linear, cpu.linear_by_onednn)):
                    start = clock()
                    linear(x, weight, bias)
                    least[which] = min(least[which], clock() - start)
            said = {True: "oneDNN", False: "BLAS", None: "unknown"}
            where = cpu.onednn_range()
            chosen = said[where and where.holds(m, k, n, in_rows=True, columns_first=True)]
            rows.append((f"{m}x{k}x{n}", 2e-9 * m * k * n / least[0], least[0] / least[1], chosen))
        print(f"{threads} threads")
        table(["layer", "GFLOP/s of BLAS", "its time by oneDNN's", "chosen"], rows)
    print("extern/cpu.py _RANGES: the times' ratio is to be above 1 where oneDNN is chosen")


def _compiling(name: str, count: int) -> float:
    """The processor's seconds for a kernel of a chain of one primitive, four elements a thread."""
    from inductor_gen.pipeline import lower_graph
    from inductor_gen.runtime.triton_build import compile_kernel, load_module_text, module_text

    primitive = getattr(ops, name)
    graph = torch.fx.Graph()
    p = GraphHandler(graph)
    spec = TensorSpec((1 << 20,), torch.float32, torch.device("cuda", 0))
    x = y = p.placeholder("x", spec)
    for _ in range(count):
        y = p.add(p.prim(primitive, *[y, x][: len(primitive.params)]), 0.5)
    graph.output((y.node,))
    inputs, outputs = (InputDesc("x", "input", spec),), (OutputDesc("output", spec),)
    env = Envelope("prim", (1, 0), "lengths", "0", graph, inputs, outputs)
    device = known("H100")
    (kernel,) = lower_graph(env, Options(verify="off"), devices=lambda _: device).sources()
    with tempfile.TemporaryDirectory() as folder:
        module = load_module_text(module_text([kernel]), Path(folder))
        before = os.times()
        compile_kernel(module, kernel, device.capability)
        after = os.times()
    return after.user - before.user + after.children_user - before.children_user


def lengths() -> None:
    """Primitives by how long Triton takes for them."""
    generated.flat_block = lambda *args, **more: 512  # type: ignore[assignment]
    generated.most_each = lambda body: 4
    _compiling("add", 4)
    each = lambda name, few, many: (_compiling(name, many) - _compiling(name, few)) / (many - few) / 4
    unit = each("mul", 8, 200)
    rows = [(n, 1e3 * t, t / unit, op_length(n)) for n in LENGTHS.split() for t in [each(n, 4, 16)]]
    table(["primitive", "ms", "additions", "loops/cost.py"], rows)
    print(f"loops/cost.py _COST: one addition takes {1e3 * unit:.2f} ms for each element of a thread")


FAMILIES = {f.__name__: f for f in (begin, launch, blocks, library, template, shallow)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="family", help=f"of {', '.join(FAMILIES)}; all by default; or linears, or lengths")
    names = parser.parse_args().families or list(FAMILIES)
    if names in (["linears"], ["lengths"]):
        print(f"{hardware('cpu')}, torch {torch.__version__}")
        return linears() if names == ["linears"] else lengths()
    if unknown := set(names) - set(FAMILIES):
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        sys.exit("an NVIDIA GPU is needed")
    device = device_of(GPU)
    print(f"{device}\n{hardware('cuda')}, torch {torch.__version__}")
    for name in names:
        print(f"\n## {name}")
        FAMILIES[name](device)


if __name__ == "__main__":
    main()
