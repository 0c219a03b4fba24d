"""Making a failing program small: parts of its syntax tree go as long as the same kind of difference stays."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["shrink"]


def shrink(source: str, fails: Callable[[str], bool], seconds: float = 40.0) -> str:
    """The smallest text found in which ``fails`` still holds; passes are repeated until none helps or time is up."""
    end = time.monotonic() + seconds
    best = ast.unparse(ast.parse(source))
    if not fails(best):
        return source
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for kind in (_blocks, _statements, _expressions):
            place = 0
            while time.monotonic() < end:
                candidate = _edit(best, kind, place)
                if candidate is None:
                    break
                if candidate != best and len(candidate) <= len(best) and fails(candidate):
                    best, improved = candidate, True
                else:
                    place += 1
    return best


def _edit(source: str, kind: Callable[[ast.AST], Iterator[Callable[[], None]]], place: int) -> str | None:
    """``source`` with the ``place``-th edit of that kind; None when there are no more."""
    tree = ast.parse(source)
    for i, edit in enumerate(kind(tree)):
        if i == place:
            edit()
            try:
                text = ast.unparse(ast.fix_missing_locations(tree))
                ast.parse(text)
            except Exception:
                return source
            return text
    return None


def _bodies(tree: ast.AST) -> Iterator[tuple[list[Any], ast.AST]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                yield body, node


def _blocks(tree: ast.AST) -> Iterator[Callable[[], None]]:
    """A run of statements goes, or a block is replaced by what is in it."""
    for body, _ in _bodies(tree):
        for size in (8, 4, 2):
            for i in range(0, max(len(body) - size + 1, 0), size):
                yield lambda b=body, i=i, n=size: _cut(b, i, n)
        for i, node in enumerate(body):
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, None)
                if isinstance(inner, list) and inner and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    yield lambda b=body, i=i, inner=inner: b.__setitem__(slice(i, i + 1), inner)


def _statements(tree: ast.AST) -> Iterator[Callable[[], None]]:
    for body, _ in _bodies(tree):
        for i in range(len(body) - 1, -1, -1):
            yield lambda b=body, i=i: _cut(b, i, 1)


def _cut(body: list[Any], start: int, count: int) -> None:
    del body[start : start + count]
    if not body:
        body.append(ast.Pass())


def _expressions(tree: ast.AST) -> Iterator[Callable[[], None]]:
    """An expression becomes one of its parts or a constant; a list, call or tuple loses an element."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and not isinstance(value, (ast.Constant, ast.Name)):
                for part in ast.iter_child_nodes(value):
                    if isinstance(part, ast.expr) and not isinstance(part, ast.Starred):
                        yield lambda n=node, f=name, p=part: setattr(n, f, copy.deepcopy(p))
                for constant in (0, 1):
                    yield lambda n=node, f=name, c=constant: setattr(n, f, ast.Constant(c))
            elif isinstance(value, list) and value and all(isinstance(v, (ast.expr, ast.keyword)) for v in value):
                for i, element in enumerate(value):
                    if not isinstance(node, (ast.Compare, ast.BoolOp, ast.Dict)):
                        yield lambda v=value, i=i: v.__delitem__(i)
                    for part in ast.iter_child_nodes(element):
                        if isinstance(part, ast.expr) and isinstance(element, ast.expr):
                            yield lambda v=value, i=i, p=part: v.__setitem__(i, copy.deepcopy(p))
