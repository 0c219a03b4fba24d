"""Choices in kernels that call libm: no compiler can put a call into a branch, where it would not be vectorised."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, check

from inductor_gen.codegen.cexpr import prelude
from inductor_gen.pipeline import lower_graph
from inductor_gen.runtime.libraries import FLAGS

CHOICES = {
    "where": lambda p, x, y: p.where(p.gt(x, 0.5), x, y),
    "where, a number": lambda p, x, y: p.where(p.eq(x, 0.0), 1.0, y),
    "maximum": lambda p, x, y: p.maximum(x, y), "minimum": lambda p, x, y: p.minimum(x, y),
    "fmax": lambda p, x, y: p.fmax(x, 0.0), "fmin": lambda p, x, y: p.fmin(x, y),
}  # fmt: skip
CALLS = {
    "before": lambda p, choose, x, y: choose(p, p.sin(x), y),
    "after": lambda p, choose, x, y: p.cos(choose(p, x, y)),
    "around": lambda p, choose, x, y: p.cos(choose(p, p.exp(x), p.fmin(y, choose(p, p.sin(x), y)))),
}


def program(choice: str, call: str, reduced: bool) -> Any:
    """Beside one number for all elements, with which a compiler finds redundancies."""

    def fn(p: Any, x: Any, a: Any) -> Any:
        y = CALLS[call](p, CHOICES[choice], x, p.broadcast(a, x.shape, (0,)))
        return p.sum(y, (0,)) if reduced else y

    return fn


def text_of(fn: Any, inputs: list[torch.Tensor]) -> str:
    return "\n".join(source.text for source in lower_graph(build(fn, inputs), OPTIONS).sources())


def vector_functions(text: str, folder: Path) -> set[str] | None:
    """Functions of libm of which a kernel calls vector versions; None where there are none, or another compiler."""
    (folder / "kernel.c").write_text(prelude(text) + text)
    built = folder / "kernel.so"
    if "declare simd" not in prelude(text) or shutil.which("gcc") is None or shutil.which("nm") is None:
        return None
    subprocess.run(["gcc", *FLAGS, str(folder / "kernel.c"), "-o", str(built), "-lm"], check=True)
    symbols = subprocess.run(["nm", "-D", str(built)], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"_ZGV\w+?_(\w+)", symbols))


@pytest.mark.parametrize("reduced", [False, True], ids=["", "summed"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_calls_stay_vectorised(dtype: torch.dtype, choice: str, call: str, reduced: bool, tmp_path: Path) -> None:
    inputs = [torch.randn(1000).to(dtype), torch.tensor([-0.6]).to(dtype)]
    fn = program(choice, call, reduced)
    check(fn, inputs, tol=1e-4)
    text = text_of(fn, inputs)
    assert "q_pick" in text and not re.search(r"= .* \? v\d+ : v\d+", text)
    called = set(re.findall(r"\b(?:q_)?((?:sin|cos|exp)f?)(?=\()", text)) - {"expf"}  # which is arithmetic
    vectors = vector_functions(text, tmp_path)
    assert called and (vectors is None or called == vectors)


@pytest.mark.parametrize("name", ["lgamma", "fmod", "digamma"])
def test_calls_without_vector_versions_are_made_where_they_are_needed(name: str) -> None:
    def fn(p: Any, x: Any) -> Any:
        y = p.fmod(x, 0.7) if name == "fmod" else getattr(p, name)(x)
        return p.where(p.gt(x, 0.5), y, p.sin(x))

    x = torch.rand(100) + 0.1
    check(fn, [x], tol=1e-4)
    assert "?" in text_of(fn, [x]) and "q_pick" not in text_of(fn, [x])


def test_kernels_without_calls_are_written_as_before() -> None:
    assert "q_pick" not in text_of(lambda p, x, y: p.where(p.gt(x, y), p.mul(x, 2.0), y), [torch.ones(9), torch.ones(9)])


def test_a_choice_by_place_splits_the_loop() -> None:
    """Each part computes its own side: both would take the sum of their times."""

    def fn(p: Any, x: Any, y: Any) -> Any:
        rows = p.broadcast(p.lt(p.iota(60, 0, 1, torch.int64, x.device), 20), x.shape, (0,))
        return p.where(rows, p.exp(x), p.where(p.gt(x, y), p.cos(x), y))

    inputs = [torch.randn(60, 500), torch.randn(60, 500)]
    check(fn, inputs, tol=1e-4)
    text = text_of(fn, inputs)
    assert len(re.findall(r"= .* \? v\d+ : v\d+", text)) == 1 and text.count("q_pick") == 1
