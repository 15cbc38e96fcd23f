import pytest
from intervals import IntervalSet


def spans(*intervals):
    return list(IntervalSet(intervals))


def test_overlapping_intervals_are_joined():
    assert spans((1, 4), (3, 6), (10, 12)) == [(1, 6), (10, 12)]


def test_touching_intervals_are_joined():
    assert spans((5, 7), (1, 5)) == [(1, 7)]


def test_an_interval_inside_another_disappears():
    assert spans((0, 10), (2, 3)) == [(0, 10)]


def test_empty_and_reversed_intervals_are_dropped():
    assert spans((3, 3), (5, 4)) == [] and len(IntervalSet([(1, 2), (2, 2)])) == 1


@pytest.mark.parametrize(
    ("x", "inside"), [(0, False), (1, True), (2.5, True), (3, False), (5, True), (9, False)]
)
def test_membership_is_half_open(x, inside):
    assert (x in IntervalSet([(1, 3), (5, 6)])) is inside


def test_union():
    assert IntervalSet([(0, 2)]) | IntervalSet([(1, 3), (7, 8)]) == IntervalSet([(0, 3), (7, 8)])


def test_intersection_of_many():
    left = IntervalSet([(0, 5), (10, 15), (20, 25)])
    right = IntervalSet([(3, 12), (14, 22)])
    assert list(left & right) == [(3, 5), (10, 12), (14, 15), (20, 22)]


def test_intersection_of_touching_sets_is_empty():
    assert list(IntervalSet([(0, 5)]) & IntervalSet([(5, 9)])) == []


def test_difference_cuts_holes():
    assert list(IntervalSet([(0, 10)]) - IntervalSet([(2, 3), (5, 7)])) == [(0, 2), (3, 5), (7, 10)]


def test_difference_at_the_edges():
    assert list(IntervalSet([(0, 10), (20, 30)]) - IntervalSet([(-5, 1), (9, 21), (30, 40)])) == [
        (1, 9),
        (21, 30),
    ]


def test_gaps():
    assert list(IntervalSet([(2, 4), (6, 8)]).gaps(0, 10)) == [(0, 2), (4, 6), (8, 10)]


def test_measure_and_shift():
    numbers = IntervalSet([(1, 2), (4, 8)])
    assert numbers.measure == 5 and list(numbers.shifted(3)) == [(4, 5), (7, 11)]


@pytest.mark.parametrize(
    ("length", "after", "x"), [(1, 0, 2), (3, 0, 10), (1, 3, 3), (2, 3, 10), (9, 0, None)]
)
def test_first_fit(length, after, x):
    assert IntervalSet([(2, 4), (10, 15)]).first_fit(length, after) == x


def test_first_fit_starts_at_zero():
    assert IntervalSet([(-5, 5)]).first_fit(2) == 0


def test_equal_sets_have_equal_hashes():
    assert len({IntervalSet([(1, 2), (2, 3)]), IntervalSet([(1, 3)])}) == 1
