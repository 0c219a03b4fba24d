"""Conditions on floats of the program, as guards.

The native evaluator knows integers. All conditions that a region has met (an optimizer's ``weight_decay != 0``, RAdam's
``rho_t > 5``) are one Python function of the object from which every path to such a float begins, one for each variable
of the frame.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dynamo_capture import _native
from prims.spec.expr import FLOAT_BINARY, FLOAT_UNARY, Expr, float_of_bits

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.graph_builder import GraphInput
    from dynamo_capture.sources import Source

__all__ = [
    "FLOAT", "condition_of", "condition_of_numbers", "condition_of_sizes", "guard_floats", "guard_sizes",
    "is_of_values", "item_of",
]  # fmt: skip

#: Steps from an object to one within: the kind of each, and its key.
Steps: TypeAlias = tuple[tuple[str, Any], ...]

_FUNCTIONS = {**FLOAT_UNARY, **FLOAT_BINARY, "float": float, "trunc": math.trunc, "floor": math.floor,
              "ceil": math.ceil, "min": min, "max": max, "inf": math.inf, "nan": math.nan}  # fmt: skip
_MISSING = object()
#: What no condition has: attributes, texts, subscripts, names of Python's own.
_STRANGE = re.compile(r"""[A-Za-z_)]\s*\.|__|['"\\:;\[\]{}@]""")
_BITS = re.compile(r"\bfbits\((\w+)\)")
#: How an expression writes numbers for which there is no literal.
_NAMED = re.compile(r"float\('(-?(?:inf|nan))'\)")


def guard_floats(tx: Capture, conditions: Sequence[Expr], inputs: dict[str, GraphInput]) -> None:
    """Guard that conditions hold, whose symbols are the bits of floats; ``inputs`` are by symbol.

    A condition on the bits themselves fixes its floats.
    """
    compared, groups = [], []
    for expr in conditions:
        names = sorted(expr.free_symbols())
        text = _NAMED.sub(r"\1", _BITS.sub(r"\1", str(expr)))
        if expr.kind == "eq" or len(_BITS.findall(str(expr))) < len(re.findall(rf"\b(?:{'|'.join(names)})\b", text)):
            groups.append(names)
        else:
            compared.append((text, names))
    for conditions_of in _by_variable(tx, compared, inputs):
        used = sorted({name for _, names in conditions_of for name in names})
        sources = [inputs[name].source.base for name in used]
        root, readers = _readers(tx, sources)  # type: ignore[arg-type]
        text = " and ".join(f"({text})" for text, _ in conditions_of)
        if root is None:  # of several variables
            condition = condition_of_numbers(text, tuple(used))
            tx.guards.made(condition, condition_of_numbers, text, tuple(used))
            tx.guards.together(sources, condition, text)  # type: ignore[arg-type]
            continue
        given = text, tuple(used), readers
        condition = condition_of(*given)
        tx.guards.made(condition, condition_of, *given)
        tx.guards.predicate(root, condition, text)
    for name in dict.fromkeys(name for names in groups for name in names):
        tx.guards.equals(inputs[name].source.base, float_of_bits(inputs[name].real))  # type: ignore[arg-type]


def guard_sizes(tx: Capture, expr: Expr, inputs: Sequence[tuple[str, Source, int | None]]) -> None:
    """Guard a condition on what floats, or large numbers, are made of sizes, and of floats beside them.

    Args:
        inputs: its symbols, each with the tensor and the dimension, or the number (None; ``FLOAT``), that it is of.
    """
    sources = list({str(source): source for _, source, _ in inputs}.values())
    at = {str(source): k for k, source in enumerate(sources)}
    text = _NAMED.sub(r"\1", _BITS.sub(r"\1", str(expr)))
    given = text, tuple(name for name, _, _ in inputs), tuple((at[str(source)], dim) for _, source, dim in inputs)
    condition = condition_of_sizes(*given)
    tx.guards.made(condition, condition_of_sizes, *given)
    tx.guards.together(sources, condition, text)


def condition_of_sizes(
    text: str, names: Sequence[str], places: Sequence[tuple[int, int | None]]
) -> Callable[..., bool]:
    """A condition on sizes, as a function of tensors and numbers.

    Args:
        text: an expression of numbers.
        names: what it calls the sizes.
        places: for each the argument that it is of, and the dimension of a tensor.
    """
    of_numbers = condition_of_numbers(text, names)

    def value(given: Any, dim: int | None) -> Any:
        return int(given) if dim is None else given if dim == FLOAT else given.shape[dim]

    def holds(*given: Any) -> bool:
        return of_numbers(*[value(given[k], dim) for k, dim in places])

    return holds


#: In the place of a dimension: the symbol is of a float.
FLOAT = -1


def is_of_values(expr: Expr, names: Collection[str]) -> bool:
    """Whether a condition asks the values of some floats alone, rather than the bits that their symbols hold."""
    text = str(expr)
    mentioned = re.findall(rf"\b(?:{'|'.join(names)})\b", text) if names else []
    return sum(name in names for name in _BITS.findall(text)) == len(mentioned)


def _by_variable(
    tx: Capture, conditions: list[tuple[str, list[str]]], inputs: dict[str, GraphInput]
) -> list[list[tuple[str, list[str]]]]:
    """Conditions by the variables of the frame from which the paths to their floats begin."""
    found: dict[frozenset[int], list[tuple[str, list[str]]]] = {}
    for text, names in conditions:
        roots = frozenset(_path(inputs[name].source.base)[0].node(tx.guards.tree) for name in names)  # type: ignore[arg-type]
        found.setdefault(roots, []).append((text, names))
    return list(found.values())


def condition_of(text: str, names: Sequence[str], paths: Sequence[Steps]) -> Callable[[Any], bool]:
    """The condition on the floats at the ends of some paths, as a function of the object where these begin.

    Args:
        text: an expression of numbers.
        names: what it calls the floats, in the order of the paths.
    """
    of_numbers = condition_of_numbers(text, names)
    readers = [_reader(path) for path in paths]

    def holds(root: Any) -> bool:
        try:
            return of_numbers(*[read(root) for read in readers])
        except (LookupError, AttributeError, TypeError):
            return False

    return holds


def condition_of_numbers(text: str, names: Sequence[str]) -> Callable[..., bool]:
    """The condition on some floats, as a function of them; ``text`` and ``names`` as in :func:`condition_of`."""
    if _STRANGE.search(text) or not all(map(str.isidentifier, names)):
        raise ValueError(f"a condition on floats is {text[:80]!r}")
    compute = eval(f"lambda {', '.join(names)}: {text}", {"__builtins__": {}, **_FUNCTIONS})

    def holds(*numbers: float) -> bool:
        try:
            return bool(compute(*numbers))
        except (ArithmeticError, ValueError, TypeError):
            return False

    return holds


def _readers(tx: Capture, sources: list[Source]) -> tuple[Source | None, tuple[Steps, ...]]:
    """The deepest object that leads to all sources, and how each is reached from it; None where there is none."""
    paths = [_path(source) for source in sources]
    if not paths:
        return None, ()
    tree = tx.guards.tree
    nodes = [[step.node(tree) for step in path] for path in paths]
    depth = 0
    while all(len(path) > depth for path in nodes) and len({path[depth] for path in nodes}) == 1:
        depth += 1
    if not depth or any(step.kind not in _STEPS for path in paths for step in path[depth:]):
        return None, ()
    return paths[0][depth - 1], tuple(tuple((step.kind, step.key) for step in path[depth:]) for path in paths)


def _path(source: Source) -> list[Source]:
    steps = [source]
    while steps[-1].base is not None:
        steps.append(steps[-1].base)
    return steps[::-1]


def _reader(steps: Steps) -> Callable[[Any], Any]:
    found = [(_STEPS[kind], key) for kind, key in steps]

    def read(obj: Any) -> Any:
        for step, key in found:
            obj = step(obj, key)
        return obj

    return read


def item_of(obj: Any, key: Any) -> Any:
    """An item, without what a subclass makes of a missing key."""
    if isinstance(obj, dict):  # ``dict.__getitem__`` would fill a defaultdict
        found = dict.get(obj, key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found
    kind = next((base for base in (list, tuple) if isinstance(obj, base)), None)
    return obj[key] if kind is None else kind.__getitem__(obj, key)


def entry_of(obj: Any, place: int) -> tuple[Any, Any]:
    """The key and the value at a place of a dict's table."""
    found = _native.dict_entry(obj, place)
    if found is None:
        raise KeyError(place)
    return found


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": getattr,
    "instance_dict": lambda obj, key: obj.__dict__,
    "dict_attr": lambda obj, key: obj.__dict__[key],
    "item": item_of,
    "dict_value": lambda obj, place: entry_of(obj, place)[1],
    "call": lambda obj, key: key(obj),
    "method_self": lambda obj, key: obj.__self__,
}
