"""Tables from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tables.text import align, cut, wrap


@dataclass(frozen=True)
class Column:
    """How one column looks. Without a width it is as wide as its longest cell."""

    title: str
    width: int | None = None
    side: str = "left"
    wrapped: bool = False


def render(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], gap: int = 2, rule: bool = True
) -> str:
    """The table as text: titles, a rule, and the rows; lines do not end in spaces."""
    cells = [[_text(value) for value in row] for row in rows]
    for row in cells:
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} cells, there are {len(columns)} columns")
    widths = [_width(column, [row[i] for row in cells]) for i, column in enumerate(columns)]
    lines = [_line([align(c.title, w, c.side) for c, w in zip(columns, widths, strict=True)], gap)]
    if rule:
        lines.append(_line(["-" * w for w in widths], gap))
    for row in cells:
        lines.extend(_row(columns, widths, row, gap))
    return "\n".join(lines)


def _width(column: Column, cells: Sequence[str]) -> int:
    if column.width is not None:
        return max(column.width, len(column.title))
    return max([len(column.title), *map(len, cells)])


def _row(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str], gap: int) -> list[str]:
    """The lines of one row; columns that are not wrapped are cut, and shorter ones end in blanks."""
    parts = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        parts.append(wrap(cell, width) or [""] if column.wrapped else [cut(cell, width)])
    height = max(map(len, parts))
    lines = []
    for n in range(height):
        shown = [part[n] if n < len(part) else "" for part in parts]
        lines.append(
            _line([align(s, w, c.side) for s, w, c in zip(shown, widths, columns, strict=True)], gap)
        )
    return lines


def _line(cells: Sequence[str], gap: int) -> str:
    return (" " * gap).join(cells).rstrip()


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
