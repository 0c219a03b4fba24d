"""Making a Python function small: what capture gets wrong is about the program's statements, of which no graph tells.

The function is cut as graphs are (:mod:`compile_api.minifier`), by the statements of its body: to the first ones, which
return all that they bind; to the last ones, with parameters for what others bind, and the values of an eager run for
these; to fewer in between, and inside loops and branches; to one result. A step is kept where the call is still wrong.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import textwrap
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from compile_api.trial import copies_of, keeping_random_state
from prims.records import record

__all__ = ["Cut", "begun", "can_be_written", "names_needed", "smaller"]

#: Values that a script can write down, as are tensors, and tuples and lists of these.
_PLAIN = (int, float, bool, str, complex, torch.dtype, type(None))


@record(eq=False)
class Cut:
    """A function's statements, with what they are given.

    Attributes:
        given: parameters and their values.
        body: the statements.
        file: where they are from.
        space: the names that the function sees beside its own.
    """

    name: str
    given: tuple[tuple[str, Any], ...]
    body: tuple[ast.stmt, ...]
    file: str
    space: Mapping[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """The values of the parameters."""
        return tuple(value for _, value in self.given)

    @property
    def size(self) -> int:
        """The number of statements, those of loops and branches among them, without returns."""
        every = (node for one in self.body for node in ast.walk(one))
        return sum(isinstance(node, ast.stmt) and not isinstance(node, ast.Return) for node in every)

    @property
    def text(self) -> str:
        """The function as Python, each statement with the line that it is from."""
        lines = [f"def {self.name}({', '.join(name for name, _ in self.given)}):"]
        for one in self.body:
            first, *rest = ast.unparse(one).splitlines()
            told = f"  # {self.file}:{one.lineno}" if hasattr(one, "lineno") else ""
            whole = not rest or first.endswith(":")  # else the line ends within a text
            lines += [f"    {first}{told if whole else ''}", *(f"    {line}" for line in rest)]
        return "\n".join(lines)

    def function(self) -> Callable[..., Any]:
        """What the text defines."""
        file = f"<minified {self.name}>"
        text = self.text
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        space = dict(self.space)
        exec(compile(text, file, "exec"), space)
        return space[self.name]  # type: ignore[no-any-return]


def begun(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Cut | None:
    """A plain function as it is; None where its source, or what it needs, is not to be had."""
    if not isinstance(fn, types.FunctionType) or fn.__name__ == "<lambda>":
        return None
    try:
        lines, first = inspect.getsourcelines(fn)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        bound = inspect.signature(fn).bind(*args, **kwargs)
        bound.apply_defaults()
        space = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals}
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if not isinstance(tree, ast.FunctionDef) or any(isinstance(x, (ast.Yield, ast.YieldFrom)) for x in ast.walk(tree)):
        return None
    kinds = {parameter.kind for parameter in inspect.signature(fn).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        return None
    ast.increment_lineno(tree, first - 1)
    return Cut(fn.__name__, tuple(bound.arguments.items()), tuple(tree.body), fn.__code__.co_filename, space)


def smaller(cut: Cut, fails: Callable[[Cut], bool], deadline: float) -> Cut:
    """The smallest function that was found of which ``fails`` holds, as it does of ``cut``."""
    search = _Search(fails, deadline)
    cut = search.prefix(cut)
    cut = search.suffix(cut)
    cut = search.fewer(cut)
    cut = search.one_result(cut)
    return search.used(search.fewer(search.inside(cut)))


class _Search:
    def __init__(self, fails: Callable[[Cut], bool], deadline: float) -> None:
        self._fails = fails
        self.deadline = deadline

    def fails(self, cut: Cut | None) -> bool:
        if cut is None or time.monotonic() > self.deadline:
            return False
        try:
            return self._fails(cut)
        except Exception:  # it does not run
            return False

    def _nearest(self, low: int, high: int, made: Callable[[int], Cut | None], best: Cut) -> Cut:
        """By halving, the cut of the number nearest to ``low`` that fails; ``high`` stands for ``best``."""
        step = 1 if high > low else -1
        while low != high:
            middle = low + step * (abs(high - low) // 2)
            tried = made(middle)
            if self.fails(tried):
                high, best = middle, tried  # type: ignore[assignment]
            else:
                low = middle + step
        return best

    def prefix(self, cut: Cut) -> Cut:
        """The first statements alone."""
        return self._nearest(1, len(cut.body), lambda stop: _until(cut, stop), cut)

    def suffix(self, cut: Cut) -> Cut:
        """The last statements alone."""
        return self._nearest(len(cut.body) - 1, 0, lambda start: _without(cut, 0, start), cut)

    def fewer(self, cut: Cut) -> Cut:
        """Without statements in between, ever fewer at once."""
        chunk = max(len(cut.body) // 2, 1)
        while True:
            for at in range(0, len(cut.body) - 1, chunk):
                tried = _without(cut, at, min(at + chunk, len(cut.body) - 1))
                if self.fails(tried):
                    cut = tried  # type: ignore[assignment]
                    break
            else:
                if chunk == 1:
                    return cut
                chunk = max(chunk // 2, 1)

    def used(self, cut: Cut) -> Cut:
        """Without parameters that nothing reads."""
        names = {x.id for one in cut.body for x in ast.walk(one) if isinstance(x, ast.Name)}
        tried = replace(cut, given=tuple(pair for pair in cut.given if pair[0] in names))
        return tried if len(tried.given) < len(cut.given) and self.fails(tried) else cut

    def one_result(self, cut: Cut) -> Cut:
        """With one of the names that are returned."""
        last = cut.body[-1]
        names = [x.id for x in ast.walk(last) if isinstance(x, ast.Name)] if not hasattr(last, "lineno") else []
        for name in names if len(names) > 1 else ():
            tried = replace(cut, body=(*cut.body[:-1], _returning([name])))
            if self.fails(tried):
                return tried
        return cut

    def inside(self, cut: Cut) -> Cut:
        """Without statements of loops and branches, one at a time."""
        at = 0
        while (tried := _less_inside(cut, at)) is not None:
            if self.fails(tried):
                cut = tried
            else:
                at += 1
        return cut


def _until(cut: Cut, stop: int) -> Cut | None:
    """The first statements, which return what they bind."""
    body = cut.body[:stop]
    if isinstance(body[-1], ast.Return):
        return replace(cut, body=body)
    names = dict.fromkeys(name for one in body for name in _bound(one))
    return replace(cut, body=(*body, _returning(list(names)))) if names else None


def _without(cut: Cut, start: int, stop: int) -> Cut | None:
    """Without some statements: of what they bind, the others are given the values of an eager run."""
    if start == stop:
        return None
    rest = (*cut.body[:start], *cut.body[stop:])
    left = {name for one in cut.body[start:stop] for name in _bound(one)}
    known = dict(cut.given)
    used = {x.id for one in rest for x in ast.walk(one) if isinstance(x, ast.Name)}
    needed = sorted(left & used)
    after = _values(cut, stop, [*needed, *known] if start == 0 else needed)
    if after is None:
        return None
    given = tuple((name, after.get(name, known.get(name))) for name in dict.fromkeys([*known, *needed]) if name in used)
    if not any(isinstance(value, torch.Tensor) for _, value in given):
        return None
    return replace(cut, given=given, body=rest)


def _values(cut: Cut, stop: int, names: Sequence[str]) -> dict[str, Any] | None:
    """What names come to after the first statements, run eagerly; None where a script could not write one down."""
    telling = _returning([f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}"])
    with keeping_random_state(cut.args):
        try:
            found = replace(cut, body=(*cut.body[:stop], telling)).function()(*copies_of(cut.args).args)
            kept: dict[str, Any] = copies_of(found).args
        except Exception:
            return None
    return kept if all(map(can_be_written, kept.values())) else None


def can_be_written(value: Any) -> bool:
    """Whether a script can hold a value."""
    if isinstance(value, (tuple, list)):
        return all(isinstance(x, _PLAIN) or (isinstance(x, (tuple, list)) and can_be_written(x)) for x in value)
    return isinstance(value, (torch.Tensor, *_PLAIN))


def _bound(one: ast.stmt) -> list[str]:
    """The names that a statement binds, or writes to in place (``x[0] = y``, ``x.add_(1)``), in order."""
    found: dict[str, None] = {}
    for node in ast.walk(one):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = None
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name):
                found[node.value.id] = None
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = None
    if not found and isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
        target = one.value.func
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            found[target.value.id] = None
    return list(found)


def _returning(names: Sequence[str]) -> ast.stmt:
    made = ast.parse(f"return {', '.join(names)}").body[0]
    del made.lineno  # it is on no line of the program
    return made


def _less_inside(cut: Cut, at: int) -> Cut | None:
    """Without the statement that is the ``at``-th of those inside of others; None where there are not so many."""
    body = [copy.deepcopy(one) for one in cut.body]
    places = [
        (block, k) for one in body for node in ast.walk(one) if isinstance(node, ast.stmt)
        for name in ("body", "orelse", "finalbody") for block in [getattr(node, name, None)] if isinstance(block, list)
        for k in range(len(block))
    ]  # fmt: skip
    if at >= len(places):
        return None
    block, k = places[at]
    if len(block) == 1:
        if isinstance(block[0], ast.Pass):
            return _less_inside(cut, at + 1)
        block[0] = ast.copy_location(ast.Pass(), block[0])
    else:
        del block[k]
    return replace(cut, body=tuple(body))


# ---- what a script has to have beside the function ----------------------------------------------------------------


def names_needed(cut: Cut) -> list[str] | None:
    """The lines that make known what the function takes from its module: imports, numbers and texts, and functions that
    need no more than that; None where it takes anything else."""
    imports: dict[str, None] = {}
    lines: dict[str, None] = {}
    if not _gather(cut.text, {name for name, _ in cut.given}, cut.space, imports, lines, {cut.name}):
        return None
    return [*imports, *lines]


def _gather(
    text: str, own: set[str], space: Mapping[str, Any], imports: dict[str, None], lines: dict[str, None], seen: set[str]
) -> bool:  # fmt: skip
    used = {x.id for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name)} - own
    for name in sorted(used - seen):
        if name not in space:
            continue
        seen.add(name)
        value = space[name]
        if isinstance(value, types.ModuleType):
            imports[f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")] = None
        elif isinstance(value, (int, float, bool, str)):
            lines[f"{name} = {value!r}"] = None
        elif isinstance(value, types.FunctionType) and value.__name__ == name and not value.__closure__:
            try:
                source = textwrap.dedent(inspect.getsource(value))
            except (OSError, TypeError):
                return False
            if not source.startswith("def ") or not _gather(source, set(), value.__globals__, imports, lines, seen):
                return False
            lines["\n\n" + source.rstrip()] = None
        else:
            return False
    return True
