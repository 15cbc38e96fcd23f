from datetime import date

import pytest
from ledger import Book, Entry, UnbalancedError


def day(n, month=1):
    return date(2024, month, n)


@pytest.fixture
def book():
    book = Book()
    for name, kind in (("cash", "asset"), ("rent", "expense"), ("loan", "liability"), ("sales", "income")):
        book.open(name, kind)
    book.post(Entry(day(5), {"cash": 500, "sales": -500}, "sale"))
    book.post(Entry(day(2), {"cash": 1000, "loan": -1000}, "borrowed"))
    book.post(Entry(day(9), {"rent": 300, "cash": -300}, "rent"))
    return book


def test_entries_are_in_the_order_of_days(book):
    assert [e.note for e in book.entries] == ["borrowed", "sale", "rent"]


def test_entries_of_one_day_keep_their_order(book):
    book.post(Entry(day(5), {"cash": 1, "sales": -1}, "second"))
    assert [e.note for e in book.entries] == ["borrowed", "sale", "second", "rent"]


def test_balances_have_their_natural_sign(book):
    assert [book.balance(a) for a in ("cash", "rent", "loan", "sales")] == [1200, 300, 1000, 500]


def test_balance_at_the_end_of_a_day(book):
    assert [book.balance("cash", day(n)) for n in (1, 2, 5, 8, 9)] == [0, 1000, 1500, 1500, 1200]


def test_unbalanced_entries_are_refused(book):
    with pytest.raises(UnbalancedError, match="off by 1"):
        book.post(Entry(day(3), {"cash": 1}, "x"))
    assert len(book.entries) == 3


def test_unknown_accounts_are_refused(book):
    with pytest.raises(KeyError):
        book.post(Entry(day(3), {"cash": 1, "gold": -1}))


def test_an_account_opens_once(book):
    with pytest.raises(ValueError, match="exists"):
        book.open("cash", "asset")


def test_statement_runs_a_balance(book):
    assert book.statement("cash") == [
        (day(2), "borrowed", 1000, 1000),
        (day(5), "sale", 500, 1500),
        (day(9), "rent", -300, 1200),
    ]
    assert book.statement("loan") == [(day(2), "borrowed", 1000, 1000)]


def test_totals_leave_out_the_empty_and_sort(book):
    book.open("bank", "asset")
    book.open("car", "asset")
    book.post(Entry(day(10), {"bank": 5000, "loan": -5000}))
    assert list(book.totals("asset").items()) == [("bank", 5000), ("cash", 1200)]


def test_profit_of_a_month(book):
    book.post(Entry(day(1, month=2), {"cash": 70, "sales": -70}))
    assert book.profit([(2024, 1)]) == 200 and book.profit([(2024, 1), (2024, 2)]) == 270
    assert book.profit([(2023, 1)]) == 0
