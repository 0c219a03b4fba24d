"""Pictures of the documentation: SVG by hand, the same text for the same data, on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["Drawing", "bars"]

#: Told apart by people who do not see red and green alike (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
#: What is measured has one colour in all plots.
_OF_SERIES = {
    "Quintet": COLOURS[0], "default": COLOURS[0], "torch.compile": COLOURS[1], "eager": COLOURS[6],
    "deterministic": COLOURS[2], "batch_invariant": COLOURS[3],
}  # fmt: skip
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#222}.s{font-size:11px;fill:#555}.b{font-weight:bold}"
    ".r{text-anchor:end}.m{text-anchor:middle}.o{paint-order:stroke;stroke:#fff;stroke-width:3px}"
)


def number(x: float) -> str:
    """A coordinate: at most one digit after the point."""
    return f"{x:.1f}".removesuffix(".0")


class Drawing:
    """Shapes on white paper."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.width = self.height = 0.0

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x: float, y: float, what: str, kind: str = "") -> None:
        """Text whose baseline begins (or by its kind ends, ``r``, or is in the middle, ``m``) at a place; ``o``: over lines."""
        classed = f' class="{kind}"' if kind else ""
        self.parts.append(f'<text x="{number(x)}" y="{number(y)}"{classed}>{escape(what, quote=False)}</text>')
        self._reach(x + (0 if "r" in kind.split() else 7.3 * len(what) / (2 if "m" in kind.split() else 1)), y + 4)

    def box(self, x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0, tip: str = "") -> None:
        """A filled rectangle; ``tip`` is shown where the pointer is."""
        faint = f' fill-opacity="{opacity:g}"' if opacity != 1 else ""
        size = f'width="{number(width)}" height="{number(height)}"'
        shape = f'<rect x="{number(x)}" y="{number(y)}" {size} rx="2" fill="{fill}"{faint}'
        self.parts.append(f"{shape}><title>{escape(tip, quote=False)}</title></rect>" if tip else f"{shape}/>")
        self._reach(x + width, y + height)

    def path(self, commands: str, colour: str = "#888", dashed: bool = False) -> None:
        """A line."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<path d="{commands}" fill="none" stroke="{colour}"{dash}/>')

    def line(self, x: float, y: float, to_x: float, to_y: float, colour: str = "#ccc", dashed: bool = False) -> None:
        """A straight line."""
        self.path(f"M{number(x)} {number(y)}L{number(to_x)} {number(to_y)}", colour, dashed)
        self._reach(max(x, to_x), max(y, to_y))

    def __str__(self) -> str:
        width, height = math.ceil(self.width) + 12, math.ceil(self.height) + 10
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        paper = f'<rect width="{width}" height="{height}" fill="#fff"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title><style>{_STYLE}</style>", paper, *self.parts, "</svg>\n"])


def bars(
    title: str, rows: Mapping[str, Sequence[float | None]], series: Sequence[str], unit: str, *, logarithmic: bool = False,
    line: float | None = None, note: str = "",
) -> str:  # fmt: skip
    """Horizontal bars, a group for each row, with their numbers.

    Args:
        rows: by name a number for each series, None where there is none.
        logarithmic: of the axis.
        line: a number at which a dashed line stands.
        note: what it means, above the bars.
    """
    picture = Drawing(title)
    left, width, thick, gap = 10 + 7.3 * max(map(len, rows)), 420, 13, 8
    colours = [_OF_SERIES.get(name, COLOURS[0]) for name in series]
    values = [v for group in rows.values() for v in group if v is not None]
    most, least = max(values), min(values)
    base = 10 ** math.floor(math.log10(least)) if logarithmic else 0.0

    def along(value: float) -> float:
        if not logarithmic:
            return width * value / most
        return width * math.log10(value / base) / math.log10(most / base)

    picture.text(10, 18, title, "b")
    y = 36.0
    if len(series) > 1:
        x = 10.0
        for name, colour in zip(series, colours, strict=True):
            picture.box(x, y - 9, 10, 10, colour)
            picture.text(x + 15, y, name)
            x += 35 + 7.3 * len(name)
        y += 18
    if note:
        picture.text(10, y, note, "s")
        y += 16
    top, below = y, len(picture.parts)
    for name, group in rows.items():
        picture.text(left, y + thick * len(group) / 2 + 4, name, "r")
        for value, colour in zip(group, colours, strict=True):
            if value is not None:
                picture.box(left + 6, y, max(along(value), 1), thick - 2, colour)
                picture.text(left + 10 + max(along(value), 1), y + thick - 3, f"{value:.3g} {unit}".strip(), "s o")
            y += thick
        y += gap
    if line is not None:
        x = left + 6 + along(line)
        picture.line(x, top - 4, x, y, "#222", dashed=True)
        picture.parts.insert(below, picture.parts.pop())  # numbers stand on it
    return str(picture)
