"""Progress on long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY_S = 10.0
"""Seconds between lines where there is no terminal."""


class Advance(Protocol):
    """Reports one finished item, with a word on how it goes."""

    def __call__(self, note: str = "") -> None: ...


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """Show the progress of `total` items."""
    if console.is_terminal:
        with _bar(console, title, total) as advance:
            yield advance
    else:
        yield _Lines(console, title, total)


@contextmanager
def _bar(console: Console, title: str, total: int) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title, total=total, note="")

        def advance(note: str = "") -> None:
            bars.update(task, advance=1, note=note)

        yield advance


class _Lines:
    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console, self._title, self._total = console, title, total
        self._done, self._last_s = 0, time.monotonic()

    def __call__(self, note: str = "") -> None:
        self._done += 1
        if time.monotonic() - self._last_s >= EVERY_S:
            self._last_s = time.monotonic()
            self._console.print(f"{self._title}: {self._done}/{self._total} {note}", highlight=False)
