"""The reference page of the primitives, ``PRIMITIVES.md``: ``python -m prims.ops.document`` prints it from the rows."""

from __future__ import annotations

from prims.ops import TABLE, PrimOp

__all__ = ["markdown"]

_KINDS = {
    "unary": "Elementwise, one operand",
    "binary": "Elementwise, two operands",
    "ternary": "Elementwise, three operands",
    "cast": "Conversion",
    "create": "Creation",
    "random": "Random numbers",
    "view": "Rearrangement",
    "index": "Indexing",
    "reduce": "Reductions",
    "scan": "Scans",
    "dot": "Matrix product",
}

_INTRO = """# The primitives

Generated from `prims.ops.TABLE` by `python -m prims.ops.document`; do not edit.

Parameters: `T` a tensor, `V` a tensor or number, `Ts` tensors, `S` an int or symbolic size, `Ss` a tuple of them,
`ints` static ints, `dim`/`dims`/`perm` dimensions of the first tensor. The result has the first tensor's dtype unless
said otherwise. A broken constraint raises `VerifierError` with its label.
"""


def _row(op: PrimOp) -> str:
    dtypes = " ".join(str(d).removeprefix("torch.") for d in op.dtypes)
    result = {"same": "", "attr": " The result's dtype is an argument."}.get(op.dtype_rule)
    if result is None:
        result = f" The result is {op.dtype_rule}."
    lines = [f"### `{op.name}({op.signature})`", "", f"{op.doc}.{result} Dtypes: {dtypes}.", ""]
    lines += [f"- `{label}`: {text}" for label, text in sorted(op.constraints.items())]
    return "\n".join(lines)


def markdown() -> str:
    """The page's text."""
    parts = [_INTRO]
    for kind, title in _KINDS.items():
        rows = [op for op in TABLE.values() if op.kind == kind]
        parts.append(f"## {title}\n")
        parts += [_row(op) + "\n" for op in rows]
    return "\n".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
