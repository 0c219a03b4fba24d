"""Functional twins of operators that write to their arguments.

A custom operator such as ``lib::add_one_(Tensor(a!) x) -> ()`` has no functional form of its own. Its twin
``quintet::lib__add_one_(Tensor x) -> Tensor`` copies what is written, runs the operator on the copies and gives
them back after the operator's own results. The aten dialect holds the twin; the runtime copies the new values into
the arguments, as it does for every mutation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from prims.spec.infer import RULES, op_name, resolve
from prims.spec.tensorspec import TensorSpec

__all__ = ["functional_twin", "functional_twin_in_place", "twin_of", "written_arguments"]

OpOverload: TypeAlias = Any  # torch._ops.OpOverload

_ALIAS = re.compile(r"(?<=Tensor)\([^)]*\)")
_LIBRARY: list[Any] = []
_TWINS: dict[tuple[OpOverload, tuple[tuple[int, int], ...]], OpOverload] = {}
_ORIGINALS: dict[OpOverload, tuple[OpOverload, tuple[tuple[int, int], ...]]] = {}


def written_arguments(func: OpOverload) -> tuple[int, ...]:
    """Positions of the arguments that an overload's schema says it writes to."""
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


def twin_of(func: OpOverload) -> OpOverload | None:
    """The operator that a twin runs, None for any other overload."""
    found = _ORIGINALS.get(func)
    return None if found is None else found[0]


def functional_twin_in_place(twin: OpOverload, owned: frozenset[int]) -> Callable[..., Any]:
    """What a twin computes, without copies of the tensor operands at the positions ``owned``: their memory is used.

    Operands are counted in the order of the twin's arguments, the tensors of a list one by one.
    """
    return _implementation(*_ORIGINALS[twin], owned)


def functional_twin(func: OpOverload, same: tuple[tuple[int, int], ...] = ()) -> OpOverload:
    """The functional twin of an overload that writes to some of its arguments, made on first use.

    Args:
        func: the overload.
        same: ``(i, j)`` pairs of argument positions, ``j < i``: argument ``i`` is the very tensor given for ``j``. The
            twin does not take it, and hands the operator one copy for both.

    Returns:
        An overload with the arguments of ``func`` less the repeated ones. It returns what ``func`` returns apart from
        written arguments, then the new value of each written argument in schema order (of repeated ones once).
    """
    key = (func, same)
    twin = _TWINS.get(key)
    if twin is None:
        twin = _TWINS[key] = _define(func, same)
        _ORIGINALS[twin] = (func, same)
        RULES[op_name(twin)] = _rule(func, same)
    return twin


def _define(func: OpOverload, same: tuple[tuple[int, int], ...]) -> OpOverload:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library("quintet", "FRAGMENT"))
    schema = func._schema
    repeated = dict(same)
    written = _kept_written(func, repeated)
    texts, returned = _parts(schema)
    taken = []
    starred = False
    for i, argument in enumerate(schema.arguments):
        if i in repeated:
            continue
        if argument.kwarg_only and not starred:
            starred = True
            taken.append("*")
        taken.append(texts[i])
    returns = [returned[i] for i in _fresh_returns(func)]
    returns += [texts[i].partition(" ")[0] for i in written]
    name = f"{func.namespace}__{schema.name.split('::')[1]}"
    name += f"__{func._overloadname}" if func._overloadname != "default" else ""
    name += "".join(f"__{i}_is_{j}" for i, j in same)
    _LIBRARY[0].define(f"{name}({', '.join(taken)}) -> ({', '.join(returns)})", tags=tuple(func.tags))
    _LIBRARY[0].impl(name, _implementation(func, same), "CompositeExplicitAutograd")
    return getattr(torch.ops.quintet, name).default


def _parts(schema: Any) -> tuple[list[str], list[str]]:
    """The text of each argument and each return of a schema, without what it says of aliases."""
    text = _ALIAS.sub("", str(schema))
    taken, _, returned = text[text.index("(") :].rpartition(" -> ")
    arguments = [part for part in _split(taken[1:-1]) if part != "*"]
    if returned.startswith("("):
        returned = returned[1:-1]
    return arguments, [part.partition(" ")[0] for part in _split(returned)]


