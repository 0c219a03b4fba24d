"""Comparing and describing specs without ever deciding (and so guarding on) a symbolic size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prims.ir.symbols import expr_of

if TYPE_CHECKING:
    from prims.spec.expr import Expr

__all__ = ["describe_spec", "is_tensor_spec", "same_metadata", "same_size", "same_spec", "size_text"]


def is_tensor_spec(spec: Any) -> bool:
    """Whether this is a ``TensorSpec`` rather than a size or a scalar."""
    return hasattr(spec, "strides") and hasattr(spec, "dtype")


def same_size(a: Any, b: Any, simplify: Callable[[Expr], Expr] | None = None) -> bool:
    """Equal numbers of one type, or the very same expression (expressions are hash-consed), or what ``simplify``, a
    context's, makes the same."""
    if type(a) is int and type(b) is int:
        return a == b
    ea, eb = expr_of(a), expr_of(b)
    if ea is not None or eb is not None:
        return ea is eb or (simplify is not None and _same_simplified((a, ea), (b, eb), simplify))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _same_simplified(
    a: tuple[Any, Expr | None], b: tuple[Any, Expr | None], simplify: Callable[[Expr], Expr]
) -> bool:  # fmt: skip
    from prims.spec.expr import const  # which a process that runs stored programs does without

    x, y = (const(size) if type(size) is int else expr for size, expr in (a, b))
    return x is not None and y is not None and simplify(x) is simplify(y)


def same_spec(a: Any, b: Any, simplify: Callable[[Expr], Expr] | None = None) -> bool:
    """Equal shape, dtype, device, strides and offset, see :func:`same_size`; elementwise for several results.

    Strides along one element are not asked for: which they are depends on when it became known that there is one.
    """
    if a is b:
        return True
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(same_spec(x, y, simplify) for x, y in zip(a, b, strict=True))
    if is_tensor_spec(a) and is_tensor_spec(b):
        return (
            a.dtype == b.dtype
            and a.device == b.device
            and len(a.shape) == len(b.shape)
            and all(same_size(x, y, simplify) for x, y in zip(a.shape, b.shape, strict=True))
            and all(
                same_size(x, y, simplify) or same_size(n, 1, simplify)
                for n, x, y in zip(a.shape, a.strides, b.strides, strict=True)
            )
            and same_size(a.storage_offset, b.storage_offset, simplify)
        )
    return not is_tensor_spec(a) and not is_tensor_spec(b) and same_size(a, b, simplify)


def same_metadata(a: Any, b: Any) -> bool:
    """Equal rank, dtype and device and no contradicting static sizes; scalars agree in being scalars.

    Weaker than :func:`same_spec`: a size that is an expression on one side may have become static on the other by
    a guard, and a boundary descriptor may carry another layout than the logical array inside the graph.
    """
    if isinstance(a, (tuple, list)) or isinstance(b, (tuple, list)):
        return isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b)
    if is_tensor_spec(a) != is_tensor_spec(b):
        return False
    if not is_tensor_spec(a):
        return True
    if a.dtype != b.dtype or a.device != b.device or len(a.shape) != len(b.shape):
        return False
    return all(
        type(x) is not int or type(y) is not int or x == y for x, y in zip(a.shape, b.shape, strict=True)
    )


def size_text(size: Any) -> str:
    """A size as deterministic text."""
    expr = expr_of(size)
    return repr(size) if expr is None else str(expr)


def describe_spec(spec: Any) -> str:
    """A spec as it stands in the text form: ``float32[2, s0]{s0, 1}+4 cpu``."""
    if spec is None:
        return "none"
    if isinstance(spec, (tuple, list)):
        return "(" + ", ".join(map(describe_spec, spec)) + ")"
    if not is_tensor_spec(spec):
        expr = expr_of(spec)
        return f"size {expr}" if expr is not None else f"scalar {spec!r}"
    text = f"{str(spec.dtype).removeprefix('torch.')}[{', '.join(map(size_text, spec.shape))}]"
    if not _plainly_contiguous(spec):
        text += "{" + ", ".join(map(size_text, spec.strides)) + "}"
    if type(spec.storage_offset) is not int or spec.storage_offset != 0:
        text += f"+{size_text(spec.storage_offset)}"
    return f"{text} {spec.device}"


def _plainly_contiguous(spec: Any) -> bool:
    from prims.spec.layout import contiguous_strides

    return all(map(same_size, spec.strides, contiguous_strides(spec.shape)))
