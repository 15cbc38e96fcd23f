"""Every operator changes what a module means, and touches nothing else of its text."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.tasks.swe import tiny
from palestra.tasks.swe.mutate import OPERATORS, Edit, edits

CASES = {
    "flip_comparison": ("a < b", {"a <= b", "a > b"}),
    "change_arithmetic": ("a + b * c", {"a - (b * c)", "b + c"}),
    "change_update": ("a += b", {"a -= b", "a = b"}),
    "off_by_one": ("f(3)", {"4", "2"}),
    "negate_condition": ("x = 1 if a else 2", {"not (a)"}),
    "swap_logic": ("a and b", {"a or b"}),
    "swap_arguments": ("f(a, b, c=d)", {"f(b, a, c=d)"}),
    "drop_branch": ("if a:\n    f()", {"pass"}),
    "drop_statement": ("f()", {"pass"}),
    "remove_return": ("def f():\n    return a", {"return None"}),
    "wrong_default": ("def f(a=True, *, b='x'): ...", {"False", "''"}),
    "wrong_variable": ("def f(a, b):\n    return a", {"b"}),
    "shift_slice": ("a[i:j]", {"i + 1", "j - 1"}),
}


def test_every_operator_is_tried() -> None:
    assert set(CASES) == set(OPERATORS) and len(OPERATORS) >= 8


@pytest.mark.parametrize("operator", CASES)
def test_operator(operator: str) -> None:
    source, wanted = CASES[operator]
    assert {e.new for e in edits(source) if e.operator == operator} == wanted


@pytest.mark.parametrize("source", ["x = 'a < b'", "# a < b", "def f(a, b=None): ...", "import a, b"])
def test_text_that_is_not_code_is_left_alone(source: str) -> None:
    assert edits(source) == []


SOURCE = tiny.clean("tables").text("tables/text.py")


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(edits(SOURCE)))
def test_an_edit_keeps_all_other_text_and_changes_the_meaning(edit: Edit) -> None:
    source = SOURCE
    changed = edit.apply(source)
    assert changed.startswith(source[: edit.start]) and changed.endswith(source[edit.end :])
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_columns_are_characters_and_not_bytes() -> None:
    source = "x = 'äöü' if a < b else 'ß'\n"
    (edit,) = (e for e in edits(source) if e.new == "a <= b")
    assert edit.apply(source) == "x = 'äöü' if a <= b else 'ß'\n"


def test_an_edit_refuses_other_text() -> None:
    with pytest.raises(ValueError, match="the source has 'x' at 0, not 'y'"):
        Edit("off_by_one", 0, 1, "y", "z").apply("x")
