import pytest
from intervals import IntervalSet, format_set, parse_set


@pytest.mark.parametrize("text", ["", "7", "1-3", "1-3,7", "0,2,4-9"])
def test_round_trip(text):
    assert format_set(parse_set(text)) == text


def test_parsing_includes_both_ends():
    assert list(parse_set("1-3, 7")) == [(1, 4), (7, 8)]


def test_neighbours_are_written_as_a_range():
    assert format_set(IntervalSet([(1, 2), (2, 3)])) == "1-2"


def test_blanks_and_empty_parts_are_skipped():
    assert parse_set(" 4 ,, 5-6,") == IntervalSet([(4, 7)])


@pytest.mark.parametrize("text", ["3-1", "x", "1-x"])
def test_what_is_no_set(text):
    with pytest.raises(ValueError):
        parse_set(text)


def test_a_range_of_one():
    assert list(parse_set("5-5")) == [(5, 6)]
