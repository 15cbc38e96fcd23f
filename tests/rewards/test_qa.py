"""Short answers against the rules of the official scripts; each case says why.

Expected values are worked out by hand from evaluate-v1.1.py (SQuAD), hotpot_evaluate_v1.py and qa_em.py (Search-R1).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.rewards.qa import contains, exact_match, f1, normalize

CASES: list[tuple[str, list[str], float, float, float, str]] = [
    # said, golds, exact match, f1, contains, why
    ("Paris", ["Paris"], 1, 1, 1, "equal"),
    ("paris", ["Paris"], 1, 1, 1, "case does not count"),
    ("Paris.", ["Paris"], 1, 1, 1, "punctuation does not count"),
    ("the Beatles", ["Beatles"], 1, 1, 1, "articles do not count"),
    ("The  Beatles ", ["beatles"], 1, 1, 1, "nor does space"),
    ("a an the", ["The"], 1, 0, 0, "both normalise to nothing: equal, but without a common word"),
    ("", [""], 1, 0, 0, "SQuAD 1.1 finds no word in common between empty texts"),
    ("Paris, France", ["Paris"], 0, 2 / 3, 1, "precision 1/2, recall 1"),
    ("Paris", ["Paris, France"], 0, 2 / 3, 0, "precision 1, recall 1/2; the gold is not part of the answer"),
    ("Lyon", ["Paris"], 0, 0, 0, "no word in common"),
    ("Lyon", ["Paris", "Lyon"], 1, 1, 1, "the best alias counts"),
    ("New York City", ["NYC", "New York"], 0, 0.8, 1, "the best alias for each measure: 2 of 3 and 2 of 2"),
    ("New York", [], 0, 0, 0, "without golds nothing is right"),
    ("1,234", ["1234"], 1, 1, 1, "a comma is punctuation, so digits join"),
    ("1.5", ["15"], 1, 1, 1, "so does a point, which is the scripts' rule and not arithmetic"),
    ("12", ["1"], 0, 0, 1, "contains compares characters: 1 is part of 12, a known weakness"),
    ("twelve", ["12"], 0, 0, 0, "numbers are not read"),
    ("U.S.A.", ["USA"], 1, 1, 1, "points go before words are cut"),
    ("co-founder", ["cofounder"], 1, 1, 1, "a hyphen goes without leaving a space"),
    ("co founder", ["co-founder"], 0, 0, 0, "so the words are others"),
    ("Jean‐Paul", ["JeanPaul"], 0, 0, 0, "a Unicode hyphen is not in string.punctuation and stays"),
    ("“Paris”", ["Paris"], 0, 0, 1, "neither are curly quotes"),
    ("café", ["cafe"], 0, 0, 0, "accents count"),
    ("yes", ["yes"], 1, 1, 1, "yes is yes"),
    ("yes it is", ["yes"], 0, 0, 1, "HotpotQA: yes earns nothing unless it is all of both"),
    ("yes", ["no"], 0, 0, 0, "and never by its words"),
    ("no", ["no country"], 0, 0, 0, "also where the gold is longer"),
    ("noanswer", ["no answer"], 0, 0, 0, "noanswer is one word, no answer two"),
    ("the cat the cat", ["cat"], 0, 2 / 3, 1, "repeats count: one of two words is right"),
    ("cat", ["cat cat cat"], 0, 0.5, 0, "precision 1, recall 1/3"),
    ("b a", ["a b"], 1, 1, 1, "a is an article, so the order cannot differ"),
    ("dog cat", ["cat dog"], 0, 1, 0, "F1 forgets order, exact match does not"),
    ("theatre", ["atre"], 0, 0, 1, "an article goes only as a whole word"),
    ("an-a", ["ana"], 1, 1, 1, "punctuation goes before articles, so these are one word"),
    ("Paris Lyon Nice Lille", ["Nice"], 0, 0.4, 1, "listing candidates: contains is gamed, exact match is not"),
    ("<answer>Paris</answer>", ["Paris"], 0, 0, 1, "tags are not read here: the signs go, answerparisanswer stays"),
]  # fmt: skip


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 30 and len({(said, *golds) for said, golds, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("said", "golds", "em", "words", "within", "why"), CASES)
def test_a_case(said: str, golds: list[str], em: float, words: float, within: float, why: str) -> None:
    assert exact_match(said, golds) == em, why
    assert f1(said, golds) == pytest.approx(words), why
    assert contains(said, golds) == within, why


@given(st.text(), st.lists(st.text(), max_size=3))
def test_measures_are_bounded_and_agree(said: str, golds: list[str]) -> None:
    assert 0 <= f1(said, golds) <= 1
    if exact_match(said, golds) and normalize(said):
        assert f1(said, golds) == 1 and contains(said, golds) == 1


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalize(text)
    assert set(normalize(once).split()) <= set(once.split())
