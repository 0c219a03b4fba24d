"""Generated kernels against eager's, over families of operators, dtypes, layouts and seams:
``python benchmarks/operators.py [--device cuda --rows 8192 --jobs 14]``.

1 M elements, or those of as many rows and columns as ``--rows`` says. On a CPU: one thread, and seconds of the thread that
calls, the best of alternating calls, so that other work on the machine counts little. On a GPU: the device's time of some
calls in a row by its events, which is the kernels' where they take longer than their launches; ``share`` is how much of
the memory's bandwidth the bytes that generated kernels need would take (of what a copy of as many bytes reaches).
``--jobs`` processes compile all cases beforehand, so that the one that measures finds kernels on disk.

Prints every case, and in the end the geometric mean and what is slower than eager. With ``--out`` a JSON line per case is
appended; ``--only NAME...`` runs cases whose names contain one of them, ``--family NAME...`` those of some families.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import hardware

import compile_api

ROWS = 1024

Case = tuple[Any, ...]


def between(low: float, high: float, *shape: int) -> torch.Tensor:
    """Uniform numbers; without a shape, a square of 1 M."""
    return torch.rand(*(shape or (ROWS, ROWS))) * (high - low) + low


ANYWHERE = """abs neg sign ceil floor trunc round exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh erf erfc sigmoid isnan
isinf isfinite signbit relu square sinc frac i0 special.i0e special.i1 special.i1e special.ndtr special.log_ndtr special.bessel_j0
nan_to_num logical_not nn.functional.gelu nn.functional.silu nn.functional.mish nn.functional.elu nn.functional.selu
nn.functional.softplus nn.functional.hardswish nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid"""
POSITIVE = "log log2 log10 log1p sqrt rsqrt reciprocal lgamma digamma special.entr"
WITHIN_ONE = "asin acos atanh erfinv"
OF_TWO = """add sub mul div maximum minimum fmax fmin copysign nextafter hypot atan2 fmod remainder floor_divide eq lt
logical_and logical_xor logaddexp heaviside nn.functional.mse_loss nn.functional.huber_loss"""
OF_WHOLE = "add mul maximum bitwise_and floor_divide remainder fmod true_divide eq"
OF_HALVES = "exp tanh sigmoid erf log1p sin sqrt nn.functional.gelu"
TWO_HALVES = "add mul div maximum floor_divide remainder"

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin, "prod": torch.prod, "var": torch.var,
    "norm": lambda x, d: x.norm(dim=d), "logsumexp": torch.logsumexp, "softmax": torch.softmax,
    "log_softmax": torch.log_softmax, "argmax": torch.argmax, "max": torch.max, "cumsum": torch.cumsum,
    "nansum": torch.nansum, "aminmax": lambda x, d: torch.aminmax(x, dim=d), "any": lambda x, d: (x > 1.9).any(d),
}  # fmt: skip

#: What is made of two matrices, whose parts are read from more than one place.
JOINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "joined": lambda x, y: torch.cat([x, y], 1), "rolled": lambda x, y: x.roll(7, 1),
    "padded": lambda x, y: F.pad(x, (3, 5)), "reflected": lambda x, y: F.pad(x[None], (3, 5), mode="reflect")[0],
    "flipped": lambda x, y: x.flip(1), "triangle": lambda x, y: x.tril(), "every second": lambda x, y: x[:, ::2],
    "every third": lambda x, y: x[:, ::3], "chosen": lambda x, y: torch.where(x > 0, x, y),
    "turned": lambda x, y: x.t(), "windows": lambda x, y: x.unfold(1, 4, 2), "differences": lambda x, y: x.diff(dim=1),
    "halves turned": lambda x, y: torch.cat([-x[:, 512:], x[:, :512]], 1) * y,
}  # fmt: skip
USED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copied": lambda t: t.contiguous() if not t.is_contiguous() else t + 1, "summed": lambda t: t.sum(1),
    "greatest": lambda t: t.amax(1), "softmax": lambda t: t.softmax(1),
}  # fmt: skip
#: What is made of nine windows.
STENCILS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "least": lambda v: functools.reduce(torch.minimum, v), "sum": lambda v: functools.reduce(torch.add, v),
    "slope": lambda v: ((v[5] - v[3]) ** 2 + (v[7] - v[1]) ** 2).sqrt(),
    "median of three": lambda v: torch.maximum(
        torch.minimum(v[3], v[4]), torch.minimum(torch.maximum(v[3], v[4]), v[5])
    ),
    "bilateral": lambda v: functools.reduce(torch.add, [(a - v[4]).square().neg().exp() * a for a in v]),
}  # fmt: skip
CONVERTED = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


def _named(names: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in names.split():
        found: Any = torch
        for part in name.split("."):
            found = getattr(found, part)
        yield name.split(".")[-1], found


def pointwise() -> Iterator[Case]:
    """Elementwise operators by domain and dtype."""
    x, y, positive, inside = between(-2, 2), between(-2, 2), between(0.01, 3), between(-0.99, 0.99)
    for names, args in ((ANYWHERE, (x,)), (POSITIVE, (positive,)), (WITHIN_ONE, (inside,)), (OF_TWO, (x, y))):
        for name, op in _named(names):
            yield name, op, args
    yield "acosh", torch.acosh, (between(1.01, 5),)
    yield "pow", torch.pow, (positive, y)
    yield "clamp between tensors", torch.clamp, (x, inside - 1, positive)
    yield "clamp", lambda a: a.clamp(-1, 1), (x,)
    yield "remainder by a number", lambda a: a % 0.7, (x,)
    whole, small = torch.randint(1, 120, (ROWS, ROWS)), torch.randint(1, 50, (ROWS, ROWS))
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        for name, op in _named(OF_WHOLE):
            yield f"{name}, {dtype}", op, (whole.to(dtype), small.to(dtype))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        for names, args in ((OF_HALVES, (x,)), (TWO_HALVES, (x, y))):
            for name, op in _named(names):
                yield f"{name}, {dtype}", op, tuple(a.to(dtype) for a in args)
    for dtype in CONVERTED:
        yield f"to {dtype}", lambda a, dtype=dtype: a.to(dtype), (positive,)
        yield f"from {dtype}", lambda a: a.float(), (positive.to(dtype),)


def reductions() -> Iterator[Case]:
    """Reductions over rows, columns and the middle, and of 16-bit floats."""
    x = between(-2, 2)
    for name, op in REDUCTIONS.items():
        yield f"{name} over rows", lambda a, op=op: op(a, -1), (x,)
        yield f"{name} over columns", lambda a, op=op: op(a, 0), (x,)
        yield f"{name} over the middle", lambda a, op=op: op(a, 1), (x.view(-1, 128, 128),)
        yield f"{name} over 16", lambda a, op=op: op(a, -1), (x.view(-1, 16),)
    for dtype in (torch.bfloat16, torch.float16):
        for name in ("sum", "softmax", "amax", "var", "cumsum"):
            yield f"{name}, {dtype}", lambda a, op=REDUCTIONS[name]: op(a, -1), (x.to(dtype),)
        yield f"layer_norm, {dtype}", lambda a: F.layer_norm(a, (ROWS,)), (x.to(dtype),)
    yield "layer_norm", lambda a: F.layer_norm(a, (ROWS,)), (x,)
    yield "group_norm", lambda a: F.group_norm(a, 8), (x.view(-1, 64, 32, 32),)
    yield "batch_norm", lambda a: F.batch_norm(a, None, None, training=True), (x.view(-1, 64, 32, 32),)
    yield "cross_entropy", F.cross_entropy, (x, torch.randint(0, ROWS, (ROWS,)))


def short() -> Iterator[Case]:
    """Reductions of a few steps, and pooling by windows, in both layouts of images."""
    x = between(-2, 2)
    for steps in (2, 3, 4, 6):
        few = between(-2, 2, ROWS * ROWS // steps, steps)
        for name in ("sum", "amax", "var", "softmax"):
            yield f"{name} of {steps} steps", lambda a, op=REDUCTIONS[name]: op(a, -1), (few,)
        yield f"layer_norm of {steps} steps", lambda a, n=steps: F.layer_norm(a, (n,)), (few,)
    yield "softmax of 4 channels", lambda a: a.softmax(1), (x.view(-1, 4, 64, 64),)
    yield "batch_norm of 4 pixels", lambda a: F.batch_norm(a, None, None, training=True), (x.view(1, -1, 2, 2),)
    images = x.view(-1, 64, 32, 32)
    for form, dtype in ((f, d) for f in ("contiguous", "channels_last") for d in (torch.float32, torch.bfloat16)):
        given = images.to(dtype, memory_format=getattr(torch, f"{form}_format" if form == "contiguous" else form))
        for name, pool in (("max_pool2d", F.max_pool2d), ("avg_pool2d", F.avg_pool2d)):
            for window, stride, padding in ((2, 2, 0), (3, 2, 1)):
                settings = f"{window}x{window}, {form}, {dtype}"
                yield (
                    f"{name} of {settings}",
                    lambda a, pool=pool, w=(window, stride, padding): pool(a.relu(), *w),
                    (given,),
                )


def layouts() -> Iterator[Case]:
    """Operands whose parts lie in several places, and uses of them."""
    x, y = between(-2, 2), between(-2, 2)
    for made, make in JOINED.items():
        for used, use in USED.items():
            yield f"{made}, {used}", lambda a, b, make=make, use=use: use(make(a, b)), (x, y)
    index, places = torch.randint(0, ROWS, (ROWS,)), torch.randint(0, ROWS, (ROWS, ROWS))
    yield "rows by index", lambda a, i: a[i], (x, index)
    yield "columns by index", lambda a, i: a[:, i], (x, index)
    yield "gather", lambda a, i: a.gather(1, i), (x, places)
    yield "scatter_add", lambda a, i, b: a.scatter_add(1, i, b), (x, places, y)
    yield "index_add", lambda a, i, b: a.index_add(0, i, b), (x, index, y)


def windows() -> Iterator[Case]:
    """Stencils: what is made of the nine windows of 3 x 3 over images whose edges are padded."""
    images = torch.rand(2, 3, ROWS // 4, ROWS // 4)
    for mode in ("constant", "reflect", "replicate", "circular"):
        for name, made in STENCILS.items():

            def stencil(x: torch.Tensor, mode: str = mode, made: Any = made) -> torch.Tensor:
                height, width = x.shape[-2:]
                p = F.pad(x, (1, 1, 1, 1), mode=mode)
                return made([p[..., i : i + height, j : j + width] for i in range(3) for j in range(3)])  # type: ignore[no-any-return]

            yield f"{name} of windows, {mode}", stencil, (images,)


def _patches(x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    b, c, h, w = x.shape
    y = F.layer_norm(_patches(x), (16 * c,)).view(b, h // 4, w // 4, 4, 4, c)
    return y.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)


def _shifted(x: torch.Tensor) -> torch.Tensor:
    b, h, w, c = x.shape
    y = x.roll((-2, -2), (1, 2)).view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    y = F.gelu(y).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return y.roll((2, 2), (1, 2)) + x


PATCHES: dict[str, tuple[Callable[..., Any], Callable[[int, int], torch.Tensor]]] = {
    "patches": (lambda x: _patches(x) * 2, lambda b, n: torch.rand(b, 3, 2 * n, 2 * n)),
    "patches, normalised, and back": (_normalised, lambda b, n: torch.rand(b, 3, 2 * n, 2 * n)),
    "pixel shuffle and back": (
        lambda x: F.pixel_shuffle(F.pixel_unshuffle(x * 2, 2).relu(), 2), lambda b, n: torch.rand(b, 16, n, n)),
    "shifted windows": (_shifted, lambda b, n: torch.rand(b, n, n, 32)),
}  # fmt: skip


def patches() -> Iterator[Case]:
    """Images cut into patches and windows: of one size, and of sizes that change."""
    for name, (function, images) in PATCHES.items():
        yield name, function, (images(4, 64),)
        yield f"{name}, of any size", function, (images(4, 64),), (images(1, 8),), (images(2, 12),)


FAMILIES = {family.__name__: family for family in (pointwise, reductions, short, layouts, windows, patches)}


def _on_cpu(call: Callable[[], Any]) -> float:
    """Milliseconds of this thread for a call."""
    start = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - start)


def on_gpu(call: Callable[[], Any]) -> float:
    """Milliseconds of the GPU for a call, by its events around five in a row."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(5):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 5


