"""Reductions as rows: what each begins with, and how each language takes elements and partial results together.

A primitive that is added needs a row here, and nothing else in this package.
"""

from __future__ import annotations

import torch

from prims.dtypes import ROWS, compute_dtype
from prims.records import record

__all__ = ["REDUCTIONS", "Reduction", "helpers", "neutral", "partial_dtype"]


@record
class Reduction:
    """A reduction in generated code.

    Attributes:
        name: of the primitive.
        start: what changes nothing: a number, or ``"least"`` or ``"greatest"`` of the type.
        c: C's statement that takes ``{1}`` into ``{0}``.
        clause: OpenMP's operator.
        triton: Triton's expression of two blocks taken together.
        collapse: Triton's expression of a block taken together along its second dimension; where it is empty, or
            loses NaNs, that of ``triton`` is folded.
        better: for extremes, how an element compares with one that it replaces; one NaN makes the result NaN.
        wide: whether C collects floats in double.
        place: whether the element's place is asked for.
    """

    name: str
    start: int | str = 0
    c: str = ""
    clause: str = ""
    triton: str = ""
    collapse: str = ""
    better: str = ""
    wide: bool = False
    place: bool = False

    def collapsed(self, block: str, dtype: torch.dtype) -> str:
        """Triton's expression of a block of operands of a dtype, taken together along the second dimension.

        A sum begins with 0, as C's and eager's do: of nothing but negative zeros it is 0, not -0.
        """
        loses = bool(self.better) and dtype.is_floating_point
        found = (self.collapse if self.collapse and not loses else f"tl.reduce({{}}, 1, qt_{self.name})").format(block)
        return f"({found} + 0.0)" if self.name == "sum" and dtype.is_floating_point else found

    def notes_nan(self, dtype: torch.dtype) -> bool:
        """Must C look for NaNs, which no comparison finds?"""
        return bool(self.better) and dtype.is_floating_point

    def stretches(self, dtype: torch.dtype) -> bool:
        """Does C collect short stretches of elements in the type itself, and these in double?"""
        return self.wide and dtype.is_floating_point


_EXTREME = "tl.{}imum({{0}}, {{1}}, tl.PropagateNan.ALL)"
_BETTER = "{{0}} = {{1}} {} {{0}} ? {{1}} : {{0}};"

REDUCTIONS = {
    row.name: row
    for row in (
        Reduction("sum", 0, "{0} += {1};", "+", "{0} + {1}", "tl.sum({}, 1)", wide=True),
        Reduction("prod", 1, "{0} *= {1};", "*", "{0} * {1}", wide=True),
        Reduction("any", 0, "{0} |= ({1} != 0);", "|", "{0} | {1}", "tl.max({}, 1)"),
        Reduction("all", 1, "{0} &= ({1} != 0);", "&", "{0} & {1}", "tl.min({}, 1)"),
        Reduction("amax", "least", _BETTER.format(">"), "max", _EXTREME.format("max"), "tl.max({}, 1)", ">"),
        Reduction("amin", "greatest", _BETTER.format("<"), "min", _EXTREME.format("min"), "tl.min({}, 1)", "<"),
        Reduction("argmax", "least", _BETTER.format(">"), "max", better=">", place=True),
        Reduction("argmin", "greatest", _BETTER.format("<"), "min", better="<", place=True),
        Reduction("cumsum", 0, "{0} += {1};", "", "{0} + {1}", "tl.sum({}, 1)", wide=True),
        Reduction("cumprod", 1, "{0} *= {1};", "", "{0} * {1}", wide=True),
        Reduction("deviations"),  # the sum of squared deviations from the mean, which no primitive has
    )
}


def neutral(op: str, dtype: torch.dtype) -> int | float:
    """The number that a reduction of elements of a dtype begins with."""
    start = REDUCTIONS[op].start
    if isinstance(start, int):
        return start
    if dtype.is_floating_point:
        return float("-inf" if start == "least" else "inf")
    if dtype == torch.bool:
        return int(start == "greatest")
    return torch.iinfo(dtype).min if start == "least" else torch.iinfo(dtype).max


def partial_dtype(dtype: torch.dtype) -> torch.dtype:
    """What Triton reduces elements of a dtype in: small integers and bools as int32, halves as float32."""
    return ROWS[dtype].summed or compute_dtype(dtype)


_PLACE = """\
def qt_{name}(a, i, b, j):
    first = (a {better} b) | ((a == b) & (i < j)) | ((a != a) & ((b == b) | (i < j)))
    first = first & ((b == b) | (a != a))
    return tl.where(first, a, b), tl.where(first, i, j)"""


def helpers() -> dict[str, str]:
    """Triton's functions of two partial results, by name."""
    return {
        f"qt_{row.name}": _PLACE.format(name=row.name, better=row.better) if row.place
        else f"def qt_{row.name}(a, b):\n    return {row.triton.format('a', 'b')}"
        for row in REDUCTIONS.values() if row.place or row.triton
    }  # fmt: skip
