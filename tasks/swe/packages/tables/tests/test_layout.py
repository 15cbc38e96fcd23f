import pytest
from tables import Column, render


def table(columns, *rows, **options):
    return render(columns, rows, **options).split("\n")


def test_columns_are_as_wide_as_their_cells():
    assert table([Column("a"), Column("b")], ["xxx", 1], ["y", 22]) == [
        "a    b",
        "---  --",
        "xxx  1",
        "y    22",
    ]


def test_titles_count_into_the_width():
    assert table([Column("name"), Column("b")], ["x", 1]) == ["name  b", "----  -", "x     1"]


def test_numbers_to_the_right():
    assert table([Column("n", side="right"), Column("x")], [7, "a"], [12, "b"], rule=False) == [
        " n  x",
        " 7  a",
        "12  b",
    ]


def test_no_line_ends_in_spaces():
    assert all(line == line.rstrip() for line in table([Column("aaa"), Column("bbb")], ["x", ""], ["", "y"]))


def test_cells_are_cut_to_the_width():
    assert table([Column("t", width=5)], ["abcdefg"], ["abcde"]) == ["t", "-----", "ab...", "abcde"]


def test_a_column_is_never_narrower_than_its_title():
    assert table([Column("title", width=2)], ["abcdefg"])[1:] == ["-----", "ab..."]


def test_wrapped_cells_take_several_lines():
    lines = table([Column("id"), Column("text", width=7, wrapped=True)], [1, "one two three"], [2, "x"])
    assert lines[2:] == ["1   one two", "    three", "2   x"]


def test_an_empty_wrapped_cell_takes_one_line():
    assert table([Column("a", wrapped=True), Column("b")], ["", "x"])[2:] == ["   x"]


def test_gap():
    assert table([Column("a"), Column("b")], ["x", "y"], gap=1) == ["a b", "- -", "x y"]


def test_values_as_text():
    assert table([Column("v")], [None], [True], [False], [1.5], [2])[2:] == ["-", "yes", "no", "1.50", "2"]


def test_rows_must_fit():
    with pytest.raises(ValueError, match="a row has 1 cells, there are 2 columns"):
        render([Column("a"), Column("b")], [["x"]])
