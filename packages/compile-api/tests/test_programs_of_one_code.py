"""Functions of one code object, each with other numbers and sizes, that share a store of programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import compile_api


def scaled(by: Any) -> Any:
    return lambda x, y: (x @ y) * by


def arguments(rows: int, width: int = 4) -> list[torch.Tensor]:
    return [torch.randn(rows, width), torch.randn(width, 2)]


#: name -> what is compiled in turn, with what it is called first and next.
FUNCTIONS: dict[str, list[tuple[Any, list[Any], list[Any]]]] = {
    "floats in closures": [(scaled(by), arguments(3), arguments(6)) for by in (0.5, 0.25, 1.75)],
    "ints in closures": [(scaled(by), arguments(3), arguments(6)) for by in (2, 5, 9)],
    "sizes": [(scaled(by), arguments(3, width), arguments(6, width)) for by, width in ((2, 4), (3, 8), (4, 16))],
    "modules": [(torch.nn.Linear(n, 5), [torch.randn(3, n)], [torch.randn(6, n)]) for n in (3, 6, 9)],
}


def compiled(function: Any, folder: Path) -> Any:
    options = {"program_cache": True, "cache_dir": str(folder)}
    return compile_api.compile(function, backend="eager", options=options)


def captures(run: Any, function: Any, *calls: list[Any]) -> list[int]:
    """How many graphs have been captured after each call: one that has symbolic sizes serves others too."""
    counts = []
    for inputs in calls:
        assert torch.equal(run(*inputs), function(*inputs))
        counts.append(len(run.report().graphs))
    return counts


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_function_makes_nothing_symbolic_in_another(name: str, tmp_path: Path) -> None:
    """What they differ in has changed in neither, and a number that is known makes the better kernels."""
    *before, (function, first, other) = FUNCTIONS[name]
    for earlier, inputs, _ in before:
        assert captures(compiled(earlier, tmp_path), earlier, inputs) == [1]
    assert captures(compiled(function, tmp_path), function, first, other) == [1, 2]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_changed_in_one_starts_symbolic_in_another(name: str, tmp_path: Path) -> None:
    """Where calls have shown other sizes, a first call is not captured for its own."""
    for k, (function, first, other) in enumerate(FUNCTIONS[name]):
        run = compiled(function, tmp_path)
        assert captures(run, function, first, other, first) == ([1, 2, 2] if k == 0 else [1, 1, 1]), run.report()


def test_a_stored_program_counts_as_a_call(tmp_path: Path) -> None:
    """The size that it was captured for is what the next call is compared with."""
    function = scaled(2)
    compiled(function, tmp_path)(*arguments(3))
    run = compiled(function, tmp_path)
    assert captures(run, function, *(arguments(rows) for rows in (3, 6, 9, 12))) == [0, 1, 1, 1]
