"""Graphs with kernels on a GPU in another process: the same bits, with the kernel cache of the first or an empty one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gen_support import build
from stored_child import outcome

import inductor_gen
from inductor_gen.runtime import cubins, libraries
from prims.artefact import to_bytes
from prims.options import Options

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")

aten = torch.ops.aten


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))
    return made.to("cuda:0", dtype) if torch.cuda.is_available() else made.to(dtype)


def rows(p: Any, x: Any) -> Any:
    keep = lambda v: p.broadcast(v, x.shape, (0,))
    e = p.exp(p.sub(x, keep(p.amax(x, (1,)))))
    return p.div(e, keep(p.sum(e, (1,))))


def product(p: Any, x: Any, y: Any, bias: Any) -> Any:
    return p.sin(p.aten(aten.addmm.default, bias, p.mul(x, 2.0), y)), p.aten(aten.mm.default, x, y)


def several(p: Any, *xs: Any) -> Any:
    return tuple(p.sin(x) for x in xs)


def attention(p: Any, q: Any) -> Any:
    return p.mul(p.aten(aten._scaled_dot_product_cudnn_attention.default, q, q, q, None, False)[0], 2.0)


HALF = torch.float16

#: name: (function of the handler and values, inputs of each call, arguments of ``build``)
CASES: dict[str, tuple[Callable[..., Any], Callable[[], list[Sequence[torch.Tensor]]], dict[str, Any]]] = {
    "pointwise": (lambda p, x: (p.sin(p.mul(x, 2.0)), p.gt(x, 0.0)), lambda: [[some(3, 1000)]], {}),
    "softmax": (rows, lambda: [[some(33, 257)]], {}),
    "symbolic": (rows, lambda: [[some(33, 257)], [some(5, 7)]], {"dynamic": {0: (0, 1)}}),
    "product": (product, lambda: [[some(64, 128, dtype=HALF), some(128, 32, dtype=HALF), some(32, dtype=HALF)]], {}),
    "wide-product": (product, lambda: [[some(64, 128), some(128, 32), some(32)]], {}),
    "many-tensors": (several, lambda: [[some(k + 1, 5) for k in range(40)]], {}),
    "attention": (attention, lambda: [[some(1, 2, 64, 64, dtype=HALF)]], {}),
    "operators-only": (lambda p, x, y: p.aten(aten.mm.default, x, y), lambda: [[some(8, 16), some(16, 8)]], {}),
    "misaligned": (lambda p, x: p.exp(x), lambda: [[some(1001)[1:]]], {}),
}


@pytest.fixture(scope="module", params=["warm", "cold"])
def elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process says of the stored graphs."""
    folder, warm = tmp_path_factory.mktemp("stored"), str(tmp_path_factory.mktemp("warm"))
    libraries.forget_loaded()
    cubins.forget_loaded()
    for name, (fn, calls_of, kw) in CASES.items():
        calls = calls_of()
        env = build(fn, calls[0], claims=inductor_gen.claims("cuda"), **kw)
        graph = inductor_gen.compile_graph(env, options=Options(verify="off", cache_dir=warm))
        (folder / f"{name}.artefact").write_bytes(to_bytes(graph.artefact()))
        outcomes = [outcome(graph, list(inputs)) for inputs in calls]
        torch.save({"inputs": [list(inputs) for inputs in calls], "outcomes": outcomes}, folder / f"{name}.pt")
    cache = warm if request.param == "warm" else str(tmp_path_factory.mktemp("cold"))
    child = Path(__file__).parent.parent / "stored_child.py"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(child.parent), *filter(None, sys.path)])}
    job = subprocess.run(
        [sys.executable, str(child), str(folder), cache], capture_output=True, text=True, timeout=240, env=env
    )
    assert job.returncode == 0, job.stderr[-3000:]
    return json.loads(job.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_another_process_computes_the_same_bits(elsewhere: dict[str, Any], name: str) -> None:
    said = elsewhere[name]
    assert all(said["equal"]) and said["again"] and not any(said["compiled"])
    assert not said["imported"] and not said["seconds"]