def _best(
    calls: dict[str, Callable[[], Any]], seconds: float, timed: Callable[[Callable[[], Any]], float]
) -> dict[str, float]:
    """The best time of each of some alternating calls."""
    best = dict.fromkeys(calls, math.inf)
    rounds, end = 0, time.perf_counter() + seconds
    while rounds < 4 or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            best[name] = min(best[name], timed(call))
    return best


@functools.cache
def _copied_per_ms(size: int) -> float:
    """Bytes that a copy of ``size`` of them reads and writes in a millisecond of the GPU."""
    source = torch.empty(max(size // 2, 1 << 20), dtype=torch.uint8, device="cuda")
    return 2 * source.numel() / _best({"copy": source.clone}, 0.01, on_gpu)["copy"]


def measure(
    function: Callable[..., Any], args: tuple[Any, ...], seconds: float, earlier: tuple[tuple[Any, ...], ...] = (),
    device: str = "cpu",
) -> dict[str, Any]:  # fmt: skip
    """The best times in milliseconds of alternating calls, and what was generated; ``earlier``: calls before them."""
    compiled = compile_api.compile(function)
    with torch.no_grad():
        for others in earlier:
            compiled(*others)
        for call in (compiled, function) * 2:
            call(*args)
        calls = {"eager": lambda: function(*args), "quintet": lambda: compiled(*args)}
        best = _best(calls, seconds, on_gpu if device == "cuda" else _on_cpu)
    report = compiled.report()
    record: dict[str, Any] = {name: round(found, 4) for name, found in best.items()}
    record["ratio"] = round(best["eager"] / best["quintet"], 2)
    record["kernels"], record["externs"] = len(report.kernels), [e.name for e in report.externs]
    record["fallbacks"] = [r.reason for r in report.fallbacks]
    if device == "cuda":
        needed = sum(k.read + k.written for k in report.kernels)
        record["share"] = round(needed / best["quintet"] / _copied_per_ms(1 << (max(needed, 1) - 1).bit_length()), 2)
    compile_api.reset()
    return record


def _compile_ahead(jobs: int) -> None:
    """Have as many processes compile a part of the cases each."""
    command = [sys.executable, *sys.argv]
    parts = [subprocess.Popen([*command, "--part", str(k)], stdout=subprocess.DEVNULL) for k in range(jobs)]
    for part in parts:
        part.wait()


def main() -> None:
    global ROWS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the cases to run")
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows and columns of the matrices")
    parser.add_argument("--seconds", type=float, default=0.2, help="per case")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile before anything is measured")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    ROWS = options.rows
    torch.set_default_device(options.device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    facts = {
        "torch": torch.__version__, "python": platform.python_version(), "hardware": hardware(options.device),
        "threads": 1, "rows": ROWS, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    if options.jobs and options.part is None:
        _compile_ahead(options.jobs)
    found: dict[str, float] = {}
    counted = itertools.count()
    for family in options.family:
        for name, function, args, *earlier in FAMILIES[family]():
            if options.only and not any(part in name for part in options.only):
                continue
            if options.part is not None and next(counted) % options.jobs != options.part:
                continue
            seconds = options.seconds if options.part is None else 0.0
            record = measure(function, args, seconds, tuple(earlier), options.device)
            found[name] = record["ratio"]
            extra = "".join(f" {e}" for e in record["externs"]) + (" FELL BACK" if record["fallbacks"] else "")
            extra = (f" {record['share']:5.2f}" if "share" in record else "") + extra
            print(f"{name:40}{record['eager']:10.3f}{record['quintet']:10.3f}{record['ratio']:8.2f}{extra}", flush=True)
            if options.out and options.part is None:
                with options.out.open("a") as file:
                    file.write(json.dumps({"case": name, "family": family, **record, **facts}) + "\n")
    mean = math.exp(sum(map(math.log, found.values())) / len(found))
    slower = sorted((ratio, name) for name, ratio in found.items() if ratio < 0.9)
    print(f"{len(found)} cases, {mean:.2f} of eager's speed in geometric mean; below 0.9: {len(slower)}")
    for ratio, name in slower:
        print(f"{ratio:8.2f}  {name}")


if __name__ == "__main__":
    main()
