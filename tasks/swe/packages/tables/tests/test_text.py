import pytest
from tables import align, cut, wrap


@pytest.mark.parametrize(("side", "shown"), [("left", "ab..."), ("right", "...ab"), ("center", ".ab..")])
def test_align(side, shown):
    assert align("ab", 5, side, fill=".") == shown


def test_align_is_left_with_spaces_by_default():
    assert align("ab", 4) == "ab  "


def test_align_leaves_long_text_alone():
    assert align("abcdef", 3, "right") == "abcdef"


@pytest.mark.parametrize(
    ("width", "shown"), [(8, "abcdefgh"), (7, "abcd..."), (4, "a..."), (3, "abc"), (2, "ab"), (0, "")]
)
def test_cut(width, shown):
    assert cut("abcdefgh", width) == shown


def test_cut_with_a_mark_of_ones_own():
    assert cut("abcdef", 4, mark="~") == "abc~"


def test_wrap_breaks_at_spaces():
    assert wrap("the quick brown fox", 9) == ["the quick", "brown fox"]


def test_wrap_fills_a_line_to_its_end():
    assert wrap("aa bb cc", 5) == ["aa bb", "cc"] and wrap("aa bb cc", 4) == ["aa", "bb", "cc"]


def test_wrap_indents_later_lines():
    assert wrap("one two three", 7, indent=2) == ["one two", "  three"]


def test_an_indented_line_has_less_room():
    assert wrap("aa bb cc dd", 5, indent=1) == ["aa bb", " cc", " dd"]


def test_wrap_breaks_long_words():
    assert wrap("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]


def test_wrap_of_nothing():
    assert wrap("   ", 5) == []
