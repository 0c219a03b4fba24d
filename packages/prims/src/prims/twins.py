"""Functional twins of operators that write to their arguments.

A custom operator such as ``lib::add_one_(Tensor(a!) x) -> ()`` has no functional form of its own. Its twin
``quintet::lib__add_one_(Tensor x) -> Tensor`` copies what is written, runs the operator on the copies and gives
them back after the operator's own results. The aten dialect holds the twin; the runtime copies the new values into
the arguments, as it does for every mutation. A twin's results are tensors or one list of them, never lists among
others: those are spread out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from prims.records import record
from prims.registry import define_operator
from prims.spec.infer import RULES, op_name, resolve
from prims.spec.tensorspec import TensorSpec

__all__ = ["functional_twin", "run_of_twin", "twin_form", "twin_of", "written_arguments"]

OpOverload: TypeAlias = Any  # torch._ops.OpOverload


@record
class _Form:
    """A twin of ``func``; ``same`` and ``lengths`` as :func:`functional_twin` takes them."""

    func: OpOverload
    same: tuple[tuple[int, int], ...]
    lengths: tuple[int | None, ...]

    def written(self) -> list[int]:
        """The written arguments, each tensor once: one that repeats another stands under that one."""
        repeated = dict(self.same)
        return sorted({repeated.get(i, i) for i in written_arguments(self.func)})

    def fresh(self) -> list[int]:
        """Positions of the returns that are not written arguments."""
        returns = self.func._schema.returns
        return [i for i, r in enumerate(returns) if r.alias_info is None or not r.alias_info.is_write]

    def finish(self, out: Any, values: list[Any]) -> Any:
        """The twin's results from the operator's and the written arguments' new values."""
        count = len(self.func._schema.returns)
        whole = [out] if count == 1 else list(out or ())
        results = [whole[i] for i in self.fresh()] + [values[i] for i in self.written()]
        if any(n is not None for n in self.lengths):
            results = [
                x for r, n in zip(results, self.lengths, strict=True) for x in ((r,) if n is None else _exactly(r, n))
            ]
        return results[0] if len(results) == 1 else tuple(results)


def _exactly(values: Any, n: int) -> Any:
    if len(values) != n:
        raise RuntimeError(f"a custom operator returned {len(values)} tensors, its fake implementation {n}")
    return values


_ALIAS = re.compile(r"(?<=Tensor)\([^)]*\)")
_TWINS: dict[_Form, OpOverload] = {}
_NAMES: dict[str, _Form] = {}
_ORIGINALS: dict[OpOverload, _Form] = {}


def written_arguments(func: OpOverload) -> tuple[int, ...]:
    """Positions of the arguments that an overload's schema says it writes to."""
    return tuple(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)


def twin_of(func: OpOverload) -> OpOverload | None:
    """The operator that a twin runs, None for any other overload."""
    found = _ORIGINALS.get(func)
    return None if found is None else found.func


def twin_form(twin: OpOverload) -> tuple[OpOverload, tuple[tuple[int, int], ...], tuple[int | None, ...]] | None:
    """What :func:`functional_twin` was given for a twin, None for any other overload."""
    found = _ORIGINALS.get(twin)
    return None if found is None else (found.func, found.same, found.lengths)


def run_of_twin(
    func: OpOverload, same: tuple[tuple[int, int], ...], lengths: tuple[int | None, ...], owned: frozenset[int]
) -> Callable[..., Any]:
    """What the twin of these computes, without copies of the tensor operands at the positions ``owned``: theirs is
    used. The twin itself need not have been made.

    Operands are counted in the order of the twin's arguments, the tensors of a list one by one.
    """
    return _implementation(_Form(func, same, lengths), owned)


def functional_twin(
    func: OpOverload, same: tuple[tuple[int, int], ...] = (), lengths: tuple[int | None, ...] = ()
) -> OpOverload:
    """The functional twin of an overload, made on first use.

    Args:
        func: the overload.
        same: ``(i, j)`` pairs of argument positions, ``j < i``: argument ``i`` is the very tensor given for ``j``. The
            twin does not take it, and hands the operator one copy for both.
        lengths: per result of the twin, the number of tensors if it is a list to be spread out, else None.

    Returns:
        An overload with the arguments of ``func`` less the repeated ones. It returns what ``func`` returns apart from
        written arguments, then the new value of each written argument in schema order (of repeated ones once).
    """
    form = _Form(func, same, lengths)
    twin = _TWINS.get(form)
    if twin is None:
        twin = _define(form)
        _ORIGINALS[twin] = form
        RULES[op_name(twin)] = _rule(form)
        _TWINS[form] = twin  # last: a twin that is known is whole
    return twin


def _define(form: _Form) -> OpOverload:
    func, schema = form.func, form.func._schema
    repeated = dict(form.same)
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
    returns = [returned[i] for i in form.fresh()]
    returns += [texts[i].partition(" ")[0] for i in form.written()]
    if any(n is not None for n in form.lengths):
        returns = [
            t for r, n in zip(returns, form.lengths, strict=True) for t in ([r] if n is None else ["Tensor"] * n)
        ]
    name = f"{func.namespace}__{schema.name.split('::')[1]}"
    name += f"__{func._overloadname}" if func._overloadname != "default" else ""
    name += "".join(f"__{i}_is_{j}" for i, j in form.same)
    name += "".join(f"__{i}_has_{n}" for i, n in enumerate(form.lengths) if n is not None)
    while _NAMES.setdefault(name, form) != form:  # an operator that was defined anew, under the same name
        name += "_"
    define_operator(
        f"{name}({', '.join(taken)}) -> ({', '.join(returns)})", _implementation(form), tags=tuple(func.tags)
    )
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
    return _call_with(func, func, values)


def _call_with(function: Callable[..., Any], func: OpOverload, values: list[Any]) -> Any:
    """``function``, which has the signature of ``func``, on all its arguments by position."""
    arguments = func._schema.arguments
    args = [v for v, a in zip(values, arguments, strict=True) if not a.kwarg_only]
    return function(*args, **{a.name: v for v, a in zip(values, arguments, strict=True) if a.kwarg_only})


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


def _implementation(form: _Form, owned: frozenset[int] = frozenset()) -> Callable[..., Any]:
    written = form.written()

    def run(*args: Any, **kwargs: Any) -> Any:
        values = _spread(form.func, form.same, args, kwargs)
        own = {id(x) for i, x in enumerate(_operands((*args, *kwargs.values()))) if i in owned} if owned else set()
        for i in written:
            values[i] = _copied(values[i], own)
        for i, j in form.same:
            values[i] = values[j]
        return form.finish(_call(form.func, values), values)

    return run


def _rule(form: _Form) -> Any:
    rule_of = resolve(form.func) if form.fresh() else None

    def rule(*args: Any, **kwargs: Any) -> Any:
        values = _spread(form.func, form.same, args, kwargs)
        out = _call_with(rule_of, form.func, values) if rule_of is not None else None
        for i in form.written():
            values[i] = _own(values[i])
        return form.finish(out, values)

    return rule


def _own(spec: Any) -> Any:
    """The spec of a copy: at the beginning of memory of its own."""
    if isinstance(spec, (list, tuple)):
        return [_own(s) for s in spec]
    if not isinstance(spec, TensorSpec) or (type(spec.storage_offset) is int and spec.storage_offset == 0):
        return spec
    return TensorSpec(spec.shape, spec.dtype, spec.device, spec.strides)
