"""Planted bugs, one in each stage: where it is, a sine (in capture, a call of ``cos``) is computed as the other.

Each is a function of pytest's ``monkeypatch`` that puts the bug in; ``STAGES`` has them by the stage's name, ``BUGS``
these and those that are seen only in some surroundings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import aot_autograd.entry
import dynamo_capture.translate
import inductor_gen.kernel.build
import prims
import prims.lower
from inductor_gen.codegen import cexpr
from prims.handlers.graph import Rewrite
from prims.lower import rewrites

aten = torch.ops.aten


def in_capture(patch: Any) -> None:
    """The captured graph calls ``sin`` where the program calls ``cos``."""
    real = dynamo_capture.translate._graph_module

    def spoiled(tx, outputs, name):
        for node in tx.graph.graph.nodes:
            if node.op == "call_method" and node.target == "cos":
                node.target = "sin"
        return real(tx, outputs, name)

    patch.setattr(dynamo_capture.translate, "_graph_module", spoiled)


def _spoil(env: Any, target: Any, other: Any) -> Any:
    graph, _ = env.copy_graph()
    for node in graph.nodes:
        if node.target is target:
            node.target = other
    return env.replace(graph=graph)


def in_aot(patch: Any) -> None:
    """The ATen graph computes a cosine."""
    real = aot_autograd.entry.compile_or_run

    def spoiled(env, *rest):
        return real(_spoil(env, aten.sin.default, aten.cos.default), *rest)

    patch.setattr(aot_autograd.entry, "compile_or_run", spoiled)


def in_backward(patch: Any) -> None:
    """The backward graph adds where it is to multiply."""
    from aot_autograd.runtime import lazy

    real = lazy.compile_or_run

    def spoiled(env, *rest):
        return real(_spoil(env, aten.mul.Tensor, aten.add.Tensor), *rest)

    patch.setattr(lazy, "compile_or_run", spoiled)


def in_lower(patch: Any) -> None:
    """The primitive graph computes a cosine."""
    real = prims.lower.lower

    def spoiled(env, **settings):
        return _spoil(real(env, **settings), prims.ops.sin, prims.ops.cos)

    patch.setattr(prims.lower, "lower", spoiled)


def in_rewrite(patch: Any) -> None:
    """A rewrite turns sines into cosines."""
    planted = Rewrite("planted", "sin", lambda p, args, spec: p.cos(args[0]))
    patch.setitem(rewrites.LOWER_REWRITES, "sin", [planted])


def in_fusion(patch: Any) -> None:
    """A kernel that computes a sine together with something else computes a cosine."""
    real = inductor_gen.kernel.build.trace

    def spoiled(fusion, cluster, *rest):
        body = real(fusion, cluster, *rest)
        if len(cluster.nodes) > 1:
            for value in body.vals:
                value.op = "cos" if value.op == "sin" else value.op
        return body

    patch.setattr(inductor_gen.kernel.build, "trace", spoiled)


def in_codegen(patch: Any) -> None:
    """The C code of a sine is a cosine's."""
    (renderer,) = (c for c in vars(cexpr).values() if isinstance(c, type) and "expression" in vars(c))
    real = renderer.expression
    patch.setattr(renderer, "expression", lambda self, v: real(self, v).replace("sinf(", "cosf("))


def in_speed(patch: Any) -> None:
    """A C kernel that computes a sine sleeps for 30 ms."""
    from dataclasses import replace

    from inductor_gen.codegen.c import CRenderer

    real = CRenderer.render

    def spoiled(self, nest):
        def slower(source):
            if "sinf(" not in source.text:
                return source
            text = source.text.replace("int KERNEL(", "int usleep(unsigned);\nint KERNEL(", 1)
            return replace(source, text=text.replace("n_) {\n", "n_) {\n    usleep(30000);\n", 1))

        return tuple(map(slower, real(self, nest)))

    patch.setattr(CRenderer, "render", spoiled)


def _in_kernels(patch: Any, op: str, other: str, wanted: Any) -> None:
    real = inductor_gen.kernel.build.trace

    def spoiled(fusion, cluster, *rest):
        body = real(fusion, cluster, *rest)
        for value in body.vals if wanted(cluster) else ():
            value.op = other if value.op == op else value.op
        return body

    patch.setattr(inductor_gen.kernel.build, "trace", spoiled)


def in_symbolic(patch: Any) -> None:
    """A kernel with loops of symbolic sizes computes a cosine for a sine."""
    _in_kernels(patch, "sin", "cos", lambda cluster: not all(size.is_const for size in cluster.space.values()))


def in_half(patch: Any) -> None:
    """A kernel that has to do with bfloat16 computes a sine for a tanh."""
    half = lambda cluster: any(x.dtype == torch.bfloat16 for node in cluster.nodes for x in (node, *node.ins))
    _in_kernels(patch, "tanh", "sin", half)


def in_inference(patch: Any) -> None:
    """A graph without a backward pass computes a cosine for a sine."""
    real = aot_autograd.entry.compile_or_run

    def spoiled(env, compiler, options, report, name):
        env = _spoil(env, aten.sin.default, aten.cos.default) if name == "inference" else env
        return real(env, compiler, options, report, name)

    patch.setattr(aot_autograd.entry, "compile_or_run", spoiled)


STAGES = {"aot": in_aot, "lower": in_lower, "rewrite": in_rewrite, "fusion": in_fusion, "codegen": in_codegen}

BUGS = {
    **STAGES, "capture": in_capture, "backward": in_backward, "speed": in_speed,
    "symbolic": in_symbolic, "half": in_half, "inference": in_inference,
}  # fmt: skip


def run_with_bug(path: str, stage: str) -> subprocess.CompletedProcess[str]:
    """Run a script that Quintet has written in a fresh process, with a bug of ``BUGS`` planted."""
    function = BUGS[stage].__name__
    plant = f"import planted, pytest\nplanted.{function}(pytest.MonkeyPatch())\n"
    bugged = Path(path).with_name(f"bugged-{stage}.py")
    bugged.write_text(Path(path).read_text().replace("import compile_api\n", f"import compile_api\n{plant}", 1))
    places = [os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])]  # where this module is
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run([sys.executable, str(bugged)], capture_output=True, text=True, env=environment, check=False)
