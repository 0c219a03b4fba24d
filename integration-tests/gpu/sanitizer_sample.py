"""Programs for ``compute-sanitizer``: one of every kind of generated kernel, at sizes with tails.

``compute-sanitizer --tool memcheck python integration-tests/gpu/sanitizer_sample.py [NAME ...]``, with
``PYTORCH_NO_CUDA_MEMORY_CACHING=1`` so that each tensor has an allocation of its own and reads past its end show.
Results are compared with eager's too; prints ``ok NAME`` per program.
"""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import compile_api

DEVICE = "cuda"


def randn(*shape: int, **kw: Any) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, **kw)


def agree(function: Callable[..., Any], *args: Any, tolerance: float = 1e-3, random: bool = False, **kw: Any) -> None:
    """Compile, run twice, compare, assert that kernels were generated."""
    compiled = compile_api.compile(function, **kw)
    for _ in range(3 if kw.get("mode") else 2):
        ours, theirs = compiled(*args), function(*args)
        torch.cuda.synchronize()
        if not random:
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    report = compiled.report()
    assert report.kernels and not report.fallbacks, report.fallbacks


def pointwise() -> None:
    for shape in ((1,), (7,), (255,), (257,), (33, 65), (3, 5, 17), (1031,)):
        agree(lambda x, y: (x.sin() * y + 2, x > y, y.bfloat16()), randn(*shape), randn(*shape))
    agree(lambda x, y: x + y, randn(70, 41), randn(41, 70).t())
    agree(lambda x, y: torch.cat([x, y, x * 2], 1), randn(5, 3), randn(5, 7))
    agree(lambda x: nn.functional.pad(x, (1, 2, 3, -1)).flip(0), randn(9, 20))
    base = randn(100)
    agree(lambda x: x * 2, base[1:98])


def reductions() -> None:
    for shape in ((5, 100), (300, 33), (3, 20_001), (2, 70_001), (1000, 7)):
        agree(lambda x: (x.softmax(-1), x.sum(0), x.amax(-1), x.argmax(-1)), randn(*shape))
        agree(lambda x: (x.sin().sum(), x.mean(), x.std(-1)), randn(*shape), tolerance=1e-2)
        agree(lambda x: nn.functional.layer_norm(x, (x.shape[-1],)), randn(*shape))
    agree(lambda x: x.cumsum(-1), randn(17, 40))
    agree(lambda x: x.cumsum(-1), randn(2, 9000, dtype=torch.float64))
    agree(lambda x: x.float().softmax(-1).bfloat16(), randn(37, 1001, dtype=torch.bfloat16), tolerance=2e-2)


def gather_scatter() -> None:
    index = torch.randint(0, 50, (301,), device=DEVICE)
    agree(lambda t: (t[index], t.index_select(0, index).sum(0)), randn(50, 33))
    agree(lambda t, x: torch.zeros_like(t).index_add(0, index, x), randn(50, 33), randn(301, 33))
    agree(
        lambda t, x: t.index_put((index,), x, accumulate=True),
        randn(50, 3).bfloat16(),
        randn(301, 3).bfloat16(),
        tolerance=0.5,
    )
    agree(lambda t, x: t.scatter(0, index[:, None].expand(301, 3), x, reduce="add"), randn(50, 3), randn(301, 3))
    agree(lambda t: nn.functional.cross_entropy(t, index), randn(301, 53))


def dropout() -> None:
    agree(lambda x: nn.functional.dropout(x, 0.3), randn(1031), random=True)
    x = randn(333, 7, requires_grad=True)
    compiled = compile_api.compile(lambda x: nn.functional.dropout(x.sin(), 0.3))
    compiled(x).sum().backward()
    torch.cuda.synchronize()


def dynamic_sizes() -> None:
    compiled = compile_api.compile(lambda x, y: ((x + y).softmax(-1), (x * y).sum(0)), dynamic=True)
    for shape in ((5, 7), (33, 100), (130, 1025), (3, 9001)):
        x, y = randn(*shape), randn(*shape)
        torch.testing.assert_close(compiled(x, y), ((x + y).softmax(-1), (x * y).sum(0)), rtol=1e-3, atol=1e-3)


def training(name: str, mode: str | None = None, **settings: Any) -> None:
    from on_gpu import gpu_case
    from on_gpu import training as train

    train(gpu_case(name, small=True, **settings), steps=1 if mode is None else 3, mode=mode)


PROGRAMS: dict[str, Callable[[], None]] = {
    "pointwise": pointwise,
    "reductions": reductions,
    "gather_scatter": gather_scatter,
    "dropout": dropout,
    "dynamic_sizes": dynamic_sizes,
    "transformer": lambda: training("transformer"),
    "convnet": lambda: training("convnet"),
    "bert": lambda: training("bert", length=33),
    "autotuned": lambda: training("transformer", "max-autotune-no-cudagraphs"),
    "replayed": lambda: training("transformer", "reduce-overhead"),
}


def main(names: list[str]) -> int:
    """Run programs; the exit status is the number of those that failed."""
    failed = 0
    for program in names:
        torch.manual_seed(0)
        compile_api.reset()
        try:
            PROGRAMS[program]()
            print("ok", program, flush=True)
        except Exception:
            failed += 1
            print("failed", program, flush=True)
            traceback.print_exc()
    return failed


if __name__ == "__main__":
    # Nothing may be allocated while a CUDA graph is recorded, and without a caching allocator everything is.
    uncached = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"
    sys.exit(main(sys.argv[1:] or [name for name in PROGRAMS if not (uncached and name == "replayed")]))
