"""Functions of one code object, each with other numbers and sizes, that share a store of programs."""

from __future__ import annotations

import subprocess
import sys
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


MANY = """
import functools, sys, torch, compile_api
folder, count = sys.argv[1], int(sys.argv[2])
def shared(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)
    return wrapper
statuses = []
for number in range(count):
    space = {"torch": torch, "__name__": f"made{number}"}
    exec(f"class Model{number}(torch.nn.Module):\\n    def forward(self, x):\\n        return x.sin() * {number + 2}\\n", space)
    cls = space[f"Model{number}"]
    sys.modules[f"made{number}"] = type(sys)(f"made{number}")
    vars(sys.modules[f"made{number}"]).update(space)
    cls.forward = shared(cls.forward)
    compiled = compile_api.compile(cls(), options={"cache_dir": folder, "program_cache": True})
    x = torch.ones(3)
    assert torch.allclose(compiled(x), x.sin() * (number + 2))
    statuses.append(compiled.report().programs[-1].status)
print(*sorted(set(statuses)))
"""


def test_many_models_behind_one_wrapper_are_all_found(tmp_path):
    """As those of a library whose decorator they share: a key has place for a few programs."""
    run = lambda: subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path), "40"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert run() == ["stored"] and run() == ["loaded"]
