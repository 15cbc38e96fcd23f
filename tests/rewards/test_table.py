"""Comparing results."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.rewards.table import Row, cell_f1, same_results

Values = (
    st.none()
    | st.integers(-3, 3)
    | st.sampled_from([0.1, 0.30000000000000004, 2.0, 1e18])
    | st.sampled_from("abc")
)


def tables(max_rows: int = 6) -> st.SearchStrategy[list[Row]]:
    return st.integers(1, 4).flatmap(
        lambda width: st.lists(st.tuples(*[Values] * width), min_size=1, max_size=max_rows)
    )


@pytest.mark.parametrize(
    ("gold", "got", "same"),
    [
        ([(1,)], [(1,)], True),
        ([(2,)], [(2.0,)], True),
        ([(2328.6,)], [(2328.600000000004,)], True),
        ([(2328.6,)], [(2328.61,)], False),
        ([(10_000_000_001,)], [(10_000_000_002,)], False),
        ([(1,)], [("1",)], False),
        ([(None,)], [(0,)], False),
        ([(None,)], [("",)], False),
        ([("a",)], [(b"a",)], False),
        ([("a",)], [("A",)], False),
        ([(1,), (1,)], [(1,)], False),
        ([(1,)], [(1,), (1,)], False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False),
        ([(1, 2)], [(1,)], False),
        ([(1,)], [(1, 2)], False),
        ([(1, "a"), (2, "b")], [("b", 2), ("a", 1)], True),
        ([(1, "a"), (2, "b")], [("a", 2), ("b", 1)], False),
        ([(1, 2), (2, 1)], [(2, 2), (1, 1)], False),
        ([(1,)], [], False),
        ([], [], True),
        ([(0.1 + 0.2, "x"), (0.3, "y")], [(0.3, "x"), (0.3, "y")], True),
        ([(float("inf"),)], [(float("inf"),)], True),
    ],
)
def test_pairs(gold: list[Row], got: list[Row], same: bool) -> None:
    assert same_results([(gold, got)], ordered=False) is same


def test_order_counts_where_it_was_asked_for() -> None:
    gold: list[Row] = [(1,), (2,), (3,)]
    assert same_results([(gold, gold)], ordered=True)
    assert not same_results([(gold, gold[::-1])], ordered=True)
    assert same_results([(gold, gold[::-1])], ordered=False)


def test_the_order_of_columns_is_one_for_all_databases() -> None:
    first = [(1, 2)], [(2, 1)]
    assert same_results([first], ordered=False)
    assert same_results([first, ([(3, 4)], [(4, 3)])], ordered=False)
    assert not same_results([first, ([(3, 4)], [(3, 4)])], ordered=False)


def test_many_equal_columns_do_not_take_for_ever() -> None:
    gold = [(1,) * 12 + (i,) for i in range(4)]
    assert same_results([(gold, [row[::-1] for row in gold])], ordered=False)


@given(tables(), st.randoms(use_true_random=False))
def test_shuffled_rows_and_columns_are_the_same_result(rows: list[Row], rng: random.Random) -> None:
    order = list(range(len(rows[0])))
    rng.shuffle(order)
    shuffled = [tuple(row[i] for i in order) for row in rng.sample(rows, len(rows))]
    assert same_results([(rows, shuffled)], ordered=False)
    assert cell_f1(rows, shuffled) == 1.0


@given(tables(), tables())
def test_sameness_is_symmetric(first: list[Row], second: list[Row]) -> None:
    pair, swapped = [(first, second)], [(second, first)]
    assert same_results(pair, ordered=False) == same_results(swapped, ordered=False)


@given(tables(), st.data())
def test_one_changed_cell_is_noticed(rows: list[Row], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(rows) - 1))
    j = data.draw(st.integers(0, len(rows[0]) - 1))
    changed = [list(row) for row in rows]
    changed[i][j] = "something else"
    assert not same_results([(rows, [tuple(row) for row in changed])], ordered=False)


@pytest.mark.parametrize(
    ("gold", "got", "f1"),
    [
        ([(1, "a")], [("a", 1)], 1.0),
        ([(1, "a")], [(1, "b")], 0.5),
        ([(1,), (2,)], [(1,)], 2 / 3),
        ([(1,)], [], 0.0),
        ([(1,)], [(2,)], 0.0),
        ([(0.1 + 0.2,)], [(0.3,)], 1.0),
    ],
)
def test_cell_f1(gold: list[Row], got: list[Row], f1: float) -> None:
    assert cell_f1(gold, got) == pytest.approx(f1)
