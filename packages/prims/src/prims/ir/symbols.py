"""Which symbols an envelope uses, and where the runtime reads their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prims.ir.envelope import InputDesc, SymbolBinding, SymbolEntry, SymbolTable

if TYPE_CHECKING:
    from prims.spec import SymbolContext

__all__ = ["bind_symbols", "expr_of", "sizes_of", "symbols_in"]


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


def bind_symbols(inputs: tuple[InputDesc, ...], context: SymbolContext | None) -> SymbolTable:
    """The table of the symbols in the inputs' shapes, strides and sizes.

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
    entries = []
    for name, binding in bindings.items():
        if context is None:
            entries.append(SymbolEntry(name, 0, None, None, binding))
            continue
        info = context.info(name)
        entries.append(SymbolEntry(name, info.min, info.max, info.hint, binding))
    return SymbolTable(context, tuple(entries))
