"""What an answer that was searched for is worth."""

from __future__ import annotations

from typing import Any

import pytest

from palestra.rewards.score import GraderError
from palestra.rewards.search import Searched, SearchGrader, abstains
from palestra.rewards.search_decision import DecisionGrader, f1_aware, needs_search
from palestra.tasks.task import Task


def task(**data: Any) -> Task:
    return Task(id="t", family="search", env="palestra/Search-v0", split="test", instruction="?", data=data)


def names(*passages: str) -> tuple[frozenset[str], ...]:
    return tuple(frozenset({p}) for p in passages)


GOLD = task(answers=["Paris", "City of Light"], evidence=["A", "B"])
FOUND_BOTH = (names("A", "x"), names("y", "B"))


def test_by_default_the_answer_is_the_value_and_the_rest_is_told() -> None:
    score = SearchGrader()(GOLD, Searched("paris", names("A", "x"), FOUND_BOTH))
    assert score.value == 1.0
    assert score.parts == {
        "answer": 1.0,
        "evidence": 1.0,
        "recall_at_k": 0.5,
        "citation_precision": 0.5,
        "citation_recall": 0.5,
        "searches": 2.0,
        "abstained": 0.0,
    }


def test_aliases_and_rules() -> None:
    assert SearchGrader()(GOLD, Searched("city of light")).value == 1.0
    assert SearchGrader()(GOLD, Searched("Paris in France")).value == 0.0
    assert SearchGrader("f1")(GOLD, Searched("Paris France")).value == pytest.approx(2 / 3)
    told = task(answers=["Paris"], rule="contains")
    assert SearchGrader()(told, Searched("Paris in France")).value == 1.0


def test_nothing_handed_in_is_a_valid_zero_whatever_was_found() -> None:
    score = SearchGrader(evidence=1.0)(GOLD, Searched(None, (), FOUND_BOTH))
    assert score.value == 0.0 and score.valid


def test_abstaining_is_right_where_there_is_no_answer_and_nowhere_else() -> None:
    unanswerable = task(answerable=False)
    assert SearchGrader()(unanswerable, Searched("I don't know.")).value == 1.0
    assert SearchGrader()(unanswerable, Searched("Paris")).value == 0.0
    assert SearchGrader()(GOLD, Searched("unknown")).value == 0.0
    assert abstains("Unknown!") and abstains("") and not abstains("unknown soldier")


def test_shares_of_evidence_and_citations_and_the_price_of_searching() -> None:
    grader = SearchGrader(evidence=0.2, citations=0.3, search_price=0.05)
    full = grader(GOLD, Searched("Paris", names("A", "B"), FOUND_BOTH))
    assert full.value == pytest.approx(1.0 - 0.1)
    part = grader(GOLD, Searched("Lyon", names("A", "x"), (names("A"),)))
    assert part.value == pytest.approx(0.2 * 0.5 + 0.3 * 0.5 - 0.05)
    dear = SearchGrader(search_price=1.0)
    assert dear(GOLD, Searched("Paris", (), FOUND_BOTH)).value == 0.0


@pytest.mark.parametrize(
    "shares", [{"evidence": 1.5}, {"citations": -0.1}, {"evidence": 0.6, "citations": 0.6}]
)
def test_shares_that_make_no_sense_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="shares are at least 0"):
        SearchGrader(None, **shares)


def test_retrieval_is_graded_by_what_is_cited() -> None:
    retrieval = task(rule="citations", evidence=["A", "B"])
    assert SearchGrader()(retrieval, Searched("", names("A", "B"))).value == 1.0
    assert SearchGrader()(retrieval, Searched("", names("A"))).value == pytest.approx(2 / 3)
    assert SearchGrader()(retrieval, Searched("", names("x"))).value == 0.0


def test_a_task_that_says_not_what_is_right_is_not_graded() -> None:
    for broken in (task(), task(answers="Paris"), task(answers=["a"], rule="bleu"), task(answers=[1])):
        with pytest.raises(GraderError):
            SearchGrader()(broken, Searched("Paris"))


@pytest.mark.parametrize(
    ("solve_rate", "search", "value"),
    [(0.0, True, 1.0), (0.0, False, 0.0), (0.5, False, 1.0), (1.0, True, 0.0)],
)
def test_the_decision_gates_the_answer(solve_rate: float, search: bool, value: float) -> None:
    asked = task(answers=["Paris"], solve_rate=solve_rate)
    score = DecisionGrader()(asked, Searched("Paris", wants_search=search))
    assert score.value == value == score.parts["decision"] and score.parts["answer"] == 1.0


def test_without_a_decision_or_an_answer_there_is_nothing() -> None:
    asked = task(answers=["Paris"], solve_rate=1.0)
    assert DecisionGrader()(asked, Searched("Paris")).value == 0.0
    assert DecisionGrader()(asked, Searched(None, wants_search=False)).value == 0.0


@pytest.mark.parametrize("rate", [None, True, "1", 1.5])
def test_a_solve_rate_is_needed(rate: object) -> None:
    with pytest.raises(GraderError, match="solve_rate"):
        needs_search(task(answers=["Paris"], solve_rate=rate))


def test_f1_aware_is_the_f1_of_answering_at_once() -> None:
    assert f1_aware([True, True, False, False], [True, False, True, False]) == 0.5
    assert f1_aware([False, False], [True, False]) == 0.0
    assert f1_aware([True, False], [True, False]) == 1.0
    with pytest.raises(ValueError):
        f1_aware([True], [])
