import pytest
from ledger import allocate, format_cents, parse_cents, with_interest


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        ("0", 0),
        ("12", 1200),
        ("1,234.50", 123450),
        ("-3.10", -310),
        ("(3.10)", -310),
        (".5", 50),
        ("7.05", 705),
    ],
)
def test_parse(text, cents):
    assert parse_cents(text) == cents


@pytest.mark.parametrize("text", ["1.234", "abc", "1.x"])
def test_what_is_no_amount(text):
    with pytest.raises(ValueError):
        parse_cents(text)


def test_format():
    assert format_cents(123450) == "1,234.50" and format_cents(5) == "0.05" and format_cents(0) == "0.00"


def test_format_negative():
    assert format_cents(-310) == "-3.10" and format_cents(-310, brackets=True) == "(3.10)"


def test_allocate_evenly():
    assert allocate(100, [1, 1, 1]) == [34, 33, 33]


def test_allocate_by_weight():
    assert allocate(1000, [1, 2, 4]) == [143, 286, 571]


def test_allocate_favours_large_remainders():
    assert allocate(10, [1, 3, 3]) == [2, 4, 4] and allocate(11, [3, 3, 1]) == [5, 5, 1]


def test_allocate_nothing_to_a_weight_of_nothing():
    assert allocate(7, [0, 2, 1]) == [0, 5, 2]


@pytest.mark.parametrize("weights", [[0, 0], [3, -1], [-1, 1]])
def test_weights_that_cannot_be(weights):
    with pytest.raises(ValueError):
        allocate(10, weights)


def test_interest_compounds():
    assert with_interest(10_000, 0.1, 2) == 12_100 and with_interest(10_000, 0.1, 2, compound=False) == 12_000


def test_interest_rounds_half_up():
    assert with_interest(50, 0.01, 1) == 51 and with_interest(49, 0.01, 1) == 49
