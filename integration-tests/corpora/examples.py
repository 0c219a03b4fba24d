"""The runnable programs of PyTorch's documentation: the ``>>>`` examples of a docstring as one function.

What needs names that the text does not define, or raises, is left out, with what depends on it. Every expression is a
result, and so is every variable at the end. Modules that an example makes are made outside, as users do, where nothing
of the example is needed for it.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import doctest
import functools
import importlib
import io
import linecache
import re
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from corpora.programs import Program, Unbuilt

__all__ = ["build", "names"]

PLACES = ("torch", "torch.nn", "torch.nn.functional", "torch.Tensor", "torch.linalg", "torch.fft", "torch.special")
#: What examples take for granted.
PRELUDE = "import math\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
#: Results that are whatever was in memory, or tell the time or an address; what changes the process for good.
UNSTEADY = re.compile(
    r"empty|resize|data_ptr|initial_seed|\bseed\(|get_rng_state|torch\.(save|load)|Generator|"
    r"set_(default|num|float32|flush|deterministic|warn|printoptions)|use_deterministic|torch\.compile|\bjit\b|Timer|"
    r"\bcuda\b|\bmps\b|\bxpu\b|distributed|multiprocessing"
)


def names() -> list[str]:
    """The functions and classes whose docstrings have examples, those of one text once."""
    return list(_texts())


@functools.cache
def _texts() -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[str] = set()
    for place in PLACES:
        parent = torch.Tensor if place == "torch.Tensor" else importlib.import_module(place)
        for name in sorted(vars(parent)):
            text = getattr(getattr(parent, name, None), "__doc__", None)
            if name.startswith("_") or not isinstance(text, str) or ">>>" not in text or text in seen:
                continue
            seen.add(text)
            found[f"{place}.{name}"] = text
    return found


class Example(nn.Module):
    """An example as a module: its function, and the modules that are made outside of it."""

    def __init__(self, function: types.FunctionType, made: list[nn.Module]) -> None:
        super().__init__()
        self.function, self.made = function, nn.ModuleList(made)

    def forward(self) -> Any:
        return self.function(*self.made)


def build(name: str) -> Program:
    """One docstring's examples.

    Raises:
        Unbuilt: nothing of them runs by itself, or it gives something else each time.
    """
    statements = list(_statements(_texts()[name]))
    if UNSTEADY.search("\n".join(map(ast.unparse, statements))):
        raise Unbuilt("it depends on memory, time, a device or a file, or changes the process")
    kept, namespace = _runnable(statements)
    if not any(not isinstance(s, (ast.Import, ast.ImportFrom)) for s in kept):
        raise Unbuilt("no statement runs by itself")
    source, made = _function(kept, namespace)
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(PRELUDE, "<prelude>", "exec"), space)
    filename = f"<examples of {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), space)
    torch.manual_seed(0)
    modules = []
    for text in made:
        exec(compile(text, filename, "exec"), space)
        modules.append(space["_made"])
    example = Example(space["example"], modules)
    _check_steady(example)
    return Program(example, train=bool(modules), grad=True, detail=f"{len(kept)} statements", double=False)


def _statements(text: str) -> Iterator[ast.stmt]:
    """The statements of a docstring, without those that are to raise."""
    try:
        examples = doctest.DocTestParser().get_examples(text)
    except ValueError as error:
        raise Unbuilt(f"the docstring cannot be read: {error}") from None
    for example in examples:
        with contextlib.suppress(SyntaxError):
            if example.exc_msg is None:
                yield from ast.parse(example.source).body


def _runnable(statements: list[ast.stmt]) -> tuple[list[ast.stmt], dict[str, Any]]:
    """The statements that run one after the other, and what is bound at the end."""
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(PRELUDE, "<prelude>", "exec"), space)
    before, kept = set(space), []
    torch.manual_seed(0)
    for statement in statements:
        code = compile(ast.Module([statement], []), "<statement>", "exec")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, space)
        except Exception:
            continue
        kept.append(statement)
    return kept, {name: value for name, value in space.items() if name not in before}


def _function(statements: list[ast.stmt], namespace: dict[str, Any]) -> tuple[str, list[str]]:
    """The text of the function, and of the statements that make its arguments."""
    known = {"torch", "nn", "F", "math"}
    body, made, parameters = [], [], []
    for statement in statements:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            body.insert(0, statement)
        elif isinstance(statement, ast.Expr):
            body.append(ast.parse(f"_results.append({ast.unparse(statement.value)})").body[0])
        elif _makes_module(statement, known, namespace):
            parameters.append(f"_made_{len(made)}")
            made.append(f"_made = {ast.unparse(statement.value)}")
            body.append(ast.parse(f"{statement.targets[0].id} = {parameters[-1]}").body[0])
        else:
            body.append(statement)
    final = [name for name, value in namespace.items() if _is_result(value)]
    pairs = ", ".join(f"{name!r}: {name}" for name in final)
    lines = [f"def example({', '.join(parameters)}):", "    _results = []"]
    lines += ["    " + line for statement in body for line in ast.unparse(statement).splitlines()]
    return "\n".join([*lines, f"    return _results, {{{pairs}}}"]) + "\n", made


def _makes_module(statement: ast.stmt, known: set[str], namespace: dict[str, Any]) -> bool:
    """Is it an assignment of a module to a name, which needs nothing of the example?"""
    if not (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    ):
        return False
    names = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    return names <= known and isinstance(namespace.get(statement.targets[0].id), nn.Module)


def _is_result(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_result, value))
    return isinstance(value, (torch.Tensor, int, float, complex, str, bool, torch.Size, torch.dtype))


def _check_steady(example: Example) -> None:
    """It runs, and gives the same from the same seed."""
    from corpora.measure import results_of

    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(results_of(copy.deepcopy(example)()))
    (first, plain), (second, again) = found
    same = len(first) == len(second) and all(a.shape == b.shape for a, b in zip(first, second))
    if plain != again or not same:
        raise Unbuilt("it gives something else each time")
