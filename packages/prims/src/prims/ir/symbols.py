"""Which symbols an envelope uses, and where the runtime reads their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.fx

from prims.ir.envelope import InputDesc, SymbolBinding, SymbolEntry, SymbolTable
from prims.spec.unbacked import MAKERS

if TYPE_CHECKING:
    from prims.spec import SymbolContext

__all__ = ["Made", "bind_symbols", "expr_of", "made_symbols", "sizes_of", "symbols_in", "symbols_made", "symbols_of"]


#: By identity, as the hash of an overload is computed in Python, which takes longer than all else that is asked here.
_MAKERS = frozenset(map(id, MAKERS))


def expr_of(value: Any) -> Any:
    """The expression of a ``Sym`` (or of a ``torch.SymInt`` over one), or None for a plain value."""
    node = getattr(value, "node", None)
    if node is not None:
        value = node
    return getattr(value, "expr", None)


def sizes_of(spec: Any) -> Iterator[Any]:
    """Every size, stride and offset of a spec, or the size itself."""
    shape = getattr(spec, "shape", None)
    if shape is None:
        yield spec
        return
    yield from shape
    yield from spec.strides
    yield spec.storage_offset


def symbols_in(value: Any) -> frozenset[str]:
    """The names of the symbols in a size; empty for plain values."""
    if isinstance(value, (int, float, bool)) or value is None:
        return frozenset()
    expr = expr_of(value)
    return frozenset() if expr is None else frozenset(symbol.name for symbol in expr.symbols)


def _bare_symbol(value: Any) -> str | None:
    expr = None if isinstance(value, int) else expr_of(value)
    return expr.name if expr is not None and expr.is_symbol else None


class Made(NamedTuple):
    """Where an unbacked symbol stands in the result of the node that makes it.

    Attributes:
        name: the symbol's.
        element: the place of the tensor in a tuple of results, or None.
        dim: the dimension whose size it is; None where the result is the number itself (of a float, its bits).
    """

    name: str
    element: int | None
    dim: int | None


def symbols_made(node: torch.fx.Node) -> list[Made]:
    """The symbols that a node of the aten dialect binds, unless one before it has; empty for nearly every node."""
    target = node.target
    if id(target) in _MAKERS:
        known: frozenset[str] = frozenset()
    elif isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims"):
        operands = [x.meta.get("spec") for x in node.all_input_nodes]
        known = symbols_of([node.args, node.kwargs, *operands])  # a custom operator makes what it has not been given
    else:
        return []
    spec = node.meta["spec"]
    if not isinstance(spec, (tuple, list)):
        return [one for one in _made(spec, None) if one.name not in known]
    found = {one.name: one for element, part in reversed(list(enumerate(spec))) for one in _made(part, element)}
    return [one for one in found.values() if one.name not in known]


def _made(spec: Any, element: int | None) -> list[Made]:
    shape = getattr(spec, "shape", None)
    if shape is None:
        return [Made(name, element, None) for name in symbols_in(spec) if spec.ctx.is_unbacked(name)]
    names = [(dim, _bare_symbol(size)) for dim, size in enumerate(shape)]
    return [Made(name, element, dim) for dim, name in names if name is not None and shape[dim].ctx.is_unbacked(name)]


def made_symbols(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[Made]]:
    """The nodes that bind symbols, in order, each symbol at the first node that has it."""
    known: set[str] = set()
    found: dict[torch.fx.Node, list[Made]] = {}
    for node in graph.nodes:
        made = symbols_made(node)
        if made and (new := [one for one in made if one.name not in known]):
            found[node] = new
            known.update(one.name for one in new)
    return found


def symbols_of(value: Any) -> frozenset[str]:
    """The names of the symbols anywhere in an argument or in metadata."""
    if isinstance(value, (tuple, list)):
        return frozenset().union(*map(symbols_of, value))
    if isinstance(value, dict):
        return frozenset().union(*map(symbols_of, value.values()))
    if getattr(value, "shape", None) is not None:
        return frozenset().union(*map(symbols_in, sizes_of(value)))
    return symbols_in(value)


def bind_symbols(
    inputs: tuple[InputDesc, ...], context: SymbolContext | None, graph: torch.fx.Graph | None = None
) -> SymbolTable:
    """The table of the symbols in the inputs' shapes, strides and sizes, and of those that nodes of ``graph`` bind.

    Each symbol is bound to the first ``size`` input or dimension that is exactly that symbol. A symbol that only
    stands inside larger expressions has no binding, which the verifier rejects.
    """
    bindings: dict[str, SymbolBinding | None] = {}
    for index, desc in enumerate(inputs):
        if type(desc.spec) is int:
            continue
        shape = getattr(desc.spec, "shape", None)
        places: Mapping[int | None, Any] = {None: desc.spec} if shape is None else dict(enumerate(shape))
        for dim, size in places.items():
            name = _bare_symbol(size)
            if name is not None and bindings.get(name) is None:
                bindings[name] = SymbolBinding(index, dim)
        for size in sizes_of(desc.spec):
            for name in sorted(symbols_in(size)):
                bindings.setdefault(name, None)
    for made in made_symbols(graph).values() if graph is not None else ():
        bindings.update((one.name, None) for one in made)
    entries = []
    for name, binding in bindings.items():
        if context is None:
            entries.append(SymbolEntry(name, 0, None, None, binding))
            continue
        info = context.info(name)
        entries.append(SymbolEntry(name, info.min, info.max, info.hint, binding))
    return SymbolTable(context, tuple(entries))
