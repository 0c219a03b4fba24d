"""What a process has put in the place of a part of the packages reaches no other process by the store of programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import aot_autograd
import compile_api
import inductor_gen
import prims
from compile_api import backends, programs
from inductor_gen.codegen.c import CRenderer
from inductor_gen.device.backends import BACKENDS
from prims.decomp import registry
from prims.lower import PASSES, LowerPass, lower


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def answer(tmp_path: Any, backend: str = "inductor") -> tuple[float, set[str]]:
    """What the program gives at 0, as if in a new process, and what the store did."""
    compile_api.reset()
    options = {"cache_dir": str(tmp_path), "program_cache": True}
    compiled = compile_api.compile(program, backend=backend, options=options)
    value = compiled(torch.zeros(3))[0].item()
    return value, {record.status for record in compiled.report().programs}


class Cosines(CRenderer):
    """Renders sines as cosines."""

    def render(self, nest: Any) -> Any:
        return tuple(replace(s, text=s.text.replace("sinf(", "cosf(")) for s in super().render(nest))


def test_a_row(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], renderer=Cosines))
    value, done = answer(tmp_path)
    assert value == 2 and "not stored" in done and "stored" not in done
    monkeypatch.undo()
    assert answer(tmp_path) == (1, {"missed", "stored"})
    assert answer(tmp_path) == (1, {"loaded"})
    monkeypatch.setitem(BACKENDS, "cpu", replace(BACKENDS["cpu"], renderer=Cosines))
    assert answer(tmp_path)[0] == 2  # nor is what others have stored taken for its own


def test_a_decomposition(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not registry.added_to()
    monkeypatch.setitem(registry._TABLE, "aten.sin.default", lambda p, x: p.cos(x))
    registry._BY_OVERLOAD.clear()
    value, done = answer(tmp_path)
    assert value == 2 and "not stored" in done and "stored" not in done
    monkeypatch.undo()
    registry._BY_OVERLOAD.clear()
    assert answer(tmp_path) == (1, {"missed", "stored"})


def test_a_backend_of_a_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name does not say what a backend does; another version of it may stand behind the same one."""

    def cosines(env: Any, context: Any) -> Any:
        graph, _ = env.copy_graph()
        for node in graph.nodes:
            node.target = prims.ops.cos if node.target is prims.ops.sin else node.target
        return env.replace(graph=graph)

    monkeypatch.setattr(backends, "_REGISTERED", {})
    for passes, expected in (((*PASSES, LowerPass("cosines", cosines)), 2), (PASSES, 1)):

        def generate(env: Any, report: Any = None, passes: Any = passes) -> Any:
            return inductor_gen.compile_graph(lower(env, claims=inductor_gen.claims("cpu"), passes=passes))

        backends._REGISTERED["mine"] = lambda gm, inputs, made=generate: aot_autograd.aot_function(
            gm, inputs, fw_compiler=made
        )
        assert answer(tmp_path, "mine") == (expected, set())
    assert set(programs.OURS) == set(backends._BUILTIN)