def _split(text: str) -> list[str]:
    """``text`` at its commas, but for those in brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "\"'":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _fresh_returns(func: OpOverload) -> list[int]:
    """Positions of the returns that are not written arguments."""
    return [i for i, r in enumerate(func._schema.returns) if r.alias_info is None or not r.alias_info.is_write]


def _kept_written(func: OpOverload, repeated: dict[int, int]) -> list[int]:
    """The written arguments, each tensor once: a written argument that repeats another stands under that one."""
    kept: list[int] = []
    for i in written_arguments(func):
        while i in repeated:
            i = repeated[i]
        if i not in kept:
            kept.append(i)
    return sorted(kept)


def _spread(func: OpOverload, same: tuple[tuple[int, int], ...], args: Any, kwargs: Any) -> list[Any]:
    """The operator's arguments by position, from those of its twin; repeated ones are filled in."""
    repeated = dict(same)
    given = iter(args)
    values: list[Any] = []
    for i, argument in enumerate(func._schema.arguments):
        if i in repeated:
            values.append(values[repeated[i]])
        elif argument.name in kwargs:
            values.append(kwargs[argument.name])
        elif not argument.kwarg_only:
            values.append(next(given, argument.default_value))
        else:
            values.append(argument.default_value)
    return values


def _call(func: OpOverload, values: list[Any]) -> Any:
    arguments = func._schema.arguments
    args = [v for v, a in zip(values, arguments, strict=True) if not a.kwarg_only]
    return func(*args, **{a.name: v for v, a in zip(values, arguments, strict=True) if a.kwarg_only})


def _copied(value: Any, owned: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) in owned:
            return value
        if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
            return value.clone()
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return copy.copy_(value)
    return [_copied(v, owned) for v in value] if isinstance(value, (list, tuple)) else value


def _operands(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _operands(v)] if isinstance(value, (list, tuple)) else []


def _implementation(
    func: OpOverload, same: tuple[tuple[int, int], ...], owned: frozenset[int] = frozenset()
) -> Callable[..., Any]:
    repeated = dict(same)
    written = _kept_written(func, repeated)
    fresh = _fresh_returns(func)

    def run(*args: Any, **kwargs: Any) -> Any:
        values = _spread(func, same, args, kwargs)
        own = {id(x) for i, x in enumerate(_operands((*args, *kwargs.values()))) if i in owned} if owned else set()
        for i in written:
            values[i] = _copied(values[i], own)
        for i, j in same:
            values[i] = values[j]
        out = _call(func, values)
        results = [out] if len(func._schema.returns) == 1 else list(out or ())
        results = [results[i] for i in fresh] + [values[i] for i in written]
        return results[0] if len(results) == 1 else tuple(results)

    return run


def _rule(func: OpOverload, same: tuple[tuple[int, int], ...]) -> Any:
    repeated = dict(same)
    written = _kept_written(func, repeated)
    fresh = _fresh_returns(func)

    def rule(*args: Any, **kwargs: Any) -> Any:
        values = _spread(func, same, args, kwargs)
        results: list[Any] = []
        if fresh:
            kwarg_only = {a.name for a in func._schema.arguments if a.kwarg_only}
            named = {a.name: v for v, a in zip(values, func._schema.arguments, strict=True) if a.name in kwarg_only}
            out = resolve(func)(*values[: len(values) - len(named)], **named)
            whole = [out] if len(func._schema.returns) == 1 else list(out)
            results = [whole[i] for i in fresh]
        results += [_own(values[i]) for i in written]
        return results[0] if len(results) == 1 else tuple(results)

    return rule


def _own(spec: Any) -> Any:
    """The spec of a copy: at the beginning of memory of its own."""
    if isinstance(spec, (list, tuple)):
        return [_own(s) for s in spec]
    if not isinstance(spec, TensorSpec) or (type(spec.storage_offset) is int and spec.storage_offset == 0):
        return spec
    return TensorSpec(spec.shape, spec.dtype, spec.device, spec.strides)
