"""Custom operators that write to their arguments: recorded by their functional twins (:mod:`prims.twins`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.trace.opinfo import OpInfo
from prims.errors import Unsupported
from prims.spec import TensorSpec, infer
from prims.twins import functional_twin, written_arguments

if TYPE_CHECKING:
    from aot_autograd.trace.tracer import Tracer

__all__ = ["needs_twin", "write_custom"]


def write_custom(tracer: Tracer, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a custom operator by its functional twin, and return its results.

    The new values come from copies of the arguments; one tensor given for several arguments is copied once.

    Raises:
        Unsupported: a written argument overlaps another one in memory, or is written in a way that the schema does
            not tell.
    """
    arguments = func._schema.arguments
    given = [
        kwargs[a.name] if a.name in kwargs else args[i] if i < len(args) else a.default_value
        for i, a in enumerate(arguments)
    ]
    written = written_arguments(func)
    same = _repeated(tracer, func, given, written)
    repeated = dict(same)
    twin = functional_twin(func, same)
    twin_args = tuple(v for i, v in enumerate(given) if i not in repeated and not arguments[i].kwarg_only)
    twin_kwargs = {
        a.name: v for i, (a, v) in enumerate(zip(arguments, given, strict=True)) if a.kwarg_only and i not in repeated
    }
    lengths: tuple[int | None, ...] = ()
    if len(twin._schema.returns) > 1:
        whole = infer(twin, twin_args, twin_kwargs)
        if any(isinstance(s, (list, tuple)) for s in whole):
            lengths = tuple(len(s) if isinstance(s, (list, tuple)) else None for s in whole)
            twin = functional_twin(func, same, lengths)
    results = _results(tracer, tracer._call(twin, twin_args, twin_kwargs), len(twin._schema.returns), lengths)
    targets = [given[i] for i in _first_places(written, repeated)]
    fresh = len(results) - len(targets)
    for target, (value, value_spec, _) in zip(targets, results[fresh:], strict=True):
        _write(tracer, target, value, value_spec)
    taken = iter(results)
    places = info.returns_written or (None,) * fresh
    wrapped = [_wrapped(tracer, next(taken)) if i is None else given[written[i]] for i in places]
    return None if not wrapped else wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


#: ``(node, the node's spec, eager's spec)`` of a result; lists of them for a list.
_Result = tuple[Any, Any, Any]


def _results(tracer: Tracer, call: _Result, count: int, lengths: tuple[int | None, ...]) -> list[_Result]:
    """The results of a twin one by one, those that were spread out put together again."""
    node, node_spec, spec = call
    if count == 1:
        return [call]
    flat = iter(
        [(tracer._item(node, i, s), s, eager) for i, (s, eager) in enumerate(zip(node_spec, spec, strict=True))]
    )
    if not lengths:
        return list(flat)
    found: list[_Result] = []
    for n in lengths:
        if n is None:
            found.append(next(flat))
        else:
            parts = [next(flat) for _ in range(n)]
            found.append(([p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts]))
    return found


def _wrapped(tracer: Tracer, result: _Result) -> Any:
    node, node_spec, spec = result
    if isinstance(node, list):
        return [tracer.wrap(*part) for part in zip(node, node_spec, spec, strict=True)]
    return tracer.wrap(node, node_spec, spec)


def _write(tracer: Tracer, target: Any, value: Any, spec: Any) -> None:
    if isinstance(target, torch.Tensor):
        tracer.write(target, value, spec)
    elif isinstance(target, (list, tuple)):
        for i, (one, one_spec) in enumerate(zip(target, spec, strict=True)):
            _write(tracer, one, value[i] if isinstance(value, list) else tracer._item(value, i, one_spec), one_spec)


def needs_twin(func: Any) -> bool:
    """Whether a custom operator returns a list among other results, which the graph spreads out."""
    returns = func._schema.returns
    return len(returns) > 1 and any(str(r.type).startswith("List") for r in returns)


def _first_places(written: tuple[int, ...], repeated: dict[int, int]) -> list[int]:
    return sorted({repeated.get(i, i) for i in written})


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _repeated(tracer: Tracer, func: Any, given: list[Any], written: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs ``(i, j)`` of arguments that are one tensor, where memory that the operator writes to is concerned."""
    found: list[tuple[int, int]] = []
    for i, value in enumerate(given):
        for j in range(i):
            if i not in written and j not in written:
                continue
            if any(k in (i, j) for k, _ in found):
                continue
            how = _relation(_tensors(value), _tensors(given[j]))
            if how == "apart":
                continue
            if how == "same" and isinstance(value, torch.Tensor) and isinstance(given[j], torch.Tensor):
                found.append((i, j))
                continue
            names = [a.name for a in func._schema.arguments]
            raise Unsupported(
                f"{func} writes to memory that its arguments {names[j]!r} and {names[i]!r} share",
                where=tracer._current_source(),
            )
        if i in written and isinstance(value, (list, tuple)):
            tensors = _tensors(value)
            for k, one in enumerate(tensors):
                if any(_relation([one], [other]) != "apart" for other in tensors[:k]):
                    raise Unsupported(f"{func} writes to tensors that share memory", where=tracer._current_source())
    return tuple(found)


def _relation(left: list[torch.Tensor], right: list[torch.Tensor]) -> str:
    """``"apart"``, ``"same"`` (one memory, laid out alike) or ``"overlapping"``."""
    from aot_autograd.trace.tracer import state_of

    result = "apart"
    for x in left:
        for y in right:
            a, b = state_of(x), state_of(y)
            if a.storage is not b.storage or _apart(a.spec, b.spec):
                continue
            alike = (a.spec.shape, a.spec.strides, a.spec.storage_offset, a.spec.dtype) == (
                b.spec.shape, b.spec.strides, b.spec.storage_offset, b.spec.dtype,
            )  # fmt: skip
            if not alike:
                return "overlapping"
            result = "same"
    return result


def _apart(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two views of one storage are known to share no element.

    Either one ends before the other begins, or both step through memory alike and fill different parts of each step,
    as the halves of a chunked last dimension do.
    """
    numbers = (*a.shape, *b.shape, *a.strides, *b.strides, a.storage_offset, b.storage_offset)
    if not all(type(n) is int for n in numbers) or a.dtype != b.dtype:
        return False
    if 0 in a.shape or 0 in b.shape:
        return True
    if a.storage_offset > b.storage_offset:
        a, b = b, a
    delta = b.storage_offset - a.storage_offset
    steps_a = sorted((s, n) for n, s in zip(a.shape, a.strides, strict=True) if n > 1)
    steps_b = sorted((s, n) for n, s in zip(b.shape, b.strides, strict=True) if n > 1)
    outer = 0  # the innermost step that both take past each other
    while True:
        within_a = sum(s * (n - 1) for s, n in steps_a)
        within_b = sum(s * (n - 1) for s, n in steps_b)
        if delta > within_a and (not outer or delta + within_b < outer):
            return True
        if not steps_a or not steps_b or steps_a[-1][0] != steps_b[-1][0]:
            return False
        if outer and steps_a[-1][0] * max(steps_a[-1][1], steps_b[-1][1]) > outer:
            return False  # steps that are not nested: positions may meet
        outer = steps_a.pop()[0]
        steps_b.pop()
