"""Comparing the results of two queries: multisets of rows, or lists where order counts.

Numbers are equal within 1e-9, relative or absolute, where one of them is a float; integers and text are
compared exactly, 2 equals 2.0, and no number equals a text. Columns may come in any order, the same one on
every database.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from palestra.tasks.sql.guarded import Value

Row = tuple[Value, ...]
Rows = Sequence[Row]

TOLERANCE = 1e-9
_MAX_COLUMN_ORDERS = 720


def same_results(pairs: Sequence[tuple[Rows, Rows]], ordered: bool) -> bool:
    """Whether one order of columns makes every (gold, submitted) pair equal."""
    if all(list(gold) == list(got) for gold, got in pairs):
        return True
    if any(not same_shape(gold, got) for gold, got in pairs):
        return False
    orders = islice(_column_orders(pairs), _MAX_COLUMN_ORDERS)
    return any(all(_same_rows(gold, _picked(got, order), ordered) for gold, got in pairs) for order in orders)


def same_shape(gold: Rows, got: Rows) -> bool:
    """Equal numbers of rows and columns."""
    return len(gold) == len(got) and (not gold or len(gold[0]) == len(got[0]))


def cell_f1(gold: Rows, got: Rows) -> float:
    """F1 of the cells of a result, as multisets of values, wherever in the table they stand; in [0, 1]."""
    wanted = Counter(cell_key(value) for row in gold for value in row)
    given = Counter(cell_key(value) for row in got for value in row)
    common = (wanted & given).total()
    return 2 * common / (wanted.total() + given.total()) if common else 0.0


def cell_key(value: Value) -> tuple[int, float | str | bytes]:
    """Equal for values that count as the same, but for the last digits of numbers."""
    return _key(value)[:2]


def _column_orders(pairs: Sequence[tuple[Rows, Rows]]) -> Iterator[tuple[int, ...]]:
    """Assignments of submitted columns to gold columns under which each column holds the same values."""
    width = next((len(gold[0]) for gold, _ in pairs if gold), 0)
    fits = [
        [j for j in range(width) if all(_same_column(gold, i, got, j) for gold, got in pairs)]
        for i in range(width)
    ]

    def assign(i: int, used: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if i == width:
            yield used
            return
        for j in sorted(fits[i], key=lambda j: j != i):
            if j not in used:
                yield from assign(i + 1, (*used, j))

    return assign(0, ())


def _same_column(gold: Rows, i: int, got: Rows, j: int) -> bool:
    wanted = sorted((row[i] for row in gold), key=_key)
    given = sorted((row[j] for row in got), key=_key)
    return all(map(_same, wanted, given))


def _picked(rows: Rows, order: tuple[int, ...]) -> Rows:
    if order == tuple(range(len(order))):
        return rows
    return [tuple(row[j] for j in order) for row in rows]


def _same_rows(gold: Rows, got: Rows, ordered: bool) -> bool:
    if not ordered:
        gold, got = sorted(gold, key=_row_key), sorted(got, key=_row_key)
    return all(all(map(_same, a, b)) for a, b in zip(gold, got, strict=True))


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        numbers = isinstance(a, int | float) and isinstance(b, int | float)
        return numbers and math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)  # type: ignore[arg-type]
    return type(a) is type(b) and a == b


def _row_key(row: Row) -> tuple[object, ...]:
    """Kinds and other values first, then numbers, exact numbers last.

    Rows whose floats differ in the last digits alone then stand in the same order in both results.
    """
    keys = [_key(value) for value in row]
    others = tuple((k[0], 0.0) if k[0] == 1 else k[:2] for k in keys)
    numbers = [k for k in keys if k[0] == 1]
    return others, tuple(k[1] for k in numbers), tuple(k[2] for k in numbers)


def _key(value: Value) -> tuple[int, float | str | bytes, float]:
    """A sort key over all SQLite values: kind, value with numbers cut to ten digits, exact number."""
    if value is None:
        return 0, 0.0, 0.0
    if isinstance(value, int | float):
        return 1, float(f"{value:.10g}"), value
    return (2, value, 0.0) if isinstance(value, str) else (3, value, 0.0)
