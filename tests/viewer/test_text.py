"""Nothing that an agent wrote reaches the terminal as a command."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from palestra.viewer.text import beside, cut, number, one_line, visible


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("right\roverwritten", "right\\roverwritten"),
        ("\b\b\b", "\\x08\\x08\\x08"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("null\x00", "null\\x00"),
    ],
)
def test_a_terminal_does_not_obey(attack: str, shown: str) -> None:
    assert visible(attack) == shown


def test_what_a_person_reads_is_left_alone() -> None:
    assert visible("Zürich\n\t你好 👋 [bold]") == "Zürich\n\t你好 👋 [bold]"
    assert visible("Zürich 你", "ascii") == "Z\\xfcrich \\u4f60"


@given(st.text(st.characters()), st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_no_text_breaks_or_commands_a_terminal(text: str, encoding: str) -> None:
    clean = visible(text, encoding)
    clean.encode(encoding)
    assert all(c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"} for c in clean)


@given(st.text(max_size=60), st.integers(3, 50))
def test_one_line_is_one_and_short(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit and len(line.splitlines()) <= 1


@given(st.integers(0, 300), st.none() | st.integers(0, 100))
def test_a_cut_text_says_what_is_missing(length: int, limit: int | None) -> None:
    whole = "".join(chr(ord("a") + n % 26) for n in range(length))
    text = cut(Text(whole, "red"), limit).plain
    if limit is None or length <= limit:
        assert text == whole
        return
    head, note, tail = text.split("\n")
    assert whole.startswith(head) and whole.endswith(tail) and len(head + tail) == limit
    assert note == f"... {length - limit} characters not shown ..."


def test_every_wrapped_line_has_its_gutter() -> None:
    console = Console(width=30, color_system=None)
    lines = [line.plain for line in beside("  > ", Text("word " * 20 + "\n\tindented"), console)]
    assert all(line.startswith("  > ") and len(line) <= 30 for line in lines)
    assert lines[-1] == "  >     indented"
    assert " ".join(line[4:] for line in lines[:-1]) == "word " * 19 + "word"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (1.0, "1"), (1 / 3, "0.3333"), (-0.0001, "-0.0001")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown
