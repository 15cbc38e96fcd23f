"""Text of agents and tools, made safe and short enough to print.

What an agent wrote can hold anything: terminal escapes that clear the screen, overrides of the writing
direction, half of a surrogate pair. Nothing of that reaches the terminal; it is shown as a backslash escape.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

_KEPT = {ord("\n"), ord("\t")}
_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - _KEPT
_DIRECTIONS = {0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_SEPARATORS = {0x2028, 0x2029}
_ESCAPES = {c: chr(c).encode("unicode_escape").decode() for c in _CONTROLS | _DIRECTIONS | _SEPARATORS}


def visible(text: str, encoding: str = "utf-8") -> str:
    """`text` with what a terminal would obey, or `encoding` cannot say, as backslash escapes."""
    return text.translate(_ESCAPES).encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: str, limit: int) -> str:
    """`text` on one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: max(0, limit - 3)] + "..."


def cut(text: Text, max_chars: int | None) -> Text:
    """The beginning and the end of a long text, and how much is missing between; None means no limit."""
    if max_chars is None or len(text) <= max_chars:
        return text
    head, tail = max_chars - max_chars // 3, max_chars // 3
    missing = len(text) - head - tail
    note = Text(f"\n... {missing} characters not shown ...\n", "bold")
    return Text.assemble(text[:head], note, text[len(text) - tail :])


def beside(gutter: str, text: Text, console: Console) -> Iterator[Text]:
    """Lines of `text`, wrapped to the console, each behind `gutter`."""
    text.expand_tabs(4)
    for line in text.wrap(console, max(20, console.width - len(gutter))):
        line.rstrip()
        yield Text.assemble((gutter, "dim"), line)


def number(value: float) -> str:
    """A reward or a part of one, in four digits."""
    return f"{value:.4g}"
